"""What a user should look at first, where the divergence itself says it."""

from __future__ import annotations

from msprobe.name import FORWARD
from msprobe.operators import operator_of
from msprobe.pairing.match import Pair, Place, seen_in
from msprobe.verdict.levels import ORIGINATED, Verdict
from msprobe.verdict.reason import OTHER_SHAPE


def hint(pair: Pair, verdict: Verdict) -> str:
    """Return what to look at first, or an empty text."""
    place = pair.place
    if operator_of(place.record.name).communicates:
        return "It is a communication: look whether the same call of another rank was given something else."
    if verdict.reason.startswith(OTHER_SHAPE) and pair.certainty is None:
        return "If one run makes other calls than the other from here on, --align pairs them by what they do."
    if verdict.level == ORIGINATED and _draws(pair.target) and _draws(pair.golden):
        return "It draws random numbers: give both runs the same seeds, with seed_all()."
    error = verdict.error
    dtype = place.leaf.dtype if place.leaf is not None else None
    if verdict.level != ORIGINATED or error is None or dtype is None or "float32" not in dtype:
        return ""
    is_scaled = verdict.scale is not None and abs(verdict.scale) > error / 2  # rounding has no direction
    if 2.0**-12 <= error <= 2.0**-6 and not is_scaled:
        return "The size of the error is that of a computation in bfloat16, float16 or tf32."
    return ""


def _draws(place: Place | None) -> bool:
    """Whether a call drew random numbers for what it returned; dropout with p = 0 draws none."""
    if place is None or place.leaf is None or place.record.name.direction != FORWARD:
        return False
    operator = operator_of(place.record.name)
    given = dict(seen_in(place.record))
    if operator.drops:
        share = given.get("input.p", given.get("input.1"))
        training = given.get("input.training", given.get("input.2"))
        if (share is not None and share.value == 0) or (training is not None and training.value is False):
            return False
        first = given.get("input.0")
        return first is None or first.stats is None or first.stats != place.leaf.stats
    return operator.is_random
