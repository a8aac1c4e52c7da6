"""Recordings in the files of another tool: packages offer their formats under the entry point group GROUP."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from msprobe.errors import RecordingError
from msprobe.log import logger
from msprobe.name import CallName
from msprobe.record import Leaf, Record, Recording, Stack
from msprobe.store.layout import open_regular, rank_folders, step_and_rank

GROUP = "msprobe.recordings"

T = TypeVar("T")

_LONGEST_LINE = 1 << 24


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
    for folder in [path, *rank_folders(path, 1)] if path.is_dir() else ():
        files = files_in(folder, suffix)
        if len(files) > 1:
            some = ", ".join(file.name for file in files[:4])
            raise RecordingError(f"{folder} holds {len(files)} dumps, {some}: name the one that you mean.")
        found += files
    return [Source(file, *step_and_rank(file.absolute().parent)) for file in found]


def files_in(folder: Path, suffix: str) -> list[Path]:
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


# --- what reading one may need ---


def json_lines(path: Path, decode: Callable[[Any, str], T], what: str) -> Iterator[T]:
    """The lines of a file, each a value of JSON; what a killed process left of the last one is left out.

    `decode` is given a value and where it stands. A line that it cannot take is told not to be `what`.
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        for number, raw in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), b""), 1):
            where = f"{path}, line {number}"
            if len(raw) > _LONGEST_LINE:
                raise RecordingError(f"{where} is not {what}")
            try:
                if raw.strip():
                    yield decode(json.loads(raw), where)
            except (ValueError, TypeError, RecursionError) as error:  # also: thousands of digits
                if number > 1 and not raw.endswith(b"\n"):
                    logger().warning("%s is torn, as by a run that was killed: it is left out.", where)
                elif isinstance(error, RecordingError):
                    raise
                else:
                    raise RecordingError(f"{where} is not {what}") from None


def gathered(found: Iterable[tuple[CallName, str, Leaf | Stack]], where: str) -> dict[str, Record]:
    """The records of places that stand one by one: a call, the slot in it (`input.1.0`), what was seen there.

    A stack belongs to its call, whatever is its slot.
    """
    records: dict[str, Record] = {}
    for call, slot, seen in found:
        record = records.setdefault(str(call), Record(call, {}))
        if isinstance(seen, Stack):
            records[str(call)] = record._replace(stack=seen)
            continue
        tree: Any = record.fields
        *above, last = slot.split(".")
        for part in above:
            tree = tree.setdefault(part, {})
            if isinstance(tree, Leaf):
                raise RecordingError(f"{where}: {slot} of {call} lies within a value; the file is damaged.")
        tree[last] = seen
    return records
