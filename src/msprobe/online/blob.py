"""The bytes of a safetensors file: named tensors behind a JSON header, with one text among its metadata."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msprobe.store.dtypes import TensorData, checked_size

if TYPE_CHECKING:
    from typing_extensions import Buffer

LONGEST_HEADER = 4 << 20  # room for 16 000 tensors
_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
_TEXT = "msprobe"
_BYTES = "U8"  # for what the format has no word for
_WORDS = MappingProxyType(
    {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint64": "U64",
        "uint32": "U32",
        "uint16": "U16",
        "uint8": "U8",
        "bool": "BOOL",
        "complex64": "C64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "float8_e8m0fnu": "F8_E8M0",
    }
)


class Malformed(Exception):
    """These bytes are not what they should be; the message ends a sentence."""


class Blob(NamedTuple):
    """What was read: the bytes of each tensor lie in those that were given."""

    text: str
    tensors: dict[str, memoryview]


def encode(text: str, tensors: Mapping[str, TensorData]) -> list[Buffer]:
    """The file in chunks; no tensor is copied."""
    header: dict[str, Any] = {_METADATA: {_TEXT: text}}
    end = 0
    for name, tensor in tensors.items():
        size = checked_size(tensor)
        word = _WORDS.get(tensor.dtype)
        shape = list(tensor.shape) if word else [size]
        header[name] = {"dtype": word or _BYTES, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    line = json.dumps(header, separators=(",", ":")).encode()
    line += b" " * (-len(line) % 8)
    if len(line) > LONGEST_HEADER:
        raise Malformed(f"needs a header of {len(line)} bytes, and {LONGEST_HEADER} are allowed")
    return [_LENGTH.pack(len(line)) + line, *(tensor.data for tensor in tensors.values())]


def decode(content: Buffer) -> Blob:
    view = memoryview(content)
    if len(view) < _LENGTH.size:
        raise Malformed("is shorter than any safetensors file")
    (length,) = _LENGTH.unpack_from(view)
    if length > min(LONGEST_HEADER, len(view) - _LENGTH.size):
        raise Malformed(f"announces a header of {length} bytes")
    data = view[_LENGTH.size + length :]
    try:
        header = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + length]))
        text = header.pop(_METADATA)[_TEXT]
        tensors = {name: _part(data, *entry["data_offsets"]) for name, entry in header.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Malformed(f"has a header that cannot be understood: {error}") from None
    if not isinstance(text, str):
        raise Malformed("has no text among its metadata")
    if sum(map(len, tensors.values())) > len(data):  # each would become a file of its own
        raise Malformed("has tensors that overlap")
    return Blob(text, tensors)


def _part(data: memoryview, start: int, end: int) -> memoryview:
    if type(start) is not int or type(end) is not int or not 0 <= start <= end <= len(data):
        raise Malformed(f"has a tensor from byte {start!r} to byte {end!r} of {len(data)}")
    return data[start:end]
