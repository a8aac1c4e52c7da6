"""Part `shared`: the cases beside the repository, ../shared/bench, scored by their own program.

That program does not ask for the exit status, and takes "cannot tell" of a sound pair for an all-clear. So
the sound pairs that it recorded are compared here once more, with --fail-on divergence.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from truth.cases import Suite
from truth.jobs import PACKAGES, ROOT, STEADY, python_of
from truth.judging import ACCUSED, ERROR, FIRST, LISTED, NONE, SOUND, WRONG, Outcome, read_answer
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
    (work / f"{cases}.{noise}").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*command, "--cases", cases, "--noise", noise],
        capture_output=True,
        text=True,
        env=_variables(),
        check=False,
    )
    (work / f"{cases}.{noise}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    bench = f"shared {cases}" + (f", noise {noise}" if noise != "0" else "")
    for match in filter(None, map(SCORE.match, done.stdout.splitlines())):
        yield from _outcomes(bench, match)
    for noisy in sorted((work / f"{cases}.{noise}").glob("*/*.noisy")):
        yield _sound(f"{bench}, sound", noisy)


def _variables() -> dict[str, str]:
    return {**os.environ, **STEADY, "PYTHONPATH": str(PACKAGES)}


def _sound(bench: str, noisy: Path) -> Outcome:
    """Compare a sound run that is off by the noise with the sound run of its case."""
    golden, out = noisy.with_suffix(".good"), noisy.with_suffix(".sound")
    summary, log = noisy.with_suffix(".sound.json"), noisy.with_suffix(".sound.log")
    msprobe = Path(python_of("torch")).parent / "msprobe"
    command = [str(msprobe), "compare", str(noisy), str(golden), "-o", str(out), "-c", "--csv", "-j", "1"]
    summary.unlink(missing_ok=True)
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as said:
        done = subprocess.run(
            [*command, "--json", str(summary), "--fail-on", "divergence"],
            stdout=said,
            stderr=subprocess.STDOUT,
            env=_variables(),
            check=False,
        )
    found = read_answer(summary, out, log, done.returncode)
    outcome = ERROR if found.diverged is None else ACCUSED if found.named else SOUND
    seconds = time.monotonic() - began
    return Outcome(
        "shared",
        bench,
        f"{bench} {noisy.stem}",
        noisy.parent.name,
        outcome,
        found.diverged,
        found.status,
        found.named,
        found.words,
        "",
        0.0,
        seconds,
    )


def _outcomes(bench: str, match: re.Match[str]) -> Iterator[Outcome]:
    """As many outcomes as the scorer counts of each kind; its own output names the cases."""
    silent = int(match["silent"])
    for kind in (NONE, WRONG, LISTED, FIRST, ERROR):
        for _ in range(int(match[kind])):
            diverged, silent = silent <= 0, silent - 1
            yield Outcome(
                "shared", bench, bench, match["mode"], kind, diverged, 0, "", "", "see its own list", 0.0, 0.0
            )
