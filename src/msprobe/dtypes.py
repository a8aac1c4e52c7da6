"""How far each dtype rounds, and the numbers that follow from a dtype."""

from __future__ import annotations

import math
from functools import lru_cache

from msprobe.record import number_type

# Half the distance from 1 to the next larger number, by the beginning of the dtype's name.
_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "complex128": 2.0**-53,
    "complex64": 2.0**-24,
    "complex32": 2.0**-11,
}
# The largest and the smallest normal number of each dtype.
_RANGE = {
    "float64": ((2 - 2.0**-52) * 2.0**1023, 2.0**-1022),
    "float32": ((2 - 2.0**-23) * 2.0**127, 2.0**-126),
    "float16": (65504.0, 2.0**-14),
    "bfloat16": ((2 - 2.0**-7) * 2.0**127, 2.0**-126),
}
SINGLE = 2.0**-24  # of float32, in which hardware adds up whatever is less precise
PLAIN = 2.0**-24  # a Python float was often computed as a float32


@lru_cache(maxsize=256)
def roundoff(dtype: str | None) -> float:
    """Return the unit roundoff of a dtype; 0 for whole numbers and truth values, which do not round."""
    if dtype is None:
        return PLAIN
    name = number_type(dtype)
    for known, unit in _ROUNDOFF.items():
        if name.startswith(known):
            return unit
    return 0.0


def smallest_step(dtype: str) -> float:
    """Return the distance between neighbouring subnormal numbers of a dtype."""
    return _RANGE[dtype][1] * 2 * _ROUNDOFF[dtype]


def largest_number(dtype: str) -> float:
    """Return the largest finite number of a dtype."""
    return _RANGE[dtype][0]


def _limits() -> list[tuple[float, ...]]:
    """The numbers that code takes from dtypes, such as finfo(dtype).min: each with its like in others."""
    largest = [pair[0] for pair in _RANGE.values()]
    smallest = [pair[1] for pair in _RANGE.values()]
    eps = [2 * _ROUNDOFF[name] for name in _RANGE]
    return [
        (*largest, math.inf),
        (*(-number for number in largest), -math.inf),
        tuple(number / 2 for number in largest),
        tuple(-number / 2 for number in largest),
        tuple(smallest),
        tuple(eps),
    ]


_LIMITS = _limits()


def are_same_limit(one: float, other: float) -> bool:
    """Return whether two numbers are the same limit of two dtypes, such as finfo(dtype).min."""
    return any(_is_among(one, limits) and _is_among(other, limits) for limits in _LIMITS)


def _is_among(number: float, limits: tuple[float, ...]) -> bool:
    return any(number == limit or math.isclose(number, limit, rel_tol=2.0**-8) for limit in limits)
