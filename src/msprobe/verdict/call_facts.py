"""What is asked of a call: its arguments, its dtypes, its settings, and what its outputs show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msprobe.dtypes import SINGLE, are_same_limit, roundoff
from msprobe.name import FORWARD
from msprobe.operators import Operator
from msprobe.pairing.match import Pair
from msprobe.record import Leaf
from msprobe.verdict.sources import Seen
from msprobe.verdict.tolerance import Argument

MANY = 16  # numbers, which do not become zero by chance


def spot_of(seen: Seen) -> tuple[str, str]:
    """The record and the slot of a value of the target."""
    place = seen.place
    return place.call, place.slot


def coarsest(places: Sequence[Seen]) -> float:
    """The largest roundoff among the tensors."""
    return max(roundoffs(places), default=SINGLE)


def roundoffs(places: Sequence[Seen]) -> set[float]:
    """The roundoffs of the tensors; 0: whole numbers."""
    leaves = [place.leaf for seen in places for place in seen.pair[:2] if place is not None]
    dtypes = {leaf.dtype for leaf in leaves if leaf is not None and leaf.shape is not None}
    return {roundoff(dtype) for dtype in dtypes if dtype is not None}


def reaches_out(operator: Operator, call: Sequence[Seen]) -> bool:
    """Whether what went into a call may have had an effect, as far as its outputs show."""
    outputs = [seen for seen in call if seen.is_output and seen.value.sight != "one side"]
    if not outputs or operator.changes_state or any(not seen.value.agrees for seen in outputs):
        return True
    return not operator.overwrites and not all(map(shows_all, outputs))


def has_other_count(seen: Seen) -> bool:
    """Whether a tensor has other numbers of elements in the two runs: what it made cannot be compared."""
    target, golden = seen.pair.target, seen.pair.golden
    if target is None or golden is None or target.leaf is None or golden.leaf is None:
        return False
    ours, theirs = target.leaf, golden.leaf
    if ours.shape == theirs.shape or not (ours.is_tensor and theirs.is_tensor):
        return False
    return ours.elements != theirs.elements


def shows_all(seen: Seen) -> bool:
    """Whether an output that looks equal is equal: statistics say little of truth values."""
    leaf = seen.place.leaf
    if seen.value.is_equal or leaf is None or roundoff(leaf.dtype):
        return True
    return leaf.statistics is not None and leaf.statistics.max == leaf.statistics.min


def is_setting(seen: Seen) -> bool:
    """Whether an argument of the call itself is a plain value, a shape, or given in one run only."""
    leaf = seen.place.leaf
    if seen.value.sight in ("shape", "one side"):
        return True
    return seen.value.sight == "value" and leaf is not None and not leaf.is_tensor


def explains(seen: Seen) -> bool:
    """Whether a value that differs may explain what comes out of the call.

    A setting does not: an output that nothing else explains shows that the setting has an effect, and then it
    is the setting that is named.
    """
    return not is_setting(seen) or seen.value.sight == "shape"


def position_of(seen: Seen) -> int:
    """The position, among the tensors of the forward call, whose gradient this is."""
    last = seen.place.slot.rpartition(".")[2]
    return int(last) if last.isdigit() else -1


def arguments_of(seen: Sequence[Seen]) -> list[Argument]:
    """The tensors among these, numbered as backward calls number them; only numbers with a fraction."""
    found = []
    position = 0
    for each in seen:
        leaf = each.place.leaf
        if leaf is None or not leaf.is_tensor:
            continue
        if each.value.is_float and each.value.sight != "shape":
            spot = maker = None
            if each.pair.target is not None:
                spot = spot_of(each)
                maker = leaf.made_by if each.place.record.name.direction == FORWARD else None
            found.append(Argument(each.value, leaf.shape or (), position, spot, maker))
        position += 1
    return found


def plain_numbers(seen: Sequence[Seen]) -> list[float]:
    """The plain numbers among these."""
    values = (each.place.leaf.value for each in seen if each.place.leaf is not None)
    return [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]


def follows_from_dtype(pair: Pair, call: Sequence[Seen]) -> bool:
    """Whether two plain numbers differ because dtypes do, such as finfo(dtype).min, or are rounded to one."""
    leaves = [place.leaf for place in (pair.target, pair.golden) if place is not None]
    values = []
    for leaf in leaves:
        value = None if leaf is None else _one_number(leaf)
        if value is None:
            return False
        values.append(value)
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) < 2:
        return False
    a, b = numbers
    if are_same_limit(a, b):
        return True
    if any(leaf is not None and leaf.is_tensor for leaf in leaves):
        return False
    dtypes = [{leaf.dtype for leaf in _side_leaves(call, side)} for side in ("target", "golden")]
    if dtypes[0] == dtypes[1]:
        return False
    unit = max((roundoff(dtype) for dtype in dtypes[0] | dtypes[1]), default=0.0)
    return abs(a - b) <= 2 * unit * max(abs(a), abs(b))


def _one_number(leaf: Leaf) -> object:
    """A plain number, or the one that all numbers of a tensor are."""
    stats = leaf.statistics if leaf.is_tensor else None
    if stats is None:
        return leaf.value
    return stats.max if stats.max == stats.min else None


def vanished_in(pair: Pair) -> Literal["target", "golden"] | None:
    """The run that has nothing but zeros where the other has many numbers."""
    ours, theirs = (None if place is None else place.leaf for place in (pair.target, pair.golden))
    known = ours and ours.statistics, theirs and theirs.statistics
    if ours is None or known[0] is None or known[1] is None:
        return None
    norms = known[0].norm, known[1].norm
    if 0 not in norms or norms[0] == norms[1] or ours.elements < MANY:
        return None
    return "target" if norms[0] == 0 else "golden"


def _side_leaves(call: Sequence[Seen], side: Literal["target", "golden"]) -> Iterator[Leaf]:
    for seen in call:
        place = seen.pair.target if side == "target" else seen.pair.golden
        if place is not None and place.leaf is not None and place.leaf.is_tensor:
            yield place.leaf


def content(pair: Pair) -> object:
    """Return what tells the values of a pair from others, in whatever shape; None where little is known."""
    leaves = [place.leaf for place in (pair.target, pair.golden) if place is not None]
    if any(leaf is None or leaf.stats is None for leaf in leaves):
        return None
    return tuple((leaf.dtype, leaf.stats, leaf.checksum, leaf.hash) for leaf in leaves if leaf is not None)


def unjudged_reason(pair: Pair) -> str:
    return pair.unjudged or pair.reason or "nothing was recorded to compare"
