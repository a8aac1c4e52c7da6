"""The verdict of every recorded value: equal, rounding, passed on by the arguments, or made different here.

Each call is judged by its own arguments and nothing else; a backward call by the incoming gradients and what
went into and came out of its forward call. docs/decisions/013-verdict.md explains the whole on one page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from msprobe.analyse.judge import Finding, by_call
from msprobe.dtypes import SINGLE
from msprobe.graph import Graph, Maker
from msprobe.graph_order import in_order
from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD
from msprobe.operators import Operator, operator_of
from msprobe.verdict import reason
from msprobe.verdict.call_facts import (
    arguments_of,
    coarsest,
    content,
    flipped_by_decisions,
    follows_from_dtype,
    is_mixed,
    is_output,
    is_setting,
    plain_numbers,
    position_of,
    reaches_out,
    shows_all,
    spot_of,
    unjudged_reason,
)
from msprobe.verdict.difference import Difference, difference
from msprobe.verdict.directions import (
    CLEAN,
    GAIN,
    NOISE,
    ScaleError,
    Test,
    floor_of,
    own_scale_of,
    rounding_tests,
    tests_of,
    unit_tolerance,
    unlike_others,
)
from msprobe.verdict.gradients import Backward, backward_reach, parameter_reach
from msprobe.verdict.precision import Coarser, Precision, coarser_calls
from msprobe.verdict.sources import Seen, Sources
from msprobe.verdict.tolerance import OUTPUT_ROUNDINGS, Argument, Reach, forward_reach, own_rounding

Level = Literal["same", "rounding", "passed on", "entered", "originated", "cannot tell", "not judged"]
SAME: Level = "same"
ROUNDING: Level = "rounding"  # differs, as far as rounding explains
PASSED_ON: Level = "passed on"  # differs more, and so did what went into the call
ENTERED: Level = "entered"  # an input that differs though nothing recorded before it does
ORIGINATED: Level = "originated"  # what went in agrees, what came out does not
CANNOT_TELL: Level = "cannot tell"  # differs, and what was recorded does not say why
NOT_JUDGED: Level = "not judged"
LEVELS = (SAME, ROUNDING, PASSED_ON, ENTERED, ORIGINATED, CANNOT_TELL, NOT_JUDGED)

DRIFT_GAIN = 8.0  # of a value whose maker is unknown: times the largest relative error so far
COMPUTED = 2.0**-9  # a plain number that is further off was not computed from what differs, but set


class Verdict(NamedTuple):
    """What became of a value, why, and the numbers behind it."""

    level: Level
    reason: str = ""
    error: float | None = None  # relative; also the smallest tolerance that would have passed
    tolerance: float | None = None  # relative: what rounding explains here
    score: float = 0.0  # the largest of the tests, in units of its bound: above 1 nothing explains it
    explained: float | None = None  # relative: what rounding and the arguments explain together
    scale: float | None = None
    is_cancelled: bool = False  # its summands cancel, so that its relative error says nothing
    is_change: bool = False  # of a parameter over the step before: its gradient does not explain it

    @property
    def is_origin(self) -> bool:
        return self.level in (ENTERED, ORIGINATED)


_EQUAL = Verdict(SAME, error=0.0, tolerance=0.0)


class Assessed(NamedTuple):
    """The verdicts of a comparison, and what is true of the run as a whole."""

    verdicts: list[Verdict]  # one for each finding
    precision: Precision | None  # the whole run computes in a coarser dtype


def assess(findings: Sequence[Finding], graph: Graph) -> Assessed:
    """Return a verdict for each finding, in their order; calls are judged in order of execution.

    `graph`: who made which value of the target.
    """
    calls = list(by_call(findings))
    seen = [[Seen(f.pair, difference(f.pair, f.measured)) for f in call] for call in calls]
    verdicts: list[list[Verdict]] = [[] for _ in calls]
    order = in_order([call[0].pair.place.record.name for call in calls])
    coarser = coarser_calls(seen, order)
    judge = _Judge(seen, coarser, graph)
    for number in order:
        verdicts[number] = judge.call(seen[number])
    doubts = unlike_others(judge.scales)
    for call, found in zip(seen, verdicts, strict=True):
        for place, one in enumerate(call):
            if id(one.pair) in doubts and found[place].level in (ROUNDING, PASSED_ON):
                words = f"{found[place].reason}; {doubts[id(one.pair)]}"
                found[place] = found[place]._replace(level=CANNOT_TELL, reason=words)
    return Assessed([verdict for found in verdicts for verdict in found], coarser.fact)


class Made(NamedTuple):
    """A value that a call gave out, and what became of it."""

    value: Difference
    verdict: Verdict
    error: float  # that it likely has, in its unit

    @property
    def relative(self) -> float:
        """The relative error, at least as large as what was seen."""
        likely = self.error / self.value.norm if self.value.norm else 0.0
        return max(self.verdict.error or 0.0, likely)


class _Judge:
    """Judges calls one after the other, and remembers what later ones need."""

    def __init__(self, calls: Sequence[Sequence[Seen]], coarser: Coarser, graph: Graph) -> None:
        self._sources = Sources(calls)
        self._graph = graph
        self._coarser = coarser
        self._drift = 0.0  # the largest relative error so far
        self.scales: list[ScaleError] = []
        self._likely: dict[int, float] = {}  # by the id of a pair of this call: the error that it likely has
        self._shown: dict[object, Made] = {}  # by content: the same, for recordings that name no makers
        self._made: dict[tuple[str, str], Made] = {}  # by record and slot: what calls gave out
        self._parents = {
            str(call[0].pair.place.record.name): call[0].pair.place.record.parent for call in calls
        }
        self._made_in: dict[str, str] = {}  # a module: the call in it that made a difference
        self._units: dict[str, float] = {}  # a module: the roundoff of the coarsest dtype in it
        self._has_calls: set[str] = set()  # modules in which other calls were recorded
        for call in calls:
            self._prepare(call)

    def _prepare(self, call: Sequence[Seen]) -> None:
        unit = coarsest(call)
        name = str(call[0].pair.place.record.name)
        for module in self._around(name):
            self._units[module] = max(unit, self._units.get(module, 0.0))
            self._has_calls.add(module)

    def _around(self, name: str) -> list[str]:
        """The modules that a call ran in, innermost first."""
        found: list[str] = []
        parent = self._parents.get(name)
        while parent is not None and parent not in found:
            found.append(parent)
            parent = self._parents.get(parent)
        return found

    def call(self, call: Sequence[Seen]) -> list[Verdict]:
        name = call[0].pair.place.record.name
        operator = operator_of(name)
        if operator.is_undefined:
            return [Verdict(NOT_JUDGED, "its content is whatever the memory held") for _ in call]
        sources = self._sources.of(call)
        outputs = {id(seen): self._output(seen, call, sources, operator) for seen in call if is_output(seen)}
        settings = [s for s in sources if is_setting(s) and s.value.is_known and not s.value.agrees]
        shows = _shows_effect(operator, call, outputs)
        if settings and shows:
            outputs = {
                key: _as_set(verdict, settings[0]) if verdict.level == ORIGINATED else verdict
                for key, verdict in outputs.items()
            }
        has_reach = reaches_out(operator, call)
        verdicts = []
        for seen in call:
            if is_output(seen):
                verdict = outputs[id(seen)]
            else:
                verdict = self._input(seen, call, has_reach, operator)
                if verdict.level == ENTERED and is_setting(seen) and not shows:
                    words = f"{reason.what(seen.pair, seen.value)}; the outputs show no effect"
                    verdict = verdict._replace(level=PASSED_ON, reason=words)
            if id(seen.pair) in self._coarser.lost and not verdict.is_origin:
                verdict = self._lost(seen, verdict)
            verdicts.append(verdict)
        return self._noted(call, verdicts)

    def _lost(self, seen: Seen, verdict: Verdict) -> Verdict:
        """The verdict of a value at which the target begins to compute in a coarser dtype."""
        words = self._coarser.words[id(seen.pair)]
        if seen.value.is_known:
            words = f"{words}, off by {seen.value.relative:.2g}"
        level = ORIGINATED if is_output(seen) else ENTERED
        return verdict._replace(level=level, reason=words, score=max(verdict.score, 1.0))

    def _noted(self, call: Sequence[Seen], verdicts: list[Verdict]) -> list[Verdict]:
        name = str(call[0].pair.place.record.name)
        if name in self._made_in:
            verdicts = [
                _made_inside(verdict, self._made_in[name]) if is_output(seen) else verdict
                for seen, verdict in zip(call, verdicts, strict=True)
            ]
        elif any(verdict.is_origin for verdict in verdicts):
            self._made_in.update((module, name) for module in self._around(name))
        outputs = [v.error for s, v in zip(call, verdicts, strict=True) if is_output(s)]
        has_effect = not outputs or any(error != 0 for error in outputs)
        for seen, verdict in zip(call, verdicts, strict=True):
            if verdict.error is not None and has_effect and not verdict.is_cancelled:
                self._drift = max(self._drift, verdict.error)
            if is_output(seen) and seen.pair.target is not None and seen.value.is_known:
                likely = self._likely.pop(id(seen.pair), self._unseen(seen.value))
                made = self._made[spot_of(seen)] = Made(seen.value, verdict, likely)
                if not seen.value.agrees and (known := content(seen.pair)) is not None:
                    self._shown[known] = made
        return verdicts

    # ---- what goes in ----

    def _input(self, seen: Seen, call: Sequence[Seen], has_reach: bool, operator: Operator) -> Verdict:
        value = seen.value
        if not value.is_known:
            return Verdict(NOT_JUDGED, unjudged_reason(seen.pair))
        if value.agrees:
            return _EQUAL
        leaf = seen.pair.place.leaf
        if value.sight == "value" and follows_from_dtype(seen.pair, call):
            return Verdict(ROUNDING, "it follows from the dtype", value.relative, value.relative)
        tests = rounding_tests(value)
        score = max(test.score for test in tests)
        tolerance = unit_tolerance(value)
        error = value.relative
        if score <= 1:
            return Verdict(
                ROUNDING, reason.within(error, tolerance), error, tolerance, score, scale=value.scale
            )
        is_plain = leaf is not None and not leaf.is_tensor
        what = reason.what(seen.pair, value)
        verdict = Verdict(PASSED_ON, "", error, tolerance, score, scale=value.scale)
        origin = Origin(False, "") if is_plain else self._origin(seen)
        if origin.explains:
            return verdict._replace(reason=f"{what}, {origin.words}", is_cancelled=origin.is_cancelled)
        drift = min(self._drift, COMPUTED) if is_plain else DRIFT_GAIN * self._drift
        is_small = error <= tolerance + drift and value.sight != "shape" and not value.is_moved
        if not origin.is_known and is_small:
            return verdict._replace(reason=f"{what}, which earlier calls passed on")
        if not origin.is_known and value.sight == "shape" and self._drift > 0:
            words = f"{what}; it is not known what made it, and earlier calls differ by rounding"
            return verdict._replace(level=CANNOT_TELL, reason=words)
        if not has_reach and (is_plain or math.isfinite(error) or operator.overwrites):
            return verdict._replace(reason=f"{what}; the outputs show no effect")
        return verdict._replace(level=ENTERED, reason=reason.entered(seen.pair, value, origin.words))

    def _origin(self, seen: Seen) -> Origin:
        """Where a tensor that differs comes from, and whether that explains it."""
        if seen.pair.target is None:
            return Origin(False, "")
        record, slot = spot_of(seen)
        makers = self._graph.makers(record, slot)
        named = next((maker for maker in makers if maker.kind in ("parameter", "buffer")), None)
        if named is not None:
            return Origin(True, f"it is the {named.kind} {named.name}")
        gradient = next((maker for maker in makers if maker.kind == "gradient"), None)
        if gradient is not None:
            makers = self._graph.gradient_makers(gradient.name)
        found = [
            self._made[maker.name, maker.slot] for maker in makers if (maker.name, maker.slot) in self._made
        ]
        if not makers and content(seen.pair) in self._shown:
            shown = self._shown[content(seen.pair)]
            return Origin(True, "as an earlier call made it", True, shown.verdict.is_cancelled, shown.error)
        if not found or len(found) < len(makers):
            return Origin(False, _unpaired(makers))
        words = (
            f"as {makers[0].name} made it" if len(makers) == 1 else f"as {makers[0].name} and others made it"
        )
        value = seen.value
        if value.sight == "shape" or value.is_odd:
            explains = any(made.value.sight == "shape" or made.value.is_odd for made in found)
            return Origin(True, words if explains else _changed(makers), explains)
        if all(made.value.agrees for made in found):
            return Origin(True, _changed(makers))
        total = math.fsum(made.error for made in found)
        gain = 1.5 if len(makers) == 1 and makers[0].is_exact and gradient is None else GAIN
        relative = max(made.relative for made in found)
        if value.is_float:
            limit = max(gain * total, gain * relative * value.norm) + unit_tolerance(value) * value.norm
            explains = value.error <= limit or relative == math.inf
        else:
            explains = True
        cancelled = any(made.verdict.is_cancelled for made in found)
        return Origin(True, words if explains else _changed(makers), explains, cancelled, total)

    def _inherited(self, seen: Seen) -> Verdict | None:
        """The verdict of a module's output, or of a parameter's gradient, that calls inside have made."""
        name = seen.pair.place.record.name
        if seen.pair.target is None or not (name.is_module or name.direction == PARAMETERS_GRAD):
            return None
        origin = self._origin(seen)
        if not origin.explains:
            return None
        value = seen.value
        self._likely[id(seen.pair)] = self._likely_error(value, origin.error)
        tests = rounding_tests(value)
        level = ROUNDING if all(test.score <= 1 for test in tests) else PASSED_ON
        return Verdict(
            level,
            f"{reason.off(value.relative)}, {origin.words}",
            value.relative,
            unit_tolerance(value),
            scale=value.scale,
            is_cancelled=origin.is_cancelled,
        )

    # ---- what comes out ----

    def _output(
        self, seen: Seen, call: Sequence[Seen], sources: Sequence[Seen], operator: Operator
    ) -> Verdict:
        value = seen.value
        if not value.is_known:
            return Verdict(NOT_JUDGED, unjudged_reason(seen.pair))
        if value.agrees:
            return _EQUAL
        name = seen.pair.place.record.name
        inherited = self._inherited(seen)
        if inherited is not None:
            return inherited
        differing = [s for s in sources if s.value.is_known and not s.value.agrees]
        if not value.is_float or value.sight == "shape":
            return self._whole(seen, differing, sources)
        unit = max(coarsest((*call, *sources)), self._units.get(str(name), 0.0))
        reach, arguments = self._reach(seen, call, sources, operator)
        errors = [self._error_of(argument) for argument in arguments]
        mixed = is_mixed((*call, *sources)) or self._units.get(str(name), 0.0) > coarsest(call)
        if any(argument.value.is_equal is None for argument in arguments):
            reach = reach._replace(is_exact=False)  # it is not known whether exactly the same went in
        own = own_rounding(reach, value.norm, unit, mixed)
        reached = reach.of(errors)
        flipped = flipped_by_decisions(reach, value, arguments, errors, sources)
        if name.is_module and str(name) in self._has_calls:
            reached *= 8
        bound = own + GAIN * reached + flipped
        likely = math.hypot(own / OUTPUT_ROUNDINGS, reach.likely(errors), flipped)
        self._likely[id(seen.pair)] = self._likely_error(value, likely)
        floor = floor_of(reach, value, unit, mixed)
        tests = list(tests_of(value, unit, floor, own, bound, reached, likely, reach, arguments, errors))
        tests = _unexcused(tests, differing)
        if reach.is_exact and not mixed and not differing:
            tests.append(Test("positions", math.inf, 1.0))  # it only moves numbers, and its bits are others
        worst = max(tests, key=lambda test: test.score, default=Test("size", 0.0, 1.0))
        if bound <= NOISE * value.norm and likely <= CLEAN * unit * value.norm:
            self._note_scale(seen, operator, unit, own_scale_of(value, own, likely, reach, arguments, errors))
        alone = tests_of(value, unit, floor, own, own, 0.0, own / OUTPUT_ROUNDINGS, reach, (), ())
        error, norm, cancelled = value.relative, value.norm or 1.0, reach.size > 16 * value.norm
        tolerance, explained = own / norm, bound / norm
        verdict = Verdict(
            ORIGINATED,
            error=error,
            tolerance=tolerance,
            score=worst.score,
            explained=explained,
            scale=value.scale,
            is_cancelled=cancelled,
        )
        if all(test.score <= 1 for test in alone):
            text = reason.within(error, tolerance)
            if cancelled and error > 0.01:
                text = f"{reason.off(error)}, but its summands cancel: that is rounding of far larger numbers"
            return verdict._replace(level=ROUNDING, reason=text)
        if worst.score <= 1:
            is_small = all(test.score <= 1 for test in rounding_tests(value))
            level = ROUNDING if is_small else PASSED_ON
            return verdict._replace(level=level, reason=reason.passed(error, differing))
        return verdict._replace(reason=reason.originated(seen.pair, value, worst, sources, tolerance))

    def _note_scale(
        self, seen: Seen, operator: Operator, unit: float, found: tuple[float, float, float] | None
    ) -> None:
        """Keep the scale error of a forward call in a coarse dtype, to be held against that of its like."""
        name = seen.pair.place.record.name
        if found is not None and unit > SINGLE and name.direction == FORWARD and not name.is_module:
            key = (operator.concept, name.direction, unit)
            self.scales.append(ScaleError(key, id(seen.pair), *found))

    def _whole(self, seen: Seen, differing: Sequence[Seen], sources: Sequence[Seen]) -> Verdict:
        """Of whole numbers and truth values, and of shapes."""
        value, error = seen.value, seen.value.relative
        what = reason.what(seen.pair, value)
        if value.sight == "shape":
            operator = operator_of(seen.pair.place.record.name)
            explains = [s for s in differing if s.value.sight == "shape" or operator.shapes_by_value]
            if explains:
                return Verdict(PASSED_ON, f"{what}, as its inputs differ", error, 0.0)
        elif differing:
            return Verdict(PASSED_ON, "a whole number or truth value changed with its inputs", error, 0.0)
        test = Test("odd", math.inf, 1.0)
        return Verdict(
            ORIGINATED, reason.originated(seen.pair, value, test, sources, 0.0), error, 0.0, math.inf
        )

    def _error_of(self, argument: Argument) -> float:
        """The error that an argument likely has."""
        value = argument.value
        if value.is_equal or (value.agrees and self._drift == 0):
            return 0.0  # where something differs, four statistics that agree do not show that nothing does
        if value.is_odd or value.is_moved:
            return value.norm
        if value.is_measured or argument.spot is None:
            return value.error
        makers = self._graph.makers(*argument.spot)
        found = [self._made[m.name, m.slot] for m in makers if (m.name, m.slot) in self._made]
        if found and len(found) == len(makers):
            likely = math.fsum(made.error for made in found)
        else:
            likely = 1.5 * value.unit * value.norm
        return min(max(value.error, likely), 2 * value.norm)

    def _unseen(self, value: Difference) -> float:
        """The error of a value that looks equal: where something differs, it may have been rounded once."""
        if value.is_equal or self._drift == 0 or not math.isfinite(value.norm):
            return value.error
        return max(value.error, value.unit * value.norm)

    def _likely_error(self, value: Difference, likely: float) -> float:
        """The error that a result has if it was measured, else the one that is likely."""
        return value.error if value.is_measured else min(max(value.error, likely), 2 * value.norm)

    def _reach(
        self, seen: Seen, call: Sequence[Seen], sources: Sequence[Seen], operator: Operator
    ) -> tuple[Reach, Sequence[Argument]]:
        name = seen.pair.place.record.name
        if name.direction == FORWARD:
            own = [s for s in sources if s.pair.place.side != "output"]
            arguments = arguments_of(own)
            return forward_reach(operator, seen.value, arguments, plain_numbers(own)), arguments
        gradients = [s for s in sources if s.pair.place.record.name.direction == BACKWARD]
        forward = [s for s in sources if s.pair.place.record.name.direction == FORWARD]
        given = Backward(
            arguments_of([s for s in gradients if s.pair.place.side != "output"]),
            arguments_of([s for s in forward if s.pair.place.side != "output"]),
            arguments_of([s for s in forward if s.pair.place.side == "output"]),
            plain_numbers(forward),
        )
        if name.direction == PARAMETERS_GRAD:
            return parameter_reach(seen.value, given), given.all
        return backward_reach(operator, seen.value, position_of(seen), given), given.all


class Origin(NamedTuple):
    """Where a value that goes into a call comes from."""

    is_known: bool
    words: str
    explains: bool = False  # what made it was as far off
    is_cancelled: bool = False
    error: float = 0.0  # that it likely has


def _unexcused(tests: Sequence[Test], differing: Sequence[Seen]) -> list[Test]:
    """Leave out the tests that arguments of whole numbers, or such with infinities, explain."""
    excused = set()
    if any(seen.value.is_odd or not seen.value.is_float for seen in differing):
        excused.add("odd")
    if any(seen.value.is_moved or not seen.value.is_float for seen in differing):
        excused.add("positions")
    return [test for test in tests if test.name not in excused]


def _unpaired(makers: Sequence[Maker]) -> str:
    return f"it comes from {makers[0].name}, which has no counterpart" if makers else ""


def _changed(makers: Sequence[Maker]) -> str:
    if not makers:
        return ""
    return f"something that was not recorded changed it after {makers[0].name}"


def _shows_effect(operator: Operator, call: Sequence[Seen], outputs: Mapping[int, Verdict]) -> bool:
    """Whether a setting that differs may have had an effect: unless all outputs are explained without it."""
    if not outputs or operator.changes_state or call[0].pair.place.record.name.direction != FORWARD:
        return True
    if any(is_output(seen) and seen.value.agrees and not shows_all(seen) for seen in call):
        return True
    levels = {verdict.level for verdict in outputs.values()}
    return levels == {NOT_JUDGED} or bool(levels & {ORIGINATED, CANNOT_TELL})


def _as_set(verdict: Verdict, setting: Seen) -> Verdict:
    words = f"{reason.off(verdict.error or 0.0)}, as {setting.pair.place.slot} is another"
    return verdict._replace(level=PASSED_ON, reason=words)


def _made_inside(verdict: Verdict, culprit: str) -> Verdict:
    """A module's output is what a call in it made of it."""
    if verdict.level not in (ORIGINATED, PASSED_ON):
        return verdict
    text = f"{reason.off(verdict.error or 0.0)}, made inside by {culprit}"
    return verdict._replace(level=PASSED_ON, reason=text)
