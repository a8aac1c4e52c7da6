"""How far apart a place is, in one number whatever was recorded of it, and what rounding alone explains."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from msprobe.analyse.match import Pair
from msprobe.analyse.measure import EQUAL, Measured, TensorErrors, measure_sketches
from msprobe.kernels import Statistics
from msprobe.name import FORWARD
from msprobe.record import Leaf, number_type

# Half the distance from 1 to the next number, by the name of the dtype.
_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "complex128": 2.0**-53,
    "complex64": 2.0**-24,
    "complex32": 2.0**-11,
}
_DEVICE = re.compile("(?:cpu|cuda|gpu|npu|xpu|mps)(?::[0-9]+)?|Ascend|CPU|GPU")
_MOST_SUMMANDS = 2**20  # nobody adds more in a row: larger sums are made of partial sums
_PLAIN = 2.0**-24  # a Python float often was a float32 before


class Distance(NamedTuple):
    """How far a target is from the golden value.

    `typical` is the norm of the error by the norm of the values; `error` is the larger of this and of the
    largest error by the largest value. Other NaN or infinities give inf. None: nothing is known.
    """

    error: float | None
    typical: float = 0.0
    size: float = 0.0  # of the values: their root mean square
    seen: str = ""  # what it was taken from: contents, sketches, statistics, checksums, values, shapes

    @property
    def is_whole(self) -> bool:
        """Whether all that there is was looked at: what is equal then has no other effect."""
        return self.seen not in ("statistics", "")


NOWHERE = Distance(None)
_SAME = Distance(0.0, seen="values")
_UNLIKE = Distance(math.inf, math.inf, seen="values")
_OTHER_SHAPE = Distance(math.inf, math.inf, seen="shapes")


def distance(pair: Pair, measured: Measured) -> Distance:
    """From the best that both sides offer: the contents, sketches, or statistics."""
    if pair.target is None or pair.golden is None:
        return NOWHERE
    ours, theirs = pair.target.leaf, pair.golden.leaf
    if pair.reason:
        return _unmeasured(pair, ours, theirs)
    if ours is None or theirs is None:
        return _SAME
    if not ours.is_tensor:
        return _SAME if _is_setting(ours, theirs) else _values(ours.value, theirs.value)
    if isinstance(measured, TensorErrors):
        if measured is EQUAL:
            return Distance(0.0, 0.0, _size(theirs), "contents")
        if measured.sums is not None:
            return _contents(measured, ours, theirs)
    return _described(ours, theirs)


def _unmeasured(pair: Pair, ours: Leaf | None, theirs: Leaf | None) -> Distance:
    """Where no number can be given, that may be the difference: an argument of one run, another shape."""
    either = ours or theirs
    if ours is None or theirs is None:
        is_argument = pair.place.side == "input" and pair.place.record.name.direction == FORWARD
        return _UNLIKE if either is not None and (is_argument or not either.is_tensor) else NOWHERE
    by_name = pair.certainty is None and not pair.fuzzy and ours.type == theirs.type
    return _OTHER_SHAPE if by_name and ours.is_tensor and ours.shape != theirs.shape else NOWHERE


def _contents(measured: TensorErrors, ours: Leaf, theirs: Leaf) -> Distance:
    sums = measured.sums
    assert sums is not None
    squares = max(sums.target_squares, sums.golden_squares)
    in_range = 0 < squares < math.inf  # not so of very large or small numbers of float64
    size = math.sqrt(squares / max(ours.elements, 1)) if in_range else max(_size(ours), _size(theirs))
    if sums.mismatched or sums.opposite:
        return Distance(math.inf, math.inf, size, "contents")
    if sums.unequal == 0:
        return Distance(0.0, 0.0, size, "contents")
    peak = max(peak_of(ours), peak_of(theirs)) or (math.sqrt(squares) if in_range else 0.0)
    largest = sums.max_abs / peak if peak else math.inf
    if largest == 0:  # whole numbers that differ, and are equal as floats
        largest = roundoff("float64")
    typical = math.sqrt(sums.difference_squares / squares) if in_range else largest
    return Distance(max(typical, largest), typical, size, "contents")


def _described(ours: Leaf, theirs: Leaf) -> Distance:
    """From checksums, sketches and statistics; the last can only see less than there is."""
    size = max(_size(ours), _size(theirs))
    least = 0.0
    if _have_checksums(ours, theirs):
        if ours.checksum == theirs.checksum or (ours.elements <= 1 and ours.stats == theirs.stats):
            return Distance(0.0, 0.0, size, "checksums")
        least = roundoff(ours.dtype) or 1.0  # they differ, if only by this
    known = _both_statistics(ours, theirs)
    if known is None:
        return Distance(least, least, size, "checksums") if least else NOWHERE
    ends, middle, seen = *_statistics(*known, ours.elements), "statistics"
    sketched = measure_sketches(ours, theirs)
    if sketched is not None:
        seen = "sketches"
        middle = max(middle, sketched.relative * (_size(theirs) / size if size else 1.0))
    return Distance(max(least, ends, middle), max(least, middle), size, seen)


def _have_checksums(ours: Leaf, theirs: Leaf) -> bool:
    """Both, and of the same kind of numbers."""
    return None not in (ours.checksum, theirs.checksum) and number_type(ours.dtype) == number_type(
        theirs.dtype
    )


def _both_statistics(ours: Leaf, theirs: Leaf) -> tuple[Statistics, Statistics] | None:
    """Those of both, if any number is known of both; an empty tensor has none, and none is missing."""
    a, b = ours.stats, theirs.stats
    if not (isinstance(a, Statistics) and isinstance(b, Statistics)):
        return None
    is_known = any(None not in numbers for numbers in zip(a[:4], b[:4], strict=True))
    return (a, b) if is_known or 0 in (ours.shape or ()) else None


def _statistics(ours: Statistics, theirs: Statistics, count: int) -> tuple[float, float]:
    """The least relative errors that explain how far apart max and min are, and mean and norm."""
    if ours == theirs:
        return 0.0, 0.0
    not_finite = [(stats.nan, stats.inf) for stats in (ours, theirs)]
    if all(map(any, not_finite)) and not_finite[0] != not_finite[1]:  # old formats count none
        return math.inf, math.inf
    norm = max(_finite(ours.norm), _finite(theirs.norm))
    peak = max(map(_finite, (ours.max, ours.min, theirs.max, theirs.min)))
    ends = max(_apart(ours.max, theirs.max, peak), _apart(ours.min, theirs.min, peak))
    has_norm = ours.norm is not None and theirs.norm is not None  # old formats have none
    mean = _apart(ours.mean, theirs.mean, norm / math.sqrt(count) if has_norm and count else peak)
    return ends, max(mean, _apart(ours.norm, theirs.norm, norm))


def _apart(x: Any, y: Any, scale: float) -> float:
    if x is None or y is None or x == y or (x != x and y != y):
        return 0.0
    if not (math.isfinite(x) and math.isfinite(y) and scale):
        return math.inf
    return float(abs(x - y) / scale)  # whole numbers that differ may be equal as floats


def _is_setting(ours: Leaf, theirs: Leaf) -> bool:
    """Where to compute and in which precision may differ between runs: what comes of it is judged."""
    texts = ours.value, theirs.value
    if not all(isinstance(text, str) for text in texts):
        return False
    return all(map(_DEVICE.fullmatch, texts)) or all(roundoff(text) for text in texts)


def _values(ours: Any, theirs: Any) -> Distance:
    if ours == theirs or (ours != ours and theirs != theirs):
        return _SAME
    if isinstance(ours, float) and isinstance(theirs, float):
        scale = max(abs(ours), abs(theirs))
        if math.isfinite(scale):
            share = abs(ours - theirs) / scale
            return Distance(share, share, scale, "values")
    return _UNLIKE


def _finite(value: Any) -> float:
    return abs(float(value)) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def peak_of(leaf: Leaf) -> float:
    """The largest absolute value, as far as it is known and finite."""
    stats = leaf.stats
    return max(_finite(stats.max), _finite(stats.min)) if isinstance(stats, Statistics) else 0.0


def _size(leaf: Leaf) -> float:
    stats, count = leaf.stats, leaf.elements
    if not isinstance(stats, Statistics) or not count:
        return 0.0
    return _finite(stats.norm) / math.sqrt(count) or peak_of(leaf)


# ---- rounding ----


@lru_cache(maxsize=256)
def roundoff(dtype: str | None) -> float:
    """The unit roundoff of a dtype; 0 for integers and booleans, which do not round."""
    if dtype is None:
        return _PLAIN
    name = number_type(dtype)
    for known, unit in _ROUNDOFF.items():
        if name.startswith(known):
            return unit
    return 0.0


def coarsest(leaves: Iterable[Leaf | None]) -> float:
    """The largest roundoff among the tensors; plain numbers count only where there is nothing else."""
    units = [roundoff(leaf.dtype) for leaf in leaves if leaf is not None and leaf.is_tensor]
    return max(units, default=_PLAIN)


def summands(leaves: Iterable[Leaf | None], *, is_gradient: bool) -> int:
    """How many numbers the call may have added up for one number of its result, from the shapes it saw.

    A matrix product of n x k and k x m numbers adds k, a normalisation a row; the gradient of a weight is a
    sum over the whole batch, which is all dimensions but the last.
    """
    most = 1
    for leaf in leaves:
        if leaf is not None and leaf.shape:
            most = max(most, *leaf.shape)
            if is_gradient:
                most = max(most, leaf.elements // (leaf.shape[-1] or 1))
    return min(most, _MOST_SUMMANDS)
