"""Of many pairs that may belong together the heaviest that cross nowhere: two sequences in one order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msprobe.pairing.likeness import Likeness


class Candidate(NamedTuple):
    """Two calls of one level, by their numbers, that may belong together."""

    ours: int
    theirs: int
    likeness: Likeness


class _Link(NamedTuple):
    weight: float
    match: Candidate
    before: _Link | None


def heaviest(matches: Iterable[Candidate], count: int) -> list[Candidate]:
    """The matches of the greatest weight in all that cross nowhere; given by the order of ours.

    `count` is how many theirs are. The heaviest chain up to each of them is kept in a tree of prefix maxima.
    """
    best: list[_Link | None] = [None] * (count + 1)
    waiting: list[_Link] = []

    def settle() -> None:
        for link in waiting:
            place = link.match.theirs + 1
            while place <= count:
                held = best[place]
                if held is None or held.weight < link.weight:
                    best[place] = link
                place += place & -place
        waiting.clear()

    for match in matches:
        if waiting and waiting[-1].match.ours != match.ours:
            settle()
        before = _up_to(best, match.theirs)
        weight = match.likeness.weight + (before.weight if before is not None else 0.0)
        waiting.append(_Link(weight, match, before))
    settle()
    chain: list[Candidate] = []
    link = _up_to(best, count)
    while link is not None:
        chain.append(link.match)
        link = link.before
    return chain[::-1]


def _up_to(best: Sequence[_Link | None], place: int) -> _Link | None:
    found: _Link | None = None
    while place > 0:
        held = best[place]
        if held is not None and (found is None or held.weight > found.weight):
            found = held
        place -= place & -place
    return found
