"""Part `shared`: the cases beside the repository, ../shared/bench, scored by their own program."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from truth.cases import Suite
from truth.jobs import PACKAGES, ROOT, STEADY, python_of
from truth.judging import ACCUSED, ERROR, FIRST, LISTED, NONE, SOUND, WRONG, Outcome
from truth.recordings import Recordings

SCORER = ROOT.parent / "shared/bench/score.py"
RUNS = (
    ("realbugs", "0"),
    ("realbugs", "1e-7"),
    ("kernelfaults", "0"),
    ("kernelfaults", "1"),
    ("kernelfaults", "2"),
)
SCORE = re.compile(
    r"^(?P<mode>[\w-]+): first (?P<first>\d+) listed (?P<listed>\d+) wrong (?P<wrong>\d+) none (?P<none>\d+) "
    r"error (?P<error>\d+) of \d+; silent (?P<silent>\d+)"
    r".*?(?:sound pairs: false culprits (?P<accused>\d+), said to diverge (?P<loud>\d+))?$"
)


def suite() -> Suite:
    """Nothing: the scorer records and compares by itself."""
    return Suite({}, [], ())


def unavailable() -> str | None:
    """Why this part cannot run."""
    return None if SCORER.exists() else "there is no ../shared/bench beside the repository"


def measure(recordings: Recordings, at_once: int) -> list[Outcome]:
    """Run the scorer for each file of cases and each noise, and turn its counts into outcomes."""
    work = recordings.folder("shared", "scores").parent
    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(lambda run: list(_scored(work, *run)), RUNS)
    return [one for outcomes in found for one in outcomes]


def _scored(work: Path, cases: str, noise: str) -> Iterator[Outcome]:
    python = python_of("torch")
    command = [
        python,
        str(SCORER),
        python,
        str(Path(python).parent / "msprobe"),
        str(work / f"{cases}.{noise}"),
    ]
    variables = {**os.environ, **STEADY, "PYTHONPATH": str(PACKAGES)}
    (work / f"{cases}.{noise}").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*command, "--cases", cases, "--noise", noise],
        capture_output=True,
        text=True,
        env=variables,
        check=False,
    )
    (work / f"{cases}.{noise}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    bench = f"shared {cases}" + (f", noise {noise}" if noise != "0" else "")
    for match in filter(None, map(SCORE.match, done.stdout.splitlines())):
        yield from _outcomes(bench, match)


def _outcomes(bench: str, match: re.Match[str]) -> Iterator[Outcome]:
    """As many outcomes as the scorer counts of each kind; its own output names the cases."""
    silent, loud = int(match["silent"]), int(match["loud"] or 0)
    for kind in (NONE, WRONG, LISTED, FIRST, ERROR):
        for _ in range(int(match[kind])):
            diverged, silent = silent <= 0, silent - 1
            yield Outcome(
                "shared", bench, bench, match["mode"], kind, diverged, 0, "", "", "see its own list", 0.0, 0.0
            )
    if match["accused"] is None:
        return
    accused, total = (
        int(match["accused"]),
        sum(int(match[kind]) for kind in (NONE, WRONG, LISTED, FIRST, ERROR)),
    )
    for number in range(total):
        outcome = ACCUSED if number < accused else SOUND
        yield Outcome(
            "shared", f"{bench}, sound", bench, match["mode"], outcome, number < loud, 0, "", "", "", 0.0, 0.0
        )
