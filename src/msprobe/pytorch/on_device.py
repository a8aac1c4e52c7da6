"""The description of a tensor as numbers that stay on its device until many are fetched."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from msprobe import kernels, kernels_hash, kernels_layout
from msprobe.kernels import BRIEF_SIZE, Description, Statistics
from msprobe.kernels_hash import BLOCK, KEYS, LAST_SHIFT, MULTIPLIERS, RADIX, SHIFT, WORDS, Part
from msprobe.kernels_layout import Plan
from msprobe.pytorch.pieces import KINDS, WIDER, elements_at, hashed_tensors, in_storage, part_of, pieces

# A piece takes some dozens of launches, so pieces are larger than on the host. What is computed from one
# takes up to five times its memory; docs/format.md promises that it is at most 96 MB.
PIECE = 1 << 24  # bytes
_MOST_WIDENED = 1 << 22  # elements of a piece whose statistics are computed in float32 or float64

_ROW = 1024

_UINT64 = getattr(torch, "uint64", None)
_WIDE_UNSIGNED = frozenset(getattr(torch, name) for name in ("uint16", "uint32") if hasattr(torch, name))
_TOP_BIT = -(2**63)
_LOW = 0xFFFFFFFF


class _Hashed(NamedTuple):
    """A tensor whose bytes are hashed."""

    plan: Plan
    itemsize: int
    size: int  # bytes


class Numbers(NamedTuple):
    """What a device computed of a tensor, and what it means."""

    row: Tensor  # float64: statistics of each piece, the hash of each view in two halves, the brief sketch
    dtype: torch.dtype
    counts: tuple[int, ...]  # elements of each piece that has statistics
    times: int  # how often each of them occurs in the tensor
    zeros: int  # elements beside them that are 0
    hashed: tuple[_Hashed, ...]  # what the hash is of
    is_sketched: bool

    def read(self, numbers: Iterator[float]) -> Description:
        """Return the description from the numbers of the row, which are on the host now."""
        width = 7 if self.dtype in WIDER or self.dtype.is_floating_point else 6
        found = [(_from_device(self.dtype, list(islice(numbers, width))), count) for count in self.counts]
        if self.zeros:
            zero = _from_device(self.dtype, [0.0] * width)
            found.append((zero, self.zeros))
        stats = kernels.repeated(kernels.merged(found), self.times)
        whole = kernels_hash.NOTHING
        for plan, itemsize, _ in self.hashed:
            whole = whole.then(kernels_layout.joined(plan, _parts(plan, itemsize, numbers)))
        digest = kernels_hash.digits(whole, sum(each.size for each in self.hashed)) if self.hashed else None
        sums = list(islice(numbers, BRIEF_SIZE if self.is_sketched else 0))
        return stats, digest, np.array(sums, "<f4").tobytes() if sums else None


def _parts(plan: Plan, itemsize: int, numbers: Iterator[float]) -> Iterator[Part]:
    """Yield the hash of each view from its two halves."""
    for view in kernels_layout.views(plan):
        term = (int(next(numbers)) << 32 | int(next(numbers))) % 2**64
        yield kernels_hash.part(term, view.elements * itemsize)


def compute(content: Tensor) -> Numbers:
    """Start computing on the device; the content has at least one element."""
    zeros = 0
    content = content.coalesce() if content.layout is torch.sparse_coo else content
    of_hash = hashed_tensors(content)
    is_sketched = content.layout is torch.strided and kernels.is_sketched(KINDS.get(content.dtype, ""))
    if content.layout is not torch.strided:
        values = content.values()
        zeros, content = content.numel() - values.numel(), values
    view, times = kernels_layout.stored(content.shape, content.stride())
    rows, counts = [], []
    most = min(_MOST_WIDENED, PIECE // content.element_size())
    found = pieces(part_of(content, view) if times > 1 else content, most) if content.numel() else ()
    for piece in found:  # a sparse tensor may store nothing
        rows.append(_statistics(piece if content.dim() else piece.view(())))
        counts.append(piece.numel())
    hashed = tuple(_hashed(tensor) for tensor in of_hash)
    halves = [
        half
        for tensor, (plan, _, _) in zip(of_hash, hashed, strict=True)
        for view in kernels_layout.views(plan)
        for half in _halves(_hash_term_of(part_of(tensor, view)))
    ]
    if halves:
        rows.append(torch.stack(halves).double())
    if is_sketched:
        rows.append(_brief_sketch(content))
    dtype = torch.float32 if content.is_quantized else content.dtype
    return Numbers(torch.cat(rows), dtype, tuple(counts), times, zeros, hashed, is_sketched)


def _hashed(tensor: Tensor) -> _Hashed:
    size = tensor.element_size()
    plan = kernels_layout.hash_plan(tensor.shape, tensor.stride(), size)
    return _Hashed(plan, size, tensor.numel() * size)


def _brief_sketch(content: Tensor) -> Tensor:
    places, signs = _brief_plan(tuple(content.shape), content.stride(), content.device)
    values = elements_at(content, places)
    values = values if values.dtype is torch.float64 else values.float()
    return torch.where(values.isfinite(), values * signs, 0.0).sum(1).double()


@functools.lru_cache(maxsize=64)
def _brief_plan(
    shape: tuple[int, ...], strides: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Where the elements of each sum lie, and their signs."""
    places, signs = kernels.brief_plan(math.prod(shape))
    return torch.from_numpy(in_storage(places, shape, strides)).to(device), torch.from_numpy(signs).to(device)


# ---- statistics ----


def _statistics(values: Tensor) -> Tensor:
    """The statistics of a piece as numbers for _from_device()."""
    values = values.to(WIDER[values.dtype]) if values.dtype in WIDER else values
    values = values.abs() if values.is_complex() else values
    if not values.is_floating_point():
        return _of_whole_numbers(values)
    values = values if values.dtype is torch.float64 else values.float()
    smallest, largest = torch.aminmax(values)
    limits = torch.finfo(values.dtype)
    # A power of two, so that dividing by it rounds nothing, and squares and sums stay within the dtype.
    scale = torch.maximum(largest.abs(), smallest.abs()).clamp(limits.tiny, limits.max / 4)
    scale = scale.log2().floor().exp2()
    scaled = values / scale
    parts = torch.stack([largest, smallest, scaled.mean(), _norm(scaled), scale])
    counts = torch.stack([values.isnan().sum(), values.isinf().sum()])
    return torch.cat([parts.double(), counts.double()])


def _of_whole_numbers(values: Tensor) -> Tensor:
    smallest, largest = _ends(values)
    values = values.double()
    ends = [*_halves(largest), *_halves(smallest)]
    return torch.cat([torch.stack(ends).double(), torch.stack([values.mean(), _norm(values)])])


def _halves(number: Tensor) -> tuple[Tensor, Tensor]:
    """One float64 does not hold 64 bits."""
    return number >> 32, number & _LOW


def _ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest, in the bits of int64; torch orders no unsigned numbers but bytes."""
    if values.dtype is _UINT64:
        low, high = torch.aminmax(values.view(torch.int64) ^ _TOP_BIT)  # which has the same order
        return low ^ _TOP_BIT, high ^ _TOP_BIT
    low, high = torch.aminmax(values.long() if values.dtype in _WIDE_UNSIGNED else values)
    return low.long(), high.long()


def _norm(values: Tensor) -> Tensor:
    """Return the norm; in rows first, because some devices add up millions of squares one after another."""
    if not values.dim():
        return values
    whole = values.numel() // _ROW * _ROW
    rows = torch.linalg.vector_norm(values[:whole].view(-1, _ROW), dim=1)
    rest = torch.linalg.vector_norm(values[whole:])
    norm: Tensor = torch.linalg.vector_norm(torch.cat([rows, rest.view(1)])) if whole else rest
    return norm


def _from_device(dtype: torch.dtype, numbers: list[float]) -> Statistics:
    if dtype in WIDER or dtype.is_floating_point:
        largest, smallest, mean, norm, scale, nan, inf = numbers
        return Statistics(largest, smallest, mean * scale, norm * scale, int(nan), int(inf))
    *halves, mean, norm = numbers
    high_largest, low_largest, high_smallest, low_smallest = map(int, halves)
    ends = (high_largest << 32) + low_largest, (high_smallest << 32) + low_smallest
    if dtype is _UINT64:
        return Statistics(ends[0] % 2**64, ends[1] % 2**64, mean, norm)
    if dtype is torch.bool:
        return Statistics(bool(ends[0]), bool(ends[1]), None, None)
    return Statistics(*ends, mean, norm)


# ---- hash; docs/format.md defines it ----


def _hash_term_of(view: Tensor) -> Tensor:
    """Return the hash of a view, where nothing stands before it."""
    size = view.element_size()
    terms = [hash_term(piece) for piece in pieces(view, PIECE // size)]
    if len(terms) == 1:
        return terms[0]
    last = view.numel() * size - (len(terms) - 1) * PIECE
    return (torch.stack(terms) * _weights(len(terms), -(-last // BLOCK), view.device)).sum()


@functools.lru_cache(maxsize=64)
def _weights(count: int, last: int, device: torch.device) -> Tensor:
    """The power of the radix by which the hash of each piece counts, if the last one has `last` blocks."""
    blocks = [last + after * (PIECE // BLOCK) for after in range(count - 1)]
    powers = [_signed(pow(RADIX, number, 2**64)) for number in (*reversed(blocks), 0)]
    return torch.tensor(powers, dtype=torch.int64).to(device)


def hash_term(piece: Tensor) -> Tensor:
    """Return the hash of a flat piece, where nothing stands before it: one int64, in which 64 bits wrap."""
    data = piece.view(torch.uint8)
    data = data.clone() if data.storage_offset() % 8 else data  # else torch does not read it as words
    whole = data.numel() // BLOCK * BLOCK
    values = [_values(data[:whole].view(torch.int64).view(-1, WORDS))] if whole else []
    if whole < data.numel():
        rest = data.new_zeros(-(-(data.numel() - whole) // 8) * 8)
        rest[: data.numel() - whole] = data[whole:]
        values.append(_values(rest.view(torch.int64).view(1, -1)))
    if not values:
        return torch.zeros((), dtype=torch.int64, device=piece.device)
    blocks = torch.cat(values)
    return (blocks * _powers(piece.device)[-blocks.numel() :]).sum()


def _values(words: Tensor) -> Tensor:
    """Return the value of each block; the words of a block are a row."""
    keys = _keys(words.device)
    count = words.shape[1]
    first, second = (_sums(words, keys[start : start + count]) for start in (0, SHIFT))
    return _mixed(_mixed(first) + second)


def _sums(words: Tensor, keys: Tensor) -> Tensor:
    low = (words & _LOW).add_(keys & _LOW).bitwise_and_(_LOW)
    high = (words >> 32).add_(keys >> 32).bitwise_and_(_LOW)
    return low.mul_(high).sum(1)


def _mixed(numbers: Tensor) -> Tensor:
    for shift, factor in MULTIPLIERS:
        numbers = (numbers ^ _shifted(numbers, shift)) * _signed(factor)
    return numbers ^ _shifted(numbers, LAST_SHIFT)


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """Shift to the right without the sign, which torch would repeat."""
    return (numbers >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


@functools.cache
def _keys(device: torch.device) -> Tensor:
    return torch.from_numpy(KEYS.view(np.int64).copy()).to(device)


@functools.cache
def _powers(device: torch.device) -> Tensor:
    """Powers of the radix for the blocks of a piece: the last block has the power 0."""
    powers = [_signed(pow(RADIX, i, 2**64)) for i in range(PIECE // BLOCK)]
    return torch.tensor(powers[::-1], dtype=torch.int64).to(device)
