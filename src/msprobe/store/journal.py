"""The append-only log of a recording in progress: what was appended survives the death of the process.

One line per fact, fields separated by tabs (JSON never holds a raw tab or line feed):

    H <version> <header json> <crc>        once, first
    S <number> <frames json> <crc>         a call stack, before the first record that uses it
    R <name json> <stack number or -> <parent json or -> <fields json> <crc>

The last field is the CRC-32 of the line before it. A line counts only if it is whole and its CRC is right, so
what a kill, a full disk or a bad sector tore is left out, and nothing else is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msprobe.errors import RecordingError
from msprobe.kernels_deflate import crc32
from msprobe.store.layout import open_new, open_regular

VERSION = "1"
NONE = "-"  # no stack; not listed in construct.json

_COMPUTED = b'"is_recompute":false'
_RECOMPUTED = b'"is_recompute":true'
_FILE = re.compile(rb',"data_name":"(?:[^"\\]|\\.)*"')
_MAKER = re.compile(rb',"from":"(?:[^"\\]|\\.)*"')


def header_line(header: str) -> bytes:
    return _line(f"H\t{VERSION}\t{header}".encode("ascii"))


def stack_line(number: int, frames: str) -> bytes:
    return _line(f"S\t{number}\t{frames}".encode("ascii"))


def record_line(name: str, stack: int | str, parent: str, fields: bytes) -> bytes:
    """All but the number of the stack is JSON; stack and parent may be NONE."""
    return _line(f"R\t{name}\t{stack}\t{parent}\t".encode("ascii") + fields)


def _line(data: bytes) -> bytes:
    return b"%b\t%b\n" % (data, _crc(data))


def _crc(data: bytes) -> bytes:
    return b"%08x" % crc32(data)


class Journal:
    """Appends lines with one unbuffered write each, so that a killed process loses none that was appended."""

    def __init__(self, path: Path, header: str) -> None:
        """Begin a journal; under its name there is always a whole header."""
        self._torn = False
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._descriptor = open_new(beside, os.O_APPEND | os.O_TRUNC)
        try:
            self.append(header_line(header))
            os.replace(beside, path)
        except BaseException:
            self.close()
            beside.unlink(missing_ok=True)
            raise

    def append(self, lines: bytes) -> None:
        """Append whole lines; raises OSError when the disk does not take them."""
        if self._torn:
            lines = b"\n" + lines
        written = os.write(self._descriptor, lines)
        self._torn = written != len(lines)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Entry(NamedTuple):
    """One record: the parts of its line, still as JSON."""

    name: str
    stack: str  # the number of its stack, or NONE
    parent: str  # or NONE
    fields: tuple[int, int] | bytes  # where its fields lie in the journal, or what they became


class Contents:
    """What a journal says; the records' fields stay in the mapped file until they are asked for."""

    def __init__(self, path: Path, data: mmap.mmap | bytes) -> None:
        self._data = data
        self.damaged = 0  # lines that do not count
        self.header: dict[str, Any] = {}
        self.stacks: dict[str, str] = {}
        self.records: dict[str, Entry] = {}
        for start, end in self._lines():
            self._take(path, start, end)
        if not self.header:
            raise RecordingError(f"{path} has no header line, so nothing of this recording can be read.")

    def fields(self, entry: Entry) -> bytes:
        """The fields of a record as JSON."""
        where = entry.fields
        return where if isinstance(where, bytes) else self._data[where[0] : where[1]]

    def _lines(self) -> Iterator[tuple[int, int]]:
        start = 0
        while (end := self._data.find(b"\n", start)) >= 0:
            yield start, end
            start = end + 1
        self.damaged += start < len(self._data)

    def _take(self, path: Path, start: int, end: int) -> None:
        content, _, crc = self._data[start:end].rpartition(b"\t")
        if crc != _crc(content):
            self.damaged += 1
            return
        kind, *fields = content.split(b"\t")
        if kind == b"R" and len(fields) == 4:
            end = start + len(content)
            name, stack, parent = b"\t".join(fields[:3]).decode("utf-8", "replace").split("\t")
            self._add(Entry(name, sys.intern(stack), sys.intern(parent), (end - len(fields[3]), end)))
        elif kind == b"S" and len(fields) == 2:
            self.stacks[fields[0].decode("utf-8", "replace")] = fields[1].decode("utf-8", "replace")
        elif kind == b"H" and len(fields) == 2 and fields[0] == VERSION.encode():
            self.header = _header(path, fields[1])
        else:
            raise RecordingError(
                f"{path} is not a journal of format {VERSION}; use the msprobe that wrote it to recover it."
            )

    def _add(self, entry: Entry) -> None:
        """Add a record; one that comes again replaces the first, but a recomputed call only marks it."""
        first = self.records.get(entry.name)
        if first is not None and _RECOMPUTED in (again := self.fields(entry)):
            before = self.fields(first)
            if _RECOMPUTED not in before:
                marked = before.replace(_COMPUTED, _RECOMPUTED, 1)
                again = again.replace(_RECOMPUTED, _COMPUTED, 1)
                # The second run names no files, and what it is given may come by another way.
                same = _MAKER.sub(b"", again) in ((told := _MAKER.sub(b"", before)), _FILE.sub(b"", told))
                fields = marked if same else b'%b,"recompute":%b}' % (marked[:-1], again)
                self.records[entry.name] = first._replace(fields=fields)
            return
        self.records.pop(entry.name, None)
        self.records[entry.name] = entry


def _header(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or not isinstance(header.get("level"), str):
        raise RecordingError(f"{path} has a header line that is not one; the file is damaged.")
    return header


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Contents]:
    """The contents of a journal, as long as the block lasts."""
    descriptor = open_regular(path)
    try:
        if os.fstat(descriptor).st_size == 0:
            yield Contents(path, b"")
            return
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
            yield Contents(path, data)
    finally:
        os.close(descriptor)
