"""Compare the result of a call in each run with the same call in float64, to say which run is at fault.

The error of a result beside f64(its own inputs) is the call's own: nothing that went in is part of it. With
unit roundoff u of the result's dtype, u32 of float32, in which hardware adds up, K summands and S the norm
that the result would have if its summands did not cancel, a sound kernel has an error of up to

    floor = u |y| + 4 u32 (1 + sqrt(K)) S

and u S in place of u |y| for a gradient, which is computed from what the forward call returned, and that was
rounded. One number may be off by 8 times the floor, or by 4 times what last bits of the inputs change in one.

The error of one run is held against that of the other, both in units of their own u, where an error below the
floor counts as the floor. If it is larger by no more than the first factor it is rounding; if it is larger
than the second allows, the run is at fault. Between them it cannot be told.

    relative error, single numbers           2      3      TorchDynamo's factors, of float32 and bfloat16
    scale error, mean, rows and channels     1.25   1.25   rounding toward zero has a scale error of up to 1 u
    the same of a gradient of what is not    1.25   2.5    it may be computed from what the forward call
    linear                                                 returned, and that was rounded, too

The second is 4 times as large for operators that the table does not know: they round several times inside.
The first and the 4 u32 are half of what verdict/tolerance.py allows to the difference of two kernels. So if a
call differs by more than that although its inputs are equal, it is not refuted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from msprobe.dtypes import SINGLE
from msprobe.metrics.errors import PairError, Spread

Measure = Literal[
    "NaN and infinities",
    "relative error",
    "scale error",
    "mean",
    "rows or channels",
    "single numbers",
    "values",
]

_INNER = 4.0  # roundings inside a kernel
_SIZE, _DIRECTION = 2.0, 1.25
_CLEAR_SIZE = 1.5  # times the first factor is the second
_CLEAR_GRADIENT = 2.0
_STEPS = 4.0  # roundings of a call that is not known: see metrics/rounding.py
_DEVIATIONS = 12.0  # standard errors: see verdict/directions.py
_SPREAD = 4.0  # times the noise of the scale errors of rows or channels: see there
_ONE_NUMBER = 8.0  # roundings that a single number may be off: see metrics/rounding.py
_LAST_BITS = 4.0  # times what last bits of the inputs change in one number: see there


class OwnError(NamedTuple):
    """The error of one result of a call beside the same call in float64."""

    dtype: str
    unit: float  # what the error is held against; 0: whole numbers, which do not round
    inner: float = 0.0  # norm of the error that a sound kernel may have beside rounding its result
    by_last_bits: float = 0.0  # the most that one number changes if last bits of the inputs do
    error: PairError | None = None  # None: whole numbers
    unequal: int = 0  # of whole numbers: how many differ
    uses_result: bool = False  # it is a gradient that may be computed from what the forward call returned
    is_known: bool = True  # what the operator does

    @property
    def floor(self) -> float:
        """The norm of the error that a sound kernel may have."""
        return self.inner + (self.unit * self.error.reference_norm if self.error is not None else 0.0)


class Excess(NamedTuple):
    """How far one run's error is beyond that of the other, by the measure that shows it best."""

    score: float  # above 1: it is more than rounding
    clear: float  # the score from which on the run is at fault
    measure: Measure
    error: float  # in roundings
    other: float

    @property
    def is_fault(self) -> bool:
        return self.score > self.clear


def inner_rounding(
    norm: float, unit: float, summands: int, uncancelled: float, *, is_gradient: bool
) -> float:
    """Return the norm of the error that a sound kernel may have beside rounding its result; see above."""
    size = max(norm, uncancelled)
    saved = unit * (size - norm) if is_gradient else 0.0
    return saved + _INNER * min(unit, SINGLE) * (1 + math.sqrt(summands)) * size


def excess(own: OwnError, other: OwnError | None) -> Excess:
    """Return by which measure a run's error is worst beside that of the other run, or beside the floor."""
    found = [_excess(measure, value, own, other) for measure, value in _measures(own, strict=True)]
    return max(found, key=lambda each: (each.is_fault, each.score))


def roundings(own: OwnError) -> float:
    """Return the relative error in roundings; of whole numbers how many differ."""
    return next(value for measure, value in _measures(own, strict=False) if measure != "NaN and infinities")


def _excess(measure: Measure, value: float, own: OwnError, other: OwnError | None) -> Excess:
    beside = 0.0
    if other is not None:
        beside = next((v for m, v in _measures(other, strict=False) if m == measure), 0.0)
    if measure in ("NaN and infinities", "values"):
        score = value / (_SIZE * max(beside, 0.5)) if value else 0.0
        return Excess(score if score <= 1 else math.inf, 1.0, measure, value, beside)
    floor = _floor_of_one(own) if measure == "single numbers" else _floor(own)
    is_size = measure in ("relative error", "single numbers")
    most = (_SIZE if is_size else _DIRECTION) * max(floor, beside)
    score = 0.0 if value == 0 or math.isinf(beside) else value / most
    clear = _CLEAR_SIZE if is_size else _CLEAR_GRADIENT if own.uses_result else 1.0
    return Excess(score, clear if own.is_known else _STEPS * clear, measure, value, beside)


def _floor(own: OwnError) -> float:
    """The floor in roundings."""
    norm = own.error.reference_norm if own.error is not None else 0.0
    return own.floor / (own.unit * norm) if norm and own.unit else 1.0


def _floor_of_one(own: OwnError) -> float:
    """The same of a single number, beside the root mean square."""
    size = 0.0
    if own.error is not None and own.error.reference_norm:
        size = own.by_last_bits * math.sqrt(own.error.numbers) / (own.unit * own.error.reference_norm)
    return max(_ONE_NUMBER * _floor(own), _LAST_BITS * size)


def _measures(own: OwnError, *, strict: bool) -> Iterator[tuple[Measure, float]]:
    """Each measure in roundings; `strict`: zero where it does not stand out from noise."""
    error = own.error
    if error is None:
        yield "values", float(own.unequal)
        return
    yield "NaN and infinities", float(error.mismatched)
    norm = error.reference_norm
    if not norm:  # a result that is zero has no rounding of its own
        off = error.error_norm
        yield "relative error", off / own.floor if own.floor else math.inf if off else 0.0
        return
    unit = own.unit
    yield "relative error", error.relative / unit
    for measure, value, deviation in _directions(error):
        if value is not None and (not strict or _stands_out(value, deviation)):
            yield measure, abs(value) / unit
    yield "rows or channels", max(map(_beyond_noise, error.spreads), default=0.0) / unit
    if error.beyond or not strict:
        yield "single numbers", error.largest / (unit * norm / math.sqrt(error.numbers))


def _directions(error: PairError) -> Iterator[tuple[Measure, float | None, float | None]]:
    yield "scale error", error.scale, error.scale_deviation
    yield "mean", error.shift, error.shift_deviation


def _stands_out(value: float, deviation: float | None) -> bool:
    return deviation is not None and abs(value) > _DEVIATIONS * deviation


def _beyond_noise(spread: Spread) -> float:
    return max(0.0, spread.size - _SPREAD * spread.noise)
