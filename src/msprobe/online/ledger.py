"""The results of one training process on disk, and which of its calls they hold, whenever we are killed.

Rows are written first; then one line of the journal says how long both tables are with them. Whoever goes on
cuts the tables to that length: a row stands in them once, or its call was not acknowledged and comes again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msprobe.errors import RecordingError
from msprobe.online.message import Greeting
from msprobe.precheck.check import status_of
from msprobe.precheck.judging import Answer
from msprobe.report.precheck_csv import (
    DETAIL_COLUMNS,
    RESULT_COLUMNS,
    detail_cells,
    result_cells,
    write_table,
)
from msprobe.report.table import csv_lines
from msprobe.store.layout import open_new, open_regular

_JOURNAL = ".online_{}.log"
_NAME = re.compile(r"\.online_rank([0-9]{1,9})_([0-9a-f]{32})\.log")
_LONGEST_LINE = 1 << 12


class Judged(NamedTuple):
    """A call whose answer is known."""

    sequence: int
    step: int
    answer: Answer


class _Line(NamedTuple):
    """What the journal says after each batch of rows."""

    stamp: str
    done: int
    details: int  # bytes
    results: int
    counts: dict[str, int]
    finished: bool = False


class Ledger:
    """Two growing tables and their journal."""

    def __init__(self, folder: Path, greeting: Greeting) -> None:
        path = folder / _JOURNAL.format(greeting.key)
        line, length = _last_line(path)
        if line is not None and not _is_there(line, *table_files(folder, line.stamp, greeting.rank)):
            line, length = None, 0
        self.resumed = line is not None
        if line is None:
            line = _new_line(folder, greeting.rank)
        self.result_file, self.details_file = table_files(folder, line.stamp, greeting.rank)
        self._stamp, self.done, self.counts = line.stamp, line.done, Counter(line.counts)
        self.finished = line.finished
        self._lock = threading.Lock()
        self._closed = False
        self._details = _Grown(self.details_file, line.details)
        self._results = _Grown(self.result_file, line.results)
        self._journal = _Grown(path, length)
        if not self.resumed:
            self._note()

    def add(self, judged: Sequence[Judged]) -> None:
        """On return the rows are on disk."""
        details, results = [], []
        for one in judged:
            summed = one.answer.summed
            told = f"Step {one.step}. {summed.message}".rstrip()
            details += [detail_cells(result) for result in one.answer.results]
            results.append(result_cells(summed._replace(message=told)))
        with self._lock:
            if self._closed:  # while this waited for its turn
                return
            self._details.append(csv_lines(details))
            self._results.append(csv_lines(results))
            self.counts.update(status_of(one.answer.summed) for one in judged)
            self.done = judged[-1].sequence
            self._note()

    def _note(self) -> None:
        sizes = self._details.size, self._results.size
        line = _Line(self._stamp, self.done, *sizes, dict(self.counts), self.finished)
        self._journal.append(f"{json.dumps(line)}\n".encode())

    def close(self, *, finished: bool = False) -> None:
        """`finished`: all calls of the process are here, and it never comes again."""
        with self._lock:
            if finished and not self.finished:
                self.finished = True
                self._note()
            self._closed = True
            for file in (self._details, self._results, self._journal):
                os.close(file.descriptor)


class _Grown:
    """A file that is added to, from a length on at which it was whole."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.descriptor = open_new(path, os.O_APPEND)
        os.ftruncate(self.descriptor, size)

    def append(self, content: bytes) -> None:
        waiting = memoryview(content)
        try:
            while waiting:
                waiting = waiting[os.write(self.descriptor, waiting) :]
            os.fdatasync(self.descriptor)
        except OSError as error:
            error.filename = str(self.path)
            raise
        self.size += len(content)


def table_files(folder: Path, stamp: str, rank: int) -> tuple[Path, Path]:
    """Of one rank: results and details."""
    return (
        folder / f"accuracy_checking_result_{stamp}_rank{rank}.csv",
        folder / f"accuracy_checking_details_{stamp}_rank{rank}.csv",
    )


def write_empty(folder: Path, rank: int) -> tuple[Path, Path]:
    """The tables of a rank that never came."""
    return table_files(folder, _new_line(folder, rank).stamp, rank)


def left_behind(folder: Path) -> list[Greeting]:
    """The processes whose results a checker that was killed has begun here."""
    found = (_NAME.fullmatch(path.name) for path in sorted(folder.glob(_JOURNAL.format("*"))))
    return [Greeting(match[2], int(match[1])) for match in found if match]


def forget_all(folder: Path) -> None:
    """All training has ended, and nobody goes on with it."""
    for path in folder.glob(_JOURNAL.format("*")):
        with contextlib.suppress(OSError):
            path.unlink()


def _new_line(folder: Path, rank: int) -> _Line:
    """New tables, called by the time, or a little later if this rank has some of the same second."""
    now = time.time()
    while True:
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(now))
        results, details = table_files(folder, stamp, rank)
        if not results.exists() and not details.exists():
            break
        now += 1
    write_table(details, DETAIL_COLUMNS, [])
    write_table(results, RESULT_COLUMNS, [])
    return _Line(stamp, 0, details.stat().st_size, results.stat().st_size, {})


def _is_there(line: _Line, results: Path, details: Path) -> bool:
    """Whether nobody took the tables away since."""
    found = results.is_file() and details.is_file()
    return found and results.stat().st_size >= line.results and details.stat().st_size >= line.details


def _last_line(path: Path) -> tuple[_Line | None, int]:
    """The last whole line of a journal that somebody left, and where it ends."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return None, 0
    with os.fdopen(descriptor, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        start = stream.seek(max(0, size - 2 * _LONGEST_LINE))
        tail = stream.read()
    end = tail.rfind(b"\n") + 1
    if not end:
        return None, 0
    try:
        line = _Line(*json.loads(tail[tail.rfind(b"\n", 0, end - 1) + 1 : end]))
    except (ValueError, TypeError):
        raise RecordingError(
            f"{path}, which an interrupted online check left, is damaged; remove it to begin anew."
        ) from None
    return line, start + end
