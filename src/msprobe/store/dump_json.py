"""The keys of dump.json: a leaf to JSON and back, whatever release wrote it."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from msprobe.errors import RecordingError
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Deferred, Leaf, Record, Tree

_MANY_TEXTS = 10_000

# ---- writing ----

_encode_plain = json.JSONEncoder(separators=(",", ":"), default=str).encode
_FAST: dict[type, Callable[[Any], str]] = {int: int.__repr__, str: quote}  # the same text, much sooner


def encode_leaf(leaf: Leaf) -> str:
    """The JSON of one leaf."""
    if leaf.shape is None:
        if leaf.extra is None:
            encode = _FAST.get(type(leaf.value), _encode_plain)
            return f'{{"type":{quote(leaf.type)},"value":{encode(leaf.value)}}}'
        return _encode_plain({"type": leaf.type, **leaf.extra})
    stats = leaf.stats.statistics if isinstance(leaf.stats, Deferred) else leaf.stats
    text = _encode_head(leaf.type, str(leaf.dtype), leaf.shape) + _encode_statistics(stats)
    if leaf.requires_grad is not None:
        text += ',"requires_grad":true' if leaf.requires_grad else ',"requires_grad":false'
    if leaf.checksum is not None:
        text += f',"md5":"{leaf.checksum}"'
    if leaf.sketch is not None:
        text += f',"sketch":"{_SKETCH}{base64.b64encode(leaf.sketch).decode("ascii")}"'
    if leaf.data_name is not None:
        text += f',"data_name":{quote(leaf.data_name)}'
    if leaf.extra:
        text += f",{_encode_plain(dict(leaf.extra))[1:-1]}"
    return text + "}"


@functools.lru_cache(maxsize=4096)
def _encode_head(kind: str, dtype: str, shape: tuple[int, ...]) -> str:
    return f'{{"type":{quote(kind)},"dtype":{quote(dtype)},"shape":{list(shape)}'


def _encode_statistics(stats: Statistics | None) -> str:
    if stats is None:
        return ',"Max":null,"Min":null,"Mean":null,"Norm":null'
    largest, smallest, mean, norm, nan, inf = stats
    if type(mean) is float and type(norm) is float and math.isfinite(mean + norm) and not (nan or inf):
        return f',"Max":{largest!r},"Min":{smallest!r},"Mean":{mean!r},"Norm":{norm!r}'
    # Every reader of this format takes the bare words NaN, Infinity and -Infinity for numbers.
    values = {"Max": largest, "Min": smallest, "Mean": mean, "Norm": norm}
    counts = {key: count for key, count in (("Nan_count", nan), ("Inf_count", inf)) if count}
    return f",{_encode_plain({**values, **counts})[1:-1]}"


class Encoder:
    """Turns trees into JSON; the text of a leaf met again (a memoised description) is made once."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Leaf, str]] = {}

    def forget(self) -> None:
        self._texts.clear()

    def tree(self, tree: Any) -> str:
        kind = type(tree)
        if kind is Leaf:
            return self._leaf(tree)
        if kind is list:
            return f"[{','.join([self.tree(item) for item in tree])}]"
        if kind is dict:
            return f"{{{','.join([f'{quote(key)}:{self.tree(item)}' for key, item in tree.items()])}}}"
        return "null" if tree is None else "false" if tree is False else _encode_plain(tree)

    def _leaf(self, leaf: Leaf) -> str:
        if leaf.shape is None or leaf.data_name is not None:  # not met again: it is the leaf of one slot
            return encode_leaf(leaf)
        known = self._texts.get(id(leaf))
        if known is None:
            if len(self._texts) >= _MANY_TEXTS:
                self._texts.clear()
            known = self._texts[id(leaf)] = (leaf, encode_leaf(leaf))  # holding the leaf keeps its id unique
        return known[1]


# ---- reading ----

_NUMBERS = frozenset({int, float, bool, type(None)})
_TEXTS = frozenset({str, type(None)})
_TENSOR_KEYS = frozenset(
    {"type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "Nan_count", "Inf_count"}
    | {"requires_grad", "md5", "sketch", "data_name"}
)


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
    get = data.get
    shape = get("shape")
    if shape is None:
        extra = {key: item for key, item in data.items() if key not in ("type", "value")}
        return Leaf(data["type"], get("value"), extra=extra or None)
    stats = Statistics(
        get("Max"), get("Min"), get("Mean"), get("Norm"), get("Nan_count", 0), get("Inf_count", 0)
    )
    if not _NUMBERS.issuperset(map(type, stats)):
        raise _damaged(where, "statistics", tuple(stats))
    texts = (get("dtype"), get("md5"), get("data_name"))
    if not _TEXTS.issuperset(map(type, texts)):
        raise _damaged(where, "dtype, md5 and data_name", texts)
    return Leaf(
        type=data["type"],
        dtype=str(texts[0]),
        shape=_decode_shape(shape, where),
        stats=stats,
        requires_grad=get("requires_grad"),
        checksum=texts[1],
        sketch=_decode_sketch(get("sketch"), where),
        data_name=texts[2],
        extra=None if data.keys() <= _TENSOR_KEYS else {key: data[key] for key in data.keys() - _TENSOR_KEYS},
    )


def _decode_shape(shape: Any, where: str) -> tuple[int, ...]:
    sizes = tuple(shape) if type(shape) is list else None
    if sizes is None or not (_INTEGERS.issuperset(map(type, sizes)) and min(sizes, default=0) >= 0):
        raise _damaged(where, "shape", shape)
    return sizes


_INTEGERS = frozenset({int})
_SKETCH = "cs64:"  # the method; and release 8.3.3 refuses a dump with a text that begins with "+"


def _decode_sketch(text: Any, where: str) -> bytes | None:
    if text is None:
        return None
    if isinstance(text, str) and text.startswith(_SKETCH):
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(text.removeprefix(_SKETCH), validate=True)
    raise _damaged(where, "sketch", text)


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
