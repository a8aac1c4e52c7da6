"""Whether two leaves show the same values, and whether some add up to another."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from msprobe.dtypes import SINGLE, roundoff
from msprobe.kernels import Statistics
from msprobe.record import Leaf

_MARGIN = 8.0  # times the rounding of a sum: by how much the mean of a sum may miss the sum of the means


def is_telling(leaf: Leaf) -> bool:
    """Whether it has values that others are not likely to have too."""
    stats = leaf.stats
    if not isinstance(stats, Statistics) or not stats.norm:
        return False
    return stats.max != stats.min or (leaf.shape == () and stats.max != 1)


def key_of(leaf: Leaf) -> Hashable:
    """What tells the values of a leaf from others."""
    return leaf.shape, leaf.dtype, leaf.stats, leaf.hash, leaf.checksum


def is_equal(ours: Leaf, theirs: Leaf) -> bool:
    """Whether two leaves show the same content, as far as they tell."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return False
    for here, there in ((ours.hash, theirs.hash), (ours.checksum, theirs.checksum)):
        if here is not None and there is not None:
            return here == there
    one, other = ours.statistics, theirs.statistics
    if one is None or other is None:
        return one is other
    return all(a == b or (a != a and b != b) for a, b in zip(one, other, strict=True))


def adds_up(total: Leaf, shares: Sequence[Leaf]) -> bool:
    """Whether the mean of a sum is the sum of the means, as far as rounding lets it be."""
    if any(share.shape != total.shape for share in shares):
        return False
    known = [leaf.statistics for leaf in (total, *shares)]
    means = [stats.mean for stats in known if stats is not None and stats.mean is not None]
    norms = [stats.norm for stats in known if stats is not None and stats.norm is not None]
    if len(means) < len(known) or len(norms) < len(known) or not all(map(math.isfinite, (*means, *norms))):
        return False
    typical = sum(norms) / math.sqrt(max(total.elements, 1))
    unit = roundoff(total.dtype) or SINGLE
    return abs(means[0] - sum(means[1:])) <= _MARGIN * unit * typical
