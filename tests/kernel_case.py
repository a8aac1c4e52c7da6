"""Numbers of every kind as arrays in memory, and both implementations of the kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from msprobe import kernels

FLOATS = ["f2", "bf2", "f4", "f8"]
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
DTYPES = {kind: kind for kind in [*INTEGERS, "f2", "f4", "f8"]} | {"bf2": "u2", "b1": "bool"}
INF_BITS = {"f2": 0x7C00, "bf2": 0x7F80, "f4": 0x7F800000, "f8": 0x7FF0000000000000}

NATIVE: Any = vars(kernels)["_native"]
compiled = pytest.mark.skipif(NATIVE is None, reason="the C extension is not built here")
IMPLEMENTATIONS = [pytest.param("compiled", marks=compiled), "numpy"]


def numbers(array: np.ndarray, kind: str) -> list[Any]:
    """The elements as exact Python numbers."""
    if kind == "bf2":
        array = (array.astype("u4") << 16).view("f4")
    return list(array.tolist())


def special_bits(kind: str) -> list[int]:
    """Zero, least subnormal, one below and at the least normal, largest, Inf, two NaNs; of both signs."""
    inf = INF_BITS[kind]
    size = 8 * np.dtype(DTYPES[kind]).itemsize
    one_step = inf & -inf  # the lowest bit of the exponent
    magnitudes = [0, 1, one_step - 1, one_step, inf - 1, inf, inf + 1, inf | (one_step >> 1)]
    return [sign | magnitude for sign in (0, 1 << (size - 1)) for magnitude in magnitudes]


def from_bits(bits: Sequence[int], kind: str) -> np.ndarray:
    dtype = np.dtype(DTYPES[kind])
    return np.array(bits, dtype=f"u{dtype.itemsize}").view(dtype)
