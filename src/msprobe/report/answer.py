"""The answer in a few lines of plain words: which call made the difference, and is it rounding or a fault?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msprobe.analyse.assess import ENTERED, NOT_JUDGED, ORIGINATED, PASSED_ON, ROUNDING, SAME
from msprobe.analyse.comparison import DOUBTFUL, Outcome, labelled
from msprobe.analyse.locate import Divergence, Evidence, overall
from msprobe.plural import counted
from msprobe.record import nearest_frames, on_one_line

_WORDS = {
    SAME: "equal",
    ROUNDING: "within rounding",
    PASSED_ON: "passed on",
    ENTERED: "came in different",
    ORIGINATED: "made different here",
    NOT_JUDGED: "not judged",
}
_MOST_DOUBTFUL = 5
_LEARNT = "what an optimizer made of an earlier step, whose gradient here differs"


def answer(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Over all steps and ranks: the headline, then what supports it."""
    yield headline(outcomes)
    culprit = overall([outcome.located for outcome in outcomes])
    if culprit is not None:
        yield from (f"  {line}" for line in details(culprit))
    elif any(outcome.located.first for outcome in outcomes):
        first = next(o.located.first for o in outcomes if o.located.first is not None)
        why = _LEARNT if first.verdict.level == ENTERED else first.verdict.reason
        yield f"  the first place beyond rounding: {first.place.name}{_where(first)}: {why}"
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
        word = "comes in different at" if culprit.verdict.level == ENTERED else "is made different by"
        what = "The first value that differs by more than rounding"
        return f"{what} {word} {culprit.place.record.name}{_where(culprit)}."
    if any(outcome.located.first for outcome in outcomes):
        return (
            "Differences grow beyond rounding, but no single call makes one: each is explained by what went "
            "before."
        )
    if not judged:
        return "Nothing could be judged: no place has values on both sides. Are both of one level?"
    compared = counted(judged, "place", "were")
    are_equal = all(outcome.levels[SAME] == outcome.judged for outcome in outcomes)
    explained = "all are equal" if are_equal else "rounding explains every difference"
    return f"No divergence: {compared} compared, and {explained}."


def details(culprit: Divergence) -> Iterator[str]:
    """What a reader wants to know of it next."""
    yield f"{culprit.place.slot or 'value'}: {culprit.verdict.reason}"
    error, leaf = culprit.verdict.error, culprit.place.leaf
    if error is not None and error != float("inf") and leaf is not None and leaf.is_tensor:
        yield f"a relative tolerance of {error:.2g} would have passed it"
    if culprit.hint:
        yield culprit.hint
    if culprit.modules:
        yield f"in {' < '.join(culprit.modules)}"
    for frame in nearest_frames(culprit.frames):
        yield f"at {on_one_line(frame)}"
    yield f"evidence: {evidence(culprit.evidence)}"


def evidence(found: Evidence) -> str:
    """The grade, and what it rests on."""
    unchecked = sum(found.unchecked.values())
    text = f"{found.grade}; before it {counted(found.checked, 'place', 'were')} compared"
    if unchecked:
        reasons = sorted(found.unchecked.items(), key=lambda item: -item[1])[:3]
        text += f", {unchecked} not ({', '.join(f'{count}: {why}' for why, count in reasons)})"
    return text + "".join(f"; {note}" for note in found.notes)


def counts(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        parts = [f"{outcome.levels[level]} {word}" for level, word in _WORDS.items() if outcome.levels[level]]
        label = f"{outcome.label}: " if outcome.label else ""
        without = f" ({outcome.unmatched} without a counterpart)" if outcome.unmatched else ""
        yield f"{label}{counted(outcome.places, 'place')}: {', '.join(parts)}{without}"


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
    yield (
        f"aligned without a mapping: {paired} of the target's {counted(calls, 'call')}, {len(doubtful)} of "
        f"them with less than {100 * DOUBTFUL:.0f} % confidence; --save_mapping FILE writes the pairs"
    )
    for target, golden, (share, why) in doubtful[:_MOST_DOUBTFUL]:
        yield f"  {100 * share:.0f} % sure: {target} with {golden}: {why}"
    if len(doubtful) > _MOST_DOUBTFUL:
        yield f"  and {len(doubtful) - _MOST_DOUBTFUL} more"
