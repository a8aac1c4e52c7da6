"""The bytes torch.save writes for a single tensor, put together without torch.

    archive/data.pkl      a pickle that names dtype, shape, strides and the entry with the numbers
    archive/byteorder     "little" or "big"
    archive/data/0        the numbers, stored, at a multiple of 64 bytes, so that they can be mapped;
                          deflated where that saves a good part: masks, and what was masked
    archive/version       and a few small entries that only torch asks for

The files are those of torch 2.13 to the last byte, save that torch itself never deflates; every torch since
1.6 reads them. All but the numbers and what follows from them depends on dtype and shape alone and is kept
for the next tensor of that kind.
"""

from __future__ import annotations

import functools
import math
import struct
import sys
from typing import TYPE_CHECKING, NamedTuple

from msprobe.kernels import pack
from msprobe.kernels_deflate import crc32
from msprobe.store.dtypes import DTYPES, TensorData, checked_size

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ROOT = b"archive/"  # what torch.save calls it when the file has no name
_ALIGNMENT = 64
_32_BITS = 0xFFFFFFFF
_64_BITS = 0xFFFFFFFFFFFFFFFF
_SMALL_ENTRIES = (
    (b".format_version", b"1"),
    (b".storage_alignment", b"%d" % _ALIGNMENT),
    (b"byteorder", sys.byteorder.encode()),
)
_VERSION = b"3\n"
_VERSION_CRC = crc32(_VERSION)
_ID_OF_NAMES = b"15728199511854643026"  # torch's hash of the names of all entries; they are always the same
_CRC, _ID, _ID_CRC = range(3)  # holes: what differs between two tensors of one dtype and shape
_HOLE_SIZES = (4, 40, 4)
_STORED, _DEFLATED = 0, 8
_DEFLATES = range(1 << 13, 1 << 30)  # bytes: less fills no second block of the disk, more takes much memory
_WORTH = 0.8  # of its size

_Parts = list[bytes | int]  # an int is a hole


class _Layout(NamedTuple):
    """All bytes of a file but the numbers and what follows from them."""

    head: bytes
    tail: tuple[bytes | int, ...]
    crcs_before: int


class _Entry(NamedTuple):
    name: bytes
    size: int
    stored: int
    crc: bytes | int
    offset: int
    method: int = _STORED


def encode_pt(tensor: TensorData) -> list[Buffer]:
    """The chunks of a file such as torch.save writes; the numbers are one of them and are not copied."""
    size = checked_size(tensor)
    packed = None
    if size in _DEFLATES:
        packed = pack(memoryview(tensor.data).cast("B"), int(_WORTH * size))
    if packed is None:
        layout = _layout(tensor.dtype, tensor.shape, size)
    else:
        layout = _new_layout(tensor.dtype, tensor.shape, size, len(packed), _DEFLATED)
    crc, combined = 0, layout.crcs_before
    if size:
        crc = crc32(tensor.data)
        combined = _combined(combined, crc)
    identity = b"%b%020d" % (_ID_OF_NAMES, _combined(combined, _VERSION_CRC))
    holes = (_bytes(crc), identity, _bytes(crc32(identity)))
    tail = b"".join([holes[part] if isinstance(part, int) else part for part in layout.tail])
    return [layout.head, tensor.data if packed is None else packed, tail]


@functools.lru_cache(maxsize=4096)
def _layout(dtype: str, shape: tuple[int, ...], size: int) -> _Layout:
    return _new_layout(dtype, shape, size, size, _STORED)


def _new_layout(dtype: str, shape: tuple[int, ...], size: int, stored: int, method: int) -> _Layout:
    head = b""
    entries = []
    combined = 0
    for name, content in ((b"data.pkl", _pickle(dtype, shape, size)), *_SMALL_ENTRIES):
        crc = crc32(content)
        entry = _Entry(_ROOT + name, len(content), len(content), _bytes(crc), len(head))
        head += _local_header(entry) + content + _descriptor(_bytes(crc), len(content))
        entries.append(entry)
        combined = _combined(combined, crc)
    data = _Entry(_ROOT + b"data/0", size, stored, _CRC, len(head), method)
    head += _local_header(data)
    return _Layout(head, _tail([*entries, data], len(head) + stored), combined)


def _tail(entries: list[_Entry], start: int) -> tuple[bytes | int, ...]:
    """What follows the numbers: two more entries and the directory of the zip."""
    data = entries[-1]
    wide = data.size >= _32_BITS
    sizes = "<QQ" if wide else "<LL"
    parts: _Parts = [b"PK\7\b", _CRC, struct.pack(sizes, data.stored, data.size)] if data.size else []
    length, crc = len(_VERSION), _bytes(_VERSION_CRC)
    version = _Entry(_ROOT + b"version", length, length, crc, start + _length(parts))
    parts += [_local_header(version), _VERSION, _descriptor(crc, length, sizes)]
    length = _HOLE_SIZES[_ID]
    identity = _Entry(_ROOT + b".data/serialization_id", length, length, _ID_CRC, start + _length(parts))
    parts += [
        _local_header(identity),
        _ID,
        b"PK\7\b",
        _ID_CRC,
        struct.pack(sizes, length, length),
    ]
    directory = start + _length(parts)
    entries = [*entries, version, identity]
    for entry in entries:
        parts += _directory_entry(entry)
    end = start + _length(parts)
    count, length = len(entries), end - directory
    parts += [
        struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, length, directory),
        struct.pack("<4sLQL", b"PK\6\7", 0, end, 1),
        struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, count, count, length, min(directory, _32_BITS), 0),
    ]
    return _joined(parts)


def _length(parts: _Parts) -> int:
    return sum(_HOLE_SIZES[part] if isinstance(part, int) else len(part) for part in parts)


def _joined(parts: _Parts) -> tuple[bytes | int, ...]:
    """The same parts, with as few pieces between the holes as there can be."""
    joined: _Parts = [b""]
    for part in parts:
        last = joined[-1]
        if isinstance(part, bytes) and isinstance(last, bytes):
            joined[-1] = last + part
        else:
            joined.append(part)
    return tuple(joined)


def _bytes(crc: int) -> bytes:
    return crc.to_bytes(4, "little")


def _local_header(entry: _Entry) -> bytes:
    extra = _wide_field(entry, 0)
    padding = -(entry.offset + 30 + len(entry.name) + len(extra) + 4) % _ALIGNMENT
    extra += b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    numbers = (0, _flags(entry), entry.method, 0, 0, 0, 0, 0, len(entry.name), len(extra))
    return struct.pack("<4sHHHHHLLLHH", b"PK\3\4", *numbers) + entry.name + extra


def _descriptor(crc: bytes, size: int, sizes: str = "<LL") -> bytes:
    return b"PK\7\b" + crc + struct.pack(sizes, size, size)


def _directory_entry(entry: _Entry) -> _Parts:
    extra = _wide_field(entry, entry.stored)
    stored, size, offset = (min(number, _32_BITS) for number in (entry.stored, entry.size, entry.offset))
    start = struct.pack("<4sHHHHHH", b"PK\1\2", 0, 0, _flags(entry), entry.method, 0, 0)
    numbers = struct.pack("<LLHHHHHLL", stored, size, len(entry.name), len(extra), 0, 0, 0, 0, offset)
    return [start, entry.crc, numbers + entry.name + extra]


def _flags(entry: _Entry) -> int:
    return 0x0808 if entry.size else 0x0800  # 8: the checksum follows the content


def _wide_field(entry: _Entry, stored: int) -> bytes:
    """The numbers of an entry that 32 bits cannot hold; torch leaves `stored` empty in local headers."""
    numbers = [entry.size, stored] if entry.size >= _32_BITS else []
    numbers += [entry.offset] if entry.offset >= _32_BITS else []
    return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


def _combined(seed: int, crc: int) -> int:
    """How torch folds the checksums of the entries into the identity of a file."""
    return (seed ^ (crc + 0x9E3779B9 + (seed << 6) + (seed >> 2))) & _64_BITS


def _pickle(dtype: str, shape: tuple[int, ...], size: int) -> bytes:
    storage = DTYPES[dtype].storage
    elements = math.prod(shape)
    parts: list[bytes] = []

    def write(part: bytes) -> None:
        """Add a value, and the opcode that notes it for later use, as pickle does with each one."""
        parts.append(part + b"q%c" % len(parts))

    write(b"\x80\2ctorch._utils\n_rebuild_tensor_v%d\n" % (3 if storage is None else 2))
    write(b"((X\7\0\0\0storage")
    write(b"ctorch.storage\nUntypedStorage\n" if storage is None else b"ctorch\n%b\n" % storage.encode())
    write(b"X\1\0\0\x000")
    write(b"X\3\0\0\0cpu")
    write(_integer(size if storage is None else elements) + b"t")
    if shape:
        write(b"QK\0" + _integers(shape))
        write(_integers(_strides(shape)))
    write((b"" if shape else b"QK\0))") + b"\x89ccollections\nOrderedDict\n")
    write(b")R")
    if storage is None:
        write(b"ctorch\n%b\n" % dtype.encode())
    write(b"t")
    write(b"R")
    return b"".join(parts) + b"."


def _integers(values: tuple[int, ...]) -> bytes:
    body = b"".join(map(_integer, values))
    return b"(" + body + b"t" if len(values) > 3 else body + (b"\x85", b"\x86", b"\x87")[len(values) - 1]


def _integer(value: int) -> bytes:
    if value < 1 << 8:
        return b"K%c" % value
    if value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if value < 1 << 31:
        return b"J" + value.to_bytes(4, "little")
    length = value.bit_length() // 8 + 1
    return b"\x8a%c" % length + value.to_bytes(length, "little")


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a contiguous tensor, in elements; torch counts an axis of length 0 as 1."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
