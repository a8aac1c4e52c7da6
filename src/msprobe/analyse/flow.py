"""Which call made the values that go into another one, told by the values; and what follows for pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from msprobe.analyse.likeness import Node, is_telling
from msprobe.analyse.match import Place
from msprobe.analyse.tree import all_in

_MOST = 100  # calls that made the same values; of more nothing is known


class Flow:
    """The values of one recording on their way from call to call."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.calls = list(all_in(nodes))
        self._place = {id(call): number for number, call in enumerate(self.calls)}
        self._makers: dict[Any, list[Node]] = defaultdict(list)
        self._users: dict[Any, list[Node]] = defaultdict(list)
        for call in self.calls:
            for places, found in ((call.outputs, self._makers), (call.inputs, self._users)):
                for key in {_key(place) for place in places} - {None}:
                    found[key].append(call)

    def makers(self, call: Node, place: Place) -> list[Node]:
        """The calls that an input of a call may come from: of equal values all."""
        number, found = self._place[id(call)], self._makers.get(_key(place), ())
        return [each for each in found if self._place[id(each)] < number] if len(found) <= _MOST else []

    def users(self, call: Node) -> list[Node]:
        """The calls that what came out of one may go into."""
        number = self._place[id(call)]
        keys = dict.fromkeys(_key(place) for place in call.outputs)
        return [each for key in keys for each in self._users.get(key, ()) if self._place[id(each)] > number]


def _key(place: Place) -> Any:
    leaf = place.leaf
    return (leaf.shape, leaf.stats) if leaf is not None and is_telling(leaf) else None


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
        there = {id(maker) for found in makers for maker in found}
        all_known = all(not found or any(id(maker) in self._taken for maker in found) for found in makers)
        count = 0
        for place in ours.inputs:
            here = {id(source) for source in self._sources(ours, place)}
            if here & there:
                count += 1
            elif here and there and all_known:
                return None
        return count

    def _sources(self, call: Node, place: Place) -> list[Node]:
        """What the golden run has for the calls that an input comes from."""
        makers = self._ours.makers(call, place)
        return [self._golden[id(maker)] for maker in makers if id(maker) in self._golden]

    def followers(self, call: Node) -> Iterable[Node]:
        """The golden calls that use what belongs to the inputs of a call."""
        sources = [source for place in call.inputs for source in self._sources(call, place)]
        return {id(user): user for source in sources for user in self._theirs.users(source)}.values()
