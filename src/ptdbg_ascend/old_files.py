"""Reading old dumps: `rank{N}/{name}.pkl`, which holds lines of JSON and is no pickle, and `{name}/*.npy`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msprobe.errors import RecordingError
from msprobe.record import Header, Leaf, Record, Recording, Stack
from msprobe.store.dump_json import decode_record
from msprobe.store.formats import Source
from msprobe.store.layout import open_regular, rank_folders, step_and_rank
from ptdbg_ascend import names
from ptdbg_ascend.names import STACK, Frame, LineName

SUFFIX = ".pkl"
NO_SUMMARY = 101  # the second field of the lines of overflowing calls, which have no statistics

_LONGEST_LINE = 1 << 24
_PLAIN = re.compile(r"<class '(\w{1,40})'>")


class Line(NamedTuple):
    """A line of a dump: a tensor or a plain value of a call, or where the call was made."""

    text: str  # its name
    name: LineName
    fields: list[Any]  # behind the name
    where: str  # the file and the number of the line

    @property
    def is_stack(self) -> bool:
        return self.name.side == STACK

    @property
    def has_summary(self) -> bool:
        return len(self.fields) > 4


# ---- what msprobe asks of a format ----


def find(path: Path) -> list[Source]:
    """The dumps at a path: a .pkl, the folder of a rank, or one of rank folders."""
    if path.is_file():
        found = [path] if path.suffix == SUFFIX else []
    else:
        folders = [path, *rank_folders(path, 1)] if path.is_dir() else []
        found = [dump for folder in folders for dump in _only(folder)]
    return [Source(dump, None, _rank(dump)) for dump in found]


def read_one(path: Path) -> Recording:
    return recording(path, path.with_suffix(""), lines(path))


def dumps_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())


def _only(folder: Path) -> list[Path]:
    found = dumps_in(folder)
    if len(found) > 1:
        some = ", ".join(path.name for path in found[:4])
        raise RecordingError(f"{folder} holds {len(found)} dumps, {some}: name the one that you mean.")
    return found


def _rank(path: Path) -> int | None:
    return step_and_rank(path.absolute().parent)[1]


# ---- lines ----


def lines(path: Path) -> Iterator[Line]:
    """The lines of a dump, each checked; an OSError where the file cannot be read."""
    with os.fdopen(open_regular(path), "rb") as stream:
        for number, raw in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), b""), 1):
            if raw.strip():
                yield _line(raw, f"{path}, line {number}")


def _line(raw: bytes, where: str) -> Line:
    _demand(len(raw) <= _LONGEST_LINE, where, f"it is longer than {_LONGEST_LINE} bytes")
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):  # also: no text, thousands of digits
        raise _damaged(where, "it is not JSON; a file of Python's pickle is never loaded") from None
    begins = isinstance(values, list) and bool(values) and isinstance(values[0], str)
    _demand(begins, where, "it is no list that begins with a name")
    name = names.parse(values[0])
    if name is None:
        raise _damaged(where, f"{values[0][:60]!r} is no name such as Functional_linear_0_forward_input.0")
    _demand(len(values) in ((2,) if name.side == STACK else (5, 6)), where, f"it has {len(values)} fields")
    return Line(values[0], name, values[1:], where)


def _demand(condition: bool, where: str, why: str) -> None:
    if not condition:
        raise _damaged(where, why)


def _damaged(where: str, why: str) -> RecordingError:
    return RecordingError(f"{where} is not a line of a ptdbg_ascend dump: {why}.")


def frames(line: Line) -> list[Frame]:
    """Where the call was made, innermost first."""
    found = line.fields[0]
    are_frames = isinstance(found, list) and all(_is_frame(frame) for frame in found)
    _demand(are_frames, line.where, "it does not hold the frames of a stack")
    return [(path, str(number), function, code) for path, number, function, code in found]


def _is_frame(frame: Any) -> bool:
    kinds = (str, str | int, str, str | None)
    return isinstance(frame, list) and len(frame) == 4 and all(map(isinstance, frame, kinds))


# ---- recordings ----


def recording(path: Path, data: Path, found: Iterable[Line]) -> Recording:
    """The dump of a .pkl that has these lines and whose tensors lie in the folder `data`."""
    if data.is_symlink():
        raise RecordingError(f"{data} is a link, and links are not followed.")
    calls: dict[str, dict[str, Line]] = {}
    for line in found:
        key = str(line.name.call)
        if line.text in calls.get(key, ()):  # a call that was dumped again counts as the last
            del calls[key]
        calls.setdefault(key, {})[line.text] = line
    stacks: dict[tuple[str, ...], Stack] = {}
    records = {key: _record(call.values(), stacks) for key, call in calls.items()}
    header = Header("tensor" if data.is_dir() else "statistics", "L1", "pytorch")
    return Recording(header, records, str(path.parent), rank=_rank(path), tensor_folder=str(data))


def _record(call: Iterable[Line], stacks: dict[tuple[str, ...], Stack]) -> Record:
    """Arguments stand in the field `input` as gradients do, each under its number: the old format leaves out
    keywords and most values that are no tensor, so that nobody must take them for all that a call was given.
    """
    fields: dict[str, Any] = {}
    stack = None
    for line in call:
        if line.is_stack:
            texts = tuple(map(names.frame_text, frames(line)))
            stack = stacks.setdefault(texts, Stack(len(stacks), texts))
        else:
            _put(fields.setdefault(line.name.side, {}), line)
    return Record(line.name.call, fields, stack)


def _put(tree: dict[str, Any], line: Line) -> None:
    """A single output has no number in the old names, and the first one in ours."""
    *above, last = line.name.path or ("0",)
    for part in above:
        tree = tree.setdefault(part, {})
        _demand(isinstance(tree, dict), line.where, "another line has a value where this one has several")
    tree[last] = _leaf(line)


def _leaf(line: Line) -> Leaf:
    dtype, shape = line.fields[2:4]
    summary = line.fields[4] if line.has_summary else []
    is_good = isinstance(summary, list) and len(summary) in (0, 3, 4) and isinstance(dtype, str)
    _demand(is_good, line.where, "its dtype or its statistics are none")
    numbers = [None if value == [] else value for value in summary]
    file = f"{line.text}.npy"
    plain = _PLAIN.fullmatch(dtype)
    if plain is not None and isinstance(shape, str):
        told: dict[str, Any] = {"type": plain[1], "value": numbers[0] if numbers else None}
    else:
        told = {"type": "torch.Tensor", "dtype": dtype, "shape": shape, "data_name": file}
        told |= zip(("Max", "Min", "Mean", "Norm"), numbers, strict=False)
    leaf = decode_record(str(line.name.call), {"leaf": told}, line.where).fields["leaf"]
    if not isinstance(leaf, Leaf):
        raise _damaged(line.where, "it describes no tensor")
    return leaf._replace(data_name=file)
