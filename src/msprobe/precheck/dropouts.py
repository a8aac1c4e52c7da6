"""Dropout: which numbers it drops is chance; those it keeps are x / (1 - p), and p says how many they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from msprobe.analyse.accuracy import values_of
from msprobe.metrics.rounding import CANNOT_TELL, ERROR, Judged
from msprobe.operators import Operator
from msprobe.precheck.arguments import Arguments, Input
from msprobe.precheck.run import Ran
from msprobe.store.dtypes import Array, TensorData, as_float

JUDGED = ("numbers", "channels")  # what a dropout may drop to be judged: those that set it to zero
_DEFAULT = 0.5
_DEVIATIONS = 6.0  # by which a share of a random choice may differ from its probability: once in 10^9 times
NOT_JUDGED = Judged(None, None, None, CANNOT_TELL, "Not judged: it draws random numbers.")


def probability(arguments: Arguments) -> float | None:
    """The probability with which a call of a dropout drops; None if it was not recorded."""
    p = arguments.kwargs.get("p", arguments.args[1] if len(arguments.args) > 1 else _DEFAULT)
    return float(p) if isinstance(p, (int, float)) and not isinstance(p, bool) and 0 <= p <= 1 else None


def expected(arguments: Arguments, given: Sequence[Input | None] | None, ours: Ran) -> Ran | None:
    """What a dropout gives if it drops what it has dropped; None if that cannot be told."""
    p = probability(arguments)
    if p is None or not arguments.inputs or not ours.outputs:
        return None
    x, y = _floats(arguments.inputs[0].data), _floats(ours.outputs[0])
    if x.shape != y.shape:
        return None
    factor = 1 / (1 - p) if p < 1 else 0.0
    if _is_switched_off(x, y):
        factor = 1.0
    kept = y != 0
    outputs = [_data(np.where(kept, x * factor, 0.0))]
    outputs += [_mask(kept, x, other) for other in ours.outputs[1:]]
    gradients: tuple[TensorData | None, ...] = ()
    gradient = given[0] if given else None
    found = ours.gradients[0] if ours.gradients else None
    if gradient is not None and found is not None and found.shape == x.shape:
        known = np.where(x != 0, kept, _floats(found) != 0)  # a zero says nothing of whether it was kept
        back = _data(np.where(known, _floats(gradient.data) * factor, 0.0))
        gradients = (back, *(None for _ in ours.gradients[1:]))
    return Ran(tuple(outputs), gradients)


def _is_switched_off(x: Array, y: Array) -> bool:
    """Whether a recording was made with rm_dropout, which makes every dropout give its input."""
    return bool(np.array_equal(x, y, equal_nan=True))


def judge_share(operator: Operator, arguments: Arguments, ours: Ran) -> Judged | None:
    """The verdict on how many numbers were dropped, if it is not as many as p says."""
    p = probability(arguments)
    if p is None:
        return NOT_JUDGED
    x, y = _floats(arguments.inputs[0].data), _floats(ours.outputs[0])
    if _is_switched_off(x, y):
        return None
    dropped, possible = (x != 0) & (y == 0), x != 0
    if operator.drops == "channels" and x.ndim > 2:
        inner = tuple(range(2, x.ndim))
        dropped, possible = ~((x != 0) & (y != 0)).any(axis=inner), possible.any(axis=inner)
        dropped &= possible
    count = int(np.count_nonzero(possible))
    if not count:
        return None
    share = int(np.count_nonzero(dropped)) / count
    most = _DEVIATIONS * math.sqrt(p * (1 - p) / count) + 1 / count
    if abs(share - p) <= most:
        return None
    return Judged(None, None, None, ERROR, f"It drops {share:.2%} of the numbers, and p is {p:g}.")


def _floats(data: TensorData) -> Array:
    return as_float(*values_of(data)).astype(np.float64).reshape(data.shape)


def _data(array: Array) -> TensorData:
    return TensorData(array.tobytes(), array.dtype.name, array.shape)


def _mask(kept: Array, x: Array, recorded: TensorData) -> TensorData:
    """The mask that goes with the output; where a number is zero anyway, as it was recorded."""
    mask = np.where(x != 0, kept, _floats(recorded) != 0) if recorded.shape == x.shape else kept
    return _data(mask)
