"""A verdict in words: what differs at a place, and what that is beside."""

from __future__ import annotations

import math

from msprobe.analyse.distance import Distance
from msprobe.analyse.match import Pair
from msprobe.record import Leaf

OTHER_SHAPE = "its shape is"  # so such a reason begins


def off(error: float) -> str:
    if math.isinf(error):
        return "other NaN or infinities than in the golden run"
    return f"off by {error:.2g} of its size"


def told(pair: Pair, distance: Distance) -> str:
    """What differs."""
    ours, theirs = (None if place is None else place.leaf for place in (pair.target, pair.golden))
    if distance.seen == "shapes" and ours is not None and theirs is not None:
        return f"{OTHER_SHAPE} {list(ours.shape or ())}, in the golden run {list(theirs.shape or ())}"
    if not any(leaf is not None and leaf.is_tensor for leaf in (ours, theirs)):
        return f"this argument is {_value(ours)!r}, in the golden run {_value(theirs)!r}"
    if ours is None or theirs is None:
        return f"a tensor is given in the {'golden run' if ours is None else 'target'} only"
    return off(distance.error or 0.0)


def _value(leaf: Leaf | None) -> object:
    return None if leaf is None else leaf.value


def originated(pair: Pair, distance: Distance, inputs: str, tolerance: float) -> str:
    """`inputs`: what is to be said of them."""
    dtype = pair.place.leaf.dtype if pair.place.leaf else ""
    explained = f"rounding of {dtype} explains up to {tolerance:.2g}" if tolerance else "no rounding here"
    return f"{told(pair, distance)}; {inputs}, and {explained}"


def entered(pair: Pair, distance: Distance) -> str:
    if distance.seen in ("shapes", "values"):
        return told(pair, distance)
    return (
        f"{told(pair, distance)} already when it comes in, though nothing compared before it is: a "
        "parameter, data, or code that was not recorded or has no counterpart"
    )
