"""Whether calls of one name and number are the same call in two runs; asked in one pass over both."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msprobe.graph import is_carried
from msprobe.graph_values import is_telling
from msprobe.kernels import Statistics
from msprobe.name import FORWARD, CallName, slot_name
from msprobe.pairing.step_part import are_of_unlike_parts, part_of
from msprobe.plural import counted
from msprobe.record import Leaf, Record, Recording, slots

_STEPS = 512  # of the mantissa: statistics that differ by less look alike

Pairs = Sequence[tuple[Record, Record]]


def mistrust(target: Recording, golden: Recording) -> str:
    """Return why calls of one number may be different calls in the two runs; empty if nothing says so."""
    pairs = [
        (record, golden.records[key])
        for key, record in target.records.items()
        if record.name.direction == FORWARD and key in golden.records
    ]
    found = (_uneven(target, golden), _elsewhere(pairs), _crossing(pairs, golden), _other_inputs(pairs))
    return next((reason for each in found for reason in each), "")


def _uneven(target: Recording, golden: Recording) -> Iterator[str]:
    """One run calls an API or a module more often."""
    if any(run.recovered or not run.finished or run.lost_records for run in (target, golden)):
        return  # it has fewer because it is not whole
    ours, theirs = _called(target), _called(golden)
    odd = [owner for owner, count in ours.items() if theirs.get(owner, count) != count]
    if odd:
        more = f", and {counted(len(odd) - 1, 'other API')} not equally often" if odd[1:] else ""
        times = counted(ours[odd[0]], "time")
        yield f"the target calls {odd[0]} {times} and the golden run {theirs[odd[0]]}{more}"


def _called(recording: Recording) -> Counter[str]:
    """How often each API or module is called, without those of which only later calls were recorded."""
    names = [record.name for record in recording.records.values() if record.name.direction == FORWARD]
    whole = {name.owner for name in names if name.count == 0}
    return Counter(name.owner for name in names if name.owner in whole)


def _elsewhere(pairs: Pairs) -> Iterator[str]:
    """Calls of one number are made by different modules, or by different parts of the step."""
    for ours, theirs in pairs:
        if are_of_unlike_parts(ours, theirs):
            parts = part_of(ours), part_of(theirs)
            yield f"{ours.name} is a call of {parts[0]} in the target and of {parts[1]} in the golden run"
        elif ours.parent != theirs.parent and ours.parent and theirs.parent and not ours.name.is_module:
            parents = ours.parent, theirs.parent
            yield f"{ours.name} is made in {parents[0]} in the target and in {parents[1]} in the golden run"


def _crossing(pairs: Pairs, golden: Recording) -> Iterator[str]:
    """Two calls come in another order; of modules those are looked at that have no others in them.

    Tools differ in whether a module or what is in it is written first.
    """
    order = {id(record): number for number, record in enumerate(golden.records.values())}
    modules = [(ours, theirs) for ours, theirs in pairs if ours.name.is_module]
    parents = {record.parent for side in modules for record in side}
    innermost = [side for side in modules if str(side[0].name) not in parents]
    calls = [side for side in pairs if not side[0].name.is_module] if modules else pairs
    for each in (calls, innermost):
        last, latest = None, -1
        for ours, theirs in each:
            if order[id(theirs)] < latest:
                yield f"{ours.name} comes after {last} in the target and before it in the golden run"
            else:
                last, latest = ours.name, order[id(theirs)]


def _other_inputs(pairs: Pairs) -> Iterator[str]:
    """The inputs of a call come from other calls, or are those of another call of this API."""
    by_owner: dict[str, list[_Call]] = defaultdict(list)
    for ours, theirs in pairs:
        here, there = _inputs(ours), _inputs(theirs)
        yield from _other_makers(ours.name, here, there)
        if not ours.name.is_module and not _are_equal(here, there):
            by_owner[ours.name.owner].append(_Call(ours.name, here, there))
    for calls in by_owner.values():
        if len(calls) > 1:
            yield from _swapped(calls)


_Inputs = Mapping[str, "Leaf | None"]  # by slot


def _inputs(record: Record) -> _Inputs:
    return {slot: leaf for slot, _, leaf in slots(record, "input")}


def _other_makers(name: CallName, ours: _Inputs, theirs: _Inputs) -> Iterator[str]:
    for slot, leaf in ours.items():
        other = theirs.get(slot)
        if leaf is None or other is None or leaf.made_by == other.made_by:
            continue
        makers = _maker(leaf), _maker(other)
        if all(makers) and not _are_one(*makers):
            place = slot_name(str(name), slot)
            yield f"{place} comes from {makers[0]} in the target and from {makers[1]} in the golden run"


def _maker(leaf: Leaf) -> str:
    """Who made a value or the memory that it lies in, as recorded; empty if no call of this step did."""
    return "" if is_carried(leaf.made_by) else (leaf.made_by or "").removeprefix("~")


def _are_one(ours: str, theirs: str) -> bool:
    """Whether two makers have one name; a model that is wrapped has a longer path before it."""
    (kind, _, name), (other_kind, _, other) = (maker.rpartition(":") for maker in (ours, theirs))
    if not kind or kind != other_kind:
        return ours == theirs
    return f".{name}".endswith(f".{other}") or f".{other}".endswith(f".{name}")


def _are_equal(ours: _Inputs, theirs: _Inputs) -> bool:
    if len(ours) != len(theirs):
        return False
    pairs = zip(ours.values(), theirs.values(), strict=True)
    return all(a is b or (a and b and (a.shape, a.stats) == (b.shape, b.stats)) for a, b in pairs)


class _Call(NamedTuple):
    """Two calls of one number, and the inputs of either."""

    name: CallName
    ours: _Inputs
    theirs: _Inputs


def _swapped(calls: Sequence[_Call]) -> Iterator[str]:
    """Of calls of one API: inputs that the golden run has in another call, and the target there has not."""
    if all(_are_close(call.ours, call.theirs) for call in calls):
        return
    looks = [(call.name, _looks(call.ours), _looks(call.theirs)) for call in calls]
    there: dict[Hashable, list[tuple[CallName, Hashable]]] = defaultdict(list)
    for name, ours, theirs in looks:
        there[theirs].append((name, ours))
    for name, ours, _ in looks:
        others = there.get(ours, ()) if ours else ()
        if others and all(other is not name and inputs != ours for other, inputs in others):
            yield f"{name} has the inputs of {others[0][0]} of the golden run"


def _are_close(ours: _Inputs, theirs: _Inputs) -> bool:
    """Whether all inputs look about as they do in the other run."""
    if len(ours) != len(theirs):
        return False
    return all(a is b or _is_close(a, b) for a, b in zip(ours.values(), theirs.values(), strict=True))


def _is_close(a: Leaf | None, b: Leaf | None) -> bool:
    if a is None or b is None or a.shape != b.shape:
        return False
    if not isinstance(a.stats, Statistics) or not isinstance(b.stats, Statistics):
        return a.stats == b.stats and a.value == b.value
    for one, other in ((a.stats.max, b.stats.max), (a.stats.mean, b.stats.mean)):
        if one != other and (one is None or other is None or not abs(one - other) * _STEPS <= abs(one)):
            return False
    return True


def _looks(found: _Inputs) -> Hashable:
    """The shapes and statistics of tensors, to about three digits; nothing if others may look so too."""
    leaves = [leaf for leaf in found.values() if leaf is not None]
    if not any(map(is_telling, leaves)):
        return ()
    return tuple(
        (leaf.shape, _coarse(leaf.stats.max), _coarse(leaf.stats.mean))
        for leaf in leaves
        if isinstance(leaf.stats, Statistics)
    )


def _coarse(value: float | None) -> Hashable:
    if value is None or not math.isfinite(value):
        return str(value)
    mantissa, exponent = math.frexp(value)
    return round(mantissa * _STEPS), exponent
