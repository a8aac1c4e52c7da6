"""The checking side of a shared folder: calls are read in order, and deleted when their results are written.

Whoever writes there may have begun before us, may die, and may begin anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msprobe.errors import UsageError
from msprobe.log import logger
from msprobe.online.blob import Malformed
from msprobe.online.desk import Desk, Refused, Run
from msprobe.online.folder import CALL, END, HEARTBEAT, LONGEST_PAUSE, POLL, RUN, START, call_file
from msprobe.online.message import LARGEST, LONGEST_LINE, read_farewell, read_greeting
from msprobe.store.layout import open_new, open_regular

_LOCK = ".checker.lock"
_SILENT = 3 * HEARTBEAT  # a process that is silent for so long, while its rank began anew, is dead


class _Seen:
    """A process whose folder is read."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder = folder
        self.run = run
        self.beat = 0
        self.gap_since: float | None = None


class FolderSource:
    """Reads the calls of all processes that write to the folder."""

    def __init__(self, path: str, desk: Desk) -> None:
        self._root = Path(path).absolute()
        self._desk = desk
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lock = _claimed(self._root)

    def close(self) -> None:
        os.close(self._lock)

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def read(self) -> None:
        """For ever: whoever begins is followed."""
        while True:
            try:
                for name in await asyncio.to_thread(self._folders):
                    if name not in self._tasks:
                        self._tasks[name] = asyncio.create_task(self._follow(name))
                        self._tasks[name].add_done_callback(self._desk.lost_task)
            except OSError as error:
                logger().warning("%s cannot be read: %s.", self._root, error.strerror)
                await asyncio.sleep(LONGEST_PAUSE)
            await asyncio.sleep(5 * POLL)

    def _folders(self) -> list[str]:
        with os.scandir(self._root) as entries:
            return sorted(
                entry.name
                for entry in entries
                if RUN.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            )

    async def _follow(self, name: str) -> None:
        """Read what one process writes, until it ends."""
        folder = self._root / name
        seen: _Seen | None = None
        while True:
            try:
                if seen is None:
                    seen = self._greet(name, folder)
                await self._read_calls(seen)
                if await self._is_over(seen):
                    self._end(seen)
                    return
            except OSError as error:  # a share has its moments; and start.json may be about to come
                if not isinstance(error, FileNotFoundError):
                    logger().warning("%s cannot be read: %s.", folder, error.strerror)
                    await asyncio.sleep(LONGEST_PAUSE)
            except (Refused, Malformed) as error:
                logger().warning("%s is left alone: %s.", folder, error)
                return
            await asyncio.sleep(POLL)

    def _greet(self, name: str, folder: Path) -> _Seen:
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise Refused("this user may not read and delete what is in it; let one user run both sides")
        greeting = read_greeting(_content(folder / START, LONGEST_LINE))
        if greeting.key != name:
            raise Refused("its start.json belongs to another folder")
        return _Seen(folder, self._desk.greet(greeting, replaces=False))

    async def _read_calls(self, seen: _Seen) -> None:
        run, folder = seen.run, seen.folder
        for sequence in await asyncio.to_thread(lambda: list(_waiting(folder, run.done))):
            if sequence <= run.accepted:
                continue
            if sequence > run.accepted + 1 and not self._is_lasting_gap(seen):
                return
            seen.gap_since = None
            await run.room()
            path = folder / call_file(sequence)
            try:
                await self._desk.take(run, await asyncio.to_thread(_content, path, LARGEST), sequence)
            except (Refused, Malformed) as error:
                logger().warning("%s is not checked and was removed: %s.", path, error)
                path.unlink()
            run.accepted = max(run.accepted, sequence)

    def _is_lasting_gap(self, seen: _Seen) -> bool:
        """A listing may lack a file that was made meanwhile; one that is damaged never comes."""
        if seen.gap_since is None:
            seen.gap_since = time.monotonic()
        return time.monotonic() - seen.gap_since > HEARTBEAT

    async def _is_over(self, seen: _Seen) -> bool:
        run = seen.run
        state = await asyncio.to_thread(_look, seen.folder, run.done)
        if state.beat != seen.beat:
            seen.beat, run.seen = state.beat, time.monotonic()
        if run.waiting or state.has_calls:
            return False
        silent = time.monotonic() - run.seen > _SILENT
        anew = any(other.seen > run.seen for other in self._desk.of_rank(run.greeting.rank))
        run.complete = state.has_ended
        return state.has_ended or run.stopped or (silent and anew)

    def _end(self, seen: _Seen) -> None:
        run, folder = seen.run, seen.folder
        dropped = read_farewell(_content(folder / END, LONGEST_LINE)).dropped if run.complete else 0
        if not run.stopped:
            self._desk.stop(run, dropped)
        for path in (folder / START, folder / END, *folder.glob(".*.part")):  # a killed process leaves parts
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody put something else there
            folder.rmdir()


class _State(NamedTuple):
    """What a folder shows of its process."""

    beat: int
    has_calls: bool
    has_ended: bool


def _look(folder: Path, done: int) -> _State:
    try:
        beat = (folder / START).stat().st_mtime_ns
    except FileNotFoundError:
        beat = 0
    ended = (folder / END).exists()  # looked for before the calls: it is written after them
    return _State(beat, any(True for _ in _waiting(folder, done)), ended)


def _waiting(folder: Path, done: int) -> Iterator[int]:
    """The numbers of the calls in a folder; those whose results are written are deleted."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
    for name in names:
        found = CALL.fullmatch(name)
        if found and int(found[1]) <= done:
            (folder / name).unlink(missing_ok=True)
        elif found:
            yield int(found[1])


def _content(path: Path, most: int) -> bytes:
    try:
        descriptor = open_regular(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL):  # which it will be for ever
            raise Malformed(str(error.strerror)) from None
        raise
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise Malformed(f"has more than {most} bytes")
    return content


def _claimed(root: Path) -> int:
    """Two checkers would take each other's calls."""
    descriptor = open_new(root / _LOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise UsageError(f"Another online check reads {root}; end it, or use another folder.") from None
    return descriptor
