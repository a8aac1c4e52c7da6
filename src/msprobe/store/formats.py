"""Recordings in the files of another tool: packages offer their formats under the entry point group GROUP."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple, Protocol

from msprobe.log import logger
from msprobe.record import Recording

GROUP = "msprobe.recordings"


class Source(NamedTuple):
    """A recording that was found and not yet read."""

    path: Path  # its folder, or the file that was named
    step: int | None
    rank: int | None


class Format(Protocol):
    """What a package offers: a module with these two functions."""

    def find(self, path: Path) -> list[Source]:
        """The recordings of this format at a path, each a file; none where it is not of this format."""
        ...

    def read_one(self, path: Path) -> Recording:
        """The recording of a file that find() named."""
        ...


def find(path: Path) -> list[Source]:
    """The recordings at a path that is none of ours."""
    return next((found for format_ in _known() if (found := format_.find(path))), [])


def read_one(path: Path) -> Recording | None:
    """The recording of a file of another format; None where it is of none that is known."""
    return next((format_.read_one(path) for format_ in _known() if format_.find(path)), None)


@functools.cache
def _known() -> tuple[Format, ...]:
    found = []
    for entry in entry_points(group=GROUP):
        try:
            found.append(entry.load())
        except ImportError as error:
            logger().warning("recordings of %s cannot be read: %s.", entry.name, error)
    return tuple(found)
