"""The kinds of numbers, what is asked of them, and the answers in numpy, where nothing was compiled."""

import ctypes
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

_Array: TypeAlias = npt.NDArray[Any]
_Doubles: TypeAlias = npt.NDArray[np.float64]
_Words: TypeAlias = npt.NDArray[np.uint64]

SKETCH_SIZE = 64
BRIEF_SIZE = 16
PICKS = 256  # blocks of SKETCH_SIZE elements that a brief sketch is made of, at most
BRIEF_ELEMENTS = PICKS * SKETCH_SIZE  # of a tensor with more, only some are sketched

# A kind names how one element lies in memory; numpy has no bfloat16, so "bf2" is held as its 16 bits.
DTYPES: dict[str, np.dtype[Any]] = {
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
KINDS = frozenset(DTYPES)
KIND_OF = {dtype: kind for kind, dtype in DTYPES.items() if kind != "bf2"}
KIND_OF_DTYPE = {**{dtype.name: kind for dtype, kind in KIND_OF.items()}, "bfloat16": "bf2"}  # by its name
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


def array_at(address: int, count: int, kind: str) -> _Array:
    dtype = DTYPES[kind]
    if count < 0 or (count and not address):
        raise ValueError("There is no memory at this address of this count.")
    if count == 0:
        return np.empty(0, dtype)
    return np.frombuffer(memoryview((ctypes.c_char * (count * dtype.itemsize)).from_address(address)), dtype)


_PART = 1 << 16  # elements widened at a time: bounds the memory; a multiple of SKETCH_SIZE


def _parts(values: _Array) -> Iterator[_Array]:
    return (values[start : start + _PART] for start in range(0, values.size, _PART))


def _doubles(part: _Array, kind: str) -> _Doubles:
    if kind == "bf2":
        part = (part.astype(np.uint32) << 16).view(np.float32)
    return part.astype(np.float64)


def statistics_numpy(address: int, count: int, kind: str) -> Statistics:
    values = array_at(address, count, kind)
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


def pair_numpy(target: int, target_kind: str, golden: int, golden_kind: str, count: int) -> PairSums:
    ours, theirs = array_at(target, count, target_kind), array_at(golden, count, golden_kind)
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


def sketch_numpy(address: int, count: int, kind: str) -> bytes:
    sums = np.zeros((8, SKETCH_SIZE))
    add_elements(sums, address, count, kind, 0)
    return folded(sums)


def add_elements(sums: _Doubles, address: int, count: int, kind: str, first: int) -> None:
    with np.errstate(all="ignore"):
        for part in _parts(array_at(address, count, kind)):
            wide = _doubles(part, kind)
            blocks = np.zeros((-(-wide.size // SKETCH_SIZE), SKETCH_SIZE))
            blocks.reshape(-1)[: wide.size] = np.where(np.isfinite(wide), wide, 0.0)
            _add_blocks(sums, blocks, np.arange(first, first + len(blocks), dtype=np.uint64))
            first += len(blocks)


def folded(sums: _Doubles) -> bytes:
    with np.errstate(all="ignore"):
        folded = np.zeros(SKETCH_SIZE)
        for low in range(8):
            folded += sums[low][_LANES ^ low]
        return folded.astype("<f4").tobytes()


def _add_blocks(sums: _Doubles, blocks: _Doubles, numbers: _Words) -> None:
    """Adds in the order of the compiled kernel (own sums per low bits of r), which makes the bits equal."""
    numbers = numbers * np.uint64(2)
    minus = (_splitmix64(numbers)[:, None] >> _LANES.astype(np.uint64)) & np.uint64(1)
    r = (_splitmix64(numbers + np.uint64(1)) >> np.uint64(58)).astype(np.intp)
    moved = np.take_along_axis(np.where(minus, -blocks, blocks), _LANES ^ (r & 56)[:, None], axis=1)
    for low in range(8):
        sums[low] = np.add.reduce(np.vstack([sums[low], moved[r & 7 == low]]), axis=0)


# ---- brief sketch ----


def brief_numpy(address: int, count: int, kind: str) -> bytes:
    """The brief sketch of `count` elements, of which the picked blocks lie in a row at `address`."""
    picked = picked_blocks(count)
    values = array_at(address, picked_elements(count), kind)
    sums = np.zeros((8, SKETCH_SIZE))
    with np.errstate(all="ignore"):
        wide = _doubles(values, kind)
        blocks = np.zeros((picked.size, SKETCH_SIZE))
        blocks.reshape(-1)[: wide.size] = np.where(np.isfinite(wide), wide, 0.0)
        _add_blocks(sums, blocks, picked.astype(np.uint64))
        lanes = np.zeros(BRIEF_SIZE)
        for bucket in range(SKETCH_SIZE):
            for low in range(8):
                lanes[bucket % BRIEF_SIZE] += sums[low][bucket ^ low]
        return lanes.astype("<f4").tobytes()


def brief_plan(count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """For each of the BRIEF_SIZE sums the places of its elements, and their signs; 0 for no element."""
    blocks = picked_blocks(count)
    numbers = blocks.astype(np.uint64) * np.uint64(2)
    minus = (_splitmix64(numbers)[:, None] >> _LANES.astype(np.uint64)) & np.uint64(1)
    rotation = (_splitmix64(numbers + np.uint64(1)) >> np.uint64(58)).astype(np.intp)
    places = blocks[:, None] * SKETCH_SIZE + _LANES
    signs = np.where(places < count, 1.0 - 2.0 * minus, 0.0).astype(np.float32)
    order = _LANES ^ rotation[:, None]  # the lane that goes to each bucket
    shape = (blocks.size, SKETCH_SIZE // BRIEF_SIZE, BRIEF_SIZE)
    found = [
        np.take_along_axis(each, order, axis=1).reshape(shape).transpose(2, 0, 1).reshape(BRIEF_SIZE, -1)
        for each in (np.where(places < count, places, 0), signs)
    ]
    return found[0], found[1]


def picked_blocks(count: int) -> npt.NDArray[np.int64]:
    """The numbers of the blocks that stand for a tensor of `count` elements: one in each of PICKS parts."""
    blocks = -(-count // SKETCH_SIZE)
    if blocks <= PICKS:
        return np.arange(blocks)
    bounds = np.array([pick * blocks // PICKS for pick in range(PICKS + 1)])
    random = _splitmix64(np.arange(PICKS, dtype=np.uint64) + np.uint64(1 << 63))
    sizes = np.diff(bounds).astype(np.uint64)
    chosen: npt.NDArray[np.int64] = bounds[:-1] + (random % sizes).astype(np.int64)
    return chosen


def picked_elements(count: int) -> int:
    """How many elements the picked blocks have; the last block of a tensor may be shorter."""
    picked = picked_blocks(count)
    if not picked.size:
        return 0
    last = min(SKETCH_SIZE, count - int(picked[-1]) * SKETCH_SIZE)
    return (picked.size - 1) * SKETCH_SIZE + last
