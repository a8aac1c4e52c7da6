"""What went into each call: what its results are judged by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD, CallName
from msprobe.pairing.match import Pair
from msprobe.verdict.difference import Difference


class Seen:
    """A pair of values, and how far they are apart."""

    __slots__ = ("is_output", "pair", "place", "value")

    def __init__(self, pair: Pair, value: Difference) -> None:
        self.pair, self.value = pair, value
        self.place = pair.place
        self.is_output = self.place.side == "output"


class Sources:
    """What went into each call: its own inputs, and for a backward call all of the forward call.

    Where several calls are compared with one of the golden run, what went into any of them counts for all.
    """

    def __init__(self, calls: Sequence[Sequence[Seen]]) -> None:
        self._forward: dict[CallName, Sequence[Seen]] = {}
        self._modules: dict[str, list[Seen]] = defaultdict(list)
        self._together: dict[CallName, list[Sequence[Seen]]] = defaultdict(list)
        self._counterparts: dict[str, set[CallName]] = {}
        for call in calls:
            if call[0].pair.target is None:
                continue
            name = call[0].place.record.name
            others = self._counterparts[call[0].place.call] = _golden_names(call)
            for other in others:
                self._together[other].append(call)
            if name.direction == FORWARD:
                self._forward[name] = call
            if name.is_module and name.direction != PARAMETERS_GRAD:
                self._modules[name.owner] += call

    def golden_names(self, record: str) -> set[str]:
        """Return the calls of the golden run that a call of the target is compared with."""
        return {str(name) for name in self._counterparts.get(record, ())}

    def of(self, call: Sequence[Seen]) -> list[Seen]:
        name = call[0].place.record.name
        if name.direction == PARAMETERS_GRAD:
            return self._modules[name.owner]
        calls = [call]
        is_ours = call[0].pair.target is not None
        for other in self._counterparts[call[0].place.call] if is_ours else _golden_names(call):
            if not is_ours or len(self._together[other]) > 1:
                calls += (each for each in self._together[other] if each is not call)
        own = [seen for each in calls for seen in each if not seen.is_output]
        if name.direction == BACKWARD:
            names = (each[0].place.record.name.facing(FORWARD) for each in calls)
            return [*own, *(seen for each in names for seen in self._forward.get(each, ()))]
        return own


def _golden_names(call: Sequence[Seen]) -> set[CallName]:
    """The calls of the golden run that places of a call are compared with; mostly one."""
    found: set[CallName] = set()
    last = None
    for seen in call:
        place = seen.pair.golden
        if place is not None and place.record is not last:
            last = place.record
            found.add(last.name)
    return found
