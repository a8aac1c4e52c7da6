"""Of two sequences of calls those that may belong together: not all with all, where there are very many."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msprobe.kernels import Statistics
from msprobe.pairing.chain import Candidate
from msprobe.pairing.likeness import (
    SAME_VALUES,
    Likeness,
    Node,
    agree,
    norm_of,
    role_of,
    same_weights,
)
from msprobe.pairing.match import Place

_MOST = 12  # calls that one call is compared with by its place, as many by its values, and by its weights


def candidates(
    ours: Sequence[Node], theirs: Sequence[Node], alike: Callable[[Node, Node], Likeness | None]
) -> Iterator[Candidate]:
    """Pairs that look alike, by the order of ours; of very many the nearest."""
    there: dict[str, _Bucket] = {}
    for number, each in enumerate(theirs):
        there.setdefault(_bucket(each), _Bucket([], [])).numbers.append(number)
    for bucket in there.values():
        bucket.values.extend(sorted((_result_size(theirs[number]), number) for number in bucket.numbers))
    for number, each in enumerate(ours):
        middle = number * len(theirs) / len(ours)
        for other in _nearest(there.get(_bucket(each)), middle, _result_size(each)):
            likeness = alike(each, theirs[other])
            if likeness is not None:
                aside = abs(other - middle) / len(theirs)  # of equals the nearest
                yield Candidate(number, other, likeness._replace(weight=likeness.weight - 0.01 * aside))


def _bucket(each: Node) -> str:
    if not each.name.is_module:
        return f"call {each.concept}"
    return "module of the user" if each.is_user_class else f"module {each.concept}"


class _Bucket(NamedTuple):
    """Calls that may be one: by their place, and by the size of their results."""

    numbers: list[int]
    values: list[tuple[float, int]]


def _result_size(each: Node) -> float:
    """The size of a call's first result; 0 where it is not known."""
    norm = norm_of(each.outputs[0]) if each.outputs else 0.0
    return norm if math.isfinite(norm) else 0.0


def _nearest(bucket: _Bucket | None, middle: float, norm: float) -> Iterable[int]:
    if bucket is None:
        return ()
    if len(bucket.numbers) <= 2 * _MOST:
        return bucket.numbers
    by_place = bucket.numbers[_around(bisect.bisect_left(bucket.numbers, middle), len(bucket.numbers))]
    by_value = bucket.values[_around(bisect.bisect_left(bucket.values, (norm, -1)), len(bucket.values))]
    return sorted({*by_place, *(number for _, number in by_value)})


def _around(place: int, count: int) -> slice:
    first = min(max(place - _MOST // 2, 0), count - _MOST)
    return slice(first, first + _MOST)


# ---- calls at another place ----


def in_order(
    ours: Sequence[Node], theirs: Sequence[Node], told: Callable[[Node], Hashable]
) -> Iterator[tuple[Node, Node]]:
    """The calls of which one thing is told, if both sides have as many; None tells nothing."""
    here, there = _grouped(ours, told), _grouped(theirs, told)
    for key, calls in here.items():
        if key is not None and len(calls) == len(there.get(key, ())):
            yield from zip(calls, there[key], strict=True)


def only_ones(ours: Sequence[Node], theirs: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """Pairs in which all values agree, with no other call; among those that do one thing on one shape.

    A net that runs several times on the same data has several of each: as many are paired in order.
    """
    there: dict[Hashable, list[list[Node]]] = defaultdict(list)
    for calls in _grouped(theirs, _values).values():
        there[kind(calls[0])].append(calls)
    for groups in there.values():
        groups.sort(key=_size_of_all)
    likely = [
        (calls, [others for others in _near(calls, there[kind(calls[0])]) if _agree(calls[0], others[0])])
        for calls in _grouped(ours, _values).values()
    ]
    taken = Counter(id(others) for _, found in likely for others in found)
    for calls, found in likely:
        if len(found) == 1 and taken[id(found[0])] == 1 and len(calls) == len(found[0]):
            yield from zip(calls, found[0], strict=True)


def kind(call: Node) -> Hashable:
    """What a call does on which shape; of modules also the how manyeth call it is."""
    is_module = call.name.is_module
    return is_module, call.concept, tuple(call.output_shape), call.name.count if is_module else None


def _grouped(calls: Iterable[Node], key: Callable[[Node], Hashable]) -> dict[Hashable, list[Node]]:
    found: dict[Hashable, list[Node]] = defaultdict(list)
    for call in calls:
        found[key(call)].append(call)
    return found


def _values(call: Node) -> Hashable:
    return kind(call), _described(call.inputs), _described(call.outputs)


def _described(places: Sequence[Place]) -> Hashable:
    return tuple((place.leaf.shape, place.leaf.stats) for place in places if place.leaf is not None)


def _near(calls: Sequence[Node], groups: Sequence[list[Node]]) -> Sequence[list[Node]]:
    """Of groups by the size of their results those that may have these values."""
    size, share = _size_of_all(calls), 2 * SAME_VALUES
    first = bisect.bisect_left(groups, size * (1 - share), key=_size_of_all)
    return groups[first : bisect.bisect_right(groups, size * (1 + share), key=_size_of_all)]


def _size_of_all(calls: Sequence[Node]) -> float:
    return _result_size(calls[0])


def _agree(ours: Node, theirs: Node) -> bool:
    same_shapes = ours.input_shapes == theirs.input_shapes
    return same_shapes and agree(ours.inputs, theirs.inputs) and agree(ours.outputs, theirs.outputs)


# ---- calls with the same weights ----


class Mark(NamedTuple):
    """Of a call with weights that both runs have: which, and how often it had the same inputs before."""

    weights: Hashable
    again: int


def marks(ours: Sequence[Node], theirs: Sequence[Node], golden: Mapping[str, str]) -> dict[int, Mark]:
    """By the ids of the calls; `golden` has the modules with the same parameters."""
    weights = _weights((*ours, *theirs))
    common = {weights.get(id(call)) for call in ours} & {weights.get(id(call)) for call in theirs}
    known: dict[int, Hashable] = {call: first for call, first in weights.items() if first in common}
    known.update(_by_names(ours, theirs))
    for side, names in ((ours, golden), (theirs, {owner: owner for owner in golden.values()})):
        found = ((id(call), _renamed(call.owners, names)) for call in side)
        known.update((call, owners) for call, owners in found if owners)
    return dict((*_counted(ours, known), *_counted(theirs, known)))


def _by_names(ours: Sequence[Node], theirs: Sequence[Node]) -> Iterator[tuple[int, Hashable]]:
    """The parameters that go into calls, by their recorded names, where both runs have these."""
    sides = [[(call, _names(call)) for call in side if not call.name.is_module] for side in (ours, theirs)]
    common = {names for _, names in sides[0]} & {names for _, names in sides[1]}
    return ((id(call), names) for side in sides for call, names in side if names and names in common)


def _names(call: Node) -> frozenset[str]:
    makers = (place.leaf.made_by for place in call.inputs if place.leaf is not None and place.leaf.made_by)
    return frozenset(maker for maker in makers if maker.startswith(("parameter:", "buffer:", "gradient:")))


def _renamed(owners: Iterable[str], names: Mapping[str, str]) -> frozenset[str]:
    return frozenset(names[owner] for owner in owners if owner in names)


def _weights(calls: Iterable[Node]) -> dict[int, int]:
    """Of each call that gets weights as arguments the first that gets the same, by their ids."""
    found: dict[int, int] = {}
    firsts: dict[str, list[Node]] = defaultdict(list)
    weighted = (call for call in calls if not call.name.is_module and same_weights(call, call))
    for call in sorted(weighted, key=_telling):
        nearest = reversed(firsts[call.concept][-_MOST:])
        first = next((other for other in nearest if same_weights(other, call)), call)
        if first is call:
            firsts[call.concept].append(call)
        found[id(call)] = id(first)
    return found


def _telling(call: Node) -> list[float]:
    """What only the same weights have in common: not the norm, which is nearly one for all of a shape."""
    leaves = (place.leaf for place in call.inputs[1:] if not role_of(place).startswith("running_"))
    stats = [leaf.stats for leaf in leaves if leaf is not None and isinstance(leaf.stats, Statistics)]
    numbers = (number for each in stats for number in (each.max, each.min, each.mean))
    return [number if number is not None and math.isfinite(number) else 0.0 for number in numbers]


def _counted(calls: Sequence[Node], known: Mapping[int, Hashable]) -> Iterator[tuple[int, Mark]]:
    seen: Counter[Hashable] = Counter()
    for call in calls:
        if id(call) in known:
            module = call.name.owner if call.name.is_module else None  # of two in each other both are first
            met = module, known[id(call)], _described(call.inputs)
            yield id(call), Mark(known[id(call)], seen[met])
            seen[met] += 1
