"""The calls of a recording as a tree: each with those that ran in it, in the order of execution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msprobe.errors import RecordingError
from msprobe.name import BACKWARD, FORWARD, CallName
from msprobe.pairing.likeness import Node, node
from msprobe.record import Recording

_MOST_DEPTH = 100

Call = tuple[str, int | None]  # owner and count


def tree(recording: Recording) -> tuple[Node, ...]:
    """The calls that no other one is around, each with those in it."""
    calls: dict[Call, str] = {}
    for side in (FORWARD, BACKWARD):  # backward where nothing else was recorded
        for key, record in recording.records.items():
            if record.name.direction == side:
                calls.setdefault(_call(record.name), key)
    parents = {call: _parent(recording.records[key].parent) for call, key in calls.items()}
    inside: dict[Call | None, list[Call]] = defaultdict(list)
    for call, around in parents.items():
        inside[around if around in calls and not _is_too_deep(call, parents) else None].append(call)

    def grown(call: Call) -> Node:
        return node(recording.records[calls[call]], tuple(map(grown, inside.pop(call, ()))))

    return tuple(map(grown, inside.pop(None, ())))


def all_in(nodes: Iterable[Node]) -> Iterator[Node]:
    """These calls and all that ran in them."""
    for each in nodes:
        yield each
        yield from all_in(each.children)


def _is_too_deep(call: Call, parents: Mapping[Call, Call | None]) -> bool:
    """Whether it lies in more modules than any model has: in itself, if the file is damaged."""
    around: Call | None = call
    for _ in range(_MOST_DEPTH):
        around = parents.get(around) if around is not None else None
    return around is not None


def _call(name: CallName) -> Call:
    return name.owner, name.count


def _parent(text: str | None) -> Call | None:
    if text is None:
        return None
    try:
        return _call(CallName.parse(text))
    except RecordingError:
        return None
