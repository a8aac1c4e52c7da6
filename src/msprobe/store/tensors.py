"""Tensor files, written behind training: each distinct tensor once, every further name of it a hard link.

What holds whenever the process is killed: a file under its final name is whole. What is lost is what waited in the
queue. Nothing here stops training: a file that cannot be written is counted and told, and the next one is tried.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from msprobe.errors import UsageError
from msprobe.store.layout import FILE_MODE, FOLDER_MODE
from msprobe.store.tensor_file import TensorData, encode_npy, encode_pt

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ENCODERS = {".pt": encode_pt, ".npy": encode_npy}
_LONGEST_NAME = 255  # bytes, of every file system in use
_MOST_AT_ONCE = 64 << 20  # bytes of one write call, so that progress can be seen
_JOB_COST = 1 << 10  # bytes a waiting tensor costs beside its content
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def file_name(name: str, suffix: str) -> str:
    """The file a tensor called `name` is stored in: the name itself wherever a file can be called so.

    Signs that cannot or should not stand in a file name become "_", and long names are cut; a digest of the whole
    name is added to these, so that two names never share a file.
    """
    if name.isascii() and name.isprintable() and "/" not in name and len(name) <= _LONGEST_NAME - len(suffix):
        return name + suffix
    clean = "".join(sign if sign.isprintable() and sign != "/" else "_" for sign in name)
    if clean == name and len(name.encode()) <= _LONGEST_NAME - len(suffix):
        return name + suffix
    ending = f".{xxhash.xxh3_64_hexdigest(name.encode('utf-8', 'surrogatepass'))}{suffix}"
    return clean.encode()[: _LONGEST_NAME - len(ending)].decode(errors="ignore") + ending


class Folder:
    """A folder in which a name stands for a whole file or for nothing, made when the first file comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress = 0  # grows with each step done; standing still, it tells that the disk hangs
        self._descriptor: int | None = None
        self._beside = f".{os.getpid()}-{id(self):x}.tmp"

    def write(self, name: str, chunks: Sequence[Buffer]) -> int:
        """Write a file, in place of what had this name; return its size."""
        directory = self._opened()
        try:
            descriptor = os.open(self._beside, _CREATE, FILE_MODE, dir_fd=directory)
        except FileExistsError:  # left by a killed process that had this number
            os.unlink(self._beside, dir_fd=directory)
            descriptor = os.open(self._beside, _CREATE, FILE_MODE, dir_fd=directory)
        try:
            try:
                size = self._write_all(descriptor, chunks)
                os.fchmod(descriptor, FILE_MODE)
            finally:
                os.close(descriptor)
            os.rename(self._beside, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            self.remove(self._beside)
            self.close()  # perhaps the folder is gone: the next file looks for it anew
            raise
        return size

    def link(self, name: str, same_as: str) -> None:
        """Give a file a further name, in place of what had this name."""
        directory = self._opened()
        try:
            _link(same_as, name, directory)
        except FileExistsError:
            _link(same_as, self._beside, directory)
            os.rename(self._beside, name, src_dir_fd=directory, dst_dir_fd=directory)
            self.remove(self._beside)  # still there if both names were one file already

    def copy(self, name: str, same_as: str) -> int:
        descriptor = os.open(same_as, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._opened())
        try:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
                return self.write(name, [content])
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Remove a file if it is there; errors do not matter."""
        try:
            os.unlink(name, dir_fd=self._opened())
        except OSError:
            return

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, FOLDER_MODE)
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self._descriptor

    def _write_all(self, descriptor: int, chunks: Sequence[Buffer]) -> int:
        views = [view for view in map(memoryview, chunks) if view.nbytes]
        size = sum(view.nbytes for view in views)
        written = os.writev(descriptor, views) if size <= _MOST_AT_ONCE else 0
        self.progress += 1
        skip = written
        for view in views if written < size else ():
            start, skip = min(skip, view.nbytes), max(skip - view.nbytes, 0)
            rest = view.cast("B")[start:]
            while rest:
                rest = rest[os.write(descriptor, rest[:_MOST_AT_ONCE]) :]
                self.progress += 1
        return size


def _link(same_as: str, name: str, directory: int) -> None:
    os.link(same_as, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)


class Stats(NamedTuple):
    """What a writer did so far."""

    files: int = 0
    links: int = 0
    bytes_written: int = 0
    missing: int = 0  # names that were put and have no file


_Key = tuple[str, tuple[int, ...], bytes]  # dtype, shape, digest of the bytes


class _Shelf:
    """Knows which file holds which content, so that each content is written once."""

    def __init__(self, folder: Folder, suffix: str) -> None:
        self._folder = folder
        self._suffix = suffix
        self._encode = _ENCODERS[suffix]
        self._holder: dict[_Key, str] = {}
        self._content: dict[str, _Key] = {}  # a file that is replaced holds its old content no more
        self.files = self.links = self.bytes_written = 0

    def put(self, name: str, tensor: TensorData) -> None:
        name = file_name(name, self._suffix)
        key = (tensor.dtype, tensor.shape, xxhash.xxh3_128_digest(tensor.data))
        holder = self._holder.get(key)
        if holder is not None and self._content.get(holder) == key and self._linked(name, holder, key):
            return
        self._content.pop(name, None)
        try:
            size = self._folder.write(name, self._encode(tensor))
        except BaseException:
            self._folder.remove(name)  # an older file must not pass for this tensor
            raise
        self._stored(name, key, size)

    def link(self, name: str, same_as: str) -> None:
        name, same_as = file_name(name, self._suffix), file_name(same_as, self._suffix)
        key = self._content.get(same_as)
        if key is None:
            self._folder.remove(name)
            raise FileNotFoundError(errno.ENOENT, f"'{same_as}', which has the same content, was not written")
        holder = self._holder[key] if self._content.get(self._holder[key]) == key else same_as
        if not self._linked(name, holder, key):
            self._stored(name, key, self._folder.copy(name, holder))

    def _linked(self, name: str, holder: str, key: _Key) -> bool:
        """Whether `name` is now a name of the holder's file; some file systems have no links, all bound their number."""
        if name == holder:
            return True
        try:
            self._folder.link(name, holder)
        except OSError:
            return False
        self._content[name] = key
        self.links += 1
        return True

    def _stored(self, name: str, key: _Key, size: int) -> None:
        self._content[name] = key
        self._holder[key] = name
        self.files += 1
        self.bytes_written += size


class _Job(NamedTuple):
    name: str
    tensor: TensorData | None  # None: a further name for the content of `same_as`
    same_as: str
    cost: int
    reached: threading.Event | None = None  # no file: somebody waits for the jobs before this one


class TensorWriter:
    """Writes tensors to files in a thread of its own, in the order in which they come.

    `on_error(sentence, problem)` is called once for each kind of problem, by whichever thread meets it.
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
        self._budget = budget  # bytes of tensors that may wait
        self._patience = patience  # seconds without any progress after which nobody waits any longer
        self._folder = place(folder)
        self._shelf = _Shelf(self._folder, suffix)
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards all that follows
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._closed = False
        self._stuck_at = -1
        self._missing = 0
        self._told: set[object] = set()
        atexit.register(self.close)

    @property
    def stats(self) -> Stats:
        return Stats(self._shelf.files, self._shelf.links, self._shelf.bytes_written, self._missing)

    def put(self, name: str, tensor: TensorData) -> None:
        """Write a tensor soon. Its bytes are a private copy that nobody changes any more.

        Returns at once unless the waiting tensors would take more than the budget.
        """
        self._add(_Job(name, tensor, "", memoryview(tensor.data).nbytes + _JOB_COST))

    def link(self, name: str, same_as: str) -> None:
        """A further name for a tensor that was put under another one before."""
        self._add(_Job(name, None, same_as, _JOB_COST))

    def drain(self) -> None:
        """Return when all that was put so far is in files, or when the disk has stopped answering."""
        if os.getpid() != self._process or self._thread in (None, threading.current_thread()):
            return
        reached = threading.Event()
        with self._lock:
            if self._closed:
                return
            self._jobs.append(_Job("", None, "", 0, reached))
            self._work.notify()
        while not reached.is_set() and self._moves(reached.wait):
            pass

    def close(self) -> None:
        """Drain, and let the thread end; what is put later is counted as missing."""
        if os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        self.drain()
        with self._lock:
            self._closed = True
            self._work.notify()

    def _add(self, job: _Job) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            problem = self._admit(job)
        if problem is not None:
            self._lose(job, problem)

    def _admit(self, job: _Job) -> Exception | None:
        """Queue a job, as soon as there is room; the lock is held. The answer is why it could not be queued."""
        while self._waiting and self._waiting + job.cost > self._budget:
            if not self._moves(self._room.wait):
                return TimeoutError("the disk does not answer")
        if self._closed:
            return UsageError("its recording was already finished")
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
        """Wait for the thread; False once nothing has moved for as long as our patience, until something does."""
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
                if self._waiting <= self._budget // 2:  # not at each file: waking training costs both of us
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
        except Exception as problem:  # noqa: BLE001 - if the thread ended, training would wait for room forever
            self._lose(job, problem)

    def _lose(self, job: _Job, problem: Exception) -> None:
        kind = (type(problem), getattr(problem, "errno", None))
        with self._lock:
            self._missing += 1
            known = kind in self._told
            self._told.add(kind)
        if known:
            return
        reason = (problem.strerror if isinstance(problem, OSError) else None) or str(problem) or kind[0].__name__
        with contextlib.suppress(Exception):
            self._on_error(
                f"The tensor '{job.name}' could not be written to '{self._folder.path}': {reason}. Training goes on, "
                "later tensors are tried, and further failures of this kind are only counted.",
                problem,
            )
