"""How far the results of the calls so far are off, and from that what goes into later calls."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msprobe.graph import Graph, Maker
from msprobe.pairing.match import Place
from msprobe.verdict.difference import Difference
from msprobe.verdict.levels import Made
from msprobe.verdict.stretches import Stretches
from msprobe.verdict.tolerance import Argument

# A sum of 16 squares of normal numbers is below a sixth of what is expected once in 100 000 times; its root
# is below 0.4, and sketches of few large errors scatter more.
ESTIMATE = 4.0


class KnownErrors:
    """Grows call by call, in order of execution."""

    def __init__(self, graph: Graph, stretches: Stretches) -> None:
        self._graph, self._stretches = graph, stretches
        self.made: dict[tuple[str, str], Made] = {}  # by record and slot: what calls gave out
        self._by_name: dict[str, Made] = {}  # the same by the full names of the slots, as makers are recorded
        self.drift = 0.0  # the largest relative error so far
        self.scale_drift = 0.0  # the largest scale error so far

    def note(self, place: Place, made: Made) -> None:
        """Note what a call gave out at a place of the target."""
        self.made[place.call, place.slot] = self._by_name[place.name] = made

    def made_by(self, makers: Sequence[Maker]) -> list[Made]:
        """Return what was made by those of the makers that were compared."""
        known = [self.made.get((maker.name, maker.slot)) for maker in makers]
        return [made for made in known if made is not None]

    def of(self, argument: Argument) -> float:
        """The error that an argument likely has."""
        value = argument.value
        if value.is_equal or (value.agrees and self.drift == 0):
            return 0.0  # where something differs, four statistics that agree do not show that nothing does
        if value.is_odd or value.is_moved:
            return value.norm
        if value.is_measured or argument.spot is None:
            return value.error
        makers = self._graph.makers(*argument.spot)
        found = self.made_by(makers)
        if found and len(found) == len(makers):
            likely = math.fsum(made.error for made in found)
        else:
            likely = 1.5 * value.unit * value.norm
            if (stretch := self._stretches.behind(*argument.spot)) is not None:
                likely = max(likely, stretch * value.norm)
        return min(max(value.error, likely), 2 * value.norm)

    def largest(self, argument: Argument, error: float) -> float:
        """The error that an argument may have: an estimate of it may be too small by chance."""
        value = argument.value
        if not value.is_estimated or argument.spot is None:
            return error
        found = self._by_name.get(argument.made_by) if argument.made_by is not None else None
        if found is not None:  # as for nearly all: the graph need not be asked
            expected = found.expected / found.value.norm if found.value.norm else 0.0
        else:
            makers = self._graph.makers(*argument.spot)
            # Of a value that no recorded call made nothing is expected that would limit what a sketch misses.
            shares = [made.expected / made.value.norm for made in self.made_by(makers) if made.value.norm]
            expected = max(shares, default=0.0) if makers else math.inf
        return max(error, min(expected * value.norm, ESTIMATE * error + value.missed))

    def unseen(self, value: Difference) -> float:
        """The error of a value that looks equal: where something differs, it may have been rounded once."""
        if value.is_equal or self.drift == 0 or not math.isfinite(value.norm):
            return value.error
        return max(value.error, value.unit * value.norm)

    def of_result(self, value: Difference, likely: float) -> float:
        """The error that a result has if it was measured, else the one that is likely."""
        return value.error if value.is_measured else min(max(value.error, likely), 2 * value.norm)
