"""What comparing one rank at one step found: with all its rows, and in short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Literal, NamedTuple

from msprobe.analyse.judge import UNMATCHED, Finding
from msprobe.pairing.match import Certainty, Pair
from msprobe.record import Recording
from msprobe.verdict.levels import CANNOT_TELL, NOT_JUDGED, Verdict
from msprobe.verdict.locate import Divergence, Located
from msprobe.verdict.optimizer import StepState, state_of
from msprobe.verdict.precision import Precision
from msprobe.verdict.replay_evidence import ReplayCount

DOUBTFUL = 0.8  # below it a pair should be looked at
_UNKNOWN = "it cannot be told whether this differs by more than rounding"
_WHOLE = "the comparison as a whole"  # the name of a case that is no call


def labelled(step: int | None, rank: int | None) -> str:
    """Which step and rank, as a reader says it; empty where neither has a number."""
    return ", ".join(f"{word} {n}" for word, n in (("step", step), ("rank", rank)) if n is not None)


class Case(NamedTuple):
    """One call as a test: did it make a difference?"""

    call: str
    outcome: Literal["", "failure", "error", "skipped"]
    reason: str = ""


class AlignedCall(NamedTuple):
    """Two calls that were paired by their looks; of several calls against one each is paired with it."""

    target: str
    golden: str
    certainty: Certainty


class Aligned(NamedTuple):
    """Which calls of the target were paired by their looks, and how surely."""

    calls: int  # of the target
    pairs: tuple[AlignedCall, ...]
    why: str = ""  # why, if nobody asked for it
    in_table: bool = True  # False: the table pairs calls by their numbers

    @property
    def paired(self) -> int:
        return len({pair.target for pair in self.pairs})

    @property
    def doubtful(self) -> tuple[AlignedCall, ...]:
        return tuple(pair for pair in self.pairs if pair.certainty.share < DOUBTFUL)


class Outcome(NamedTuple):
    """The result of comparing one rank at one step, without its values."""

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
    precision: Precision | None = None  # the whole target run computes in a coarser dtype
    replay: ReplayCount | None = None  # what calling the suspects again showed, if that was asked for
    golden_rows: frozenset[int] = frozenset()  # of suspects whose calls only the golden run makes
    lost_changes: tuple[int, int] = (0, 0)  # of parameters, that rounding hides; and of how many

    def is_of_golden(self, suspect: Divergence) -> bool:
        """Whether a suspect is a call of this step and rank that only the golden run makes."""
        is_here = (suspect.step, suspect.rank) == (self.step, self.rank)
        return is_here and bool(suspect.golden) and suspect.row in self.golden_rows

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
    precision: Precision | None = None  # the whole target run computes in a coarser dtype
    judged: list[Pair] | None = None  # what our verdict judged, if not the pairs of the findings
    why_aligned: str = ""  # why calls were paired by what they do although nobody asked for it
    replay: ReplayCount | None = None  # what calling the suspects again showed, if that was asked for
    changes: Mapping[str, Any] | None = None  # of the golden run's parameters over the step before
    lost_changes: tuple[int, int] = (0, 0)  # of parameters, that rounding hides; and of how many

    def next_state(self) -> StepState:
        """What the next step of this rank is judged by; it keeps no recording alive."""
        return state_of(self.target, self.golden, self.changes)

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
            self.precision,
            self.replay,
            frozenset(self._golden_rows()),
            self.lost_changes,
        )

    @property
    def pairs(self) -> list[Pair]:
        """What our verdict judged."""
        return [finding.pair for finding in self.findings] if self.judged is None else self.judged

    def _golden_rows(self) -> Iterator[int]:
        """The rows of suspects whose calls are the golden run's and have no counterpart."""
        if not self.located.origins:
            return
        of_golden = set(map(id, self.golden.records.values()))
        paired = {id(p.golden.record) for p in self.pairs if p.golden is not None and p.target is not None}
        for suspect in self.located.origins:
            record = id(suspect.place.record)
            if record in of_golden and record not in paired:
                yield suspect.row

    def _aligned(self) -> Aligned | None:
        in_table = self.judged is None
        found = (
            AlignedCall(p.target.call, p.golden.call, p.certainty)
            for p in self.pairs
            if p.target is not None and p.golden is not None and p.certainty is not None
        )
        known = tuple(dict.fromkeys(found))
        return Aligned(len(self.target.records), known, self.why_aligned, in_table) if known else None

    def _cases(self) -> Iterator[Case]:
        rows = zip(self.findings, self.verdicts, strict=True)
        for _, call in groupby(rows, key=lambda row: id(row[0].pair.place.record)):
            places = list(call)
            name = str(places[0][0].pair.place.record.name)
            origins = [f"{f.pair.place.name}: {v.reason}" for f, v in places if v.is_origin]
            unknown = [f"{f.pair.place.name}: {v.reason}" for f, v in places if v.level == CANNOT_TELL]
            if origins:
                yield Case(name, "failure", "; ".join(origins))
            elif unknown:
                yield Case(name, "skipped", f"{_UNKNOWN}: {'; '.join(unknown)}")
            elif all(verdict.level == NOT_JUDGED for _, verdict in places):
                yield Case(name, "skipped", places[0][1].reason)
            else:
                yield Case(name, "")
        if self.located.gap:
            yield Case(_WHOLE, "skipped", f"it cannot be told whether the runs diverge: {self.located.gap}")
