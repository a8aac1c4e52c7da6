"""Record the pairs of some parts, compare them, print a table of the answers and write docs/truth.md.

  python -m truth                                   everything, as `make truth`
  python -m truth --part kernels --modes tensor     one part, in one mode
  python -m truth --only 'llama.*eps' -v            pairs whose name or bench matches, with the whole answer
  python -m truth --list                            the names of all pairs and what must be named

Recordings stay below --work and are made anew only if the recorder or the case changes; comparing is always
done anew.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from truth.cases import MODES, SAVED, Pair, Suite, beside
from truth.jobs import ROOT, Job, Kind, do
from truth.judging import (
    ACCUSED,
    FIRST,
    SOUND,
    Outcome,
    expected_calls,
    expected_modules,
    is_same,
    judge,
    read_answer,
)
from truth.recordings import Recordings
from truth.report import failures, kept, table, write_outcomes, write_page

PARTS = ("kernels", "sound", "planted", "ports", "mindspore", "checks", "shared")


def main() -> int:
    arguments = _arguments()
    outcomes: list[Outcome] = []
    left_out, began = [], time.perf_counter()
    for part in arguments.part or PARTS:
        module = importlib.import_module(f"truth.part_{part}")
        suite = module.suite()
        if arguments.list:
            _list(part, suite, arguments.only)
        elif (why := getattr(module, "unavailable", lambda: None)()) is not None:
            left_out.append(f"{part}, because {why}")
            print(f"left out: {left_out[-1]}")
        elif suite.pairs or arguments.only is None:  # what has no pairs has no names either
            outcomes += _score(part, module, suite, arguments)
            write_outcomes(kept(arguments.work, outcomes) if arguments.keep else outcomes, arguments.work)
    if arguments.list:
        return 0
    if arguments.keep:
        outcomes = kept(arguments.work, outcomes)
    print(table(outcomes))
    short = failures(outcomes)
    print("\n".join(short))
    if arguments.report:
        write_page(outcomes, Path(arguments.report), time.perf_counter() - began, left_out)
    return 1 if short else 0


def _list(part: str, suite: Suite, only: str | None) -> None:
    for pair in suite.pairs:
        if _is_wanted(pair, only):
            print(f"{part:10} {pair.bench:34} {pair.name:60} {pair.culprit or 'sound'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m truth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--part", action="append", choices=PARTS, help="only this part; may be given several times")
    add("--only", metavar="REGEX", help="only pairs whose bench or name matches")
    add("--modes", metavar="MODE,...", type=lambda text: text.split(","), default=list(MODES))
    add("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    add("--work", type=Path, default=ROOT / "build/truth", help="where recordings lie (default: build/truth)")
    add("--report", metavar="FILE", nargs="?", const=str(ROOT / "docs/truth.md"), help="write the page")
    add("--keep", action="store_true", help="report outcomes of earlier calls, too, of what is not run now")
    add("--list", action="store_true", help="only list the pairs")
    add("-v", "--verbose", action="store_true", help="print the whole answer for each pair")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    return arguments


def _is_wanted(pair: Pair, only: str | None) -> bool:
    return only is None or bool(re.search(only, pair.name) or re.search(only, pair.bench))


def _score(part: str, module: Any, suite: Suite, arguments: argparse.Namespace) -> list[Outcome]:
    """Record what is missing, and compare every pair in every mode that was asked for or run the checks."""
    recordings = Recordings(part, suite, arguments.work)
    pairs = [pair for pair in suite.pairs if _is_wanted(pair, arguments.only)]
    asked = [(pair, mode) for pair in pairs for mode in pair.modes if mode in arguments.modes]
    if not suite.pairs:
        _record(part, recordings, [(run, "tensor") for run in suite.runs], arguments.jobs)
        found: list[Outcome] = module.measure(recordings, arguments.jobs)
        for one in found:
            _tell(one, None)
        return found
    wanted = [(run, mode) for pair, mode in asked for run in (pair.golden, pair.target)]
    wanted += [
        (run, "statistics")  # shows which call stands in which module
        for pair, mode in asked
        if pair.culprit and (mode == "statistics-L0" or pair.culprit.startswith("in "))
        for run in (pair.golden, pair.target)
    ]
    spent = _record(part, recordings, wanted, arguments.jobs)
    return _compare(part, recordings, asked, spent, arguments)


def _record(
    part: str, recordings: Recordings, wanted: list[tuple[str, str]], at_once: int
) -> dict[tuple[str, str], float]:
    """Make the recordings that are missing, and return the seconds that each took."""
    missing, seconds = list(recordings.missing(wanted)), {}
    began = time.perf_counter()

    def recorded(job: Job, answer: dict[str, float]) -> None:
        seconds[job.order["run"], job.order["mode"]] = answer["seconds"]
        if answer["status"] == 0:
            recordings.made(job)
        else:
            shutil.rmtree(job.order["folder"], ignore_errors=True)
            print(
                f"not recorded: {job.order['run']} in {job.order['mode']}, see {job.order['log']}", flush=True
            )

    do(missing, at_once, recorded)
    print(f"{part}: {len(missing)} recordings in {time.perf_counter() - began:.0f} s", flush=True)
    return seconds


def _compare(
    part: str,
    recordings: Recordings,
    asked: list[tuple[Pair, str]],
    spent: dict[tuple[str, str], float],
    arguments: argparse.Namespace,
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    jobs = [_comparison(recordings, pair, mode, number) for number, (pair, mode) in enumerate(asked)]
    began = time.perf_counter()

    def compared(job: Job, answer: dict[str, float]) -> None:
        pair, mode = asked[job.order["number"]]
        one = _judged(part, recordings, pair, mode, job, answer, spent.get((pair.target, mode), 0.0))
        outcomes.append(one)
        _tell(one, Path(job.order["log"]) if arguments.verbose else None)

    do(jobs, arguments.jobs, compared)
    recordings.drop_large()
    print(f"{part}: {len(jobs)} comparisons in {time.perf_counter() - began:.0f} s", flush=True)
    return outcomes


def _comparison(recordings: Recordings, pair: Pair, mode: str, number: int) -> Job:
    target, golden = (recordings.folder(run, mode) for run in (pair.target, pair.golden))
    out = beside(target, f".beside.{pair.golden}{''.join(pair.options)}".replace("/", "_")[:200])
    shutil.rmtree(out, ignore_errors=True)
    summary = out / "summary.json"
    out.mkdir(parents=True)
    saved = str(out / "pairs.yaml")
    begin = ["compare", str(target), str(golden), "-o", str(out), "-c", "--csv", "-j", "1"]
    options = [saved if option == SAVED else option for option in pair.options]
    order = {"argv": [*begin, "--json", str(summary), "--fail-on", "divergence", *options]}
    if SAVED in pair.options:
        order["first"] = [*begin[:4], str(out / "first"), *begin[5:], "--save_mapping", saved]
    return Job(Kind(None), {**order, "log": str(out / "screen.txt"), "number": number, "out": str(out)})


def _judged(
    part: str, recordings: Recordings, pair: Pair, mode: str, job: Job, answer: dict[str, float], spent: float
) -> Outcome:
    out = Path(job.order["out"])
    found = read_answer(out / "summary.json", out, out / "screen.txt", int(answer["status"]))
    both = [recordings.folder(run, "statistics") for run in (pair.golden, pair.target)]
    expected = expected_calls(pair.culprit or "", both)
    if expected and mode == "statistics" and is_same(both):
        found = found._replace(diverged=None, words="the fault does not act: both recordings are the same")
    if expected and mode == "statistics-L0":
        expected = pair.modules or expected_modules(expected, both)
    return judge(part, pair, mode, expected, found, (spent, answer["seconds"]))


def _tell(one: Outcome, log: Path | None) -> None:
    """Print an answer that is not right, and the whole of it if its log is given."""
    right = one.outcome == FIRST or (one.outcome == SOUND and one.diverged is not True)
    if not right or log is not None:
        print(f"{one.outcome:7} {one.mode:14} {one.pair}: {one.words}", flush=True)
        if one.expected and one.outcome not in (FIRST, ACCUSED):
            print(f"{'':22} expected {one.expected}; diverged {json.dumps(one.diverged)}", flush=True)
    if log is not None:
        print(log.read_text(encoding="utf-8", errors="replace"), flush=True)


if __name__ == "__main__":
    sys.exit(main())
