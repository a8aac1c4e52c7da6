"""Which places of two calls belong together, of frameworks that order and name arguments differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msprobe.name import FORWARD
from msprobe.pairing.arguments import mean_the_same
from msprobe.pairing.likeness import SAME_VALUES, apart, role_of, shapes, slot_of_torch, tensors
from msprobe.pairing.match import NOWHERE, Place, places, slot_of
from msprobe.pairing.roles import are_defined_alike, roles
from msprobe.record import Record


def places_in_order(ours: Record, theirs: Record) -> dict[str, str]:
    """The golden place of each of the target's: tensors in their order, the rest only where it is certain."""
    mine, others = list(places(ours)), list(places(theirs))
    found = dict.fromkeys((slot_of(place) for place in mine), NOWHERE)
    for side in ("input", "output"):
        a, b = list(tensors(mine, side)), list(tensors(others, side))
        if side == "input" and ours.name.direction == FORWARD and roles(ours.name):
            found.update(_byrole_of(a, b))
        elif shapes(a) == shapes(b):
            found.update(zip(map(slot_of, a), map(slot_of, _sorted_by_values(a, b)), strict=True))
        else:
            found.update(_certain(a, b))
    there = {slot_of_torch(place): place for place in others}
    for place in mine:
        other = there.get(slot_of_torch(place))
        if other is not None and _belong(place, other):
            found[slot_of(place)] = slot_of(other)
    return found


def _byrole_of(ours: Sequence[Place], theirs: Sequence[Place]) -> Iterator[tuple[str, str]]:
    there = {role_of(place): slot_of(place) for place in theirs}
    for place in ours:
        role = role_of(place)
        if role in there:
            yield slot_of(place), there[role]


def _sorted_by_values(ours: Sequence[Place], theirs: Sequence[Place]) -> list[Place]:
    """Theirs in the order of ours: as they stand, unless the values say that two have changed places."""
    found = list(theirs)
    for i, place in enumerate(ours):
        error = apart(place, found[i])
        if error is None or error <= SAME_VALUES:
            continue
        for j in range(i + 1, len(found)):
            other = apart(place, found[j])
            if other is not None and other <= SAME_VALUES:
                found[i], found[j] = found[j], found[i]
                break
    return found


def _certain(ours: Sequence[Place], theirs: Sequence[Place]) -> Iterator[tuple[str, str]]:
    """Of two calls with different tensors: the first, and those at one place with the same values."""
    there = {slot_of(place): place for place in theirs}
    for number, place in enumerate(ours):
        other = there.get(slot_of(place))
        if other is None or shapes([place]) != shapes([other]):
            continue
        error = apart(place, other)
        if number == 0 or (error is not None and error <= SAME_VALUES):
            yield slot_of(place), slot_of(other)


def _belong(ours: Place, theirs: Place) -> bool:
    """Whether a parameter, or a value that is no tensor, is the one of this name on the other side."""
    a, b = ours.leaf, theirs.leaf
    if ours.side == "parameters" or (a is not None and b is not None and a.is_tensor and b.is_tensor):
        return ours.side == "parameters"
    if a is None or b is None or a.is_tensor or b.is_tensor:
        return False
    if a.value == b.value or not slot_of(ours)[-1:].isdigit():
        return True
    names = ours.record.name, theirs.record.name
    is_alike = are_defined_alike(*names, same_framework=False)
    return is_alike or mean_the_same(*names, (slot_of(ours), slot_of(theirs)))
