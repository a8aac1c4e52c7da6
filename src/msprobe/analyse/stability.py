"""How far two answers of one call are apart, and how far they may be, by the rules of free_benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from msprobe.perturb import NOISE
from msprobe.store.dtypes import Array, TensorData, as_float, bits_of

LIMITS: Mapping[str, float] = MappingProxyType({"float16": 1.002, "bfloat16": 1.004})
LIMIT = 1.0002  # of every other dtype
EXACT = 1.0  # of a call that is made again with the same inputs

GRADIENT_FLOOR = 1e-3
_UNKNOWN_NOISE = 1e-8
_AT_ONCE = 1 << 18  # elements, so that what is computed of them stays in the cache


class Difference(NamedTuple):
    """What lies between two answers."""

    ratio: float  # the largest factor between two elements, from 1 on; inf where no factor says it
    max_rel: float | None  # the largest relative error, as it is shown; None where no number says it
    beyond: int  # elements that are further apart than allowed
    size: int
    consistent: bool
    remark: str = ""


SIGN = "the sign of an element changes"
SHAPE = "the shape changes"
NOT_FINITE = "an element is finite in one of them only"


def values_of(tensor: TensorData) -> Array:
    """The elements in a row, as numbers that can be divided; a complex number is two of them."""
    array = as_float(bits_of(tensor), tensor.dtype)
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def limit_of(dtype: str) -> float:
    return LIMITS.get(dtype, LIMIT)


def floor_of(dtype: str, *, of_gradients: bool) -> float:
    """Below this size values are not told apart; `dtype` is that of the second answer."""
    return GRADIENT_FLOOR if of_gradients else math.sqrt(NOISE.get(dtype, _UNKNOWN_NOISE))


def by_ratio(original: Array, second: Array, floor: float, limit: float) -> Difference:
    """The rule for two answers of one device: no element changes its sign or grows by more than `limit`."""
    if original.size != second.size:
        return Difference(math.inf, None, original.size, original.size, False, SHAPE)
    largest, beyond, flips, unlike = 1.0, 0, False, 0
    with np.errstate(all="ignore"):
        for one, other in _parts(original, second):
            finite, odd = _finite(one, other)
            unlike += odd
            one, other = one[finite], other[finite]
            if not one.size:
                continue
            flipped = one * other < -(floor**2)
            ratios = np.maximum(np.abs(one), floor) / np.maximum(np.abs(other), floor)
            largest = max(largest, float(ratios.max()), float(1 / ratios.min()))
            inside = (ratios <= limit) & (1 / ratios <= limit) & ~flipped
            beyond += int(inside.size - np.count_nonzero(inside))
            flips = flips or bool(flipped.any())
    beyond += unlike
    if unlike or flips:
        shown = math.inf if unlike else None
        remark = NOT_FINITE if unlike else SIGN
        return Difference(math.inf, shown, beyond, original.size, False, remark)
    return Difference(largest, largest - 1, beyond, original.size, largest <= limit)


class _Bounds(NamedTuple):
    """How far an answer may be from one that was computed on the host, in float32 or more."""

    error: float  # of each element: absolute where it is smaller than one, else relative
    balance: float = 1e-4  # of the mean error, with its sign


_BOUNDS = {"float16": _Bounds(2.0**-11), "bfloat16": _Bounds(2.0**-8)}
_DEFAULT_BOUNDS = _Bounds(2.0**-14)


def by_error(original: Array, reference: Array, dtype: str) -> Difference:
    """The rule for an answer of another device; `dtype` is that of the original."""
    if original.size != reference.size:
        return Difference(math.inf, None, original.size, original.size, False, SHAPE)
    bounds = _BOUNDS.get(dtype, _DEFAULT_BOUNDS)
    largest, total, beyond, unlike = 0.0, 0.0, 0, 0
    with np.errstate(all="ignore"):
        for one, other in _parts(original, reference):
            finite, odd = _finite(one, other)
            unlike += odd
            one, other = one[finite], other[finite]
            errors, sizes = one - other, np.abs(other)
            scaled = np.abs(errors) / np.where(np.abs(one) < 1, 1.0, sizes)
            largest = max(largest, float(scaled.max(initial=0.0)))
            beyond += int(np.count_nonzero(~(scaled <= bounds.error)))
            total += float((errors / np.maximum(sizes, 1.0)).sum())
    if unlike:
        return Difference(math.inf, math.inf, beyond + unlike, original.size, False, NOT_FINITE)
    balance = abs(total) / original.size if original.size else 0.0
    consistent = largest <= bounds.error and balance <= bounds.balance
    remark = "" if balance <= bounds.balance else f"the mean error is {balance:g}"
    return Difference(1 + largest, largest, beyond, original.size, consistent, remark)


def _parts(one: Array, other: Array) -> Iterator[tuple[Array, Array]]:
    for start in range(0, one.size, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        yield one[part].astype(np.float64), other[part].astype(np.float64)


def _finite(one: Array, other: Array) -> tuple[Array, int]:
    """Which elements are finite in both, and how many of the others are not alike."""
    finite = np.isfinite(one) & np.isfinite(other)
    alike = finite | (one == other) | (np.isnan(one) & np.isnan(other))
    return finite, int(one.size - np.count_nonzero(alike))
