"""What was seen in calls, as text: dtype, shape and statistics of each place, and where a call was made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msprobe.analyse.measure import values_of
from msprobe.name import slot_name
from msprobe.pairing.match import seen_in
from msprobe.record import Frame, Leaf, Record, Stack
from msprobe.screen import harmless


def named(record: Record) -> Iterator[tuple[str, Leaf | Stack]]:
    """Every place of a record under its name, and then its stack."""
    yield from ((slot_name(str(record.name), slot), leaf) for slot, leaf in seen_in(record))
    if record.stack is not None:
        yield str(record.name), record.stack


def shown(found: Iterable[tuple[str, Leaf | Stack]]) -> Iterator[str]:
    """The lines for what was seen under these names; a stack as Python shows one."""
    head = ["", "Statistic Info:"]
    for name, seen in found:
        if isinstance(seen, Stack):
            yield from ("", harmless(f"Trace back({name}):"))
            for frame in reversed(seen.frames):
                yield from map(harmless, Frame.parse(frame).in_traceback())
        else:
            yield from head
            yield harmless(f"  [{name}]{_described(seen)}")
            head = []


def _described(leaf: Leaf) -> str:
    dtype, shape = (leaf.dtype, list(leaf.shape or ())) if leaf.is_tensor else (f"<class '{leaf.type}'>", [])
    largest, least, mean, _ = values_of(leaf)
    numbers = f"[max: {largest}][min: {least}][mean: {mean}]"
    if not all(isinstance(value, (int, float)) for value in (largest, least, mean)):
        numbers = "" if leaf.value is None else f"[value: {leaf.value}]"
    return f"[dtype: {dtype}][shape: {shape}]{numbers}"
