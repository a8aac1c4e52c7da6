"""How gradients and what ran forward reach the gradient that a backward call gives out; see tolerance.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msprobe.operators import Operator
from msprobe.verdict.difference import Difference
from msprobe.verdict.tolerance import (
    EXACT,
    FLIP_SHARE,
    MOST_SUMMANDS,
    UNEVEN,
    UNKNOWN_GAIN,
    UNKNOWN_SCALING,
    UNUSED,
    Argument,
    Reach,
    Scaling,
    factors_of,
    in_proportion,
    largest_factor,
    most_of,
    products_of,
    row_of,
    steps_of,
)

CURVED = Scaling(0.0, 1.0)  # of a slope, by the argument at which it is taken
UNKNOWN_CURVED = Scaling(0.0, UNKNOWN_SCALING)  # the same of an operator that the table does not know


class Backward(NamedTuple):
    """What a backward call was given: gradients, and the arguments and results of its forward call."""

    gradients: Sequence[Argument]  # of the results
    arguments: Sequence[Argument]  # of the forward call, by position
    results: Sequence[Argument]
    plain: Sequence[float]

    @property
    def all(self) -> tuple[Argument, ...]:
        return (*self.gradients, *self.arguments, *self.results)


def backward_reach(operator: Operator, result: Difference, position: int, given: Backward) -> Reach:
    """Return how everything in `given` (in the order of `given.all`) reaches the gradient of one argument."""
    rule = _back_loss if operator.gradient_slope else _BACKWARD.get(operator.kind, _back_unknown)
    own = next((a for a in given.arguments if a.position == position), None)
    return rule(operator, result, own, given).at_most(most_of(operator))


def parameter_reach(result: Difference, given: Backward) -> Reach:
    """Return how everything in `given` reaches the gradient of a parameter of a module.

    It is a sum over rows of the gradient that came in, as that of a bias is, or of its products with what the
    module was given, as that of a weight is.
    """
    gradient = max(given.gradients, key=lambda each: each.numbers, default=None)
    if gradient is None:
        gains = in_proportion(result, given.all, UNKNOWN_GAIN)
        return Reach(row_of(given.all), result.norm, gains, bends=4.0)
    rows = min(max(gradient.numbers / max(result.numbers, 1), 1.0), MOST_SUMMANDS)
    first = max(given.arguments, key=lambda each: each.numbers, default=None)
    size = max(gradient.size, result.norm)
    if first is not None:
        products = min(
            max(gradient.numbers * first.numbers / max(result.numbers, 1), 1.0) ** 0.5, MOST_SUMMANDS
        )
        rows = max(rows, products)
        size = max(size, math.sqrt(products) * gradient.rms * first.rms * math.sqrt(max(result.numbers, 1)))

    def gain(each: Argument) -> float:
        if each is gradient:
            return max(math.sqrt(rows), size / each.size if each.size else 0.0)
        return 2 * size / each.size if each.size else 0.0

    typical = tuple(size / each.size if each.size else 0.0 for each in given.all)
    return Reach(rows, size, _gains(given, gain), bends=2.0, typical=typical)


def _gains(given: Backward, gain: Callable[[Argument], float]) -> tuple[float, ...]:
    return tuple(gain(each) for each in given.all)


def _is_gradient(each: Argument, given: Backward) -> bool:
    return any(each is gradient for gradient in given.gradients)


def _back_linear(operator: Operator, result: Difference, own: Argument | None, given: Backward) -> Reach:
    """Of operators that move or add: the sum of what came back."""
    came = max((g.size for g in given.gradients), default=0.0)
    count = max((g.numbers for g in given.gradients), default=1) / max(result.numbers, 1)
    count = min(max(count, 1.0), MOST_SUMMANDS)
    coherent = result.norm / came if came else 0.0
    factor = (
        largest_factor(given.plain) if operator.kind == "adds" and own is not None and own.position else 1.0
    )
    # Where numbers may be taken several times, as rows of an embedding are, up to all may be added for one.
    rows = 1.0
    if operator.may_repeat and own is not None and given.gradients:
        rows = given.gradients[0].numbers / row_of([own])
    # Errors that have one cause may have one sign in all summands.
    gains = _gains(given, lambda each: factor * math.sqrt(count) if _is_gradient(each, given) else 0.0)
    typical = _gains(given, lambda each: max(factor, coherent) if _is_gradient(each, given) else 0.0)
    return Reach(
        min(max(count, rows), MOST_SUMMANDS),
        max(result.norm, came),
        gains,
        scalings=_by_gradient(given) if count == 1 and len(given.gradients) == 1 else (),
        flips=FLIP_SHARE if operator.decides else 0.0,
        typical=typical,
        is_exact=operator.kind == "moves" and count == 1 and not operator.may_repeat,
        is_part=any(gradient.numbers != result.numbers for gradient in given.gradients),
    )


def _back_sums(operator: Operator, result: Difference, own: Argument | None, given: Backward) -> Reach:
    gains = _gains(
        given, lambda each: result.norm / each.size if each.size and _is_gradient(each, given) else 0.0
    )
    return Reach(1, result.norm, gains, scalings=_by_gradient(given))


def _by_gradient(given: Backward) -> tuple[Scaling, ...]:
    """In proportion to the one gradient that came back, and not to anything else."""
    if len(given.gradients) != 1:
        return ()
    return EXACT, *(UNUSED for _ in given.all[1:])


def _back_multiplies(operator: Operator, result: Difference, own: Argument | None, given: Backward) -> Reach:
    factors, added = factors_of(operator, given.arguments)
    if own is None or not given.gradients or len(factors) < 2:
        return _back_powers(operator, result, own, given)
    gradient = given.gradients[0]
    if any(own is each for each in added):
        return _back_linear(operator._replace(kind="moves", decides=False), result, own, given)
    other = factors[1] if own is factors[0] else factors[0]
    forward = given.results[0].value if given.results else gradient.value
    count = products_of(operator, forward, *factors) * gradient.numbers / own.numbers
    count = min(max(count, 1.0), MOST_SUMMANDS)
    size = max(math.sqrt(count) * gradient.rms * other.rms * math.sqrt(own.numbers), result.norm)
    gains = _gains(
        given, lambda each: size / each.size if each.size and (each is gradient or each is other) else 0.0
    )
    scalings = tuple(EXACT if each is gradient or each is other else UNUSED for each in given.all)
    return Reach(count, size, gains, scalings=scalings if len(given.gradients) == 1 else ())


def _back_smooth(operator: Operator, result: Difference, own: Argument | None, given: Backward) -> Reach:
    if not given.gradients:
        return _back_unknown(operator, result, own, given)
    gradient = given.gradients[0]
    coherent = result.norm / gradient.size if gradient.size else 0.0
    size, slope = result.norm, max(operator.slope, coherent)
    if operator.row_total == "numbers":
        slope = max(min(1.0, given.results[0].value.peak) if given.results else 1.0, coherent)
        size = slope * gradient.size
    elif operator.row_total == "exponentials":
        size = 2 * gradient.size

    def gain(each: Argument) -> float:
        if each is gradient:
            return slope
        if operator.row_total == "numbers":
            return 2 * size / each.size if each.size and any(each is r for r in given.results) else 0.0
        if any(each is a for a in given.arguments) and not operator.decides:
            return (
                2 * gradient.size / math.sqrt(each.numbers)
            )  # the curvature, at most about 1, times the error
        return 0.0

    flips = FLIP_SHARE if operator.decides else 0.0
    curved = UNUSED if operator.decides else CURVED  # a slope that jumps does not grow with the argument
    scalings = tuple(EXACT if each is gradient else curved if gain(each) else UNUSED for each in given.all)
    typical = tuple(
        result.norm / each.size if each.size and each is gradient else gain(each) / 4 for each in given.all
    )
    return Reach(
        row_of(given.all),
        max(size, result.norm),
        _gains(given, gain),
        bends=1.0,
        flips=flips,
        scalings=scalings if len(given.gradients) == 1 else (),
        typical=typical,
    )


def _back_powers(operator: Operator, result: Difference, own: Argument | None, given: Backward) -> Reach:
    gains = in_proportion(result, given.all, 2.0)
    return Reach(row_of(given.all), result.norm, gains, bends=2.0, typical=in_proportion(result, given.all))


def _back_normalises(operator: Operator, result: Difference, own: Argument | None, given: Backward) -> Reach:
    if own is None or not given.gradients:
        return _back_unknown(operator, result, own, given)
    gradient = given.gradients[0]
    count = gradient.numbers / own.numbers
    if count >= 2:  # a weight or a bias: a sum over rows
        size = max(gradient.size, result.norm)
        gains = _gains(given, lambda each: 2 * size / each.size if each.size else 0.0)
        typical = tuple(gain / 2 for gain in gains)
        scalings = _by_gradient(given)  # what was normalised does not grow with the input
        return Reach(min(count, MOST_SUMMANDS), size, gains, bends=1.0, scalings=scalings, typical=typical)
    gains, typical = in_proportion(result, given.all, 4.0), in_proportion(result, given.all)
    return Reach(
        row_of(given.all),
        4 * result.norm,
        gains,
        bends=2.0,
        scalings=_by_spread(own, given),
        typical=typical,
    )


def _by_spread(own: Argument, given: Backward) -> tuple[Scaling, ...]:
    """In proportion to the gradient and the weight, and divided by the spread of the input."""
    if len(given.gradients) != 1:
        return ()
    of_input = Scaling(-0.5, 0.5 + UNEVEN)  # not at all if its mean is another, which has no effect
    others = [each for each in given.arguments if each is not own]
    # Weight and bias; where there are more, running statistics are among them, which may be used or not.
    of_others = [EXACT, UNUSED][: len(others)] if len(others) <= 2 else [CURVED] * len(others)
    waiting = iter(of_others)
    of_arguments = [of_input if each is own else next(waiting) for each in given.arguments]
    return EXACT, *of_arguments, *(UNUSED for _ in given.results)


def _back_attends(operator: Operator, result: Difference, own: Argument | None, given: Backward) -> Reach:
    """The measured gain of a relative error was at most 0.7; differences within a row may make it more.

    The gradient of a query or a key is a sum over keys in which the mean over all keys is taken off: of few
    keys little is left, of one nothing but rounding.
    """
    gains, typical = in_proportion(result, given.all, 2.0), in_proportion(result, given.all)
    size, inner = 4 * result.norm, 0.0
    if own is not None and own.position < 2 and len(given.arguments) > 2 and given.gradients:
        query, key, values = given.arguments[:3]
        other = key if own is query else query
        summand = 2 * given.gradients[0].rms * values.rms * other.rms * math.sqrt(own.numbers)
        keys = key.shape[-2] if len(key.shape) > 1 else 1
        size, inner = max(size, summand), summand / math.sqrt(max(keys, 1))
    return Reach(row_of(given.all), size, gains, bends=2.0, typical=typical, inner=inner)


def _back_loss(operator: Operator, result: Difference, own: Argument | None, given: Backward) -> Reach:
    """The gradient of a mean or sum over rows: a function of each row, times the gradient of a row.

    The norm of a probability less its target is at most sqrt(2) in a row.
    """
    if not given.gradients or not given.arguments or own is None:
        return _back_unknown(operator, result, own, given)
    gradient = given.gradients[0]
    rows = own.numbers if operator.is_pointwise or len(own.shape) < 2 else own.numbers / max(own.shape[-1], 1)
    per_row = gradient.rms
    if gradient.numbers == 1:  # a mean, unless the result is larger than one can be
        sizes = 2 * max(a.size for a in given.arguments)
        largest = math.sqrt(2 * rows) if operator.bounds_gradient else sizes
        if result.norm <= 1.1 * per_row / rows * largest:
            per_row /= rows
    size = max(result.norm, per_row * math.sqrt(rows))

    def gain(each: Argument) -> float:
        if each is gradient:
            return result.norm / each.size if each.size else 0.0
        if any(each is a for a in given.arguments):
            return operator.gradient_slope * per_row * math.sqrt(max(1.0, own.numbers / each.numbers))
        return 0.0

    return Reach(row_of(given.all), size, _gains(given, gain), bends=1.0)


def _back_unknown(operator: Operator, result: Difference, own: Argument | None, given: Backward) -> Reach:
    size = result.norm
    gains, typical = in_proportion(result, given.all, UNKNOWN_GAIN), in_proportion(result, given.all, 1.5)
    steps = steps_of(operator, given.arguments)
    scalings: tuple[Scaling, ...] = ()
    if len(given.gradients) == 1:  # whatever the operator does, its derivative is linear in the gradient
        scalings = EXACT, *(UNKNOWN_CURVED for _ in given.all[1:])
    return Reach(row_of(given.all), size, gains, bends=4.0, scalings=scalings, typical=typical, steps=steps)


_BackRule = Callable[[Operator, Difference, "Argument | None", Backward], Reach]
_BACKWARD: dict[str, _BackRule] = {
    "moves": _back_linear,
    "adds": _back_linear,
    "sums": _back_sums,
    "multiplies": _back_multiplies,
    "smooth": _back_smooth,
    "powers": _back_powers,
    "exponential": _back_powers,
    "logarithm": _back_powers,
    "normalises": _back_normalises,
    "attends": _back_attends,
}
