"""The append-only log of a recording in progress: what was appended survives the death of the process.

One line per fact, fields separated by tabs (JSON never holds a raw tab or line feed):

    H <version> <header json>                                      once, first
    S <number> <frames json>                                       a call stack, before the first record that uses it
    R <name json> <stack number or -> <parent json or -> <fields json>

A line counts only if it is complete, so a torn last line is dropped and nothing else is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msprobe.errors import RecordingError
from msprobe.store.layout import open_new

VERSION = "1"
NONE = "-"


class Entry(NamedTuple):
    """One line: its kind and its fields, still as text."""

    kind: str
    fields: list[str]


class Journal:
    """Appends lines with one unbuffered write each, so that a killed process loses none that was appended."""

    def __init__(self, path: Path, header: str) -> None:
        self._descriptor = open_new(path, os.O_APPEND | os.O_TRUNC)
        self._torn = False
        self.append(f"H\t{VERSION}\t{header}\n")

    def append(self, lines: str) -> None:
        """Append whole lines; raises OSError when the disk does not take them."""
        data = lines.encode("utf-8", "surrogatepass" if "\ud800" in lines else "strict")
        if self._torn:
            data = b"\n" + data
        written = os.write(self._descriptor, data)
        self._torn = written != len(data)
        if self._torn:
            raise OSError(28, "No space left on device")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def stack_line(number: int, frames: str) -> str:
    return f"S\t{number}\t{frames}\n"


def record_line(name: str, stack: int | None, parent: str, fields: str) -> str:
    return f"R\t{name}\t{NONE if stack is None else stack}\t{parent}\t{fields}\n"


def read(path: Path) -> Iterator[Entry]:
    """The complete lines of a journal; what a kill or a full disk tore is skipped."""
    counts = {"H": 3, "S": 3, "R": 5}
    with path.open("rb") as stream:
        first = True
        for line in stream:
            fields = line[:-1].decode("utf-8", "replace").split("\t")
            if not line.endswith(b"\n") or counts.get(fields[0]) != len(fields):
                continue
            if first:
                first = False
                if fields[0] != "H" or fields[1] != VERSION:
                    raise RecordingError(
                        f"{path} is not a journal of format {VERSION}; use the msprobe that wrote it to recover it."
                    )
            yield Entry(fields[0], fields[1:])
