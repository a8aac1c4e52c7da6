"""Tensors that one run gives to a call by position, and the other by keyword."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msprobe.graph_values import is_telling
from msprobe.name import BACKWARD, FORWARD
from msprobe.pairing.likeness import role_of
from msprobe.pairing.match import Place, Rename, places, slot_of
from msprobe.pairing.roles import roles
from msprobe.record import Leaf, Record, Recording, leaves

Slots = Mapping[str, str]
_STATE = ("parameter:", "buffer:")  # so the makers begin whose names are the same in both runs


def with_keywords(rename: Rename, target: Recording, golden: Recording) -> Rename:
    """Return the rename that also pairs a tensor given by position with the same one given by keyword."""
    if not _vary(target, golden):
        return rename

    def slots(ours: Record, theirs: Record) -> Slots:
        found = rename.slots(ours, theirs)
        if ours.name.direction == FORWARD:
            return {**keyword_slots(ours, theirs), **found}
        if ours.name.direction != BACKWARD or ours.name.is_module:
            return found
        forward = target.records.get(str(ours.name.facing(FORWARD)))
        other = golden.records.get(str(theirs.name.facing(FORWARD)))
        if forward is None or other is None:
            return found
        return {**_gradient_slots(forward, other, keyword_slots(forward, other)), **found}

    return rename._replace(slots=slots)


def _vary(target: Recording, golden: Recording) -> bool:
    """Whether the calls of some API or class get different tensors by keyword."""
    found: dict[str, set[frozenset[str]]] = defaultdict(set)
    for recording in (target, golden):
        for record in recording.records.values():
            if record.name.direction == FORWARD:
                found[record.name.api.rpartition(".")[2]].add(_tensor_keywords(record))
    return any(len(each) > 1 for each in found.values())


def _tensor_keywords(record: Record) -> frozenset[str]:
    given = record.fields.get("input_kwargs")
    if not given or not isinstance(given, Mapping):
        return frozenset()
    return frozenset(key for key, tree in given.items() if any(leaf.is_tensor for leaf in leaves(tree)))


def keyword_slots(ours: Record, theirs: Record) -> dict[str, str]:
    """Return the golden slots of the tensors that one of two calls has by position, the other by keyword."""
    here, there = _arguments(ours), _arguments(theirs)
    mine = [each for key, each in here.items() if key not in there and each.has_tensor]
    others = [each for key, each in there.items() if key not in here and each.has_tensor]
    found: dict[str, str] = {}
    for is_position in (True, False):
        for argument, other in _pairs(
            [each for each in mine if each.is_position is is_position],
            [each for each in others if each.is_position is not is_position],
        ):
            found.update(
                (slot, other.slots[rest]) for rest, slot in argument.slots.items() if rest in other.slots
            )
    return found


class _Argument(NamedTuple):
    """One argument of a call, which may hold several values."""

    key: str  # its position or its keyword
    role: str  # what it is, where that must be known to pair it
    slots: Mapping[str, str]  # by what stands behind the key: empty, or the place in a container
    leaves: Sequence[Leaf | None]

    @property
    def is_position(self) -> bool:
        return self.key.isdecimal()

    @property
    def has_tensor(self) -> bool:
        return any(leaf is not None and leaf.is_tensor for leaf in self.leaves)


def _arguments(record: Record) -> dict[str, _Argument]:
    groups: dict[str, list[Place]] = defaultdict(list)
    for place in places(record):
        if place.side == "input":
            groups[place.slot.split(".")[1]].append(place)
    found = {}
    for key, group in groups.items():
        role = role_of(group[0]) if roles(record.name) else ""
        by_rest = {place.slot.removeprefix(f"input.{key}"): slot_of(place) for place in group}
        found[key] = _Argument(key, role, by_rest, [place.leaf for place in group])
    return found


def _pairs(ours: Sequence[_Argument], theirs: Sequence[_Argument]) -> Iterator[tuple[_Argument, _Argument]]:
    """The pairs of arguments: by what they are, their content, their shape; and the last one of each run."""
    for key_of, is_in_order in ((_role, False), (_parameter, False), (_content, False), (_shape, True)):
        for mine, others in _groups(ours, theirs, key_of):
            if len(mine) == len(others) and (len(mine) == 1 or is_in_order):
                yield from zip(mine, others, strict=True)
                ours = [each for each in ours if each not in mine]
                theirs = [each for each in theirs if each not in others]
    if len(ours) == len(theirs) == 1 and not ours[0].role:
        yield ours[0], theirs[0]


def _groups(
    ours: Sequence[_Argument], theirs: Sequence[_Argument], key_of: Callable[[_Argument], Hashable]
) -> Iterator[tuple[list[_Argument], list[_Argument]]]:
    groups: dict[Hashable, tuple[list[_Argument], list[_Argument]]] = defaultdict(lambda: ([], []))
    for side, arguments in enumerate((ours, theirs)):
        for argument in arguments:
            if (key := key_of(argument)) is not None and (not argument.role or key_of is _role):
                groups[key][side].append(argument)
    return iter(groups.values())


def _role(argument: _Argument) -> Hashable:
    return argument.role or None


def _parameter(argument: _Argument) -> Hashable:
    """The parameters or buffers that it is, if it is nothing else."""
    makers = tuple(leaf.made_by if leaf is not None else None for leaf in argument.leaves)
    return makers if all(maker is not None and maker.startswith(_STATE) for maker in makers) else None


def _content(argument: _Argument) -> Hashable:
    """What tells its values from others; nothing if others may look so too."""
    if not all(leaf is not None and (leaf.hash is not None or is_telling(leaf)) for leaf in argument.leaves):
        return None
    return tuple((leaf.shape, leaf.hash or leaf.stats) for leaf in argument.leaves if leaf is not None)


def _shape(argument: _Argument) -> Hashable:
    return tuple(leaf.shape if leaf is not None else None for leaf in argument.leaves)


def _gradient_slots(forward: Record, other: Record, found: Slots) -> dict[str, str]:
    """Return the golden slots of gradients, which are counted as the tensors of the forward call are."""
    here, there = _tensor_slots(forward), _tensor_slots(other)
    counterparts = [found.get(slot, slot) for slot in here]
    if not found or sorted(counterparts) != sorted(there):
        return {}
    return {f".output.{n}": f".output.{there.index(slot)}" for n, slot in enumerate(counterparts)}


def _tensor_slots(record: Record) -> list[str]:
    """The slots of the tensors that a call takes, in the order in which gradients count them."""
    return [
        slot_of(place)
        for place in places(record)
        if place.side == "input"
        and place.leaf is not None
        and place.leaf.is_tensor
        and place.leaf.type != "numpy.ndarray"
    ]
