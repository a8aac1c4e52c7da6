"""Stretch: calls of one run, or of both, that have no counterpart, seen as one step of the graph.

`bfloat16`, `matmul`, `float` in the target beside `matmul` in the golden run compute one value of the same
values. Which calls each run makes on the way says nothing; what goes in and what comes out can be compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msprobe.graph import Graph, Maker
from msprobe.name import slot_name
from msprobe.pairing.match import Pair, Place, places
from msprobe.record import Record, Recording


class Stretch(NamedTuple):
    """Calls without a counterpart that make the same values in both runs; one run may have no such call."""

    target_calls: tuple[str, ...]  # the names of the records, in the order of the recording
    golden_calls: tuple[str, ...]
    before: tuple[Pair, ...]  # results of paired calls, and parameters, that go into the calls of both runs
    behind: tuple[Pair, ...]  # arguments of paired calls, and results of modules, that these calls have made
    one_sided: tuple[Place, ...] = ()  # what goes into the calls of one run only, or is not known who made it

    @property
    def is_closed(self) -> bool:
        """Whether the same values go into the calls of both runs: then the same must come out."""
        return not self.one_sided


def stretches(
    pairs: Sequence[Pair], target: Recording, golden: Recording, graphs: tuple[Graph, Graph]
) -> list[Stretch]:
    """Return the stretches between paired calls, in the order in which what is behind them is used.

    `graphs` are those of the target and of the golden run.
    """
    both = [pair for pair in pairs if pair.target is not None and pair.golden is not None]
    if len(both) == len(pairs):
        return []
    made = {_names(pair): pair for pair in both if pair.place.side == "output"}
    ours = _Side(target, graphs[0], {here: (here, there) for here, there in made})
    theirs = _Side(golden, graphs[1], {there: (here, there) for here, there in made})
    found: list[_Part] = []
    for pair in both:
        if pair.target is not None and pair.golden is not None and _is_used(pair.place):
            part = _Part([pair], ours.behind(pair.target), theirs.behind(pair.golden))
            if part.ours.calls or part.theirs.calls:
                found.append(part)
    return [_stretch(part, made, ours, theirs) for part in _merged(found)]


def _is_used(place: Place) -> bool:
    """Whether a place shows what was made elsewhere: an argument, or the result of a module."""
    return place.side == "input" or (place.side == "output" and place.record.name.is_module)


Key = Hashable  # what a value is in both runs: the names of a pair of results, or the name of a parameter


class _Behind(NamedTuple):
    """What lies behind a value: calls without a counterpart, and what went into them."""

    calls: set[str]
    sources: dict[Key, Place]
    unknown: dict[str, Place]  # by name: inputs of the calls of which it is not known who made them


class _Part(NamedTuple):
    pairs: list[Pair]
    ours: _Behind
    theirs: _Behind


class _Side:
    """One run: its graph, and which of its results have a counterpart."""

    def __init__(self, recording: Recording, graph: Graph, paired: Mapping[str, tuple[str, str]]) -> None:
        self._records, self._graph, self._paired = recording.records, graph, paired
        self._numbers = {key: number for number, key in enumerate(recording.records)}
        self._keys = {str(record.name): key for key, record in recording.records.items()}

    def behind(self, place: Place) -> _Behind:
        """What made the value of an input, back to the results of paired calls."""
        found = _Behind(set(), {}, {})
        waiting = [place]
        while waiting:
            here = waiting.pop()
            key = self._keys[str(here.record.name)]
            makers = self._graph.makers(key, here.slot)
            if not makers and here is not place:
                found.unknown[here.name] = here
            for maker in makers:
                waiting += self._go_on(maker, here, found)
        return found

    def _go_on(self, maker: Maker, place: Place, found: _Behind) -> Iterator[Place]:
        """Note a source, or a call without a counterpart; yield the inputs of that.

        A call that gives out what went into it made nothing.
        """
        if maker.kind != "call":
            found.sources.setdefault((maker.kind, maker.name), place)
            return
        name = slot_name(str(self._records[maker.name].name), maker.slot)
        if name in self._paired:
            found.sources.setdefault(self._paired[name], place)
        elif (same := self._graph.handed_on(maker.name, maker.slot)) is not None:
            yield from (each for each in _tensors(self._records[maker.name]) if each.slot == same)
        elif maker.name not in found.calls:
            found.calls.add(maker.name)
            yield from _tensors(self._records[maker.name])

    def in_order(self, calls: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(calls, key=self._numbers.__getitem__))


def _tensors(record: Record) -> Iterator[Place]:
    """The tensors that go into a call; a plain number is no value of the graph."""
    for place in places(record):
        if place.side == "input" and place.leaf is not None and place.leaf.is_tensor:
            yield place


def _names(pair: Pair) -> tuple[str, str]:
    assert pair.target is not None and pair.golden is not None
    return pair.target.name, pair.golden.name


def _merged(parts: Sequence[_Part]) -> list[_Part]:
    """Parts that share a call are one."""
    merged: list[_Part] = []
    of_call: dict[tuple[bool, str], _Part] = {}
    for part in parts:
        calls = [(True, call) for call in part.ours.calls] + [(False, call) for call in part.theirs.calls]
        others = {id(of_call[call]): of_call[call] for call in calls if call in of_call}
        whole = part
        for other in others.values():
            whole = _joined(other, whole)
        merged = [each for each in merged if id(each) not in others] + [whole]
        of_call.update(dict.fromkeys(calls, whole))
        if others:
            known = (*((True, c) for c in whole.ours.calls), *((False, c) for c in whole.theirs.calls))
            of_call.update(dict.fromkeys(known, whole))
    return merged


def _joined(one: _Part, other: _Part) -> _Part:
    sides = [
        _Behind(a.calls | b.calls, {**b.sources, **a.sources}, {**b.unknown, **a.unknown})
        for a, b in ((one.ours, other.ours), (one.theirs, other.theirs))
    ]
    return _Part([*one.pairs, *other.pairs], *sides)


def _stretch(part: _Part, made: Mapping[tuple[str, str], Pair], ours: _Side, theirs: _Side) -> Stretch:
    here, there = part.ours, part.theirs
    common = [key for key in here.sources if key in there.sources]
    before = tuple(_before(key, here.sources[key], there.sources[key], made) for key in common)
    one_sided = [
        *(place for key, place in here.sources.items() if key not in there.sources),
        *(place for key, place in there.sources.items() if key not in here.sources),
        *here.unknown.values(),
        *there.unknown.values(),
    ]
    return Stretch(
        ours.in_order(here.calls), theirs.in_order(there.calls), before, tuple(part.pairs), tuple(one_sided)
    )


def _before(key: Key, ours: Place, theirs: Place, made: Mapping[tuple[str, str], Pair]) -> Pair:
    """The pair of results that a key names; of a parameter the places where it goes in."""
    known = made.get(key) if isinstance(key, tuple) else None
    return Pair(ours, theirs) if known is None else known
