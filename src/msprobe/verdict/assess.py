"""The verdict of every recorded value: equal, rounding, passed on by the arguments, or made different here.

Each call is judged by its own arguments and nothing else; a backward call by the incoming gradients and what
went into and came out of its forward call. docs/decisions/013-verdict.md explains the whole on one page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from msprobe.analyse.judge import Finding
from msprobe.dtypes import SINGLE
from msprobe.graph import Graph
from msprobe.graph_order import in_order
from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD, CallName
from msprobe.operators import Operator, operator_of
from msprobe.pairing.stretch import Stretch
from msprobe.verdict import reason
from msprobe.verdict.call_facts import (
    coarsest,
    follows_from_dtype,
    is_setting,
    reaches_out,
    roundoffs,
    unjudged_reason,
    vanished_in,
)
from msprobe.verdict.call_inputs import CallInputs
from msprobe.verdict.decisions import flipped_by_decisions, flips_explained, most_flips, rows_apart
from msprobe.verdict.difference import SKETCH_NOISE, Difference
from msprobe.verdict.directions import (
    GAIN,
    NOISE,
    ScaleError,
    Test,
    floor_of,
    own_scale_of,
    rounding_tests,
    scale_deviation,
    tests_of,
    unit_tolerance,
    unlike_others,
    with_score,
)
from msprobe.verdict.following import as_set, beside_others, by_tests, made_inside, shows_effect, unexcused
from msprobe.verdict.levels import (
    CANNOT_TELL,
    ENTERED,
    NOT_JUDGED,
    ORIGINATED,
    PASSED_ON,
    ROUNDING,
    SAME,
    Made,
    Verdict,
)
from msprobe.verdict.one_sided import OneSided, gradients_wanted, only_place, paired_calls
from msprobe.verdict.origins import COMPUTED, Origin, Origins, is_usual
from msprobe.verdict.other_form import excused
from msprobe.verdict.precision import Coarser, Precision, coarser_calls
from msprobe.verdict.sources import Seen, Sources
from msprobe.verdict.stretches import lone_place
from msprobe.verdict.tolerance import (
    FLIP_SHARE,
    OUTPUT_ROUNDINGS,
    Argument,
    own_rounding,
    usual_rounding,
)

_SCORE = attrgetter("score")
_EQUAL = Verdict(SAME, error=0.0, tolerance=0.0)
_LOOKS_EQUAL = _EQUAL._replace(looks_equal=True)


def _same(value: Difference) -> Verdict:
    return _EQUAL if value.is_equal else _LOOKS_EQUAL


class Assessed(NamedTuple):
    """The verdicts of a comparison, and what is true of the run as a whole."""

    verdicts: list[Verdict]  # one for each finding
    precision: Precision | None  # the whole run computes in a coarser dtype
    unequal: frozenset[int]  # the numbers of the findings of tensors that are known not to be bit-equal


def assess(
    findings: Sequence[Finding], graphs: tuple[Graph, Graph], stretches: Sequence[Stretch] = ()
) -> Assessed:
    """Return a verdict for each finding, in their order; calls are judged in order of execution.

    `graphs`: of the target and of the golden run. `stretches`: their calls without a counterpart.
    """
    calls = paired_calls(findings)
    one_sided = OneSided(findings, graphs)
    seen = [[Seen(f.pair, one_sided.difference(f.pair, f.measured)) for f in call] for call in calls]
    verdicts: list[list[Verdict]] = [[] for _ in calls]
    order = in_order([call[0].pair.place.record.name for call in calls])
    coarser = coarser_calls(seen, order)
    judge = _Judge(seen, coarser, one_sided, graphs, stretches)
    for number in order:
        verdicts[number] = judge.call(seen[number])
    _leave_to_inner_calls(seen, verdicts, order, judge)
    unlike = unlike_others(judge.scales)
    for call, found in zip(seen, verdicts, strict=True) if judge.blamed or unlike else ():
        for place, one in enumerate(call):
            key = lone_place(one.pair)
            if key is not None and key in judge.blamed and not found[place].is_origin:
                found[place] = judge.blamed[key]
            elif id(one.pair) in unlike and found[place].level in (ROUNDING, PASSED_ON):
                found[place] = beside_others(found[place], unlike[id(one.pair)])
    flat = [verdict for found in verdicts for verdict in found]
    for number, verdict in excused([finding.pair for finding in findings], flat, graphs).items():
        flat[number] = verdict
    return Assessed(
        flat,
        coarser.fact,
        frozenset(n for n, one in enumerate(one for call in seen for one in call) if _is_unequal(one)),
    )


def _is_unequal(seen: Seen) -> bool:
    """Whether both runs have a tensor here, and its bits are known to differ."""
    leaf = seen.place.leaf
    return (
        seen.value.is_equal is False
        and seen.value.sight != "one side"
        and leaf is not None
        and leaf.is_tensor
    )


def _leave_to_inner_calls(
    calls: Sequence[Sequence[Seen]], verdicts: list[list[Verdict]], order: Sequence[int], judge: _Judge
) -> None:
    """Let a module's output follow from the call in it that made it: backward, the module is judged first."""
    inside: dict[str, str] = {}
    for number in order:
        name = calls[number][0].place.call
        if any(verdict.level == ORIGINATED for verdict in verdicts[number]):
            for module in judge.around(name):
                inside.setdefault(module, name)
    for number, call in enumerate(calls) if inside else ():
        name = call[0].place.call
        if name in inside:
            verdicts[number] = made_inside(call, verdicts[number], inside[name])


class _Judge:
    """Judges calls one after the other, and remembers what later ones need."""

    def __init__(
        self,
        calls: Sequence[Sequence[Seen]],
        coarser: Coarser,
        one_sided: OneSided,
        graphs: tuple[Graph, Graph],
        stretches: Sequence[Stretch],
    ) -> None:
        self._sources = Sources(calls)
        is_coarser = coarser.fact is not None
        self._origins = Origins(self._sources, graphs, stretches, is_coarser=is_coarser)
        self._errors, self._stretches = self._origins.errors, self._origins.stretches
        self.blamed = self._origins.blamed
        self._at_fault: set[int] = set()  # the ids of the stretches whose calls are blamed
        self._one_sided = one_sided
        self._graphs = graphs
        self._flipped = 0.0  # decisions that fell otherwise so far, at most
        self._coarser = coarser
        self._set_otherwise: set[CallName] = set()  # forward calls of which a setting that differs shows
        self.scales: list[ScaleError] = []
        self._likely: dict[int, float] = {}  # by the id of a pair of this call: the error that it likely has
        self._expected: dict[int, float] = {}  # by the same: what rounding and the arguments usually make
        self._parents = {call[0].place.call: call[0].place.record.parent for call in calls}
        self._made_in: dict[str, str] = {}  # a module: the call in it that made a difference
        self._units: dict[str, float] = {}  # a module: the roundoff of the coarsest dtype in it
        self._has_calls: set[str] = set()  # modules in which other calls were recorded
        self._one_rounding: dict[int, tuple[list[Test], float]] = {}  # by the id of a value
        self._roundoffs: dict[int, set[float]] = {}  # by the id of a call: those of its tensors
        for call in calls:
            self._prepare(call)

    def _prepare(self, call: Sequence[Seen]) -> None:
        self._roundoffs[id(call)] = roundoffs(call)
        unit = max(self._roundoffs[id(call)], default=SINGLE)
        name = call[0].place.call
        for module in self.around(name):
            self._units[module] = max(unit, self._units.get(module, 0.0))
            self._has_calls.add(module)

    def around(self, name: str) -> list[str]:
        """The modules that a call ran in, innermost first."""
        found: list[str] = []
        parent = self._parents.get(name)
        while parent is not None and parent not in found:
            found.append(parent)
            parent = self._parents.get(parent)
        return found

    def call(self, call: Sequence[Seen]) -> list[Verdict]:
        name = call[0].place.record.name
        operator = operator_of(name)
        if operator.is_undefined:
            return [Verdict(NOT_JUDGED, "its content is whatever the memory held") for _ in call]
        sources = self._sources.of(call)
        outputs = self._outputs(call, sources, operator)
        settings = self._settings(call, sources)
        is_set = any(not s.is_output and not s.value.agrees and is_setting(s) for s in call)
        shows = not (is_set or settings) or shows_effect(operator, call, outputs)
        is_needed = any(verdict.level == ORIGINATED for verdict in outputs.values())
        if settings and shows:
            outputs = {
                key: as_set(verdict, settings[0]) if verdict.level == ORIGINATED else verdict
                for key, verdict in outputs.items()
            }
        elif name.direction == BACKWARD:
            outputs = {key: _with_setting(verdict, sources) for key, verdict in outputs.items()}
        has_reach = reaches_out(operator, call)
        verdicts = []
        for seen in call:
            if seen.is_output:
                verdict = outputs[id(seen)]
            else:
                has_effect = has_reach and (shows or not is_setting(seen))
                verdict = self._input(seen, call, has_reach, operator, has_effect=has_effect)
                if seen.value.sight == "one side" and name.direction == BACKWARD and is_needed:
                    verdict = self._gradient_of_one_run(seen, verdict)
                if verdict.level == ENTERED and is_setting(seen) and not shows:
                    verdict = self._without_effect(seen, call, verdict)
            if id(seen.pair) in self._coarser.lost and not verdict.is_origin:
                verdict = self._lost(seen, verdict)
            verdicts.append(verdict)
        return self._noted(call, verdicts)

    def _gradient_of_one_run(self, seen: Seen, verdict: Verdict) -> Verdict:
        """Blame the call that gave back a gradient in one run only, which shows in what is made of it."""
        side, place = only_place(seen.pair)
        assert place is not None
        what = reason.what(seen.pair, seen.value)
        makers = self._graphs[side].makers(place.call, place.slot)
        if not makers or makers[0].kind != "call":
            return verdict._replace(level=ENTERED, reason=what, score=math.inf)
        name, slot = makers[0].name, makers[0].slot
        words = f"{what}, and {seen.place.call} makes something else of it"
        self.blamed.setdefault(
            (side, name, slot), verdict._replace(level=ORIGINATED, reason=words, score=math.inf)
        )
        return verdict._replace(level=PASSED_ON, reason=f"{what}, as {name} made it")

    def _without_effect(self, seen: Seen, call: Sequence[Seen], verdict: Verdict) -> Verdict:
        """The verdict of a setting that differs, if rounding and other arguments explain all outputs.

        A number that somebody wrote down as another one is named all the same where outputs are not
        bit-equal: rounding hides what it does. One that was computed from tensors may be off by rounding.
        So is a parameter that only one run gives, such as a weight of ones: the other run cannot train it.
        """
        computed = max(COMPUTED, OUTPUT_ROUNDINGS * coarsest(call))
        is_written = seen.value.is_float and seen.value.sight == "value" and seen.value.relative > computed
        if is_written or _reshapes(seen, call) or self._origins.is_parameter_of_one_run(seen):
            return verdict
        words = f"{reason.what(seen.pair, seen.value)}; the outputs show no effect"
        return verdict._replace(level=PASSED_ON, reason=words)

    def _settings(self, call: Sequence[Seen], sources: Sequence[Seen]) -> list[Seen]:
        """The settings that differ and may explain the outputs: those of the call, or of its forward call.

        Those of a forward call whose outputs show no effect explain nothing of the backward call either.
        """
        name = call[0].place.record.name
        found = [s for s in sources if not s.value.agrees and is_setting(s) and s.value.is_known]
        if name.direction != FORWARD and name.facing(FORWARD) not in self._set_otherwise:
            return [s for s in found if s.place.record.name.direction == name.direction]
        return sorted(found, key=lambda s: s.pair.is_one_sided)  # what both runs set says more

    def _lost(self, seen: Seen, verdict: Verdict) -> Verdict:
        """The verdict of a value at which the target begins to compute in a coarser dtype."""
        words = self._coarser.words[id(seen.pair)]
        if seen.value.is_known:
            words = f"{words}, off by {seen.value.relative:.2g}"
        level = ORIGINATED if seen.is_output else ENTERED
        return verdict._replace(level=level, reason=words, score=max(verdict.score, 1.0))

    def _noted(self, call: Sequence[Seen], verdicts: list[Verdict]) -> list[Verdict]:
        name = call[0].place.call
        if name in self._made_in:
            verdicts = made_inside(call, verdicts, self._made_in[name])
        elif any(verdict.is_origin for verdict in verdicts):
            self._made_in.update((module, name) for module in self.around(name))
        outputs = [v.error for s, v in zip(call, verdicts, strict=True) if s.is_output]
        has_effect = not outputs or any(error != 0 for error in outputs)
        for seen, verdict in zip(call, verdicts, strict=True):
            if verdict.level == ENTERED and is_setting(seen):
                self._set_otherwise.add(call[0].place.record.name)
            if verdict.error is not None and has_effect and not verdict.is_cancelled:
                self._errors.drift = max(self._errors.drift, verdict.error)
                if verdict.scale is not None and math.isfinite(verdict.scale):
                    self._errors.scale_drift = max(self._errors.scale_drift, abs(verdict.scale))
            if seen.value.sight == "one side":
                continue
            if seen.is_output and seen.pair.target is not None and seen.value.is_known:
                likely = self._likely.pop(id(seen.pair), self._errors.unseen(seen.value))
                expected = self._expected.pop(id(seen.pair), 0.0)
                self._origins.note(seen, Made(seen.value, verdict, likely, expected))
        return verdicts

    # ---- what goes in ----

    def _input(
        self, seen: Seen, call: Sequence[Seen], has_reach: bool, operator: Operator, *, has_effect: bool
    ) -> Verdict:
        value = seen.value
        if not value.is_known:
            return Verdict(NOT_JUDGED, unjudged_reason(seen.pair))
        if value.agrees:
            return gradients_wanted(seen) or _same(value)
        leaf = seen.place.leaf
        if follows_from_dtype(seen.pair, call):
            return Verdict(ROUNDING, "it follows from the dtype", value.relative, value.relative)
        value = self._origins.with_rounding_of_source(seen)
        tests, score = self._rounding(value) if value is seen.value else with_score(rounding_tests(value))
        tolerance = unit_tolerance(value)
        error = value.relative
        if score <= 1:
            return Verdict(
                ROUNDING, reason.within(error, tolerance), error, tolerance, score, scale=value.scale
            )
        is_plain = leaf is not None and not leaf.is_tensor
        what = reason.what(seen.pair, value)
        verdict = Verdict(PASSED_ON, "", error, tolerance, score, scale=value.scale)
        origin = Origin(False, "") if is_plain else self._origins.of(seen)
        if origin.explains:
            return verdict._replace(reason=f"{what}, {origin.words}", is_cancelled=origin.is_cancelled)
        if origin.is_open:
            return verdict._replace(level=CANNOT_TELL, reason=f"{what}; {origin.words}")
        if value.sight == "one side" and seen.place.record.name.direction != FORWARD:
            return verdict._replace(reason=f"{what}; what a parameter gets of it is judged there")
        if origin.stretch is not None and has_effect:
            return self._blame(origin.stretch, seen, verdict, origin.words)
        is_choice = self._flipped > 0 and self._origins.is_choice(seen)
        is_other_shape = value.sight == "shape" and (is_choice or not origin.is_known)
        if is_other_shape and rows_apart(seen.pair) <= self._flipped:
            return verdict._replace(reason=f"{what}, as decisions before it fell otherwise")
        if is_choice:
            words = f"{what}; decisions before it fell otherwise, so that it may be made of other numbers"
            return verdict._replace(level=CANNOT_TELL, reason=words)
        if not origin.is_known and is_usual(seen, tests, self._errors):
            return verdict._replace(reason=f"{what}, which earlier calls passed on")
        if not origin.is_known and operator.decides and self._decided_otherwise(call):
            return verdict._replace(reason=f"{what}; the forward call decided otherwise")
        if not origin.is_known and value.sight == "shape" and self._errors.drift > 0:
            words = f"{what}; it is not known what made it, and earlier calls differ by rounding"
            return verdict._replace(level=CANNOT_TELL, reason=words)
        if not has_reach and (is_plain or math.isfinite(error) or operator.overwrites):
            return verdict._replace(reason=f"{what}; the outputs show no effect")
        return verdict._replace(level=ENTERED, reason=reason.entered(seen.pair, value, origin.words))

    def _rounding(self, value: Difference) -> tuple[list[Test], float]:
        """The tests for one rounding, and their score; what one call gives out goes into others."""
        found = self._one_rounding.get(id(value))
        if found is None:
            found = self._one_rounding[id(value)] = with_score(rounding_tests(value))
        return found

    def _decided_otherwise(self, call: Sequence[Seen]) -> bool:
        """Whether the forward call of a backward call chose other numbers, whose gradients then come back."""
        forward = (s for s in self._sources.of(call) if s.place.record.name.direction == FORWARD)
        chosen = [s for s in forward if s.is_output and not s.value.is_float and s.value.is_known]
        is_backward = call[0].place.record.name.direction == BACKWARD
        return is_backward and any(not s.value.agrees for s in chosen)

    def _blame(self, stretch: Stretch, seen: Seen, verdict: Verdict, sight: str) -> Verdict:
        """Blame calls without a counterpart; return the verdict of the place behind them."""
        maker = self._stretches.maker(stretch, seen.pair)
        what = reason.what(seen.pair, seen.value)
        if maker is None:
            return verdict._replace(level=ENTERED, reason=f"{what}; {self._stretches.words(stretch)}")
        if id(stretch) not in self._at_fault:
            self._at_fault.add(id(stretch))
            lost = self._stretches.lost_precision(stretch)
            words = [*([lost] if lost else []), f"{what} as {seen.place.name}", sight]
            words.append(self._stretches.words(stretch))
            self.blamed[maker] = verdict._replace(level=ORIGINATED, reason="; ".join(words))
            self._made_in.update((module, maker[1]) for module in self.around(maker[1]))
        return verdict._replace(reason=f"{what}, as {maker[1]} made it")

    def _inherited(self, seen: Seen) -> Verdict | None:
        """The verdict of a module's output, or of a parameter's gradient, that calls inside have made."""
        name = seen.place.record.name
        if seen.pair.target is None or not (name.is_module or name.direction == PARAMETERS_GRAD):
            return None
        origin = self._origins.of(seen)
        value = seen.value
        if not origin.explains:
            verdict = Verdict(PASSED_ON, "", value.relative, unit_tolerance(value), scale=value.scale)
            if origin.is_open:
                words = f"{reason.what(seen.pair, value)}; {origin.words}"
                return verdict._replace(level=CANNOT_TELL, reason=words)
            return self._blame(origin.stretch, seen, verdict, origin.words) if origin.stretch else None
        self._likely[id(seen.pair)] = self._errors.of_result(value, origin.error)
        level = ROUNDING if self._rounding(value)[1] <= 1 else PASSED_ON
        return Verdict(
            level,
            f"{reason.off(value.relative)}, {origin.words}",
            value.relative,
            unit_tolerance(value),
            scale=value.scale,
            is_cancelled=origin.is_cancelled,
        )

    # ---- what comes out ----

    def _outputs(
        self, call: Sequence[Seen], sources: Sequence[Seen], operator: Operator
    ) -> dict[int, Verdict]:
        """The verdicts of what came out, by their ids."""
        verdicts: dict[int, Verdict] = {}
        given: CallInputs | None = None
        for seen in call:
            if not seen.is_output:
                continue
            verdict = self._plain_verdict(seen)
            if verdict is None:
                if given is None:
                    units = self._roundoffs[id(call)]
                    name = call[0].place.record.name
                    given = CallInputs(name, operator, sources, units, self._errors, self._is_changed_state)
                verdict = self._output(seen, given)
            verdicts[id(seen)] = verdict
        return verdicts

    def _plain_verdict(self, seen: Seen) -> Verdict | None:
        """The verdict of an output for which nothing that went into the call needs to be known."""
        value = seen.value
        if not value.is_known:
            return Verdict(NOT_JUDGED, unjudged_reason(seen.pair))
        if value.agrees:
            return _same(value)
        return self._lone(seen) if value.sight == "one side" else self._inherited(seen)

    def _output(self, seen: Seen, given: CallInputs) -> Verdict:
        value, others = seen.value, given.other_counts
        if not value.is_float or value.sight == "shape":
            return self._whole(seen, given)
        if others and not all(source.value.is_known for source in others):
            verdict = self._tested(seen, given)
            words = f"{reason.off(value.relative)}; what goes in has another shape, and it is not known why"
            return verdict._replace(level=CANNOT_TELL, reason=words) if verdict.is_origin else verdict
        if others:
            words = f"{reason.off(value.relative)}; what goes in has another shape"
            return Verdict(PASSED_ON, words, value.relative, unit_tolerance(value), scale=value.scale)
        return self._tested(seen, given)

    def _tested(self, seen: Seen, given: CallInputs) -> Verdict:
        """The verdict of numbers with a fraction, beside what rounding and the arguments make of them."""
        value, name = seen.value, seen.place.record.name
        arguments, errors, largest = given.arguments, given.errors, given.largest
        unit = max(given.unit, self._units.get(seen.place.call, 0.0))
        if given.operator.has_steps:
            unit = max(unit, self._coarser.automatic)
        reach = given.reach(seen)
        mixed = len(given.units - {0.0}) > 1 or unit > max(given.own_units, default=SINGLE)
        own = own_rounding(reach, value.norm, unit, mixed)
        reached = reach.of(largest)
        flipped = flipped_by_decisions(reach, value, arguments, largest, given.decided)
        if name.is_module and seen.place.call in self._has_calls:
            reached, reach = 8 * reached, reach.at_most(math.inf)
        bound = own + GAIN * reached + flipped
        if value.is_estimated:
            bound += SKETCH_NOISE * value.norm
        usual = usual_rounding(reach, value.norm, unit, mixed)
        likely_reached = reach.likely(errors)
        likely = math.hypot(usual, likely_reached, flipped)
        self._likely[id(seen.pair)] = self._errors.of_result(value, likely)
        self._expected[id(seen.pair)] = math.hypot(usual, reach.likely(largest), flipped)
        floor = floor_of(reach, value, unit, mixed)
        tests = tests_of(value, unit, floor, own, bound, reached, likely, reach, arguments, errors)
        tests = self._relevant(tests, seen, given, own, has_flips=flipped > 0)
        if reach.is_exact and not mixed and not given.differing:
            tests.append(Test("positions", math.inf, 1.0))  # it only moves numbers, and its bits are others
        worst = max(tests, key=_SCORE, default=Test("size", 0.0, 1.0))
        if 0 < value.norm < math.inf and likely <= NOISE * value.norm and _has_coarse_scale(seen, unit):
            deviation = scale_deviation(value, own, likely, reach, arguments, errors)
            self._note_scale(seen, given, unit, own_scale_of(value, deviation, reach, arguments))
        is_rounding = worst.score <= 1 and (
            self._rounding(value)[1] <= 1
            or all(
                test.score <= 1
                for test in tests_of(value, unit, floor, own, own, 0.0, own / OUTPUT_ROUNDINGS, reach, (), ())
            )
        )
        verdict = Verdict(
            ORIGINATED,
            error=value.relative,
            tolerance=own / (value.norm or 1.0),
            score=worst.score,
            explained=bound / (value.norm or 1.0),
            reached=likely_reached / (value.norm or 1.0),
            scale=value.scale,
            is_cancelled=reach.size > 16 * value.norm,
        )
        return by_tests(verdict, seen, worst, given.differing, given.sources, is_rounding=is_rounding)

    def _relevant(
        self, tests: Sequence[Test], seen: Seen, given: CallInputs, own: float, *, has_flips: bool
    ) -> list[Test]:
        """The tests that nothing excuses, and one that fails where numbers vanished."""
        found = unexcused(tests, given.differing, has_flips=has_flips)
        name = seen.place.record.name
        if name.is_module and seen.place.call in self._has_calls:  # the calls in it are judged themselves
            found = [test for test in found if test.name in ("size", "odd")]
        run = vanished_in(seen.pair) if own < seen.value.norm else None
        if run is None or given.operator.decides:
            return found
        if all(vanished_in(source.pair) != run for source in given.differing):  # of zeros come zeros
            found.append(Test("size", math.inf, 1.0))
        return found

    def _is_changed_state(self, argument: Argument) -> bool:
        """Whether an argument is a parameter or buffer that differs by more than rounding."""
        if argument.spot is None or not argument.value.relative > unit_tolerance(argument.value):
            return False
        return any(maker.kind in ("parameter", "buffer") for maker in self._graphs[0].makers(*argument.spot))

    def _lone(self, seen: Seen) -> Verdict:
        """The verdict of an output that only one run has."""
        what = reason.what(seen.pair, seen.value)
        if seen.place.call in self._has_calls:
            return Verdict(PASSED_ON, f"{what}, as the calls in this module say")
        if self._one_sided.is_needed(seen.pair):
            return Verdict(ORIGINATED, what, score=math.inf)
        return Verdict(PASSED_ON, f"{what}; nothing that was recorded needs it")

    def _note_scale(
        self, seen: Seen, given: CallInputs, unit: float, found: tuple[float, float, float] | None
    ) -> None:
        """Keep the scale error of a call, to be held against that of its like."""
        if found is not None:
            key = (given.operator.concept, seen.place.record.name.direction, unit)
            shapes = tuple(argument.shape for argument in given.arguments)
            self.scales.append(ScaleError(key, shapes, id(seen.pair), *found))

    def _whole(self, seen: Seen, given: CallInputs) -> Verdict:
        """Of whole numbers and truth values, and of shapes."""
        value, error, differing = seen.value, seen.value.relative, given.differing
        what = reason.what(seen.pair, value)
        if value.sight == "shape":
            explains = [s for s in differing if s.value.sight == "shape" or given.operator.shapes_by_value]
            if explains:
                return Verdict(PASSED_ON, f"{what}, as its inputs differ", error, 0.0)
        elif differing and (value.unequal or 0) <= flips_explained(seen, differing, self._errors):
            unequal = most_flips(value.numbers, FLIP_SHARE * self._errors.drift)
            self._flipped += unequal if value.unequal is None else value.unequal
            return Verdict(PASSED_ON, "a whole number or truth value changed with its inputs", error, 0.0)
        test = Test("odd", math.inf, 1.0)
        return Verdict(
            ORIGINATED, reason.originated(seen.pair, value, test, given.sources, 0.0), error, 0.0, math.inf
        )


def _has_coarse_scale(seen: Seen, unit: float) -> bool:
    """Whether a result's scale error is held against that of others: of a forward call, in a coarse dtype."""
    name = seen.place.record.name
    return unit > SINGLE and name.direction == FORWARD and not name.is_module


def _with_setting(verdict: Verdict, sources: Sequence[Seen]) -> Verdict:
    """The verdict of a gradient, with a setting of the forward call that differs: it may act here alone."""
    found = [s for s in sources if not s.value.agrees and is_setting(s) and s.value.is_known]
    if verdict.level != ORIGINATED or not found:
        return verdict
    place = found[0].place
    words = f"{verdict.reason}; {place.name} differs too: {reason.what(found[0].pair, found[0].value)}"
    return verdict._replace(reason=words)


def _reshapes(seen: Seen, call: Sequence[Seen]) -> bool:
    """Whether an input of another shape gives the outputs another shape too."""
    return seen.value.sight == "shape" and any(s.value.sight == "shape" for s in call if s.is_output)
