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
from typing import NamedTuple

import xxhash

from msprobe.errors import UsageError
from msprobe.store.disk import Disk
from msprobe.store.tensor_file import TensorData, encode_npy, encode_pt
from msprobe.store.tensor_folder import Folder, Identity, file_name

__all__ = ["Contents", "Folder", "Stats", "TensorWriter", "file_name"]

_ENCODERS = {".pt": encode_pt, ".npy": encode_npy}
_COST = 1 << 10  # bytes that a waiting tensor takes beside its numbers
_LINGER = 1.0  # seconds that a tensor may wait for more to come


def _digest(tensor: TensorData) -> bytes:
    """Equal for tensors of one dtype, shape and content."""
    state = xxhash.xxh3_128(f"{tensor.dtype}{tensor.shape}".encode())
    state.update(tensor.data)  # before xxhash 4.0 only update() lets training run meanwhile
    return state.digest()


class _File(NamedTuple):
    path: str
    identity: Identity


class Contents:
    """Which file of a run holds which content, so that each content is written once.

    Known are the contents of the recording in progress and of the one before it: what does not change from
    step to step (frozen weights, masks) goes on from one to the next, and the memory does not grow.
    """

    def __init__(self) -> None:
        self.disk = Disk()  # and how fast it is, which the next recording need not find out again
        self._files: dict[bytes, _File] = {}
        self._before: dict[bytes, _File] = {}

    def begin(self) -> None:
        """Another recording begins."""
        self._before, self._files = self._files, {}

    def find(self, digest: bytes) -> _File | None:
        return self._files.get(digest) or self._before.get(digest)

    def note(self, digest: bytes, file: _File) -> None:
        self._files[digest] = file


class Stats(NamedTuple):
    """What a writer did so far."""

    files: int = 0
    links: int = 0
    bytes_written: int = 0
    missing: int = 0  # tensors that were put and are in no file


class _Shelf:
    """The files of one recording: a new one for a new content, a link for one that a file holds already."""

    def __init__(self, folder: Folder, suffix: str, contents: Contents) -> None:
        self._folder = folder
        self._suffix = suffix
        self._encode = _ENCODERS[suffix]
        self._contents = contents
        self._digests: dict[str, bytes] = {}  # of the content under each name
        self.files = self.links = self.bytes_written = 0
        folder.disk = contents.disk
        contents.begin()

    def put(self, name: str, tensor: TensorData) -> None:
        name = file_name(name, self._suffix)
        digest = _digest(tensor)
        if not self._linked(name, digest):
            with self._replacing(name):
                self._stored(name, digest, self._folder.write(name, self._encode(tensor)))

    def link(self, name: str, same_as: str) -> None:
        name, same_as = file_name(name, self._suffix), file_name(same_as, self._suffix)
        if name == same_as:
            return
        digest = self._digests.get(same_as)
        if digest is None or not self._linked(name, digest):
            with self._replacing(name):
                if digest is None:
                    reason = "no file of this recording holds the same tensor"
                    raise FileNotFoundError(errno.ENOENT, reason, same_as)
                self._stored(name, digest, self._folder.copy(name, same_as))

    @contextlib.contextmanager
    def _replacing(self, name: str) -> Iterator[None]:
        """If no new file comes, an older one of that name must not pass for it."""
        self._digests.pop(name, None)
        try:
            yield
        except BaseException:
            self._folder.remove(name)
            raise

    def _linked(self, name: str, digest: bytes) -> bool:
        """Make `name` a name of the file with this content; False where there is none or no link can be."""
        file = self._contents.find(digest)
        if file is None or self._folder.identity(file.path) != file.identity:
            return False
        if file.path != self._path(name):
            try:
                self._folder.link(name, file.path)
            except OSError:  # links reached their limit, or do not exist here
                return False
            self.links += 1
        self._digests[name] = digest
        self._contents.note(digest, file)
        return True

    def _stored(self, name: str, digest: bytes, identity: Identity) -> None:
        self._digests[name] = digest
        self._contents.note(digest, _File(self._path(name), identity))
        self.files += 1
        self.bytes_written += identity.size

    def _path(self, name: str) -> str:
        return f"{self._folder.path}{os.sep}{name}"


class _Job(NamedTuple):
    name: str
    cost: int
    tensor: TensorData | None = None
    same_as: str = ""  # a further name for the content of this one
    reached: threading.Event | None = None  # no file: somebody waits until all jobs before this one are done


class TensorWriter:
    """Writes tensors to files in a thread of its own, in the order in which they come.

    `on_error(doing, problem)` is called once for each kind of problem, by whichever thread meets it.
    `contents` is shared by the writers of a run, which follow one another.
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
        contents: Contents | None = None,
    ) -> None:
        self._on_error = on_error
        self._suffix = suffix
        self._budget = budget  # bytes of tensors that may wait
        self._patience = patience  # seconds without any progress after which nobody waits any longer
        self._folder = place(folder.absolute())
        self._shelf = _Shelf(self._folder, suffix, contents or Contents())
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards all that follows
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._batch = budget // 4
        self._hurry = False  # write what waits; otherwise let more come together
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
            self._press()
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
            self._press()
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
        if self._waiting >= self._batch:
            self._press()
        elif len(self._jobs) == 1:
            self._work.notify()
        return None

    def _press(self) -> None:
        """Have what waits written now. The lock is held."""
        if not self._hurry:
            self._hurry = True
            self._work.notify()

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
                if not self._jobs and not self._rest():
                    self._folder.close()
                    return
                job = self._jobs.popleft()
            cost = job.cost
            self._do(job)
            self._folder.progress += 1
            del job  # its memory is free before its room is

    def _rest(self) -> bool:
        """Wait until there is enough to do; False when no more is coming. The lock is held.

        Many small files are written at one go: one by one, each would hold up training, and training it.
        """
        self._hurry = False
        while not self._jobs or not self._hurry:
            if self._closed:
                return bool(self._jobs)
            lingering = bool(self._jobs)
            if not self._work.wait(_LINGER if lingering else None) and lingering:
                self._hurry = True
        return True

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
