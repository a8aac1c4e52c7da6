"""How record names are written; no other module splits or joins one.

Functional.linear.0.forward            a call: prefix, API, call count, direction
Module.blocks.0.ln.LayerNorm.forward.0 a module: the count stands behind the direction
Module.head.Linear.parameters_grad     the gradients of a module's parameters (26.2.0 appends a count)
loss.0.debug                           a variable saved at level debug
Functional.linear.0.forward.input.1    a slot: one of the places of a record where a leaf was seen
step0/Functional.linear.0.forward.output.0    a slot of the recording of an earlier step
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Literal, NamedTuple

from msprobe.errors import RecordingError

Direction = Literal["forward", "backward", "parameters_grad", "debug"]

FORWARD: Direction = "forward"
BACKWARD: Direction = "backward"
PARAMETERS_GRAD: Direction = "parameters_grad"
DEBUG: Direction = "debug"

MODULE_PREFIXES = frozenset({"Module", "Cell"})
_MODULE_STARTS = tuple(f"{prefix}." for prefix in MODULE_PREFIXES)

_DIRECTIONS = (FORWARD, BACKWARD, PARAMETERS_GRAD, DEBUG)
_COUNT = re.compile("0|[1-9][0-9]{0,17}")
_OF_EARLIER_STEP = re.compile(r"step([0-9]+)/")


class CallName(NamedTuple):
    """Which call, and which side of it: `str(name)` is the key in dump.json."""

    owner: str  # "Functional.linear", "Module.blocks.0.ln.LayerNorm", or the name given to save()
    direction: Direction
    count: int | None  # type: ignore[assignment]  # a tuple has a method of this name

    @property
    def prefix(self) -> str:
        return self.owner.partition(".")[0]

    @property
    def api(self) -> str:
        """What was called, without its prefix: `linear`, `linalg.norm`, `blocks.0.ln.LayerNorm`."""
        return self.owner.partition(".")[2]

    @property
    def path(self) -> tuple[str, ...]:
        """Where a module stands: ("blocks", "0", "ln"); its class is not part of it."""
        return tuple(self.api.split(".")[:-1])

    @property
    def kind(self) -> str:
        """The class of a module: `LayerNorm`."""
        return self.api.rpartition(".")[2]

    @property
    def is_module(self) -> bool:
        owner = self.owner  # its prefix is not cut out: this is asked some dozen times for every call
        return (owner.startswith(_MODULE_STARTS) or owner in MODULE_PREFIXES) and self.direction != DEBUG

    @property
    def call(self) -> str:
        """Which call, whatever side of it is looked at: `Torch.matmul.0`."""
        return f"{self.owner}.{self.count}"

    def facing(self, direction: Direction) -> CallName:
        """The same call seen from another side."""
        return CallName(self.owner, direction, None if direction == PARAMETERS_GRAD else self.count)

    def __str__(self) -> str:
        owner, direction, count = self
        if count is None:
            return f"{owner}.{direction}"
        if self.is_module or direction == PARAMETERS_GRAD:
            return f"{owner}.{direction}.{count}"
        return f"{owner}.{count}.{direction}"

    @classmethod
    def parse(cls, text: str) -> CallName:
        """The name that `text` writes: `str()` of it gives the same text again."""
        rest, _, last = text.rpartition(".")
        owner, _, middle = rest.rpartition(".")
        if rest and last == PARAMETERS_GRAD:
            return cls(rest, PARAMETERS_GRAD, None)
        for direction in _DIRECTIONS:
            count = middle if last == direction else last if middle == direction else ""
            if owner and _COUNT.fullmatch(count):
                name = cls(owner, direction, int(count))
                if str(name) == text:
                    return name
        raise RecordingError(
            f"'{text}' is not a record name; expected a form such as Torch.matmul.0.forward or "
            "Module.head.Linear.forward.0."
        )

    @classmethod
    def parse_variable(cls, text: str) -> CallName:
        """The name of a variable in debug.json: `loss.0.debug`, or `loss.0` as release 1.2.2 wrote it."""
        owner, _, count = text.removesuffix(f".{DEBUG}").rpartition(".")
        if not owner or not _COUNT.fullmatch(count):
            raise RecordingError(f"'{text}' is not the name of a saved variable, such as loss.0.debug.")
        return cls(owner, DEBUG, int(count))


def is_forward(record: str) -> bool:
    """Whether a record is a forward one: `Torch.relu.0.forward`, `Module.head.Linear.forward.0`."""
    return FORWARD in record.rsplit(".", 2)[1:]


def call_owner(prefix: str, api: str) -> str:
    return f"{prefix}.{api}"


def module_owner(path: str, class_name: str, *, prefix: str = "Module", index: int | None = None) -> str:
    """The owner of a module's records; `index` is its model's place when a list of models was given."""
    middle = f".{index}" if index is not None else ""
    return f"{prefix}{middle}.{path}.{class_name}" if path else f"{prefix}{middle}.{class_name}"


def call_of(place: str) -> str:
    """The call of an API that a place belongs to: what stands before its last direction."""
    return max((place.rpartition(f".{side}.")[0] for side in (FORWARD, BACKWARD)), key=len)


def outer(name: str) -> str:
    """A dotted name without its last part: the module around one, or a module without its class."""
    return name.rpartition(".")[0]


def record_and_slot(place: str, records: Container[str]) -> tuple[str, str] | None:
    """The record and the slot that slot_name() joined, if it is one of these records."""
    end = place.find(".")
    while end >= 0:
        if place[:end] in records:
            return place[:end], place[end + 1 :]
        end = place.find(".", end + 1)
    return None


def in_step(place: str, step: int) -> str:
    """Return the name of a slot in later steps, such as `step0/Torch.relu.0.forward.output.0`."""
    return f"step{step}/{place}"


def earlier_step(place: str) -> int | None:
    """Return the step that in_step() has put before a name; None where it has not."""
    found = _OF_EARLIER_STEP.match(place)
    return None if found is None else int(found[1])


def slot_name(record: str, slot: str) -> str:
    """The full name of a place in a record; a tensor file is called so, with its suffix."""
    return f"{record}.{slot}" if slot else record
