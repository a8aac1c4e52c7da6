"""Whether a value that no recorded call made is off by more than what went before suggests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msprobe.name import FORWARD
from msprobe.verdict.decisions import most_flips
from msprobe.verdict.directions import SCALE_GAIN, Test, unit_tolerance
from msprobe.verdict.known_errors import KnownErrors
from msprobe.verdict.sources import Seen
from msprobe.verdict.tolerance import FLIP_SHARE

DRIFT_GAIN = 8.0  # times the largest relative error so far
COMPUTED = 2.0**-9  # a plain number that is further off was not computed from what differs, but set


def is_usual(seen: Seen, tests: Sequence[Test], errors: KnownErrors) -> bool:
    """Whether a value that no recorded call made is no further off than what went before suggests.

    Each direction has its own limit: rounding that gathers is large, but it has no scale error.
    """
    value, drift = seen.value, errors.drift
    leaf = seen.place.leaf
    if value.sight == "shape" or value.is_moved or value.is_odd or drift == 0:
        return False
    if leaf is not None and not leaf.is_tensor:
        return value.relative <= unit_tolerance(value) + min(drift, COMPUTED)
    if not value.is_float:
        return value.unequal is not None and value.unequal <= most_flips(value.numbers, FLIP_SHARE * drift)
    size = DRIFT_GAIN * drift
    if seen.place.record.name.direction != FORWARD:  # what was not recorded may decide, as relu does
        size = max(size, 2 * math.sqrt(min(FLIP_SHARE * drift, 1.0)))
    limits = {"size": size, "scale": SCALE_GAIN * errors.scale_drift + drift * drift}
    return all(test.value <= test.bound + limits.get(test.name, 0.0) for test in tests)
