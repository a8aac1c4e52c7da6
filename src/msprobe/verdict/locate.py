"""Where two runs part: the first divergence, the call that made it, and what was not checked before it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msprobe.analyse.judge import Finding
from msprobe.graph import is_carried
from msprobe.graph_order import in_order
from msprobe.graph_values import is_telling
from msprobe.kernels import SKETCH_SIZE, Statistics
from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD, earlier_step, slot_name
from msprobe.operators import operator_of
from msprobe.pairing.described import sketch_lengths
from msprobe.pairing.match import Pair, Place
from msprobe.pairing.step_part import OPTIMIZER, part_of
from msprobe.plural import counted
from msprobe.record import Leaf, Record, Recording, is_float, leaves
from msprobe.verdict.call_facts import content
from msprobe.verdict.hint import hint
from msprobe.verdict.levels import CANNOT_TELL, ENTERED, NOT_JUDGED, PASSED_ON, ROUNDING, Verdict
from msprobe.verdict.replay_evidence import PROVEN, REFUTED, ReplayEvidence

Grade = Literal["strong", "fair", "weak"]


class Evidence(NamedTuple):
    """How sure it is that nothing parts before: what was looked at, and what was not."""

    grade: Grade
    checked: int  # places before, whose values were compared
    unchecked: Mapping[str, int]  # why, and how many places
    notes: tuple[str, ...] = ()


class Divergence(NamedTuple):
    """A place where two runs part."""

    row: int  # of the table, counted from 0
    place: Place
    verdict: Verdict
    evidence: Evidence
    modules: tuple[str, ...] = ()  # that it was called in, the innermost first
    frames: tuple[str, ...] = ()  # of its call stack
    order: tuple[int, int] = (0, 0)  # collectives before it, calls before it
    hint: str = ""
    step: int | None = None
    rank: int | None = None
    content: object = None  # tells its values from others
    golden: str = ""  # the call that it was judged by
    replay: ReplayEvidence | None = None  # what calling it again showed, if that was asked for
    made_in: int | None = None  # the earlier step in which the same call of both runs made exactly this value

    @property
    def is_refuted(self) -> bool:
        """Whether calling it again showed that the call itself is not at fault."""
        return self.replay is not None and self.replay.outcome == REFUTED

    @property
    def is_collective(self) -> bool:
        return operator_of(self.place.record.name).communicates


class Located(NamedTuple):
    """One rank at one step."""

    first: Divergence | None  # differs by more than rounding and its inputs explain, or may do so
    culprit: Divergence | None  # made it, or is where it came in; None also if replay refuted all
    origins: tuple[Divergence, ...]  # all that look so, in the order of execution; see with_replay()
    not_finite: Divergence | None  # the target's first call that made NaN of finite numbers
    step: int | None = None
    noise: frozenset[object] = frozenset()  # what may differ in later steps: contents, names of gradients
    not_equal: Divergence | None = None  # the first value that is known not to be bit-equal
    uncertain: Divergence | None = None  # the first value of which it cannot be told
    has_grown: bool = False  # some differences are larger than one rounding, and their inputs explain them
    gap: str = ""  # why what was judged is too little to say that nothing differs
    gradient_error: float = 0.0  # the largest relative error of a gradient that its inputs explain
    look_equal: int = 0  # values that show no difference, of which nothing says that the bits are equal


def locate(
    target: Recording,
    golden: Recording,
    mode: str,
    findings: Sequence[Finding],
    verdicts: Sequence[Verdict],
    *,
    unequal: Collection[int] = (),
    notes: Sequence[str] = (),
    gap: str = "",
) -> Located:
    """Go through the calls in the order of execution.

    `unequal`: the rows of tensors that are known not to be bit-equal. `notes` say what speaks against the
    evidence, `gap` why what was judged is too little for an all-clear.
    """
    order = list(rows_in_order(findings))
    notes = (
        *_blind(mode, findings),
        *_gaps("target", target),
        *_gaps("golden run", golden),
        *notes,
    )
    walk = _Walk(target, golden, findings, verdicts, notes)
    origins: list[Divergence] = []
    not_finite = not_equal = uncertain = None
    for row in order:
        walk.enter(row)
        verdict = verdicts[row]
        if verdict.is_origin and not walk.is_around(origins):
            origins.append(walk.divergence(row))
        if not_equal is None and row in unequal:
            not_equal = walk.divergence(row)
        if uncertain is None and verdict.level == CANNOT_TELL:
            uncertain = walk.divergence(row)
        if not_finite is None and walk.makes_nan(row):
            not_finite = walk.divergence(row)
        walk.leave(row)
    culprit = origins[0] if origins else None
    return Located(
        culprit or uncertain,
        culprit,
        tuple(origins),
        not_finite,
        target.step,
        frozenset(_noise(findings, verdicts)) - {None},
        not_equal,
        uncertain,
        any(verdict.is_origin or (verdict.level == PASSED_ON and _beyond(verdict)) for verdict in verdicts),
        gap,
        _gradient_error(findings, verdicts),
        sum(verdict.looks_equal for verdict in verdicts),
    )


_ANY_GRADIENT = "any gradient"  # what is noted of a step in which gradients differ at all

Diverged = bool | Literal["cannot tell"]


def diverged(found: Sequence[Located]) -> Diverged:
    """Return whether anything differs by more than rounding explains; "cannot tell" is no all-clear."""
    if suspects(found):
        return True
    return "cannot tell" if any(one.uncertain is not None or one.gap for one in found) else False


def _gradient_error(findings: Sequence[Finding], verdicts: Sequence[Verdict]) -> float:
    """The largest relative error of a gradient that has one; sums that cancel are known by their content."""
    errors = (
        verdict.error or 0.0
        for finding, verdict in zip(findings, verdicts, strict=True)
        if finding.pair.place.record.name.direction != FORWARD
        and verdict.level in (ROUNDING, PASSED_ON)
        and not verdict.is_cancelled
    )
    return max((error for error in errors if math.isfinite(error)), default=0.0)


def _noise(findings: Sequence[Finding], verdicts: Sequence[Verdict]) -> Iterator[object]:
    """What later steps may differ by: contents that are zero but for rounding, and gradients that differ."""
    for finding, verdict in zip(findings, verdicts, strict=True):
        if verdict.is_cancelled and verdict.level in (ROUNDING, PASSED_ON):
            yield content(finding.pair)
        if verdict.error and finding.pair.place.record.name.direction != FORWARD:
            yield finding.pair.place.name
            yield _ANY_GRADIENT


def rows_in_order(findings: Sequence[Finding]) -> Iterator[int]:
    """The rows by the order in which the calls were executed."""
    starts: list[int] = []
    for row, finding in enumerate(findings):
        if row == 0 or finding.pair.place.record is not findings[row - 1].pair.place.record:
            starts.append(row)
    ends = [*starts[1:], len(findings)]
    for call in in_order([findings[start].pair.place.record.name for start in starts]):
        yield from range(starts[call], ends[call])


def _beyond(verdict: Verdict) -> bool:
    return verdict.error is not None and not verdict.error <= (verdict.tolerance or 0.0)


class _Walk:
    """What has been passed on the way through the calls."""

    def __init__(
        self,
        target: Recording,
        golden: Recording,
        findings: Sequence[Finding],
        verdicts: Sequence[Verdict],
        notes: tuple[str, ...],
    ) -> None:
        self._notes = notes
        self._target, self._golden = target, golden
        self._findings, self._verdicts = findings, verdicts
        self._record: Record | None = None
        self._calls = self._collectives = self._checked = 0
        self._unchecked: Counter[str] = Counter()
        self._inputs_finite = True
        self._had_nan = False  # any place before
        self._lonely: dict[object, Record] = {}  # by values: calls that the golden run has none for

    def enter(self, row: int) -> None:
        record = self._findings[row].pair.place.record
        if record is not self._record:
            self._record = record
            self._calls += 1
            forward = self._target.records.get(str(record.name.facing(FORWARD)))
            ran = forward.fields if forward is not None and forward is not record else {}
            self._inputs_finite = all(map(_is_finite, leaves(ran)))
            if operator_of(record.name).communicates:
                self._collectives += 1

    def leave(self, row: int) -> None:
        verdict = self._verdicts[row]
        if verdict.level == NOT_JUDGED:
            self._unchecked[verdict.reason] += 1
        elif verdict.level == CANNOT_TELL:
            self._unchecked["it cannot be told whether it differs by more than rounding"] += 1
        else:
            self._checked += 1
        place, other = self._findings[row].pair.target, self._findings[row].pair.golden
        if place is None:
            return
        is_finite = _is_finite(place.leaf)
        self._had_nan = self._had_nan or (not is_finite and _has_nan(place.leaf))
        if place.side != "output":
            self._inputs_finite = self._inputs_finite and is_finite
        elif other is None and place.leaf is not None and is_telling(place.leaf):
            self._lonely[place.leaf.stats] = place.record

    def makes_nan(self, row: int) -> bool:
        place = self._findings[row].pair.target
        if place is None or place.side != "output" or self._had_nan:
            return False
        return self._inputs_finite and _has_nan(place.leaf)

    def is_around(self, origins: Sequence[Divergence]) -> bool:
        """Whether this call only holds one that was named, or is the same."""
        if not origins or self._record is None:
            return False
        name = str(self._record.name)
        return any(o.place.record is self._record or name in o.modules for o in origins)

    def divergence(self, row: int) -> Divergence:
        place = self._findings[row].pair.place
        record = place.record
        return Divergence(
            row,
            place,
            self._verdicts[row],
            self._evidence(),
            tuple(_modules(record, self._target if self._findings[row].pair.target else self._golden)),
            record.stack.frames if record.stack is not None else (),
            (self._collectives, self._calls),
            hint(self._findings[row].pair, self._verdicts[row]) or self._came_from(row),
            self._target.step,
            self._target.rank,
            content(self._findings[row].pair),
            _golden(self._findings[row].pair),
            made_in=_made_in(self._findings[row].pair),
        )

    def _came_from(self, row: int) -> str:
        """Which call made a value that differs when it comes in, if nothing could be said of that call."""
        place, level = self._findings[row].pair.place, self._verdicts[row].level
        maker = self._lonely.get(place.leaf.stats) if place.leaf is not None else None
        if level != ENTERED or maker is None:
            return ""
        return f"It comes from {maker.name}, which has no counterpart: see what the golden run does instead."

    def _evidence(self) -> Evidence:
        missing = sum(self._unchecked.values())
        seen = self._checked + missing
        grade: Grade = "strong"
        if missing > seen // 10:
            grade = "weak"
        elif missing or self._notes:
            grade = "fair"
        return Evidence(grade, self._checked, dict(self._unchecked), self._notes)


def _blind(mode: str, findings: Sequence[Finding]) -> Iterator[str]:
    """What this kind of recording cannot show."""
    if mode == "tensor":
        return
    if lengths := sketch_lengths(finding.pair for finding in findings):
        share = "a tenth" if min(lengths) == 4 * SKETCH_SIZE else "a quarter"
        yield f"errors are estimated from sketches, to about {share} of themselves"
    elif mode == "md5":
        yield "checksums tell that something differs, and only max, min, mean and norm how much"
    else:
        yield "max, min, mean and norm cannot see values that changed places"


def _gaps(whose: str, recording: Recording) -> Iterator[str]:
    """What a recording itself says that it lacks."""
    if not recording.finished:
        yield f"the {whose} was not finished"
    if recording.lost_records:
        yield f"the {whose} lost {counted(recording.lost_records, 'record')} that the disk did not take"
    if recording.missing_files:
        yield f"the {whose} lacks {counted(len(recording.missing_files), 'tensor file')}"
    for reason, count in recording.left_out.items():
        yield f"the {whose} left out {counted(count, 'call')}: {reason}"


def _golden(pair: Pair) -> str:
    return "" if pair.golden is None else pair.golden.call


def _modules(record: Record, recording: Recording) -> Iterator[str]:
    seen = set()
    parent = record.parent
    while parent is not None and parent not in seen:
        seen.add(parent)
        yield parent
        outer = recording.records.get(parent)
        parent = outer.parent if outer is not None else None


def _has_nan(leaf: Leaf | None) -> bool:
    return any(map(math.isnan, _ends(leaf)))


def _is_finite(leaf: Leaf | None) -> bool:
    return all(map(math.isfinite, _ends(leaf)))


def _ends(leaf: Leaf | None) -> Sequence[float]:
    """The largest and the smallest number, as far as they are known."""
    if leaf is None:
        return ()
    found: Sequence[object] = ()
    if isinstance(leaf.stats, Statistics):
        found = leaf.stats[:2]
    elif not leaf.is_tensor:
        found = (leaf.value,)
    return [value for value in found if isinstance(value, float)]


def overall(found: Sequence[Located]) -> Divergence | None:
    """The culprit over all steps and ranks: the earliest step, then the one no communication brought.

    A rank whose result of a collective call differs may only have been handed it; what came before the
    fewest collective calls was first. What replay proved goes before all others; what it refuted is none.
    """
    return next((each for each in suspects(found) if not each.is_refuted), None)


MOST_SUSPECTS = 20


def suspects(found: Sequence[Located]) -> list[Divergence]:
    """Return the values that may have made the difference, in order of execution over all steps and ranks.

    Those that replay proved come first, those that it refuted last. The first is the culprit unless it is
    refuted, which means that all are.
    """
    news = [each for one in found for each in one.origins if _is_news(each, found)]
    return sorted(news, key=lambda each: (_standing(each), _precedence(each)))[:MOST_SUSPECTS]


def with_replay(located: Located, evidence: Mapping[int, ReplayEvidence]) -> Located:
    """Return the same with evidence, by the number of the suspect; proven ones come first, refuted ones last.

    The first divergence stays the first in order of execution.
    """
    origins = [each._replace(replay=evidence.get(n)) for n, each in enumerate(located.origins)]
    ranked = sorted(origins, key=_standing)
    first = origins[0] if located.culprit is not None and origins else located.first
    culprit = next((each for each in ranked if not each.is_refuted), None)
    return located._replace(first=first, culprit=culprit, origins=tuple(ranked))


def _standing(found: Divergence) -> int:
    """Where replay puts a suspect: proven, not replayed, refuted."""
    if found.replay is None:
        return 1
    return {PROVEN: 0, REFUTED: 2}.get(found.replay.outcome, 1)


def is_explained_before(one: Located, found: Sequence[Located]) -> bool:
    """Whether earlier steps explain all that came in different, or was made different, in a step."""
    return bool(one.origins) and not any(_is_news(each, found) for each in one.origins)


def _is_news(origin: Divergence, found: Sequence[Located]) -> bool:
    """Whether no earlier step explains a suspect.

    State that differs on input after an earlier step differed is explained: the optimizer has made it so.
    Adam makes a whole step of each number of a gradient that is zero but for rounding. A batch or a mask is
    not explained.
    """
    leaf = origin.place.leaf
    earlier = [one for one in found if _number(one.step) < _number(origin.step)]
    if origin.verdict.is_change:  # an optimizer that is wrong once is wrong in every step
        return not any(each.verdict.is_change for one in earlier for each in one.origins)
    if origin.verdict.level != ENTERED or leaf is None or not leaf.is_tensor:
        return True
    if origin.made_in is not None and any(one.step == origin.made_in for one in earlier):
        return False  # it was judged there
    facts = {origin.content, _gradient_of(origin.place)}
    # A call without a counterpart, whose gradients were not compared; averages that the optimizer keeps of
    # gradients, also of those that are zero but for rounding; a gradient that it takes from the step before.
    most = _MADE_OF_STATE * max((one.gradient_error for one in earlier), default=0.0)
    may_be_kept = not _is_made_here(leaf) or (origin.verdict.error or 0.0) <= most
    if not origin.golden or (may_be_kept and part_of(origin.place.record) == OPTIMIZER):
        facts.add(_ANY_GRADIENT)
    if any(facts & one.noise for one in earlier):
        return False
    return not (any(one.has_grown for one in earlier) and _may_be_state(origin, found))


_KEPT = "optimizer:"  # so the makers begin of what an optimizer keeps, ...
_STATE = ("parameter:", "buffer:", _KEPT)  # ... and of all state
_MADE_OF_STATE = (
    4.0  # times the largest error of a parameter: what is made of parameters, as their average is
)


def _may_be_state(origin: Divergence, found: Sequence[Located]) -> bool:
    """Whether an optimizer may have made a value: state of the model or of itself, or made of such state."""
    if _is_state(origin.place):
        return True
    leaf = origin.place.leaf
    if leaf is None or not is_float(leaf.dtype) or _is_made_here(leaf):
        return False
    states = (each.verdict.error or 0.0 for one in found for each in one.origins if _is_state(each.place))
    most = max((error for error in states if math.isfinite(error)), default=0.0)
    return (origin.verdict.error or 0.0) <= _MADE_OF_STATE * most


def _is_state(place: Place) -> bool:
    leaf = place.leaf
    if leaf is None or not is_float(leaf.dtype):
        return False
    if part_of(place.record) == OPTIMIZER:  # also gradients of the step before
        return True
    if _is_made_here(leaf) or _is_kept(leaf):
        return (leaf.made_by or "").lstrip("~").startswith(_STATE)
    if operator_of(place.record.name).overwrites and place.slot == "input.0":
        return True  # kept from step to step, and changed in place
    return place.side in ("parameters", "buffers") or leaf.requires_grad is not False


def _is_made_here(leaf: Leaf) -> bool:
    """Whether a call of this step made a value, or it is a parameter, a buffer or a gradient."""
    return leaf.made_by is not None and not is_carried(leaf.made_by)


def _is_kept(leaf: Leaf) -> bool:
    return (leaf.made_by or "").lstrip("~").startswith(_KEPT)


def _made_in(pair: Pair) -> int | None:
    """The earlier step in which the same call of both runs made exactly this value."""
    makers = {place.leaf.made_by for place in (pair.target, pair.golden) if place and place.leaf}
    (maker, *others) = makers or {None}
    return None if others or maker is None else earlier_step(maker)


def _gradient_of(place: Place) -> str:
    """Where the gradient stands of what goes into a call, or of a parameter of a module."""
    name = place.record.name
    if place.side == "parameters":
        return slot_name(str(name.facing(PARAMETERS_GRAD)), place.slot.removeprefix("parameters."))
    return slot_name(str(name.facing(BACKWARD)), place.slot.replace("input", "output", 1))


def _number(step: int | None) -> int:
    return -1 if step is None else step


def _precedence(divergence: Divergence) -> tuple[int, int, bool, int]:
    collectives, calls = divergence.order
    step = _number(divergence.step)
    before = collectives - 1 if divergence.is_collective else collectives
    return step, before, divergence.is_collective, calls
