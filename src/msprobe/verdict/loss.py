"""The loss of a recorded step: the scalar that backward() started from."""

from __future__ import annotations

from typing import NamedTuple

from msprobe.graph import Graph
from msprobe.name import BACKWARD, FORWARD
from msprobe.record import Leaf, Record, Recording, is_float, leaves


class Loss(NamedTuple):
    """The call that gave the loss, and its value."""

    name: str
    value: float


def loss_of(recording: Recording) -> Loss | None:
    """Return the loss, or None if no call or several may have given it.

    A loss is a scalar whose incoming gradient is 1. Of scalars that are handed on with this gradient only the
    last counts. If several remain, there were several backward passes, and nothing says what they add up to.
    """
    found = {
        str(record.name): value
        for record in recording.records.values()
        if (value := _loss_value(recording, record)) is not None
    }
    if not found:
        return None
    graph = Graph(recording)
    last = [
        name
        for name in found
        if not any(user in found and user != name for user, _ in graph.users(name, "output.0"))
    ]
    return Loss(last[0], found[last[0]]) if len(last) == 1 else None


def _loss_value(recording: Recording, record: Record) -> float | None:
    """The only output of a call, if it is a scalar with a gradient of 1."""
    if record.name.direction != FORWARD or record.name.is_module:
        return None
    value = _scalar(record.fields.get("output"))
    backward = recording.records.get(str(record.name.facing(BACKWARD))) if value is not None else None
    return value if backward is not None and _scalar(backward.fields.get("input")) == 1 else None


def _scalar(tree: object) -> float | None:
    """The value of a tree that holds one tensor without dimensions."""
    found: list[Leaf] = list(leaves(tree))  # type: ignore[arg-type]
    if len(found) != 1 or found[0].shape != () or not is_float(found[0].dtype):
        return None
    statistics = found[0].statistics
    return statistics.max if statistics is not None and isinstance(statistics.max, float) else None
