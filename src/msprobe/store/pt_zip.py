"""The `.pt` file of a single tensor: the zip and the pickle that torch.save writes, without torch or pickle.

    <root>/data.pkl       a pickle that names dtype, shape, strides and the entry with the numbers
    <root>/byteorder      "little" or "big"
    <root>/data/0         the numbers, stored, at a multiple of 64 bytes, so that they can be mapped
    <root>/version        and a few small entries that only torch asks for

`encode` gives the very bytes of torch 2.13. `decode` follows the pickle with a machine of its own that knows the
opcodes of a tensor and calls nothing; whatever else stands there is a `Malformed`.
"""

from __future__ import annotations

import functools
import math
import mmap
import pickletools
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

try:
    from isal.isal_zlib import crc32
except ImportError:  # platforms without isal wheels: the same numbers, four times slower
    from zlib import crc32

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_DIMENSIONS = 64  # of numpy and of torch
_MAX_PICKLE = 1 << 16
_MAX_ENTRIES = 256
_MAX_EXPANDED = 1 << 28  # elements of a tensor that is larger than its storage (strides of 0)
_32_BITS = 0xFFFFFFFF


class Malformed(ValueError):
    """The bytes are not a tensor file; the text goes on after "the file ..."."""


class TensorData(NamedTuple):
    """The raw bytes of a contiguous tensor and what they mean."""

    data: Buffer
    dtype: str  # "float32", "bfloat16", "float8_e4m3fn", ...
    shape: tuple[int, ...]


class DType(NamedTuple):
    """A torch dtype: the numpy type that holds its bits, and its storage class if it has one of its own."""

    numpy: np.dtype[Any]
    storage: str | None = None


DTYPES = {
    "float64": DType(np.dtype("f8"), "DoubleStorage"),
    "float32": DType(np.dtype("f4"), "FloatStorage"),
    "float16": DType(np.dtype("f2"), "HalfStorage"),
    "bfloat16": DType(np.dtype("u2"), "BFloat16Storage"),
    "int64": DType(np.dtype("i8"), "LongStorage"),
    "int32": DType(np.dtype("i4"), "IntStorage"),
    "int16": DType(np.dtype("i2"), "ShortStorage"),
    "int8": DType(np.dtype("i1"), "CharStorage"),
    "uint8": DType(np.dtype("u1"), "ByteStorage"),
    "bool": DType(np.dtype("?"), "BoolStorage"),
    "complex128": DType(np.dtype("c16"), "ComplexDoubleStorage"),
    "complex64": DType(np.dtype("c8"), "ComplexFloatStorage"),
    "complex32": DType(np.dtype("u4")),
    "uint64": DType(np.dtype("u8")),
    "uint32": DType(np.dtype("u4")),
    "uint16": DType(np.dtype("u2")),
    "float8_e4m3fn": DType(np.dtype("u1")),
    "float8_e4m3fnuz": DType(np.dtype("u1")),
    "float8_e5m2": DType(np.dtype("u1")),
    "float8_e5m2fnuz": DType(np.dtype("u1")),
    "float8_e8m0fnu": DType(np.dtype("u1")),
}
_STORAGES = {kind.storage: name for name, kind in DTYPES.items() if kind.storage is not None}


# ---- encode ----

_ROOT = b"archive/"  # what torch.save calls it when the file has no name
_ALIGNMENT = 64
_BEFORE = ((b".format_version", b"1"), (b".storage_alignment", b"64"), (b"byteorder", sys.byteorder.encode()))
_VERSION = b"3\n"
_VERSION_CRC = crc32(_VERSION)
_ID_NAMES = b"15728199511854643026"  # torch's hash of the names of the entries above
_CRC, _ID, _ID_CRC = range(3)  # what differs between two tensors of one dtype and shape, beside the numbers


class _Layout(NamedTuple):
    """All bytes of a file but the numbers; an int in `tail` is a hole for what depends on them."""

    size: int
    head: bytes
    tail: tuple[bytes | int, ...]
    id_before: int


class _Entry(NamedTuple):
    name: bytes
    size: int
    crc: bytes | int
    offset: int


def encode(tensor: TensorData) -> list[Buffer]:
    """The chunks of the file; the numbers are one of them and are not copied."""
    data, dtype, shape = tensor
    layout = _layout(dtype, shape)
    view = memoryview(data)
    if view.nbytes != layout.size:
        raise ValueError(f"{view.nbytes} bytes cannot be a {dtype} tensor of shape {shape}: it has {layout.size}.")
    crc = crc32(view) if view.nbytes else 0
    number = _combine(layout.id_before, crc) if view.nbytes else layout.id_before
    number = _combine(number, _VERSION_CRC)
    identity = b"%b%020d" % (_ID_NAMES, number)
    holes = (crc.to_bytes(4, "little"), identity, crc32(identity).to_bytes(4, "little"))
    tail = b"".join([holes[part] if part.__class__ is int else part for part in layout.tail])  # type: ignore[index, misc]
    return [layout.head, view, tail]


@functools.lru_cache(maxsize=4096)
def _layout(dtype: str, shape: tuple[int, ...]) -> _Layout:
    size = math.prod(shape) * DTYPES[dtype].numpy.itemsize
    pickle = _pickle(dtype, shape, size)
    head = b""
    entries = []
    combined = 0
    for name, content in ((b"data.pkl", pickle), *_BEFORE):
        entry = _Entry(_ROOT + name, len(content), crc32(content).to_bytes(4, "little"), len(head))
        entries.append(entry)
        combined = _combine(combined, crc32(content))
        head += b"".join([_local_header(entry), content, *_descriptor(entry, wide=False)])  # type: ignore[list-item]
    data = _Entry(_ROOT + b"data/0", size, _CRC, len(head))
    head += _local_header(data)
    return _Layout(size, head, _tail(entries, data, len(head) + size), combined)


def _tail(entries: list[_Entry], data: _Entry, offset: int) -> tuple[bytes | int, ...]:
    """What follows the numbers: two more entries and the central directory."""
    wide = data.size >= _32_BITS
    parts: list[bytes | int] = _descriptor(data, wide) if data.size else []
    position = offset + _length(parts)
    version = _Entry(_ROOT + b"version", len(_VERSION), _VERSION_CRC.to_bytes(4, "little"), position)
    parts += [_local_header(version), _VERSION, *_descriptor(version, wide)]
    position = offset + _length(parts)
    identity = _Entry(_ROOT + b".data/serialization_id", 40, _ID_CRC, position)
    parts += [_local_header(identity), _ID, *_descriptor(identity, wide)]
    directory = offset + _length(parts)
    entries = [*entries, data, version, identity]
    for entry in entries:
        parts += _directory_entry(entry)
    end = offset + _length(parts)
    count, length = len(entries), end - directory
    parts += [
        struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, length, directory),
        struct.pack("<4sLQL", b"PK\6\7", 0, end, 1),
        struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, count, count, length, min(directory, _32_BITS), 0),
    ]
    return _joined(parts)


def _length(parts: list[bytes | int]) -> int:
    sizes = {_CRC: 4, _ID: 40, _ID_CRC: 4}
    return sum(sizes[part] if isinstance(part, int) else len(part) for part in parts)


def _joined(parts: list[bytes | int]) -> tuple[bytes | int, ...]:
    joined: list[bytes | int] = []
    for part in parts:
        if joined and isinstance(part, bytes) and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)


def _wide_fields(entry: _Entry, stored: int) -> bytes:
    """The extra field for numbers beyond 32 bits."""
    numbers = [entry.size, stored] if entry.size >= _32_BITS else []
    numbers += [entry.offset] if entry.offset >= _32_BITS else []
    return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


def _local_header(entry: _Entry) -> bytes:
    extra = _wide_fields(entry, 0)
    padding = -(entry.offset + 30 + len(entry.name) + len(extra) + 4) % _ALIGNMENT
    extra += b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    return (
        struct.pack("<4sHHHHHLLLHH", b"PK\3\4", 0, _flags(entry), 0, 0, 0, 0, 0, 0, len(entry.name), len(extra))
        + entry.name
        + extra
    )


def _flags(entry: _Entry) -> int:
    return 0x0808 if entry.size else 0x0800  # 8: the checksum follows the content


def _descriptor(entry: _Entry, wide: bool) -> list[bytes | int]:
    return [b"PK\7\b", entry.crc, struct.pack("<QQ" if wide else "<LL", entry.size, entry.size)]


def _directory_entry(entry: _Entry) -> list[bytes | int]:
    extra = _wide_fields(entry, entry.size)
    size, offset = min(entry.size, _32_BITS), min(entry.offset, _32_BITS)
    numbers = struct.pack("<LLHHHHHLL", size, size, len(entry.name), len(extra), 0, 0, 0, 0, offset)
    return [struct.pack("<4sHHHHHH", b"PK\1\2", 0, 0, _flags(entry), 0, 0, 0), entry.crc, numbers + entry.name + extra]


def _combine(seed: int, value: int) -> int:
    """How torch folds checksums into the identity of a file."""
    return seed ^ (value + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & 0xFFFFFFFFFFFFFFFF


def _pickle(dtype: str, shape: tuple[int, ...], size: int) -> bytes:
    storage = DTYPES[dtype].storage
    parts: list[bytes] = []
    memo = 0

    def write(part: bytes, *, keep: bool = True) -> None:
        nonlocal memo
        parts.append(part)
        if keep:
            parts.append(b"q%c" % memo)
            memo += 1

    write(b"\x80\2ctorch._utils\n_rebuild_tensor_v%d\n" % (3 if storage is None else 2))
    write(b"((X\7\0\0\0storage")
    write(b"ctorch.storage\nUntypedStorage\n" if storage is None else b"ctorch\n%b\n" % storage.encode())
    write(b"X\1\0\0\x000")
    write(b"X\3\0\0\0cpu")
    write(_integer(size if storage is None else math.prod(shape)) + b"t")
    write(b"QK\0", keep=False)
    for numbers in (shape, contiguous_strides(shape)):
        write(_integers(numbers), keep=bool(numbers))
    write(b"\x89ccollections\nOrderedDict\n")
    write(b")R")
    if storage is None:
        write(b"ctorch\n%b\n" % dtype.encode())
    write(b"t")
    write(b"R")
    return b"".join(parts) + b"."


def _integers(values: tuple[int, ...]) -> bytes:
    body = b"".join(map(_integer, values))
    if len(values) > 3:
        return b"(" + body + b"t"
    return body + (b")", b"\x85", b"\x86", b"\x87")[len(values)]


def _integer(value: int) -> bytes:
    if value < 1 << 8:
        return b"K%c" % value
    if value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if value < 1 << 31:
        return b"J" + value.to_bytes(4, "little")
    length = value.bit_length() // 8 + 1
    return b"\x8a%c" % length + value.to_bytes(length, "little")


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """In elements, as torch counts them: an axis of length 0 counts as 1."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


# ---- decode ----


class _Global(NamedTuple):
    """A class or function the pickle names: only ever compared, never looked up."""

    module: str
    name: str


class _Storage(NamedTuple):
    dtype: str | None  # None: bytes, the tensor says what they are
    entry: str
    count: int


class _Tensor(NamedTuple):
    dtype: str
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool
    negated: bool


def decode(buffer: bytes | mmap.mmap, *, verify: bool) -> tuple[np.ndarray[Any, Any], str]:
    """The numbers as a read-only view into `buffer`, and the dtype torch gives them."""
    root, entries = _directory(buffer)
    start, size, crc = _content(buffer, entries, f"{root}/data.pkl")
    if size > _MAX_PICKLE:
        raise Malformed("holds more than one tensor.")
    pickle = buffer[start : start + size]
    if crc and crc32(pickle) != crc:
        raise Malformed("is damaged: the checksum of its description is wrong.")
    tensor = _described(pickle)
    start, size, crc = _content(buffer, entries, f"{root}/data/{tensor.storage.entry}")
    item = DTYPES[tensor.dtype].numpy
    if size != tensor.storage.count * (item.itemsize if tensor.storage.dtype else 1):
        raise Malformed("is damaged: its numbers are not as many as its description says.")
    # torch.save can be told not to compute checksums; it then writes 0.
    if verify and crc and crc32(memoryview(buffer)[start : start + size]) != crc:
        raise Malformed("is damaged: the checksum of its numbers is wrong.")
    _check_bounds(tensor, size // item.itemsize)
    order = "<"
    if f"{root}/byteorder" in entries:
        at, length, _ = _content(buffer, entries, f"{root}/byteorder")
        order = {b"little": "<", b"big": ">"}.get(buffer[at : at + min(length, 8)], "")
        if not order:
            raise Malformed("names a byte order that is neither little nor big.")
    return _view(buffer, start, tensor, item.newbyteorder(order)), tensor.dtype


def _view(buffer: bytes | mmap.mmap, start: int, tensor: _Tensor, item: np.dtype[Any]) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.ndarray(
        tensor.shape,
        item,
        buffer,
        start + tensor.offset * item.itemsize,
        tuple(step * item.itemsize for step in tensor.strides),
    ) if math.prod(tensor.shape) else np.empty(tensor.shape, item)
    if not item.isnative:
        array = array.astype(item.newbyteorder("="))
    if tensor.conjugated:
        array = array.conj()
    if tensor.negated:
        array = -array
    array.flags.writeable = False
    return array


def _check_bounds(tensor: _Tensor, available: int) -> None:
    elements = math.prod(tensor.shape)
    if elements > max(available, _MAX_EXPANDED):
        raise Malformed("claims a shape far larger than what it holds.")
    last = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.strides, strict=True))
    if elements and tensor.offset + last >= available:
        raise Malformed("is damaged: its shape and strides reach beyond its numbers.")


_EntryAt = tuple[int, int, int, int, int]  # offset of the local header, size, stored size, checksum, method or flags


def _directory(buffer: bytes | mmap.mmap) -> tuple[str, dict[str, _EntryAt]]:
    """The name of the root and the entries of the zip's central directory."""
    end = buffer.rfind(b"PK\5\6", max(0, len(buffer) - (22 + 0xFFFF)))
    if end < 0:
        raise Malformed("is cut short: the directory at its end is missing.")
    count, _, position = struct.unpack_from("<HLL", buffer, end + 10)
    if end >= 20 and buffer[end - 20 : end - 16] == b"PK\6\7":
        (wide,) = struct.unpack_from("<Q", buffer, end - 12)
        mark, count, _, position = struct.unpack_from("<4s28xQQQ", buffer, wide)
        if mark != b"PK\6\6":
            raise Malformed("is damaged: the directory at its end is not where it should be.")
    if not 0 < count <= _MAX_ENTRIES:
        raise Malformed("holds more than one tensor.")
    entries: dict[str, _EntryAt] = {}
    for _ in range(count):
        name, entry, position = _directory_entry_at(buffer, position)
        if name in entries:
            raise Malformed("is damaged: two of its entries have one name.")
        entries[name] = entry
    return next(iter(entries)).partition("/")[0], entries


def _directory_entry_at(buffer: bytes | mmap.mmap, position: int) -> tuple[str, _EntryAt, int]:
    fields = struct.unpack_from("<4s4xHH4xLLLHHH8xL", buffer, position)
    mark, flags, method, crc, stored, size, name_size, extra_size, comment_size, offset = fields
    after = position + 46 + name_size
    if mark != b"PK\1\2" or after > len(buffer):
        raise Malformed("is damaged: its directory cannot be read.")
    if _32_BITS in (size, stored, offset):
        size, stored, offset = _wide_numbers(buffer[after : after + extra_size], size, stored, offset)
    name = buffer[position + 46 : after].decode()
    return name, (offset, size, stored, crc, method | flags & 1), after + extra_size + comment_size


def _wide_numbers(extra: bytes, *numbers: int) -> list[int]:
    """The numbers of a directory entry, with those taken from the extra field that 32 bits cannot hold."""
    position = 0
    while position + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, position)
        if tag == 1:
            values = iter(struct.unpack_from(f"<{length // 8}Q", extra, position + 4))
            return [next(values, 0) if number == _32_BITS else number for number in numbers]
        position += 4 + length
    return list(numbers)


def _content(buffer: bytes | mmap.mmap, entries: dict[str, _EntryAt], name: str) -> tuple[int, int, int]:
    """Where the content of an entry starts, its size and its checksum."""
    if name not in entries:
        raise Malformed(f"has no entry '{name[:80]}', so it is not a tensor that torch.save wrote.")
    offset, size, stored, crc, compressed = entries[name]
    if compressed or size != stored:
        raise Malformed("is compressed or encrypted, which torch.save never does.")
    mark, name_size, extra_size = struct.unpack_from("<4s22xHH", buffer, offset)
    start = offset + 30 + name_size + extra_size
    if mark != b"PK\3\4" or start + size > len(buffer):
        raise Malformed("is damaged: an entry reaches beyond its end.")
    return start, size, crc


_TENSOR_FUNCTIONS = {
    _Global("torch._utils", "_rebuild_tensor_v2"),
    _Global("torch._utils", "_rebuild_tensor_v3"),
    _Global("torch_npu.utils.storage", "_rebuild_npu_tensor"),
}
_PARAMETER = _Global("torch._utils", "_rebuild_parameter")
_ORDERED_DICT = _Global("collections", "OrderedDict")
_UNTYPED = _Global("torch.storage", "UntypedStorage")
_NPU_FORMAT = _Global("torch_npu.npu._format", "Format")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME", "STOP"}


@functools.lru_cache(maxsize=4096)
def _described(pickle: bytes) -> _Tensor:
    """What the pickle says, found by following its opcodes. Tensors of one dtype and shape share a pickle."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(pickle):
        machine.step(opcode.name, argument)
    result = machine.stack.pop()
    if not isinstance(result, _Tensor) or machine.stack:
        raise Malformed("holds something else than one tensor.")
    return result


class _Machine:
    """Follows the opcodes torch.save needs for one tensor. Values of the file are never called, hashed or printed."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "TUPLE":
            self._group(self.marks.pop())
        elif name in _TUPLES:
            self._group(len(stack) - _TUPLES[name])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _texts(key)
            stack[-1][key] = value
        elif name == "GLOBAL":
            stack.append(_Global(*_texts(*argument.split(" ", 1))))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(_Global(*_texts(module, attribute)))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_result(function, arguments))
        elif name not in _IGNORED:
            raise Malformed(f"holds something else than a tensor (opcode {name}).")

    def _group(self, start: int) -> None:
        if start < 0:
            raise Malformed("is damaged: its description ends in nothing.")
        self.stack[start:] = [tuple(self.stack[start:])]


def _texts(*values: Any) -> tuple[str, ...]:
    if not all(type(value) is str for value in values):
        raise Malformed("is damaged: its description has something else where a name must stand.")
    return values


def _storage(identity: Any) -> _Storage:
    tag, kind, entry, _, count = identity
    _texts(tag, entry)
    if type(kind) is not _Global or type(count) is not int or count < 0 or tag != "storage":
        raise Malformed("is damaged: it does not say where its numbers are.")
    if kind == _UNTYPED:
        return _Storage(None, entry, count)
    if kind.module != "torch" or kind.name not in _STORAGES:
        raise Malformed(f"holds numbers of a kind that is not supported ({kind.module}.{kind.name}).")
    return _Storage(_STORAGES[kind.name], entry, count)


def _result(function: Any, arguments: Any) -> Any:
    """What the few known functions would give; unknown ones are refused by name."""
    if type(function) is not _Global or type(arguments) is not tuple:
        raise Malformed("is damaged: its description calls something that cannot be called.")
    if function in _TENSOR_FUNCTIONS:
        return _rebuilt(function.name, *arguments)
    if function == _PARAMETER and isinstance(arguments[0], _Tensor):
        return arguments[0]
    if function == _ORDERED_DICT and not arguments:
        return {}
    if function == _NPU_FORMAT:
        return None
    raise Malformed(
        f"needs '{function.module[:80]}.{function.name[:80]}' to be read, which a file with one tensor never does;"
        " nothing was run."
    )


def _rebuilt(function: str, storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> _Tensor:
    if type(storage) is not _Storage or type(shape) is not tuple or type(strides) is not tuple:
        raise Malformed("is damaged: its description is not that of a tensor.")
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise Malformed("is damaged: its shape and its strides do not fit.")
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise Malformed("is damaged: its shape is not made of numbers of elements.")
    dtype = storage.dtype
    if function == "_rebuild_tensor_v3":
        kind = rest[2]
        if type(kind) is not _Global or kind.module != "torch" or kind.name not in DTYPES:
            raise Malformed("holds numbers of a kind that is not supported.")
        dtype = kind.name
    if dtype is None:
        raise Malformed("does not say what kind of numbers it holds.")
    flags = rest[-1] if type(rest[-1]) is dict else {}
    return _Tensor(dtype, storage, offset, shape, strides, flags.get("conj") is True, flags.get("neg") is True)
