"""Of a call that overflowed: is that normal, because it overflows in higher precision too?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from msprobe.analyse.accuracy import values_of
from msprobe.kernels import Statistics
from msprobe.precheck.arguments import Rebuilder
from msprobe.precheck.calls import Call, reason_for
from msprobe.precheck.work import Setup, reference_of
from msprobe.record import Leaf, Record, leaves
from msprobe.store.dtypes import TensorData, as_float

NORMAL, ABNORMAL = "normal", "abnormal"


class Overflow(NamedTuple):
    """What is known of one side of a call each: normal, abnormal, or nothing where it did not overflow."""

    forward: str = ""
    backward: str = ""
    reason: str = ""  # why it could not be found out


def overflows(call: Call) -> tuple[bool, bool]:
    """Whether the recorded outputs, and the recorded gradients of the inputs, hold NaN or infinity."""
    return not_finite(call.forward), call.backward is not None and not_finite(call.backward)


def not_finite(record: Record) -> bool:
    return any(_leaf_not_finite(leaf) for leaf in leaves(record.fields.get("output")))


def _leaf_not_finite(leaf: Leaf) -> bool:
    if not leaf.is_tensor:
        return isinstance(leaf.value, float) and not np.isfinite(leaf.value)
    if not isinstance(leaf.stats, Statistics):
        return False
    return any(isinstance(value, float) and not np.isfinite(value) for value in leaf.stats[:2])


def overflow_of(call: Call, setup: Setup, replay: Rebuilder) -> Overflow:
    forward, backward = overflows(call)
    try:
        reference = reference_of(call, setup, replay)
        if backward and reference.failed_back:
            return Overflow(reason=reference.failed_back)
        return Overflow(
            _word(reference.outputs) if forward else "",
            _word(gradient for gradient in reference.gradients if gradient is not None) if backward else "",
        )
    except Exception as error:  # noqa: BLE001 - one call must not cost the others
        return Overflow(reason=reason_for(error))


def _word(tensors: Iterable[TensorData]) -> str:
    return NORMAL if any(map(_overflowed, tensors)) else ABNORMAL


def _overflowed(tensor: TensorData) -> bool:
    values = values_of(tensor)
    return values.is_float and not bool(np.isfinite(as_float(*values)).all())
