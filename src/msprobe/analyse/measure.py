"""How far two leaves are apart; every metric says what NaN, infinities, nothing and all zeros give."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from msprobe import kernels
from msprobe.dtypes import roundoff
from msprobe.kernels import KIND_OF_DTYPE, PairSums, address_of
from msprobe.metrics.errors import PairError, measure_error
from msprobe.record import Leaf
from msprobe.store.tensor_file import StoredTensor, as_float

UNSUPPORTED = "unsupported"  # this metric has no answer for this pair
NOTHING = "N/A"
NOT_A_NUMBER = "Nan"

_EPS = float(np.finfo(np.float64).eps)
_DIGITS = 12
_FAR = 0.5
Number = float | str  # a text says why there is no number


class TensorErrors(NamedTuple):
    """What the contents of two tensors say about each other."""

    cosine: Number
    euclidean: Number
    max_abs: Number
    max_relative: Number
    one_thousandth: Number  # share of the elements with a relative error below 0.001
    five_thousandths: Number
    message: str = ""
    sums: PairSums | None = None
    detail: PairError | None = None  # of numbers with a fraction that differ

    @property
    def metrics(self) -> tuple[Number, ...]:
        return self[:6]


class StatisticsErrors(NamedTuple):
    """Differences of max, min, mean and norm, and their relative errors as the texts of the table."""

    differences: tuple[Number, ...]
    relative: tuple[str, ...]
    max_relative: float | None = None  # the relative error of the maximum, as a number
    values: tuple[Any, ...] = ()  # max, min, mean and norm of the target, then those of the golden run
    are_far: bool = False  # one of them differs by more than half of it

    @property
    def metrics(self) -> tuple[Number, ...]:
        return self.differences + self.relative


class Checksums(NamedTuple):
    target: str
    golden: str

    @property
    def agree(self) -> bool:
        return self.target == self.golden


Measured = TensorErrors | StatisticsErrors | Checksums | None


def no_errors(reason: str, metric: Number = UNSUPPORTED) -> TensorErrors:
    return TensorErrors(metric, metric, metric, metric, metric, metric, reason)


EMPTY = "This is empty data, can not compare."
_ZERO_DIM = (
    "This is type of 0-d tensor, can not calculate 'Cosine', 'EucDist', 'One Thousandth Err Ratio' and "
    "'Five Thousandths Err Ratio'. "
)
_UNLIKE = "The position of inf or nan in NPU and bench Tensor do not match."
_ALL_ZERO = "Cannot compare by Cosine Similarity, All the data is Zero in {} dump data."

EQUAL = TensorErrors(1.0, 0.0, 0.0, 0.0, 1.0, 1.0)  # two files of one content


def unlike(target: StoredTensor, golden: StoredTensor) -> str:
    """What differs so that no number can be given, the shapes or the dtypes; empty if it can.

    Each element of a complex tensor is two numbers, so that it is measured against such a tensor only.
    """
    if target.array.shape != golden.array.shape:
        return f"shapes {target.array.shape} and {golden.array.shape}"
    if target.dtype.startswith("complex") != golden.dtype.startswith("complex"):
        return f"dtypes {target.dtype} and {golden.dtype}"
    return ""


def measure_tensors(target: StoredTensor, golden: StoredTensor) -> TensorErrors:
    """The metrics of two tensors of one shape, both complex or neither, in one pass over both."""
    count = target.array.size
    if count == 0:
        return no_errors(EMPTY)
    ours, our_kind = _memory(target)
    theirs, their_kind = _memory(golden)
    if ours.size != theirs.size:
        raise ValueError(f"Tensors of {ours.size} and {theirs.size} numbers cannot be measured.")
    sums = kernels.pair(address_of(ours), our_kind, address_of(theirs), their_kind, ours.size)
    return errors_of(sums, target.array.shape)._replace(detail=_detail(target, golden, sums))


def _detail(target: StoredTensor, golden: StoredTensor, sums: PairSums) -> PairError | None:
    """The directions of the error of two tensors that differ; whole numbers have none."""
    is_float = roundoff(target.dtype) or roundoff(golden.dtype)
    if not sums.unequal or not is_float or target.array.size < 2:
        return None
    ours, theirs = (as_float(each.array, each.dtype) for each in (target, golden))
    return measure_error(ours, theirs)


def errors_of(sums: PairSums, shape: tuple[int, ...]) -> TensorErrors:
    if sums.mismatched:
        return no_errors(_UNLIKE, NOTHING)._replace(sums=sums)
    max_abs, max_relative = round(sums.max_abs, _DIGITS), round(sums.max_relative, _DIGITS)
    if not shape:
        return TensorErrors(
            UNSUPPORTED, UNSUPPORTED, max_abs, max_relative, UNSUPPORTED, UNSUPPORTED, _ZERO_DIM, sums
        )
    count = math.prod(shape)
    cosine, message = _cosine(sums) if count > 1 else (UNSUPPORTED, "")
    return TensorErrors(
        cosine,
        math.sqrt(sums.difference_squares),
        max_abs,
        max_relative,
        round(sums.thousandth / count, _DIGITS),
        round(sums.five_thousandths / count, _DIGITS),
        message,
        sums,
    )


def _cosine(sums: PairSums) -> tuple[Number, str]:
    ours, theirs = math.sqrt(sums.target_squares), math.sqrt(sums.golden_squares)
    if ours <= _EPS and theirs <= _EPS:
        return 1.0, ""
    if ours <= _EPS or theirs <= _EPS:
        return NOT_A_NUMBER, _ALL_ZERO.format("npu" if ours <= _EPS else "Bench")
    cosine = sums.dot / (ours * theirs)
    return (round(cosine, 6) if cosine > 0.9999 else round(cosine, _DIGITS)), ""


def _memory(tensor: StoredTensor) -> tuple[Any, str]:
    """The elements in order, and their kind; complex numbers as pairs, rare dtypes widened."""
    array, dtype = tensor.array, tensor.dtype
    if dtype not in KIND_OF_DTYPE:
        array = as_float(array, dtype)
        if array.dtype.kind == "c":
            array = np.ascontiguousarray(array).view(array.real.dtype)
        dtype = array.dtype.name
    return np.ascontiguousarray(array), KIND_OF_DTYPE[dtype]


# ---- statistics ----


def values_of(leaf: Leaf | None) -> tuple[Any, ...]:
    """max, min, mean and norm of what was seen; of a plain value four times the value."""
    if leaf is None:
        return (None,) * 4
    if leaf.is_tensor:
        return tuple(leaf.statistics[:4]) if leaf.statistics is not None else (None,) * 4
    return (leaf.value,) * 4


def measure_statistics(target: Leaf | None, golden: Leaf | None) -> StatisticsErrors:
    differences, relative = [], []
    ours, theirs = values_of(target), values_of(golden)
    for one, other in zip(ours, theirs, strict=True):
        difference, share = _statistic(one, other)
        differences.append(difference)
        relative.append(share)
    share = relative[0]
    max_relative = float(share[:-1]) / 100 if share.endswith("%") else None
    return StatisticsErrors(
        tuple(differences), tuple(relative), max_relative, ours + theirs, _are_far(ours, theirs, differences)
    )


def _are_far(ours: Sequence[Any], theirs: Sequence[Any], differences: Sequence[Number]) -> bool:
    """Whether max, min, mean or norm differ by more than half of the larger."""
    for a, b, difference in zip(ours, theirs, differences, strict=True):
        if isinstance(difference, str):
            continue
        if not abs(difference) / (abs(max(a, b)) + 1e-10) <= _FAR:
            return True
    return False


def _statistic(ours: Any, theirs: Any) -> tuple[Number, str]:
    if not (_is_number(ours) and _is_number(theirs)):
        return NOTHING, NOTHING
    difference = ours - theirs
    if math.isnan(difference):
        return NOT_A_NUMBER, NOT_A_NUMBER
    if theirs == 0:
        return difference, NOTHING
    return difference, f"{abs(difference / theirs * 100)}%"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- checksums ----


def measure_checksums(target: Leaf | None, golden: Leaf | None) -> Checksums:
    return Checksums(checksum_of(target), checksum_of(golden))


def checksum_of(leaf: Leaf | None) -> str:
    """The recorded one of a tensor; of a plain value that of its text."""
    if leaf is None:
        return NOTHING
    if leaf.is_tensor:
        return leaf.checksum or NOTHING
    return f"{zlib.crc32(str(leaf.value).encode()):08x}"
