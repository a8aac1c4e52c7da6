"""Which calls of two runs belong together if no names say so, as what a mapping would say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msprobe.name import BACKWARD, DEBUG, FORWARD, PARAMETERS_GRAD
from msprobe.pairing.compound import place_pairs
from msprobe.pairing.likeness import Node
from msprobe.pairing.match import Certainty, Rename, places
from msprobe.pairing.slots import places_in_order
from msprobe.pairing.tree import tree
from msprobe.pairing.walk import Found, Walk
from msprobe.record import Record, Recording

_LACKING = "no call of the golden run looks like it"
_WITHIN = "the golden run does this within {}"
_IN_SEVERAL = "the golden run does this in several calls, {} among them"
_SAVED = Certainty(1.0, "the variables were saved under one name")


def align(target: Recording, golden: Recording) -> Rename:
    """The pairs that are found, each with how sure it is."""
    same_framework = target.header.framework == golden.header.framework
    walk = Walk(tree(target), tree(golden), by_name=same_framework)
    names: dict[str, str] = {}
    sure: dict[str, Certainty] = {}
    for a, b, certainty in (
        *(each for found in walk.found for each in _calls(found, target, golden)),
        *(each for found in walk.compounds for each in _places(found, target, golden)),
        *_gradients(walk.found, target, golden),
        *((key, key, _SAVED) for key in _variables(target) & _variables(golden)),
    ):
        names[a], sure[a] = b, certainty
    return Rename(
        names=MappingProxyType(names),
        slots=_slots if same_framework else places_in_order,
        sure=MappingProxyType(sure),
        lacking=_LACKING,
        reasons=MappingProxyType(dict(each for found in walk.compounds for each in _reasons(found))),
    )


def _slots(ours: Record, theirs: Record) -> Mapping[str, str]:
    """Within one framework two calls of one API or class have the same places."""
    kinds = [(call.name.prefix, call.name.api.rpartition(".")[2]) for call in (ours, theirs)]
    return {} if kinds[0] == kinds[1] else places_in_order(ours, theirs)


Named = tuple[str, str, Certainty]


def _calls(found: Found, target: Recording, golden: Recording) -> Iterator[Named]:
    for side in (FORWARD, BACKWARD):
        a, b = str(found.ours.name.facing(side)), str(found.theirs.name.facing(side))
        if a in target.records and b in golden.records:
            yield a, b, found.certainty


def _gradients(found: list[Found], target: Recording, golden: Recording) -> Iterator[Named]:
    """Those of parameters: of modules that belong together."""
    owners: dict[str, tuple[str, Certainty]] = {}
    for ours, theirs, certainty in found:
        if ours.name.is_module:
            owners.setdefault(ours.name.owner, (theirs.name.owner, certainty))
    there = {r.name.owner: key for key, r in golden.records.items() if r.name.direction == PARAMETERS_GRAD}
    for key, record in target.records.items():
        if record.name.direction == PARAMETERS_GRAD and record.name.owner in owners:
            owner, certainty = owners[record.name.owner]
            if owner in there:
                yield key, there[owner], certainty


def _variables(recording: Recording) -> set[str]:
    return {key for key, record in recording.records.items() if record.name.direction == DEBUG}


# ---- several calls against one ----


def _places(found: Found, target: Recording, golden: Recording) -> Iterator[Named]:
    here, there = _names(found.ours, target), _names(found.theirs, golden)
    for a, b in place_pairs(found.ours, found.theirs):
        if a in here and b in there:
            yield a, b, found.certainty


def _names(call: Node, recording: Recording) -> set[str]:
    """The places of a call and all its parts."""
    names = (str(part.name.facing(side)) for part in call.whole for side in (FORWARD, BACKWARD))
    records = (recording.records[name] for name in names if name in recording.records)
    return {place.name for record in records for place in places(record)}


def _reasons(found: Found) -> Iterator[tuple[str, str]]:
    """What is said of the places that have no counterpart, because the other run has no such call."""
    ours, theirs, _ = found
    for part in ours.whole:
        for side in (FORWARD, BACKWARD):
            sentence = _IN_SEVERAL if theirs.parts else _WITHIN
            yield str(part.name.facing(side)), sentence.format(theirs.name.facing(side))
