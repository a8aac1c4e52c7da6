"""A csv file that several processes append to: whole lines only, one header, complete after every line."""

from __future__ import annotations

import csv
import fcntl
import io
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msprobe.store.layout import FILE_MODE, append_whole, make_folder

_TAIL = 1 << 16  # bytes among which the end of the last whole line is looked for


class SharedCsv:
    """Appends lines. A process that died in the midst of one leaves nothing that a reader would trip over."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self._columns = columns
        self._lock = threading.Lock()

    def append(self, rows: Iterable[Sequence[Any]] = ()) -> None:
        """Write the rows, after the header where there is none yet; an OSError leaves the file as it was."""
        make_folder(self.path.parent)
        with self._lock:
            # A lock of the system belongs to the descriptor, so that each time has one of its own.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.path, flags, FILE_MODE)
            try:
                _lock(descriptor)
                end = _whole_lines(descriptor)
                if end == 0:
                    os.fchmod(descriptor, FILE_MODE)
                append_whole(descriptor, _lines([] if end else [self._columns], rows))
            finally:
                os.close(descriptor)


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return  # a file system without locks: one write of whole lines is all that can be done


def _whole_lines(descriptor: int) -> int:
    """Where the last whole line ends; what a process left behind it that died is cut off."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - _TAIL)
    end = start + os.pread(descriptor, size - start, start).rfind(b"\n") + 1
    if end != size:
        os.ftruncate(descriptor, end)
    return end


def _lines(header: Iterable[Sequence[str]], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([*header, *rows])
    return text.getvalue().encode("utf-8", "replace")
