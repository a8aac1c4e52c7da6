"""Where a value that goes into a call comes from, and whether that explains how far it is off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from msprobe.dtypes import roundoff
from msprobe.graph import Graph, Maker, is_copied
from msprobe.name import FORWARD, earlier_step
from msprobe.pairing.match import Pair, Place
from msprobe.pairing.stretch import Stretch
from msprobe.verdict import reason
from msprobe.verdict.call_facts import content, spot_of, vanished_in
from msprobe.verdict.decisions import most_flips
from msprobe.verdict.difference import Difference
from msprobe.verdict.directions import GAIN, SCALE_GAIN, Test, unit_tolerance
from msprobe.verdict.known_errors import KnownErrors
from msprobe.verdict.levels import ENTERED, Made, Verdict
from msprobe.verdict.sources import Seen, Sources
from msprobe.verdict.stretches import Stretches, spot_of_pair
from msprobe.verdict.tolerance import FLIP_SHARE, UNKNOWN_GAIN

DRIFT_GAIN = 8.0  # of a value that no recorded call made: times the largest relative error so far
COMPUTED = 2.0**-9  # a plain number that is further off was not computed from what differs, but set


class Origin(NamedTuple):
    """Where a value that goes into a call comes from."""

    is_known: bool
    words: str
    explains: bool = False  # what made it was as far off
    is_cancelled: bool = False
    error: float = 0.0  # that it likely has
    stretch: Stretch | None = None  # the calls without a counterpart that made it
    is_open: bool = False  # these calls take what was not compared, so that nothing explains or accuses


class Origins:
    """Knows what calls gave out so far, in order of execution, and who made what goes into the next one."""

    def __init__(
        self,
        sources: Sources,
        graphs: tuple[Graph, Graph],
        stretches: Sequence[Stretch],
        *,
        is_coarser: bool,
    ) -> None:
        self._sources = sources
        self._graph, self._golden_graph = graphs
        self.stretches = Stretches(stretches, graphs, self._relative_error, is_coarser=is_coarser)
        self.errors = KnownErrors(self._graph, self.stretches)
        self.blamed: dict[tuple[int, str, str], Verdict] = {}  # calls without a counterpart that are at fault
        self._golden_errors: dict[tuple[str, str], float] = {}  # by record and slot of the golden run
        self._by_content: dict[object, Made] = {}  # for recordings that name no makers
        self._unindexed: list[tuple[Seen, Made]] = []  # what is not there yet: mostly nobody asks for it

    def note(self, seen: Seen, made: Made) -> None:
        """Note what a call gave out."""
        self.errors.note(seen.place, made)
        if (other := seen.pair.golden) is not None:
            self._golden_errors[other.call, other.slot] = made.relative
        if not seen.value.agrees:
            self._unindexed.append((seen, made))

    def of(self, seen: Seen) -> Origin:
        """Where a tensor that differs comes from, and whether that explains it."""
        if seen.pair.target is None:
            return Origin(False, "")
        record, slot = spot_of(seen)
        makers = self._graph.makers(record, slot)
        named = next((maker for maker in makers if maker.kind in ("parameter", "buffer")), None)
        if named is not None:
            return Origin(True, _named(named))
        stretch = self.stretches.of(seen.pair)
        if stretch is not None:
            return self._through(stretch, seen)
        gradient = next((maker for maker in makers if maker.kind == "gradient"), None)
        if gradient is not None:
            makers = self._graph.gradient_makers(gradient.name)
        found = self.errors.made_by(makers)
        shown = None if makers else self._shown_before(seen)
        if shown is not None:
            return Origin(True, "as an earlier call made it", True, shown.verdict.is_cancelled, shown.error)
        if not found or len(found) < len(makers):
            state = self._graph.state(record, slot)
            if state is not None:
                return Origin(True, _named(state))
            return Origin(False, _unpaired(makers) or self._left_behind(seen))
        words = (
            f"as {makers[0].name} made it" if len(makers) == 1 else f"as {makers[0].name} and others made it"
        )
        value = seen.value
        other = self._other_maker(seen, makers)
        changed = other or _changed(makers)
        is_open = other != "" and self._is_mapped([seen.pair])
        if value.sight == "shape" or value.is_odd:
            explains = any(made.value.sight == "shape" or made.value.is_odd for made in found)
            return Origin(True, words if explains else changed, explains, is_open=is_open)
        if all(made.value.agrees for made in found):
            return Origin(True, changed, is_open=is_open)
        total = math.fsum(made.error for made in found)
        gain = 1.5 if len(makers) == 1 and makers[0].is_exact and gradient is None else GAIN
        relative = max(made.relative for made in found)
        if value.is_float:
            limit = max(gain * total, gain * relative * value.norm) + unit_tolerance(value) * value.norm
            explains = value.error <= limit or relative == math.inf
        else:
            explains = True
        cancelled = any(made.verdict.is_cancelled for made in found)
        return Origin(True, words if explains else changed, explains, cancelled, total, is_open=is_open)

    def _left_behind(self, seen: Seen) -> str:
        """In words, what an earlier step or an optimizer left behind, if a value is that."""
        makers = [
            None if place is None else graph.left_behind(place.call, place.slot)
            for graph, place in zip((self._graph, self._golden_graph), seen.pair[:2], strict=True)
        ]
        ours, theirs = (None if maker is None else _named(maker) for maker in makers)
        if ours is None or theirs is None or ours == theirs:
            return ours or ""
        return f"{ours}, in the golden run {theirs.removeprefix('it is ')}"

    def _shown_before(self, seen: Seen) -> Made | None:
        """What a call gave out that had the same content."""
        for other, made in self._unindexed:
            if (known := content(other.pair)) is not None:
                self._by_content[known] = made
        self._unindexed.clear()
        return self._by_content.get(content(seen.pair))

    def _other_maker(self, seen: Seen, makers: Sequence[Maker]) -> str:
        """In words, that calls which are not each other's counterparts made a value in the two runs."""
        place = seen.pair.golden
        theirs = () if place is None else self._golden_graph.makers(place.call, place.slot)
        if not makers or not theirs or {makers[0].kind, theirs[0].kind} != {"call"}:
            return ""
        counterparts = self._sources.golden_names(makers[0].name)
        if not counterparts or theirs[0].name in counterparts:
            return ""
        return f"it comes from {makers[0].name}, in the golden run from {theirs[0].name}"

    def _relative_error(self, side: int, record: str, slot: str) -> float | None:
        """The relative error of what a paired call gave out, by its name in the target or the golden run."""
        if side:
            return self._golden_errors.get((record, slot))
        made = self.errors.made.get((record, slot))
        return None if made is None else made.relative

    def _through(self, stretch: Stretch, seen: Seen) -> Origin:
        """What calls without a counterpart have made of what went into them, and whether that explains it."""
        value = seen.value
        known = map(self.errors.made.get, map(spot_of_pair, stretch.before))
        made = [found for found in known if found is not None]
        likely = self.stretches.passed(stretch, seen.pair, DRIFT_GAIN * self.errors.drift)
        differs = any(not found.value.agrees for found in made)
        if value.sight == "shape" or value.is_odd:
            explains = any(found.value.sight == "shape" or found.value.is_odd for found in made)
            explains = explains or (differs and self.stretches.shapes_by_value(stretch))
        elif value.is_float and not value.is_moved:
            explains = value.relative <= GAIN * likely + unit_tolerance(value)
            explains = explains and not (likely < 1 and vanished_in(seen.pair))
            scales = [found.value.scale for found in made]
            explains = explains and self.stretches.scale_test(stretch, value, likely, scales).score <= 1
        else:
            explains = differs and (value.unequal or 0) <= _most_flips(value, made)
        words = "as calls without a counterpart made it of what went into them"
        for pair, other, state in self.stretches.other_state(stretch):
            text = f"{reason.what(pair, other)} when it comes in: it is {state}"
            key = (0, *spot_of_pair(pair))
            self.blamed.setdefault(key, Verdict(ENTERED, text, other.relative, unit_tolerance(other)))
            explains, words = True, f"as {state} is another"
        if not explains:
            most = max((found.relative for found in made), default=0.0)
            words = f"what goes into these calls is {f'off by up to {most:.2g}' if differs else 'equal'}"
            if not stretch.is_closed:
                words = f"{words} as far as both runs have it, but {self.stretches.lone_sources(stretch)}"
        cancelled = any(found.verdict.is_cancelled for found in made)
        is_open = not explains and self._is_open(stretch)
        return Origin(True, words, explains, cancelled, likely * value.norm, stretch, is_open)

    def _is_open(self, stretch: Stretch) -> bool:
        """Whether calls of two frameworks take what a mapping leaves out: calls, or trained parameters."""
        if stretch.is_closed or not self._is_mapped((*stretch.before, *stretch.behind)):
            return False
        return bool(self._graph.recording.step) or not self.stretches.takes_state_alone(stretch)

    def _is_mapped(self, pairs: Sequence[Pair]) -> bool:
        """Whether calls of two frameworks were paired by a mapping, and not by what they do.

        It may pair calls by their order in a layer, which are not each other's counterparts.
        """
        ours, theirs = (graph.recording.header.framework for graph in (self._graph, self._golden_graph))
        return ours != theirs and all(pair.certainty is None for pair in pairs)

    def with_rounding_of_source(self, seen: Seen) -> Difference:
        """How far a value is off, with the rounding of what it was copied from, which may be coarser."""
        value, unit = seen.value, seen.value.unit
        for graph, place in zip((self._graph, self._golden_graph), seen.pair[:2], strict=True):
            if place is not None and place.leaf is not None and is_copied(place.leaf):
                copied = graph.copied_from(place.call, place.slot)
                if copied is not None and copied.maker.kind != "call":
                    unit = max(unit, roundoff(copied.dtype))
        is_float = value.is_float and not value.is_odd and value.sight not in ("shape", "one side")
        return value._replace(unit=unit) if is_float and unit > value.unit else value

    def is_choice(self, seen: Seen) -> bool:
        """Whether a value is a part of what a call made, such as the rows that an index takes."""
        spots = zip((self._graph, self._golden_graph), seen.pair[:2], strict=True)
        found = [graph.copied_from(place.call, place.slot) for graph, place in spots if place is not None]
        return bool(found) and all(each is not None and each.is_part for each in found)

    def is_parameter_of_one_run(self, seen: Seen) -> bool:
        """Whether an argument that only one run gives is a parameter that it trains."""
        if seen.value.sight != "one side":
            return False
        for graph, place in zip((self._graph, self._golden_graph), seen.pair[:2], strict=True):
            if isinstance(place, Place) and place.leaf is not None and place.leaf.requires_grad:
                makers = graph.makers(place.call, place.slot)
                return any(maker.kind == "parameter" for maker in makers)
        return False


def is_usual(seen: Seen, tests: Sequence[Test], errors: KnownErrors) -> bool:
    """Whether a value that no recorded call made is no further off than what went before suggests.

    Each direction has its own limit: rounding that gathers is large, but it has no scale error.
    """
    value, drift = seen.value, errors.drift
    leaf = seen.place.leaf
    if value.sight == "shape" or value.is_moved or value.is_odd or drift == 0:
        return False
    if leaf is not None and not leaf.is_tensor:
        return value.relative <= unit_tolerance(value) + min(drift, COMPUTED)
    if not value.is_float:
        return value.unequal is not None and value.unequal <= most_flips(value.numbers, FLIP_SHARE * drift)
    size = DRIFT_GAIN * drift
    if seen.place.record.name.direction != FORWARD:  # what was not recorded may decide, as relu does
        size = max(size, 2 * math.sqrt(min(FLIP_SHARE * drift, 1.0)))
    limits = {"size": size, "scale": SCALE_GAIN * errors.scale_drift + drift * drift}
    return all(test.value <= test.bound + limits.get(test.name, 0.0) for test in tests)


def _most_flips(value: Difference, made: Sequence[Made]) -> float:
    """How many truth values may be others behind calls that compare, if rounding moved what goes in."""
    differing = [found for found in made if not found.value.agrees]
    if any(not found.value.is_float for found in differing):
        return math.inf
    most = max((found.relative for found in differing), default=0.0)
    return most_flips(value.numbers, FLIP_SHARE * UNKNOWN_GAIN * most) if most < 1 else math.inf


def _named(state: Maker) -> str:
    if state.kind == "optimizer":
        return f"it is the optimizer's {state.name}"
    if state.kind == "earlier step":
        part = "" if state.is_exact else "made of "
        return f"it is {part}{state.slot} of step {earlier_step(state.name)}"
    return f"it is the {state.kind} {state.name}"


def _unpaired(makers: Sequence[Maker]) -> str:
    return f"it comes from {makers[0].name}, which has no counterpart" if makers else ""


def _changed(makers: Sequence[Maker]) -> str:
    if not makers:
        return ""
    return f"something that was not recorded changed it after {makers[0].name}"
