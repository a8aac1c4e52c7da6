"""Reading recordings: ours, finished or not, and those of the releases that write the same JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from msprobe.errors import RecordingError, UsageError
from msprobe.garbage import uncollected
from msprobe.given import is_plain_name
from msprobe.name import PARAMETERS_GRAD
from msprobe.record import Header, Leaf, Record, Recording, Stack
from msprobe.store import formats, journal, typed_json
from msprobe.store.dump_json import decode_name, decode_record
from msprobe.store.finish import missing_files
from msprobe.store.formats import Source
from msprobe.store.layout import (
    CONSTRUCT,
    DEBUG,
    DUMP,
    JOURNAL,
    STACK,
    TENSOR_FOLDER,
    open_regular,
    recording_folders,
    step_and_rank,
)

_MOST_BYTES = 1 << 32
_COMPUTES_WITH = {"mindtorch": "mindspore"}  # MSAdapter, whose names are those of torch


def find(path: str | os.PathLike[str]) -> list[Source]:
    """The recordings at a path: of a run, a step, or a rank, or the one of a dump.json or debug.json.

    They come in the order of steps and ranks. A path that is none of ours may be of another format.
    """
    where = Path(path)
    try:
        places = [where] if where.is_file() else list(recording_folders(where))
        others = formats.find(where) if not places or _is_foreign(where) else []
    except OSError as error:
        raise _unreadable(where, error) from error
    if others:
        return others
    if not places:
        raise RecordingError(f"{where} holds no recording: {_why_none(where)}.")
    folders = [place.parent if place is where and where.is_file() else place for place in places]
    return [
        Source(place, *step_and_rank(folder.absolute()))
        for place, folder in zip(places, folders, strict=True)
    ]


def _is_foreign(path: Path) -> bool:
    """Whether another format may have written this file; ours are JSON."""
    return path.suffix != ".json" and path.is_file()


def read(path: str | os.PathLike[str]) -> list[Recording]:
    """All recordings that find() finds."""
    return [read_one(source.path) for source in find(path)]


def read_one(path: Path, *, stack: str | None = None) -> Recording:
    """The recording of a folder or file; one whose process died or still runs is read from its journal.

    `stack` names a stack.json that does not lie beside it.
    """
    try:
        with uncollected():
            found = formats.read_one(path) if _is_foreign(path) else None
            if found is None:
                found = _read_file(path) if path.is_file() else _read_folder(path)
            return found if stack is None else _with_stacks(found, Path(stack))
    except OSError as error:
        raise _unreadable(path, error) from error
    except MemoryError as error:
        raise RecordingError(f"{path} needs more memory than there is.") from error


def must_be_of(recording: Recording, framework: str | None) -> None:
    """Whoever names a framework must mean this one; None: whoever does not."""
    recorded = recording.header.framework
    if framework not in (None, recorded, _COMPUTES_WITH.get(recorded)):
        raise UsageError(
            f"{recording.folder} was recorded with {recorded}, not with {framework}; leave "
            "-f out, or name another folder."
        )


def _with_stacks(recording: Recording, path: Path) -> Recording:
    stacks = _stacks(_object(path), str(path))
    records = {name: record._replace(stack=stacks.get(name)) for name, record in recording.records.items()}
    return dataclasses.replace(recording, records=records)


def _unreadable(where: Path, error: OSError) -> RecordingError:
    return RecordingError(f"{error.filename or where} cannot be read: {error.strerror or error}.")


def tensor_path(recording: Recording, leaf: Leaf) -> Path | None:
    """The file with the content of a leaf, None if none was to be written; see `recording.missing_files`."""
    name = leaf.data_name
    if name is None:
        return None
    if not is_plain_name(name):
        raise RecordingError(
            f"{recording.folder} names the tensor file {name!r}, which is no plain file name."
        )
    return tensors_of(recording) / name


def tensors_of(recording: Recording) -> Path:
    """Where its tensor files lie."""
    return Path(recording.tensor_folder or os.path.join(recording.folder, TENSOR_FOLDER))


def _why_none(where: Path) -> str:
    if not where.exists():
        return "there is nothing of this name"
    if not where.is_dir():
        return "it is neither a folder nor a regular file"
    return f"a run's folder has step{{N}}/rank{{M}}/{DUMP} below it"


def _read_folder(folder: Path) -> Recording:
    with contextlib.suppress(FileNotFoundError):  # none, or its process has just finished it
        return _read_journal(folder)
    return _read_file(folder / (DUMP if (folder / DUMP).is_file() else DEBUG))


def _read_journal(folder: Path) -> Recording:
    where = str(folder / JOURNAL)
    with journal.opened(folder / JOURNAL) as contents:
        data: dict[str, Any] = {}
        parents: dict[str, Any] = {}
        groups: dict[str, Any] = {}
        for entry in contents.records.values():
            name = str(_json(entry.name, where))
            data[name] = _json(contents.fields(entry), f"{where}, {name[:80]!r}")
            if entry.parent != journal.NONE:
                parents[name] = _json(entry.parent, where)
            frames = contents.stacks.get(entry.stack)
            if frames is not None:
                groups.setdefault(entry.stack, [[], _json(frames, where)])[0].append(name)
        records = _records(contents.header, data, _stacks(groups, where), parents, where)
        return _recording(
            contents.header, records, folder, finished=False, missing=missing_files(folder, contents)
        )


def _read_file(path: Path) -> Recording:
    text = _text(path)
    parts = typed_json.parts_of(text)
    whole = {**parts.head, "data": parts.data} if parts is not None else _json(text, str(path))
    if not isinstance(whole, dict) or not isinstance(whole.get("data"), dict):
        raise RecordingError(f"{path} is not a recording: it has no 'data' object.")
    folder = path.parent
    stacks = _stacks(_beside(folder / STACK), str(folder / STACK))
    records = _records(whole, whole["data"], stacks, _beside(folder / CONSTRUCT), str(path))
    return _recording(whole, records, folder, finished=True)


def _recording(
    head: dict[str, Any],
    records: dict[str, Record],
    folder: Path,
    *,
    finished: bool,
    missing: tuple[str, ...] | None = None,
) -> Recording:
    if (folder / TENSOR_FOLDER).is_symlink():
        raise RecordingError(f"{folder / TENSOR_FOLDER} is a link, and links are not followed.")
    step, rank = step_and_rank(folder.absolute())
    missing_files = head.get("missing_files") if missing is None else missing
    left_out = head.get("left_out")
    lost = head.get("lost_records")
    return Recording(
        header=Header(str(head.get("task")), str(head.get("level")), str(head.get("framework"))),
        records=records,
        folder=str(folder),
        step=step,
        rank=rank,
        missing_files=tuple(map(str, missing_files)) if isinstance(missing_files, (list, tuple)) else (),
        lost_records=lost if isinstance(lost, int) else 0,
        left_out={key: count for key, count in left_out.items() if isinstance(count, int)}
        if isinstance(left_out, dict)
        else {},
        recovered="recovered" in head,
        finished=finished,
    )


def _records(
    head: dict[str, Any], data: dict[str, Any], stacks: dict[str, Stack], parents: dict[str, Any], where: str
) -> dict[str, Record]:
    found = {}
    is_debug = head.get("level") == "debug"
    for name, fields in data.items():
        record = _decode_one(name, fields, where, is_variable=is_debug)
        parent = parents.get(name)
        if isinstance(parent, list):  # with Megatron: the parent, and the number of the micro-batch
            parent = parent[0] if parent else None
        found[name] = Record(
            record.name,
            record.fields,
            stacks.get(name),
            parent if isinstance(parent, str) else None,
            name in parents,
        )
    return found


def _decode_one(name: str, fields: Any, where: str, *, is_variable: bool) -> Record:
    """The record of a name; `fields`: what it holds, or the JSON of that."""
    if isinstance(fields, msgspec.Raw):
        call = decode_name(name, where, is_variable)
        if not is_variable and call.direction != PARAMETERS_GRAD:  # whose fields are named as the parameters
            found = typed_json.fields_of(fields)
            if found is not None:
                return Record(call, found)
        fields = _json(bytes(fields), f"{where}, {name[:80]!r}")
    return decode_record(name, fields, where, is_variable=is_variable)


def _beside(path: Path) -> dict[str, Any]:
    """stack.json or construct.json; a recording is good without them."""
    return _object(path) if path.is_file() else {}


def _object(path: Path) -> dict[str, Any]:
    whole = _json_file(path)
    if not isinstance(whole, dict):
        raise RecordingError(f"{path} does not hold an object; the file is damaged.")
    return whole


def _stacks(whole: dict[str, Any], where: str) -> dict[str, Stack]:
    """The stack of each record: in groups `[names, frames]`, or, by release 1.2.2, under each name."""
    found = {}
    for number, (key, item) in enumerate(whole.items()):
        grouped = isinstance(item, list) and len(item) == 2 and all(isinstance(part, list) for part in item)
        names, frames = item if grouped else ([key], item)
        if not isinstance(frames, list) or not all(isinstance(text, str) for text in (*names, *frames)):
            place = f"{where}, {key[:80]!r}"
            raise RecordingError(f"{place}: names and frames were expected; the file is damaged.")
        found.update(dict.fromkeys(names, Stack(number, tuple(frames))))
    return found


def _json_file(path: Path) -> Any:
    return _json(_text(path), str(path))


def _text(path: Path) -> bytes:
    with os.fdopen(open_regular(path), "rb") as stream:
        if os.fstat(stream.fileno()).st_size > _MOST_BYTES:
            raise RecordingError(f"{path} is larger than {_MOST_BYTES} bytes, which no recording is.")
        return stream.read()


def _json(text: bytes | str, where: str) -> Any:
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        if "\\ud" in text or "\\uD" in text:
            text = _ESCAPE.sub(_whole_character, text)
        return json.loads(text)
    except RecursionError:
        raise RecordingError(f"{where} is not valid JSON: it is nested too deeply.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RecordingError(f"{where} is not valid JSON: {error}.") from None
    except ValueError:  # Python's own limit
        raise RecordingError(f"{where} holds a number with thousands of digits; it is damaged.") from None


# Half a character (a surrogate without the other) can be written in JSON, but in no file and on no screen.
_HEX = "[0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\(?:u[dD][89abAB]{_HEX}\\u[dD][c-fC-F]{_HEX}|(u[dD][89a-fA-F]{_HEX})|.)", re.DOTALL)


def _whole_character(found: re.Match[str]) -> str:
    return "\\ufffd" if found[1] else found[0]
