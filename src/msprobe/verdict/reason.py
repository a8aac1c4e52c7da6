"""A verdict in words: what differs, by how much, and what that is beside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msprobe.name import FORWARD
from msprobe.pairing.match import Pair
from msprobe.plural import counted
from msprobe.record import Leaf
from msprobe.verdict.difference import Difference

if TYPE_CHECKING:
    from msprobe.verdict.directions import Test
    from msprobe.verdict.sources import Seen

OTHER_SHAPE = "its shape is"  # so such a reason begins
_FAR = 9.0  # ten times as large


def off(error: float) -> str:
    if math.isinf(error):
        return "NaN or infinities where the golden run has none, or the reverse"
    return f"off by {error:.2g} of its size"


def within(error: float, tolerance: float) -> str:
    return f"{off(error)}; rounding explains up to {tolerance:.2g}"


def what(pair: Pair, value: Difference) -> str:
    """What differs."""
    ours, theirs = (None if place is None else place.leaf for place in (pair.target, pair.golden))
    if value.sight == "shape" and ours is not None and theirs is not None:
        return f"{OTHER_SHAPE} {list(ours.shape or ())}, in the golden run {list(theirs.shape or ())}"
    if value.sight == "one side" and (ours is None or theirs is None):
        return _given_once(pair)
    if not all(leaf is not None and leaf.is_tensor for leaf in (ours, theirs)):
        return f"this argument is {_value(ours)}, in the golden run {_value(theirs)}"
    if value.is_moved:
        return "the same numbers at other positions"
    if value.unit == 0 and value.unequal is not None and value.numbers:
        about = "" if value.sight == "content" else "about "
        verb = "differs" if value.unequal == 1 else "differ"
        return f"{about}{value.unequal} of its {counted(value.numbers, 'number')} {verb}"
    if value.error == 0 and value.is_equal is False:
        return "its bits differ, though max, min, mean and norm agree"
    if _is_far_larger(value):
        return f"{1 + (value.scale or 0.0):.4g} times as large as in the golden run"
    return off(value.relative)


def _is_far_larger(value: Difference) -> bool:
    """Whether the relative error says less than the factor, as that of gradients of a scaled loss."""
    return value.scale is not None and _FAR <= value.scale < math.inf and value.is_float


def _given_once(pair: Pair) -> str:
    """What only one run has."""
    is_ours = pair.target is not None and pair.target.leaf is not None
    place = pair.target if is_ours else pair.golden
    run, other = ("target", "golden run") if is_ours else ("golden run", "target")
    leaf = place.leaf if place is not None else None
    if place is not None and place.record.name.direction != FORWARD:
        return f"this gradient exists in the {run} only"
    if leaf is not None and leaf.is_tensor:
        return f"a tensor is given in the {run} only"
    if pair.target is not None and pair.golden is not None:
        return f"this argument is {_value(pair.target.leaf)}, in the golden run {_value(pair.golden.leaf)}"
    return f"the {run} gives {_value(leaf)} for this argument, the {other} gives nothing"


def _value(leaf: Leaf | None) -> str:
    if leaf is None or not leaf.is_tensor:
        return repr(None if leaf is None else leaf.value)
    stats = leaf.statistics
    if stats is not None and stats.max is not None and stats.max == stats.min:
        return f"a tensor of {stats.max:.6g}"
    return "a tensor"


def passed(error: float, differing: Sequence[Seen]) -> str:
    most = max((seen.value.relative for seen in differing), default=0.0)
    return f"{off(error)}; its inputs are off by up to {most:.2g}"


def originated(pair: Pair, value: Difference, test: Test, sources: Sequence[Seen], tolerance: float) -> str:
    dtype = pair.place.leaf.dtype if pair.place.leaf else ""
    explained = f"rounding of {dtype} explains up to {tolerance:.2g}" if tolerance else "no rounding here"
    return f"{_directed(pair, value, test)}; {_sight(sources)}, and {explained}"


def _directed(pair: Pair, value: Difference, test: Test) -> str:
    whole = what(pair, value)
    if value.scale is not None and value.scale < -1 and test.name in ("scale", "size"):
        return f"{whole}, and as a whole of the opposite sign"
    if test.name == "scale" and value.scale is not None and not _is_far_larger(value):
        word = "larger" if value.scale > 0 else "smaller"
        return f"{whole}, and as a whole {_percent(abs(value.scale))} {word} than in the golden run"
    if test.name == "shift" and value.shift is not None:
        word = "higher" if value.shift > 0 else "lower"
        return f"{whole}, and its mean lies {_percent(abs(value.shift))} of its size {word}"
    if test.name == "channels":
        return f"{whole}, by another factor in each row or channel"
    if test.name == "number":
        return f"{whole}, and single numbers by up to {value.largest:.2g}"
    return whole


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-4 else f"{share:.2g} of itself"


def _sight(sources: Sequence[Seen]) -> str:
    """In words, how far the inputs agree."""
    tensors = [s for s in sources if (leaf := s.place.leaf) is not None and leaf.is_tensor]
    differing = [s for s in tensors if s.value.is_known and not s.value.is_equal and s.value.error > 0]
    if differing:
        return f"its inputs are off by only {max(s.value.relative for s in differing):.2g}"
    if any(not s.value.is_known for s in tensors):
        return "those of its inputs that could be compared are equal"
    if all(s.value.is_equal for s in tensors):
        return "its inputs are bit-equal" if tensors else "nothing that could differ went into it"
    return "its inputs are equal in max, min, mean and norm"


def entered(pair: Pair, value: Difference, origin: str = "") -> str:
    if value.sight in ("shape", "value", "one side"):
        return f"{what(pair, value)}: {origin}" if origin else what(pair, value)
    if origin:
        return f"{what(pair, value)} when it comes in: {origin}"
    return (
        f"{what(pair, value)} when it comes in, and nothing compared before it explains that: a parameter, "
        "data, or code that was not recorded or has no counterpart"
    )
