"""How far apart two tensors are by what was recorded of them: checksums, sketches or statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from msprobe import kernels
from msprobe.dtypes import roundoff
from msprobe.kernels import Statistics
from msprobe.name import PARAMETERS_GRAD
from msprobe.pairing.match import Pair
from msprobe.record import Leaf, number_type

_STATE = ("parameter:", "buffer:", "gradient:")  # so their makers begin

_OF_INTEGERS = 2.0**-20  # mean and norm of integers are floats, in float32 with some tools: not exact


def described(ours: Leaf, theirs: Leaf) -> float | None:
    """Return the relative error by checksums, sketches and statistics; None: nothing is known.

    It is the larger of the errors of the norm and of the largest number. NaN or infinities on one side give
    inf. Statistics can only see less than there is.
    """
    least = 0.0
    if _have_checksums(ours, theirs):
        if ours.checksum == theirs.checksum or (ours.elements <= 1 and ours.stats == theirs.stats):
            return 0.0
        least = roundoff(ours.dtype) or 1.0  # they differ, if only by this
    known = _both_statistics(ours, theirs)
    if known is None:
        return least or None
    ends, middle = _statistics(*known, ours.elements)
    if ends == 0 and not roundoff(ours.dtype) and middle < _OF_INTEGERS:
        middle = 0.0
    sketched = measure_sketches(ours, theirs)
    if sketched is not None:
        size = max(_size(ours), _size(theirs))
        middle = max(middle, sketched.relative * (_size(theirs) / size if size else 1.0))
    return max(least, ends, middle)


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


def _finite(value: Any) -> float:
    return abs(float(value)) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def _peak(leaf: Leaf) -> float:
    """The largest absolute value, as far as it is known and finite."""
    stats = leaf.stats
    return max(_finite(stats.max), _finite(stats.min)) if isinstance(stats, Statistics) else 0.0


def _size(leaf: Leaf) -> float:
    """The root mean square of a tensor, as far as it is known."""
    stats, count = leaf.stats, leaf.elements
    if not isinstance(stats, Statistics) or not count:
        return 0.0
    return _finite(stats.norm) / math.sqrt(count) or _peak(leaf)


# ---- sketches ----


class SketchErrors(NamedTuple):
    """Estimates from two sketches, each known to about `sd` of itself."""

    relative: float  # |target - golden| / |golden|
    cosine: float
    sd: float
    apart: float  # |target - golden| over all elements
    sums: int  # how many numbers each sketch has

    @property
    def is_brief(self) -> bool:
        return self.sums == kernels.BRIEF_SIZE


def sketch_lengths(pairs: Iterable[Pair]) -> set[int]:
    """The lengths of the sketches of what calls take and give; parameters have long ones in every mode."""
    found = set()
    for pair in pairs:
        place = pair.place
        leaf = place.leaf
        if leaf is None or leaf.sketch is None or len(leaf.sketch) in found:
            continue
        if leaf.made_by is not None and leaf.made_by.startswith(_STATE):
            continue
        is_state = place.side in ("parameters", "buffers") or place.slot.startswith("buffers_after.")
        if not is_state and place.record.name.direction != PARAMETERS_GRAD:
            found.add(len(leaf.sketch))
    return found


def _norm(sums: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The 2-norm of a few numbers: numpy's own takes longer to find out what it is given."""
    return math.sqrt(float(sums.dot(sums)))


def measure_sketches(target: Leaf, golden: Leaf) -> SketchErrors | None:
    """What two sketches say; None where one is missing, or they were not made in one way."""
    if target.sketch is None or golden.sketch is None:
        return None
    sketches = [target.sketch, golden.sketch]
    is_brief = min(map(len, sketches)) < 4 * kernels.SKETCH_SIZE
    if is_brief and max(map(len, sketches)) == 4 * kernels.SKETCH_SIZE:
        if golden.elements > kernels.BRIEF_ELEMENTS:
            return None  # one is of all elements, the other of some
        sketches = [kernels.shortened(sketch) for sketch in sketches]
    with np.errstate(all="ignore"):
        ours, theirs = (np.frombuffer(sketch, "<f4").astype(np.float64) for sketch in sketches)
        size, difference = _norm(theirs), _norm(ours - theirs)
        both, dot = size * _norm(ours), float(ours @ theirs)
    relative = difference / size if size else (0.0 if difference == 0 else math.inf)
    length = kernels.BRIEF_SIZE if is_brief else kernels.SKETCH_SIZE
    sd = 0.0 if golden.elements <= length else 1 / math.sqrt(length)
    sketched = min(golden.elements, kernels.BRIEF_ELEMENTS) if is_brief else golden.elements
    apart = difference * math.sqrt(golden.elements / sketched) if sketched else 0.0
    return SketchErrors(relative, dot / both if both else 1.0, sd, apart, length)
