"""Reads the single tensor in a `.pt` file, and runs nothing of what the file says.

The pickle in it is followed by a machine of our own that knows the opcodes a tensor needs. Names of functions
and classes are compared with the few that torch.save uses, never looked up; anything else is refused.
"""

from __future__ import annotations

import functools
import math
import mmap
import pickletools
import struct
from typing import Any, NamedTuple

import numpy as np

from msprobe.kernels_deflate import crc32, inflate
from msprobe.store.dtypes import DTYPES, MAX_DIMENSIONS, Array

Content = bytes | mmap.mmap

_32_BITS = 0xFFFFFFFF
_MAX_PICKLE = 1 << 12  # that of one tensor is smaller, even with 64 axes
_MAX_ENTRIES = 256
_STORED, _DEFLATED = 0, 8
_MOST_INFLATED = 1 << 30  # bytes; whatever is larger we never packed
_MAX_EXPANDED = 1 << 28  # elements of a tensor that is larger than its storage, by strides of 0


class Malformed(ValueError):
    """Why a file is not a tensor file, as the end of a sentence that begins with the file."""


class _Entry(NamedTuple):
    """What the directory of the zip says about one entry."""

    offset: int
    size: int
    stored: int
    crc: int
    method: int
    encrypted: int


class _Span(NamedTuple):
    """The bytes of an entry, unpacked."""

    content: Content
    start: int
    size: int
    crc: int

    def view(self) -> memoryview:
        return memoryview(self.content)[self.start : self.start + self.size]


class _Global(NamedTuple):
    """A class or function the pickle names: only ever compared."""

    module: str
    name: str


class _Storage(NamedTuple):
    dtype: str | None  # None: plain bytes; the tensor says what they are
    entry: str
    elements: int


class _Tensor(NamedTuple):
    dtype: str
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool
    negated: bool


def decode_pt(content: Content, *, verify: bool) -> tuple[Array, str, int]:
    """The numbers, a read-only view into `content` unless they are deflated there, their dtype and CRC."""
    root, entries = _directory(content)
    tensor = _described(_small(content, entries, f"{root}/data.pkl"))
    item = DTYPES[tensor.dtype].numpy
    size = tensor.storage.elements * (1 if tensor.storage.dtype is None else item.itemsize)
    span = _span(content, entries, f"{root}/data/{tensor.storage.entry}", size)
    if verify and not _intact(span.view(), span):
        raise Malformed("is damaged: the checksum of its numbers is wrong.")
    _check_bounds(tensor, span.size // item.itemsize)
    if f"{root}/byteorder" in entries and _small(content, entries, f"{root}/byteorder") == b"big":
        item = item.newbyteorder(">")
    array = _view(span, tensor, item)
    is_whole = array.size * item.itemsize == span.size and array.flags.c_contiguous
    return array, tensor.dtype, span.crc if is_whole else 0


def _small(content: Content, entries: dict[str, _Entry], name: str) -> bytes:
    if name in entries and entries[name].size > _MAX_PICKLE:
        raise Malformed("holds more than one tensor.")
    span = _span(content, entries, name)
    text = bytes(span.view())
    if not _intact(text, span):
        raise Malformed("is damaged: the checksum of its description is wrong.")
    return text


def _intact(part: bytes | memoryview, span: _Span) -> bool:
    return span.crc == 0 or crc32(part) == span.crc  # 0: torch.save was told not to compute checksums


def _check_bounds(tensor: _Tensor, available: int) -> None:
    elements = math.prod(tensor.shape)
    if elements > max(available, _MAX_EXPANDED):
        raise Malformed("is damaged: its shape is far larger than what it holds.")
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.strides, strict=True))
    if elements and tensor.offset + last >= available:
        raise Malformed("is damaged: its shape and strides reach beyond its numbers.")


def _view(span: _Span, tensor: _Tensor, item: np.dtype[Any]) -> Array:
    array: Array
    if 0 in tensor.shape:
        array = np.empty(tensor.shape, item)
    else:
        strides = tuple(step * item.itemsize for step in tensor.strides)
        start = span.start + tensor.offset * item.itemsize
        array = np.ndarray(tensor.shape, item, span.content, start, strides)
    if not item.isnative:
        array = array.astype(item.newbyteorder("="))
    if tensor.conjugated:
        array = np.asarray(np.conjugate(array))
    if tensor.negated:
        array = np.asarray(np.negative(array))
    array.flags.writeable = False
    return array


# ---- the zip ----


def _directory(content: Content) -> tuple[str, dict[str, _Entry]]:
    """The name of the folder all entries are in, and the entries."""
    end = content.rfind(b"PK\5\6", max(0, len(content) - (22 + 0xFFFF)))
    if end < 0 or end + 22 > len(content):
        raise Malformed("is cut short: the directory at its end is missing.")
    count, position = struct.unpack_from("<H4xL", content, end + 10)
    if end >= 20 and content[end - 20 : end - 16] == b"PK\6\7":
        (wide,) = struct.unpack_from("<Q", content, end - 12)
        mark, count, position = struct.unpack_from("<4s28xQ8xQ", content, wide)
        if mark != b"PK\6\6":
            raise Malformed("is damaged: the directory at its end is not where it should be.")
    if not 0 < count <= _MAX_ENTRIES:
        raise Malformed("holds more than one tensor, or none.")
    entries: dict[str, _Entry] = {}
    for _ in range(count):
        name, entry, position = _directory_entry(content, position)
        if name in entries:
            raise Malformed("is damaged: two of its entries have one name.")
        entries[name] = entry
    return next(iter(entries)).partition("/")[0], entries


def _directory_entry(content: Content, position: int) -> tuple[str, _Entry, int]:
    fields = struct.unpack_from("<4s4xHH4xLLLHHH8xL", content, position)
    mark, flags, method, crc, stored, size, name_size, extra_size, comment_size, offset = fields
    after = position + 46 + name_size
    if mark != b"PK\1\2" or after > len(content):
        raise Malformed("is damaged: the directory at its end cannot be read.")
    if _32_BITS in (size, stored, offset):
        size, stored, offset = _wide_numbers(content[after : after + extra_size], [size, stored, offset])
    entry = _Entry(offset, size, stored, crc, method, flags & 1)
    return content[position + 46 : after].decode(), entry, after + extra_size + comment_size


def _wide_numbers(extra: bytes, numbers: list[int]) -> list[int]:
    """The numbers of an entry, with those from the extra field that 32 bits cannot hold."""
    position = 0
    while position + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, position)
        if tag == 1:
            values = iter(struct.unpack_from(f"<{length // 8}Q", extra, position + 4))
            return [next(values, 0) if number == _32_BITS else number for number in numbers]
        position += 4 + length
    return numbers


def _span(content: Content, entries: dict[str, _Entry], name: str, size: int | None = None) -> _Span:
    """The content of an entry, which must be as long as `size`, if that is known."""
    if name not in entries:
        raise Malformed(f"has no entry '{name[:80]}', so it is no tensor that torch.save wrote.")
    entry = entries[name]
    if size not in (None, entry.size):
        raise Malformed("is damaged: it does not hold as many numbers as it says.")
    if entry.encrypted or entry.method not in (_STORED, _DEFLATED):
        raise Malformed("is compressed or encrypted in a way that torch does not read.")
    mark, name_size, extra_size = struct.unpack_from("<4s22xHH", content, entry.offset)
    start = entry.offset + 30 + name_size + extra_size
    if mark != b"PK\3\4" or start + entry.stored > len(content):
        raise Malformed("is damaged: an entry of it reaches beyond its end.")
    if entry.method == _STORED:
        if entry.size != entry.stored:
            raise Malformed("is damaged: an entry of it has two sizes.")
        return _Span(content, start, entry.size, entry.crc)
    if entry.size > _MOST_INFLATED:
        raise Malformed("is damaged: it says that it holds more than anybody packs.")
    try:
        inflated = inflate(memoryview(content)[start : start + entry.stored], entry.size)
    except ValueError as problem:
        raise Malformed(f"is damaged: its numbers cannot be unpacked ({problem}).") from problem
    return _Span(inflated, 0, entry.size, entry.crc)


# ---- the pickle ----

_TENSOR_FUNCTIONS = {
    _Global("torch._utils", "_rebuild_tensor_v2"),
    _Global("torch._utils", "_rebuild_tensor_v3"),
    _Global("torch_npu.utils.storage", "_rebuild_npu_tensor"),  # saved from an NPU: the values of a CPU copy
}
_PARAMETER = _Global("torch._utils", "_rebuild_parameter")
_ORDERED_DICT = _Global("collections", "OrderedDict")
_NPU_FORMAT = _Global("torch_npu.npu._format", "Format")
_UNTYPED = _Global("torch.storage", "UntypedStorage")
_STORAGES = {
    _Global("torch", kind.storage): name for name, kind in DTYPES.items() if kind.storage is not None
}
_TYPES = {_Global("torch", name): name for name in DTYPES}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING_TO_DO = {"PROTO", "FRAME", "STOP"}


@functools.lru_cache(maxsize=4096)
def _described(pickle: bytes) -> _Tensor:
    """What the pickle says; tensors of one dtype and shape have the same one."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(pickle):
        machine.step(opcode.name, argument)
    if len(machine.stack) != 1 or not isinstance(machine.stack[0], _Tensor):
        raise Malformed("holds something else than one tensor.")
    return machine.stack[0]


class _Machine:
    """Follows opcodes. What the file puts together is never called, and hashed or printed only if it is text:
    a few nested tuples can stand for more values than there is memory."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name == "TUPLE":
            self._group(self._marks.pop())
        elif name in _TUPLES:
            self._group(len(stack) - _TUPLES[name])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "SETITEM":
            value, key = stack.pop(), _text(stack.pop())
            stack[-1][key] = value
        elif name == "GLOBAL":
            stack.append(_Global(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            attribute, module = _text(stack.pop()), _text(stack.pop())
            stack.append(_Global(module, attribute))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_result(function, arguments))
        elif name not in _NOTHING_TO_DO:
            raise Malformed(f"holds something else than one tensor: its description needs {name}.")

    def _group(self, start: int) -> None:
        if start < 0:
            raise Malformed("is damaged: its description ends in nothing.")
        self.stack[start:] = [tuple(self.stack[start:])]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Malformed("is damaged: its description has something else in the place of a name.")
    return value


def _known(value: Any) -> _Global:
    if type(value) is not _Global:
        raise Malformed("is damaged: its description has something else in the place of a class.")
    return value


def _storage(identity: Any) -> _Storage:
    if type(identity) is not tuple or len(identity) != 5:
        raise Malformed("is damaged: it does not say where its numbers are.")
    tag, kind, entry, _device, elements = identity
    if _text(tag) != "storage" or type(elements) is not int:
        raise Malformed("is damaged: it does not say where its numbers are.")
    kind = _known(kind)
    if kind != _UNTYPED and kind not in _STORAGES:
        raise Malformed(
            f"holds a kind of numbers that is not supported: {kind.module[:80]}.{kind.name[:80]}."
        )
    return _Storage(_STORAGES.get(kind), _text(entry), elements)


def _result(function: Any, arguments: Any) -> Any:
    """What the few known functions would give."""
    function = _known(function)
    if type(arguments) is not tuple:
        raise Malformed("is damaged: its description has something else in the place of arguments.")
    if function in _TENSOR_FUNCTIONS:
        return _rebuilt(arguments, typed=function.name.endswith("v3"))
    if function == _PARAMETER and arguments and isinstance(arguments[0], _Tensor):
        return arguments[0]
    if function == _ORDERED_DICT and not arguments:
        return {}
    if function == _NPU_FORMAT:
        return None
    raise Malformed(
        f"wants '{function.module[:80]}.{function.name[:80]}' to be called, which a file with one tensor "
        "does not need; nothing was called."
    )


def _rebuilt(arguments: tuple[Any, ...], *, typed: bool) -> _Tensor:
    """A tensor of storage, offset, shape, strides, requires_grad, hooks, dtype if typed, perhaps flags."""
    if not 6 + typed <= len(arguments) <= 8:
        raise Malformed("is damaged: its description is not that of a tensor.")
    storage, offset, shape, strides = arguments[:4]
    if type(storage) is not _Storage or type(shape) is not tuple or type(strides) is not tuple:
        raise Malformed("is damaged: its description is not that of a tensor.")
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise Malformed("is damaged: its shape does not fit its strides.")
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (offset, *shape, *strides)):
        raise Malformed("is damaged: its shape is not made of whole numbers.")
    dtype = _TYPES.get(_known(arguments[6])) if typed else storage.dtype
    if dtype is None:
        raise Malformed("holds a kind of numbers that is not supported.")
    flags = arguments[-1] if type(arguments[-1]) is dict else {}
    return _Tensor(
        dtype, storage, offset, shape, strides, flags.get("conj") is True, flags.get("neg") is True
    )
