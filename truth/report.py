"""The table of all answers, what the issue asks of each figure, and docs/truth.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from truth.judging import ACCUSED, ERROR, FIRST, LISTED, NONE, SOUND, WRONG, Outcome, is_silent


class Least(NamedTuple):
    """What is asked of the rows whose bench begins with `bench`: the share named first, by mode."""

    bench: str
    shares: dict[str, float]


TENSORS = ("tensor", "sketch")


def _least(bench: str, tensors: float, statistics: float) -> Least:
    return Least(bench, {**dict.fromkeys(TENSORS, tensors), "statistics": statistics})


# The modes of run_ut.
WAYS = [f"{dtype}, {way}" for dtype in ("float32", "bfloat16") for way in ("forward", "backward")]
# The shares that are asked for. No row may have an error, and no sound row a culprit. A row of ALL_HEARD may
# have no fault that is said not to diverge, and no sound pair on which --fail-on divergence fails. Of the
# others some are smaller than one rounding of their dtype: the page lists them, and those that hide in
# kernels which round otherwise: what is asked there keeps what is reached.
ALL_HEARD = "shared "
ASKED = (
    _least("shared realbugs, noise", 0.90, 0.85),
    _least("shared realbugs", 0.95, 0.90),
    _least("shared kernelfaults, noise", 0.90, 0.80),
    _least("shared kernelfaults", 0.95, 0.85),
    _least("kernel faults, exact", 0.95, 0.85),
    Least("kernel faults, either way", {"tensor": 0.90, "sketch": 0.85, "statistics": 0.80}),
    Least("kernel faults, toward zero", {"tensor": 0.85, "sketch": 0.75, "statistics": 0.75}),
    _least("planted faults, same dtype", 0.95, 0.95),
    _least("planted faults, float32 beside bfloat16", 0.80, 0.80),
    _least("ports, faults", 0.90, 0.90),
    _least("kernel faults, MindSpore", 0.90, 0.80),
    Least("run_ut, scaled", dict.fromkeys(WAYS, 0.95)),
    Least("run_ut, kernel faults", dict.fromkeys(WAYS, 0.90)),
    Least("free_benchmark, kernel faults", dict.fromkeys(("bfloat16", "float16"), 1.0)),
    Least("overflow_check, faults", dict.fromkeys(("float32", "bfloat16", "float16"), 1.0)),
)
INTRODUCTION = Path(__file__).with_name("introduction.md")
LEAST_SOUND = 150  # pairs of architectures, over all modes


class Line(NamedTuple):
    """One row of the table."""

    bench: str
    mode: str
    counts: Counter[str]
    seconds: float

    @property
    def is_sound(self) -> bool:
        return not (self.counts[FIRST] + self.counts[LISTED] + self.counts[WRONG] + self.counts[NONE])

    @property
    def pairs(self) -> int:
        return sum(self.counts[word] for word in (FIRST, LISTED, WRONG, NONE, ERROR, SOUND, ACCUSED))


def lines(outcomes: Iterable[Outcome]) -> list[Line]:
    """One line for each bench and mode, in the order of first appearance."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for one in outcomes:
        found.setdefault((one.bench, one.mode), []).append(one)
    return [
        Line(*key, _counts(group), sum(one.seconds for one in group)) for key, group in sorted(found.items())
    ]


def _counts(group: list[Outcome]) -> Counter[str]:
    counts = Counter(one.outcome for one in group)
    counts["silent"] = sum(map(is_silent, group))
    counts["cannot tell"] = sum(one.diverged == "cannot tell" for one in group)
    counts["loud"] = sum(not one.expected and one.diverged is True for one in group)
    counts["failing"] = sum(not one.expected and one.status != 0 for one in group)
    return counts


HEAD = ("bench", "mode", "pairs", FIRST, LISTED, WRONG, NONE, ERROR, "silent", "false culprits", "diverged",
        "cannot tell", "seconds")  # fmt: skip


def table(outcomes: Iterable[Outcome]) -> str:
    """The rows as a Markdown table."""
    rows = [HEAD, *(_cells(line) for line in lines(outcomes))]
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(HEAD))]
    texts = [
        "| " + " | ".join(str(c).ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([texts[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *texts[1:]])


def _cells(line: Line) -> tuple[Any, ...]:
    c, sound = line.counts, line.is_sound
    named = ("-",) * 4 if sound else (c[FIRST], c[LISTED], c[WRONG], c[NONE])
    quiet = (c[ACCUSED], c["loud"]) if sound else ("-", "-")
    silent = "-" if sound else c["silent"]
    return (
        line.bench,
        line.mode,
        line.pairs,
        *named,
        c[ERROR],
        silent,
        *quiet,
        c["cannot tell"],
        round(line.seconds),
    )


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """Sentences on every figure that is below what is asked."""
    outcomes, found = list(outcomes), []
    pairs = sum(one.bench == "architectures, sound" for one in outcomes)
    if 0 < pairs < LEAST_SOUND:
        found.append(f"architectures, sound: {pairs} pairs were compared, {LEAST_SOUND} are asked.")
    for line in lines(outcomes):
        where, c = f"{line.bench}, {line.mode}", line.counts
        if line.is_sound:
            failing = c["failing"] if line.bench.startswith(ALL_HEARD) else 0
            if c[ACCUSED] or c["loud"] or c[ERROR] or failing:
                said = f"{c[ACCUSED]} accused, {c['loud']} said to diverge, {c[ERROR]} errors"
                if failing:
                    said += f", {failing} with an exit status that is not 0"
                found.append(f"{where}: {said}; none is allowed.")
            continue
        silent = c["silent"] if line.bench.startswith(ALL_HEARD) else 0
        if silent or c[ERROR]:
            found.append(f"{where}: {silent} silent, {c[ERROR]} errors; none is allowed.")
        least = next(
            (each.shares.get(line.mode) for each in ASKED if line.bench.startswith(each.bench)), None
        )
        if least is not None and c[FIRST] < least * line.pairs:
            found.append(f"{where}: {c[FIRST]} of {line.pairs} named first, {least:.0%} are asked.")
    return found


def kept(work: Path, outcomes: list[Outcome]) -> list[Outcome]:
    """These outcomes and those of earlier calls, where a pair was not compared again in the same mode."""
    path = work / "truth.json"
    if not path.exists():
        return outcomes
    now = {(one.part, one.bench, one.pair, one.mode) for one in outcomes}
    earlier = [Outcome(**each) for each in json.loads(path.read_text(encoding="utf-8"))["outcomes"]]
    return [*(one for one in earlier if (one.part, one.bench, one.pair, one.mode) not in now), *outcomes]


def write_outcomes(outcomes: list[Outcome], work: Path) -> None:
    """Write everything for programs, below the folder of the recordings."""
    work.mkdir(parents=True, exist_ok=True)
    data = {"failures": failures(outcomes), "outcomes": [one._asdict() for one in outcomes]}
    (work / "truth.json").write_text(json.dumps(data, indent=1), encoding="utf-8")


def write_page(outcomes: list[Outcome], page: Path, seconds: float, left_out: list[str]) -> None:
    """Write docs/truth.md."""
    short = failures(outcomes)
    parts = [
        INTRODUCTION.read_text(encoding="utf-8"),
        table(outcomes),
        "",
        f"This took {seconds / 60:.0f} minutes." + "".join(f" Left out: {each}." for each in left_out),
        "",
        "## Below what is asked",
        "",
        *(f"* {sentence}" for sentence in short or ["Nothing."]),
        "",
        "## Not named, and accused though sound",
        "",
        *_missed(outcomes),
    ]
    page.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")


def _missed(outcomes: list[Outcome]) -> list[str]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in outcomes:
        if one.outcome not in (FIRST, SOUND):
            groups.setdefault((one.bench, one.mode, one.outcome), []).append(one.pair)
    return [
        f"* {bench}, {mode}: {outcome}: {', '.join(f'`{pair}`' for pair in sorted(set(pairs)))}"
        for (bench, mode, outcome), pairs in sorted(groups.items())
    ]
