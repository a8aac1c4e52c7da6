"""Prints which requirement rows are shown by a test that passed in this run.

What ran stands in build/spec, one file for each run, written by the pytest plugin tests/spec_marks.py.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_rows import (
    ANY,
    ENVIRONMENTS,
    LETTERS,
    ROOT,
    ROWS_FILE,
    Row,
    SpecError,
    import_matrix,
    read_rows,
    select_environments,
    select_rows,
    write_rows,
)

REPORT_FILES = [ROOT / "build" / "spec" / f"{run}.json" for run in ("torch", "mindspore", "msadapter")]


@dataclass(frozen=True)
class Shown:
    """What this run says about one row, for the environments that were asked for."""

    row: Row
    due: tuple[str, ...]
    passed: Mapping[str, tuple[str, ...]]
    failed: tuple[str, ...]

    @property
    def state(self) -> str:
        """One of failing, shown, partly, missing, bare."""
        if self.failed:
            return "failing"
        done = [environment for environment in self.due if environment in self.passed]
        if len(done) == len(self.due) or (self.row.any_environment and self.passed):
            return "shown"
        if done:
            return "partly"
        return "bare" if self.row.cpu == "D" else "missing"


def read_reports(paths: Iterable[Path]) -> dict[str, Any]:
    """All of them as one; a run that did not come to its end has none, and then nothing can be said."""
    joined: dict[str, Any] = {"runs": [], "tests": []}
    for path in paths:
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SpecError(
                f"There is no result of a finished test run at {path}; `make spec` makes one."
            ) from None
        for part, found in joined.items():
            found.extend(report[part])
    return joined


def assess(
    rows: Iterable[Row], tests: Iterable[Mapping[str, Any]], chosen: tuple[str, ...] = ()
) -> list[Shown]:
    """The state of each row; with chosen environments only the rows and environments among them are due."""
    passed: dict[str, dict[str, list[str]]] = {}
    failed: dict[str, list[tuple[str, str]]] = {}
    for test in tests:
        for row_id, environments in test["shows"]:
            for environment in environments:
                if test["outcome"] == "passed":
                    passed.setdefault(row_id, {}).setdefault(environment, []).append(test["test"])
                elif test["outcome"] in ("failed", "error"):
                    failed.setdefault(row_id, []).append((environment, test["test"]))
    return [
        Shown(
            row,
            due,
            {e: tuple(passed[row.id][e]) for e in ENVIRONMENTS if e in passed.get(row.id, {})},
            tuple(test for e, test in failed.get(row.id, []) if row.any_environment or e in due),
        )
        for row in rows
        if (due := _due(row, chosen))
    ]


def _due(row: Row, chosen: tuple[str, ...]) -> tuple[str, ...]:
    if row.any_environment or not chosen:
        return row.environments
    return tuple(environment for environment in row.environments if environment in chosen)


def unmet(shown: Iterable[Shown]) -> list[Shown]:
    """The rows that no rule excuses: whatever is not shown, except bare D rows."""
    return [one for one in shown if one.state not in ("shown", "bare")]


_STATES = ("shown", "partly", "missing", "failing", "bare")
_COLOUR = {"shown": "32", "partly": "33", "missing": "31", "failing": "31;1", "bare": "2"}
# Above this many a list of rows is printed as ranges.
_LIST_LIMIT = 40


@dataclass(frozen=True)
class Printer:
    """How the report is printed: -v, the width of a line, and whether colours are wanted."""

    verbose: bool = False
    width: int = 110
    colour: bool = False

    def paint(self, text: str, state: str) -> str:
        return f"\x1b[{_COLOUR[state]}m{text}\x1b[0m" if self.colour else text

    def cut(self, text: str) -> str:
        return text if self.verbose or len(text) <= self.width else text[: self.width - 3] + "..."


def render(shown: Sequence[Shown], report: Mapping[str, Any], printer: Printer) -> str:
    """The whole report as text."""
    hardware = [one for one in shown if one.row.cpu == "N"]
    advice = [one for one in shown if one.row.cpu == "D"]
    ordinary = [one for one in shown if one.row.cpu not in ("N", "D")]
    lines = [*_runs(report), "", *_counts(shown, printer)]
    lines += _section("Rows that run on a CPU (Y, Y*)", ordinary, printer)
    lines += _section("Rows that need a device (N): validation and refusal", hardware, printer)
    lines += _section("Rows of advice (D): may be bare", advice, printer)
    return "\n".join(lines)


def _runs(report: Mapping[str, Any]) -> Iterator[str]:
    for run in report["runs"]:
        counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(run["counts"].items()))
        arguments = " ".join(run["arguments"])
        yield f"{run['finished']}  {counts or 'no test with a spec mark'}  (pytest {arguments})"


def _counts(shown: Sequence[Shown], printer: Printer) -> Iterator[str]:
    columns = ("rows", *_STATES)
    letters = [letter for letter in LETTERS if any(one.row.id[0] == letter for one in shown)]
    yield "     " + "".join(f"{name:>9}" for name in columns)
    for letter in [*letters, "all"]:
        states = [one.state for one in shown if letter in (one.row.id[0], "all")]
        cells = (f"{states.count(state) or '-':>9}" for state in _STATES)
        painted = (
            printer.paint(cell, state) if cell.strip() != "-" else cell
            for cell, state in zip(cells, _STATES, strict=True)
        )
        yield f"{letter:<5}{len(states):>9}" + "".join(painted)


def _section(title: str, shown: Sequence[Shown], printer: Printer) -> Iterator[str]:
    if not shown:
        return
    yield from ("", title)
    for state in _STATES:
        here = [one for one in shown if one.state == state]
        if not here:
            continue
        yield printer.paint(f"  {state} {len(here)}", state)
        as_ranges = state in ("shown", "bare") or (len(here) > _LIST_LIMIT and state != "failing")
        if as_ranges and not printer.verbose:
            yield from _wrap(ranges([one.row.id for one in here]), printer.width)
        else:
            for one in here:
                yield from _lines_of(one, printer)


def _lines_of(one: Shown, printer: Printer) -> Iterator[str]:
    row = one.row
    environments = " ".join(_environment_cells(one))
    yield printer.cut(f"    {row.id:<4}  {row.cpu:<2}  {environments:<14}  {row.requirement}")
    for test in one.failed:
        yield f"          failed  {test}"
    if printer.verbose:
        for test in dict.fromkeys(test for tests in one.passed.values() for test in tests):
            where = ",".join(environment for environment, tests in one.passed.items() if test in tests)
            yield f"          {where}  {test}"


def _environment_cells(one: Shown) -> Iterator[str]:
    if one.row.any_environment:
        yield from (f"+{environment}" for environment in one.passed)
        if not one.passed:
            yield ANY
    else:
        yield from (("+" if environment in one.passed else "-") + environment for environment in one.due)


def ranges(ids: Sequence[str]) -> list[str]:
    """Neighbouring row ids joined: C001 C002 C003 C007 -> C001-C003 C007."""
    runs: list[list[str]] = []
    for row_id in ids:
        last = runs[-1][-1] if runs else ""
        if last[:1] == row_id[0] and int(row_id[1:]) == int(last[1:]) + 1:
            runs[-1].append(row_id)
        else:
            runs.append([row_id])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def _wrap(words: Sequence[str], width: int) -> Iterator[str]:
    line = "   "
    for word in words:
        if len(line) + 1 + len(word) > width:
            yield line
            line = "   "
        line += " " + word
    yield line


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spec", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--rows", default="", metavar="LIST", help='only these rows, e.g. "C001-C027,R01-R06"'
    )
    parser.add_argument("--env", default="", metavar="LIST", help="only these environments, e.g. PT,CLI")
    parser.add_argument(
        "--report", type=Path, nargs="+", default=REPORT_FILES, metavar="FILE", help="what test runs wrote"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="each row with its text and its tests")
    parser.add_argument(
        "--import", type=Path, dest="matrix", metavar="MATRIX.md", help="renew tests/spec_rows.tsv"
    )
    return parser.parse_args(argv)


def run(argv: Sequence[str]) -> int:
    """0: fine; 1: a restriction was given and a row in it is not shown; 2: bad input."""
    arguments = _arguments(argv)
    if arguments.matrix is not None:
        rows = import_matrix(arguments.matrix.read_text(encoding="utf-8"))
        ROWS_FILE.write_text(write_rows(rows), encoding="utf-8")
        print(f"{len(rows)} rows written to {ROWS_FILE.relative_to(ROOT)}")
        return 0
    chosen = select_environments(arguments.env)
    report = read_reports(arguments.report)
    shown = assess(select_rows(read_rows(), arguments.rows), report["tests"], chosen)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size((110, 24)).columns
    print(render(shown, report, Printer(arguments.verbose, width, colour)))
    if not (arguments.rows.strip() or chosen):
        return 0
    return _verdict(shown)


def _verdict(shown: Sequence[Shown]) -> int:
    open_rows = unmet(shown)
    if not shown:
        print("\nThe restriction names no row: nothing is shown.")
        return 1
    if open_rows:
        print(f"\n{len(open_rows)} of {len(shown)} rows in the restriction are not shown.")
        return 1
    print(f"\nAll {len(shown)} rows in the restriction are shown (D rows may be bare).")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except SpecError as error:
        print(f"spec: {error}", file=sys.stderr)
        sys.exit(2)
