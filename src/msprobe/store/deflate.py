"""CRC-32 and the packing in zip files: checksums and unpacking by isal, several times as fast as zlib."""

from __future__ import annotations

from isal import igzip_lib
from isal.isal_zlib import crc32

from msprobe.kernels import pack as deflate

__all__ = ["crc32", "deflate", "inflate"]

_MOST_INFLATED = 1032  # bytes that one packed byte can stand for


def inflate(packed: memoryview, size: int) -> bytes:
    """The `size` bytes that were packed; ValueError if it is another number or damaged. Makes no more."""
    if size > _MOST_INFLATED * len(packed):
        raise ValueError("more is declared than can be in it")
    machine = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE)
    try:
        content = machine.decompress(packed, max(size, 1))
    except igzip_lib.IsalError as problem:  # type: ignore[misc]  # its stub calls the class an instance
        raise ValueError(str(problem)) from problem
    if len(content) != size:
        raise ValueError("less is in it than declared")
    return content
