"""The keys of dump.json: a leaf to JSON and back, whatever release wrote it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from msprobe.errors import RecordingError
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Deferred, Leaf, Record, Tree

_MANY_TEXTS = 10_000

# ---- writing ----


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
            return self._leaf(tree)
        if isinstance(tree, list):
            return "[" + ",".join([self.tree(item) for item in tree]) + "]"
        if isinstance(tree, dict):
            return "{" + ",".join([f"{quote(key)}:{self.tree(item)}" for key, item in tree.items()]) + "}"
        return _encode_plain(tree)

    def _leaf(self, leaf: Leaf) -> str:
        if leaf.data_name is not None:  # names this one slot, so it is not met again
            return encode_leaf(leaf)
        known = self._texts.get(id(leaf))
        if known is None:
            if len(self._texts) >= _MANY_TEXTS:
                self._texts.clear()
            known = self._texts[id(leaf)] = (leaf, encode_leaf(leaf))  # holding the leaf keeps its id unique
        return known[1]


# ---- reading ----

_STATISTICS = {"Max", "Min", "Mean", "Norm", "Nan_count", "Inf_count"}
_TENSOR_KEYS = _STATISTICS | {"type", "dtype", "shape", "requires_grad", "md5", "sketch", "data_name"}


def decode_record(key: str, data: Any, where: str, *, is_variable: bool = False) -> Record:
    """The record under a key of "data": a call, or at level debug a saved variable."""
    try:
        if is_variable:
            return Record(CallName.parse_variable(key), {"value": _decode(data, where)})
        if not isinstance(data, dict):
            raise RecordingError(f"{where} is {_shown(data)} and no object; the file is damaged.")
        fields = {
            slot: item if isinstance(item, (bool, str)) else _decode(item, where)
            for slot, item in data.items()
        }
        if isinstance(fields.get("recompute"), dict):  # what a checkpointed call gave when it ran again
            fields["recompute"] = decode_record(key, data["recompute"], where).fields
        return Record(CallName.parse(key), fields)
    except RecursionError:
        raise RecordingError(f"{where} is nested too deeply; the file is damaged.") from None


def _decode(data: Any, where: str) -> Tree:
    """The tree that a JSON value of a record stands for."""
    if data is None:
        return None
    if isinstance(data, list):
        return [_decode(item, where) for item in data]
    if not isinstance(data, dict):
        return Leaf(type(data).__name__, data)  # inside forms of other releases, such as P2POp
    if isinstance(data.get("type"), str):
        return _decode_leaf(data, where)
    return {key: _decode(item, where) for key, item in data.items()}


def _decode_leaf(data: dict[str, Any], where: str) -> Leaf:
    shape = data.get("shape")
    if shape is None:
        extra = {key: item for key, item in data.items() if key not in ("type", "value")}
        return Leaf(data["type"], data.get("value"), extra=extra or None)
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise _damaged(where, "shape", shape)
    for key in ("dtype", "md5", "data_name", "sketch"):
        if not isinstance(data.get(key), (str, type(None))):
            raise _damaged(where, key, data[key])
    for key in _STATISTICS:
        if not isinstance(data.get(key), (int, float, type(None))):
            raise _damaged(where, key, data[key])
    return Leaf(
        type=data["type"],
        dtype=str(data.get("dtype")),
        shape=tuple(shape),
        stats=Statistics(
            data.get("Max"),
            data.get("Min"),
            data.get("Mean"),
            data.get("Norm"),
            data.get("Nan_count", 0),
            data.get("Inf_count", 0),
        ),
        requires_grad=data.get("requires_grad"),
        checksum=data.get("md5"),
        sketch=_decode_sketch(data.get("sketch"), where),
        data_name=data.get("data_name"),
        extra={key: data[key] for key in data.keys() - _TENSOR_KEYS} or None,
    )


def _decode_sketch(text: str | None, where: str) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _damaged(where, "sketch", text) from None


def _damaged(where: str, key: str, value: Any) -> RecordingError:
    return RecordingError(f"{where} has the {key} {_shown(value)}, which cannot be; the file is damaged.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def tensor_files(data: Any) -> Iterator[str]:
    """The tensor files that a record's JSON names."""
    waiting = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(reversed(item))
        elif isinstance(item, dict):
            name = item.get("data_name")
            if isinstance(name, str) and "shape" in item:
                yield name
            waiting.extend(reversed(item.values()))
