"""Tensors in a few numbers, in one pass over memory: statistics, checksum, sketch of one; sums over two."""

import ctypes
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from msprobe import kernels_hash
from msprobe.errors import UsageError
from msprobe.kernels_deflate import crc32
from msprobe.kernels_hash import Part
from msprobe.kernels_layout import PIECE, View, boxes, filled, hash_plan, joined, views
from msprobe.kernels_numpy import BRIEF_ELEMENTS as BRIEF_ELEMENTS
from msprobe.kernels_numpy import BRIEF_SIZE as BRIEF_SIZE
from msprobe.kernels_numpy import (
    DTYPES,
    KIND_OF,
    add_elements,
    array_at,
    brief_numpy,
    folded,
    pair_numpy,
    picked_blocks,
    picked_elements,
    sketch_numpy,
    statistics_numpy,
)
from msprobe.kernels_numpy import KIND_OF_DTYPE as KIND_OF_DTYPE
from msprobe.kernels_numpy import KINDS as KINDS
from msprobe.kernels_numpy import SKETCH_SIZE as SKETCH_SIZE
from msprobe.kernels_numpy import PairSums as PairSums
from msprobe.kernels_numpy import Statistics as Statistics
from msprobe.kernels_numpy import brief_plan as brief_plan

try:
    from msprobe import _kernels as _native
except ImportError:  # not built on this machine: the numpy functions give the same results, slower
    _native = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Array: TypeAlias = npt.NDArray[Any]


def statistics(address: int, count: int, kind: str) -> Statistics:
    """The statistics of the `count` elements in a row at `address`; the caller keeps this memory alive."""
    if _native is None:
        return statistics_numpy(address, count, kind)
    return _native.statistics(Statistics, address, count, kind)


Description: TypeAlias = tuple[Statistics, str | None, bytes | None]  # statistics, hash and a sketch


def described(
    address: int, count: int, kind: str, whole_sketch: bool = False
) -> tuple[Statistics, str, bytes | None]:
    """The statistics, the hash and the brief or the whole sketch of the elements in a row at `address`."""
    if _native is None:
        size = count * DTYPES[kind].itemsize
        whole = kernels_hash.part_at(address, size)
        digest = kernels_hash.digits(whole, size)
        values = array_at(address, count, kind)
        sketched = sketch_numpy(address, count, kind) if whole_sketch else _brief(values)
        return statistics_numpy(address, count, kind), digest, sketched
    return _native.described(Statistics, address, count, kind, whole_sketch)


def statistics_of(array: _Array) -> Statistics:
    """The statistics of an array of any layout; of the absolute values where the numbers are complex."""
    if not _is_repeated(array):
        return merged(_of_piece(piece) for piece in pieces_of(array))
    found = merged(_of_piece(piece) for piece in pieces_of(once(array)))
    return repeated(found, array.size // once(array).size)


def _of_piece(piece: _Array) -> tuple[Statistics, int]:
    plain = _plain(piece)
    if plain.dtype.kind == "c":
        with np.errstate(all="ignore"):
            plain = _plain(np.abs(plain))
    memory, kind = _memory(plain)
    return statistics(address_of(memory), memory.size, kind), piece.size


def described_of(array: _Array) -> Description:
    """The statistics, the hash and the brief sketch of an array of any layout.

    No hash where its bits are not all its own.
    """
    kind = KIND_OF.get(array.dtype)
    if kind is not None and array.flags.c_contiguous and array.flags.aligned:
        return described(address_of(array), array.size, kind)
    return statistics_of(array), None if array.dtype.char in "gG" else _hash_of(array), _brief(array)


def _hash_of(array: _Array) -> str:
    """The hash of an array of any layout; what a broadcast one repeats is hashed once."""
    size = array.itemsize
    if not _is_repeated(array) or not array.dtype.isnative or any(stride % size for stride in array.strides):
        return hash_of_parts(pieces_of(array))
    plan = hash_plan(array.shape, [stride // size for stride in array.strides], size)
    parts = (_part_of(np.asarray(_Elements(array, view))) for view in views(plan))
    return kernels_hash.digits(joined(plan, parts), array.nbytes)


def _part_of(array: _Array) -> Part:
    pieces = pieces_of(array)
    return kernels_hash.chained(kernels_hash.part_at(address_of(piece), piece.nbytes) for piece in pieces)


class _Elements:
    """Some elements of an array as bytes, for np.asarray; holds the array."""

    def __init__(self, array: _Array, view: View) -> None:
        self.array = array
        size = array.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (address_of(array) + view.offset * size, True),
            "shape": view.shape,
            "strides": tuple(stride * size for stride in view.strides),
            "typestr": f"|V{size}",
        }


def once(array: _Array) -> _Array:
    """The view of an array with one of each element that a broadcast dimension repeats."""
    dims = zip(array.shape, array.strides, strict=True)
    return array[tuple(slice(0, 1) if size and not stride else slice(None) for size, stride in dims)]


def _is_repeated(array: _Array) -> bool:
    """Whether an array has so many elements, and repeats some, that they are described once."""
    return array.nbytes > PIECE and 0 in array.strides


def hash_of_parts(parts: Iterable[_Array]) -> str:
    """The hash of the elements of flat arrays; each but the last has whole blocks."""
    whole, size = kernels_hash.NOTHING, 0
    for part in parts:
        native = part.astype(part.dtype.newbyteorder("<"), copy=False)
        whole = whole.then(kernels_hash.part_at(address_of(native), native.nbytes))
        size += native.nbytes
    return kernels_hash.digits(whole, size)


def merged(parts: Iterable[tuple[Statistics, int]]) -> Statistics:
    """The statistics of a whole from those of its parts and how many elements each has."""
    found = [(stats, count) for stats, count in parts if stats.max is not None and count]
    if not found:
        return Statistics(None, None, None, None)
    if len(found) == 1:
        return found[0][0]
    everything = [stats for stats, _ in found]
    nan, inf = sum(stats.nan for stats in everything), sum(stats.inf for stats in everything)
    if nan:
        return Statistics(math.nan, math.nan, math.nan, math.nan, nan, inf)
    highest = max(stats.max for stats in everything if stats.max is not None)
    lowest = min(stats.min for stats in everything if stats.min is not None)
    if any(stats.mean is None or stats.norm is None for stats in everything):  # booleans
        return Statistics(highest, lowest, None, None)
    total = sum(count for _, count in found)
    mean = sum((stats.mean or 0.0) * count for stats, count in found) / total
    if not inf and not math.isfinite(mean):  # the sum left the range of a double
        mean = sum((stats.mean or 0.0) * (count / total) for stats, count in found)
    norm = math.hypot(*(stats.norm or 0.0 for stats in everything))
    return Statistics(highest, lowest, mean, norm, nan, inf)


def repeated(stats: Statistics, times: int) -> Statistics:
    """The statistics of a tensor that has each element so many times."""
    if times == 1:
        return stats
    norm = None if stats.norm is None else stats.norm * math.sqrt(times)
    return stats._replace(norm=norm, nan=stats.nan * times, inf=stats.inf * times)


def sketch(address: int, count: int, kind: str) -> bytes:
    """64 float32, linear in the tensor: the difference of two sketches estimates that of the tensors."""
    if _native is None:
        return sketch_numpy(address, count, kind)
    return _native.sketch(address, count, kind)


def sketch_of_parts(parts: Iterable[tuple[int, int, str, object]]) -> bytes:
    """The sketch of elements that lie in parts: address, count, kind, and whoever keeps the memory.

    Each part but the last has a multiple of SKETCH_SIZE elements.
    """
    sums = np.zeros((8, SKETCH_SIZE))
    first = 0
    for address, count, kind, _keeper in parts:
        if _native is None:
            add_elements(sums, address, count, kind, first)
        else:
            _native.sketch_add(address_of(sums), first, address, count, kind)
        first += count // SKETCH_SIZE
    return folded(sums) if _native is None else _native.sketch_end(address_of(sums))


def sketch_of(array: _Array) -> bytes:
    """The sketch of an array of any layout, its elements in row-major order; re, im, re, im where complex."""
    return sketch_of_parts(map(_real_numbers, pieces_of(array)))


def _real_numbers(piece: _Array) -> tuple[int, int, str, object]:
    plain = _plain(piece)
    memory, kind = _memory(plain.view(plain.real.dtype) if plain.dtype.kind == "c" else plain)
    return address_of(memory), memory.size, kind, memory


def brief(address: int, count: int, kind: str) -> bytes:
    """16 float32 like a sketch, of a tensor of `count` elements whose picked blocks lie at `address`."""
    if _native is None:
        return brief_numpy(address, count, kind)
    return _native.brief(address, count, kind)


def shortened(sketch: bytes) -> bytes:
    """The brief sketch of a tensor of at most BRIEF_ELEMENTS elements, from its sketch."""
    if len(sketch) == 4 * BRIEF_SIZE:
        return sketch
    sums: _Array = np.frombuffer(sketch, "<f4").astype(np.float64).reshape(-1, BRIEF_SIZE).sum(axis=0)
    return bytes(sums.astype("<f4"))


def is_sketched(kind: str) -> bool:
    """Whether tensors of a kind have a brief sketch: whole numbers say little by how far they are apart."""
    return kind in ("f2", "bf2", "f4", "f8", "b1")


def _brief(array: _Array) -> bytes | None:
    """The brief sketch of an array of any layout."""
    native = array.dtype.newbyteorder("=")
    kind = "bf2" if native.name == "bfloat16" else KIND_OF.get(native, "")
    if not array.size or not is_sketched(kind):
        return None
    values = np.ascontiguousarray(picked_of(array), native)
    return brief(address_of(values), array.size, kind)


def picked_of(array: _Array) -> _Array:
    """The elements of the picked blocks of an array, in a row."""
    places = picked_places(array.size)
    return array[np.unravel_index(places, array.shape)] if array.ndim else array.reshape(1)


def picked_places(count: int) -> npt.NDArray[np.int64]:
    """Where in a tensor of `count` elements, in row-major order, those of the picked blocks stand."""
    blocks = picked_blocks(count)[:, None] * SKETCH_SIZE
    places: npt.NDArray[np.int64] = (blocks + np.arange(SKETCH_SIZE)).reshape(-1)
    return places[: picked_elements(count)]


def pair(target: int, target_kind: str, golden: int, golden_kind: str, count: int) -> PairSums:
    """Two runs of `count` elements at these addresses, of whatever alignment; the caller keeps them alive."""
    if _native is None:
        return pair_numpy(target, target_kind, golden, golden_kind, count)
    return _native.pair(PairSums, target, target_kind, golden, golden_kind, count)


def native() -> Any:
    """The compiled kernels; None where they are not built."""
    return _native


def checksum(data: "Buffer") -> str:
    """CRC-32 of the bytes, as 8 hexadecimal digits."""
    return f"{crc32(data):08x}"


def checksum_of_parts(parts: "Iterable[Buffer]") -> str:
    """CRC-32 of bytes that lie in parts, as 8 hexadecimal digits."""
    value = 0
    for data in parts:
        value = crc32(data, value)
    return f"{value:08x}"


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
    if array.dtype in KIND_OF:
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


def pieces_of(array: _Array) -> Iterator[_Array]:
    """The elements in row-major order, in flat pieces of PIECE bytes and a shorter last one."""
    most = PIECE // array.itemsize
    if array.size <= most:
        yield np.ascontiguousarray(array).reshape(-1)
    elif array.flags.c_contiguous:
        flat = array.reshape(-1)
        yield from (flat[start : start + most] for start in range(0, array.size, most))
    else:
        yield from filled(np.empty(most, array.dtype), (box.reshape(-1) for box in boxes(array, most)))


def _memory(flat: _Array) -> tuple[_Array, str]:
    """The elements of a flat array as one aligned run of memory, and their kind."""
    return flat if flat.flags.aligned else flat.copy(), KIND_OF.get(flat.dtype, "bf2")


def address_of(array: _Array) -> int:
    """Where the elements of an array begin."""
    return int(array.__array_interface__["data"][0])  # array.ctypes.data costs a multiple
