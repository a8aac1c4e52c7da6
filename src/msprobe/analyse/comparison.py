"""What comparing one rank at one step found: with all its rows, and in short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from msprobe.analyse.assess import NOT_JUDGED, Verdict
from msprobe.analyse.judge import UNMATCHED, Finding
from msprobe.analyse.locate import Located
from msprobe.record import Recording

_DOUBTFUL = 0.8


def labelled(step: int | None, rank: int | None) -> str:
    """Which step and rank, as a reader says it; empty where neither has a number."""
    return ", ".join(f"{word} {n}" for word, n in (("step", step), ("rank", rank)) if n is not None)


class Case(NamedTuple):
    """One call as a test: did it make a difference?"""

    call: str
    outcome: Literal["", "failure", "skipped"]
    reason: str = ""


class Aligned(NamedTuple):
    """How many calls of the target were paired by their looks, and how surely."""

    calls: int  # of the target
    paired: int
    doubtful: int  # of these


class Outcome(NamedTuple):
    """A comparison in short: what is told of many ranks and steps."""

    step: int | None
    rank: int | None
    target: str  # the folder
    golden: str
    mode: str
    places: int
    unmatched: int
    levels: Counter[str]  # places by our verdict
    results: Counter[str]  # places by the result of the specification
    located: Located
    cases: tuple[Case, ...] = ()
    aligned: Aligned | None = None  # if calls were paired by their looks

    @property
    def label(self) -> str:
        return labelled(self.step, self.rank)

    @property
    def judged(self) -> int:
        return self.places - self.levels[NOT_JUDGED]


class Comparison(NamedTuple):
    """One rank at one step of both runs, place by place."""

    target: Recording
    golden: Recording
    mode: str  # what was compared: "tensor", "statistics" or "md5"
    findings: list[Finding]
    verdicts: list[Verdict]  # our own, one for each finding
    located: Located

    def outcome(self, *, with_cases: bool = False) -> Outcome:
        results = Counter(finding.result for finding in self.findings)
        return Outcome(
            self.target.step,
            self.target.rank,
            self.target.folder,
            self.golden.folder,
            self.mode,
            len(self.findings),
            results[UNMATCHED],
            Counter(verdict.level for verdict in self.verdicts),
            results,
            self.located,
            tuple(self._cases()) if with_cases else (),
            self._aligned(),
        )

    def _aligned(self) -> Aligned | None:
        pairs = [finding.pair for finding in self.findings]
        sure = {id(p.place.record): p.certainty for p in pairs if p.certainty is not None}
        if not sure:
            return None
        doubtful = sum(certainty.share < _DOUBTFUL for certainty in sure.values())
        return Aligned(len(self.target.records), len(sure), doubtful)

    def _cases(self) -> Iterator[Case]:
        rows = zip(self.findings, self.verdicts, strict=True)
        for _, call in groupby(rows, key=lambda row: id(row[0].pair.place.record)):
            places = list(call)
            name = str(places[0][0].pair.place.record.name)
            origins = [f"{f.pair.place.name}: {v.reason}" for f, v in places if v.is_origin]
            if origins:
                yield Case(name, "failure", "; ".join(origins))
            elif all(verdict.level == NOT_JUDGED for _, verdict in places):
                yield Case(name, "skipped", places[0][1].reason)
            else:
                yield Case(name, "")
