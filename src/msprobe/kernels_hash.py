"""The hash of a tensor's bytes; docs/format.md defines it.

A part of a tensor is a map of hashes: the hash of what stands before it goes in, the hash up to its end comes
out. Maps of parts join, and a part that is repeated is hashed once.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

try:
    from msprobe._kernels import hash_part as _native_part
except ImportError:  # not built on this machine: numpy gives the same results, slower
    _native_part = None  # type: ignore[assignment]

_Words = npt.NDArray[np.uint64]

BLOCK = 4096  # bytes
WORDS = BLOCK // 8
SHIFT = 2  # keys between the first sum and the second
RADIX = 0xD1342543DE82EF95
MULTIPLIERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31

_SEED = int.from_bytes(b"msprobe2", "big")
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_BLOCKS_AT_ONCE = 64  # bounds the memory


def mix(number: int) -> int:
    """Return a number of 64 bits whose every bit depends on every bit of the given one; 0 for 0."""
    for shift, factor in MULTIPLIERS:
        number = (number ^ (number >> shift)) * factor & _MASK
    return number ^ (number >> LAST_SHIFT)


KEYS: _Words = np.array([mix(_SEED + i * _GOLDEN & _MASK) for i in range(1, WORDS + SHIFT + 1)], np.uint64)


class Part(NamedTuple):
    """What a part of a tensor does to the hash of all before it: hash -> factor * hash + term, in 64 bits."""

    factor: int
    term: int

    def then(self, other: Part) -> Part:
        """Return the map of this part and the other one after it."""
        return Part(self.factor * other.factor & _MASK, (self.term * other.factor + other.term) & _MASK)

    def repeated(self, times: int) -> Part:
        """Return the map of this part so many times in a row."""
        result, power = NOTHING, self
        while times:
            if times & 1:
                result = result.then(power)
            power, times = power.then(power), times >> 1
        return result


NOTHING = Part(1, 0)


def part(term: int, size: int) -> Part:
    """Return the map of a part of `size` bytes with this hash of its own."""
    return Part(pow(RADIX, -(-size // BLOCK), 2**64), term)


def chained(parts: Iterable[Part]) -> Part:
    """Return the map of parts one after the other."""
    return functools.reduce(Part.then, parts, NOTHING)


def part_at(address: int, size: int) -> Part:
    """Return the map of the bytes at an address. Only the last part of a tensor may have no whole blocks."""
    if _native_part is not None:
        return part(_native_part(address, size), size)
    return part(hash_part_numpy(address, size), size)


def digits(whole: Part, size: int) -> str:
    """Return the hash of a tensor of `size` bytes as it is written: 16 hexadecimal digits."""
    return f"{mix((whole.term + (size + 1) * _GOLDEN) & _MASK):016x}"


# ---- the same in numpy ----


def hash_part_numpy(address: int, size: int) -> int:
    """Return the hash of the bytes at an address, where nothing stands before them."""
    done = NOTHING
    for start in range(0, size, BLOCK * _BLOCKS_AT_ONCE):
        length = min(size - start, BLOCK * _BLOCKS_AT_ONCE)
        data = np.frombuffer(memoryview((ctypes.c_char * length).from_address(address + start)), np.uint8)
        for values in _blocks(data):
            done = done.then(Part(RADIX, int(values)))
    return done.term


def _blocks(data: npt.NDArray[np.uint8]) -> list[Any]:
    whole = data.size // BLOCK * BLOCK
    found: list[Any] = _values(data[:whole].view("<u8").reshape(-1, WORDS)).tolist()
    if whole < data.size:
        rest = np.zeros(-(-(data.size - whole) // 8) * 8, np.uint8)
        rest[: data.size - whole] = data[whole:]
        found += _values(rest.view("<u8").reshape(1, -1)).tolist()
    return found


def _values(words: _Words) -> _Words:
    """Return the value of each block; the words of a block are a row."""
    first = _sums(words, KEYS[: words.shape[1]])
    second = _sums(words, KEYS[SHIFT : SHIFT + words.shape[1]])
    return _mixed(_mixed(first) + second)


def _sums(words: _Words, keys: _Words) -> _Words:
    low = (words & _LOW) + (keys & _LOW) & _LOW
    high = (words >> _HALF) + (keys >> _HALF) & _LOW
    sums: _Words = (low * high).sum(axis=1, dtype=np.uint64)
    return sums


def _mixed(numbers: _Words) -> _Words:
    for shift, factor in MULTIPLIERS:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(LAST_SHIFT))
