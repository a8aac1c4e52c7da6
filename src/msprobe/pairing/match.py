"""Which place of the target stands beside which of the golden run; one without a counterpart has a reason."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msprobe.name import PARAMETERS_GRAD, CallName, slot_name
from msprobe.pairing.arguments import mean_the_same
from msprobe.pairing.roles import are_defined_alike
from msprobe.pairing.step_part import are_of_unlike_parts
from msprobe.record import Leaf, Record, Recording, Side, is_float, number_type, slots

_NO_CALL = "the golden run has no such call"
_NOT_KNOWN = "it is not known what its counterpart is"
_RECORDED_OTHERWISE = "the other tool records this gradient in another way"
_OTHER_MEANING = "the two APIs may define this argument differently"
_OTHER_PART = "one is a call of the model, the other is not"
_NO_PLACE_THERE = "this call has no such place in the golden run"
_NO_PLACE_HERE = "this call has no such place in the target"
_TAKEN = "the mapping pairs the golden run's {} of this name with another one"
_MOST_ALIGNED = 2_000  # calls of one name that are aligned by shape; more are taken in order

NAMED_AS_BY_TORCH = frozenset({"pytorch", "mindtorch"})  # frameworks whose APIs have the names of torch
NOWHERE = "N/A"  # the golden name of what has no counterpart there
ELSEWHERE = "recorded otherwise"  # the golden slot of what another tool records in a way of its own
_UNPAIRED = MappingProxyType({NOWHERE: _NOT_KNOWN, ELSEWHERE: _RECORDED_OTHERWISE})


def _unsaid(_name: CallName) -> str | None:
    return None


def _alike_slots(_ours: Record, _theirs: Record) -> Mapping[str, str]:
    return MappingProxyType({})


class Certainty(NamedTuple):
    """How sure it is that two calls belong together, from 0 to 1, and what says so."""

    share: float
    why: str


class Rename(NamedTuple):
    """What the golden run calls the target's calls and places; what is not said has one name in both."""

    owner: Callable[[CallName], str | None] = _unsaid  # of all calls of a module or an API
    names: Mapping[str, str] = MappingProxyType({})  # of single calls and places
    slots: Callable[[Record, Record], Mapping[str, str]] = _alike_slots  # of two calls that are paired
    sure: Mapping[str, Certainty] = MappingProxyType({})  # of calls that were paired by their looks
    lacking: str = ""  # if given, `names` alone pairs calls, and this is said of those that it lacks
    reasons: Mapping[str, str] = MappingProxyType({})  # of calls that have no whole partner


SAME_NAMES = Rename()


class Place(NamedTuple):
    """One place of a record: its full name, and what was seen there."""

    name: str
    side: Side
    leaf: Leaf | None
    record: Record
    slot: str  # what stays of its name when another call has the same place: `output.0`
    call: str  # the name of its record


class Pair(NamedTuple):
    """A place of the target and its counterpart; one of them may be missing, and the reason says why."""

    target: Place | None
    golden: Place | None
    reason: str = ""  # not empty: the two cannot be measured against each other
    fuzzy: bool = False  # matched although the call counts differ
    certainty: Certainty | None = None  # None: the names say it
    unjudged: str = ""  # not empty: why our verdict does not judge what the table shows

    @property
    def place(self) -> Place:
        """The target's, or the only one."""
        place = self.target or self.golden
        assert place is not None
        return place

    @property
    def is_recorded_otherwise(self) -> bool:
        """Whether another tool recorded a gradient so that it cannot be compared."""
        return self.unjudged == _RECORDED_OTHERWISE

    @property
    def is_one_sided(self) -> bool:
        """Whether both runs make the call, and only one of them has this value."""
        ours = None if self.target is None else self.target.leaf
        theirs = None if self.golden is None else self.golden.leaf
        if (ours is None) == (theirs is None) or self.unjudged:
            return False
        return self.reason in (_NO_PLACE_HERE, _NO_PLACE_THERE) or None not in (self.target, self.golden)


def match(
    target: Recording, golden: Recording, *, fuzzy: bool = False, rename: Rename = SAME_NAMES
) -> list[Pair]:
    """Pair every place of both recordings, in the order of the target; never fails because one has more."""
    singles = _singles(target.records, golden.records, rename.names)
    partners, reasons = _partners(target.records, golden.records, rename, fuzzy)
    same_framework = _name_alike(target, golden)
    pairs: list[Pair] = []
    for key, other in _interleaved(target.records, golden.records, partners):
        theirs = golden.records[other] if other is not None else None
        if key is None:
            assert theirs is not None
            pairs.extend(_golden_only(theirs, singles))
            continue
        ours = target.records[key]
        shifted = theirs is not None and key not in rename.names and _is_shifted(ours.name, theirs.name)
        slots = rename.slots(ours, theirs) if theirs is not None else {}
        found = _pairs(ours, theirs, singles, reasons.get(key, _NO_CALL), slots)
        if theirs is not None:
            found = _with_meaning(found, ours, theirs, same_framework)
        if shifted or rename.sure:
            found = (_noted(pair, rename, shifted, rename.sure.get(key)) for pair in found)
        pairs.extend(found)
    return pairs


def match_whole(target: Recording, golden: Recording, absent: str) -> Iterator[Pair]:
    """Pair every place of the target with that of its name, where both runs have the same places of its call.

    Of all other calls of the target `absent` is said, and whatever else the golden run has is left out.
    """
    for key, record in target.records.items():
        other = golden.records.get(key)
        ours, theirs = list(places(record)), list(places(other)) if other is not None else []
        if [place.name for place in ours] == [place.name for place in theirs]:
            yield from map(Pair, ours, theirs)
        else:
            yield from (Pair(place, None, absent) for place in ours)


def _name_alike(target: Recording, golden: Recording) -> bool:
    """Whether the APIs of one name are one API in both runs."""
    frameworks = {target.header.framework, golden.header.framework}
    return len(frameworks) == 1 or frameworks <= NAMED_AS_BY_TORCH


def _with_meaning(
    found: Iterator[Pair], ours: Record, theirs: Record, same_framework: bool
) -> Iterator[Pair]:
    """The pairs of two calls; those that say nothing about each other are marked."""
    if are_of_unlike_parts(ours, theirs):
        return (pair._replace(unjudged=_OTHER_PART) for pair in found)
    is_alike = are_defined_alike(ours.name, theirs.name, same_framework=same_framework)
    if not is_alike or not same_framework:
        found = (_without_lone_tensor(pair) for pair in found)
    if is_alike:
        return found
    return (_with_plain_meaning(pair, ours.name, theirs.name) for pair in found)


def _without_lone_tensor(pair: Pair) -> Pair:
    """The pair; a tensor or gradient that only one of two APIs or frameworks has is not judged."""
    leaves = (place.leaf for place in pair[:2] if place is not None)
    is_tensor = any(leaf is not None and leaf.is_tensor for leaf in leaves)
    return pair._replace(unjudged=_OTHER_MEANING) if is_tensor and pair.is_one_sided else pair


def _with_plain_meaning(pair: Pair, ours: CallName, theirs: CallName) -> Pair:
    leaf = pair.place.leaf
    if leaf is None or leaf.is_tensor or pair.place.side != "input" or _is_equal(pair):
        return pair
    here, there = ("" if place is None else slot_of(place) for place in pair[:2])
    return pair if mean_the_same(ours, theirs, (here, there)) else pair._replace(unjudged=_OTHER_MEANING)


def _is_equal(pair: Pair) -> bool:
    """Whether both sides have the same plain value."""
    leaves = [place.leaf for place in pair[:2] if place is not None and place.leaf is not None]
    return len(leaves) == 2 and leaves[0].value == leaves[1].value


def _is_shifted(ours: CallName, theirs: CallName) -> bool:
    """Whether the call counts differ; that of the gradients of parameters is only written by some."""
    return ours.count != theirs.count and ours.direction != PARAMETERS_GRAD


def _noted(pair: Pair, rename: Rename, shifted: bool, certainty: Certainty | None) -> Pair:
    if pair.target is not None and pair.target.name in rename.names:  # which says it of this place alone
        return pair._replace(certainty=rename.sure.get(pair.target.name))
    return pair._replace(fuzzy=shifted, certainty=None if pair.golden is None else certainty)


def places(record: Record) -> Iterator[Place]:
    """The places of a record, in the order in which a table shows them."""
    call = str(record.name)
    for slot, side, leaf in slots(record):
        yield Place(slot_name(call, slot), side, leaf, record, slot, call)


def seen_in(record: Record) -> Iterator[tuple[str, Leaf]]:
    """What was seen at the slots of a record, where anything was."""
    for place in places(record):
        if place.leaf is not None:
            yield place.slot, place.leaf


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


def _partners(
    target: Mapping[str, Record], golden: Mapping[str, Record], rename: Rename, fuzzy: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """The golden call of each call of the target; and why one has none, where that is due to a rename."""
    listed = {key: rename.names[key] for key in target if key in rename.names}
    if rename.lacking:
        return listed, {**dict.fromkeys(target, rename.lacking), **rename.reasons}
    taken = set(listed.values())
    free = {key: record for key, record in golden.items() if key not in taken} if taken else golden
    asked = _asked(target, rename)
    sought = {key: name for key, name in asked.items() if key not in listed}
    if fuzzy:
        partners = _aligned(sought, target, free)
    else:
        texts = {key: _key(_text(key, name, target), name, free) for key, name in sought.items()}
        partners = {key: text for key, text in texts.items() if text in free}
    partners.update((key, other) for key, other in listed.items() if other in golden)
    if rename is SAME_NAMES:
        return partners, {}
    reasons = {key: _lack(other) for key, other in listed.items()}
    for key in target:
        if key not in asked or (other := _text(key, asked[key], target)) in taken:
            reasons.setdefault(key, _TAKEN.format("call"))
        elif other != key:
            reasons.setdefault(key, _lack(other))
    return partners, reasons


def _asked(target: Mapping[str, Record], rename: Rename) -> dict[str, CallName]:
    """The name under which the golden run is asked for each call.

    What a rename gives to one call, another that happens to be called so does not get: it is left out.
    """
    owners = {key: rename.owner(record.name) for key, record in target.items()}
    given = {owner for owner in owners.values() if owner is not None}
    asked = {}
    for key, record in target.items():
        owner = owners[key]
        if owner is not None:
            asked[key] = record.name._replace(owner=owner)
        elif record.name.owner not in given:
            asked[key] = record.name
    return asked


def _text(key: str, name: CallName, target: Mapping[str, Record]) -> str:
    """A name as a key of the golden run; older writers have keys that are not quite the name."""
    return key if name is target[key].name else str(name)


def _key(text: str, name: CallName, golden: Mapping[str, Record]) -> str:
    """The key of a call in the golden run: some writers count the gradients of parameters, some do not."""
    if name.direction == PARAMETERS_GRAD and text not in golden:
        return str(name._replace(count=0 if name.count is None else None))
    return text


def _lack(other: str) -> str:
    if other == NOWHERE:
        return "the mapping says that it has no counterpart"
    return f"the golden run has no {other}, which the mapping names"


def _aligned(
    asked: Mapping[str, CallName], target: Mapping[str, Record], golden: Mapping[str, Record]
) -> dict[str, str]:
    """Partners among the calls of one API or module and one direction, whatever their counts."""
    groups: dict[tuple[str, str], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for key, name in asked.items():
        groups[name.owner, name.direction][0].append(key)
    for key, record in golden.items():
        groups[record.name.owner, record.name.direction][1].append(key)
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


class _Singles(NamedTuple):
    """Places that are paired one by one: their golden names, and the golden places of these names."""

    names: Mapping[str, str]
    found: Mapping[str, Place]


def _singles(
    target: Mapping[str, Record], golden: Mapping[str, Record], names: Mapping[str, str]
) -> _Singles:
    if not names:
        return _Singles(names, {})
    ours = (place.name for record in target.values() for place in places(record))
    sought = {names[name] for name in ours if name in names}
    theirs = (place for record in golden.values() for place in places(record))
    return _Singles(names, {place.name: place for place in theirs if place.name in sought})


def _golden_only(record: Record, singles: _Singles) -> Iterator[Pair]:
    for place in places(record):
        if place.name not in singles.found:
            yield Pair(None, place, "the target has no such call")


def _pairs(
    ours: Record, theirs: Record | None, singles: _Singles, absent: str, slots: Mapping[str, str]
) -> Iterator[Pair]:
    """The places of a call and their counterparts; `absent` is said where the golden run has no such call."""
    counterparts = {place.slot: place for place in places(theirs)} if theirs is not None else {}
    for place in places(ours):
        renamed = slots.get(slot_of(place)) if slots else None
        if singles.names and place.name in singles.names:
            yield _single(place, singles)
        elif theirs is None:
            yield Pair(place, None, absent)
        elif renamed is not None and (unjudged := _UNPAIRED.get(renamed)) is not None:
            yield Pair(place, None, _NO_PLACE_THERE, unjudged=unjudged)
        elif (other := counterparts.pop(place.slot if renamed is None else renamed[1:], None)) is None:
            if not _lacks_buffers(theirs, place):
                yield Pair(place, None, _NO_PLACE_THERE)
        elif other.name in singles.found:
            yield Pair(place, None, _TAKEN.format("place"))
        else:
            yield Pair(place, other, _obstacle(place.leaf, other.leaf))
    unjudged = next((why for name, why in _UNPAIRED.items() if name in slots.values()), "")
    for place in counterparts.values():
        if place.name not in singles.found and not _lacks_buffers(ours, place):
            yield Pair(None, place, _NO_PLACE_HERE, unjudged=unjudged)


def _lacks_buffers(record: Record, place: Place) -> bool:
    """Whether a place shows a buffer, and this record of the other run comes from one who records none."""
    return place.slot.startswith("buffers") and "buffers" not in record.fields


def _single(place: Place, singles: _Singles) -> Pair:
    name = singles.names[place.name]
    other = singles.found.get(name)
    return Pair(place, other, _lack(name) if other is None else _obstacle(place.leaf, other.leaf))


def slot_of(place: Place) -> str:
    """What stays of its name when another call has the same place."""
    return f".{place.slot}" if place.slot else ""


def _obstacle(ours: Leaf | None, theirs: Leaf | None) -> str:
    """Why two leaves cannot be measured against each other; empty if they can."""
    if ours is None or theirs is None:
        return "" if ours is theirs else "one side is None"
    if ours.dtype == theirs.dtype and ours.shape == theirs.shape:
        return ""
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
    return number_type(ours) == number_type(theirs) or (is_float(ours) and is_float(theirs))


def frames_of(pairs: Iterable[Pair]) -> Iterator[tuple[str, ...]]:
    """Where each call of the target was made, beside the first of its pairs; beside the others nothing."""
    last = None
    for pair in pairs:
        record = pair.place.record
        is_first = record is not last and pair.target is not None
        yield record.stack.frames if is_first and record.stack is not None else ()
        last = record


def matched(pairs: Sequence[Pair]) -> int:
    """How many have a counterpart that they can be measured against."""
    return sum(not pair.reason for pair in pairs)
