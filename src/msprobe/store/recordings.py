"""Reading recordings: ours, finished or not, and those of the releases that write the same JSON."""

from __future__ import annotations

import contextlib
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msprobe.errors import RecordingError
from msprobe.record import Header, Leaf, Record, Recording, Stack
from msprobe.store import journal
from msprobe.store.dump_json import decode_record
from msprobe.store.finish import missing_files
from msprobe.store.layout import (
    CONSTRUCT,
    DEBUG,
    DUMP,
    JOURNAL,
    STACK,
    TENSOR_FOLDER,
    recording_folders,
    step_and_rank,
)


def read(path: str | os.PathLike[str]) -> list[Recording]:
    """The recordings at a path: of a run, a step, or a rank, or the one of a dump.json or debug.json.

    They come in the order of steps and ranks. One whose process died or still runs is read from its journal.
    """
    where = Path(path)
    try:
        with _no_garbage():
            if where.is_file():
                return [_read_file(where)]
            found = [_read_folder(folder) for folder in recording_folders(where)]
    except OSError as error:
        reason = error.strerror or error
        raise RecordingError(f"{error.filename or where} cannot be read: {reason}.") from error
    if not found:
        raise RecordingError(f"{where} holds no recording: {_why_none(where)}.")
    return found


def tensor_path(recording: Recording, leaf: Leaf) -> Path | None:
    """The file with the content of a leaf, None if none was to be written; see `recording.missing_files`."""
    name = leaf.data_name
    if name is None:
        return None
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise RecordingError(
            f"{recording.folder} names the tensor file {name!r}, which is no plain file name."
        )
    return Path(recording.folder) / TENSOR_FOLDER / name


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """Reading makes many objects and drops none; to look for garbage among them doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _why_none(where: Path) -> str:
    if not where.exists():
        return "there is nothing of this name"
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
            data[name] = _json(contents.fields(entry), where)
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
    whole = _json(path.read_bytes(), str(path))
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
        record = decode_record(name, fields, f"{where}, {name}", is_variable=is_debug)
        parent = parents.get(name)
        if isinstance(parent, list):  # with Megatron: the parent, and the number of the micro-batch
            parent = parent[0] if parent else None
        found[name] = record._replace(
            stack=stacks.get(name),
            parent=parent if isinstance(parent, str) else None,
            has_parent=name in parents,
        )
    return found


def _beside(path: Path) -> dict[str, Any]:
    """stack.json or construct.json; a recording is good without them."""
    if not path.is_file():
        return {}
    whole = _json(path.read_bytes(), str(path))
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
            raise RecordingError(f"{where}, {key}: names and frames were expected; the file is damaged.")
        found.update(dict.fromkeys(names, Stack(number, tuple(frames))))
    return found


def _json(text: bytes | str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{where} is not valid JSON: {error}.") from None
