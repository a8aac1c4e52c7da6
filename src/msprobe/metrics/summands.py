"""How many numbers a call may add up for one number of its result, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msprobe.record import Leaf

_MOST_SUMMANDS = 2**20  # nobody adds more in a row: larger sums are made of partial sums


def summands(leaves: Iterable[Leaf | None], *, is_gradient: bool) -> int:
    """Return how many numbers a call may have added up for one of its result, from the shapes it saw.

    A matrix product of n x k and k x m numbers adds k, a normalisation a row; the gradient of a weight is a
    sum over the whole batch, which is all dimensions but the last.
    """
    shapes = (leaf.shape for leaf in leaves if leaf is not None and leaf.shape)
    return summands_of(shapes, is_gradient=is_gradient)


def summands_of(shapes: Iterable[tuple[int, ...]], *, is_gradient: bool = True) -> int:
    """Return the same from shapes alone."""
    most = 1
    for shape in filter(None, shapes):
        most = max(most, *shape)
        if is_gradient:
            most = max(most, math.prod(shape) // (shape[-1] or 1))
    return min(most, _MOST_SUMMANDS)
