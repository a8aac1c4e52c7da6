"""How a tensor lies in memory: what is stored, what is repeated, and in which pieces it is read.

A view may have far more elements than memory behind it: an expanded one repeats what is stored. Whatever has
to be copied to be described is copied in pieces of at most PIECE bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from msprobe.kernels_hash import BLOCK, NOTHING, Part

PIECE = 1 << 21  # bytes; a multiple of BLOCK, and in elements of any dtype of the blocks of a sketch


class View(NamedTuple):
    """Some elements of a tensor: sizes and strides, outermost first, from an offset, all in elements."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class Repeat(NamedTuple):
    """Views that follow each other over and over."""

    times: int
    plan: Plan


Plan: TypeAlias = "list[View | Repeat]"


def stored(shape: Sequence[int], strides: Sequence[int]) -> tuple[View, int]:
    """Return the elements without those that an expanded dimension repeats, and how often each occurs."""
    dims = [(size, stride) for size, stride in zip(shape, strides, strict=True) if stride or not size]
    times = math.prod(shape) // math.prod(size for size, _ in dims) if math.prod(shape) else 1
    return _view(0, dims), times


def hash_plan(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> Plan:
    """Return what to hash of a tensor, in row-major order, so that little is hashed more than once.

    Every view but the last one of all has whole blocks.
    """
    return _planned(0, _joined_dims(shape, strides), itemsize)


def _planned(offset: int, dims: list[tuple[int, int]], itemsize: int) -> Plan:
    whole: Plan = [_view(offset, dims)]
    size = itemsize * math.prod(count for count, _ in dims)
    if size <= PIECE or all(stride for _, stride in dims):
        return whole
    (count, stride), *inner = dims
    unit = size // count
    if stride:
        if unit % BLOCK or unit <= PIECE:
            return whole
        return [node for i in range(count) for node in _planned(offset + i * stride, inner, itemsize)]
    group = BLOCK // math.gcd(unit, BLOCK)  # units that have whole blocks together
    if group == 1:
        return [Repeat(count, _planned(offset, inner, itemsize))]
    times, rest = divmod(count, group)
    if times < 2:
        return whole
    repeated: Plan = [Repeat(times, [_view(offset, [(group, 0), *inner])])]
    return [*repeated, _view(offset, [(rest, 0), *inner])] if rest else repeated


def _joined_dims(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes and strides, where dimensions that are walked like one are one."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == size * stride:
            dims[-1] = dims[-1][0] * size, stride
        else:
            dims.append((size, stride))
    return dims


def _view(offset: int, dims: Sequence[tuple[int, int]]) -> View:
    return View(offset, tuple(size for size, _ in dims), tuple(stride for _, stride in dims))


def views(plan: Plan) -> Iterator[View]:
    """Each view of a plan, once."""
    for node in plan:
        if isinstance(node, Repeat):
            yield from views(node.plan)
        else:
            yield node


def boxes(array: Any, most: int) -> Iterator[Any]:
    """Yield an array or tensor in row-major order, cut along its outer dimensions into so many elements."""
    elements = math.prod(array.shape)
    if elements <= most:
        yield array
        return
    rows = most * array.shape[0] // elements
    for start in range(0, array.shape[0], rows or 1):
        if rows:
            yield array[start : start + rows]
        else:
            yield from boxes(array[start], most)


def filled(buffer: Any, flats: Iterable[Any]) -> Iterator[Any]:
    """Yield the buffer, filled with the elements of flat arrays or tensors, as often as needed."""
    count = 0
    for flat in flats:
        start = 0
        while start < len(flat):
            part = flat[start : start + len(buffer) - count]
            buffer[count : count + len(part)] = part
            start, count = start + len(part), count + len(part)
            if count == len(buffer):
                yield buffer
                count = 0
    if count:
        yield buffer[:count]


def joined(plan: Plan, parts: Iterator[Part]) -> Part:
    """Return the hash of what was planned; the parts are those of the views, in order."""
    whole = NOTHING
    for node in plan:
        if isinstance(node, Repeat):
            whole = whole.then(joined(node.plan, parts).repeated(node.times))
        else:
            whole = whole.then(next(parts))
    return whole
