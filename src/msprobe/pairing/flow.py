"""Which call made the values that go into another one, as recorded or by the values, and what follows."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence

from msprobe.graph import is_carried
from msprobe.graph_values import is_telling
from msprobe.pairing.likeness import Node, differ
from msprobe.pairing.match import Place
from msprobe.pairing.tree import all_in

_MOST = 20  # calls that made, or use, the same values: the nearest


class Flow:
    """The values of one recording on their way from call to call."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.calls = list(all_in(nodes))
        self._begin = {id(call): number for number, call in enumerate(self.calls)}
        self._end: dict[int, int] = {}  # the number of the first call that is not in it any more
        for call in reversed(self.calls):
            last = call.children[-1] if call.children else None
            self._end[id(call)] = self._begin[id(call)] + 1 if last is None else self._end[id(last)]
        self._makers: dict[Hashable, list[Node]] = defaultdict(list)
        self._users: dict[Hashable, list[Node]] = defaultdict(list)
        for call in self.calls:
            for places, found in ((call.outputs, self._makers), (call.inputs, self._users)):
                for key in dict.fromkeys(key for place in places for key in _keys(place)):
                    found[key].append(call)

    def makers(self, call: Node, place: Place) -> list[Node]:
        """The calls that made the values of an input, the latest first."""
        found = self._makers.get(next(_keys(place), None), [])
        end = self._first_after(self._begin[id(call)] - 1, found)
        return found[max(end - _MOST, 0) : end][::-1]

    def users(self, call: Node) -> list[Node]:
        """The calls that what came out of one may go into."""
        found: list[Node] = []
        for key in dict.fromkeys(key for place in call.outputs for key in _keys(place)):
            users = self._users.get(key, [])
            start = self._first_after(self._begin[id(call)], users)
            found += users[start : start + _MOST]
        return found

    def _first_after(self, number: int, calls: Sequence[Node]) -> int:
        return bisect.bisect_right(calls, number, key=lambda call: self._begin[id(call)])

    def ran_in(self, inner: Node, outer: Node) -> bool:
        """Whether a call ran in another, or is it: then they made a value together."""
        return self._begin[id(outer)] <= self._begin[id(inner)] < self._end[id(outer)]


def _keys(place: Place) -> Iterator[Hashable]:
    """What tells a value on its way: the result that it is, if that was recorded, and else its statistics."""
    leaf = place.leaf
    if leaf is None:
        return
    if place.side == "output":
        yield leaf.made_by or place.name  # what a module gives out was made by a call in it
    elif leaf.made_by is not None and not is_carried(leaf.made_by):
        yield leaf.made_by.removeprefix("~")
        return
    if is_telling(leaf):
        yield leaf.shape, leaf.stats


class Ways:
    """Whether what goes into two calls comes from calls that belong together."""

    def __init__(self, ours: Flow, theirs: Flow) -> None:
        self._ours, self._theirs = ours, theirs
        self._golden: dict[int, Node] = {}  # by the id of ours
        self._taken: set[int] = set()
        self.calls = ours.calls

    def lead(self, ours: Node, theirs: Node) -> None:
        """These belong together."""
        self._golden[id(ours)] = theirs
        self._taken.add(id(theirs))

    def forget(self, ours: Node) -> None:
        self._taken.discard(id(self._golden.pop(id(ours))))

    def support(self, ours: Node, theirs: Node) -> int | None:
        """How many inputs do; None if one surely does not."""
        makers = [self._theirs.makers(theirs, place) for place in theirs.inputs]
        known = [_nearest(self._theirs, found, self._taken) for found in makers]
        there = {id(maker) for found in known for maker in found}
        all_known = all(found or not made for found, made in zip(known, makers, strict=True))
        count = 0
        for place in ours.inputs:
            here = {id(source) for source in self._sources(ours, place)}
            if here & there:
                count += 1
            elif here and there and all_known:
                return None
        return count

    def are_other_inputs(self, ours: Node, theirs: Node) -> bool:
        """Whether an input has other values and comes from calls that do not belong together."""
        for a, b in zip(ours.inputs, theirs.inputs, strict=False):
            if differ(a, b):
                there = {id(maker) for maker in self._theirs.makers(theirs, b)}
                here = {id(source) for source in self._sources(ours, a)}
                if (there or self._ours.makers(ours, a)) and not here & there:
                    return True
        return False

    def _sources(self, call: Node, place: Place) -> list[Node]:
        """What the golden run has for the calls that an input comes from."""
        found = _nearest(self._ours, self._ours.makers(call, place), self._golden)
        return [self._golden[id(maker)] for maker in found]

    def followers(self, call: Node) -> Iterable[Node]:
        """The golden calls that use what belongs to the inputs of a call."""
        sources = [source for place in call.inputs for source in self._sources(call, place)]
        return {id(user): user for source in sources for user in self._theirs.users(source)}.values()


def _nearest(flow: Flow, makers: Sequence[Node], known: Container[int]) -> list[Node]:
    """Of the calls that made a value, the latest that is known, with the modules around it."""
    found = [maker for maker in makers if id(maker) in known]
    return [maker for maker in found if flow.ran_in(found[0], maker)]
