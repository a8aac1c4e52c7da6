"""Who records which rank of a run: a lock on a small file, which the death of the process releases."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from msprobe.errors import UsageError
from msprobe.store.layout import CLAIMS, FILE_MODE, make_below

_PATIENCE = 30.0  # seconds to wait for another process that looks through the same run
_MOMENT = 1.0  # a lock that is only looked at is free again after this
_MUTEX = "mutex"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def take(run: Path, name: str) -> int:
    """Claim the folders of one rank, until the descriptor is closed or the process dies."""
    descriptor = _open(run, name)
    if not _locked(descriptor, _MOMENT):
        os.close(descriptor)
        raise UsageError(
            f"{holder(run, name) or 'another process'} is recording into the '{name}' folders of {run}, so "
            "this process records nothing; give each process a dump_path of its own, or initialise the "
            "process group before start()"
        )
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return descriptor


def holder(run: Path, name: str) -> str | None:
    """Which process records this rank now, None if none does."""
    try:
        descriptor = os.open(run / CLAIMS / name, _READ)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 200).decode("utf-8", "replace").strip() or "another process"
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(descriptor)
    return None


def is_of_this_run(run: Path, name: str) -> bool:
    """Whether a rank's folders belong to the run of this process, so that they are not an older recording.

    They do if their process still records, or if it began to after this process was started: the processes of
    a run are started together, and none records before it has loaded its framework.
    """
    if holder(run, name) is not None:
        return True
    try:
        claimed = os.stat(run / CLAIMS / name, follow_symlinks=False).st_mtime
        now = os.stat(run / CLAIMS / _MUTEX).st_mtime  # both of the disk's clock; ours may differ
    except OSError:
        return False
    return now - claimed < _age()


def any_of_this_run(run: Path) -> bool:
    """Whether some process of this run has claimed a rank."""
    names = [path.name for path in (run / CLAIMS).iterdir() if path.name != _MUTEX]
    return any(is_of_this_run(run, name) for name in names)


@contextlib.contextmanager
def alone(run: Path) -> Iterator[None]:
    """While the block lasts no other process claims a rank of this run or moves its older recordings."""
    descriptor = _open(run, _MUTEX)
    try:
        if not _locked(descriptor, _PATIENCE):
            raise TimeoutError(f"another process has been looking through {run} for {_PATIENCE:g} seconds")
        os.utime(descriptor)
        yield
    finally:
        os.close(descriptor)


def _open(run: Path, name: str) -> int:
    folder = make_below(run, run / CLAIMS)
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with contextlib.suppress(PermissionError):  # of another user
        os.fchmod(descriptor, FILE_MODE)
    return descriptor


def _locked(descriptor: int, patience: float) -> bool:
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if not time.monotonic() < end:
                return False
            time.sleep(0.02)
        except OSError:  # a file system without locks: of other processes nothing can be known
            return True


def _age() -> float:
    """Seconds since this process was started; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
