"""After a crash or a kill: finish the recordings whose process died, with every call it had finished.

Whatever was on disk stays; recovering twice is harmless. A recording that a living process still writes is
left alone. The recovered dump.json says so under "recovered", and lists under "missing_files" the tensor
files that were still waiting to be written.

example:
  msprobe recover ./recording
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.errors import RecordingError
from msprobe.plural import counted

if TYPE_CHECKING:
    from msprobe.store.recovery import Outcome

SUMMARY = "finish the recordings of processes that died"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", type=Path, help="a run's folder (dump_path), or one step or rank of it"
    )


def run(arguments: argparse.Namespace) -> int:
    from msprobe.store.recovery import recover_all

    root: Path = arguments.folder
    if not root.is_dir():
        raise RecordingError(f"{root} is not a folder; give the dump_path of a recording.")
    outcomes = []
    for outcome in recover_all(root):
        outcomes.append(outcome)
        line = _line(outcome)
        if line:
            print(f"{outcome.folder}: {line}", flush=True)
    if not outcomes:
        raise RecordingError(f"{root} holds no recording; give the folder that has step0, step1, ... in it.")
    print(_summary(outcomes))
    return 2 if any(outcome.damage for outcome in outcomes) else 0


def _line(outcome: Outcome) -> str | None:
    if outcome.damage is not None:
        return f"cannot be recovered: {outcome.damage}"
    if outcome.holder is not None:
        return f"left alone, {outcome.holder} is still recording it"
    if outcome.recovered is None:
        return None
    records, missing, damaged = outcome.recovered
    text = f"recovered, {counted(records, 'record')}"
    if missing:
        text += f"; {counted(len(missing), 'tensor file')} not written before the end"
    if damaged:
        text += f"; {counted(damaged, 'damaged line')} left out"
    return text


def _summary(outcomes: list[Outcome]) -> str:
    counts = {
        "recovered": sum(outcome.recovered is not None for outcome in outcomes),
        "still being recorded": sum(outcome.holder is not None for outcome in outcomes),
        "damaged": sum(outcome.damage is not None for outcome in outcomes),
    }
    counts["complete already"] = len(outcomes) - sum(counts.values())
    parts = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{counted(len(outcomes), 'recording')}: {parts}."
