"""How far the result of a call may be off: by its own rounding, and by what its arguments are off.

Everything here is a 2-norm in the unit of the result. `Reach` follows from what the operator does
(operators.py) and from the sizes of the values. It is linear in the errors of the arguments, so that it
carries their relative errors, their scale errors and their largest errors alike.

    own     = 4 u |y| + 8 u32 (1 + sqrt(K)) S       u: unit roundoff of the coarsest dtype, K: summands
    reached = sum over arguments of gain * error

S is the norm that the result would have if its K summands did not cancel. So a sum that nearly cancels may be
off by rounding of its summands, and nothing else may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msprobe.dtypes import SINGLE
from msprobe.operators import Operator
from msprobe.verdict.difference import Difference

OUTPUT_ROUNDINGS = 4.0  # roundings of the result's dtype that two sound kernels may be apart
INNER_ROUNDINGS = 8.0  # the same in the precision in which they compute
USUAL_SUM = 0.5  # roundings that a sum of one summand usually adds; times the root of their number
MOST_SUMMANDS = 2**20  # nobody adds more in a row: larger sums are made of partial sums
UNEVEN = 0.2  # of a scale error: what may be more or less, because it is not the same in all numbers
UNKNOWN_SCALING = 3.0  # times what reaches the result: the scale error of it, if the operator is not known
UNKNOWN_GAIN = 8.0  # what an operator that the table does not know may make of a relative error
BATCH_GAIN = 8.0  # of batch norm: a channel that hardly varies over a batch is divided by next to nothing
AS_LARGE = 0.01  # of a square: batch norm adds eps to a variance, and rounds
FLIP_SHARE = 4.0  # times the relative error of an argument: the share of comparisons that may fall otherwise


# By kind, see most_of(): those that pass on errors in proportion, and those that bend or divide.
MOST = {"moves": 3.0, "adds": 3.0, "sums": 3.0, "multiplies": 3.0, "smooth": 3.0}
MOST |= {"attends": 5.0, "exponential": 4.0, "logarithm": 4.0, "powers": 6.0, "normalises": 6.0}


class Argument(NamedTuple):
    """One tensor that went into a call."""

    value: Difference
    shape: tuple[int, ...]
    position: int  # among the tensors of the call
    spot: tuple[str, str] | None = None  # its record and slot in the target
    made_by: str | None = None  # what the recording says of its maker, if it went into a forward call

    @property
    def size(self) -> float:
        return self.value.norm

    @property
    def rms(self) -> float:
        return self.value.rms

    @property
    def numbers(self) -> int:
        return max(self.value.numbers, 1)


class Scaling(NamedTuple):
    """The scale error of a result by that of an argument."""

    degree: float  # the power of the argument that the result grows by
    slack: float  # how far from that it may be


EXACT = Scaling(1.0, UNEVEN)
INVERSE = Scaling(-1.0, UNEVEN)
UNUSED = Scaling(0.0, 0.0)


class Reach(NamedTuple):
    """What the table says of one result of a call."""

    summands: float  # K: numbers added for one number of the result
    size: float  # S: the norm of the result if its summands did not cancel
    gains: tuple[float, ...]  # by argument: error of the result by error of the argument
    bends: float = 0.0  # relative error that follows from the square of a relative error
    flips: float = 0.0  # share of the result that decisions may change, by relative error of an argument
    scalings: tuple[Scaling, ...] = ()  # by argument, where known: what its scale error makes of the result

    typical: tuple[float, ...] = ()  # the gains that are likely, where `gains` are the largest
    steps: float = 1.0  # after each of which the numbers are rounded to the dtype of the result
    inner: float = 0.0  # the norm of what is rounded to the dtype of the result before it cancels
    is_exact: bool = False  # nothing is rounded unless the dtype changes
    is_part: bool = False  # it shows a part of an argument, whose error may have any direction
    is_centred: bool = False  # the mean of its first argument does not show in it
    most: float = math.inf  # times what is likely: no sound result was seen to be so far off

    def at_most(self, most: float) -> Reach:
        """The same with another `most`; much faster than _replace(), because it is done for every result."""
        return tuple.__new__(Reach, (*self[:-1], most))

    def of(self, errors: Sequence[float]) -> float:
        """The most that these errors of the arguments make of the result."""
        pairs = zip(self.gains, errors, strict=True)
        return math.fsum([gain * error for gain, error in pairs if gain and error])

    def likely(self, errors: Sequence[float]) -> float:
        """What these errors of the arguments likely make of the result, if they have nothing in common."""
        gains = self.typical or self.gains
        pairs = zip(gains, errors, strict=True)
        return math.hypot(*[gain * error for gain, error in pairs if gain and error])


def own_rounding(reach: Reach, norm: float, unit: float, mixed: bool) -> float:
    """Return how far two sound kernels may be apart on equal arguments.

    `mixed`: the call computes in several precisions, so that arguments are rounded to the coarsest inside it.
    """
    if reach.is_exact and not mixed:
        return 0.0
    inner = min(unit, SINGLE) * INNER_ROUNDINGS * (1 + math.sqrt(reach.summands)) * max(reach.size, norm)
    return inner + OUTPUT_ROUNDINGS * _one_rounding(reach, norm, unit, mixed)


def usual_rounding(reach: Reach, norm: float, unit: float, mixed: bool) -> float:
    """Return how far two sound kernels usually are apart on equal arguments.

    Sums of K products in float32 by torch, MindSpore and numpy were 0.2 to 0.5 sqrt(K) roundings apart.
    """
    if reach.is_exact and not mixed:
        return 0.0
    inner = min(unit, SINGLE) * USUAL_SUM * math.sqrt(reach.summands) * max(reach.size, norm)
    return inner + _one_rounding(reach, norm, unit, mixed)


def _one_rounding(reach: Reach, norm: float, unit: float, mixed: bool) -> float:
    """The error of rounding once to the coarsest dtype, or once after each step."""
    rounded = max(reach.size if mixed else reach.inner, norm)
    return unit * math.sqrt(reach.steps) * rounded


def forward_reach(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    """Return how arguments reach the result of a forward call; `plain`: the plain numbers among them."""
    rule = _FORWARD.get(operator.kind, _unknown)
    return rule(operator, result, arguments, plain).at_most(most_of(operator))


def most_of(operator: Operator) -> float:
    """How many times what is likely a sound result may be off.

    Measured over 65 000 results of 24 models in all variations that truth/ makes, where two runs of the same
    model round otherwise: at most 0.6 of this.
    """
    if operator.is_loss:
        return 3.0
    return 24.0 if operator.changes_state else MOST.get(operator.kind, math.inf)


def spread_of(result: Difference, argument: Argument) -> float:
    """How often an argument is used when it is smaller than the result: the square root of it."""
    return math.sqrt(max(1.0, result.numbers / argument.numbers))


def largest_factor(plain: Sequence[float]) -> float:
    return max([1.0, *(abs(number) for number in plain if math.isfinite(number))])


def in_proportion(
    result: Difference, arguments: Sequence[Argument], factor: float = 1.0
) -> tuple[float, ...]:
    """The gains of an operator that keeps relative errors, up to a factor."""
    return tuple(factor * result.norm / a.size if a.size else 0.0 for a in arguments)


def _moves(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    return Reach(
        1,
        result.norm,
        tuple(spread_of(result, a) for a in arguments),
        flips=FLIP_SHARE if operator.decides else 0.0,
        scalings=() if operator.fills else _evenly(arguments),  # what fills may be most of the result
        is_exact=True,
        is_part=any(a.numbers != result.numbers for a in arguments),
    )


def _adds(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    factor = largest_factor(plain)
    spread = [spread_of(result, a) * (factor if a.position else 1.0) for a in arguments]
    size = math.sqrt(math.fsum((a.size * s) ** 2 for a, s in zip(arguments, spread, strict=True)))
    is_plain = factor == 1 and all(a.numbers == result.numbers for a in arguments)
    scalings = _summed(result, *arguments) if is_plain and len(arguments) == 2 else ()
    return Reach(1, max(size, result.norm), tuple(spread), scalings=scalings)


def _summed(result: Difference, one: Argument, other: Argument) -> tuple[Scaling, ...]:
    """Of a sum or a difference y of a and b, <a, y> is (|y|^2 + |a|^2 - |b|^2) / 2."""
    if not result.norm or not math.isfinite(result.norm) or not math.isfinite(one.size + other.size):
        return ()
    ours, theirs = one.size / result.norm, other.size / result.norm
    share = (1 + ours * ours - theirs * theirs) / 2
    return Scaling(share, UNEVEN * ours), Scaling(1 - share, UNEVEN * theirs)


def _evenly(arguments: Sequence[Argument]) -> tuple[Scaling, ...]:
    """Of an operator that is linear in one argument; several are parts of the result."""
    return (EXACT,) if len(arguments) == 1 else ()


def _sums(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    if not arguments:
        return Reach(1, result.norm, ())
    first = arguments[0]
    count = _summands(operator, result, first, plain)
    share = count if operator.is_mean else 1.0
    coherent = result.norm / first.size if first.size else 0.0
    # Errors that have one cause may have one sign in all summands.
    gains = tuple(math.sqrt(count) / share * spread_of(result, a) for a in arguments)
    typical = tuple(max(1 / share, coherent) * spread_of(result, a) for a in arguments)
    size = max(first.size / share, result.norm)
    if operator.is_running:  # an error goes into all numbers behind it
        typical, size = gains, max(math.sqrt(count) * first.size, result.norm)
    return Reach(count, size, gains, scalings=_evenly(arguments), typical=typical)


def _summands(operator: Operator, result: Difference, argument: Argument, plain: Sequence[float]) -> float:
    """How many numbers of its one argument an operator takes for one number of the result."""
    count = max(1.0, argument.numbers / max(result.numbers, 1))
    if operator.is_running:
        shape = argument.shape or (1,)
        named = len(plain) == 1 and -len(shape) <= plain[0] < len(shape)  # the axis is its one plain number
        count = float(shape[int(plain[0])] if named else max(shape))
    return min(count, MOST_SUMMANDS)


def _multiplies(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    factors, added = factors_of(operator, arguments)
    if len(factors) < 2:
        count = max((_summands(operator, result, a, plain) for a in arguments), default=1.0)
        gains_of_one = in_proportion(result, arguments, math.sqrt(count))  # their relative errors add up
        return Reach(count, result.norm, gains_of_one, scalings=_evenly(arguments) if count == 1 else ())
    a, b = factors
    count = products_of(operator, result, a, b)
    size = max(math.sqrt(count) * a.rms * b.rms * math.sqrt(max(result.numbers, 1)), result.norm)
    gains = []
    for each in arguments:
        if any(each is one for one in added):
            gains.append(spread_of(result, each))
        else:
            gains.append(size / each.size if each.size else 0.0)
    terms = [each.size * spread_of(result, each) for each in added]
    return Reach(
        count, math.hypot(size, *terms), tuple(gains), scalings=_products(result, arguments, added, terms)
    )


def _products(
    result: Difference, arguments: Sequence[Argument], added: Sequence[Argument], terms: Sequence[float]
) -> tuple[Scaling, ...]:
    """Of a product to which something is added; the latter may point anywhere."""
    if not result.norm or not math.isfinite(result.norm):
        return ()
    share = min(math.fsum(terms) / result.norm, 1.0) if all(map(math.isfinite, terms)) else 1.0
    factor, term = Scaling(1 - share / 2, UNEVEN + share / 2), Scaling(share / 2, share / 2)
    return tuple(term if any(each is one for one in added) else factor for each in arguments)


def factors_of(
    operator: Operator, arguments: Sequence[Argument]
) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
    """The two factors of a product, and what is added to it."""
    if operator.is_added_first:
        return tuple(arguments[1:3]), tuple(arguments[:1])
    return tuple(arguments[:2]), tuple(arguments[2:])


def products_of(operator: Operator, result: Difference, a: Argument, b: Argument) -> float:
    """How many products are added for one number of the result."""
    if operator.summed == "none":
        count = 1.0
    elif operator.summed == "all but first axis of second":
        count = b.numbers / max(b.shape[0] if b.shape else 1, 1)
    elif operator.summed == "last axis of second":
        count = float(b.shape[-1]) if b.shape else 1.0
    elif operator.summed == "last axis of first":
        count = float(a.shape[-1]) if a.shape else 1.0
    else:
        count = math.sqrt(a.numbers * b.numbers / max(result.numbers, 1))
    return min(max(count, 1.0), MOST_SUMMANDS)


def _smooth(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    gains = []
    for a in arguments:
        coherent = 1.5 * result.norm / a.size if a.size and not operator.bounded else 0.0
        gains.append(max(operator.slope, coherent) * spread_of(result, a))
    typical = () if operator.degrees is None else in_proportion(result, arguments, 1.2)
    flips = FLIP_SHARE if operator.jumps else 0.0
    reach = Reach(row_of(arguments), result.norm, tuple(gains), bends=1.0, typical=typical, flips=flips)
    if operator.degrees is None or len(arguments) != 1 or not gains[0] or not arguments[0].size:
        return reach
    return reach._replace(scalings=(_between(*operator.degrees),))


def _between(low: float, high: float) -> Scaling:
    return Scaling((low + high) / 2, (high - low) / 2 + UNEVEN)


def row_of(arguments: Sequence[Argument]) -> float:
    return float(max((a.shape[-1] for a in arguments if a.shape), default=1))


def _powers(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    exponent = max([2.0, *(abs(n) for n in plain if operator.has_exponent and abs(n) < 64)])
    gains = [exponent * result.norm / a.size if a.size else 0.0 for a in arguments]
    if operator.divides and len(arguments) >= 2 and arguments[-1].value.least:
        # The error of the largest numerator may meet the smallest divisor: optimizers that divide by the size
        # of the gradient make a whole step of one that is zero but for rounding.
        factor = min(1.0, *(abs(number) for number in plain)) if plain else 1.0
        gains[-2] = max(gains[-2], factor / arguments[-1].value.least)
    scalings: tuple[Scaling, ...] = ()
    if operator.divides and len(arguments) == 2:
        scalings = EXACT, INVERSE
    elif operator.degrees is not None and len(arguments) == 1:
        scalings = (_between(*operator.degrees),)
    typical = in_proportion(result, arguments)
    return Reach(row_of(arguments), result.norm, tuple(gains), bends=2.0, scalings=scalings, typical=typical)


def _exponential(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    typical = tuple(result.rms for _ in arguments)
    return Reach(1, result.norm, tuple(result.peak for _ in arguments), bends=1.0, typical=typical)


def _logarithm(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    # Of numbers near 1 the logarithm is small, and its error is not. An error that does not shrink with the
    # numbers weighs more in the small ones: hence 4.
    size = max(result.norm, math.sqrt(max(result.numbers, 1)))
    gains = tuple(4 * size / a.size if a.size else 0.0 for a in arguments)
    typical = tuple(size / a.size if a.size else 0.0 for a in arguments)
    return Reach(1, size, gains, bends=1.0, typical=typical)


def _normalises(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    gains = [result.norm / a.size if a.size else 0.0 for a in arguments]
    if gains:
        gains[0] *= BATCH_GAIN if operator.changes_state else 2.0
    if len(gains) > 2:
        gains[-1] = spread_of(result, arguments[-1])
    typical = in_proportion(result, arguments)
    scalings: tuple[Scaling, ...] = ()
    if len(arguments) <= 3:
        of_input = _between(*(operator.degrees or (0.0, 1.0)))
        terms = [gains[-1] * arguments[-1].size] if len(arguments) == 3 else []
        rest = _products(result, arguments[1:], arguments[2:], terms)
        scalings = (of_input, *rest) if len(rest) == len(arguments) - 1 else ()
    is_centred = operator.changes_state and _is_normalised(result, arguments[1:])
    if is_centred and not scalings:
        scalings = (Scaling(0.0, UNEVEN), *(Scaling(0.5, 0.5 + UNEVEN) for _ in arguments[1:]))
    return Reach(
        row_of(arguments),
        result.norm,
        tuple(gains),
        bends=1.0,
        scalings=scalings,
        typical=typical,
        is_centred=is_centred,
    )


def _is_normalised(result: Difference, others: Sequence[Argument]) -> bool:
    """Whether a result is as large as its weight and bias say: divided by a spread of its own.

    Running statistics are among these arguments too, and may have been used instead.
    """
    sizes = [each.rms**2 for each in others]
    sums = (one + other for number, one in enumerate(sizes) for other in sizes[:number])
    return any(abs(each - result.rms**2) <= AS_LARGE * each for each in sums)


def _attends(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    """Weighted averages of the rows of the third tensor.

    An error of the first or second changes the logarithm of a weight by its product with the other, which
    moves the average by that share of the numbers that are averaged.
    """
    if len(arguments) < 3:
        return _unknown(operator, result, arguments, plain)
    values = arguments[2]
    size = max(values.rms * math.sqrt(max(result.numbers, 1)), result.norm)
    gains = [result.norm / a.size if a.size else 0.0 for a in arguments]
    for own, other in ((0, 1), (1, 0)):
        spread = math.sqrt(max(result.numbers, 1) / arguments[own].numbers)
        gains[own] = arguments[other].rms * values.rms * spread
    gains[2] = max(math.sqrt(max(result.numbers, 1) / values.numbers), gains[2])
    typical = tuple(gain / 2 for gain in gains[:2]) + tuple(in_proportion(result, arguments)[2:])
    return Reach(row_of(arguments), size, tuple(gains), bends=1.0, typical=typical)


def _unknown(
    operator: Operator, result: Difference, arguments: Sequence[Argument], plain: Sequence[float]
) -> Reach:
    if operator.is_loss and arguments:
        return _loss(result, arguments, plain)
    gains = in_proportion(result, arguments, UNKNOWN_GAIN)
    return Reach(
        row_of(arguments),
        result.norm,
        gains,
        bends=4.0,
        flips=FLIP_SHARE if operator.decides else 0.0,
        typical=in_proportion(result, arguments, 1.5),
        steps=steps_of(operator, arguments),
    )


def steps_of(operator: Operator, arguments: Sequence[Argument]) -> float:
    """How many steps an operator takes one after the other: the first two axes are steps and samples."""
    if not operator.has_steps or not arguments:
        return 1.0
    return float(max(1, *arguments[0].shape[:2]))


def _loss(result: Difference, arguments: Sequence[Argument], plain: Sequence[float]) -> Reach:
    """A mean over rows, whose slope in each row is at most about 1.5 by the number of rows."""
    first = arguments[0]
    rows = max(1.0, first.numbers / (first.shape[-1] if len(first.shape) > 1 else 1))
    per_row = result.norm / math.sqrt(max(result.numbers, 1))
    gains = [2 * result.norm / a.size if a.size else 0.0 for a in arguments]
    gains[0] = max(
        gains[0], 1.5 / math.sqrt(rows), 1.5 * per_row * math.sqrt(rows) / max(first.rms, 1e-300) / rows
    )
    # Errors that have nothing in common are averaged over the rows; in a row one number and a mean count.
    independent = 1.5 * math.sqrt(max(result.numbers, 1) / (rows * first.numbers))
    typical = (independent, *in_proportion(result, arguments)[1:])
    size = max(result.norm, math.sqrt(max(result.numbers, 1)))
    return Reach(row_of(arguments), size, tuple(gains), bends=2.0, typical=typical)


_Rule = Callable[[Operator, Difference, Sequence[Argument], Sequence[float]], Reach]
_FORWARD: dict[str, _Rule] = {
    "moves": _moves,
    "adds": _adds,
    "sums": _sums,
    "multiplies": _multiplies,
    "smooth": _smooth,
    "powers": _powers,
    "exponential": _exponential,
    "logarithm": _logarithm,
    "normalises": _normalises,
    "attends": _attends,
}
