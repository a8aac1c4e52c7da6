"""Recordings in the files of another tool: packages offer their formats under the entry point group GROUP."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple, Protocol

from msprobe.errors import RecordingError
from msprobe.log import logger
from msprobe.record import Recording
from msprobe.store.layout import rank_folders, step_and_rank

GROUP = "msprobe.recordings"


class Source(NamedTuple):
    """A recording that was found and not yet read."""

    path: Path  # its folder, or the file that was named
    step: int | None
    rank: int | None


class Format(Protocol):
    """What a package offers: a module that reads files of one kind, each with the records of one rank."""

    SUFFIX: str  # of their names

    def read_one(self, path: Path) -> Recording:
        """The recording of such a file."""
        ...


def find(path: Path) -> list[Source]:
    """The recordings at a path that is none of ours: a file, the folder of a rank, or one of such folders."""
    return next((found for format_ in _known() if (found := _found(path, format_.SUFFIX))), [])


def _found(path: Path, suffix: str) -> list[Source]:
    found = [path] if path.suffix == suffix and path.is_file() else []
    folders = {path: _files_in(path, suffix), **files_of_ranks(path, suffix)} if path.is_dir() else {}
    for folder, files in folders.items():
        if len(files) > 1:
            some = ", ".join(file.name for file in files[:4])
            raise RecordingError(f"{folder} holds {len(files)} dumps, {some}: name the one that you mean.")
        found += files
    return [Source(file, *step_and_rank(file.absolute().parent)) for file in found]


def files_of_ranks(path: Path, suffix: str) -> dict[Path, list[Path]]:
    """The files with this suffix that the folder of each rank holds, in the order of the ranks."""
    return {folder: _files_in(folder, suffix) for folder in rank_folders(path, 1)}


def _files_in(folder: Path, suffix: str) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == suffix and path.is_file())


def read_one(path: Path) -> Recording | None:
    """The recording of a file of another format; None where it is of none that is known."""
    return next((format_.read_one(path) for format_ in _known() if path.suffix == format_.SUFFIX), None)


@functools.cache
def _known() -> tuple[Format, ...]:
    found = []
    for entry in entry_points(group=GROUP):
        try:
            found.append(entry.load())
        except ImportError as error:
            logger().warning("recordings of %s cannot be read: %s.", entry.name, error)
    return tuple(found)
