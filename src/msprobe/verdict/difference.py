"""How far one value of the target is from the golden value, from whatever was recorded of both."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, NamedTuple

from msprobe import kernels
from msprobe.analyse.measure import EQUAL, Measured, TensorErrors
from msprobe.dtypes import PLAIN, SINGLE, roundoff
from msprobe.kernels import Statistics
from msprobe.metrics.errors import PairError, Spread
from msprobe.name import FORWARD
from msprobe.pairing.described import SketchErrors, measure_sketches
from msprobe.pairing.match import Pair
from msprobe.record import Leaf, content_key, number_type

Sight = Literal["content", "sketch", "statistics", "hash", "value", "shape", "one side", ""]

_DEVICE = re.compile("(?:cpu|cuda|gpu|npu|xpu|mps)(?::[0-9]+)?|Ascend|CPU|GPU")
_OF_INTEGERS = 2.0**-20  # mean and norm of integers are floats, in float32 with some tools: not exact
_EXACT = 2.0**-50  # sums of the same float64 numbers in another order agree to this
_ONE_SCALE = 1e-3
SKETCH_NOISE = 2 * SINGLE  # of the norm: how far the rounding of sums moves the estimate of an error
_SKETCH_ROUNDING = 4 * SINGLE  # sketches are float32: they do not show how float64 numbers round
# Of some of a tensor's numbers, a sketch sees none of those that differ once in 20 times if there are as many
# as three numbers in it. Each may be three times as large as most numbers are.
_MISSED = 3 * math.sqrt(3 / kernels.BRIEF_ELEMENTS)
_OPPOSITE = -0.9  # the cosine of 16 sums: of tensors that have nothing in common it is 0, give or take 0.25
_FEW = 16  # numbers, of which statistics that agree by chance say little


class Difference(NamedTuple):
    """What is known of a pair of values. Errors are 2-norms in the unit of the values, not relative."""

    sight: Sight  # what it was seen by; empty: nothing is known
    is_equal: bool | None = None  # bit-equal; None: not known
    error: float = 0.0  # |target - golden|; from statistics the least that explains them
    norm: float = 0.0  # of the larger of the two
    numbers: int = 0
    peak: float = 0.0  # the largest absolute value of both
    unit: float = 0.0  # unit roundoff of the coarser dtype; 0: whole numbers
    scale: float | None = None  # by how much the whole value is too large, relative
    scale_deviation: float | None = None  # standard error of it; None: not known from the data
    shift: float | None = None  # by how much its mean is too large, relative to the root mean square
    shift_deviation: float | None = None
    largest: float = 0.0  # the largest error of one number, as far as known
    spreads: tuple[Spread, ...] = ()  # of the scale error over the indices of each axis
    unequal: int | None = None  # numbers that differ
    is_odd: bool = False  # NaN or infinity where the other has none
    is_moved: bool = False  # the same numbers at other positions
    least: float = 0.0  # the smallest absolute value, if all numbers have one sign
    sums: int = 0  # of the sketches that `error` was estimated from, and may be too small by; 0: it was not

    @property
    def is_known(self) -> bool:
        return self.sight != ""

    @property
    def agrees(self) -> bool:
        """Whether nothing shows a difference."""
        return self.is_equal is True or (self.is_equal is None and self.error == 0 and not self.is_odd)

    @property
    def is_float(self) -> bool:
        return self.unit > 0

    @property
    def is_estimated(self) -> bool:
        """Whether `error` is an estimate, which may be too small by chance."""
        return self.sums > 0

    @property
    def estimate_deviation(self) -> float:
        """The standard error of the estimate, relative: that of the root of a sum of so many squares."""
        return 1 / math.sqrt(2 * self.sums) if self.sums else 0.0

    @property
    def missed(self) -> float:
        """The error that a sketch of some of the numbers may not show."""
        is_sample = self.sums == kernels.BRIEF_SIZE and self.numbers > kernels.BRIEF_ELEMENTS
        return _MISSED * self.norm if is_sample else 0.0

    @property
    def relative(self) -> float:
        """The relative error."""
        if self.is_odd:
            return math.inf
        if self.error == 0:
            return 0.0
        return self.error / self.norm if self.norm else math.inf

    @property
    def rms(self) -> float:
        return self.norm / math.sqrt(self.numbers) if self.numbers else 0.0

    @property
    def is_measured(self) -> bool:
        """Whether `error` is the error, not only the least that statistics show."""
        return self.sight in ("content", "sketch", "value") or self.is_equal is True


UNKNOWN = Difference("")
SAME_VALUE = Difference("value", True)


class Differences:
    """Says how far two values are apart; of two contents it finds that out once.

    Most tensors are the result of one call and an argument of others.
    """

    def __init__(self) -> None:
        self._known: dict[object, Difference] = {}

    def of(self, pair: Pair, measured: Measured) -> Difference:
        """Return what difference() says of a pair."""
        key = _contents(pair) if not isinstance(measured, TensorErrors) else None
        if key is None:
            return difference(pair, measured)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = difference(pair, measured)
        return found


def _contents(pair: Pair) -> object:
    """All that the difference of two tensors is found by; None where nothing tells contents apart."""
    if pair.target is None or pair.golden is None or pair.reason or pair.unjudged:
        return None
    ours, theirs = pair.target.leaf, pair.golden.leaf
    if ours is None or theirs is None:
        return None
    keys = content_key(ours, as_shown=False), content_key(theirs, as_shown=False)
    return keys if None not in keys else None


def difference(pair: Pair, measured: Measured) -> Difference:
    """Return what the best that both sides offer says: the contents, sketches, statistics or hashes."""
    ours = pair.target.leaf if pair.target is not None else None
    theirs = pair.golden.leaf if pair.golden is not None else None
    if pair.target is None or pair.golden is None or pair.unjudged:
        return UNKNOWN
    if pair.reason:
        return _unmeasured(pair, ours, theirs)
    if ours is None or theirs is None:
        return SAME_VALUE
    if not ours.is_tensor:
        return _plain(ours, theirs)
    if isinstance(measured, TensorErrors):
        if measured is EQUAL:
            return _equal(ours, theirs, "content")
        if measured.sums is not None:
            return _content(measured, ours, theirs)
    return _described(ours, theirs)


def _unmeasured(pair: Pair, ours: Leaf | None, theirs: Leaf | None) -> Difference:
    """Where no number can be given, that may be the difference: a value of one run only, another shape."""
    either = ours or theirs
    if ours is None or theirs is None:
        is_argument = pair.place.side == "input" and pair.place.record.name.direction == FORWARD
        if either is None or not (is_argument or not either.is_tensor):
            return UNKNOWN
        return Difference("one side", False, is_odd=True)
    by_name = pair.certainty is None and not pair.fuzzy and ours.type == theirs.type
    if by_name and ours.is_tensor and theirs.is_tensor and ours.shape != theirs.shape:
        return other_shape(ours, theirs)
    return UNKNOWN


def other_shape(ours: Leaf, theirs: Leaf) -> Difference:
    return Difference("shape", False, is_odd=True, unit=_unit(ours, theirs))


# ---- tensors ----


def _unit(ours: Leaf, theirs: Leaf) -> float:
    return max(roundoff(ours.dtype), roundoff(theirs.dtype))


def _known(ours: Leaf, theirs: Leaf) -> tuple[Statistics, Statistics] | None:
    """The statistics of both, if any number is known of both; of an empty tensor none is missing."""
    a, b = ours.statistics, theirs.statistics
    if a is None or b is None:
        return None
    is_known = any(None not in numbers for numbers in zip(a[:4], b[:4], strict=True))
    return (a, b) if is_known or 0 in (ours.shape or ()) else None


def _size(leaf: Leaf) -> float:
    """The 2-norm, as far as it is known; infinite with infinities, as in a mask."""
    stats = leaf.statistics
    if stats is None:
        return 0.0
    if stats.norm is None:
        return _peak(leaf) * math.sqrt(leaf.elements)
    return math.inf if math.isnan(stats.norm) else abs(stats.norm)


def _peak(leaf: Leaf) -> float:
    stats = leaf.statistics
    return max(_finite(stats.max), _finite(stats.min)) if stats is not None else 0.0


def _finite(value: Any) -> float:
    return abs(float(value)) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def _equal(ours: Leaf, theirs: Leaf, sight: Sight) -> Difference:
    return Difference(
        sight,
        True,
        0.0,
        max(_size(ours), _size(theirs)),
        ours.elements,
        max(_peak(ours), _peak(theirs)),
        _unit(ours, theirs),
        scale=0.0,
        shift=0.0,
        unequal=0,
        least=_least(theirs),
    )


def _least(leaf: Leaf) -> float:
    stats = leaf.statistics
    if stats is None or stats.max is None or stats.min is None:
        return 0.0
    high, low = float(stats.max), float(stats.min)
    return min(abs(high), abs(low)) if high * low > 0 else 0.0


def _content(measured: TensorErrors, ours: Leaf, theirs: Leaf) -> Difference:
    sums, detail = measured.sums, measured.detail
    assert sums is not None
    whole = _equal(ours, theirs, "content")
    norm = math.sqrt(max(sums.target_squares, sums.golden_squares))
    if 0 < norm < math.inf:  # squares of very large and very small numbers leave the range of float64
        whole = whole._replace(norm=norm)
    if sums.unequal == 0:  # 0.0 and -0.0 are equal numbers of other bits
        return whole._replace(is_equal=False) if _same_bits(ours, theirs) is False else whole
    odd = bool(sums.mismatched or sums.opposite)
    error = math.sqrt(sums.difference_squares)
    found = whole._replace(
        is_equal=False,
        error=error if math.isfinite(error) else math.inf,
        scale=None,
        shift=None,
        largest=sums.max_abs,
        unequal=sums.unequal,
        is_odd=odd,
    )
    return found if detail is None else _directed(found, detail)


def _directed(found: Difference, detail: PairError) -> Difference:
    return found._replace(
        error=detail.error_norm or found.error,
        scale=detail.scale,
        scale_deviation=detail.scale_deviation,
        shift=detail.shift,
        shift_deviation=detail.shift_deviation,
        spreads=detail.spreads,
    )


def _described(ours: Leaf, theirs: Leaf) -> Difference:
    """From hashes, sketches and statistics; the last can only see less than there is."""
    same_bits = _same_bits(ours, theirs)
    if same_bits:
        return _equal(ours, theirs, "hash")
    known = _known(ours, theirs)
    if known is None:
        return UNKNOWN if same_bits is None else Difference("hash", False, unit=_unit(ours, theirs))
    found = _from_statistics(*known, _equal(ours, theirs, "statistics"))
    if found.error == 0 and not found.is_odd and same_bits is None:
        return found._replace(is_equal=None)
    found = found._replace(is_equal=False)
    sketched = measure_sketches(ours, theirs)
    if sketched is not None and number_type(ours.dtype) == number_type(theirs.dtype) == "bool":
        return _flipped(found, sketched)
    if sketched is not None and math.isfinite(sketched.relative):
        return _from_sketch(found, sketched, _size(theirs))
    is_exact = ours.hash is not None and theirs.hash is not None  # other tools round their statistics
    return found._replace(is_moved=is_exact and _is_moved(found, *known))


def _same_bits(ours: Leaf, theirs: Leaf) -> bool | None:
    """Whether hashes or checksums say that the bits are equal; None: there are none of one dtype."""
    if number_type(ours.dtype) != number_type(theirs.dtype):
        return None
    if ours.hash is not None and theirs.hash is not None:
        return ours.hash == theirs.hash
    if ours.checksum is not None and theirs.checksum is not None:
        return ours.checksum == theirs.checksum or (ours.elements <= 1 and ours.stats == theirs.stats)
    return None


def _from_statistics(ours: Statistics, theirs: Statistics, whole: Difference) -> Difference:
    """The least error that explains how far apart max, min, mean and norm are."""
    whole = whole._replace(unequal=None)
    if ours == theirs:
        return whole
    odd = [(stats.nan, stats.inf) for stats in (ours, theirs)]
    if all(map(any, odd)) and odd[0] != odd[1]:  # old formats count none
        return whole._replace(is_odd=True, scale=None, shift=None)
    ends = [_apart(ours.max, theirs.max), _apart(ours.min, theirs.min)]
    mean, norm = _apart(ours.mean, theirs.mean), _apart(ours.norm, theirs.norm)
    if not all(map(math.isfinite, (*ends, mean, norm))):
        return whole._replace(is_odd=True, scale=None, shift=None)
    if not whole.unit and not any(ends) and max(mean, norm) <= _OF_INTEGERS * whole.norm:
        return whole
    scale = shift = None
    if ours.norm is not None and theirs.norm and math.isfinite(whole.norm):
        scale = abs(ours.norm) / abs(theirs.norm) - 1
    if ours.mean is not None and theirs.mean is not None and 0 < whole.rms < math.inf:
        shift = (ours.mean - theirs.mean) / whole.rms
    error = max(*ends, mean * math.sqrt(whole.numbers), norm)
    return whole._replace(error=error, scale=scale, shift=shift, largest=max(ends))


def _apart(x: Any, y: Any) -> float:
    if x is None or y is None or x == y or (x != x and y != y):
        return 0.0
    return float(abs(x - y)) if math.isfinite(x) and math.isfinite(y) else math.inf


def _is_moved(found: Difference, ours: Statistics, theirs: Statistics) -> bool:
    """Whether the numbers are the same at other positions: bits differ, and nothing else does.

    Rounding of even one number in ten million changes the norm by more than the order of summation does.
    """
    if found.is_odd or found.numbers < _FEW or ours.max != theirs.max or ours.min != theirs.min:
        return False
    if ours.max == ours.min or not found.norm:
        return False
    ends = sorted((_finite(ours.max), _finite(ours.min)))
    if 0 < ends[0] < _ONE_SCALE * ends[1]:  # such as a mask: rounding of the small numbers would not show
        return False
    norm, shift = abs(found.scale or 0.0), abs(found.shift or 0.0)
    return norm <= _EXACT and shift <= _EXACT


def _from_sketch(found: Difference, sketched: SketchErrors, golden_norm: float) -> Difference:
    if sketched.relative == 0:
        return found
    if not math.isfinite(golden_norm):  # infinities, as in a mask, are not sketched: that of the others
        rest = sketched.apart / sketched.relative
        return found._replace(sight="sketch", error=sketched.apart, norm=rest, sums=sketched.sums)
    if found.unit < SINGLE and sketched.relative <= _SKETCH_ROUNDING:
        return found
    error = max(found.error, sketched.relative * golden_norm)
    scale = found.scale
    if scale is not None and sketched.cosine <= _OPPOSITE:
        scale = -scale - 2  # norms do not show the sign
    return found._replace(sight="sketch", error=error, scale=scale, unequal=None, sums=sketched.sums)


def _flipped(found: Difference, sketched: SketchErrors) -> Difference:
    """Of truth values: about how many differ."""
    count = max(1, min(round(sketched.apart**2), found.numbers))
    return found._replace(unequal=count)


# ---- plain values ----


def _plain(ours: Leaf, theirs: Leaf) -> Difference:
    if _is_setting(ours, theirs):
        return SAME_VALUE
    a, b = ours.value, theirs.value
    if a == b or (a != a and b != b):
        return SAME_VALUE
    if isinstance(a, float) and isinstance(b, float) and math.isfinite(a) and math.isfinite(b):
        size = max(abs(a), abs(b))
        return Difference("value", False, abs(a - b), size, 1, size, PLAIN, scale=(a - b) / b if b else None)
    return Difference("value", False, is_odd=True)


def _is_setting(ours: Leaf, theirs: Leaf) -> bool:
    """Whether it says where to compute or in which precision, which may differ."""
    texts = ours.value, theirs.value
    if not all(isinstance(text, str) for text in texts):
        return False
    return all(map(_DEVICE.fullmatch, texts)) or all(roundoff(text) for text in texts)
