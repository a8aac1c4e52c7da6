"""Whether an error is rounding of far larger numbers, which nearly cancel in what a call makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msprobe.analyse.distance import peak_of, roundoff
from msprobe.analyse.gain import GAIN
from msprobe.analyse.sources import Seen
from msprobe.name import BACKWARD, FORWARD

# In these a tensor of whole numbers is a factor; in others it holds classes or indices.
_MULTIPLYING = frozenset(
    {"mul", "rmul", "imul", "multiply", "div", "truediv", "rtruediv", "itruediv", "divide", "true_divide"}
    | {"pow", "rpow", "ipow", "float_power", "addcmul", "addcdiv", "xlogy"}
)
# These take the mean unless they are told otherwise; of the first two each item has a number for each class.
_BY_CLASS = frozenset({"cross_entropy", "nll_loss"})
_AVERAGING = _BY_CLASS | {
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "gaussian_nll_loss"),
    *("poisson_nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss"),
}
_NO_MEAN = ("sum", "none", "batchmean")


def cancels(seen: Seen, sources: Sequence[Seen], tolerance: float) -> bool:
    """Whether the error is small beside what the values were made from.

    A gradient is made from gradients, times what ran forward, and may be a sum of many. Of a mean each number
    has its share of the gradient: that it is small beside the whole does not show that anything cancels.
    """
    apart = (seen.distance.error or 0.0) * seen.distance.size
    forward = [s for s in sources if s.pair.place.record.name.direction == FORWARD]
    if seen.pair.place.record.name.direction == FORWARD:
        return any(apart <= _reach(s, tolerance) for s in forward)
    times = max([1.0, *(s.distance.size for s in forward if _is_factor(s))])
    gradients = [s for s in sources if s.pair.place.record.name.direction == BACKWARD]
    means = _means(seen, forward)
    return any(
        apart <= times * _reach(s, tolerance) * math.sqrt(_share(s, seen)) / _averaged(s, seen, means)
        for s in gradients
    )


def _is_factor(source: Seen) -> bool:
    """Whether a gradient may be so many times as large as this was in its forward call."""
    place = source.pair.place
    is_whole = place.leaf is not None and place.leaf.is_tensor and not roundoff(place.leaf.dtype)
    return not is_whole or place.record.name.api.strip("_") in _MULTIPLYING


def _reach(source: Seen, tolerance: float) -> float:
    """How far an error of an input, and rounding of it, go where nothing else is added."""
    error, size = source.distance.error, source.distance.size
    return size * (tolerance + GAIN * error) if error is not None and math.isfinite(error) else 0.0


def _share(source: Seen, seen: Seen) -> float:
    """How many numbers of the source there are for each of the result, one at least."""
    return max(1.0, _count(source) / max(1, _count(seen)))


def _means(seen: Seen, forward: Sequence[Seen]) -> float:
    """How many numbers of the result belong to one item of the mean that was taken forward; 0: none was."""
    api, leaf = seen.pair.place.record.name.api, seen.pair.place.leaf
    if api == "mean":
        return 1.0
    given = [s.pair.place.leaf for s in forward]
    if api not in _AVERAGING or any(plain is not None and plain.value in _NO_MEAN for plain in given):
        return 0.0
    shape = leaf.shape if leaf is not None and leaf.shape else (1,)
    return float(shape[min(1, len(shape) - 1)]) if api in _BY_CLASS else 1.0


def _averaged(source: Seen, seen: Seen, means: float) -> float:
    """How many items a mean was taken of, as far as the gradients are as small as that makes them; else 1."""
    whole, part = source.pair.place.leaf, seen.pair.place.leaf
    if not means or whole is None or part is None:
        return 1.0
    items = _count(seen) / means / max(1, _count(source))
    largest = peak_of(part)
    return max(1.0, min(items, peak_of(whole) / largest)) if largest else 1.0


def _count(seen: Seen) -> int:
    leaf = seen.pair.place.leaf
    return leaf.elements if leaf is not None else 1
