"""CRC-32 and deflate: by isal, several times as fast as zlib, with the vector registers left clean.

isal returns with the upper halves of the vector registers in use. On some processors every SSE instruction
that follows is then several times as slow, in training too, until somebody clears them. No other module
imports isal.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Protocol

from isal import igzip_lib, isal_zlib

if TYPE_CHECKING:
    from typing_extensions import Buffer

try:
    from msprobe._kernels import clear_upper
except ImportError:  # not built on this machine: nothing clears the registers, so isal is not called
    clear_upper = None  # type: ignore[assignment]

__all__ = ["Packer", "compress", "crc32", "inflate", "packer"]

_MOST_INFLATED = 1032  # bytes that one packed byte can stand for
_DENSEST = 3  # of isal's levels


class Packer(Protocol):
    """Packs a stream of bytes piece by piece."""

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class _IsalPacker:
    def __init__(self) -> None:
        self._packer = isal_zlib.compressobj(1, isal_zlib.DEFLATED, -zlib.MAX_WBITS)

    def compress(self, data: bytes, /) -> bytes:
        packed = self._packer.compress(data)
        clear_upper()
        return packed

    def flush(self) -> bytes:
        packed = self._packer.flush()
        clear_upper()
        return packed


def crc32(data: Buffer, start: int = 0) -> int:
    """Return the CRC-32 of the bytes; `start` is that of the bytes before them."""
    if clear_upper is None:
        return zlib.crc32(data, start)
    value = isal_zlib.crc32(data, start)
    clear_upper()
    return value


def packer() -> Packer:
    """Return a packer that makes the format of deflate, without a header."""
    return zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS) if clear_upper is None else _IsalPacker()


def compress(content: bytes) -> bytes:
    """Return the bytes in the format of zlib."""
    if clear_upper is None:
        return zlib.compress(content)
    packed = isal_zlib.compress(content, _DENSEST)
    clear_upper()
    return packed


def inflate(packed: memoryview, size: int) -> bytes:
    """Return the `size` bytes that were packed; ValueError if they are damaged or of another number."""
    if size > _MOST_INFLATED * len(packed):
        raise ValueError("more is declared than can be in it")
    try:
        content = _inflate(packed, max(size, 1))  # makes no more than that
    except (igzip_lib.IsalError, zlib.error) as problem:  # type: ignore[misc]  # isal's stub is wrong
        raise ValueError(str(problem)) from problem
    if len(content) != size:
        raise ValueError("less is in it than declared")
    return content


def _inflate(packed: memoryview, most: int) -> bytes:
    if clear_upper is None:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, most)
    try:
        return igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE).decompress(packed, most)
    finally:
        clear_upper()
