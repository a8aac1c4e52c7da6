"""What calls without a counterpart make of the errors that go into them, and what is said of them.

The errors are carried through the calls of either run as the table of operators says, each call adding one
rounding of its own. How far both runs may then be apart behind the calls decides whether they are at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msprobe.dtypes import SINGLE, roundoff
from msprobe.graph import Graph, Maker
from msprobe.name import FORWARD, slot_name
from msprobe.operators import operator_of
from msprobe.pairing.match import Pair, Place, places
from msprobe.pairing.stretch import Stretch
from msprobe.plural import counted
from msprobe.record import Record, number_type
from msprobe.verdict.call_facts import arguments_of, plain_numbers, position_of
from msprobe.verdict.difference import Difference, difference
from msprobe.verdict.directions import DEVIATIONS, FLOOR, GAIN, Test, carriers, rounding_tests, unit_tolerance
from msprobe.verdict.gradients import Backward, backward_reach
from msprobe.verdict.sources import Seen
from msprobe.verdict.tolerance import (
    OUTPUT_ROUNDINGS,
    UNKNOWN_SCALING,
    Argument,
    forward_reach,
    own_rounding,
)

MASKED = 1e4  # numbers below its negative only mask others: softmax makes zeros of them
_MOST_NAMED = 6  # calls of one run that the answer lists
# The relative error of an output of a paired call: the run (0: the target), the record and the slot.
ErrorOf = Callable[[int, str, str], float | None]
Spot = tuple[str, str]


class Stretches:
    """The stretches of two runs by the places behind them."""

    def __init__(
        self, found: Sequence[Stretch], graphs: tuple[Graph, Graph], error_of: ErrorOf, *, is_coarser: bool
    ) -> None:
        """`is_coarser`: the whole target run computes in a coarser dtype, so that its rounding is sound."""
        self._graphs, self._is_coarser = graphs, is_coarser
        self._behind: dict[str, float] = {}
        self._of = {pair.place.name: stretch for stretch in found for pair in stretch.behind}
        state = _state_errors(found, graphs) if found else {}
        is_across = len({graph.recording.header.framework for graph in graphs}) > 1
        self._passages = [
            _Passage(graph, n, error_of, state, is_across=is_across)
            for n, graph in enumerate(graphs)
            if found
        ]

    def of(self, pair: Pair) -> Stretch | None:
        """Return the stretch that made the value at a place."""
        if pair.target is None or pair.golden is None:
            return None
        return self._of.get(pair.target.name)

    def passed(self, stretch: Stretch, pair: Pair, unknown: float) -> float:
        """Return how far both runs are likely apart behind a stretch, relative to the value.

        `unknown`: the relative error of what goes in without a known maker.
        """
        unit = self._unit(stretch)
        found = []
        for passage, place, calls in zip(self._passages, pair[:2], _calls(stretch), strict=True):
            for call in calls:
                passage.go_through(call, unit, unknown)
            assert isinstance(place, Place)
            found.append(passage.at(place, unknown))
        assert pair.target is not None
        error = self._behind[pair.target.name] = min(math.hypot(*found), 2.0)
        return error

    def scale_test(
        self, stretch: Stretch, value: Difference, likely: float, scales: Sequence[float | None]
    ) -> Test:
        """Test the scale error of a value behind a stretch; `scales`: those of what goes into it.

        Each call may truncate; what else is likely has no direction, or a square of it if the calls bend.
        """
        if value.scale is None:
            return Test("scale", 0.0, 1.0)
        passed = math.fsum(abs(scale) for scale in scales if scale and math.isfinite(scale))
        calls = 1 + len(stretch.target_calls) + len(stretch.golden_calls)
        bound = FLOOR * calls * self._unit(stretch) + UNKNOWN_SCALING * passed + GAIN * likely * likely
        deviation = value.scale_deviation if value.sight == "content" else likely / math.sqrt(carriers(value))
        return Test("scale", abs(value.scale), bound + likely + DEVIATIONS * (deviation or 0.0))

    def lone_sources(self, stretch: Stretch) -> str:
        """In words, what goes into the calls of one run only."""
        lone = stretch.one_sided[0]
        makers = [maker for passage in self._passages for maker in passage.makers_of(lone)]
        if not makers:
            return f"it is not known where {lone.name} comes from"
        run = "target" if self._passages[0].has(lone) else "golden run"
        what = makers[0].name if makers[0].kind == "call" else f"the {makers[0].kind} {makers[0].name}"
        if makers[0].kind != "call" and not makers[0].is_exact:
            what = f"a part of {what}"
        return f"only in the {run} {what} goes in"

    def takes_state_alone(self, stretch: Stretch) -> bool:
        """Return whether all that goes into the calls of one run only are parameters and buffers."""
        makers = (
            maker
            for passage in self._passages
            for lone in stretch.one_sided
            for maker in passage.makers_of(lone)
        )
        return all(maker.kind != "call" for maker in makers)

    def behind(self, record: str, slot: str) -> float | None:
        """Return the relative error that a place behind a stretch likely has, if it was asked for before."""
        return self._behind.get(slot_name(record, slot))

    def shapes_by_value(self, stretch: Stretch) -> bool:
        """Return whether a call of either run gives out shapes that depend on values."""
        names = (
            graph.recording.records[call].name
            for graph, calls in zip(self._graphs, _calls(stretch), strict=True)
            for call in calls
        )
        return any(operator_of(name).shapes_by_value for name in names)

    def _unit(self, stretch: Stretch) -> float:
        """The coarsest rounding that is sound: that of the golden run, or of the whole target."""
        golden = self._graphs[1].recording.records
        found = [_coarsest(golden[call]) for call in stretch.golden_calls]
        found += [_roundoff(pair.golden) for pair in (*stretch.before, *stretch.behind)]
        if self._is_coarser:
            records = self._graphs[0].recording.records
            found += [_coarsest(records[call]) for call in stretch.target_calls]
            found += [_roundoff(pair.target) for pair in (*stretch.before, *stretch.behind)]
        return max(found, default=SINGLE) or SINGLE

    def other_state(self, stretch: Stretch) -> list[tuple[Pair, Difference, str]]:
        """Return the parameters and buffers that go in and differ by more than rounding."""
        found = []
        for pair in stretch.before:
            if pair.place.side == "output" or pair.target is None:
                continue
            value = difference(pair, None)
            if not value.agrees and any(test.score > 1 for test in rounding_tests(value)):
                makers = self._passages[0].makers(pair.target)
                found.append((pair, value, next((f"the {m.kind} {m.name}" for m in makers), "it")))
        return found

    # ---- what is said ----

    def maker(self, stretch: Stretch, pair: Pair) -> tuple[int, str, str] | None:
        """Return the call of a stretch that made the value of a pair: the run, the record and the slot."""
        for number, (passage, calls) in enumerate(zip(self._passages, _calls(stretch), strict=True)):
            place = pair.golden if number else pair.target
            for maker in passage.makers(place) if place is not None else ():
                if maker.kind == "call" and maker.name in calls:
                    return number, maker.name, maker.slot
        return None

    def words(self, stretch: Stretch) -> str:
        """Return which calls each run makes, in plain words."""
        ours, theirs = map(_named, (stretch.target_calls, stretch.golden_calls))
        if not stretch.target_calls:
            return f"the golden run computes this with {theirs}, the target with no such call"
        if not stretch.golden_calls:
            return f"the target computes this with {ours}, the golden run with no such call"
        return f"the target computes this with {ours}, the golden run with {theirs}"

    def lost_precision(self, stretch: Stretch) -> str:
        """Return that the target alone computes in a coarser dtype there; empty if it does not."""
        limit = self._unit(stretch)
        records = self._graphs[0].recording.records
        leaves = (place.leaf for call in stretch.target_calls for place in places(records[call]))
        coarse = [
            leaf.dtype
            for leaf in leaves
            if leaf is not None and leaf.is_tensor and roundoff(leaf.dtype) > limit
        ]
        return (
            f"precision is lost here: {number_type(coarse[0])}, which the golden run does not use"
            if coarse
            else ""
        )


def lone_place(pair: Pair) -> tuple[int, str, str] | None:
    """Return the run (0: the target), record and slot of a place without a counterpart."""
    known = [number for number, place in enumerate(pair[:2]) if isinstance(place, Place) and place.leaf]
    if len(known) == 2 or (not known and None not in pair[:2]):
        return None
    side = known[0] if known else int(pair.target is None)
    place = pair.golden if side else pair.target
    assert place is not None
    return side, place.call, place.slot


def spot_of_pair(pair: Pair) -> tuple[str, str]:
    return pair.place.call, pair.place.slot


def _calls(stretch: Stretch) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return stretch.target_calls, stretch.golden_calls


def _state_errors(found: Sequence[Stretch], graphs: tuple[Graph, Graph]) -> dict[tuple[int, str], float]:
    """The relative errors of parameters and buffers that go into stretches, by the run and their name.

    Only rounding: what differs by more is named itself, and explains everything behind it.
    """
    errors: dict[tuple[int, str], float] = {}
    for pair in (pair for stretch in found for pair in stretch.before if pair.place.side != "output"):
        value = difference(pair, None)
        error = 0.0 if value.agrees else min(max(value.relative, value.unit), unit_tolerance(value))
        for number, (graph, place) in enumerate(zip(graphs, (pair.target, pair.golden), strict=True)):
            assert place is not None
            for maker in graph.makers(place.call, place.slot):
                errors[number, maker.name] = max(error, errors.get((number, maker.name), 0.0))
    return errors


def _named(calls: Sequence[str]) -> str:
    names = [f"`{call}`" for call in calls[:_MOST_NAMED]]
    more = len(calls) - _MOST_NAMED
    return ", ".join(names) + (f" and {counted(more, 'other call')}" if more > 0 else "")


def _roundoff(place: Place | None) -> float:
    leaf = place.leaf if place is not None else None
    return roundoff(leaf.dtype) if leaf is not None and leaf.is_tensor else 0.0


def _coarsest(record: Record) -> float:
    return max(map(_roundoff, places(record)), default=0.0)


class _Passage:
    """Carries relative errors through the calls of one run."""

    def __init__(
        self,
        graph: Graph,
        number: int,
        error_of: ErrorOf,
        state: Mapping[tuple[int, str], float],
        *,
        is_across: bool,
    ) -> None:
        self._records, self._graph, self._number = graph.recording.records, graph, number
        self._error_of, self._state, self._is_across = error_of, state, is_across
        self._errors: dict[Spot, float] = {}  # of what the calls gave out
        self._keys = {str(record.name): key for key, record in self._records.items()}

    def has(self, place: Place) -> bool:
        """Return whether a place is one of this run."""
        return self._records.get(self._keys.get(place.call, "")) is place.record

    def makers_of(self, place: Place) -> tuple[Maker, ...]:
        """Return the makers of a place if it is one of this run."""
        return self.makers(place) if self.has(place) else ()

    def makers(self, place: Place) -> tuple[Maker, ...]:
        found = self._graph.makers(self._keys[place.call], place.slot)
        gradient = next((maker.name for maker in found if maker.kind == "gradient"), None)
        return found if gradient is None else self._graph.gradient_makers(gradient)

    def at(self, place: Place, unknown: float) -> float:
        """The relative error of an input, or of a module's output."""
        makers = self.makers(place)
        return math.fsum(self._made(maker, unknown) for maker in makers) if makers else unknown

    def _made(self, maker: Maker, unknown: float) -> float:
        if maker.kind != "call":
            known = self._state.get((self._number, maker.name))
            # A parameter that no mapping pairs may be as far off as anything else.
            return known if known is not None else unknown if self._is_across else 0.0
        known = self._error_of(self._number, maker.name, maker.slot)
        return self._errors.get((maker.name, maker.slot), unknown) if known is None else known

    def go_through(self, name: str, unit: float, unknown: float) -> None:
        """Note the errors of what a call gives out."""
        record = self._records[name]
        for place in places(record):
            if place.side == "output" and (name, place.slot) not in self._errors:
                self._errors[name, place.slot] = self._output(place, unit, unknown)

    def _output(self, place: Place, unit: float, unknown: float) -> float:
        value, record = _value(place), place.record
        operator = operator_of(record.name)
        if not value.is_float or not value.norm or not math.isfinite(value.norm) or operator.kind == "makes":
            return 0.0
        given = [seen for seen in _seen(record) if not seen.is_output]
        forward = self._records.get(self._keys.get(str(record.name.facing(FORWARD)), ""))
        if record.name.direction == FORWARD or forward is None:
            arguments: Sequence[Argument] = arguments_of(given)
            reach = forward_reach(operator, value, arguments, plain_numbers(given))
        else:
            ran = _seen(forward)
            inputs = [seen for seen in ran if not seen.is_output]
            outputs = arguments_of([seen for seen in ran if seen.is_output])
            whole = Backward(arguments_of(given), arguments_of(inputs), outputs, plain_numbers(inputs))
            arguments = whole.all
            reach = backward_reach(operator, value, position_of(Seen(Pair(place, place), value)), whole)
        errors = [self._argument(each, unknown) for each in arguments]
        own = own_rounding(reach, value.norm, min(unit, _coarsest(record)), mixed=False)
        return min(math.hypot(own / OUTPUT_ROUNDINGS, reach.likely(errors)) / value.norm, 2.0)

    def _argument(self, argument: Argument, unknown: float) -> float:
        """The error of an argument, in its unit."""
        if argument.spot is None:
            return unknown * argument.size
        key, slot = self._keys[argument.spot[0]], argument.spot[1]
        if slot.startswith("output"):  # what its forward call gave out
            return self._made(Maker("call", key, slot), unknown) * argument.size
        makers = self._graph.makers(key, slot)
        error = math.fsum(self._made(maker, unknown) for maker in makers) if makers else unknown
        return min(error, 2.0) * argument.size


def _seen(record: Record) -> list[Seen]:
    return [Seen(Pair(place, place), _value(place)) for place in places(record)]


def _value(place: Place) -> Difference:
    """The size of one value, as a difference from itself; without the numbers that mask others."""
    value = difference(Pair(place, place), None)
    stats = place.leaf.statistics if place.leaf is not None else None
    if stats is None or stats.min is None or stats.max is None or not value.is_float:
        return value
    if stats.min > -MASKED or stats.max >= MASKED:
        return value
    peak = max(abs(stats.max) if stats.max > -MASKED else 0.0, 1.0)
    return value._replace(norm=peak * math.sqrt(max(value.numbers, 1)), peak=peak)
