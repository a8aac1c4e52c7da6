"""Write the answer for programs: JSON with stable keys, and JUnit XML (see docs/compare.md)."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msprobe import __version__
from msprobe.report.answer import headline
from msprobe.report.table import SURROGATE
from msprobe.verdict.comparison import Aligned, Case, Outcome
from msprobe.verdict.levels import LEVELS
from msprobe.verdict.locate import (
    MOST_SUSPECTS,
    Divergence,
    diverged,
    is_explained_before,
    overall,
    suspects,
)
from msprobe.verdict.replay_evidence import ReplayEvidence

VERSION = 1  # of the summary; a new key does not change it, a changed or missing one does


def summary(outcomes: Sequence[Outcome], *, files: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All steps and ranks in one value that JSON can hold."""
    culprit = overall([outcome.located for outcome in outcomes])
    found = [outcome.located for outcome in outcomes]
    firsts = [located.first for located in found if located.first is not None]
    not_equal = [located.not_equal for located in found if located.not_equal is not None]
    precision = next((outcome.precision for outcome in outcomes if outcome.precision is not None), None)
    counts: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(_counts(outcome))
        results.update(outcome.results)
    return {
        "summary_version": VERSION,
        "tool": f"msprobe {__version__}",
        "diverged": diverged(found),
        "counts": dict(counts),
        "results": _results(results),
        "first_divergence": described(firsts[0] if firsts else None),
        "culprit": described(culprit),
        "suspects": [described(each) for each in suspects(found)],
        "first_not_equal": described(not_equal[0] if not_equal else None),
        "precision": precision._asdict() if precision is not None else None,
        "replay": _replay_counts(outcomes),
        "recordings": [_recording(outcome) for outcome in outcomes],
        "files": dict(files or {}),
    }


def _recording(outcome: Outcome) -> dict[str, Any]:
    return {
        "step": outcome.step,
        "rank": outcome.rank,
        "target": outcome.target,
        "golden": outcome.golden,
        "compared": outcome.mode,
        "counts": _counts(outcome),
        "results": _results(outcome.results),
        "first_divergence": described(outcome.located.first),
        "culprit": described(outcome.located.culprit),
        "suspects": [described(each) for each in outcome.located.origins[:MOST_SUSPECTS]],
        "first_not_equal": described(outcome.located.not_equal),
        "precision": outcome.precision._asdict() if outcome.precision is not None else None,
        "replay": _replay_counts([outcome]),
        "nan_producer": described(outcome.located.not_finite),
        "alignment": _alignment(outcome.aligned),
    }


def _alignment(aligned: Aligned | None) -> dict[str, Any] | None:
    """Which calls were paired without a mapping, and how sure each pair is."""
    if aligned is None:
        return None
    pairs = [
        {"target": target, "golden": golden, "confidence": share, "reason": why}
        for target, golden, (share, why) in aligned.pairs
    ]
    counts = {"calls": aligned.calls, "paired": aligned.paired, "doubtful": len(aligned.doubtful)}
    return {**counts, "automatic": aligned.why or None, "in_table": aligned.in_table, "pairs": pairs}


def _counts(outcome: Outcome) -> dict[str, int]:
    named = {level.replace(" ", "_"): outcome.levels[level] for level in LEVELS}
    return {"places": outcome.places, **named, "unmatched": outcome.unmatched}


def _results(results: Mapping[str, int]) -> dict[str, int]:
    return {name or "(empty)": count for name, count in sorted(results.items())}


def described(divergence: Divergence | None) -> dict[str, Any] | None:
    """A divergence as plain values; infinite errors are the text "inf"."""
    if divergence is None:
        return None
    place, verdict, evidence = divergence.place, divergence.verdict, divergence.evidence
    name = place.call
    return {
        "name": name,
        "slot": place.slot,
        "golden_name": divergence.golden or None,
        "step": divergence.step,
        "rank": divergence.rank,
        "verdict": verdict.level,
        "reason": verdict.reason,
        "error": _number(verdict.error),
        "tolerance": _number(verdict.tolerance),
        "score": _number(verdict.score),
        "explained": _number(verdict.explained),
        "scale_error": _number(verdict.scale),
        "hint": divergence.hint,
        "modules": list(divergence.modules),
        "stack": list(divergence.frames),
        "row": divergence.row,
        "replay": _replay(divergence.replay),
        "evidence": {
            "grade": evidence.grade,
            "checked": evidence.checked,
            "unchecked": dict(evidence.unchecked),
            "notes": list(evidence.notes),
        },
    }


def _replay(evidence: ReplayEvidence | None) -> dict[str, Any] | None:
    """What calling a suspect again showed; null if it was not called again."""
    if evidence is None:
        return None
    return {
        "outcome": evidence.outcome,
        "reason": evidence.reason,
        "target_error": _number(evidence.target_error),
        "golden_error": _number(evidence.golden_error),
        "slot": evidence.slot or None,
        "measure": evidence.measure or None,
        "at_fault": evidence.at_fault or None,
        "loss_share": _number(evidence.loss_share),
        "loss_difference": _number(evidence.loss_difference),
    }


def _replay_counts(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """How many suspects have which outcome, and what was missing; null if replay was not asked for."""
    counts = [outcome.replay for outcome in outcomes if outcome.replay is not None]
    if not counts:
        return None
    return {
        "proven": sum(count.proven for count in counts),
        "refuted": sum(count.refuted for count in counts),
        "not_replayable": sum(count.not_replayable for count in counts),
        "missing": next((count.missing for count in counts if count.missing), None),
    }


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


# ---- JUnit ----


def junit(outcomes: Sequence[Outcome]) -> Iterator[bytes]:
    """Yield a test suite for each step and rank, in which a call that made a difference has failed.

    One more test stands for all steps and ranks: an error if it cannot be told whether the runs diverge, a
    failure if they diverge and no call of the table made the difference.
    """
    yield b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="msprobe compare">\n'
    tests = list(_cases(outcomes))
    for outcome, cases in zip(outcomes, tests, strict=True):
        kinds = Counter(case.outcome for case in cases)
        name = _quoted(_plain(outcome.label or "comparison"))
        counts = f'tests="{len(cases)}" failures="{kinds["failure"]}" skipped="{kinds["skipped"]}"'
        yield f'<testsuite name={name} {counts} errors="0">\n'.encode()
        for case in cases:
            yield _case(case).encode()
        yield b"</testsuite>\n"
    whole = _whole(outcomes, tests)
    if whole is not None:
        counts = f'tests="1" failures="{int(whole.outcome == "failure")}" skipped="0"'
        yield f'<testsuite name="all steps and ranks" {counts} '.encode()
        yield f'errors="{int(whole.outcome == "error")}">\n{_case(whole)}</testsuite>\n'.encode()
    yield b"</testsuites>\n"


def _cases(outcomes: Sequence[Outcome]) -> Iterator[list[Case]]:
    """The tests of each step and rank; what earlier steps explain is no failure."""
    located = [outcome.located for outcome in outcomes]
    for outcome in outcomes:
        is_explained = is_explained_before(outcome.located, located)
        yield [
            Case(case.call, "skipped", f"earlier steps explain this: {case.reason}")
            if is_explained and case.outcome == "failure"
            else case
            for case in outcome.cases
        ]


def _whole(outcomes: Sequence[Outcome], tests: Sequence[Sequence[Case]]) -> Case | None:
    """Return the test of all steps and ranks, if the tests of single calls do not say that they diverge."""
    answer = diverged([outcome.located for outcome in outcomes])
    if answer == "cannot tell" or not any(outcome.judged for outcome in outcomes):
        return Case("divergence", "error", headline(outcomes))
    has_failed = any(case.outcome == "failure" for cases in tests for case in cases)
    return Case("divergence", "failure", headline(outcomes)) if answer and not has_failed else None


def _case(case: Case) -> str:
    opening = f'<testcase name={_quoted(_plain(case.call))} classname="msprobe.compare"'
    if not case.outcome:
        return f"{opening}/>\n"
    return f"{opening}><{case.outcome} message={_quoted(_plain(case.reason))}/></testcase>\n"


def _quoted(text: str) -> str:
    """The value of an attribute; a reader would make spaces of line feeds."""
    plain = html.escape(text).replace("\n", "&#10;").replace("\r", "&#13;").replace("\t", "&#9;")
    return f'"{plain}"'


def _plain(text: str) -> str:
    """Without characters that XML cannot hold."""
    clean = SURROGATE.sub("\ufffd", text)
    return "".join(c if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff") else "\ufffd" for c in clean)
