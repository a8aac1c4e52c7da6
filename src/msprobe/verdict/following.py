"""Verdicts that follow from the tests of a value, from other calls, or from what a call is part of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msprobe.name import FORWARD
from msprobe.operators import Operator
from msprobe.verdict import reason
from msprobe.verdict.call_facts import has_other_count, shows_all
from msprobe.verdict.directions import Test, Unlike
from msprobe.verdict.levels import CANNOT_TELL, NOT_JUDGED, ORIGINATED, PASSED_ON, ROUNDING, Verdict
from msprobe.verdict.sources import Seen

LIKELY = 3.0  # times what the errors of the arguments likely make: no sound result was so far off


def by_tests(
    verdict: Verdict,
    seen: Seen,
    worst: Test,
    differing: Sequence[Seen],
    sources: Sequence[Seen],
    *,
    is_rounding: bool,
) -> Verdict:
    """Return the verdict of an output with its level and words.

    `worst`: the test with the largest score, beside what went in. `is_rounding`: it is small enough to be
    rounding even if nothing that went in had differed.
    """
    error, tolerance = verdict.error or 0.0, verdict.tolerance or 0.0
    if is_rounding and error <= tolerance:
        text = reason.within(error, tolerance)
        if verdict.is_cancelled and error > 0.01:
            text = f"{reason.off(error)}, but its summands cancel: that is rounding of far larger numbers"
        return verdict.at_level(ROUNDING, text)
    if worst.score <= 1:
        return verdict.at_level(ROUNDING if is_rounding else PASSED_ON, reason.passed(error, differing))
    words = reason.originated(seen.pair, seen.value, worst, sources, tolerance)
    return verdict.at_level(verdict.level, words)


def beside_others(verdict: Verdict, unlike: Unlike) -> Verdict:
    """The verdict of a value whose scale error other calls of the operator do not have."""
    words = f"{verdict.reason}; {unlike.words}"
    if unlike.score > 1:
        return verdict._replace(level=ORIGINATED, reason=f"{words} on the same shapes", score=unlike.score)
    doubt = "too little to be called a fault, too much to be called usual"
    return verdict._replace(level=CANNOT_TELL, reason=f"{words}: {doubt}")


def unexcused(tests: Sequence[Test], differing: Sequence[Seen], *, has_flips: bool) -> list[Test]:
    """Leave out the tests that arguments of whole numbers, or such with infinities, explain.

    Where decisions fall otherwise, single numbers change as a whole: how many there are is a matter of size.
    """
    excused = {"number"} if has_flips else set()
    for value in [seen.value for seen in differing]:
        if value.is_odd or not value.unit:
            excused.add("odd")
        if value.is_moved or not value.unit:
            excused.add("positions")
    return [test for test in tests if test.name not in excused] if excused else list(tests)


def as_set(verdict: Verdict, setting: Seen) -> Verdict:
    words = f"{reason.off(verdict.error or 0.0)}, as {setting.place.slot} is another"
    return verdict._replace(level=PASSED_ON, reason=words)


def made_inside(call: Sequence[Seen], verdicts: Sequence[Verdict], culprit: str) -> list[Verdict]:
    """The verdicts of a module whose outputs are what a call in it made of them."""
    return [
        _made_by(verdict, culprit) if seen.is_output and verdict.level in (ORIGINATED, PASSED_ON) else verdict
        for seen, verdict in zip(call, verdicts, strict=True)
    ]


def _made_by(verdict: Verdict, culprit: str) -> Verdict:
    text = f"{reason.off(verdict.error or 0.0)}, made inside by {culprit}"
    return verdict._replace(level=PASSED_ON, reason=text)


def _is_unlikely(verdict: Verdict) -> bool:
    return (verdict.error or 0.0) > (verdict.tolerance or 0.0) + LIKELY * (verdict.reached or 0.0)


def shows_effect(operator: Operator, call: Sequence[Seen], outputs: Mapping[int, Verdict]) -> bool:
    """Whether a setting that differs may have had an effect: unless all outputs are explained without it."""
    if not outputs or operator.changes_state or call[0].place.record.name.direction != FORWARD:
        return True
    if any(seen.is_output and seen.value.agrees and not shows_all(seen) for seen in call):
        return True
    differs = any(verdict.error != 0 for verdict in outputs.values())
    others = (seen for seen in call if not seen.is_output and seen.value.is_known)
    if differs and any(map(has_other_count, others)):
        return True
    is_set = any(s.value.sight == "value" and not s.value.agrees for s in call if not s.is_output)
    if is_set and not operator.plain and any(map(_is_unlikely, outputs.values())):
        return True  # what is merely possible does not excuse the outputs of a call that is set otherwise
    levels = {verdict.level for verdict in outputs.values()}
    return levels == {NOT_JUDGED} or bool(levels & {ORIGINATED, CANNOT_TELL})
