"""From a journal to the JSON files of a recording: at the end of a step, and after a crash alike."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import Any, NamedTuple

from msprobe.errors import RecordingError
from msprobe.store import journal
from msprobe.store.dump_json import tensor_files
from msprobe.store.layout import CONSTRUCT, DEBUG, DUMP, JOURNAL, STACK, TENSOR_FOLDER, sweep, write_whole


class Finished(NamedTuple):
    """What a recording came to."""

    records: int
    missing_files: tuple[str, ...] = ()  # described, but without their tensor file
    damaged_lines: int = 0


def finish(folder: Path, remarks: Mapping[str, Any], *, lost_files: bool = False) -> Finished:
    """Write the JSON files of a recording from its journal, each whole or not at all."""
    with journal.opened(folder / JOURNAL) as contents:
        missing = missing_files(folder, contents) if lost_files else ()
        return _write(folder, contents, missing, remarks)


def recover(folder: Path) -> Finished:
    """Finish a recording whose process did not, and say so in its dump.json."""
    with journal.opened(folder / JOURNAL) as contents:
        missing = missing_files(folder, contents)
        remark = {"records": len(contents.records), "damaged_lines": contents.damaged}
        finished = _write(folder, contents, missing, {"recovered": remark})
    sweep(folder)
    (folder / JOURNAL).unlink()
    return finished


def _write(
    folder: Path, contents: journal.Contents, missing: tuple[str, ...], remarks: Mapping[str, Any]
) -> Finished:
    if missing:
        remarks = {**remarks, "missing_files": missing}
    if contents.header["level"] == "debug":
        write_whole(folder / DEBUG, _dump_chunks(contents, remarks))
    else:
        write_whole(folder / STACK, _stack_chunks(contents))
        write_whole(folder / CONSTRUCT, _construct_chunks(contents))
        write_whole(folder / DUMP, _dump_chunks(contents, remarks))
    return Finished(len(contents.records), missing, contents.damaged)


def missing_files(folder: Path, contents: journal.Contents) -> tuple[str, ...]:
    """The tensor files that records name and that are not there: they waited in the queue, or were lost."""
    files = folder / TENSOR_FOLDER
    there = {path.name for path in files.iterdir()} if files.is_dir() else set()
    texts = (contents.fields(entry) for entry in contents.records.values())
    named = (name for text in texts if b'"data_name"' in text for name in tensor_files(_parsed(text, folder)))
    return tuple(name for name in dict.fromkeys(named) if name not in there)


def _parsed(text: bytes, folder: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{folder / JOURNAL} holds a record that is not JSON: {error}.") from None


def _dump_chunks(contents: journal.Contents, remarks: Mapping[str, Any]) -> Iterator[bytes]:
    head = {**contents.header, **remarks}
    yield b"{" + "".join(f"\n {quote(key)}: {json.dumps(value)}," for key, value in head.items()).encode()
    yield b'\n "data": {'
    separator = "\n  "
    for name, entry in contents.records.items():
        yield f"{separator}{name}: ".encode() + contents.fields(entry)
        separator = ",\n  "
    yield b"\n }\n}\n"


def _stack_chunks(contents: journal.Contents) -> Iterator[bytes]:
    """Records grouped by equal stacks, numbered in the order of their first record."""
    groups: dict[str, list[str]] = {}
    for name, entry in contents.records.items():
        if entry.stack != journal.NONE:
            groups.setdefault(contents.stacks.get(entry.stack, "[]"), []).append(name)
    separator = "{"
    for number, (frames, names) in enumerate(groups.items()):
        yield f'{separator}\n "{number}": [\n  [{", ".join(names)}],\n  {frames}]'.encode()
        separator = ","
    yield b"\n}\n" if groups else b"{}\n"


def _construct_chunks(contents: journal.Contents) -> Iterator[bytes]:
    parents = {name: entry.parent for name, entry in contents.records.items() if entry.parent != journal.NONE}
    groups = {parent: "null" for parent in ('"optimizer"', '"clip_grad"') if parent in parents.values()}
    lines = ",\n ".join(f"{name}: {parent}" for name, parent in {**groups, **parents}.items())
    yield (f"{{\n {lines}\n}}\n" if lines else "{}\n").encode()
