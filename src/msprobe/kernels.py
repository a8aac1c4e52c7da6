"""Tensors in a few numbers, in one pass over memory: statistics, checksum, sketch of one; sums over two."""

import ctypes
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from msprobe.errors import UsageError

try:
    from msprobe import _kernels as _native
except ImportError:  # not built on this machine: the numpy functions below give the same results, slower
    _native = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Array: TypeAlias = npt.NDArray[Any]
_Doubles: TypeAlias = npt.NDArray[np.float64]
_Words: TypeAlias = npt.NDArray[np.uint64]

SKETCH_SIZE = 64

# A kind names how one element lies in memory; numpy has no bfloat16, so "bf2" is held as its 16 bits.
_DTYPES: dict[str, np.dtype[Any]] = {
    "f2": np.dtype(np.float16),
    "bf2": np.dtype(np.uint16),
    "f4": np.dtype(np.float32),
    "f8": np.dtype(np.float64),
    "i1": np.dtype(np.int8),
    "i2": np.dtype(np.int16),
    "i4": np.dtype(np.int32),
    "i8": np.dtype(np.int64),
    "u1": np.dtype(np.uint8),
    "u2": np.dtype(np.uint16),
    "u4": np.dtype(np.uint32),
    "u8": np.dtype(np.uint64),
    "b1": np.dtype(np.bool_),
}
KINDS = frozenset(_DTYPES)
_KIND_OF = {dtype: kind for kind, dtype in _DTYPES.items() if kind != "bf2"}
KIND_OF_DTYPE = {**{dtype.name: kind for dtype, kind in _KIND_OF.items()}, "bfloat16": "bf2"}  # by its name
_FLOATS = frozenset({"f2", "bf2", "f4", "f8"})


class Statistics(NamedTuple):
    """A tensor in six numbers; None where the question has no answer (empty; the mean of booleans)."""

    max: float | int | bool | None
    min: float | int | bool | None
    mean: float | None
    norm: float | None
    nan: int = 0
    inf: int = 0


class PairSums(NamedTuple):
    """Two tensors, element by element as float64, in the numbers that every metric is made of.

    An element that is NaN or infinite on either side is 0 on both, but in the last three counts.
    """

    # Where float64 values or their products leave its range: inf; dot then also NaN.
    dot: float = 0.0
    target_squares: float = 0.0
    golden_squares: float = 0.0
    difference_squares: float = 0.0
    max_abs: float = 0.0  # of target - golden
    max_relative: float = 0.0  # of (target - golden) / golden; where golden is 0, 2**-52 is added to both
    thousandth: int = 0  # elements whose relative error is below 0.001
    five_thousandths: int = 0
    unequal: int = 0  # NaN equals NaN; of two tensors of one integer kind this is exact also above 2**53
    mismatched: int = 0  # NaN on one side only, or infinite on one side only
    opposite: int = 0  # infinite on both sides, of different sign


def statistics(address: int, count: int, kind: str) -> Statistics:
    """The statistics of the `count` elements in a row at `address`; the caller keeps this memory alive."""
    if _native is None:
        return _statistics_numpy(address, count, kind)
    return _native.statistics(Statistics, address, count, kind)


def statistics_of(array: _Array) -> Statistics:
    """The statistics of an array of any layout; of the absolute values where the numbers are complex."""
    plain = _plain(array)
    if plain.dtype.kind == "c":
        with np.errstate(all="ignore"):
            plain = _plain(np.abs(plain))
    memory, kind = _memory(plain, "K")
    return statistics(address_of(memory), memory.size, kind)


def sketch(address: int, count: int, kind: str) -> bytes:
    """64 float32, linear in the tensor: the difference of two sketches estimates that of the tensors."""
    if _native is None:
        return _sketch_numpy(address, count, kind)
    return _native.sketch(address, count, kind)


def sketch_of(array: _Array) -> bytes:
    """The sketch of an array of any layout, its elements in row-major order; re, im, re, im where complex."""
    plain = _plain(array)
    if plain.dtype.kind == "c":
        plain = np.ascontiguousarray(plain).view(plain.real.dtype)
    memory, kind = _memory(plain, "C")
    return sketch(address_of(memory), memory.size, kind)


def pair(target: int, target_kind: str, golden: int, golden_kind: str, count: int) -> PairSums:
    """Two runs of `count` elements at these addresses, of whatever alignment; the caller keeps them alive."""
    if _native is None:
        return _pair_numpy(target, target_kind, golden, golden_kind, count)
    return _native.pair(PairSums, target, target_kind, golden, golden_kind, count)


def checksum(data: "Buffer") -> str:
    """CRC-32 of the bytes, as 8 hexadecimal digits."""
    return f"{crc32(data):08x}"


def glance(address: int, size: int) -> int:
    """A hash of a few words, spread over the `size` bytes at `address`, that tells most changes at once."""
    if _native is None:
        return hash(ctypes.string_at(address, min(size, 64)))
    return _native.glance(address, size)


def pack(data: memoryview, most: int) -> bytes | None:
    """The bytes in the format of deflate, at the speed of a copy; None if that needs more than `most`.

    Only repetition is packed: zeros, and whatever else stands there over and over.
    """
    if _native is None:
        return None
    return _native.pack(address_of(np.frombuffer(data, np.uint8)), len(data), most)


# ---- arrays as memory ----


def _plain(array: _Array) -> _Array:
    """The same numbers in a dtype that has a kind, or in complex64 or complex128. Only long double rounds."""
    if array.dtype in _KIND_OF:
        return array
    if not array.dtype.isnative:
        return _plain(array.astype(array.dtype.newbyteorder("=")))
    name = array.dtype.name
    if name in ("bfloat16", "complex64", "complex128"):
        return array
    if name.startswith(("float8", "float6", "float4")):
        return array.astype(np.float32)
    if name in ("int4", "int2", "int1"):
        return array.astype(np.int8)
    if name in ("uint4", "uint2", "uint1"):
        return array.astype(np.uint8)
    if name in ("complex32", "bcomplex32"):
        return array.astype(np.complex64)
    if array.dtype.char in "gG":  # long double
        return array.astype(np.float64 if array.dtype.char == "g" else np.complex128)
    raise UsageError(f"An array of dtype {name} has no statistics and no sketch: convert it to numbers.")


def _memory(array: _Array, order: str) -> tuple[_Array, str]:
    """The elements as one aligned run of memory, and their kind; order "K" takes them as they lie."""
    flat = array.ravel(order=order)  # type: ignore[arg-type]
    return flat if flat.flags.aligned else flat.copy(), _KIND_OF.get(array.dtype, "bf2")


def address_of(array: _Array) -> int:
    """Where the elements of an array begin."""
    return int(array.__array_interface__["data"][0])  # array.ctypes.data costs a multiple


def _array_at(address: int, count: int, kind: str) -> _Array:
    dtype = _DTYPES[kind]
    if count < 0 or (count and not address):
        raise ValueError("There is no memory at this address of this count.")
    if count == 0:
        return np.empty(0, dtype)
    return np.frombuffer(memoryview((ctypes.c_char * (count * dtype.itemsize)).from_address(address)), dtype)


# ---- the same kernels in numpy ----

_PART = 1 << 16  # elements widened at a time: bounds the memory; a multiple of SKETCH_SIZE


def _parts(values: _Array) -> Iterator[_Array]:
    return (values[start : start + _PART] for start in range(0, values.size, _PART))


def _doubles(part: _Array, kind: str) -> _Doubles:
    if kind == "bf2":
        part = (part.astype(np.uint32) << 16).view(np.float32)
    return part.astype(np.float64)


def _statistics_numpy(address: int, count: int, kind: str) -> Statistics:
    values = _array_at(address, count, kind)
    if count == 0:
        return Statistics(None, None, None, None)
    if kind == "b1":
        return Statistics(bool(values.any()), bool(values.all()), None, None)
    if kind in _FLOATS:
        with np.errstate(all="ignore"):
            return _float_statistics(values, kind)
    return _integer_statistics(values)


def _float_statistics(values: _Array, kind: str) -> Statistics:
    nan = positive = negative = 0
    high, low = -math.inf, math.inf
    for part in _parts(values):
        wide = _doubles(part, kind)
        nan += int(np.count_nonzero(np.isnan(wide)))
        positive += int(np.count_nonzero(wide == math.inf))
        negative += int(np.count_nonzero(wide == -math.inf))
        high, low = max(high, float(wide.max())), min(low, float(wide.min()))
    if nan:
        return Statistics(math.nan, math.nan, math.nan, math.nan, nan, positive + negative)
    if positive or negative:
        mean = math.nan if positive and negative else high if positive else low
        return Statistics(high, low, mean, math.inf, 0, positive + negative)
    exponent = _exponent(max(high, -low))
    total = squares = 0.0
    for part in _parts(values):
        wide = _doubles(part, kind) * 2.0**-exponent
        total += float(wide.sum())
        squares += float(np.dot(wide, wide))
    return Statistics(high, low, total / values.size * 2.0**exponent, math.sqrt(squares) * 2.0**exponent)


def _exponent(peak: float) -> int:
    """The power of two to divide by, so that squares of float64 stay in range; 0 where they do anyway."""
    if peak == 0 or 1e-140 < peak < 1e140:
        return 0
    return max(-1021, min(1021, math.frexp(peak)[1]))


def _integer_statistics(values: _Array) -> Statistics:
    total, squares = 0, 0.0
    for part in _parts(values):
        exact = part.astype(np.uint64 if part.dtype == np.uint64 else np.int64)
        # Two halves, because the sum of whole 64-bit integers may not fit into 64 bits.
        total += (int((exact >> 32).sum()) << 32) + int((exact & 0xFFFFFFFF).sum())
        wide = part.astype(np.float64)
        squares += float(np.dot(wide, wide))
    return Statistics(int(values.max()), int(values.min()), total / values.size, math.sqrt(squares))


# ---- two tensors; every step and sum in the order of the compiled kernel, which makes the bits equal ----

_PAIR_LANES = 4
_PAIR_PART = 1024  # elements whose sums are added before they join the total


def _pair_numpy(target: int, target_kind: str, golden: int, golden_kind: str, count: int) -> PairSums:
    ours, theirs = _array_at(target, count, target_kind), _array_at(golden, count, golden_kind)
    exact = target_kind == golden_kind and target_kind in ("i8", "u8")
    found = PairSums()
    with np.errstate(all="ignore"):
        for t, g in zip(_parts(ours), _parts(theirs), strict=True):
            found = _add_pair(found, _doubles(t, target_kind), _doubles(g, golden_kind))
    return found._replace(unequal=int(np.count_nonzero(ours != theirs))) if exact else found


def _add_pair(found: PairSums, t: _Doubles, g: _Doubles) -> PairSums:
    mismatched = (np.isnan(t) != np.isnan(g)) | (np.isinf(t) != np.isinf(g))
    opposite = np.isinf(t) & np.isinf(g) & (t != g)
    finite = np.isfinite(t) & np.isfinite(g)
    t, g = np.where(finite, t, 0.0), np.where(finite, g, 0.0)
    difference, more = t - g, np.where(g == 0, np.finfo(np.float64).eps, 0.0)
    relative = np.abs(((t + more) - (g + more)) / (g + more))
    return PairSums(
        _add_products(found.dot, t, g),
        _add_products(found.target_squares, t, t),
        _add_products(found.golden_squares, g, g),
        _add_products(found.difference_squares, difference, difference),
        max(found.max_abs, float(np.abs(difference).max())),
        max(found.max_relative, float(relative.max())),
        found.thousandth + int(np.count_nonzero(relative < 0.001)),
        found.five_thousandths + int(np.count_nonzero(relative < 0.005)),
        found.unequal + int(np.count_nonzero((t != g) | mismatched | opposite)),
        found.mismatched + int(np.count_nonzero(mismatched)),
        found.opposite + int(np.count_nonzero(opposite)),
    )


def _add_products(total: float, x: _Doubles, y: _Doubles) -> float:
    products = np.zeros(-(-x.size // _PAIR_PART) * _PAIR_PART)
    np.multiply(x, y, out=products[: x.size])
    lanes = np.add.reduce(products.reshape(-1, _PAIR_PART // _PAIR_LANES, _PAIR_LANES), axis=1)
    for part in (lanes[:, 0] + lanes[:, 2]) + (lanes[:, 1] + lanes[:, 3]):
        total += float(part)
    return total


# ---- sketch; docs/format.md defines it ----

_SKETCH_SEED = int.from_bytes(b"msprobe1", "big")
_LANES = np.arange(SKETCH_SIZE)


def _splitmix64(numbers: _Words) -> _Words:
    """The outputs with these numbers, counted from 0, of the splitmix64 generator that starts at the seed."""
    z = np.uint64(_SKETCH_SEED) + (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _sketch_numpy(address: int, count: int, kind: str) -> bytes:
    sums = np.zeros((8, SKETCH_SIZE))
    first = 0
    with np.errstate(all="ignore"):
        for part in _parts(_array_at(address, count, kind)):
            wide = _doubles(part, kind)
            blocks = np.zeros((-(-wide.size // SKETCH_SIZE), SKETCH_SIZE))
            blocks.reshape(-1)[: wide.size] = np.where(np.isfinite(wide), wide, 0.0)
            _add_blocks(sums, blocks, first)
            first += len(blocks)
        folded = np.zeros(SKETCH_SIZE)
        for low in range(8):
            folded += sums[low][_LANES ^ low]
        return folded.astype("<f4").tobytes()


def _add_blocks(sums: _Doubles, blocks: _Doubles, first: int) -> None:
    """Adds in the order of the compiled kernel (own sums per low bits of r), which makes the bits equal."""
    numbers = np.arange(first, first + len(blocks), dtype=np.uint64) * np.uint64(2)
    minus = (_splitmix64(numbers)[:, None] >> _LANES.astype(np.uint64)) & np.uint64(1)
    r = (_splitmix64(numbers + np.uint64(1)) >> np.uint64(58)).astype(np.intp)
    moved = np.take_along_axis(np.where(minus, -blocks, blocks), _LANES ^ (r & 56)[:, None], axis=1)
    for low in range(8):
        sums[low] = np.add.reduce(np.vstack([sums[low], moved[r & 7 == low]]), axis=0)
