"""Hold an answer of `msprobe compare` against the truth of its pair."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from truth.cases import Pair

FIRST, LISTED, WRONG, NONE, ERROR = "first", "listed", "wrong", "none", "error"
SOUND, ACCUSED = "sound", "accused"
MODULES = ("Module.", "Cell.")  # how records of modules begin in PyTorch and in MindSpore
LIVE = ("originated", "entered")  # verdicts of a table that make a place a suspect


class Outcome(NamedTuple):
    """What was answered about one pair in one mode, and whether that is right."""

    part: str
    bench: str
    pair: str
    mode: str
    outcome: str  # first, listed, wrong, none or error of a fault; sound, accused or error of a sound pair
    diverged: bool | str | None
    status: int
    named: str
    words: str
    expected: str
    record_seconds: float
    seconds: float


def judge(
    part: str, pair: Pair, mode: str, expected: str, found: Found, seconds: tuple[float, float]
) -> Outcome:
    """Compare an answer with what was expected; `expected` is empty for a sound pair."""
    return Outcome(
        part,
        pair.bench,
        pair.name,
        mode,
        _outcome(pair, expected, found),
        found.diverged,
        found.status,
        found.named,
        found.words,
        expected,
        *seconds,
    )


class Found(NamedTuple):
    """The answer of one comparison."""

    named: str
    listed: tuple[str, ...]
    diverged: bool | str | None  # None: there is no answer
    status: int
    words: str


def read_answer(summary: Path, tables: Path, log: Path, status: int) -> Found:
    """Read the JSON summary and the tables that a comparison left."""
    if not summary.exists():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        return Found("", (), None, status, (lines or ["nothing was printed"])[-1])
    answer = json.loads(summary.read_text(encoding="utf-8"))
    culprit = answer["culprit"] or {}
    words = f"{culprit['name']} {culprit['slot']}: {culprit['reason']}" if culprit else _first_line(log)
    return Found(culprit.get("name", ""), tuple(_listed(answer, tables)), answer["diverged"], status, words)


def _first_line(log: Path) -> str:
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if "[" not in line[:60]
    ]
    return (lines or [""])[0]


def _listed(answer: dict[str, Any], tables: Path) -> Iterator[str]:
    """The suspects of an answer, and every call of its tables that made or received a difference."""
    yield (answer["culprit"] or {}).get("hint") or ""
    for holder in (answer, *answer["recordings"]):
        for suspect in holder.get("suspects") or ():
            yield suspect["name"]
        for key in ("culprit", "first_divergence", "nan_producer", "first_not_equal"):
            if isinstance(holder.get(key), dict):
                yield holder[key].get("name") or ""
    for table in tables.glob("compare_result_*.csv"):
        with table.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                if row["Verdict"] in LIVE:
                    yield row["NPU Name"] if row["NPU Name"] not in ("", "N/A") else row["Bench Name"]


def _outcome(pair: Pair, expected: str, found: Found) -> str:
    if found.diverged is None:
        return ERROR
    if pair.culprit is None:
        return ACCUSED if found.named else SOUND
    if found.named and re.search(expected, found.named):
        return FIRST
    if any(re.search(expected, name) for name in found.listed):
        return LISTED
    return WRONG if found.named else NONE


def is_silent(one: Outcome) -> bool:
    """A fault that is said not to diverge."""
    return one.expected != "" and one.diverged is False


def expected_calls(culprit: str, recordings: Iterable[Path]) -> str:
    """A pattern of call names; `in MODULE: CALLS ; ...` is looked up in recordings of both runs at mix."""
    if not culprit.startswith("in "):
        return culprit
    wanted = [each.strip().split(": ") for each in culprit[3:].split(" ; ")]
    found, holders = set(), set()
    for calls, parents in map(_calls, recordings):
        for call in calls:
            holder = _holder(parents.get(call))
            for module, pattern in wanted:
                api = call.split(".")[1] if call.count(".") >= 3 else ""
                if holder == module and ".forward" in call and re.fullmatch(pattern, api):
                    found.add(call)
                if _module(call) == module and ".forward" in call:
                    (found if "module" in pattern.split("|") else holders).add(call)
    return "|".join(f"^{re.escape(name)}$" for name in sorted(found or holders)) or "nothing of this name"


def _holder(parent: str | None) -> str | None:
    """The module that a call ran in: "" for the model itself, "optimizer" for an optimizer."""
    return parent if parent == "optimizer" else _module(parent) if parent else ""


def _module(record: str) -> str | None:
    """The name of a module, from that of its record: Module.NAME.CLASS.forward.0."""
    if not record.startswith(MODULES):
        return None
    return ".".join(record.split(".")[1:-3])


def _calls(recording: Path) -> tuple[list[str], dict[str, Any]]:
    """The calls of all steps and ranks, each once, and the module that each ran in."""
    calls: dict[str, None] = {}
    parents: dict[str, Any] = {}
    for folder in sorted(recording.glob("step*/rank*")):
        calls |= dict.fromkeys(json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"])
        parents |= json.loads((folder / "construct.json").read_text(encoding="utf-8"))
    return list(calls), parents


def is_same(recordings: Iterable[Path]) -> bool:
    """Whether the recordings hold the same numbers in their last steps: then a fault has not acted."""
    found = []
    for recording in recordings:
        folder = next(iter(sorted(recording.glob("step*/rank*"), reverse=True)), None)
        found.append(folder and json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"])
    return all(each == found[0] for each in found)


def expected_modules(culprit: str, recordings: Iterable[Path]) -> str:
    """A pattern of the modules that may be named at L0: what holds the call, and the next one recorded."""
    names: set[str] = set()
    for calls, parents in map(_calls, recordings):
        for number, call in enumerate(calls):
            if re.search(culprit, call):
                names.update(_near(number, calls, parents))
    return "|".join(f"^{re.escape(name)}" for name in sorted(names)) or culprit


def _near(number: int, calls: list[str], parents: dict[str, Any]) -> Iterator[str]:
    call = calls[number]
    backward = ".backward" in call
    parent = parents.get(call)
    if parent:
        yield from _both(parent)
    yield from _both(call) if call.startswith(MODULES) else ()
    following = [name for name in calls[number + 1 :] if name.startswith(MODULES)]
    if not backward and not any(".forward" in name for name in following):
        backward = True  # the last call forward: what comes next is a gradient
    for name in following:
        if backward == (".forward" not in name):
            yield from _both(name)
            if not name.endswith("parameters_grad"):
                return


def _both(module: str) -> Iterable[str]:
    """A module's record, and that of its parameters' gradients if it is a backward one."""
    yield module
    if ".backward" in module:
        yield module.partition(".backward")[0] + ".parameters_grad"
