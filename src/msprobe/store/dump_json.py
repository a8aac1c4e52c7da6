"""The keys of dump.json: a leaf to JSON and back, whatever release wrote it."""

from __future__ import annotations

import base64
import binascii
import json
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import Any

from msprobe.errors import RecordingError
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Deferred, Header, Leaf, Record, Recording, Tree

def number(value: Any) -> str:
    """A JSON number, or one of the bare words that every reader of this format takes for it."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    text = repr(value)
    if text in ("nan", "inf", "-inf"):
        return "NaN" if text == "nan" else "Infinity" if text == "inf" else "-Infinity"
    return text


def encode_leaf(leaf: Leaf) -> str:
    """The JSON of one leaf."""
    if leaf.shape is None:
        return f'{{"type":{quote(leaf.type)},{_encode_value(leaf)}}}'
    stats = leaf.stats.statistics if isinstance(leaf.stats, Deferred) else leaf.stats
    parts = [f'{{"type":{quote(leaf.type)},"dtype":{quote(str(leaf.dtype))},"shape":{list(leaf.shape)}']
    if stats is None:
        parts.append('"Max":null,"Min":null,"Mean":null,"Norm":null')
    else:
        parts.append(
            f'"Max":{number(stats.max)},"Min":{number(stats.min)},"Mean":{number(stats.mean)},"Norm":{number(stats.norm)}'
        )
        if stats.nan:
            parts.append(f'"Nan_count":{stats.nan}')
        if stats.inf:
            parts.append(f'"Inf_count":{stats.inf}')
    if leaf.requires_grad is not None:
        parts.append('"requires_grad":true' if leaf.requires_grad else '"requires_grad":false')
    if leaf.checksum is not None:
        parts.append(f'"md5":"{leaf.checksum}"')
    if leaf.sketch is not None:
        parts.append(f'"sketch":"{base64.b64encode(leaf.sketch).decode("ascii")}"')
    if leaf.data_name is not None:
        parts.append(f'"data_name":{quote(leaf.data_name)}')
    if leaf.extra:
        parts.extend(f"{quote(key)}:{_encode_plain(value)}" for key, value in leaf.extra.items())
    return ",".join(parts) + "}"


def _encode_value(leaf: Leaf) -> str:
    if leaf.extra is not None:
        return ",".join(f"{quote(key)}:{_encode_plain(value)}" for key, value in leaf.extra.items())
    return f'"value":{_encode_plain(leaf.value)}'


def _encode_plain(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)


class Encoder:
    """Turns trees into JSON; the text of a leaf met again (a memoised description) is made once."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Leaf, str]] = {}

    def forget(self) -> None:
        self._texts.clear()

    def tree(self, tree: Any) -> str:
        if tree is None:
            return "null"
        if isinstance(tree, Leaf):
            known = self._texts.get(id(tree))
            if known is None:
                known = self._texts[id(tree)] = (tree, encode_leaf(tree))  # holding the leaf keeps its id unique
            return known[1]
        if isinstance(tree, list):
            return "[" + ",".join([self.tree(item) for item in tree]) + "]"
        if isinstance(tree, dict):
            return "{" + ",".join([f"{quote(key)}:{self.tree(item)}" for key, item in tree.items()]) + "}"
        return _encode_plain(tree)


def decode(data: Any, where: str) -> Tree:
    """The tree that a JSON value of a record stands for."""
    if data is None:
        return None
    if isinstance(data, list):
        return [decode(item, where) for item in data]
    if not isinstance(data, dict):
        raise RecordingError(f"{where} holds {data!r} where a description was expected; the file is damaged.")
    if isinstance(data.get("type"), str):
        return _decode_leaf(data, where)
    return {key: decode(item, where) for key, item in data.items()}


_TENSOR_KEYS = ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "Nan_count", "Inf_count", "requires_grad",
                "md5", "sketch", "data_name")  # fmt: skip


def _decode_leaf(data: dict[str, Any], where: str) -> Leaf:
    shape = data.get("shape")
    if shape is None:
        extra = {key: item for key, item in data.items() if key not in ("type", "value")}
        return Leaf(data["type"], data.get("value"), extra=extra or None)
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise RecordingError(f"{where} has the shape {shape!r}, which is not a list of sizes; the file is damaged.")
    stats = Statistics(
        data.get("Max"), data.get("Min"), data.get("Mean"), data.get("Norm"),
        data.get("Nan_count", 0), data.get("Inf_count", 0),
    )  # fmt: skip
    return Leaf(
        type=data["type"],
        dtype=str(data.get("dtype")),
        shape=tuple(shape),
        stats=stats,
        requires_grad=data.get("requires_grad"),
        checksum=data.get("md5"),
        sketch=_decode_sketch(data.get("sketch"), where),
        data_name=data.get("data_name"),
        extra={key: item for key, item in data.items() if key not in _TENSOR_KEYS} or None,
    )


def _decode_sketch(text: Any, where: str) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise RecordingError(f"{where} has a sketch that is not base64; the file is damaged.") from None


def read_dump(path: Path) -> Recording:
    """The recording that a dump.json or debug.json holds."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("data"), dict):
        raise RecordingError(f"{path} is not a recording: it has no 'data' object.")
    header = Header(str(data.get("task")), str(data.get("level")), str(data.get("framework")))
    records = {name: _record(name, fields, f"{path}, {name}") for name, fields in data["data"].items()}
    recovered = data.get("recovered")
    missing = tuple(recovered.get("missing_files", ())) if isinstance(recovered, dict) else ()
    return Recording(header, records, str(path.parent), missing, recovered is not None)


def _record(name: str, fields: Any, where: str) -> Record:
    if not isinstance(fields, dict):
        return Record(CallName.parse(name), {"value": decode(fields, where)})
    plain = {key: item for key, item in fields.items() if isinstance(item, (bool, str))}
    trees = {key: decode(item, where) for key, item in fields.items() if key not in plain}
    return Record(CallName.parse(name), {**trees, **plain})
