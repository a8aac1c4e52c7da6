"""The answer in a few lines of plain words: which call made the difference, and is it rounding or a fault?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msprobe.plural import counted
from msprobe.record import nearest_frames, on_one_line
from msprobe.verdict.comparison import DOUBTFUL, Outcome, labelled
from msprobe.verdict.levels import CANNOT_TELL, ENTERED, NOT_JUDGED, ORIGINATED, PASSED_ON, ROUNDING, SAME
from msprobe.verdict.locate import Divergence, Evidence, overall, suspects
from msprobe.verdict.precision import Precision

_WORDS = {
    SAME: "equal",
    ROUNDING: "within rounding",
    PASSED_ON: "explained by their inputs",
    ENTERED: "different on input",
    ORIGINATED: "made different here",
    CANNOT_TELL: "uncertain",
    NOT_JUDGED: "not judged",
}
_MOST_DOUBTFUL = 5
_MOST_SUSPECTS = 3


def answer(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Over all steps and ranks: the headline, then what supports it."""
    yield headline(outcomes)
    located = [outcome.located for outcome in outcomes]
    culprit = overall(located)
    found = suspects(located)
    if culprit is not None:
        yield from (f"  {line}" for line in details(culprit))
        yield from _others(found[1:], "other suspects")
    elif found:
        yield from _others(found, "suspects")
    else:
        yield from _uncertain(outcomes)
    yield from (f"  {line}" for line in facts(outcomes))
    for outcome in outcomes:
        producer = outcome.located.not_finite
        if producer is not None and (culprit is None or producer.place.record is not culprit.place.record):
            yield f"  NaN first appears in {producer.place.name}{_where(producer)}, whose inputs are finite"
            break
    yield from (f"  {line}" for line in counts(outcomes))


def headline(outcomes: Sequence[Outcome]) -> str:
    """One sentence."""
    culprit = overall([outcome.located for outcome in outcomes])
    judged = sum(outcome.judged for outcome in outcomes)
    if culprit is not None:
        name = f"{culprit.place.record.name}{_where(culprit)}"
        if any(outcome.is_of_golden(culprit) for outcome in outcomes):
            return f"Culprit: {name}, a call that only the golden run makes."
        if culprit.verdict.level == ENTERED:
            return f"First divergence: {name}: its {culprit.place.slot} differs when it comes in."
        return f"Culprit: {name}."
    refuted = len(suspects([outcome.located for outcome in outcomes]))
    if refuted:
        count = f"{counted(refuted, 'suspect', 'were')} called again in float64"
        return f"No suspect is at fault by itself: {count}, and each gives what its inputs call for."
    if not judged:
        return "Nothing could be judged: no value is known on both sides. Are both of one level?"
    compared = counted(judged, "value", "were")
    if any(outcome.located.uncertain for outcome in outcomes):
        start = "It cannot be told whether the runs diverge"
        return f"{start}: {compared} compared, and no call is clearly at fault."
    if gap := next((outcome.located.gap for outcome in outcomes if outcome.located.gap), ""):
        return f"It cannot be told whether the runs diverge: {compared} compared, and {gap}."
    is_same = all(outcome.levels[SAME] == outcome.places for outcome in outcomes)
    if is_same and any(outcome.located.look_equal for outcome in outcomes):
        return f"No divergence: {compared} compared, and all agree as far as max, min, mean and norm show."
    if is_same:
        return f"No divergence: {compared} compared, and all are equal."
    if all(outcome.located.not_equal is None for outcome in outcomes):
        return f"No divergence: {compared} compared, and all tensors that both runs have are equal."
    if any(outcome.levels[level] for outcome in outcomes for level in (ENTERED, ORIGINATED)):
        return f"No divergence: {compared} compared, and rounding and earlier steps explain every difference."
    return f"No divergence: {compared} compared, and rounding explains every difference."


def _uncertain(outcomes: Sequence[Outcome]) -> Iterator[str]:
    found = [outcome.located.uncertain for outcome in outcomes if outcome.located.uncertain is not None]
    for each in found[:1]:
        yield f"  first uncertain value: {each.place.name}{_where(each)}: {each.verdict.reason}"


def _others(found: Sequence[Divergence], title: str) -> Iterator[str]:
    """Further suspects, in order of execution, or by what replay showed."""
    if found:
        yield f"  {title}{in_brackets(order_of(found))}:"
    for each in found[:_MOST_SUSPECTS]:
        yield f"    {each.place.name}{_where(each)}: {each.verdict.reason}{in_brackets(score(each))}"
        yield from (f"      {line}" for line in replay_lines(each))
    if len(found) > _MOST_SUSPECTS:
        yield f"    and {len(found) - _MOST_SUSPECTS} more"


def order_of(found: Sequence[Divergence]) -> str:
    """How suspects are ordered, if not only in order of execution."""
    return "proven ones first, refuted ones last" if any(each.replay is not None for each in found) else ""


def replay_lines(found: Divergence) -> Iterator[str]:
    """What calling a suspect again showed, and what it means for the loss."""
    evidence = found.replay
    if evidence is None:
        return
    yield f"replay: {evidence.outcome}: {evidence.reason}"
    share, whole = evidence.loss_share, evidence.loss_difference
    if share is None or not share:
        return
    of_whole = f" of {whole:.3g}" if whole is not None else ""
    yield f"its share of the loss difference: {share:.3g}{of_whole}"


def score(found: Divergence) -> str:
    """How far a suspect is beyond what is explained; empty where no number says it."""
    value = found.verdict.score
    return f"score {value:.3g}" if value > 1 and math.isfinite(value) else ""


def in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def facts(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What is true of the runs as a whole."""
    precision = next((outcome.precision for outcome in outcomes if outcome.precision is not None), None)
    if precision is not None:
        yield precision_fact(precision)
    lost, of = max((outcome.lost_changes for outcome in outcomes), default=(0, 0))
    if 2 * lost > of:
        changes = f"the changes of {lost} of {counted(of, 'parameter')} over a step"
        yield f"{changes} are too small beside the rounding of what is stored to judge the optimizer by them"
    yield from dict.fromkeys(
        f"replay: {outcome.replay.missing}"
        for outcome in outcomes
        if outcome.replay is not None and outcome.replay.missing
    )
    not_equal = next((o.located.not_equal for o in outcomes if o.located.not_equal is not None), None)
    if not_equal is not None:
        yield f"first value that is not bit-equal: {not_equal.place.name}{_where(not_equal)}"


def precision_fact(precision: Precision) -> str:
    where = "" if precision.where == "everywhere" else " matrix products"
    return f"the target computes{where} in {precision.target}, the golden run in {precision.golden}"


def details(culprit: Divergence) -> Iterator[str]:
    """What a reader wants to know of it next."""
    yield f"{culprit.place.slot or 'value'}: {culprit.verdict.reason}"
    yield from weight(culprit)
    yield from replay_lines(culprit)
    if culprit.golden not in ("", str(culprit.place.record.name)):
        yield f"compared with {culprit.golden} of the golden run"
    if culprit.hint:
        yield culprit.hint
    if culprit.modules:
        yield f"in {' < '.join(culprit.modules)}"
    for frame in nearest_frames(culprit.frames):
        yield f"at {on_one_line(frame)}"
    yield f"evidence: {evidence(culprit.evidence)}"


def weight(found: Divergence) -> Iterator[str]:
    """The numbers behind a suspect: its score, what is explained, and what tolerance would have passed it."""
    verdict, leaf = found.verdict, found.place.leaf
    if score(found):
        explained = "rounding and its inputs explain" if verdict.level == ORIGINATED else "rounding explains"
        bound = ""
        if verdict.explained is not None and math.isfinite(verdict.explained):
            bound = f"; they explain a relative error of up to {verdict.explained:.2g}"
        yield f"{score(found)}: above 1 it is more than {explained}{bound}"
    error = verdict.error
    if error is not None and math.isfinite(error) and leaf is not None and leaf.is_tensor:
        yield f"a relative tolerance of {error:.2g} would have passed it"


def evidence(found: Evidence) -> str:
    """The grade, and what it rests on."""
    unchecked = sum(found.unchecked.values())
    text = f"{found.grade}; before it {counted(found.checked, 'value', 'were')} compared"
    if unchecked:
        reasons = sorted(found.unchecked.items(), key=lambda item: -item[1])[:3]
        text += f", {unchecked} not ({', '.join(f'{count}: {why}' for why, count in reasons)})"
    return text + "".join(f"; {note}" for note in found.notes)


def counts(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """How many values have which verdict, of each step and rank."""
    for outcome in outcomes:
        parts = [f"{outcome.levels[level]} {word}" for level, word in _WORDS.items() if outcome.levels[level]]
        label = f"{outcome.label}: " if outcome.label else ""
        without = f" ({outcome.unmatched} without a counterpart)" if outcome.unmatched else ""
        yield f"{label}{counted(outcome.places, 'value')}: {', '.join(parts)}{without}"


def _where(divergence: Divergence) -> str:
    label = labelled(divergence.step, divergence.rank)
    return f" ({label})" if label else ""


def alignment(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """How many calls were paired without a mapping, and those pairs that should be looked at."""
    found = [outcome.aligned for outcome in outcomes if outcome.aligned is not None]
    if not found:
        return
    calls, paired = sum(each.calls for each in found), sum(each.paired for each in found)
    doubtful = sorted((pair for each in found for pair in each.doubtful), key=lambda pair: pair.certainty)
    why = next((each.why for each in found if each.why), "")
    if why:
        yield f"calls were aligned automatically, because {why}; --no-align pairs them by their numbers"
    if not all(each.in_table for each in found):
        yield "the table pairs calls as specified; this answer and its verdicts pair them by what they do"
    yield (
        f"aligned without a mapping: {paired} of the target's {counted(calls, 'call')}, {len(doubtful)} of "
        f"them with less than {100 * DOUBTFUL:.0f} % confidence; --save_mapping FILE writes the pairs"
    )
    for target, golden, (share, why) in doubtful[:_MOST_DOUBTFUL]:
        yield f"  {100 * share:.0f} % sure: {target} with {golden}: {why}"
    if len(doubtful) > _MOST_DOUBTFUL:
        yield f"  and {len(doubtful) - _MOST_DOUBTFUL} more"
