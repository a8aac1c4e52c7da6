"""Where things lie below a run's folder, and how they are opened safely: modes, links, older runs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER_MODE = 0o750
FILE_MODE = 0o640

TENSOR_FOLDER = "dump_tensor_data"
DUMP = "dump.json"
STACK = "stack.json"
CONSTRUCT = "construct.json"
DEBUG = "debug.json"
JOURNAL = "journal.log"
ERRORS = "dump_error_info.log"
SET_ASIDE = "previous"

_STEP = re.compile(r"step(\d+)")
_RANK = re.compile(r"rank(\d*)")


def rank_folder(rank: int | None) -> str:
    """`rank3` in distributed training, `rank` alone outside it."""
    return "rank" if rank is None else f"rank{rank}"


def recording_folder(run: Path, step: int, rank: int | None) -> Path:
    return run / f"step{step}" / rank_folder(rank)


def make_folder(path: Path) -> Path:
    """Make a folder and its missing parents, each with our mode whatever the umask says."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=FOLDER_MODE)
        except FileExistsError:  # another rank was faster
            continue
        folder.chmod(FOLDER_MODE)
    return missing[0] if missing else path


def open_new(path: Path, flags: int = 0) -> int:
    """A descriptor for writing a file of ours; a link at its place is replaced, never followed."""
    if path.is_symlink():
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, FILE_MODE)
    os.fchmod(descriptor, FILE_MODE)
    return descriptor


def write_whole(path: Path, chunks: Iterator[bytes]) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    descriptor = open_new(beside, os.O_TRUNC)
    try:
        with os.fdopen(descriptor, "wb", buffering=1 << 20) as stream:
            for chunk in chunks:
                stream.write(chunk)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def recording_folders(root: Path) -> Iterator[Path]:
    """Every folder at or below `root` that holds a recording, finished or not, in step and rank order."""
    if _holds_recording(root):
        yield root
        return
    for folder in sorted(root.iterdir(), key=_numbered) if root.is_dir() else ():
        if folder.is_dir() and not folder.is_symlink() and (_STEP.fullmatch(folder.name) or _RANK.fullmatch(folder.name)):
            yield from recording_folders(folder)


def _holds_recording(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (DUMP, DEBUG, JOURNAL))


def _numbered(path: Path) -> tuple[str, int, str]:
    digits = re.search(r"(\d+)$", path.name)
    return ("", int(digits[1]), path.name) if digits else ("", -1, path.name)


def set_aside(run: Path, rank: int | None) -> Path | None:
    """Move this rank's recordings of an earlier run out of the way, so that two runs never mix."""
    old = [step / rank_folder(rank) for step in run.glob("step*") if _STEP.fullmatch(step.name)]
    old = [folder for folder in old if folder.is_dir() and not folder.is_symlink()]
    if not old:
        return None
    place = make_folder(run / SET_ASIDE / time.strftime("%Y%m%d%H%M%S"))
    number = 0
    while (place / old[0].parent.name / old[0].name).exists():  # set aside twice within a second
        number += 1
        place = make_folder(run / SET_ASIDE / f"{time.strftime('%Y%m%d%H%M%S')}_{number}")
    for folder in old:
        target = make_folder(place / folder.parent.name) / folder.name
        os.rename(folder, target)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()
    return place
