"""The way through a shared folder: each call a file, deleted once its result is written.

{nfs_path}/rank{R}_{run}/start.json              a process trains; its time changes as long as it lives
{nfs_path}/rank{R}_{run}/{number}.safetensors    a call
{nfs_path}/rank{R}_{run}/end.json                no further call comes
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from msprobe.online.message import (
    LARGEST,
    Farewell,
    Greeting,
    farewell_line,
    greeting_line,
)
from msprobe.online.outbox import Outbox, Outgoing
from msprobe.store.layout import FOLDER_MODE, write_whole

START, END = "start.json", "end.json"
CALL = re.compile(r"([0-9]{12})\.safetensors")
RUN = re.compile(r"rank[0-9]{1,9}_[0-9a-f]{32}")
_MOST_FILES = 20_000  # that may wait to be checked
_MOST_BYTES = 16 << 30
_COUNTING = 0.5
HEARTBEAT = 5.0
POLL = 0.1
_FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


def call_file(sequence: int) -> str:
    return f"{sequence:012}.safetensors"


class FolderWay:
    """Carries calls into the folder."""

    def __init__(self, path: str) -> None:
        self._root = Path(path).absolute()
        self._ended = threading.Event()
        self._changed = threading.Event()
        self._beat = self._counted = 0.0
        self._room = True

    def abort(self) -> None:
        self._ended.set()
        self._changed.set()

    def carry(self, greeting: Greeting, outbox: Outbox) -> None:
        outbox.on_change(self._changed.set)
        folder = self._root / greeting.key
        pause = _FIRST_PAUSE
        while not self._ended.is_set():
            try:
                self._begin(folder, greeting)
                self._send(folder, outbox)
                return
            except OSError as error:
                outbox.rewind()
                outbox.tell(f"no call can be written to {folder}, which is tried again: {error.strerror}")
                self._ended.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _begin(self, folder: Path, greeting: Greeting) -> None:
        if not folder.is_dir():
            folder.mkdir(FOLDER_MODE)  # and not its parents: a share that is not mounted has none
            folder.chmod(FOLDER_MODE)
        if not (folder / START).exists():
            write_whole(folder / START, [greeting_line(greeting).encode()])

    def _send(self, folder: Path, outbox: Outbox) -> None:
        """Until all calls are in the folder, and the checker has read as many as it is still reading."""
        while not self._ended.is_set():
            self._changed.clear()
            self._touch(folder)
            call = outbox.next() if self._has_room(folder) else None
            if call is not None:
                self._write(folder, call, outbox)
            elif outbox.closing and not outbox.unsettled:
                write_whole(folder / END, [farewell_line(Farewell(outbox.dropped)).encode()])
                return
            else:
                self._changed.wait(POLL if outbox.unsettled else HEARTBEAT)

    def _write(self, folder: Path, call: Outgoing, outbox: Outbox) -> None:
        chunks = outbox.message_of(call, LARGEST)
        if chunks is not None:
            write_whole(folder / call_file(call.sequence), chunks)
            outbox.settle(call.sequence)

    def _has_room(self, folder: Path) -> bool:
        """Looked after once in a while, for a folder may hold many files."""
        now = time.monotonic()
        if now - self._counted > _COUNTING or not self._room:
            self._counted = now
            sizes = list(_sizes(folder))
            self._room = len(sizes) < _MOST_FILES and sum(sizes) < _MOST_BYTES
        return self._room

    def _touch(self, folder: Path) -> None:
        if time.monotonic() - self._beat > HEARTBEAT:
            self._beat = time.monotonic()
            os.utime(folder / START)


def _sizes(folder: Path) -> Iterator[int]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if CALL.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):  # deleted just now
                    yield entry.stat().st_size
