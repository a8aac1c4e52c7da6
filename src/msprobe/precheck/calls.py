"""Which recorded calls are checked, and the closed list of reasons why one is not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from msprobe.errors import RecordingError, UsageError
from msprobe.name import BACKWARD, FORWARD, CallName
from msprobe.operators import operator_of
from msprobe.record import Leaf, Record, Recording

_DISTRIBUTED = "Distributed"
_EXCEPTION = "exception"


class Skip(Enum):
    """Why a call, or its backward side, was not judged; the value is the sentence in the table."""

    LISTED = "API {} in black list or not in white list. SKIP."
    DISTRIBUTED = "It needs other processes."
    FAILED_WHEN_RECORDED = "The call failed when it was recorded."
    NO_INPUTS = "Its inputs were not recorded."
    NOT_SENT = "It gave no tensor, or not all of its tensors were sent."
    NOT_KEPT = "The call that these gradients belong to was not sent, or is not kept any more."
    UNKNOWN = "This PyTorch has no such API, or it is none that msprobe records."
    NOT_FINITE = "The recorded maximum or minimum of an input is inf or nan, so that none can be generated."
    NO_STATISTICS = "An input has neither contents nor a maximum and minimum in the recording."
    UNREADABLE = "A tensor file of the recording cannot be read."
    LOST_ARGUMENT = "An argument was not recorded in a way that it can be made again."
    UNINITIALISED = "Its result is memory that nobody has written to."
    RANDOM = "It draws random numbers."
    CHOOSES = "It chooses among numbers that may be equal."
    NO_NUMBERS = "It gives no numbers."
    NO_CONTENTS = "The contents of its tensors were not recorded."
    FIXED_DTYPE = "Its result has a dtype of its own, so that it cannot be computed in float64."
    OTHER_GRADIENTS = "The recorded gradients are not those of its inputs."
    OTHER_OUTPUTS = "Called again it gives other outputs than were recorded."
    NO_STANDARD = "There is no standard for results of this dtype."
    GRADIENT_UNLIKE = "The recorded gradient does not fit its output."
    NO_GRAPH = "Called again it gives nothing that could be differentiated."
    CHECKED_FAILED = "The call failed on the checked side."
    REFERENCE_FAILED = "The call failed in the precision of the reference."
    NO_MEMORY = "There was not enough memory for it."
    CRASHED = "It ended its process."
    OURS = "msprobe itself failed at it; please report this."
    HUNG = "It gave no answer in time, and its process was ended."

    def of(self, detail: object = "") -> str:
        """The sentence, with what is known beyond it."""
        sentence = str(self.value)
        if self is Skip.LISTED:
            return sentence.format(detail)
        text = " ".join(str(detail).split())[:400]
        return f"{sentence} {text}" if text else sentence


class Skipped(Exception):
    """A call cannot be judged, for one of the reasons."""

    def __init__(self, reason: Skip, detail: object = "") -> None:
        super().__init__(reason.of(detail))
        self.reason = reason


def reason_for(error: Exception) -> str:
    """Why a call was not judged, by what was raised on the way."""
    if isinstance(error, Skipped):
        return str(error)
    if isinstance(error, MemoryError):
        return Skip.NO_MEMORY.of(error)
    return Skip.OURS.of(f"{type(error).__name__}: {error}")


class Call(NamedTuple):
    """One recorded call of an API, both sides."""

    name: CallName
    forward: Record
    backward: Record | None = None
    has_backward: bool = False  # gradients were recorded, or can be generated where none were

    @property
    def text(self) -> str:
        """`Functional.linear.0`."""
        return self.name.call


class Lists(NamedTuple):
    """white_list and black_list of the configuration."""

    white: tuple[str, ...] = ()
    black: tuple[str, ...] = ()

    def leave_out(self, api: str) -> bool:
        return api in self.black or bool(self.white and api not in self.white)

    def must_be_known(self, apis: Iterable[str]) -> None:
        known = set(apis)
        for key, names in (("white_list", self.white), ("black_list", self.black)):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise UsageError(
                    f"Invalid api in {key}: {unknown}. Name APIs as in dump.json, without prefix and number, "
                    "such as conv2d for Functional.conv2d.0.forward."
                )


def calls_of(recording: Recording) -> list[Call]:
    """The calls of APIs, in the order of the recording; modules are made of them."""
    records = recording.records
    any_backward = any(
        record.name.direction == BACKWARD and not record.name.is_module for record in records.values()
    )
    found = []
    for record in records.values():
        if record.name.direction == FORWARD and not record.name.is_module:
            backward = records.get(str(record.name.facing(BACKWARD)))
            found.append(Call(record.name, record, backward, backward is not None or not any_backward))
    if not found:
        why = "only gradients, of calls that are not in it" if any_backward else "no calls of APIs"
        raise RecordingError(
            f"{recording.folder} holds {why}, and what is checked are calls; record at level L1 or mix."
        )
    return found


def reason_to_skip(call: Call, lists: Lists) -> str | None:
    """What can be told from the record alone."""
    api = call.name.api
    if lists.leave_out(api):
        return Skip.LISTED.of(api)
    if call.name.prefix == _DISTRIBUTED:
        return Skip.DISTRIBUTED.of()
    if _EXCEPTION in call.forward.fields:
        return Skip.FAILED_WHEN_RECORDED.of(call.forward.fields[_EXCEPTION])
    if "input_args" not in call.forward.fields:
        return Skip.NO_INPUTS.of()
    return Skip.UNINITIALISED.of() if operator_of(call.name).is_undefined else None


def without_repeats(calls: Sequence[Call]) -> list[Call]:
    """The first of the calls that differ in nothing but the values of their tensors."""
    first: dict[str, Call] = {}
    for call in calls:
        fields = call.forward.fields
        told = [call.name.owner, _outline(fields.get("input_args")), _outline(fields.get("input_kwargs"))]
        first.setdefault(json.dumps(told, default=str), call)
    return list(first.values())


def _outline(tree: Any) -> Any:
    if isinstance(tree, Leaf):
        if tree.is_tensor:
            return [tree.type, tree.dtype, tree.shape, tree.requires_grad]
        return [tree.type, tree.value, tree.extra]
    if isinstance(tree, dict):
        return {key: _outline(item) for key, item in tree.items()}
    return [_outline(item) for item in tree] if isinstance(tree, list) else tree
