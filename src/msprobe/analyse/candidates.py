"""Of two sequences of calls those that may belong together: not all with all, where there are very many."""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msprobe.analyse.chain import Candidate
from msprobe.analyse.likeness import Likeness, Node, norm_of

_MOST = 12  # golden calls that one call is compared with by its place, and as many by its values


def candidates(
    ours: Sequence[Node], theirs: Sequence[Node], alike: Callable[[Node, Node], Likeness | None]
) -> Iterator[Candidate]:
    """Pairs that look alike, by the order of ours; of very many the nearest."""
    there: dict[str, _Bucket] = {}
    for number, each in enumerate(theirs):
        there.setdefault(_bucket(each), _Bucket([], [])).numbers.append(number)
    for bucket in there.values():
        bucket.values.extend(sorted((_result_size(theirs[number]), number) for number in bucket.numbers))
    for number, each in enumerate(ours):
        middle = number * len(theirs) / len(ours)
        for other in _nearest(there.get(_bucket(each)), middle, _result_size(each)):
            likeness = alike(each, theirs[other])
            if likeness is not None:
                aside = abs(other - middle) / len(theirs)  # of equals the nearest
                yield Candidate(number, other, likeness._replace(weight=likeness.weight - 0.01 * aside))


def _bucket(each: Node) -> str:
    if not each.name.is_module:
        return f"call {each.concept}"
    return "module of the user" if each.is_user_class else f"module {each.concept}"


class _Bucket(NamedTuple):
    """Calls that may be one: by their place, and by the size of their results."""

    numbers: list[int]
    values: list[tuple[float, int]]


def _result_size(each: Node) -> float:
    """The size of a call's first result; 0 where it is not known."""
    norm = norm_of(each.outputs[0]) if each.outputs else 0.0
    return norm if math.isfinite(norm) else 0.0


def _nearest(bucket: _Bucket | None, middle: float, norm: float) -> Iterable[int]:
    if bucket is None:
        return ()
    if len(bucket.numbers) <= 2 * _MOST:
        return bucket.numbers
    by_place = bucket.numbers[_around(bisect.bisect_left(bucket.numbers, middle), len(bucket.numbers))]
    by_value = bucket.values[_around(bisect.bisect_left(bucket.values, (norm, -1)), len(bucket.values))]
    return sorted({*by_place, *(number for _, number in by_value)})


def _around(place: int, count: int) -> slice:
    first = min(max(place - _MOST // 2, 0), count - _MOST)
    return slice(first, first + _MOST)


def only_ones(
    ours: Sequence[Node], theirs: Sequence[Node], surely: Callable[[Node, Node], bool]
) -> list[tuple[Node, Node]]:
    """Pairs of which each is the only one for the other, among calls that do one thing on one shape."""
    there: dict[str, list[Node]] = defaultdict(list)
    for each in theirs:
        there[_kind(each)].append(each)
    likely = [(each, [b for b in there.get(_kind(each), ()) if surely(each, b)]) for each in ours]
    taken = Counter(id(b) for _, found in likely for b in found)
    return [(a, found[0]) for a, found in likely if len(found) == 1 and taken[id(found[0])] == 1]


def _kind(each: Node) -> str:
    count = each.name.count if each.name.is_module else ""
    return f"{each.name.is_module} {each.concept} {each.output_shape} {count}"
