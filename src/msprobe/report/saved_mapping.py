"""Which place was compared with which, as a file that can be edited and given back with -dm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from msprobe.pairing.match import NOWHERE, Pair, places, slot_of
from msprobe.pairing.roles import other_slot
from msprobe.record import Record
from msprobe.store.layout import write_whole

_PLAIN = re.compile(r"[A-Za-z_][\w.]*|N/A", re.ASCII)


class Mapped(NamedTuple):
    """A call or a place and its counterpart, as a line of a data mapping; a note stands above it."""

    target: str
    golden: str
    note: str = ""


def mapped_places(pairs: Iterable[Pair]) -> Iterator[Mapped]:
    """All places of the target, each for itself, as release 8.3.3 writes them."""
    for pair in pairs:
        if pair.target is not None:
            yield Mapped(pair.target.name, NOWHERE if pair.golden is None else pair.golden.name)


def mapped_calls(pairs: Sequence[Pair]) -> Iterator[Mapped]:
    """What pairs the same as these do: call by call, and the places that do not follow from that."""
    known = [pair for pair in pairs if pair.target is not None]
    owners: dict[int, set[int]] = {}  # of each golden call: the target's calls that have a place of it
    for pair in known:
        if pair.target is not None and pair.golden is not None:
            owners.setdefault(id(pair.golden.record), set()).add(id(pair.target.record))
    for _, group in groupby(known, key=lambda pair: id(pair.place.record)):
        call = list(group)
        others = {id(pair.golden.record): pair.golden.record for pair in call if pair.golden is not None}
        whole = len(others) == 1 and all(len(owners[other]) == 1 for other in others)
        yield from _call(call, next(iter(others.values())) if whole else None)


def _call(call: Sequence[Pair], golden: Record | None) -> Iterator[Mapped]:
    target = call[0].place.record
    certainty = next((pair.certainty for pair in call if pair.certainty is not None), None)
    note = f"{100 * certainty.share:.0f} % sure: {certainty.why}" if certainty is not None else ""
    lines = [line for pair in call for line in _place(pair, golden)]
    if str(target.name) not in (line.target for line in lines):  # a saved variable is its own place
        lines.insert(0, Mapped(str(target.name), NOWHERE if golden is None else str(golden.name)))
    yield lines[0]._replace(note=note)
    yield from lines[1:]


def _place(pair: Pair, golden: Record | None) -> Iterator[Mapped]:
    """A place that is not paired as it would be if only its call were named."""
    assert pair.target is not None
    slot = slot_of(pair.target)
    there = {slot_of(place): place.name for place in places(golden)} if golden is not None else {}
    expected = there.get(slot) or there.get(other_slot(slot) or "")
    found = None if pair.golden is None else pair.golden.name
    if found != expected or (found is not None and slot not in there):
        yield Mapped(pair.target.name, found or NOWHERE)


def write_data_mapping(path: Path, lines: Iterable[Mapped]) -> None:
    """A file for -dm; of a name that comes several times the first counts."""
    chosen: dict[str, Mapped] = {}
    for line in lines:
        chosen.setdefault(line.target, line)
    write_whole(path, (text.encode() for text in _texts(chosen.values())))


def _texts(lines: Iterable[Mapped]) -> Iterator[str]:
    yield "# Target: golden run. To be edited at will, and given to `msprobe compare` with -dm.\n"
    for line in lines:
        if line.note:
            yield f"# {line.note}\n"
        yield f"{_written(line.target)}: {_written(line.golden)}\n"


def _written(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)
