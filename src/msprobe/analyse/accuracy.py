"""How accurate a result is, held against a reference of higher precision: each metric, in one walk over both.

An element that is NaN on both sides, or the same infinity, is equal; the reference counts as it would after
rounding to the dtype of the result, for what overflows there must overflow. NaN or infinity on one side alone
is a mismatch: the error is infinite, and no metric passes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from msprobe.analyse.standard_table import Limits, limits_of
from msprobe.store.dtypes import Array, TensorData, as_float, bits_of

_Floats = npt.NDArray[np.float64]
_Bits = npt.NDArray[np.bool_]

_AT_ONCE = 1 << 18
_UNSTEADY = 0.05
_ADDED_UP = 4.0


class Accuracy(NamedTuple):
    """The metrics of one result. None: integers and booleans have only an error rate."""

    error_rate: float  # share of the elements that differ from the rounded reference
    cosine: float | None = None  # None too: one element, or zeros on both sides
    max_abs: float | None = None
    hundredth: float = 1.0  # share of the elements with a relative error below 0.01
    thousandth: float = 1.0
    ten_thousandth: float = 1.0
    balance: float = 0.0  # how much oftener it is too large than too small, as a share of all elements
    rmse: float = 0.0  # over the reference values that are not small
    small_share: float = 0.0  # of the small values: those with a large absolute error
    max_relative: float = 0.0  # of those that are not small
    mean_relative: float = 0.0
    not_finite_rate: float = 0.0  # of the elements that are not finite on a side: those that do not agree
    relative_rate: float = 0.0  # of those that are not small: those with a large relative error
    absolute_rate: float = 0.0  # the same as small_share, under the name of the absolute standard
    max_ulp: float = 0.0
    mean_ulp: float = 0.0
    ulp_share: float = 0.0
    mismatched: int = 0

    @property
    def is_float(self) -> bool:
        return self.max_abs is not None


class Values(NamedTuple):
    """The elements of a tensor, as numpy can hold them, and its dtype."""

    array: Array
    dtype: str

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype or "complex" in self.dtype


def values_of(tensor: TensorData) -> Values:
    return Values(bits_of(tensor).reshape(tensor.shape), tensor.dtype)


def measure(checked: Values, reference: Values, kind: str = "") -> Accuracy:
    """Two tensors of one shape; `kind` is the dtype of the computation, if it is not that of the result."""
    if not checked.is_float or not reference.is_float:
        return _of_integers(checked, reference)
    ours, theirs = _flat(checked), _flat(reference)
    totals = _Totals(kind or real_dtype(checked.dtype), float(np.finfo(theirs.dtype).eps))
    with np.errstate(all="ignore"):
        for start in range(0, ours.size, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            totals.add(ours[part].astype(np.float64), theirs[part].astype(np.float64))
        return totals.accuracy()


def undetermined(checked: Values, reference: Values, shaken: Values, summands: int) -> bool:
    """Whether rounding decides a result: what is left where large numbers cancel out.

    `shaken` is the reference after a change of all inputs in their last bit. If that alone changes it much,
    and the error is no larger than such changes can add up to, nothing can be said against the result.
    """
    ours, theirs, other = (_flat(values).astype(np.float64) for values in (checked, reference, shaken))
    with np.errstate(all="ignore"):
        change = other - theirs
        unsteady = np.linalg.norm(change) >= _UNSTEADY * np.linalg.norm(theirs)
        most = _ADDED_UP * math.sqrt(summands) * np.abs(change).max(initial=0.0)
        return bool(unsteady and np.abs(ours - theirs).max(initial=0.0) <= most)  # NaN: no


def zero_share(values: Values) -> float:
    flat = _flat(values)
    return float(np.count_nonzero(flat == 0) / flat.size) if flat.size else 0.0


def _of_integers(checked: Values, reference: Values) -> Accuracy:
    ours, theirs = as_float(*checked), as_float(*reference)
    count = ours.size
    return Accuracy(float(np.count_nonzero(ours != theirs) / count) if count else 0.0)


def _flat(values: Values) -> Array:
    """In one row; complex numbers as twice as many real ones."""
    wide = np.ascontiguousarray(as_float(*values)).reshape(-1)
    return wide.view(wide.real.dtype) if wide.dtype.kind == "c" else wide


def real_dtype(dtype: str) -> str:
    """Of the parts of a complex number; of others their own."""
    return {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def rounded(values: _Floats, dtype: str) -> _Floats:
    """The numbers of the dtype that are nearest, ties to even; of a dtype without limits as they are."""
    if dtype == "bfloat16":
        single = values.astype(np.float32)
        bits = single.view(np.uint32)
        near = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
        return np.where(np.isnan(single), single, near).astype(np.float64)
    if dtype in ("float16", "float32"):
        return values.astype(dtype).astype(np.float64)
    return values


@dataclasses.dataclass
class _Totals:
    """Sums and maxima over the elements so far."""

    dtype: str
    eps: float
    count: int = 0
    unequal: int = 0
    mismatched: int = 0
    not_finite: int = 0
    dot: float = 0.0
    ours: float = 0.0
    theirs: float = 0.0
    max_abs: float = 0.0
    squares: float = 0.0  # of the errors where the reference is not small
    below: tuple[int, int, int] = (0, 0, 0)
    larger: int = 0
    smaller: int = 0
    small: int = 0
    small_wrong: int = 0
    normal: int = 0
    normal_wrong: int = 0
    relative: float = 0.0
    max_relative: float = 0.0
    max_ulp: float = 0.0
    ulp: float = 0.0
    many_ulp: int = 0

    @property
    def limits(self) -> Limits:
        return limits_of(self.dtype)

    def add(self, ours: _Floats, theirs: _Floats) -> None:
        near = rounded(theirs, self.dtype)
        finite = np.isfinite(ours) & np.isfinite(near)
        agree = (ours == near) | (np.isnan(ours) & np.isnan(near))
        self.count += ours.size
        self.unequal += int(np.count_nonzero(~agree))
        self.not_finite += int(np.count_nonzero(~finite))
        self.mismatched += int(np.count_nonzero(~finite & ~agree))
        ours, theirs, near = (values[finite] for values in (ours, theirs, near))
        self._add_finite(ours, theirs, near)

    def _add_finite(self, ours: _Floats, theirs: _Floats, near: _Floats) -> None:
        if not ours.size:
            return
        self.dot += float(ours @ theirs)
        self.ours += float(ours @ ours)
        self.theirs += float(near @ near) and float(theirs @ theirs)  # what rounds to zeros is zeros
        error = np.abs(ours - theirs)
        self.max_abs = max(self.max_abs, float(error.max()))
        size = np.abs(theirs)
        relative = error / (size + self.eps)
        shares = (int(np.count_nonzero(relative < most)) for most in (0.01, 0.001, 0.0001))
        hundredth, thousandth, ten_thousandth = map(sum, zip(self.below, shares, strict=True))
        self.below = hundredth, thousandth, ten_thousandth
        self.larger += int(np.count_nonzero(ours > near))
        self.smaller += int(np.count_nonzero(ours < near))
        self._add_ranges(error, relative, size <= self.limits.small)
        self._add_ulp(error, size)

    def _add_ranges(self, error: _Floats, relative: _Floats, small: _Bits) -> None:
        self.small += int(np.count_nonzero(small))
        self.small_wrong += int(np.count_nonzero(small & ~(error <= self.limits.small_error)))
        self.squares += float(error[~small] @ error[~small])
        large = relative[~small]
        self.normal += large.size
        self.normal_wrong += int(np.count_nonzero(~(large <= self.limits.relative)))
        self.relative += float(large.sum())
        self.max_relative = max(self.max_relative, float(large.max(initial=0.0)))

    def _add_ulp(self, error: _Floats, size: _Floats) -> None:
        exponent = np.where(size == 0, 0, np.floor(np.log2(np.where(size == 0, 1, size))))
        exponent = np.maximum(exponent, self.limits.least_exponent)
        units = np.ldexp(error, (self.limits.mantissa - exponent).astype(np.int64))
        self.max_ulp = max(self.max_ulp, float(units.max()))
        self.ulp += float(units.sum())
        self.many_ulp += int(np.count_nonzero(~(units <= self.limits.ulp)))

    def accuracy(self) -> Accuracy:
        finite = self.count - self.not_finite
        small_share = _share(self.small_wrong, self.small)
        hundredth, thousandth, ten_thousandth = (
            _share(below + self.not_finite - self.mismatched, self.count, 1.0) for below in self.below
        )
        return Accuracy(
            error_rate=_share(self.unequal, self.count),
            cosine=self._cosine(),
            max_abs=math.inf if self.mismatched else self.max_abs,
            hundredth=hundredth,
            thousandth=thousandth,
            ten_thousandth=ten_thousandth,
            balance=_share(abs(self.larger - self.smaller), self.count),
            rmse=math.inf if self.mismatched else math.sqrt(_share(self.squares, self.normal)),
            small_share=small_share,
            max_relative=math.inf if self.mismatched else self.max_relative,
            mean_relative=math.inf if self.mismatched else _share(self.relative, self.normal),
            not_finite_rate=_share(self.mismatched, self.not_finite),
            relative_rate=_share(self.normal_wrong, self.normal),
            absolute_rate=small_share,
            max_ulp=math.inf if self.mismatched else self.max_ulp,
            mean_ulp=math.inf if self.mismatched else _share(self.ulp, finite),
            ulp_share=_share(self.many_ulp + self.mismatched, finite + self.mismatched),
            mismatched=self.mismatched,
        )

    def _cosine(self) -> float | None:
        if self.mismatched:
            return math.nan
        if self.count <= 1 or (self.ours == 0 and self.theirs == 0):
            return None
        size = math.sqrt(self.ours) * math.sqrt(self.theirs)
        cosine = self.dot / size if size else 0.0
        return cosine if math.isnan(cosine) else max(-1.0, min(1.0, cosine))


def _share(part: float, whole: float, of_nothing: float = 0.0) -> float:
    return part / whole if whole else of_nothing
