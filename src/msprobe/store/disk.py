"""How bytes get into a file: through the system's memory or past it, whichever has been faster here.

A system with free memory takes bytes faster than any disk and writes them later. On a virtual machine, or
once that memory is full of what waits to be written, the same path can be several times slower than the
disk itself, and takes memory and processor from training. Neither is known beforehand, so both are timed.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MOST_AT_ONCE = 64 << 20  # bytes of one write, so that progress shows
_PAST = getattr(os, "O_DIRECT", 0)  # the flag that writes past the system's memory, where there is one
_BLOCK = 4096  # such writes begin and end at multiples of this, in memory as in the file
_STAGE = 2 << 20  # bytes that are put together for one of them
_LEAST = 128 << 10  # for less than this the way past costs more than it can save
_TRIAL = 8 << 20  # bytes by which a way is judged; a single file may have been unlucky
_FIRST_GAP, _LAST_GAP = 8 * _TRIAL, 128 * _TRIAL  # bytes between two trials of the slower way


class Pace:
    """Which of two ways to go, by how fast they were; the slower one is tried again, ever more seldom."""

    def __init__(self) -> None:
        self.way = 0  # where the next file goes
        self._trying = False  # this way, until it is judged; else it is the faster one
        self._left = _TRIAL  # bytes that still go this way
        self._gap = _FIRST_GAP
        self._paces = [math.inf, math.inf]  # seconds per byte, of either way when it was last gone
        self._bytes = 0
        self._seconds = 0.0

    def note(self, size: int, seconds: float) -> None:
        """A file went that way."""
        self._bytes += size
        self._seconds += seconds
        self._left -= size
        if self._left <= 0:
            self._paces[self.way] = self._seconds / self._bytes
            self._bytes, self._seconds = 0, 0.0
            self._left = self._judged() if self._trying else _TRIAL
            self._trying = not self._trying
            if self._trying:
                self.way = 1 - self.way

    def _judged(self) -> int:
        """Stay on the faster way; the bytes until the other one is tried again."""
        if self._paces[self.way] < self._paces[1 - self.way]:
            self._gap = _FIRST_GAP
        else:
            self.way = 1 - self.way
            self._gap = min(2 * self._gap, _LAST_GAP)
        return self._gap


class Disk:
    """Writes the files of a run."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._pace = Pace()
        self._goes_past = bool(_PAST)
        self._stage: mmap.mmap | None = None

    def write(self, descriptor: int, chunks: Sequence[Buffer]) -> Iterator[None]:
        """Write the chunks into a new file, one after the other; yields as a sign of progress."""
        views = [memoryview(chunk) for chunk in chunks]
        size = sum(view.nbytes for view in views)
        if size < _LEAST or not self._goes_past:
            yield from _through(descriptor, views, size)
            return
        begun = self._clock()
        past = self._pace.way == 1
        yield from self._past(descriptor, views, size) if past else _through(descriptor, views, size)
        self._pace.note(size, self._clock() - begun)

    def _past(self, descriptor: int, views: Sequence[memoryview], size: int) -> Iterator[None]:
        """Whole blocks go past the system's memory, the rest through it; all of it where that is refused."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        blocks = size - size % _BLOCK
        done = 0
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _PAST)
            for piece in self._staged(views, blocks):
                while piece:
                    written = os.write(descriptor, piece)
                    done += written
                    piece = piece[written:]
                    yield
        except OSError as problem:
            if problem.errno != errno.EINVAL:  # what a file system says that cannot do it
                raise
            self._goes_past = False
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        yield from _through(descriptor, views, size, done)

    def _staged(self, views: Sequence[memoryview], size: int) -> Iterator[memoryview]:
        """The first `size` bytes, in pieces that lie where the disk can fetch them."""
        if self._stage is None:
            self._stage = mmap.mmap(-1, _STAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        stage = memoryview(self._stage)
        filled = 0
        for view in views:
            rest = view.cast("B") if view.nbytes else view
            while rest.nbytes and size:
                part = rest[: min(len(stage) - filled, size)]
                stage[filled : filled + part.nbytes] = part
                filled, size, rest = filled + part.nbytes, size - part.nbytes, rest[part.nbytes :]
                if filled == len(stage) or not size:
                    yield stage[:filled]
                    filled = 0


def _through(descriptor: int, views: Sequence[memoryview], size: int, done: int = 0) -> Iterator[None]:
    """Write what follows the first `done` bytes; one call is enough for most files."""
    if not done and size <= _MOST_AT_ONCE:
        done = os.writev(descriptor, views)
        yield
    for view in views if done < size else ():
        skipped = min(done, view.nbytes)
        done -= skipped
        rest = view.cast("B")[skipped:] if view.nbytes else view
        while rest.nbytes:
            rest = rest[os.write(descriptor, rest[:_MOST_AT_ONCE]) :]
            yield
