"""The files that a comparison leaves: the table, the page, the advice, what to record next, the summary."""

from __future__ import annotations

import os
import time
import uuid  # noqa: F401  # which pydantic_core imports later, when an interrupt would be a panic
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import to_json

from msprobe.errors import UsageError
from msprobe.report.advice import Advice, advise
from msprobe.report.columns import table
from msprobe.report.page import write_page
from msprobe.report.summary import junit, summary
from msprobe.report.table import Table, write_csv
from msprobe.report.xlsx import write_xlsx
from msprobe.store.layout import make_folder, write_whole
from msprobe.verdict.comparison import Comparison, Outcome
from msprobe.verdict.levels import LEVELS
from msprobe.verdict.plan import Plan


class Wanted(NamedTuple):
    """Which files, and where."""

    folder: Path
    stamp: str  # the time, in every name
    with_stack: bool = False
    only_table: bool = False  # no page, no advice
    as_csv: bool = False


def wanted_in(
    folder: str | os.PathLike[str],
    *,
    with_stack: bool = False,
    only_table: bool = False,
    as_csv: bool = False,
) -> Wanted:
    """Reports of this moment in a folder, which is made."""
    out = Path(folder)
    try:
        make_folder(out)
    except OSError as error:
        raise UsageError(f"The output folder {out} cannot be made: {error.strerror}.") from None
    if not out.is_dir():
        raise UsageError(f"The output folder {out} is a file; name a folder.")
    return Wanted(out, _free_stamp(out), with_stack, only_table, as_csv)


def _free_stamp(folder: Path) -> str:
    """The time, or the next that no result has: a comparison may take less than a second."""
    now = time.time()
    while any(folder.glob(f"*_{(stamp := time.strftime('%Y%m%d%H%M%S', time.localtime(now)))}.*")):
        now += 1
    return stamp


class Written(NamedTuple):
    """The files of one comparison, and its advice."""

    table: Path | None = None
    page: Path | None = None
    advice_file: Path | None = None
    advice: Advice | None = None


def name_of(wanted: Wanted, what: str, mark: str, suffix: str) -> Path:
    """`mark` tells several comparisons apart: `_step0`, `_rank1`, both, or nothing."""
    return wanted.folder / f"{what}{mark}_{wanted.stamp}.{suffix}"


def write_table(wanted: Wanted, what: str, mark: str, rows: Table) -> Path:
    path = name_of(wanted, what, mark, "csv" if wanted.as_csv else "xlsx")
    (write_csv if wanted.as_csv else write_xlsx)(path, rows)
    return path


def write_advice(wanted: Wanted, mark: str, advice: Advice) -> Path:
    path = name_of(wanted, "advisor", mark, "txt")
    write_whole(path, [f"{advice}\n".encode()])
    return path


def write_files(
    comparison: Comparison,
    wanted: Wanted,
    found: Plan | None = None,
    mark: str = "",
    siblings: Sequence[tuple[str, str]] = (),
) -> Written:
    """What one rank at one step leaves; `siblings` are the labels and marks of the others."""
    path = write_table(wanted, "compare_result", mark, table(comparison, with_stack=wanted.with_stack))
    if wanted.only_table:
        return Written(path)
    advice = advise(comparison.findings)
    advice_file = write_advice(wanted, mark, advice)
    page = name_of(wanted, "compare_result", mark, "html")
    others = [(label, name_of(wanted, "compare_result", other, "html").name) for label, other in siblings]
    write_page(page, comparison, others=others, next_config=_config(found).decode() if found else "")
    return Written(path, page, advice_file, advice)


def write_next(wanted: Wanted, found: Plan) -> Path:
    path = name_of(wanted, "next_config", "", "json")
    write_whole(path, [_config(found), b"\n"])
    return path


def _config(found: Plan) -> bytes:
    return to_json(found.config, indent=4)


def write_overview(wanted: Wanted, outcomes: Sequence[Outcome]) -> Path:
    """One row for each step and rank."""
    return write_table(wanted, "compare_summary", "", _overview(outcomes))


def _overview(outcomes: Sequence[Outcome]) -> Table:
    header = ["Step", "Rank", "Places", *LEVELS, "unmatched", "First Divergence", "Culprit", "Reason"]
    rows = []
    for outcome in outcomes:
        first, culprit = outcome.located.first, outcome.located.culprit
        rows.append(
            [
                outcome.step,
                outcome.rank,
                outcome.places,
                *(outcome.levels[level] for level in LEVELS),
                outcome.unmatched,
                first.place.name if first else "",
                culprit.place.name if culprit else "",
                culprit.verdict.reason if culprit else "",
            ]
        )
    return Table(header, rows)


def write_summary(path: Path, outcomes: Sequence[Outcome], files: dict[str, Any]) -> None:
    write_whole(path, [to_json(summary(outcomes, files=files), indent=2), b"\n"])


def write_junit(path: Path, outcomes: Sequence[Outcome]) -> None:
    write_whole(path, junit(outcomes))
