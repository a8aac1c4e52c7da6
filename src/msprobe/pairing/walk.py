"""Two models beside each other, from the top down: which calls of one are which of the other."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from msprobe.name import FORWARD
from msprobe.pairing.anchors import anchored
from msprobe.pairing.candidates import candidates, in_order, kind, marks, only_ones
from msprobe.pairing.chain import heaviest
from msprobe.pairing.compound import alike_compounds, maker, runs, wholes
from msprobe.pairing.flow import Flow, Ways
from msprobe.pairing.likeness import (
    Anchors,
    Likeness,
    Node,
    alike_apis,
    alike_modules,
    dice,
    modules_in,
    parameter_shapes,
)
from msprobe.pairing.match import Certainty
from msprobe.pairing.step_part import are_unlike_parts
from msprobe.pairing.tree import all_in

_MOST_OPENED = 20_000  # pairs of calls on one level that are searched for a module around all others
_MOST_ROUNDS = 10
_BY_NAME = Certainty(0.99, "they are calls of the module of this name")
_BY_VALUES = Certainty(0.8, "they do the same, at another place, and all their values agree")
_BY_PARAMETERS = Certainty(0.95, "they have the same parameters, at another place")
_BY_WEIGHTS = Certainty(0.9, "they do the same with the same weights, at another place")
_BY_WAY = Certainty(0.85, "they do the same with what came from calls that belong together")
_BY_CONTENT = Certainty(0.85, "what is in them belongs together")


_PAIRED = Likeness(100.0, _BY_NAME)  # of calls that are paired already: others are not to cross them
_Pairs = Callable[[Sequence[Node], Sequence[Node]], Iterable[tuple[Node, Node]]]


class Found(NamedTuple):
    """Two calls that belong together; of compounds one has parts, which do together what the other does."""

    ours: Node
    theirs: Node
    certainty: Certainty


class Walk:
    """Goes down two trees at once."""

    def __init__(self, ours: Sequence[Node], theirs: Sequence[Node], *, by_name: bool = False) -> None:
        """`by_name`: both runs are of one framework, so that modules of one name may be one."""
        self.compounds: list[Found] = []
        self._of_ours: dict[int, Found] = {}  # by the id of the node
        self._of_theirs: dict[int, Found] = {}
        self._ours, self._theirs = ours, theirs
        self._outside = {id(child): each for each in all_in((*ours, *theirs)) for child in each.children}
        golden = anchored(ours, theirs)
        self._anchors = Anchors(golden, frozenset(golden.values()))
        self._marks = marks(list(all_in(ours)), list(all_in(theirs)), golden)
        if by_name:
            self._pair_modules_by_name()
        self._beside(ours, theirs)
        for told, certainty in (
            (self._parameters_of, _BY_PARAMETERS),
            (self._mark_of, _BY_WEIGHTS),
            (self._weights_of, _BY_WEIGHTS),
        ):
            self._elsewhere(functools.partial(in_order, told=told), certainty)
        self._elsewhere(only_ones, _BY_VALUES)
        self._compound()
        self._follow_values()
        self._around()

    @property
    def found(self) -> list[Found]:
        return list(self._of_ours.values())

    def _pair_modules_by_name(self) -> None:
        """Pair the calls of modules that have one name, unless parameters say that names have moved."""
        if any(ours != theirs for ours, theirs in self._anchors.golden.items()):
            return
        here, there = (
            [call for call in all_in(side) if call.name.is_module] for side in (self._ours, self._theirs)
        )
        counts = [Counter(call.name.owner for call in side) for side in (here, there)]
        by_name = {call.name: call for call in there}
        for call in here:
            other = by_name.get(call.name)
            is_even = counts[0][call.name.owner] == counts[1][call.name.owner]
            if other is not None and is_even and parameter_shapes(call) == parameter_shapes(other):
                self._note(Found(call, other, _BY_NAME))
        for found in self.found:
            self._beside(found.ours.children, found.theirs.children)

    def _alike(self, ours: Node, theirs: Node) -> Likeness | None:
        if self._is_paired(ours) or self._is_paired(theirs):
            return _PAIRED if self._of_ours.get(id(ours)) is self._of_theirs.get(id(theirs)) else None
        if ours.name.is_module != theirs.name.is_module or self._are_told_apart(ours, theirs):
            return None
        if are_unlike_parts(ours.part, theirs.part):
            return None
        return alike_modules(ours, theirs, self._anchors) if ours.name.is_module else alike_apis(ours, theirs)

    def _are_told_apart(self, ours: Node, theirs: Node) -> bool:
        """Whether two calls have other weights, or the same at another time."""
        here, there = self._marks.get(id(ours)), self._marks.get(id(theirs))
        if here is not None and there is not None and here.weights == there.weights:
            return here.again != there.again
        return here is not there and not ours.name.is_module  # modules may have some in common

    def _is_paired(self, call: Node) -> bool:
        return id(call) in self._of_ours or id(call) in self._of_theirs

    def _beside(self, ours: Sequence[Node], theirs: Sequence[Node]) -> None:
        """Pair the calls of one level, then those in each pair, then what lies between them unpaired."""
        if not all(any(not self._is_paired(each) for each in side) for side in (ours, theirs)):
            return
        ours, theirs = _opened(ours, theirs), _opened(theirs, ours)
        a = b = 0
        for match in heaviest(candidates(ours, theirs, self._alike), len(theirs)):
            self._between(ours[a : match.ours], theirs[b : match.theirs])
            if match.likeness is not _PAIRED:
                self._pair(ours[match.ours], theirs[match.theirs], match.likeness.certainty)
            a, b = match.ours + 1, match.theirs + 1
        self._between(ours[a:], theirs[b:])

    def _pair(self, ours: Node, theirs: Node, certainty: Certainty) -> None:
        self._note(Found(ours, theirs, certainty))
        self._beside(ours.children, theirs.children)

    def _note(self, found: Found) -> None:
        self._of_ours[id(found.ours)] = self._of_theirs[id(found.theirs)] = found

    def _between(self, ours: Sequence[Node], theirs: Sequence[Node]) -> None:
        """One side may have a module around what the other calls directly: the outermost ones are opened."""
        ours, theirs = ([each for each in side if not self._is_paired(each)] for side in (ours, theirs))
        height = max((each.height for each in (*ours, *theirs)), default=0)
        if ours and theirs and height:
            self._beside(_open(ours, height), _open(theirs, height))

    def _left(self, side: Sequence[Node]) -> list[Node]:
        return [each for each in all_in(side) if not self._is_paired(each)]

    def _elsewhere(self, pairs: _Pairs, certainty: Certainty) -> None:
        """What is left because the other run calls it in another order, or in another module."""
        for a, b in pairs(self._left(self._ours), self._left(self._theirs)):
            if not (self._is_paired(a) or self._is_paired(b) or are_unlike_parts(a.part, b.part)):
                self._pair(a, b, certainty)

    def _parameters_of(self, call: Node) -> Hashable:
        """What a module does with which parameters of its own, if the other run has them too."""
        mark = self._marks.get(id(call))
        return (kind(call), mark.weights) if mark is not None and call.parameters else None

    def _mark_of(self, call: Node) -> Hashable:
        """What a call does with which weights, and at which time."""
        mark = self._marks.get(id(call))
        return (kind(call), mark) if mark is not None and not call.name.is_module else None

    def _weights_of(self, call: Node) -> Hashable:
        """The same at any time."""
        mark = self._marks.get(id(call))
        return (kind(call), mark.weights) if mark is not None and not call.name.is_module else None

    # ---- several calls against one ----

    def _compound(self) -> None:
        """What one side does in several calls and the other in one; by their weights, if any are the same."""
        for surely in (True, False):
            while self._compound_in_order(surely):
                pass  # what is left was called in another order
            if self.compounds:
                return

    def _compound_in_order(self, surely: bool) -> bool:
        taken = {id(part) for found in self.compounds for call in found[:2] for part in call.whole}
        left, right = (
            [call for call in self._left(side) if _is_forward_api(call) and id(call) not in taken]
            for side in (self._ours, self._theirs)
        )
        before = len(self.compounds)

        def alike(a: Node, b: Node) -> Likeness | None:
            if are_unlike_parts(a.part, b.part) or not self._are_in_one_module(a, b):
                return None
            return alike_compounds(a, b, surely=surely)

        for here, there in ((runs(left), wholes(right)), (wholes(left), runs(right))):
            for match in heaviest(candidates(here, there, alike), len(there)):
                a, b = here[match.ours], there[match.theirs]
                calls = {id(part) for call in (a, b) for part in call.whole}
                if not taken & calls:
                    taken |= calls
                    self.compounds.append(Found(a, b, match.likeness.certainty))
        return len(self.compounds) > before

    def _are_in_one_module(self, ours: Node, theirs: Node) -> bool:
        """Whether the nearest modules around two calls that belong to any belong to each other."""
        here, there = (self._module_around(call) for call in (ours, theirs))
        return here is there

    def _module_around(self, call: Node) -> Found | None:
        around: Node | None = call.whole[0]
        while around is not None:
            around = self._outside.get(id(around))
            found = self._of_ours.get(id(around)) or self._of_theirs.get(id(around))
            if found is not None:
                return found
        return None

    # ---- what follows from the pairs ----

    def _follow_values(self) -> None:
        """A call that uses what another one made belongs to the call that uses what that one's partner made.

        So calls on tensors of one shape are told apart also after the two runs have parted.
        """
        ways = Ways(Flow(self._ours), Flow(self._theirs))
        for found in (*self.found, *self.compounds):
            ways.lead(maker(found.ours), maker(found.theirs))
        parts = {id(part) for found in self.compounds for call in found[:2] for part in call.whole}
        for _ in range(_MOST_ROUNDS):
            changed = [self._follow(call, ways, parts) for call in ways.calls if _is_told_by_inputs(call)]
            if not any(changed):
                break
        self._give_up_unfounded(ways, parts)

    def _give_up_unfounded(self, ways: Ways, parts: set[int]) -> None:
        """Drop pairs whose inputs differ and come from other calls, where another order may be the cause.

        Where a sum is made in another order, its partial sums are other values: none belongs to any. That is
        so of calls of one kind that cross each other, or of which both runs have some without a partner.
        """
        place = {
            id(call): number
            for side in (self._ours, self._theirs)
            for number, call in enumerate(all_in(side))
        }
        for _ in range(_MOST_ROUNDS):
            groups: dict[Hashable, list[Found]] = defaultdict(list)
            for found in self.found:
                if _is_told_by_inputs(found.ours) and id(found.ours) not in parts:
                    groups[kind(found.ours)].append(found)
            left = [set(map(kind, self._left(side))) for side in (self._ours, self._theirs)]
            unfounded = []
            for what, group in groups.items():
                group.sort(key=lambda found: place[id(found.ours)])
                crossing = _crossing(group, [place[id(found.theirs)] for found in group])
                doubtful = group if what in left[0] & left[1] else crossing
                unfounded += [found for found in doubtful if self._is_unfounded(found, ways)]
            for found in unfounded:
                self._forget(found, ways)
            if not unfounded:
                return

    def _is_unfounded(self, found: Found, ways: Ways) -> bool:
        return self._weights_of(found.ours) is None and ways.are_other_inputs(found.ours, found.theirs)

    def _follow(self, call: Node, ways: Ways, parts: set[int]) -> bool:
        """Whether a call gets another partner, or one at all."""
        now = self._of_ours.get(id(call))
        if id(call) in parts or (now is not None and self._support(now, ways) is not None):
            return False
        likely = {
            id(other): (ways.support(call, other) or 0, other)
            for other in ways.followers(call)
            if id(other) not in parts and _is_told_by_inputs(other) and self._alike(call, other) is not None
        }
        most = max((count for count, _ in likely.values()), default=0)
        best = [other for count, other in likely.values() if count == most and most]
        if now is not None:
            self._forget(now, ways)
        if len(best) != 1 or not self._is_free(best[0], most, ways):
            return now is not None
        self._note(Found(call, best[0], _BY_WAY))
        ways.lead(call, best[0])
        return True

    def _is_free(self, theirs: Node, count: int, ways: Ways) -> bool:
        """Whether a golden call has no partner, or one that has less for it, which is then given up."""
        held = self._of_theirs.get(id(theirs))
        if held is None:
            return True
        if (self._support(held, ways) or 0) >= count:
            return False
        self._forget(held, ways)
        return True

    def _support(self, found: Found, ways: Ways) -> float | None:
        """How many inputs speak for a pair, the same weights more than all; None if one speaks against it."""
        weights = self._weights_of(found.ours)
        if weights is not None and weights == self._weights_of(found.theirs):
            return math.inf
        return ways.support(found.ours, found.theirs)

    def _forget(self, found: Found, ways: Ways) -> None:
        del self._of_ours[id(found.ours)], self._of_theirs[id(found.theirs)]
        ways.forget(found.ours)

    def _around(self) -> None:
        """Modules that are left belong together if all that is paired in one is in the other."""
        for module in reversed(self._left(self._ours)):
            found = [self._of_ours[id(child)] for child in module.children if id(child) in self._of_ours]
            holders = [self._outside.get(id(each.theirs)) for each in found]
            holder = holders[0] if holders else None
            if holder is None or any(each is not holder for each in holders) or self._is_paired(holder):
                continue
            if self._alike(module, holder) is not None:
                self._pair(module, holder, _BY_CONTENT)


def _crossing(group: Sequence[Found], places: Sequence[int]) -> list[Found]:
    """Those that stand before another one in one run and behind it in the other."""
    latest = list(itertools.accumulate(places, max))
    earliest = list(itertools.accumulate(reversed(places), min))[::-1]
    return [found for found, *rest in zip(group, places, latest, earliest, strict=True) if len(set(rest)) > 1]


def _is_told_by_inputs(call: Node) -> bool:
    """Not by what is in it, or by its parameters."""
    return bool(call.inputs) and not call.children and not call.parameters


def _is_forward_api(call: Node) -> bool:
    return not call.name.is_module and call.name.direction == FORWARD


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
