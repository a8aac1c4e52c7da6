"""From a journal to the JSON files of a recording: at the end of a step, and after a crash alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import Any

from msprobe.errors import RecordingError
from msprobe.record import leaves
from msprobe.store import journal
from msprobe.store.dump_json import decode
from msprobe.store.layout import (
    CONSTRUCT,
    DEBUG,
    DUMP,
    JOURNAL,
    STACK,
    TENSOR_FOLDER,
    recording_folders,
    write_whole,
)


def finish(folder: Path, *, recovered: bool = False) -> bool:
    """Write the JSON files of a recording from its journal, each whole or not at all; False if there is none."""
    log = folder / JOURNAL
    if not log.is_file():
        return False
    header: dict[str, Any] = {}
    frames: dict[str, str] = {}
    entries: dict[str, list[str]] = {}
    for entry in journal.read(log):
        if entry.kind == "H":
            header = json.loads(entry.fields[1])
        elif entry.kind == "S":
            frames[entry.fields[0]] = entry.fields[1]
        else:
            _merge(entries, entry.fields)
    if not header:
        raise RecordingError(f"{log} has no header line, so nothing of this recording can be read.")
    extra = _recovery(folder, entries) if recovered else None
    if header["level"] == "debug":
        write_whole(folder / DEBUG, _dump_chunks(header, entries, extra))
        return True
    write_whole(folder / STACK, _stack_chunks(frames, entries))
    write_whole(folder / CONSTRUCT, _construct_chunks(entries))
    write_whole(folder / DUMP, _dump_chunks(header, entries, extra))
    return True


def _merge(entries: dict[str, list[str]], fields: list[str]) -> None:
    """Add a record; one that comes again replaces the first, but a recomputed call only marks it."""
    name, data = fields[0], fields[3]
    if name in entries and _RECOMPUTED in data:
        first = entries[name]
        again = data.replace(_RECOMPUTED, _COMPUTED, 1)
        if _COMPUTED in first[3]:
            marked = first[3].replace(_COMPUTED, _RECOMPUTED, 1)
            first[3] = marked if again == first[3] else f'{marked[:-1]},"recompute":{again}}}'
        return
    entries.pop(name, None)
    entries[name] = fields


_COMPUTED = '"is_recompute":false'
_RECOMPUTED = '"is_recompute":true'


def _recovery(folder: Path, entries: dict[str, list[str]]) -> dict[str, Any]:
    """What a reader should know about a recording whose process died: the tensor files that never came."""
    missing = []
    for fields in entries.values():
        if '"data_name"' in fields[3]:
            names = (leaf.data_name for leaf in leaves(decode(_trees(fields[3]), str(folder))))
            missing += [name for name in names if name and not (folder / TENSOR_FOLDER / name).is_file()]
    return {"calls": len(entries), "missing_files": missing}


def _trees(fields: str) -> dict[str, Any]:
    return {key: item for key, item in json.loads(fields).items() if isinstance(item, (dict, list))}


def _dump_chunks(header: dict[str, Any], entries: dict[str, list[str]], extra: Any) -> Iterator[bytes]:
    head = json.dumps(header, indent=1)[:-2]
    if extra is not None:
        head += f',\n "recovered": {json.dumps(extra)}'
    yield (head + ',\n "data": {').encode()
    separator = "\n  "
    for name, fields in entries.items():
        yield f"{separator}{name}: {fields[3]}".encode("utf-8", "replace")
        separator = ",\n  "
    yield b"\n }\n}\n"


def _stack_chunks(frames: dict[str, str], entries: dict[str, list[str]]) -> Iterator[bytes]:
    names: dict[str, list[str]] = {}
    for name, fields in entries.items():
        if fields[1] != journal.NONE:
            names.setdefault(fields[1], []).append(name)
    yield b"{"
    for i, (serial, group) in enumerate(names.items()):
        text = f'{"," if i else ""}\n "{i}": [\n  [{", ".join(group)}],\n  {frames.get(serial, "[]")}]'
        yield text.encode("utf-8", "replace")
    yield b"\n}\n"


def _construct_chunks(entries: dict[str, list[str]]) -> Iterator[bytes]:
    parents = {name: fields[2] for name, fields in entries.items() if fields[2] != journal.NONE}
    for group in ("clip_grad", "optimizer"):
        if quote(group) in parents.values():
            parents = {quote(group): "null", **parents}
    lines = ",\n ".join(f"{name}: {parent}" for name, parent in parents.items())
    yield (f"{{\n {lines}\n}}\n" if lines else "{}\n").encode("utf-8", "replace")


def recover(root: Path) -> list[Path]:
    """Finish every recording at or below `root` whose process did not; returns their folders."""
    done = []
    for folder in recording_folders(root):
        if (folder / JOURNAL).is_file():
            finish(folder, recovered=True)
            (folder / JOURNAL).unlink()
            done.append(folder)
    return done
