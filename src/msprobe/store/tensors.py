"""Tensor files, written behind training: each distinct tensor once, every further name of it a hard link.

Nothing here stops training: a file that cannot be written is told and counted, and the next one is tried. If
the process is killed, what waited in memory is lost, and every file that is there is whole.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from msprobe.errors import UsageError
from msprobe.store.tensor_file import TensorData, encode_npy, encode_pt
from msprobe.store.tensor_folder import Folder, file_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Folder", "Stats", "TensorWriter", "file_name"]

_ENCODERS = {".pt": encode_pt, ".npy": encode_npy}
_COST = 1 << 10  # bytes that a waiting tensor takes beside its numbers

_Key = tuple[str, tuple[int, ...], bytes]  # dtype, shape, digest of the numbers


def _digest(data: Buffer) -> bytes:
    # In two steps, because before xxhash 4.0 only update() lets training run meanwhile.
    state = xxhash.xxh3_128()
    state.update(data)
    return state.digest()


class Stats(NamedTuple):
    """What a writer did so far."""

    files: int = 0
    links: int = 0
    bytes_written: int = 0
    missing: int = 0  # tensors that were put and are in no file


class _Shelf:
    """Knows which file holds which content, so that each content is written once."""

    def __init__(self, folder: Folder, suffix: str) -> None:
        self._folder = folder
        self._suffix = suffix
        self._encode = _ENCODERS[suffix]
        self._holder: dict[_Key, str] = {}
        self._content: dict[str, _Key] = {}  # the later word: a file that was replaced holds something else
        self.files = self.links = self.bytes_written = 0

    def put(self, name: str, tensor: TensorData) -> None:
        name = file_name(name, self._suffix)
        key = (tensor.dtype, tensor.shape, _digest(tensor.data))
        holder = self._holder.get(key)
        if holder is not None and self._content.get(holder) == key and self._linked(name, holder, key):
            return
        with self._replacing(name):
            self._stored(name, key, self._folder.write(name, self._encode(tensor)))

    def link(self, name: str, same_as: str) -> None:
        name, same_as = file_name(name, self._suffix), file_name(same_as, self._suffix)
        if name == same_as:
            return
        with self._replacing(name):
            key = self._content.get(same_as)
            if key is None:
                raise FileNotFoundError(
                    errno.ENOENT, "no file of this recording holds the same tensor", same_as
                )
            holder = self._holder[key]
            if self._content.get(holder) != key:
                holder = same_as
            if not self._linked(name, holder, key):
                self._stored(name, key, self._folder.copy(name, holder))

    @contextlib.contextmanager
    def _replacing(self, name: str) -> Iterator[None]:
        """If no new file comes, an older one of that name must not pass for it."""
        self._content.pop(name, None)
        try:
            yield
        except BaseException:
            self._folder.remove(name)
            raise

    def _linked(self, name: str, holder: str, key: _Key) -> bool:
        """Make `name` a name of the holder's file; False where links reached their limit or do not exist."""
        if name != holder:
            try:
                self._folder.link(name, holder)
            except OSError:
                return False
            self.links += 1
        self._content[name] = key
        return True

    def _stored(self, name: str, key: _Key, size: int) -> None:
        self._content[name] = key
        self._holder[key] = name
        self.files += 1
        self.bytes_written += size


class _Job(NamedTuple):
    name: str
    cost: int
    tensor: TensorData | None = None
    same_as: str = ""  # a further name for the content of this one
    reached: threading.Event | None = None  # no file: somebody waits until all jobs before this one are done


class TensorWriter:
    """Writes tensors to files in a thread of its own, in the order in which they come.

    `on_error(doing, problem)` is called once for each kind of problem, by whichever thread meets it.
    In a forked child a writer does nothing: it belongs to the process that made it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        on_error: Callable[[str, BaseException], None],
        suffix: str = ".pt",
        budget: int = 256 << 20,
        patience: float = 30.0,
        place: Callable[[Path], Folder] = Folder,
    ) -> None:
        self._on_error = on_error
        self._suffix = suffix
        self._budget = budget  # bytes of tensors that may wait
        self._patience = patience  # seconds without any progress after which nobody waits any longer
        self._folder = place(folder)
        self._shelf = _Shelf(self._folder, suffix)
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards all that follows
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._stuck_at = -1
        self._closed = False
        self._missing = 0
        self._told: set[tuple[type, object]] = set()
        atexit.register(self.close)

    @property
    def stats(self) -> Stats:
        return Stats(self._shelf.files, self._shelf.links, self._shelf.bytes_written, self._missing)

    @property
    def waiting(self) -> int:
        """Bytes that wait in memory, the file being written included."""
        return self._waiting

    def put(self, name: str, tensor: TensorData) -> None:
        """Have a tensor written soon. Its bytes are a private copy that nobody changes any more.

        Returns at once, unless more would wait than the budget allows.
        """
        self._add(_Job(name, memoryview(tensor.data).nbytes + _COST, tensor))

    def link(self, name: str, same_as: str) -> None:
        """A further name for a tensor that was put before, under the name `same_as`, into this writer."""
        self._add(_Job(name, _COST, same_as=same_as))

    def drain(self) -> None:
        """Return when all that was put so far is in files, or when the disk has stopped answering."""
        self._drained()

    def close(self) -> None:
        """Drain, and end the thread; what is put later is counted as missing."""
        if os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        drained = self._drained()
        with self._lock:
            self._closed = True
            self._work.notify()
        if drained and self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._patience)

    def _drained(self) -> bool:
        if os.getpid() != self._process:
            return True
        reached = threading.Event()
        with self._lock:
            if self._thread is None or self._closed or self._thread is threading.current_thread():
                return True
            self._jobs.append(_Job("", 0, reached=reached))
            self._work.notify()
        while not reached.is_set():
            if not self._moves(reached.wait):
                return False
        return True

    def _add(self, job: _Job) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            problem = self._admitted(job)
        if problem is not None:
            self._lose(job, problem)

    def _admitted(self, job: _Job) -> Exception | None:
        """Queue a job as soon as there is room; why not, if it cannot be. The lock is held."""
        while self._waiting and self._waiting + job.cost > self._budget:
            if not self._moves(self._room.wait):
                return TimeoutError(f"the disk has not answered for {self._patience:g} seconds")
        if self._closed:
            return UsageError("the recording was already finished")
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="msprobe-tensors", daemon=True)
            try:
                thread.start()
            except RuntimeError as problem:  # too many threads, or the interpreter is about to end
                return problem
            self._thread = thread
        self._jobs.append(job)
        self._waiting += job.cost
        self._work.notify()
        return None

    def _moves(self, wait: Callable[[float], bool]) -> bool:
        """Wait a while; False if nothing moved for as long as our patience, or since it was last False."""
        before = self._folder.progress
        if before == self._stuck_at:
            return False
        if wait(self._patience) or self._folder.progress != before:
            return True
        self._stuck_at = before
        return False

    def _run(self) -> None:
        cost = 0
        while True:
            with self._lock:
                self._waiting -= cost
                if self._waiting <= self._budget // 2:  # waking training for each file would slow both
                    self._room.notify_all()
                while not self._jobs:
                    if self._closed:
                        self._folder.close()
                        return
                    self._work.wait()
                job = self._jobs.popleft()
            cost = job.cost
            self._do(job)
            self._folder.progress += 1
            del job  # its memory is free before its room is

    def _do(self, job: _Job) -> None:
        try:
            if job.reached is not None:
                job.reached.set()
            elif job.tensor is not None:
                self._shelf.put(job.name, job.tensor)
            else:
                self._shelf.link(job.name, job.same_as)
        except Exception as problem:  # noqa: BLE001 - if the thread ended, training would wait for room
            self._lose(job, problem)

    def _lose(self, job: _Job, problem: Exception) -> None:
        kind = (type(problem), getattr(problem, "errno", None))
        with self._lock:
            self._missing += 1
            told = kind in self._told
            self._told.add(kind)
        if not told:
            with contextlib.suppress(Exception):  # whatever the caller does with it, the next file is tried
                self._on_error(f"write the tensor file '{file_name(job.name, self._suffix)}'", problem)
