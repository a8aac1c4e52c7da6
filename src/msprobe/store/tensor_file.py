"""One tensor in one file, `.pt` or `.npy`: encoded for writing, and read back as numpy without running any code."""

from __future__ import annotations

import errno
import functools
import math
import mmap
import os
import re
import stat
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from msprobe.errors import RecordingError, UsageError
from msprobe.store import pt_zip
from msprobe.store.pt_zip import DTYPES, MAX_DIMENSIONS, Malformed, TensorData

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["DTYPES", "StoredTensor", "TensorData", "as_float", "encode_npy", "encode_pt", "read"]

Array = np.ndarray[Any, Any]

_READ_WHOLE = 1 << 16  # below this, one read is cheaper than a mapping
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in place of a file must not block
_LEGACY_PT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_NPY = b"\x93NUMPY"
_MAX_NPY_HEADER = 1 << 14


class StoredTensor(NamedTuple):
    """A tensor read back: read-only, perhaps strided, perhaps over a mapped file that must not be cut meanwhile.

    numpy has no bfloat16, float8 or complex32: their bits come as unsigned integers; `as_float` gives the values.
    """

    array: Array
    dtype: str


def encode_pt(tensor: TensorData) -> list[Buffer]:
    """The chunks of a file such as torch.save writes; the numbers are one of them and are not copied."""
    _check(tensor)
    return pt_zip.encode(tensor)


def encode_npy(tensor: TensorData) -> list[Buffer]:
    """The chunks of a file such as numpy.save writes.

    npy has no bfloat16, float8 or complex32: they become float32 and complex64, which hold each of their values.
    """
    _check(tensor)
    data, dtype, shape = tensor
    if dtype in _WIDER:
        data, dtype = as_float(np.frombuffer(data, DTYPES[dtype].numpy), dtype), _WIDER[dtype]
    return [_npy_header(dtype, shape), memoryview(data)]


def read(path: str | os.PathLike[str], *, verify: bool = True) -> StoredTensor:
    """The tensor in a `.pt` or `.npy` file; `verify=False` leaves the numbers untouched until they are used."""
    try:
        buffer = _contents(path)
        if buffer[:4] == b"PK\3\4":
            return StoredTensor(*pt_zip.decode(buffer, verify=verify))
        if buffer[:6] == _NPY:
            return StoredTensor(*_decode_npy(buffer))
        if buffer[: len(_LEGACY_PT)] == _LEGACY_PT:
            raise Malformed("has the format of torch before 1.6; load it with torch and torch.save it again.")
        raise Malformed("is neither a file of torch.save nor one of numpy.save.")
    except Malformed as problem:
        raise RecordingError(f"The tensor file '{os.fspath(path)}' {problem}") from problem
    except OSError as problem:
        reason = "it is a link, and links are not followed" if problem.errno == errno.ELOOP else problem.strerror
        raise RecordingError(f"The tensor file '{os.fspath(path)}' cannot be opened: {reason}.") from problem
    except (ValueError, LookupError, TypeError, OverflowError, struct.error) as problem:
        raise RecordingError(
            f"The tensor file '{os.fspath(path)}' is damaged and cannot be read ({problem}); record the run again."
        ) from problem


def as_float(array: Array, dtype: str) -> Array:
    """The values of half precision and smaller numbers as float32; other arrays are given back as they are."""
    if dtype == "bfloat16":
        wide = array.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if dtype == "float16":
        return array.astype(np.float32)
    if dtype in _FLOAT8:
        return _float8_values(dtype)[array]
    if dtype == "complex32":
        parts = np.ascontiguousarray(array).reshape(-1).view(np.float16)
        return parts.astype(np.float32).view(np.complex64).reshape(array.shape)
    return array


class _Float8(NamedTuple):
    """How the bits of an 8-bit float are read; exponents are of ones, i.e. value = 1.mantissa * 2 ** (exponent - bias)."""

    mantissa_bits: int
    bias: int
    infinite: tuple[int, ...]
    not_a_number: tuple[int, ...]


_FLOAT8 = {
    "float8_e4m3fn": _Float8(3, 7, (), (0x7F, 0xFF)),
    "float8_e4m3fnuz": _Float8(3, 8, (), (0x80,)),
    "float8_e5m2": _Float8(2, 15, (0x7C, 0xFC), (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF)),
    "float8_e5m2fnuz": _Float8(2, 16, (), (0x80,)),
    "float8_e8m0fnu": _Float8(0, 127, (), (0xFF,)),
}
_WIDER = {"complex32": "complex64", "bfloat16": "float32"} | dict.fromkeys(_FLOAT8, "float32")


@functools.lru_cache(maxsize=None)
def _float8_values(dtype: str) -> Array:
    """The value of each of the 256 bit patterns."""
    mantissa_bits, bias, infinite, not_a_number = _FLOAT8[dtype]
    codes = np.arange(256)
    if mantissa_bits == 0:  # a power of two, without sign
        values = np.ldexp(1.0, codes - bias)
    else:
        exponent = (codes & 0x7F) >> mantissa_bits
        mantissa = (codes & ((1 << mantissa_bits) - 1)) + np.where(exponent == 0, 0, 1 << mantissa_bits)
        values = np.ldexp(mantissa.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
        values = np.where(codes & 0x80, -values, values)
    values[list(infinite)] = np.copysign(np.inf, values[list(infinite)])
    values[list(not_a_number)] = np.nan
    return values.astype(np.float32)


def _check(tensor: TensorData) -> None:
    data, dtype, shape = tensor
    if dtype not in DTYPES:
        raise UsageError(f"A tensor of dtype '{dtype}' cannot be written; known are {', '.join(DTYPES)}.")
    expected = math.prod(shape) * DTYPES[dtype].numpy.itemsize
    if memoryview(data).nbytes != expected:
        raise UsageError(
            f"A {dtype} tensor of shape {shape} has {expected} bytes, but {memoryview(data).nbytes} were given."
        )


def _contents(path: str | os.PathLike[str]) -> bytes | mmap.mmap:
    """All bytes of a regular file, read at once if there are few, else mapped."""
    descriptor = os.open(path, _OPEN)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Malformed("is not a regular file.")
        if status.st_size <= _READ_WHOLE:
            return os.read(descriptor, _READ_WHOLE)
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


@functools.lru_cache(maxsize=4096)
def _npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '{DTYPES[dtype].numpy.str}', 'fortran_order': False, 'shape': {shape}, }}"
    length = len(text) + 1 + -(len(text) + 11) % 64
    return _NPY + b"\1\0" + struct.pack("<H", length) + text.ljust(length - 1).encode() + b"\n"


class _NpyHeader(NamedTuple):
    dtype: np.dtype[Any]
    fortran_order: bool
    shape: tuple[int, ...]


_DESCR = re.compile(rb"'descr'\s*:\s*'([<>|=]?[biufc]\d{1,2})'")
_ORDER = re.compile(rb"'fortran_order'\s*:\s*(True|False)")
_SHAPE = re.compile(rb"'shape'\s*:\s*\(([\d\s,L]*)\)")  # L: Python 2 wrote some


def _decode_npy(buffer: bytes | mmap.mmap) -> tuple[Array, str]:
    if buffer[6] == 1:
        (length,), start = struct.unpack_from("<H", buffer, 8), 10
    else:
        (length,), start = struct.unpack_from("<L", buffer, 8), 12
    if length > _MAX_NPY_HEADER:
        raise Malformed("is damaged: its header is far too long.")
    dtype, fortran_order, shape = _parse_npy_header(buffer[start : start + length])
    start += length
    if start + math.prod(shape) * dtype.itemsize > len(buffer):
        raise Malformed("is cut short: its numbers are fewer than its header says.")
    array: Array = np.ndarray(shape, dtype, buffer, start, order="F" if fortran_order else "C")
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
        array.flags.writeable = False
    return array, array.dtype.name


@functools.lru_cache(maxsize=4096)
def _parse_npy_header(header: bytes) -> _NpyHeader:
    descr, order, shape = _DESCR.search(header), _ORDER.search(header), _SHAPE.search(header)
    if descr is None or order is None or shape is None:
        raise Malformed("has a header that is not that of an array of numbers.")
    dtype = np.dtype(descr[1].decode())
    lengths = tuple(int(length) for length in shape[1].replace(b"L", b"").split(b",") if length.strip())
    if dtype.newbyteorder("=").name not in DTYPES or len(lengths) > MAX_DIMENSIONS:
        raise Malformed("has a header that is not that of an array of numbers.")
    return _NpyHeader(dtype, order[1] == b"True", lengths)
