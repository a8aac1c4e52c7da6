"""One tensor in one file, `.pt` or `.npy`: its bytes for writing, and reading it without running code."""

from __future__ import annotations

import functools
import math
import mmap
import os
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from msprobe.errors import RecordingError
from msprobe.store.dtypes import DTYPES, MAX_DIMENSIONS, WIDER, Array, TensorData, as_float, checked_size
from msprobe.store.layout import open_regular
from msprobe.store.pt_decode import Content, Malformed, decode_pt
from msprobe.store.pt_encode import encode_pt

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["StoredTensor", "TensorData", "as_float", "encode_npy", "encode_pt", "read"]

_READ_WHOLE = 1 << 16  # up to this size one read is cheaper than a mapping
_OLD_PT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_NPY = b"\x93NUMPY"
_MAX_NPY_HEADER = 1 << 12
_ROOM_FOR_LENGTH = 21  # numpy leaves it in the header, so that rows can be added to a file


class StoredTensor(NamedTuple):
    """A tensor read back: read-only, perhaps strided, perhaps over a mapped file that must not be cut short.

    numpy has no bfloat16, float8 and complex32: their bits come as unsigned integers; `as_float` widens them.
    """

    array: Array
    dtype: str
    crc: int = 0  # of the numbers, as the file tells it; 0: it does not


def read(path: str | os.PathLike[str], *, verify: bool = True) -> StoredTensor:
    """The tensor in a `.pt` or `.npy` file; with `verify=False` the numbers are read when they are used."""
    where = f"The tensor file '{os.fspath(path)}'"
    try:
        content = _content(path)
        if content[:4] == b"PK\3\4":
            return StoredTensor(*decode_pt(content, verify=verify))
        if content[:6] == _NPY:
            return StoredTensor(*_decode_npy(content))
        if content[: len(_OLD_PT)] == _OLD_PT:
            raise Malformed("has the format of torch before 1.6; load it with torch and torch.save it again.")
        raise Malformed("was written neither by torch.save nor by numpy.save.")
    except Malformed as problem:
        raise RecordingError(f"{where} {problem}") from problem
    except OSError as problem:
        raise RecordingError(f"{where} cannot be opened: {problem.strerror}.") from problem
    except MemoryError as problem:
        raise RecordingError(f"{where} needs more memory than there is.") from problem
    except (ValueError, LookupError, TypeError, OverflowError, struct.error) as problem:
        raise RecordingError(f"{where} is damaged and cannot be understood: {problem}.") from problem


def _content(path: str | os.PathLike[str]) -> Content:
    """All bytes of a regular file, read at once if there are few, else mapped."""
    descriptor = open_regular(path)
    try:
        if os.fstat(descriptor).st_size <= _READ_WHOLE:
            return os.read(descriptor, _READ_WHOLE)
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def encode_npy(tensor: TensorData) -> list[Buffer]:
    """The chunks of a file such as numpy.save writes.

    npy has no bfloat16, float8 and complex32: they become float32 and complex64, which have all their values.
    """
    checked_size(tensor)
    data, dtype, shape = tensor
    if dtype in WIDER:
        bits = np.frombuffer(cast(bytes, data), DTYPES[dtype].numpy)
        return [_npy_header(WIDER[dtype], shape), cast("Buffer", as_float(bits, dtype))]
    return [_npy_header(dtype, shape), data]


@functools.lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    lengths = tuple(int(length) for length in shape)
    text = f"{{'descr': '{DTYPES[dtype].numpy.str}', 'fortran_order': False, 'shape': {lengths}, }}"
    text += " " * (_ROOM_FOR_LENGTH - len(str(lengths[0]))) if lengths else ""
    length = len(text) + 1 + -(len(text) + 11) % 64
    return _NPY + b"\1\0" + struct.pack("<H", length) + text.ljust(length - 1).encode() + b"\n"


class _NpyHeader(NamedTuple):
    dtype: np.dtype[Any]
    fortran_order: bool
    shape: tuple[int, ...]


# The header is a Python literal. Three searches take what an array of numbers has, and evaluate nothing.
_DESCR = re.compile(rb"'descr'\s*:\s*'([<>|=]?[biufc]\d{1,2})'")
_ORDER = re.compile(rb"'fortran_order'\s*:\s*(True|False)")
_SHAPE = re.compile(rb"'shape'\s*:\s*\(([\d\s,L]*)\)")  # L: written by Python 2


def _decode_npy(content: Content) -> tuple[Array, str]:
    start = 10 if content[6] == 1 else 12
    (size,) = struct.unpack_from("<H" if start == 10 else "<L", content, 8)
    if size > _MAX_NPY_HEADER:
        raise Malformed("is damaged: its header is far too long.")
    dtype, fortran_order, shape = _parsed_npy_header(content[start : start + size])
    start += size
    if start + math.prod(shape) * dtype.itemsize > len(content):
        raise Malformed("is cut short: it holds fewer numbers than its header says.")
    array: Array = np.ndarray(shape, dtype, content, start, order="F" if fortran_order else "C")
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
        array.flags.writeable = False
    return array, array.dtype.name


@functools.lru_cache(maxsize=4096)
def _parsed_npy_header(header: bytes) -> _NpyHeader:
    descr, order, shape = _DESCR.search(header), _ORDER.search(header), _SHAPE.search(header)
    if descr is None or order is None or shape is None:
        raise Malformed("has a header that is not that of an array of numbers.")
    dtype = np.dtype(descr[1].decode())
    lengths = tuple(int(length) for length in shape[1].replace(b"L", b"").split(b",") if length.strip())
    if dtype.newbyteorder("=").name not in DTYPES or len(lengths) > MAX_DIMENSIONS:
        raise Malformed("has a header that is not that of an array of numbers.")
    return _NpyHeader(dtype, order[1] == b"True", lengths)
