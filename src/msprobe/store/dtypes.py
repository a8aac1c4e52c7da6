"""Which numbers a tensor can hold: their names, the numpy type with the same bits, their values as floats."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from msprobe.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Array = np.ndarray[Any, Any]

MAX_DIMENSIONS = 64  # of numpy and of torch


class TensorData(NamedTuple):
    """The raw bytes of a contiguous tensor and what they mean."""

    data: Buffer
    dtype: str  # "float32", "bfloat16", "float8_e4m3fn", ...
    shape: tuple[int, ...]


class DType(NamedTuple):
    """A kind of number: the numpy type that holds its bits, and its torch storage class if it has its own."""

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


class _Float8(NamedTuple):
    """The layout of an 8-bit float; where numbers end, each format has patterns of its own."""

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

# What numpy cannot hold, and the smallest of its types that has each of the values.
WIDER = {"bfloat16": "float32", "complex32": "complex64", **dict.fromkeys(_FLOAT8, "float32")}


def number_data(value: Any) -> TensorData | None:
    """A plain number as a tensor without dimensions; None of what is none, or too large for a type."""
    array = np.asarray(value)
    is_number = array.shape == () and array.dtype.name in DTYPES
    return TensorData(array.tobytes(), array.dtype.name, ()) if is_number else None


def bits_of(tensor: TensorData) -> Array:
    """The elements in a row, in the numpy type that holds their bits; they cannot be changed."""
    return np.frombuffer(memoryview(tensor.data), DTYPES[tensor.dtype].numpy)


def as_float(array: Array, dtype: str) -> Array:
    """The values of half precision and smaller numbers as float32; other arrays come back as they are."""
    if dtype == "bfloat16":
        wide = array.astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32)
    if dtype == "float16":
        return array.astype(np.float32)
    if dtype in _FLOAT8:
        return np.asarray(_float8_values(dtype)[array])
    if dtype == "complex32":
        halves = np.ascontiguousarray(array).reshape(-1).view(np.float16)
        return halves.astype(np.float32).view(np.complex64).reshape(array.shape)
    return array


def checked_size(tensor: TensorData) -> int:
    """The size in bytes that dtype and shape call for; a tensor with another one cannot be written."""
    expected = _size(tensor.dtype, tensor.shape)
    given = memoryview(tensor.data).nbytes
    if given != expected:
        raise UsageError(
            f"A {tensor.dtype} tensor of shape {tensor.shape} has {expected} bytes, but {given} were given."
        )
    return expected


@functools.lru_cache(maxsize=4096)
def _size(dtype: str, shape: tuple[int, ...]) -> int:
    if dtype not in DTYPES:
        raise UsageError(f"A tensor of dtype {dtype!r} cannot be written; known are {', '.join(DTYPES)}.")
    return math.prod(shape) * DTYPES[dtype].numpy.itemsize


@functools.cache
def _float8_values(dtype: str) -> Array:
    """The value of each of the 256 bit patterns."""
    mantissa_bits, bias, infinite, not_a_number = _FLOAT8[dtype]
    codes = np.arange(256)
    if mantissa_bits == 0:  # a power of two, without a sign
        values = np.ldexp(1.0, codes - bias)
    else:
        exponent = (codes & 0x7F) >> mantissa_bits
        mantissa = (codes & ((1 << mantissa_bits) - 1)) + np.where(exponent == 0, 0, 1 << mantissa_bits)
        values = np.ldexp(mantissa.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
        values = np.where(codes & 0x80, -values, values)
    values[list(infinite)] = np.copysign(np.inf, values[list(infinite)])
    values[list(not_a_number)] = np.nan
    return values.astype(np.float32)
