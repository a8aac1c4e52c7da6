"""The tests that a difference is put to: its size, its scale, its mean, rows and channels, single numbers.

Each compares what was measured with what the call's own rounding and its arguments explain. A score above 1
means that they do not.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from msprobe.dtypes import SINGLE
from msprobe.verdict.difference import SKETCH_NOISE, Difference
from msprobe.verdict.tolerance import INNER_ROUNDINGS, OUTPUT_ROUNDINGS, UNKNOWN_SCALING, Argument, Reach

GAIN = 4.0  # times what the table of operators says of an argument's error
SCALE_GAIN = 3.0  # the same of a scale error, whose sign and size are known better
# Where rows or channels of the arguments have much in common, their errors may be scale errors of rows or
# channels of the result, altogether.
CHANNEL_GAIN = 1.5
FLOOR = 1.0  # roundings of the result's dtype; one toward zero has a scale error of up to 1
DEVIATIONS = 12.0  # standard errors that a scale error may be from zero
FLOOR_DEVIATIONS = 4.0  # the same from the floor: errors that are independent are no further
SPREAD = 4.0  # times the noise that the scale errors of single rows or channels may have
# Standard errors that the estimates of a result and of its arguments may both be off, in opposite directions:
# twice 2.4 happen once in 15 000 times.
ESTIMATE_DEVIATIONS = 2.4
CHANCE = 4.0  # standard errors by which the norm of N normal numbers, about sqrt(N), may exceed that
PEAK = 16.0  # times the root mean square error that one number may be off
EVEN_MOST = 6.0  # `most` of what passes on errors to all numbers about alike, see tolerance.MOST
NOISE = 0.25  # of a value: if rounding and the inputs likely make so much of it, its directions say nothing


class Test(NamedTuple):
    """One way to look at a difference: what was measured, and what may be."""

    name: Literal["size", "scale", "shift", "channels", "number", "odd", "positions"]
    value: float
    bound: float

    @property
    def score(self) -> float:
        if self.value == 0 or self.bound == math.inf:
            return 0.0
        return self.value / self.bound if self.bound > 0 else math.inf


def floor_of(reach: Reach, value: Difference, unit: float, mixed: bool) -> float:
    """The scale error that one sound kernel may have: devices truncate and approximate."""
    cancel = max(1.0, reach.size / value.norm) if value.norm else 1.0
    inner = min(unit, SINGLE) * INNER_ROUNDINGS * (1 + math.sqrt(reach.summands)) * cancel
    return FLOOR * unit * _biased(reach.steps) * (cancel if mixed else 1.0) + inner


def _biased(steps: float) -> float:
    """How many times truncation adds up over steps that forget: over 14 of a GRU it did 4.6 times."""
    return 1.0 if steps == 1 else 2 * math.sqrt(steps)


def tests_of(
    value: Difference,
    unit: float,
    floor: float,
    own: float,
    bound: float,
    reached: float,
    likely: float,
    reach: Reach,
    arguments: Sequence[Argument],
    errors: Sequence[float],
) -> list[Test]:
    norm = value.norm
    if value.is_odd:
        return [Test("odd", math.inf, 1.0)]
    tests = [Test("positions", math.inf, 1.0)] if value.is_moved and not any(errors) else []
    tests.append(Test("size", value.error, min(bound, _surprising(value, likely, reach, arguments))))
    if not norm or not math.isfinite(norm) or likely > NOISE * norm or (reach.is_part and any(errors)):
        return tests
    relative = likely / norm
    bent = reach.bends * relative * relative
    share = (bound - own - GAIN * reached) / norm if arguments else 0.0  # what decisions may have changed
    deviation, passed = scale_deviation(value, own, likely, reach, arguments, errors), 0.0
    found = own_scale_of(value, deviation, reach, arguments)
    if value.sight != "content":
        bent += (likely / norm) ** 2
    if found is not None:
        own_scale, deviation, passed = found
        tests.append(Test("scale", abs(own_scale), _least(floor, deviation) + passed + bent + share))
    deviation = value.shift_deviation if value.sight == "content" else deviation
    if value.shift is not None and deviation is not None and value.numbers > 1:
        moved = 0.0
        if arguments:
            shifts = [abs(_reaching(argument.value.shift, argument)) for argument in arguments]
            shifts[:1] = [0.0] if reach.is_centred else shifts[:1]
            moved = SCALE_GAIN * reach.of(shifts) / norm
        most = _least(floor, deviation) + passed + moved + bent + share
        tests.append(Test("shift", abs(value.shift), most))
    for spread in value.spreads:
        noise = SPREAD * spread.noise
        most = noise + floor + CHANNEL_GAIN * relative + passed + share
        tests.append(Test("channels", spread.size, most))
    if value.numbers > 1:
        most = PEAK * bound / math.sqrt(value.numbers) + 2 * INNER_ROUNDINGS * unit * value.peak
        if arguments:
            largest = [min(a.value.largest, error) for a, error in zip(arguments, errors, strict=True)]
            most += GAIN * reach.of(largest)
        tests.append(Test("number", value.largest, most))
    return tests


def _surprising(value: Difference, likely: float, reach: Reach, arguments: Sequence[Argument]) -> float:
    """The error that is too large to be likely, if it was measured or estimated: few numbers scatter more."""
    if value.sight not in ("content", "sketch") or any(not argument.value.is_known for argument in arguments):
        return math.inf
    most = reach.most * (1 + CHANCE / math.sqrt(max(value.numbers, 1))) * likely
    if not value.is_estimated:
        return most
    doubt = ESTIMATE_DEVIATIONS * value.estimate_deviation
    return (1 + doubt) / (1 - doubt) * most + SKETCH_NOISE * value.norm + value.missed


def _least(floor: float, deviation: float) -> float:
    """What a scale error must be more than: a kernel that rounds toward zero, or errors that are alike."""
    return max(floor + FLOOR_DEVIATIONS * deviation, DEVIATIONS * deviation)


def scale_deviation(
    value: Difference,
    own: float,
    likely: float,
    reach: Reach,
    arguments: Sequence[Argument],
    errors: Sequence[float],
) -> float | None:
    """The standard error of the scale error: from the data, or from the errors that are likely.

    A result averages its own roundings over its numbers, and the errors of an argument over no more numbers
    than the argument has.
    """
    if value.sight == "content":
        return value.scale_deviation
    numbers = carriers(value)
    parts = [own / OUTPUT_ROUNDINGS / math.sqrt(numbers)]
    for gain, error, argument in zip(reach.typical or reach.gains, errors, arguments, strict=False):
        if gain and error:
            parts.append(gain * error / math.sqrt(min(numbers, carriers(argument.value))))
    deviation = math.hypot(*parts) / value.norm * _unevenness(reach)
    if value.sight == "sketch":
        rest = math.sqrt(max(value.relative**2 - (value.scale or 0.0) ** 2, 0.0))
        if rest > 3 * likely / value.norm:
            deviation = max(deviation, rest / math.sqrt(numbers))
    return deviation


def _unevenness(reach: Reach) -> float:
    """How many times more a few numbers may carry of the errors of the arguments than all do alike.

    A channel that hardly varies over a batch is divided by next to nothing: it carries most of the norm of a
    gradient, and most of its error.
    """
    return max(1.0, reach.most / EVEN_MOST) if math.isfinite(reach.most) else 1.0


def own_scale_of(
    value: Difference, deviation: float | None, reach: Reach, arguments: Sequence[Argument]
) -> tuple[float, float, float] | None:
    """The scale error without what the arguments bring, its standard error, and what they may bring more."""
    if value.scale is None or deviation is None or not value.norm or not math.isfinite(value.norm):
        return None
    if not arguments:
        return value.scale, deviation, 0.0
    if not reach.scalings:
        scales = [abs(_reaching(argument.value.scale, argument)) for argument in arguments]
        return value.scale, deviation, UNKNOWN_SCALING * reach.of(scales) / value.norm
    expected = passed = 0.0
    for scaling, argument in zip(reach.scalings, arguments, strict=True):
        scale, scatter = argument.value.scale, argument.value.scale_deviation
        if scale and math.isfinite(scale):
            expected += scaling.degree * scale
            # One that does not stand out of its standard error is no scaling: the result may have none of it.
            doubt = abs(scale) if scatter is None else min(FLOOR_DEVIATIONS * scatter, abs(scale))
            passed += scaling.slack * abs(scale) + abs(scaling.degree) * doubt
    return value.scale - expected, deviation, passed + _scale_of_shift(value, reach, arguments)


def _scale_of_shift(value: Difference, reach: Reach, arguments: Sequence[Argument]) -> float:
    """The scale error that a shift of the one argument may make: a result of one sign grows or shrinks by it.

    What a scale error of the argument shifts its mean by is part of that.
    """
    if len(arguments) != 1 or reach.is_exact:
        return 0.0
    argument = arguments[0].value
    shift = abs(argument.shift or 0.0) - abs(argument.scale or 0.0)
    return max(0.0, reach.of([_reaching(shift, arguments[0])]) / value.norm)


def carriers(value: Difference) -> float:
    """How many independent errors a norm averages, at least.

    At least (norm / peak)^2 numbers carry the norm. Where they are not all as large as the peak it is more:
    a normal distribution has a third of its numbers, which is four times as many.
    """
    share = value.norm / value.peak if value.peak else 1.0
    least = share * share  # not a power, which raises an error where it leaves the range
    return max(1.0, min(4 * least, float(value.numbers)))


def _reaching(part: float | None, argument: Argument) -> float:
    return part * argument.size if part and math.isfinite(part) else 0.0


def rounding_tests(value: Difference) -> list[Test]:
    """Whether a value that comes in differs by more than one rounding to its dtype."""
    if value.sight in ("shape", "one side") or value.is_odd or not value.is_float or value.is_moved:
        return [Test("odd", math.inf, 1.0)]
    norm = value.norm or 1.0
    tolerance = unit_tolerance(value)
    tests = [Test("size", value.relative, tolerance)]
    floor = max(FLOOR * value.unit, INNER_ROUNDINGS * min(value.unit, SINGLE))
    deviation = value.scale_deviation
    if value.sight != "content":
        deviation = tolerance * (value.peak / norm)
    if value.scale is not None and deviation is not None:
        tests.append(Test("scale", abs(value.scale), _least(floor, deviation)))
    return tests


def with_score(tests: list[Test]) -> tuple[list[Test], float]:
    """Return tests with the largest of their scores."""
    return tests, max([test.score for test in tests])


def unit_tolerance(value: Difference) -> float:
    return OUTPUT_ROUNDINGS * value.unit + INNER_ROUNDINGS * min(value.unit, SINGLE)


# ---- beside other calls of the same operator ----

LEAST_CALLS = 3  # of one operator, to say what is usual
CLEAR = 0.25  # roundings: a scale error that is known less well is not held against others
# A kernel that rounds toward zero makes a scale error of 0.5 to 1 rounding, by how the leading digits of the
# numbers are distributed, and none where its results are exact. So two calls are at most 0.5 apart, unless
# one of them lies between none and what is usual. What was seen of calls of one kernel is 0.35 at most.
UNLIKE, UNLIKE_ON_SHAPES, OTHER_KERNEL = 0.5, 0.35, 0.5
UNLIKE_DEVIATIONS = 4.0


class ScaleError(NamedTuple):
    """The scale error that one call adds of its own, beside other calls of the same operator."""

    operator: tuple[str, str, float]  # concept, direction, unit roundoff
    shapes: tuple[tuple[int, ...], ...]  # of its arguments: equal ones are computed by the same kernel
    pair: int  # the id of the pair
    own: float
    deviation: float  # its standard error
    passed: float  # what the arguments may add or take


class Unlike(NamedTuple):
    """A scale error that other calls of the same operator do not have."""

    words: str
    score: float  # above 1: the same kernel made something else of numbers of the same shapes


def unlike_others(scales: Sequence[ScaleError]) -> dict[int, Unlike]:
    """Return the pairs whose scale error is within the tolerance, but not what is usual for the operator.

    A device truncates or approximates in every call of an operator alike, and calls of the same shapes are
    computed by the same kernel.
    """
    found: dict[int, Unlike] = {}
    for by_shape in (False, True):
        groups: dict[object, list[ScaleError]] = defaultdict(list)
        for scale in scales:
            if scale.deviation <= CLEAR * scale.operator[2]:
                groups[scale.operator, scale.shapes if by_shape else None].append(scale)
        for group in groups.values():
            if len(group) >= LEAST_CALLS:
                found.update(_unlike(group, by_shape))
    return found


def _unlike(group: Sequence[ScaleError], by_shape: bool) -> Iterator[tuple[int, Unlike]]:
    word, _, unit = group[0].operator
    for number, scale in enumerate(group):
        others = [*group[:number], *group[number + 1 :]]
        usual = statistics.median(other.own for other in others)
        spread = statistics.median(abs(other.own - usual) for other in others)
        doubt = statistics.median(other.deviation for other in others) / math.sqrt(len(others))
        # What arguments with the same scale errors add is the same; a tenth of it depends on the numbers.
        passed = abs(scale.passed - statistics.median(other.passed for other in others)) / 2
        noise = UNLIKE_DEVIATIONS * math.hypot(scale.deviation, doubt) + passed + scale.passed / 10
        apart, least = abs(scale.own - usual), UNLIKE_DEVIATIONS * spread
        if apart > max((UNLIKE_ON_SHAPES if by_shape else UNLIKE) * unit, least) + noise:
            words = f"its scale error is {scale.own:.2g}, that of other calls of {word} {usual:.2g}"
            may_be_exact = min(usual, 0.0) <= scale.own <= max(usual, 0.0)
            is_named = by_shape and not may_be_exact
            score = apart / (max(OTHER_KERNEL * unit, least) + noise) if is_named else 0.0
            yield scale.pair, Unlike(words, score)
