"""How much larger an error may be behind a call than before it."""

from __future__ import annotations

from collections.abc import Iterable

from msprobe.analyse.distance import peak_of
from msprobe.analyse.match import Pair
from msprobe.kernels import Statistics
from msprobe.record import Leaf

GAIN = 64.0  # of most calls

# Which argument is divided by which. An error of the largest numerator may meet the smallest divisor:
# optimizers that divide by the size of the gradient make a whole step of one that is zero but for rounding.
_DIVIDING = {
    **dict.fromkeys(("div", "true_divide", "__truediv__", "__itruediv__"), ("input.0", "input.1")),
    "addcdiv": ("input.1", "input.2"),
}


def gain(pair: Pair, sources: Iterable[Pair]) -> float:
    """What the call of this output may make of a relative error of its inputs."""
    api = pair.place.record.name.api
    slots = _DIVIDING.get(api if api.endswith("__") else api.removesuffix("_"))
    if slots is None or pair.place.leaf is None:
        return GAIN
    given = {source.place.slot: source.place.leaf for source in sources}
    above, below = (given.get(slot) for slot in slots)
    times = given.get("input.value")
    factor = abs(times.value) if times is not None and isinstance(times.value, (int, float)) else 1.0
    least = _least(below) * peak_of(pair.place.leaf)
    return max(GAIN, factor * peak_of(above) / least) if least and above is not None else GAIN


def _least(leaf: Leaf | None) -> float:
    """The smallest number, if all have one sign."""
    if leaf is None or not isinstance(leaf.statistics, Statistics):
        return 0.0
    most, least = leaf.statistics.max, leaf.statistics.min
    if not isinstance(most, (int, float)) or not isinstance(least, (int, float)) or not most * least > 0:
        return 0.0
    return min(abs(most), abs(least))
