"""What the mappings mean for a MindSpore target and a PyTorch golden run: prefixes, APIs, positions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msprobe.errors import ConfigError, UsageError
from msprobe.name import BACKWARD, FORWARD, CallName, call_owner
from msprobe.pairing.layers import paired_by_layer
from msprobe.pairing.mapping import ApiLine, ApiMapping, Mappings, module_names
from msprobe.pairing.match import NOWHERE, Rename, places, slot_of
from msprobe.pairing.roles import MINT_PREFIXES, other_slot
from msprobe.record import Record, Recording

MINDSPORE, PYTORCH = "mindspore", "pytorch"

_MODULE = "Module"
_NO_LAYER = "the layer mapping finds no such call in the golden run"

Table = Mapping[str, Sequence[str]]  # the APIs of PyTorch that do what one of MindSpore does


def across(mappings: Mappings, target: Recording, golden: Recording, table: Table) -> Rename:
    """How the golden run calls what the target recorded, as far as the mappings say."""
    _must_be_in_order(mappings, target, golden)
    own = {line.target: line for line in mappings.api.lines} if mappings.api is not None else {}
    if mappings.api is not None:
        _check_positions(mappings.api, target, golden)
    names: dict[str, str] = {}
    if mappings.layer is not None:
        names.update(paired_by_layer(mappings.layer, target, golden))
    if mappings.data is not None:
        names.update((line.target, line.golden) for line in mappings.data.lines)
    owner = _owner(mappings, own, golden, table)
    if mappings.api is not None:
        names = {**_recounted(target, owner), **names}
    only_layers = mappings.layer is not None and mappings.api is None and mappings.cell is None
    return Rename(
        owner,
        MappingProxyType(names),
        _slots(own),
        lacking=_NO_LAYER if only_layers else "",
    )


def _must_be_in_order(mappings: Mappings, target: Recording, golden: Recording) -> None:
    frameworks = target.header.framework, golden.header.framework
    if frameworks == (MINDSPORE, PYTORCH):
        return
    for option, given in (("-am", mappings.api), ("-cm", mappings.cell), ("-lm", mappings.layer)):
        if given is not None:
            raise UsageError(
                f"{option} is for a target of MindSpore and a golden run of PyTorch, but {target.folder} was "
                f"recorded with {frameworks[0]} and {golden.folder} with {frameworks[1]}; name the MindSpore "
                f"run first, or leave {option} out."
            )


def _owner(
    mappings: Mappings, own: Mapping[str, ApiLine], golden: Recording, table: Table
) -> Callable[[CallName], str | None]:
    known = {record.name.owner for record in golden.records.values()}
    modules = module_names(mappings.cell) if mappings.cell is not None else None

    def owner(name: CallName) -> str | None:
        if name.is_module:
            return None if modules is None else call_owner(_MODULE, modules(name.api) or name.api)
        if mappings.api is None:
            return None
        if name.owner in own:
            return own[name.owner].golden
        candidates = _candidates(name, table)
        return next((each for each in candidates if each in known), candidates[0])

    return owner


def _candidates(name: CallName, table: Table) -> Sequence[str]:
    """What the golden run may call an API, the likeliest first."""
    if name.owner in table:
        return table[name.owner]
    # APIs that the built-in table does not list have the same name behind another prefix.
    return (call_owner(MINT_PREFIXES.get(name.prefix, name.prefix), name.api),)


def _recounted(target: Recording, owner: Callable[[CallName], str | None]) -> dict[str, str]:
    """Calls of several APIs that are one in PyTorch, which counts them together: in the order of execution.

    Where calls were left out of the recording their numbers are all that is known.
    """
    calls: dict[str, list[CallName]] = defaultdict(list)
    for record in target.records.values():
        other = owner(record.name)
        if record.name.direction == FORWARD and not record.name.is_module and other is not None:
            calls[other].append(record.name)
    found = {}
    for other, names in calls.items():
        counts = Counter(name.owner for name in names)
        if len(counts) > 1 and all(
            name.count is not None and name.count < counts[name.owner] for name in names
        ):
            for number, name in enumerate(names):
                for side in (FORWARD, BACKWARD):
                    found[str(name.facing(side))] = str(CallName(other, side, number))
    return found


# ---- places ----


def _slots(own: Mapping[str, ApiLine]) -> Callable[[Record, Record], Mapping[str, str]]:
    def slots(ours: Record, theirs: Record) -> Mapping[str, str]:
        have = {slot_of(place) for place in places(theirs)}
        line = own.get(ours.name.owner)
        found = {}
        for place in places(ours):
            slot = slot_of(place)
            other = _positioned(slot, line, ours.name) if line is not None else None
            if other is None and slot not in have:
                other = other_slot(slot)
            if other is not None:
                found[slot] = other
        return found

    return slots


def _positioned(slot: str, line: ApiLine, name: CallName) -> str | None:
    """Where a position goes that a line of the mapping may speak of; None where it says nothing."""
    _, side, *rest = slot.split(".")
    if not rest or not rest[0].isdigit():
        return None
    # The inputs of a backward call are gradients of outputs, and its outputs are gradients of inputs.
    positions = line.inputs if (side == "input") == (name.direction != BACKWARD) else line.outputs
    if positions is None:
        return None
    place = dict(positions).get(int(rest[0]))
    return NOWHERE if place is None else ".".join(("", side, str(place), *rest[1:]))


class _Counts(NamedTuple):
    inputs: int | None  # None: not recorded
    outputs: int | None


def _check_positions(mapping: ApiMapping, target: Recording, golden: Recording) -> None:
    """A position that no call of the API has is a mistake in the file."""
    ours, theirs = _counts(target), _counts(golden)
    for line in mapping.lines:
        for side, (key, name, counts) in enumerate(
            (("ms", line.target, ours.get(line.target)), ("pt", line.golden, theirs.get(line.golden)))
        ):
            if counts is None:
                continue
            for word, positions, count in (
                ("args", line.inputs, counts.inputs),
                ("outputs", line.outputs, counts.outputs),
            ):
                largest = max((pair[side] for pair in positions or ()), default=-1)
                if count is not None and largest >= count:
                    raise ConfigError(
                        f"{mapping.file}, line {line.number}: '{key}_{word}' holds the position {largest}, "
                        f"but the calls of {name} have {count}; positions count from 0."
                    )


def _counts(recording: Recording) -> dict[str, _Counts]:
    """The most positions that a call of each API has."""
    found: dict[str, _Counts] = {}
    for record in recording.records.values():
        if record.name.direction == FORWARD and not record.name.is_module:
            before = found.get(record.name.owner, _Counts(None, None))
            found[record.name.owner] = _Counts(
                _most(before.inputs, record.fields.get("input_args")),
                _most(before.outputs, record.fields.get("output")),
            )
    return found


def _most(before: int | None, items: object) -> int | None:
    return before if not isinstance(items, list) else max(before or 0, len(items))
