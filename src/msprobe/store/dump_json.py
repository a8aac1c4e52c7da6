"""The keys of dump.json: a leaf to JSON and back, whatever release wrote it."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import json
import math
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as quote
from typing import Any

import orjson

from msprobe.errors import RecordingError
from msprobe.given import is_plain_name
from msprobe.kernels import BRIEF_SIZE, SKETCH_SIZE, Statistics
from msprobe.name import CallName
from msprobe.record import MAX_DEPTH, Leaf, Record, Tree

# ---- writing ----

_plainly = json.JSONEncoder(separators=(",", ":"), default=str).encode
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})  # values that orjson writes as json does
_NO_STATISTICS = Statistics(None, None, None, None)


def encode_fields(tree: Tree) -> bytes:
    """The JSON of what a record holds, in ASCII."""
    try:
        text = orjson.dumps(tree, _for_orjson)
    except TypeError:  # half a character, a whole number of more than 64 bits, very deep
        text = b""
    return text if text and text.isascii() else _slowly(tree).encode()


def _slowly(tree: Any) -> str:
    """What json writes, and orjson in another way or not at all."""
    kind = type(tree)
    if kind is Leaf:
        return _plainly(_keys(tree))
    if kind is list:
        return f"[{','.join([_slowly(item) for item in tree])}]"
    if kind is dict:
        return f"{{{','.join([f'{quote(key)}:{_slowly(item)}' for key, item in tree.items()])}}}"
    return _plainly(tree)


def _for_orjson(item: Any) -> Any:
    """What orjson is to write for what is more than text, whole numbers, lists and dicts of them.

    It writes null for NaN and infinity. Every reader of this format takes the bare words NaN, Infinity and
    -Infinity for numbers.
    """
    if type(item) is not Leaf:
        return orjson.Fragment(_plainly(item))
    keys = _keys(item)
    if item.shape is None:
        value = item.value
        is_plain = item.extra is None and (
            type(value) in _AS_THEY_ARE or (type(value) is float and math.isfinite(value))
        )
    else:
        mean = keys["Mean"]
        is_plain = item.extra is None and (
            mean is None or math.isfinite(keys["Max"] + keys["Min"] + mean + keys["Norm"])
        )
    return keys if is_plain else orjson.Fragment(_plainly(keys))


def _keys(leaf: Leaf) -> dict[str, Any]:
    """What the file says of one leaf; who made it comes last."""
    kind, value, dtype, shape, stats, needs_grad, checksum, sketch, file, extra, digest, maker = leaf
    if shape is None:
        return {"type": kind, "value": value} if extra is None else {"type": kind, **extra}
    if type(stats) is not Statistics:
        stats = leaf.statistics or _NO_STATISTICS
        digest, sketch = leaf.content_hash, leaf.content_sketch
    largest, smallest, mean, norm, nan, inf = stats
    keys: dict[str, Any] = {
        "type": kind,
        "dtype": str(dtype),
        "shape": shape,
        "Max": largest,
        "Min": smallest,
        "Mean": mean,
        "Norm": norm,
    }
    if nan:
        keys["Nan_count"] = nan
    if inf:
        keys["Inf_count"] = inf
    if needs_grad is not None:
        keys["requires_grad"] = needs_grad
    if checksum is not None:
        keys["md5"] = checksum
    if digest is not None:
        keys["hash"] = digest
    if sketch is not None:
        keys["sketch"] = f"{_METHODS[len(sketch)]}{_base64(sketch, newline=False).decode()}"
    if file is not None:
        keys["data_name"] = file
    if extra is not None:
        keys.update(extra)
    if maker is not None:
        keys["from"] = maker
    return keys


_base64 = binascii.b2a_base64


# ---- reading ----

_FLOATS = frozenset({float})
_NUMBERS = frozenset({int, float, bool, type(None)})
_TEXTS = frozenset({str, type(None)})
_INTEGERS = frozenset({int})
_TEXT_KEYS = ("dtype", "md5", "data_name", "hash", "from")
_TENSOR_KEYS = frozenset(
    {"type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "Nan_count", "Inf_count"}
    | {"requires_grad", "md5", "hash", "from", "sketch", "data_name"}
)
_REMARKS = frozenset({"is_recompute", "exception"})  # fields of a record that are no leaves
# How sketches of so many bytes are made; release 8.3.3 refuses a dump with a text that begins with "+".
_METHODS = {4 * SKETCH_SIZE: "cs64:", 4 * BRIEF_SIZE: "cs16:"}

# The name of a place is made of a record's name and all keys above it. A file could make such names so long,
# and so many of them, that no memory holds them.
_LONGEST_NAME = 1 << 12
LONGEST_KEYS = 1 << 14
_LONGEST_SHOWN = 200
_DEEPEST = MAX_DEPTH + 2  # what walk() makes, within the arguments of a call
_MOST_ELEMENTS = 1 << 63
_OPEN = -1  # the size of a dimension that whoever traces a model has not settled
_LARGEST = 1 << 1000  # whole numbers up to here, and their differences, are floats, too


def decode_record(key: str, data: Any, file: str, *, is_variable: bool = False) -> Record:
    """The record under a key of "data": a call, or at level debug a saved variable."""
    name = decode_name(key, file, is_variable)
    where = f"{file}, {key if key.isprintable() and len(key) <= _LONGEST_SHOWN else _shown(key)}"
    try:
        if is_variable:
            return Record(name, {"value": _decode(data, where)})
        if not isinstance(data, dict):
            raise RecordingError(f"{where} is {_shown(data)} and no object; the file is damaged.")
        return Record(name, {slot: _decode_field(slot, item, where) for slot, item in data.items()})
    except RecursionError:
        raise _too_deep(where) from None


def _decode_field(slot: str, item: Any, where: str, *, is_repeated: bool = False) -> Any:
    if slot in _REMARKS and isinstance(item, (bool, str)):
        return item
    is_tree = isinstance(item, dict) and not isinstance(item.get("type"), str)
    if slot == "recompute" and is_tree and not is_repeated:  # what a checkpointed call gave when it ran again
        return {each: _decode_field(each, part, where, is_repeated=True) for each, part in item.items()}
    return _decode(item, where)


def decode_name(key: str, file: str, is_variable: bool) -> CallName:
    if len(key) > _LONGEST_NAME:
        raise RecordingError(f"{file}: the record name {_shown(key)} is far too long; the file is damaged.")
    try:
        return CallName.parse_variable(key) if is_variable else CallName.parse(key)
    except RecordingError:
        kind = "a record name, such as Torch.matmul.0.forward or Module.head.Linear.forward.0"
        if is_variable:
            kind = "the name of a saved variable, such as loss.0.debug"
        raise RecordingError(f"{file}: {_shown(key)} is not {kind}.") from None


def _decode(data: Any, where: str, depth: int = 0, keys: int = 0) -> Tree:
    """The tree that a JSON value of a record stands for; `keys` is how long those above it are together."""
    if data is None:
        return None
    if depth > _DEEPEST or keys > LONGEST_KEYS:
        raise _too_deep(where)
    if isinstance(data, list):
        return [_decode(item, where, depth + 1, keys) for item in data]
    if not isinstance(data, dict):
        return Leaf(type(data).__name__, plain_value(data, where))  # in forms of other releases: P2POp
    if isinstance(data.get("type"), str):
        return decode_leaf(data, where)
    return {key: _decode(item, where, depth + 1, keys + len(key)) for key, item in data.items()}


def decode_leaf(data: dict[str, Any], where: str) -> Leaf:
    """The leaf that these keys describe: a tensor if they have a shape."""
    get = data.get
    shape = get("shape")
    if shape is None:
        extra = {key: item for key, item in data.items() if key not in ("type", "value")}
        return Leaf(data["type"], plain_value(get("value"), where), extra=extra or None)
    texts = [get(key) for key in _TEXT_KEYS]
    if not _TEXTS.issuperset(map(type, texts)):
        raise _damaged(where, *next((key, data[key]) for key in _TEXT_KEYS if type(get(key)) not in _TEXTS))
    dtype, checksum, file, digest, maker = texts
    if file is not None and not is_plain_name(file):
        raise _damaged(where, "data_name", file)
    requires_grad = get("requires_grad")
    if requires_grad is not True and requires_grad is not False and requires_grad is not None:
        raise _damaged(where, "requires_grad", requires_grad)
    sketch = get("sketch")
    return Leaf(
        data["type"],
        None,
        str(dtype),
        _decode_shape(shape, where),
        _decode_statistics(data, where),
        requires_grad,
        checksum,
        None if sketch is None else _decode_sketch(sketch, where),
        file,
        None if data.keys() <= _TENSOR_KEYS else {key: data[key] for key in data.keys() - _TENSOR_KEYS},
        digest,
        maker,
    )


def plain_value(value: Any, where: str) -> Any:
    """The value of a leaf that is no tensor; a whole number that no float can hold becomes its text."""
    if type(value) is int:
        return value if -_LARGEST < value < _LARGEST else str(value)
    if type(value) is not list and type(value) is not dict:
        return value
    level = [value]
    for _ in range(_DEEPEST):
        inside = [part for part in level if type(part) is dict or type(part) is list]
        level = [item for part in inside for item in (part.values() if type(part) is dict else part)]
        if not level:
            return value
    raise _too_deep(where)


def _decode_shape(shape: Any, where: str) -> tuple[int, ...]:
    sizes = tuple(shape) if type(shape) is list else None
    if sizes is None or not (_INTEGERS.issuperset(map(type, sizes)) and is_shape(sizes)):
        raise _damaged(where, "shape", shape)
    return sizes


@functools.lru_cache(maxsize=4096)
def is_shape(sizes: tuple[int, ...]) -> bool:
    if min(sizes, default=0) < _OPEN:
        return False
    elements = math.prod(map(abs, sizes))
    return 0 < elements < _MOST_ELEMENTS or (0 in sizes and max(sizes) < _MOST_ELEMENTS)


def _decode_statistics(data: dict[str, Any], where: str) -> Statistics:
    get = data.get
    stats = Statistics(
        get("Max"), get("Min"), get("Mean"), get("Norm"), get("Nan_count", 0), get("Inf_count", 0)
    )
    if not are_numbers(stats):
        raise _damaged(where, "statistics", tuple(stats))
    return stats


def are_numbers(stats: Statistics) -> bool:
    """Whether all that is known is a number, and none is a whole one that no float can hold."""
    if stats[4] == stats[5] == 0 and _FLOATS.issuperset(map(type, stats[:4])):
        return True  # as they are nearly always
    return all(
        type(number) in _NUMBERS and (type(number) is not int or -_LARGEST < number < _LARGEST)
        for number in stats
    )


def _decode_sketch(text: Any, where: str) -> bytes:
    numbers = sketch_of(text) if isinstance(text, str) else None
    if numbers is None:
        raise _damaged(where, "sketch", text)
    return numbers


@functools.lru_cache(maxsize=4096)  # what one call gives out goes into others that follow soon
def sketch_of(text: str) -> bytes | None:
    with contextlib.suppress(binascii.Error, ValueError):
        numbers = base64.b64decode(text[5:], validate=True)
        if _METHODS.get(len(numbers)) == text[:5]:
            return numbers
    return None


def _damaged(where: str, key: str, value: Any) -> RecordingError:
    return RecordingError(f"{where} has the {key} {_shown(value)}, which cannot be; the file is damaged.")


def _too_deep(where: str) -> RecordingError:
    return RecordingError(f"{where} is nested too deeply, or its keys are too long; the file is damaged.")


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
