"""Where things lie below a run's folder, and how they are opened safely: modes, links, whole files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

FOLDER_MODE = 0o750
FILE_MODE = 0o640

TENSOR_FOLDER = "dump_tensor_data"
DUMP = "dump.json"
STACK = "stack.json"
CONSTRUCT = "construct.json"
DEBUG = "debug.json"
JOURNAL = "journal.log"
ERRORS = "dump_error_info.log"
OVERFLOWS = "overflow.csv"
PREVIOUS = "previous"
CLAIMS = ".claims"

STEP_FOLDER = re.compile(r"step([0-9]{1,9})")
RANK_FOLDER = re.compile(r"(?:rank|proc)([0-9]{0,9})")  # proc: release 26.2.0 outside distributed training
_LEVELS = 4  # of folders below the one that is named: a run has two
# Of a file that was being written when its process died: one of ours, or a tensor's.
_LEFT_BEHIND = re.compile(r"\.(?:\w+\.(?:json|log)\.[0-9]+\.part|[0-9]+-[0-9a-f]+\.tmp)")


def rank_folder(rank: int | None) -> str:
    """`rank3` in distributed training, `rank` alone outside it."""
    return "rank" if rank is None else f"rank{rank}"


def recording_folder(run: Path, step: int, rank: int | None) -> Path:
    return run / f"step{step}" / rank_folder(rank)


def step_and_rank(folder: Path) -> tuple[int | None, int | None]:
    """What the names of a recording's folder and of the one above it say."""
    step = STEP_FOLDER.fullmatch(folder.parent.name)
    rank = RANK_FOLDER.fullmatch(folder.name)
    numbered = rank is not None and rank[1] and folder.name.startswith("rank")
    return int(step[1]) if step else None, int(rank[1]) if rank and numbered else None


def make_folder(path: Path) -> Path:
    """Make a folder and its missing parents, each with our mode whatever the umask says."""
    missing = []
    above = path
    while not above.exists():
        missing.append(above)
        above = above.parent
    for folder in reversed(missing):
        _make_one(folder)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(path))
    return path


def make_below(run: Path, folder: Path) -> Path:
    """Make a folder of a run; a link on the way to it is refused, for it may lead out of the run."""
    make_folder(run)
    path = run
    for part in folder.relative_to(run).parts:
        path = path / part
        _make_one(path)
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, and links are not followed", str(path))
    return folder


def _make_one(folder: Path) -> None:
    try:
        folder.mkdir(mode=FOLDER_MODE)
    except FileExistsError:  # made before, or by another rank just now
        return
    folder.chmod(FOLDER_MODE)


def clear(folder: Path, suffix: str) -> None:
    """Remove the files of a kind from a folder; a link in its place is removed itself, and not followed."""
    if folder.is_symlink():
        folder.unlink()
    for path in folder.glob(f"*{suffix}"):
        path.unlink()


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor for reading a file; a link is not followed, and a pipe or a device is refused at once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, and links are not followed", os.fspath(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    return descriptor


def open_new(path: Path, flags: int = 0) -> int:
    """A descriptor for writing a file of ours; a link at its place is replaced, never followed."""
    if path.is_symlink():
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)
    return descriptor


def append_whole(descriptor: int, data: bytes) -> None:
    """Add to a file, in one write as long as the disk has room; an OSError leaves the file as it was."""
    end = os.fstat(descriptor).st_size
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def append_to(path: Path, data: bytes) -> None:
    """Add to a file of ours, which is made where there is none."""
    descriptor = open_new(path, os.O_APPEND)
    try:
        append_whole(descriptor, data)
    finally:
        os.close(descriptor)


def write_whole(path: Path, chunks: Iterable[Buffer]) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(open_new(beside, os.O_TRUNC), "wb", buffering=1 << 20) as stream:
            stream.writelines(chunks)
        os.replace(beside, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # a full disk does not say which file it had no room for
            error.filename = str(path)
        raise


def sweep(folder: Path) -> None:
    """Remove the unfinished files that a killed process left in a recording."""
    for place in (folder, folder / TENSOR_FOLDER):
        if place.is_dir() and not place.is_symlink():
            for path in place.iterdir():
                if _LEFT_BEHIND.fullmatch(path.name) and not path.is_dir():
                    path.unlink(missing_ok=True)


def recording_folders(root: Path) -> Iterator[Path]:
    """Every folder at or below `root` that holds a recording, finished or not, in step and rank order."""
    return filter(holds_recording, rank_folders(root))


def rank_folders(root: Path, levels: int = _LEVELS) -> Iterator[Path]:
    """Every folder at or below `root` that holds a recording, or is called as if it did."""
    if holds_recording(root):
        yield root
        return
    for folder in sorted(root.iterdir(), key=_numbered) if levels and root.is_dir() else ():
        is_rank = RANK_FOLDER.fullmatch(folder.name)
        if (is_rank or STEP_FOLDER.fullmatch(folder.name)) and folder.is_dir() and not folder.is_symlink():
            yield from list(rank_folders(folder, levels - 1)) or ([folder] if is_rank else [])


def holds_recording(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (DUMP, DEBUG, JOURNAL))


def _numbered(path: Path) -> tuple[int, str]:
    digits = re.search("[0-9]+$", path.name)
    return int(digits[0][-9:]) if digits else -1, path.name
