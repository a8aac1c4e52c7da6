"""Decisions that rounding turns: how many truth values may be others, and what follows of that."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msprobe.operators import operator_of
from msprobe.pairing.match import Pair
from msprobe.record import number_type
from msprobe.verdict.call_facts import arguments_of
from msprobe.verdict.difference import Difference
from msprobe.verdict.known_errors import KnownErrors
from msprobe.verdict.sources import Seen
from msprobe.verdict.tolerance import FLIP_SHARE, Argument, Reach


def flips_explained(seen: Seen, differing: Sequence[Seen], errors: KnownErrors) -> float:
    """Return how many truth values may be others if rounding moved what is compared; else there is no limit.

    Of numbers that are compared for equality, any rounding makes others.
    """
    leaf, operator = seen.place.leaf, operator_of(seen.place.record.name)
    is_ordered = operator.kind == "compares" and not operator.compares_equality
    if leaf is None or number_type(leaf.dtype) != "bool" or not is_ordered:
        return math.inf
    share = 0.0
    for other in differing:
        error = [errors.largest(each, errors.of(each)) for each in arguments_of([other])]
        spread = spread_about_mean(other)
        if not error or not math.isfinite(error[0]) or not spread:
            return math.inf
        share += FLIP_SHARE * error[0] / math.sqrt(max(other.value.numbers, 1)) / spread
    return most_flips(seen.value.numbers, share)


def most_flips(numbers: int, share: float) -> float:
    """Return how many of some numbers may fall the other way if each does with this probability."""
    mean = min(share, 1.0) * numbers
    return mean + 4 * math.sqrt(mean) + 1


def spread_about_mean(seen: Seen) -> float:
    """The standard deviation of the numbers of a tensor, as far as its statistics say."""
    leaf = seen.place.leaf
    stats = leaf.statistics if leaf is not None else None
    if leaf is None or stats is None or stats.mean is None or stats.norm is None or not leaf.elements:
        return 0.0
    return math.sqrt(max(stats.norm**2 / leaf.elements - stats.mean**2, 0.0))


def rows_apart(pair: Pair) -> float:
    """By how many rows two shapes differ; infinite unless they differ along one axis only."""
    shapes = [place.leaf.shape for place in (pair.target, pair.golden) if place is not None and place.leaf]
    if len(shapes) < 2 or shapes[0] is None or shapes[1] is None or len(shapes[0]) != len(shapes[1]):
        return math.inf
    apart = [abs(a - b) for a, b in zip(shapes[0], shapes[1], strict=True) if a != b]
    return float(apart[0]) if len(apart) == 1 else math.inf


def flipped_by_decisions(
    reach: Reach,
    value: Difference,
    arguments: Sequence[Argument],
    errors: Sequence[float],
    decided: float,
) -> float:
    """How far decisions that fall otherwise may change the result; `decided`: see share_of_decisions()."""
    share = 0.0
    if reach.flips:
        share = max((e / a.size for a, e in zip(arguments, errors, strict=True) if a.size and e), default=0.0)
        share = min(1.0, reach.flips * share + 4 / max(value.numbers, 1)) if share else 0.0
    share += decided
    return 2 * math.sqrt(min(share, 1.0)) * value.norm if share else 0.0


def share_of_decisions(sources: Sequence[Seen]) -> float:
    """Return the share of a result that whole numbers and truth values which differ may change."""
    share = 0.0
    for source in sources:
        leaf, other = source.place.leaf, source.value
        if other.is_float or leaf is None or not leaf.is_tensor or not other.is_known or other.agrees:
            continue
        if other.sight in ("shape", "one side"):
            continue
        if other.unequal is not None and other.numbers:
            share += 2 * other.unequal / other.numbers
        else:
            share = 1.0
    return share
