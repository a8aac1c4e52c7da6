"""Which calls of two frameworks belong together if no mapping says so: two models, from the top down."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msprobe.analyse.chain import Candidate, heaviest
from msprobe.analyse.likeness import (
    SAME_PARAMETERS,
    Anchors,
    Likeness,
    Node,
    agree,
    alike_apis,
    alike_modules,
    apart,
    dice,
    modules_in,
    node,
    norm_of,
    places_in_order,
    shapes,
)
from msprobe.analyse.match import Certainty, Rename
from msprobe.errors import RecordingError
from msprobe.name import BACKWARD, DEBUG, FORWARD, PARAMETERS_GRAD, CallName
from msprobe.record import Recording

_LACKING = "no call of the golden run looks like it"
_MOST_CANDIDATES = 12  # golden calls that one call is compared with by its place, and as many by its values
_MOST_DEPTH = 100
_MOST_OPENED = 20_000  # pairs of calls on one level that are searched for a module around all others
_BY_VALUES = Certainty(0.8, "they do the same, at another place, and all their values agree")
_BY_PARAMETERS = Certainty(0.95, "they have the same parameters, at another place")

Call = tuple[str, int | None]  # owner and count


def align(target: Recording, golden: Recording) -> Rename:
    """The pairs that are found, each with how sure it is."""
    walk = _Walk(tree(target), tree(golden))
    names: dict[str, str] = {}
    sure: dict[str, Certainty] = {}
    owners: dict[str, tuple[str, Certainty]] = {}
    for ours, theirs, certainty in walk.found:
        for side in (FORWARD, BACKWARD):
            a, b = str(ours.name.facing(side)), str(theirs.name.facing(side))
            if a in target.records and b in golden.records:
                names[a], sure[a] = b, certainty
        if ours.name.is_module:
            owners.setdefault(ours.name.owner, (theirs.name.owner, certainty))
    gradients = {
        r.name.owner: key for key, r in golden.records.items() if r.name.direction == PARAMETERS_GRAD
    }
    for key, record in target.records.items():
        owner, certainty = owners.get(record.name.owner, ("", _BY_VALUES))
        if record.name.direction == PARAMETERS_GRAD and owner in gradients:
            names[key], sure[key] = gradients[owner], certainty
        elif record.name.direction == DEBUG and key in golden.records:
            names[key], sure[key] = key, Certainty(1.0, "the variables were saved under one name")
    return Rename(
        names=MappingProxyType(names),
        slots=places_in_order,
        sure=MappingProxyType(sure),
        lacking=_LACKING,
    )


# ---- the calls of a recording, as a tree ----


def tree(recording: Recording) -> tuple[Node, ...]:
    """The calls that no other one is around, each with those in it; in the order of execution."""
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


# ---- modules with the same parameters ----


def anchored(ours: Sequence[Node], theirs: Sequence[Node]) -> dict[str, str]:
    """The modules of both sides that have the same parameters, which no others have."""
    here, there = _by_shapes(ours), _by_shapes(theirs)
    found: dict[str, str] = {}
    for kind, modules in here.items():
        others = sorted(there.get(kind, ()), key=_norm)
        norms = [_norm(other) for other in others]
        likely: dict[str, list[str]] = {}
        for module in modules:
            norm = _norm(module)
            first = bisect.bisect_left(norms, norm * (1 - 2 * SAME_PARAMETERS))
            last = bisect.bisect_right(norms, norm * (1 + 2 * SAME_PARAMETERS))
            same = [other.name.owner for other in others[first:last] if _same_parameters(module, other)]
            likely[module.name.owner] = same
        taken = Counter(owner for owners in likely.values() for owner in owners)
        found.update((a, b[0]) for a, b in likely.items() if len(b) == 1 and taken[b[0]] == 1)
    return found


def _by_shapes(nodes: Sequence[Node]) -> dict[tuple[str, ...], list[Node]]:
    found: dict[tuple[str, ...], list[Node]] = defaultdict(list)
    seen: set[str] = set()
    for each in _all(nodes):
        if each.parameters and each.name.owner not in seen:
            seen.add(each.name.owner)
            named = (f"{slot} {shapes([place])}" for slot, place in each.parameters.items())
            found[tuple(sorted(named))].append(each)
    return found


def _all(nodes: Iterable[Node]) -> Iterator[Node]:
    for each in nodes:
        yield each
        yield from _all(each.children)


def _norm(found: Node) -> float:
    norms = [getattr(place.leaf.stats, "norm", None) for place in found.parameters.values() if place.leaf]
    return sum(norm for norm in norms if isinstance(norm, (int, float)) and norm == norm)


def _same_parameters(ours: Node, theirs: Node) -> bool:
    errors = [apart(place, theirs.parameters[slot]) for slot, place in ours.parameters.items()]
    known = [error for error in errors if error is not None]
    return bool(known) and all(error <= SAME_PARAMETERS for error in known)


# ---- two models beside each other ----


class _Walk:
    """Goes down two trees at once; `found` are the pairs."""

    def __init__(self, ours: Sequence[Node], theirs: Sequence[Node]) -> None:
        self.found: list[tuple[Node, Node, Certainty]] = []
        self._paired: set[int] = set()
        golden = anchored(ours, theirs)
        self._anchors = Anchors(golden, frozenset(golden.values()))
        self._beside(ours, theirs)
        self._elsewhere(ours, theirs, self._have_same_parameters, _BY_PARAMETERS)
        self._elsewhere(ours, theirs, _have_same_values, _BY_VALUES)

    def _alike(self, ours: Node, theirs: Node) -> Likeness | None:
        if ours.name.is_module != theirs.name.is_module:
            return None
        return alike_modules(ours, theirs, self._anchors) if ours.name.is_module else alike_apis(ours, theirs)

    def _beside(self, ours: Sequence[Node], theirs: Sequence[Node]) -> None:
        """Pair the calls of one level, then those in each pair, then what lies between them unpaired."""
        ours, theirs = ([each for each in side if id(each) not in self._paired] for side in (ours, theirs))
        if not ours or not theirs:
            return
        ours, theirs = _opened(ours, theirs), _opened(theirs, ours)
        a = b = 0
        for match in heaviest(_candidates(ours, theirs, self._alike), len(theirs)):
            self._between(ours[a : match.ours], theirs[b : match.theirs])
            self._pair(ours[match.ours], theirs[match.theirs], match.likeness.certainty)
            a, b = match.ours + 1, match.theirs + 1
        self._between(ours[a:], theirs[b:])

    def _pair(self, ours: Node, theirs: Node, certainty: Certainty) -> None:
        self.found.append((ours, theirs, certainty))
        self._paired |= {id(ours), id(theirs)}
        self._beside(ours.children, theirs.children)

    def _between(self, ours: Sequence[Node], theirs: Sequence[Node]) -> None:
        """One side may have a module around what the other calls directly: the outermost ones are opened."""
        height = max((each.height for each in (*ours, *theirs)), default=0)
        if ours and theirs and height:
            self._beside(_open(ours, height), _open(theirs, height))

    def _elsewhere(
        self,
        ours: Sequence[Node],
        theirs: Sequence[Node],
        surely: Callable[[Node, Node], bool],
        certainty: Certainty,
    ) -> None:
        """What is left because the other run calls it in another order, or in another module."""
        left, right = (
            [each for each in _all(side) if id(each) not in self._paired] for side in (ours, theirs)
        )
        for a, b in _only_ones(left, right, surely):
            if not self._paired & {id(a), id(b)}:
                self._pair(a, b, certainty)

    def _have_same_parameters(self, ours: Node, theirs: Node) -> bool:
        return ours.name.is_module and self._anchors.golden.get(ours.name.owner) == theirs.name.owner


def _have_same_values(ours: Node, theirs: Node) -> bool:
    same_shapes = ours.input_shapes == theirs.input_shapes
    return same_shapes and agree(ours.inputs, theirs.inputs) and agree(ours.outputs, theirs.outputs)


def _only_ones(
    ours: Sequence[Node], theirs: Sequence[Node], surely: Callable[[Node, Node], bool]
) -> list[tuple[Node, Node]]:
    """Pairs of which each is the only one for the other, among calls that do one thing on one shape."""
    there: dict[str, list[Node]] = defaultdict(list)
    for each in theirs:
        there[_kind(each)].append(each)
    likely = [(each, [b for b in there.get(_kind(each), ()) if surely(each, b)]) for each in ours]
    taken = Counter(id(b) for _, found in likely for b in found)
    return [(a, found[0]) for a, found in likely if len(found) == 1 and taken[id(found[0])] == 1]


def _kind(each: Node) -> str:
    count = each.name.count if each.name.is_module else ""
    return f"{each.name.is_module} {each.concept} {each.output_shape} {count}"


def _opened(ours: Sequence[Node], theirs: Sequence[Node]) -> list[Node]:
    """A module that is around all that the other side has on this level gives way to what is in it."""
    found: list[Node] = []
    if len(ours) * len(theirs) > _MOST_OPENED:
        return list(ours)
    whole: Counter[str] = Counter()
    for each in theirs:
        whole.update(modules_in(each))
    for each in ours:
        best = max((dice(each.inside, other.inside) for other in theirs), default=0.0)
        if each.has_modules and dice(each.inside, whole) > best + 0.05:
            found += _opened(each.children, theirs)
        else:
            found.append(each)
    return found


def _open(nodes: Sequence[Node], height: int) -> list[Node]:
    found: list[Node] = []
    for each in nodes:
        found += each.children if each.height == height else [each]
    return found


# ---- one level ----


def _candidates(
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
    if len(bucket.numbers) <= 2 * _MOST_CANDIDATES:
        return bucket.numbers
    by_place = bucket.numbers[_around(bisect.bisect_left(bucket.numbers, middle), len(bucket.numbers))]
    by_value = bucket.values[_around(bisect.bisect_left(bucket.values, (norm, -1)), len(bucket.values))]
    return sorted({*by_place, *(number for _, number in by_value)})


def _around(place: int, count: int) -> slice:
    first = min(max(place - _MOST_CANDIDATES // 2, 0), count - _MOST_CANDIDATES)
    return slice(first, first + _MOST_CANDIDATES)
