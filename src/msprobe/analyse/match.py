"""Which place of the target stands beside which of the golden run; one without a counterpart has a reason."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msprobe.name import CallName, slot_name
from msprobe.record import Leaf, Record, Recording, Tree

Side = Literal["input", "parameters", "output"]

# The fields of a record, in the order in which a table shows them; keywords stand among the inputs.
_FIELDS: tuple[tuple[str, Side, str], ...] = (
    ("input_args", "input", "input"),
    ("input_kwargs", "input", "input"),
    ("input", "input", "input"),
    ("parameters", "parameters", "parameters"),
    ("output", "output", "output"),
    ("value", "output", ""),
)
_PARAMETERS_GRAD = "parameters_grad"
_MOST_ALIGNED = 2_000  # calls of one name that are aligned by shape; more are taken in order

Rename = Callable[[CallName], CallName]


class Place(NamedTuple):
    """One place of a record: its full name, and what was seen there."""

    name: str
    side: Side
    leaf: Leaf | None
    record: Record


class Pair(NamedTuple):
    """A place of the target and its counterpart; one of them may be missing, and the reason says why."""

    target: Place | None
    golden: Place | None
    reason: str = ""  # not empty: the two cannot be measured against each other
    fuzzy: bool = False  # matched although the call counts differ

    @property
    def place(self) -> Place:
        """The target's, or the only one."""
        place = self.target or self.golden
        assert place is not None
        return place


def match(
    target: Recording, golden: Recording, *, fuzzy: bool = False, rename: Rename | None = None
) -> list[Pair]:
    """Pair every place of both recordings, in the order of the target; never fails because one has more.

    `rename` gives golden calls the names that the target uses for them.
    """
    renamed = {str(rename(r.name)) if rename else key: r for key, r in golden.records.items()}
    partners = {key: key for key in target.records if key in renamed}
    if fuzzy:
        partners = _aligned(target.records, renamed)
    pairs: list[Pair] = []
    for key, other in _interleaved(target.records, renamed, partners):
        theirs = renamed[other] if other is not None else None
        pairs.extend(_pairs(target.records.get(key) if key is not None else None, theirs, fuzzy))
    return pairs


def places(record: Record) -> Iterator[Place]:
    """The places of a record, in the order in which a table shows them."""
    text = str(record.name)
    if record.name.direction == _PARAMETERS_GRAD:
        for key, tree in record.fields.items():
            tree = tree[0] if isinstance(tree, list) and len(tree) == 1 else tree
            yield from _found(tree, slot_name(text, key), "output", record)
        return
    for field, side, word in _FIELDS:
        if field in record.fields:
            yield from _found(record.fields[field], slot_name(text, word), side, record)


def _found(tree: Tree, name: str, side: Side, record: Record) -> Iterator[Place]:
    if isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from _found(item, f"{name}.{number}", side, record)
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _found(item, f"{name}.{key}", side, record)
    else:
        yield Place(name, side, tree, record)


# ---- calls ----


def _interleaved(
    target: Mapping[str, Record], golden: Mapping[str, Record], partners: Mapping[str, str]
) -> Iterator[tuple[str | None, str | None]]:
    """Both runs' calls in the target's order; what only the golden run has follows the call it followed."""
    theirs = {other: key for key, other in partners.items()}
    after: dict[str | None, list[str]] = defaultdict(list)
    last: str | None = None
    for other in golden:
        if other in theirs:
            last = theirs[other]
        else:
            after[last].append(other)
    yield from ((None, other) for other in after[None])
    for key in target:
        yield key, partners.get(key)
        yield from ((None, other) for other in after.get(key, ()))


def _aligned(target: Mapping[str, Record], golden: Mapping[str, Record]) -> dict[str, str]:
    """Partners among the calls of one API or module and one direction, whatever their counts."""
    groups: dict[tuple[str, str], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for number, records in enumerate((target, golden)):
        for key, record in records.items():
            groups[record.name.owner, record.name.direction][number].append(key)
    partners: dict[str, str] = {}
    for ours, theirs in groups.values():
        if len(ours) == len(theirs) or max(len(ours), len(theirs)) > _MOST_ALIGNED:
            partners.update(zip(ours, theirs, strict=False))
            continue
        before, after = [_shapes(target[key]) for key in ours], [_shapes(golden[key]) for key in theirs]
        for block in difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
            for i in range(block.size):
                partners[ours[block.a + i]] = theirs[block.b + i]
    return partners


def _shapes(record: Record) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(place.leaf.shape if place.leaf is not None else None for place in places(record))


# ---- places of one call ----


def _pairs(ours: Record | None, theirs: Record | None, fuzzy: bool) -> Iterator[Pair]:
    if ours is None or theirs is None:
        whose = "target" if ours is None else "golden run"
        for place in places(ours or theirs):  # type: ignore[arg-type]  # one of them is there
            reason = f"the {whose} has no such call"
            yield Pair(place, None, reason) if ours is not None else Pair(None, place, reason)
        return
    shifted = fuzzy and ours.name != theirs.name
    counterparts = {_slot(place): place for place in places(theirs)}
    for place in places(ours):
        other = counterparts.pop(_slot(place), None)
        if other is None:
            yield Pair(place, None, "this call has no such place in the golden run", shifted)
        else:
            yield Pair(place, other, _obstacle(place.leaf, other.leaf), shifted)
    for place in counterparts.values():
        yield Pair(None, place, "this call has no such place in the target", shifted)


def _slot(place: Place) -> str:
    """What stays of its name when another call has the same place."""
    return place.name[len(str(place.record.name)) :]


def _obstacle(ours: Leaf | None, theirs: Leaf | None) -> str:
    """Why two leaves cannot be measured against each other; empty if they can."""
    if ours is None or theirs is None:
        return "" if ours is theirs else "one side is None"
    if ours.is_tensor != theirs.is_tensor:
        return "one side is a tensor, the other is not"
    if ours.shape != theirs.shape:
        return f"the shapes differ: {_shape(ours)} and {_shape(theirs)}"
    if ours.is_tensor and not _alike(ours.dtype, theirs.dtype):
        return f"the dtypes differ: {ours.dtype} and {theirs.dtype}"
    return ""


def _shape(leaf: Leaf) -> list[int]:
    return list(leaf.shape or ())


def _alike(ours: str | None, theirs: str | None) -> bool:
    """Floating-point numbers of any width can be compared with each other; all else must be equal."""
    return ours == theirs or (_is_float(ours) and _is_float(theirs))


def _is_float(dtype: str | None) -> bool:
    return dtype is not None and dtype.rpartition(".")[2].lower().startswith(("float", "bfloat"))


def matched(pairs: Sequence[Pair]) -> int:
    """How many have a counterpart that they can be measured against."""
    return sum(not pair.reason for pair in pairs)
