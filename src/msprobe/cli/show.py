"""What was recorded, and where: steps, ranks, calls, tensors, bytes on disk, and what was left out.

examples:
  msprobe show ./recording
  msprobe show ./recording/step0/rank1
  msprobe show ./recording/step0/rank1 Torch.matmul.0    dtype, shape, statistics and stack of these calls
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msprobe.plural import counted

if TYPE_CHECKING:
    from msprobe.record import Recording

SUMMARY = "what was recorded, and where"


class Disk(NamedTuple):
    """What a recording takes on disk: allocated bytes, and its tensor files by name and by content."""

    size: int = 0
    tensor_names: int = 0
    tensor_files: int = 0

    def plus(self, other: Disk) -> Disk:
        return Disk(*(a + b for a, b in zip(self, other, strict=True)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", type=Path, help="a run's folder, a step or rank of it, or a dump.json"
    )
    parser.add_argument(
        "call", metavar="CALL", nargs="?", help="show what was seen in the calls whose names begin so"
    )


def run(arguments: argparse.Namespace) -> int:
    from msprobe import store

    recordings = store.read(arguments.path)
    for recording in recordings:
        store.must_be_of(recording, arguments.framework)
    path, call = arguments.path, arguments.call
    for line in report(path, recordings) if call is None else report_calls(path, recordings, call):
        print(line)
    return 0


def report_calls(path: Path, recordings: Sequence[Recording], beginning: str) -> Iterator[str]:
    """The lines that `show` prints of the calls whose names begin so."""
    from msprobe.errors import UsageError
    from msprobe.report.seen import named, shown

    is_found = False
    for recording in recordings:
        records = [record for name, record in recording.records.items() if name.startswith(beginning)]
        if records and len(recordings) > 1:
            yield from ("", f"{recording.folder}:")
        is_found = is_found or bool(records)
        yield from shown(chain.from_iterable(map(named, records)))
    if not is_found:
        raise UsageError(f"{path} has no call whose name begins with {beginning!r}.")


def report(path: Path, recordings: Sequence[Recording]) -> Iterator[str]:
    """The lines that `show` prints."""
    seen: set[tuple[int, int]] = set()
    disks = [_disk(recording, seen) for recording in recordings]
    kinds = sorted(
        {f"{r.header.framework}, level {r.header.level}, task {r.header.task}" for r in recordings}
    )
    yield f"{path}: {'; '.join(kinds)}"
    yield ""
    yield from _table(_rows(recordings, disks))
    yield ""
    total = Disk()
    for disk in disks:
        total = total.plus(disk)
    records = sum(len(recording.records) for recording in recordings)
    counts = f"{counted(len(recordings), 'recording')}, {counted(records, 'record')}"
    yield f"  total   {counts}, {_bytes(total.size)} on disk"
    yield f"  calls   {_calls(recordings)}"
    yield f"  where   {_where(recordings[0])}"
    if total.tensor_names:
        links = f", of which {total.tensor_names - total.tensor_files} are links to the others"
        names = counted(total.tensor_names, "file")
        yield f"  tensors {names}{links if total.tensor_names > total.tensor_files else ''}"
    yield from (f"  note    {note}" for note in _notes(path, recordings))


def _rows(recordings: Sequence[Recording], disks: Sequence[Disk]) -> list[list[str]]:
    sides = [Counter(str(record.name.direction) for record in r.records.values()) for r in recordings]
    columns = [
        side for side in ("forward", "backward", "parameters_grad", "debug") if any(s[side] for s in sides)
    ]
    rows = [["step", "rank", *columns, "tensor files", "on disk"]]
    for recording, side, disk in zip(recordings, sides, disks, strict=True):
        place = [_number(recording.step), _number(recording.rank)]
        counts = [str(side[column]) for column in columns]
        rows.append([*place, *counts, str(disk.tensor_names), _bytes(disk.size)])
    return rows


def _table(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _calls(recordings: Sequence[Recording]) -> str:
    names = [record.name for recording in recordings for record in recording.records.values()]
    counts = Counter(name.prefix for name in names if name.direction in ("forward", "debug"))
    return ", ".join(f"{prefix} {count}" for prefix, count in counts.most_common()) or "none"


def _where(recording: Recording) -> str:
    names = sorted(path.name + ("/" if path.is_dir() else "") for path in Path(recording.folder).iterdir())
    return f"{recording.folder}: {', '.join(name for name in names if not name.startswith('.'))}"


def _notes(path: Path, recordings: Sequence[Recording]) -> Iterator[str]:
    """What a reader of these recordings should know."""
    from msprobe.store.layout import ERRORS, PREVIOUS

    for recording in recordings:
        place = f"step {_number(recording.step)}, rank {_number(recording.rank)}"
        if not recording.finished:
            yield f"{place}: unfinished; if its process died, `msprobe recover` finishes it"
        if recording.recovered:
            yield f"{place}: recovered after its process died"
        if recording.missing_files:
            yield f"{place}: {counted(len(recording.missing_files), 'tensor file')} missing"
        if recording.lost_records:
            yield f"{place}: {counted(recording.lost_records, 'record')} could not be written"
        raised = sum("exception" in record.fields for record in recording.records.values())
        if raised:
            yield f"{place}: {counted(raised, 'call')} raised an exception"
        for reason, count in recording.left_out.items():
            yield f"{place}: {counted(count, 'call')} left out: {reason}"
        if (Path(recording.folder) / ERRORS).is_file():
            yield f"{place}: errors while recording are in {ERRORS}"
    earlier = sorted((path / PREVIOUS).iterdir()) if (path / PREVIOUS).is_dir() else []
    yield from (f"an earlier run is in {folder}" for folder in earlier)


def _disk(recording: Recording, seen: set[tuple[int, int]]) -> Disk:
    """Allocated blocks, each file once however many names it has, here and in the recordings before."""
    from msprobe import store

    tensor_folder = str(store.tensors_of(recording))
    size = names = tensors = 0
    for place, _, files in os.walk(recording.folder):
        for file in files:
            status = os.lstat(os.path.join(place, file))
            key = (status.st_dev, status.st_ino)
            is_new = key not in seen
            seen.add(key)
            if place == tensor_folder:
                names += 1
                tensors += is_new
            size += status.st_blocks * 512 if is_new else 0
    return Disk(size, names, tensors)


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
