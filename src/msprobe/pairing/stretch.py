"""Stretch: calls of one run, or of both, that have no counterpart, seen as one step of the graph.

`bfloat16`, `matmul`, `float` in the target beside `matmul` in the golden run compute one value of the same
values. Which calls each run makes on the way says nothing; what goes in and what comes out can be compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msprobe.graph import Graph, Maker
from msprobe.graph_values import key_of
from msprobe.name import slot_name
from msprobe.pairing.likeness import SAME_VALUES, apart, shapes
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
    sources: dict[Key, list[Place]]  # where each goes in; of a parameter this may be several parts of it
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
            found.sources.setdefault((maker.kind, maker.name), []).append(place)
            return
        name = slot_name(str(self._records[maker.name].name), maker.slot)
        if name in self._paired:
            found.sources.setdefault(self._paired[name], []).append(place)
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
        _Behind(a.calls | b.calls, _all_of(a.sources, b.sources), {**b.unknown, **a.unknown})
        for a, b in ((one.ours, other.ours), (one.theirs, other.theirs))
    ]
    return _Part([*one.pairs, *other.pairs], *sides)


def _all_of(one: Mapping[Key, list[Place]], other: Mapping[Key, list[Place]]) -> dict[Key, list[Place]]:
    return {key: [*one.get(key, ()), *other.get(key, ())] for key in dict.fromkeys((*one, *other))}


def _stretch(part: _Part, made: Mapping[tuple[str, str], Pair], ours: _Side, theirs: _Side) -> Stretch:
    here, there = part.ours, part.theirs
    before: list[Pair] = []
    lone: list[Place] = []
    for key in dict.fromkeys((*here.sources, *there.sources)):
        given = here.sources.get(key, []), there.sources.get(key, [])
        if not all(given):
            lone += (given[0] or given[1])[:1]
        elif (pair := made.get(key) if isinstance(key, tuple) else None) is not None:
            before.append(pair)
        else:
            pairs, parts = _same_parts(*given)
            before += pairs
            lone += parts
    one_sided = (*lone, *here.unknown.values(), *there.unknown.values())
    return Stretch(
        ours.in_order(here.calls), theirs.in_order(there.calls), tuple(before), tuple(part.pairs), one_sided
    )


def _same_parts(ours: Sequence[Place], theirs: Sequence[Place]) -> tuple[list[Pair], list[Place]]:
    """Return the pairs of places that show the same of a parameter, and the places of other parts of it.

    A part is recorded by the name of the whole, so that two parts of one name are compared only if they look
    alike, or if each run uses a single one and both have one shape.
    """
    whole = [next((place for place in places if _is_whole(place)), None) for places in (ours, theirs)]
    if whole[0] is not None and whole[1] is not None:
        return [Pair(whole[0], whole[1])], []
    here, there = _by_content(ours), _by_content(theirs)
    pairs = [Pair(here.pop(key), there.pop(key)) for key in list(here) if key in there]
    left, right = list(here.values()), list(there.values())
    if not pairs and len(left) == len(right) == 1 and shapes(left) == shapes(right):
        return [Pair(left[0], right[0])], []
    near = sorted(
        (error, n, m)
        for n, place in enumerate(left)
        for m, other in enumerate(right)
        if (error := apart(place, other)) is not None and error <= SAME_VALUES
    )
    taken: tuple[set[int], set[int]] = set(), set()
    for _, n, m in near:
        if n not in taken[0] and m not in taken[1]:
            pairs.append(Pair(left[n], right[m]))
            taken[0].add(n)
            taken[1].add(m)
    lone = [place for n, place in enumerate(left) if n not in taken[0]]
    return pairs, lone + [place for m, place in enumerate(right) if m not in taken[1]]


def _is_whole(place: Place) -> bool:
    """Whether a place shows what its maker is named by, and not a view or part of that."""
    return place.leaf is not None and not (place.leaf.made_by or "").startswith("~")


def _by_content(found: Sequence[Place]) -> dict[Hashable, Place]:
    """The places by what tells their values from others, one of each."""
    by_content: dict[Hashable, Place] = {}
    for place in found:
        if place.leaf is not None:
            by_content.setdefault(key_of(place.leaf), place)
    return by_content
