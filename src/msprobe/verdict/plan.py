"""The next recording: a narrower configuration around a suspect, and how much disk it will take."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD, CallName
from msprobe.pairing.match import places
from msprobe.record import Recording, number_type
from msprobe.verdict.locate import Divergence

_BEFORE = 2  # calls that are recorded ahead of the suspect


class Plan(NamedTuple):
    """What to record next, as config.json says it."""

    config: dict[str, Any]
    size: int  # bytes of tensors, for each step and rank, at most


def plan(recording: Recording, suspect: Divergence) -> Plan:
    """Tensors of the suspect call, both ways, and of the calls just before it."""
    level = "L1" if recording.header.level == "L1" else "mix"
    names = _around(recording, suspect.place.record.name)
    config = {
        "task": "tensor",
        "dump_path": "./next_recording",
        "rank": [] if recording.rank is None else [recording.rank],
        "step": [] if recording.step is None else [recording.step],
        "level": level,
        "tensor": {"scope": [], "list": [str(name) for name in names], "data_mode": ["all"]},
    }
    return Plan(config, sum(_size(recording, name) for name in names))


def _around(recording: Recording, suspect: CallName) -> list[CallName]:
    forward = [record.name for record in recording.records.values() if record.name.direction == FORWARD]
    if suspect.direction == PARAMETERS_GRAD:
        same = [name for name in forward if name.owner == suspect.owner]
    else:
        same = [suspect.facing(FORWARD)]
    first = next((n for n, name in enumerate(forward) if name in same), 0)
    chosen = [*forward[max(0, first - _BEFORE) : first], *same]
    recorded = [name.facing(side) for name in chosen for side in (FORWARD, BACKWARD)]
    return list(dict.fromkeys([*recorded, *([suspect] if suspect.direction == FORWARD else [])]))


def _size(recording: Recording, name: CallName) -> int:
    record = recording.records.get(str(name))
    if record is None:
        return 0
    leaves = (place.leaf for place in places(record))
    return sum(leaf.elements * _bytes(leaf.dtype) for leaf in leaves if leaf and leaf.is_tensor)


def _bytes(dtype: str | None) -> int:
    """Of one element: float32 takes 4, complex64 takes 8, float8_e4m3fn and bool take 1."""
    bits = re.search("[0-9]{1,3}", number_type(dtype))
    return max(1, int(bits.group()) // 8) if bits else 1
