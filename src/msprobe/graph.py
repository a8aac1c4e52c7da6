"""Graph: who made which value of a recording, as the recorder noted it, or inferred where it did not.

A leaf says in `made_by` who made it:

    Functional.linear.3.forward.output.0   this slot of this recording has exactly this value
    step0/Torch.relu.0.forward.output.0    the same of the recording of an earlier step
    parameter:blocks.0.q.weight            a parameter of the model, by its name; also buffer: and gradient:
    optimizer:exp_avg.blocks.0.q.weight    what an optimizer keeps for a parameter
    ~X                                     shares memory with X: a view of it, or changed in place since

What was not noted is inferred, here and nowhere else. The gradient that enters a backward call is the sum of
what the backward calls of all users of the forward call's output gave out. In a recording without any maker,
as older releases and other tools write them, the maker of an input is the latest earlier output that has the
same shape, dtype and statistics.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from msprobe.graph_order import in_order
from msprobe.graph_values import adds_up, is_equal, is_telling, key_of
from msprobe.name import (
    BACKWARD,
    FORWARD,
    PARAMETERS_GRAD,
    CallName,
    earlier_step,
    record_and_slot,
    slot_name,
)
from msprobe.record import Leaf, Recording, Side, slots

Kind = Literal["call", "parameter", "buffer", "gradient", "optimizer", "earlier step"]
Spot = tuple[str, str]  # a record and one of its slots

_KINDS = frozenset(get_args(Kind)) - {"call", "earlier step"}
_CARRIED = frozenset({"optimizer", "earlier step"})  # no call of this step made the value
_STATE = ("parameters", "buffers", "buffers_after")
_SHARES = "~"
_MOST = 20  # outputs with the same values: the nearest


class Maker(NamedTuple):
    """Who made a value."""

    kind: Kind
    name: str  # of the record, or of the parameter, buffer, gradient or state
    slot: str = ""  # of the record; of an earlier step the whole name there
    is_exact: bool = True  # False: a view or part of it, one of several that were added up, or inferred


class Copied(NamedTuple):
    """What a value was copied from by something that was not recorded, such as a cast or an index."""

    maker: Maker
    dtype: str | None  # of what was copied; None if that is not known
    is_part: bool  # it has another number of elements


class _Use(NamedTuple):
    """An input, and whether it is exactly what was made."""

    spot: Spot
    is_exact: bool


class Graph:
    """Who made which value of a recording.

    Slots are named as tables name them: `input.0`, `input.mask`, `output.0`, `parameters.weight`.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._records = recording.records
        self._known: dict[Spot, tuple[Maker, ...]] = {}
        self._makers_by_text: dict[str, Maker | None] = {}

    @functools.cached_property
    def is_recorded(self) -> bool:
        """Whether the recording says who made its values; if not, everything is inferred."""
        found = (leaf for record in self._records.values() for _, _, leaf in slots(record))
        return any(leaf is not None and leaf.made_by is not None and _is_tensor(leaf) for leaf in found)

    def makers(self, record: str, slot: str) -> tuple[Maker, ...]:
        """The makers of an input, or of a module's output: none if unknown, several if it is their sum.

        What an earlier step left behind was made by nobody in this one: see left_behind().
        """
        found = self._known.get((record, slot))
        if found is None:
            found = self._known[record, slot] = self._makers(record, slot)
        return found

    def _makers(self, record: str, slot: str) -> tuple[Maker, ...]:
        leaf = self.leaf(record, slot)
        if leaf is None:
            return ()
        noted = self._noted(leaf)
        if noted is None:
            noted = self._inferred(record, slot)
        elif noted.kind in _CARRIED:
            noted = None
        direction = self._records[record].name.direction
        if direction == PARAMETERS_GRAD:
            return self._chosen(leaf, noted, self._parameter_shares(record, slot))
        if direction == BACKWARD and slot.startswith("input"):
            return self._chosen(leaf, noted, self._shares(record, slot))
        return () if noted is None else (noted,)

    def left_behind(self, record: str, slot: str) -> Maker | None:
        """The slot of an earlier step, or the state of an optimizer, that a value is."""
        leaf = self.leaf(record, slot)
        noted = self._noted(leaf) if leaf is not None else None
        return noted if noted is not None and noted.kind in _CARRIED else None

    def users(self, record: str, slot: str) -> tuple[Spot, ...]:
        """The inputs that an output went into: the record and the slot of each."""
        return tuple(use.spot for use in self._used(record, slot))

    def parameter(self, record: str, slot: str) -> str | None:
        """The name of the parameter or buffer that a slot shows, or whose gradient it is."""
        leaf = self.leaf(record, slot)
        if leaf is None:
            return None
        noted = self._noted(leaf)
        if noted is not None and noted.is_exact and noted.kind in ("parameter", "buffer", "gradient"):
            return noted.name
        name = self._records[record].name
        if name.direction == PARAMETERS_GRAD:
            own = self._state_of(name.owner).get(slot)
            return own or ".".join((*name.path, slot))
        field, _, key = slot.partition(".")
        if field in _STATE:
            return ".".join((*name.path, key))
        return None if self.is_recorded else self._known_state.get(key_of(leaf))

    def handed_on(self, record: str, slot: str) -> str | None:
        """The input that an output is equal to: the call changed nothing, as a cast to its own dtype."""
        leaf = self.leaf(record, slot)
        if leaf is None or (leaf.hash is None and not is_telling(leaf)):
            return None
        given = ((other, self.leaf(record, other)) for other in self._side(record, "input"))
        return next((other for other, it in given if it is not None and is_equal(it, leaf)), None)

    def state(self, record: str, slot: str) -> Maker | None:
        """The parameter or buffer that a value is, also behind calls that changed nothing."""
        given: str | None = slot
        while given is not None:
            leaf = self.leaf(record, given)
            noted = self._noted(leaf) if leaf is not None else None
            if noted is None or not noted.is_exact:
                return None
            if noted.kind != "call":
                return noted if noted.kind in ("parameter", "buffer") else None
            record, given = noted.name, self.handed_on(noted.name, noted.slot)
        return None

    def gradient_makers(self, parameter: str) -> tuple[Maker, ...]:
        """The outputs of backward calls that were added up to the gradient of a parameter, by its name."""
        return tuple(self._given_back(self._uses.get(f"parameter:{parameter}", [])))

    def argument_makers(self, record: str, slot: str) -> tuple[Maker, ...]:
        """The makers of the argument whose gradient a backward call gives out."""
        forward = self._keys.get(self._records[record].name.facing(FORWARD))
        _, _, number = slot.partition(".")
        inputs = self._side(forward, "input") if forward is not None and number.isdecimal() else []
        if forward is None or not number.isdecimal() or int(number) >= len(inputs):
            return ()
        return self.makers(forward, inputs[int(number)])

    def is_given_back(self, record: str, slot: str) -> bool:
        """Whether the backward call of a call gave out the gradient of one of its inputs."""
        return next(self._given_back([_Use((record, slot), True)]), None) is not None

    def changed(self, record: str, slot: str) -> bool:
        """Whether a value is not what its exact maker gave out: something unrecorded has changed it."""
        leaf = self.leaf(record, slot)
        noted = self._noted(leaf) if leaf is not None else None
        if leaf is None or noted is None or not noted.is_exact or noted.kind != "call":
            return False
        given = self.leaf(noted.name, noted.slot)
        return given is not None and not is_equal(leaf, given)

    def order(self) -> list[str]:
        """The names of the records in the order of execution."""
        names = list(self._records)
        return [names[number] for number in in_order([record.name for record in self._records.values()])]

    def shown_before(self, record: str, slot: str) -> list[Spot]:
        """The outputs that show exactly the value of an input before it goes in, the latest first.

        These are those of its maker, of the modules around that, and of calls that only passed it on.
        """
        leaf = self.leaf(record, slot)
        if leaf is None:
            return []
        if not self.is_recorded:
            return self._earlier(record, leaf)[:_MOST]
        found: dict[Spot, int] = {}
        noted = self._noted(leaf)
        while noted is not None and noted.is_exact and noted.kind == "call" and len(found) < _MOST:
            for spot in ((noted.name, noted.slot), *self._shown_again.get((noted.name, noted.slot), ())):
                if self._begins(record) > self._numbers[spot[0]]:
                    found[spot] = self._numbers[spot[0]]
            given = self.leaf(noted.name, noted.slot)
            noted = self._noted(given) if given is not None else None
        return sorted(found, key=lambda spot: -found[spot])

    # ---- what is recorded ----

    @functools.cached_property
    def _tensors(self) -> dict[str, dict[str, tuple[Side, Leaf]]]:
        """The tensors of each record by their slots."""
        found: dict[str, dict[str, tuple[Side, Leaf]]] = {}
        for key, record in self._records.items():
            tensors = found[key] = {}
            for slot, side, leaf in slots(record):
                if leaf is not None and _is_tensor(leaf):
                    tensors[slot] = side, leaf
        return found

    @functools.cached_property
    def _keys(self) -> dict[CallName, str]:
        """The key of each record by its name; some writers have keys that are not quite the name."""
        return {record.name: key for key, record in self._records.items()}

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {key: number for number, key in enumerate(self._records)}

    def leaf(self, record: str, slot: str) -> Leaf | None:
        """The tensor at a slot of a record."""
        found = self._tensors.get(record, {}).get(slot)
        return found[1] if found is not None else None

    def copied_from(self, record: str, slot: str) -> Copied | None:
        """What a value was copied from, perhaps in part, by something that was not recorded."""
        leaf = self.leaf(record, slot)
        if leaf is None or not is_copied(leaf):
            return None
        maker = self._noted(leaf)
        if maker is None:
            return None
        if maker.kind != "call":
            return Copied(maker, self._state_dtypes.get(f"{maker.kind}:{maker.name}"), False)
        source = self.leaf(maker.name, maker.slot)
        return None if source is None else Copied(maker, source.dtype, leaf.elements != source.elements)

    @functools.cached_property
    def _state_dtypes(self) -> dict[str, str | None]:
        """The dtypes of parameters, buffers and the like, where they show as they are."""
        found: dict[str, str | None] = {}
        for tensors in self._tensors.values():
            for _, leaf in tensors.values():
                if leaf.made_by is not None and leaf.made_by.partition(":")[0] in _KINDS:
                    found.setdefault(leaf.made_by, leaf.dtype)
        return found

    def _side(self, record: str, side: Side) -> list[str]:
        """The slots of the tensors on one side of a record, in the order in which gradients count them."""
        found = self._tensors[record].items()
        return [slot for slot, (where, _) in found if where == side and not slot.startswith(_STATE)]

    def _noted(self, leaf: Leaf) -> Maker | None:
        """The maker that a leaf names."""
        text = leaf.made_by
        if text is None:
            return None
        try:
            return self._makers_by_text[text]
        except KeyError:
            found = self._makers_by_text[text] = self._parsed(text)
            return found

    def _parsed(self, text: str) -> Maker | None:
        is_exact = not text.startswith(_SHARES)
        text = text.removeprefix(_SHARES)
        kind, _, name = text.partition(":")
        if earlier_step(text) is not None:
            return Maker("earlier step", text, text.partition("/")[2], is_exact)
        if kind in _KINDS:
            return Maker(kind, name, "", is_exact)  # type: ignore[arg-type]  # it is one of them
        found = record_and_slot(text, self._records)
        return Maker("call", *found, is_exact) if found is not None else None

    @functools.cached_property
    def _uses(self) -> dict[str, list[_Use]]:
        """The inputs by what they say of their maker."""
        found: dict[str, list[_Use]] = defaultdict(list)
        for key, tensors in self._tensors.items():
            for slot, (side, leaf) in tensors.items():
                if side == "input" and leaf.made_by is not None:
                    is_exact = not leaf.made_by.startswith(_SHARES)
                    found[leaf.made_by.removeprefix(_SHARES)].append(_Use((key, slot), is_exact))
        return found

    @functools.cached_property
    def _shown_again(self) -> dict[Spot, list[Spot]]:
        """The outputs of modules by the output inside that they are."""
        found: dict[Spot, list[Spot]] = defaultdict(list)
        for key, tensors in self._tensors.items():
            for slot, (side, leaf) in tensors.items():
                maker = self._noted(leaf) if side == "output" else None
                if maker is not None and maker.kind == "call" and maker.is_exact:
                    found[maker.name, maker.slot].append((key, slot))
        return found

    def _used(self, record: str, slot: str) -> list[_Use]:
        """The uses of an output: what a module gives out is used as what was made in it."""
        if not self.is_recorded:
            return self._inferred_uses.get((record, slot), [])
        found = self._uses.get(slot_name(record, slot), [])
        leaf = self.leaf(record, slot) if not found else None
        maker = self._noted(leaf) if leaf is not None else None
        if maker is None or maker.kind != "call" or not maker.is_exact:
            return found
        uses = self._uses.get(slot_name(maker.name, maker.slot), [])
        return [use for use in uses if use.spot[0] != record and record not in self._around(use.spot[0])]

    def _around(self, record: str) -> list[str]:
        """The modules that a call ran in, the innermost first."""
        found: list[str] = []
        parent = self._records[record].parent
        while parent is not None and parent not in found:
            found.append(parent)
            outer = self._records.get(parent)
            parent = outer.parent if outer is not None else None
        return found

    @functools.cached_property
    def _starts(self) -> dict[str, int]:
        """The number of the first record inside a module: it began before that."""
        found: dict[str, int] = {}
        for key, number in self._numbers.items():
            for module in self._around(key):
                found.setdefault(module, number)
        return found

    def _begins(self, record: str) -> int:
        """When a call began: everything with a smaller number was over then."""
        number = self._numbers[record]
        return min(number, self._starts.get(record, number))

    # ---- gradients: sums of what the users of a value gave back ----

    def _shares(self, record: str, slot: str) -> list[Maker]:
        """What was added up to a gradient that enters a backward call."""
        forward = self._keys.get(self._records[record].name.facing(FORWARD))
        _, _, number = slot.partition(".")
        if forward is None or not number.isdecimal():
            return []
        outputs = self._side(forward, "output")
        if int(number) >= len(outputs):
            return []
        return list(self._given_back(self._used(forward, outputs[int(number)])))

    def _parameter_shares(self, record: str, slot: str) -> list[Maker]:
        """What was added up to the gradient of a parameter."""
        name = self.parameter(record, slot)
        return list(self._given_back(self._uses.get(f"parameter:{name}", [])))

    def _given_back(self, uses: Sequence[_Use]) -> Iterator[Maker]:
        """The gradients that uses of a value gave back; of a module and the calls in it only those in it."""
        holders = {module for use in uses for module in self._around(use.spot[0])}
        for (user, slot), is_exact in uses:
            back = self._keys.get(self._records[user].name.facing(BACKWARD))
            if back is None or user in holders or self._records[user].name.direction != FORWARD:
                continue
            place = f"output.{self._side(user, 'input').index(slot)}"
            if self.leaf(back, place) is not None:
                yield Maker("call", back, place, is_exact)

    def _chosen(self, leaf: Leaf, noted: Maker | None, shares: list[Maker]) -> tuple[Maker, ...]:
        """The makers that the numbers do not contradict."""
        known = () if noted is None else (noted,)
        given = [found for share in shares if (found := self.leaf(share.name, share.slot)) is not None]
        if len(shares) == 1:
            if noted == shares[0]:
                return known
            if is_equal(leaf, given[0]):
                is_exact = shares[0].is_exact and noted is not None and noted.is_exact
                return (shares[0]._replace(is_exact=is_exact),)
            if noted is None and adds_up(leaf, given):  # adding to zeros turns -0.0 into 0.0
                return (shares[0]._replace(is_exact=False),)
            return known
        if not shares or (noted is not None and noted.is_exact) or not adds_up(leaf, given):
            return known
        return tuple(share._replace(is_exact=False) for share in shares)

    # ---- recordings that name no maker ----

    @functools.cached_property
    def _by_value(self) -> dict[Hashable, list[tuple[int, Spot]]]:
        """The outputs by their values, in the order in which they came out."""
        found: dict[Hashable, list[tuple[int, Spot]]] = defaultdict(list)
        for number, (key, tensors) in enumerate(self._tensors.items()):
            if self._records[key].name.direction == PARAMETERS_GRAD:
                continue
            for slot, (side, leaf) in tensors.items():
                if side == "output" and is_telling(leaf):
                    found[key_of(leaf)].append((number, (key, slot)))
        return found

    def _earlier(self, record: str, leaf: Leaf) -> list[Spot]:
        """The outputs of the same values that were there before a call began, the latest first."""
        found = self._by_value.get(key_of(leaf), []) if is_telling(leaf) else []
        end = bisect_left(found, self._begins(record), key=lambda each: each[0])
        around = self._around(record)
        return [spot for _, spot in reversed(found[max(end - 2 * _MOST, 0) : end]) if spot[0] not in around]

    def _inferred(self, record: str, slot: str) -> Maker | None:
        leaf = self.leaf(record, slot)
        if self.is_recorded or leaf is None:
            return None
        side, name = self._tensors[record][slot][0], self._records[record].name
        if side == "input" or name.direction == PARAMETERS_GRAD:
            earlier = self._earlier(record, leaf)
        elif side == "output" and name.is_module:
            same = self._by_value.get(key_of(leaf), []) if is_telling(leaf) else []
            earlier = [spot for _, spot in reversed(same) if record in self._around(spot[0])]
        else:
            earlier = []
        if not earlier:
            return None
        inside = [spot for spot in earlier if earlier[0][0] in self._around(spot[0])]
        spot = next((spot for spot in inside if not self._records[spot[0]].name.is_module), earlier[0])
        return Maker("call", *spot, is_exact=False)

    @functools.cached_property
    def _inferred_uses(self) -> dict[Spot, list[_Use]]:
        found: dict[Spot, list[_Use]] = defaultdict(list)
        for key, tensors in self._tensors.items():
            for slot, (side, _) in tensors.items():
                maker = self._inferred(key, slot) if side == "input" else None
                if maker is not None:
                    found[maker.name, maker.slot].append(_Use((key, slot), is_exact=False))
                    for spot in self._modules_showing(maker, key):
                        found[spot].append(_Use((key, slot), is_exact=False))
        return found

    def _modules_showing(self, maker: Maker, user: str) -> Iterator[Spot]:
        """The outputs of modules around a maker that show its value before it is used."""
        leaf = self.leaf(maker.name, maker.slot)
        around = self._around(maker.name)
        for spot in self._earlier(user, leaf) if leaf is not None and around else ():
            if spot[0] in around:
                yield spot

    @functools.cached_property
    def _known_state(self) -> dict[Hashable, str]:
        """The names of the parameters of modules by their values."""
        found: dict[Hashable, str] = {}
        for key, tensors in self._tensors.items():
            for slot, (side, leaf) in tensors.items():
                if side == "parameters" and is_telling(leaf):
                    found.setdefault(key_of(leaf), self.parameter(key, slot) or "")
        return found

    @functools.cached_property
    def _states(self) -> dict[str, dict[str, str]]:
        """The names of the parameters of each module, by the owner of its records and their names there."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for key, tensors in self._tensors.items():
            for slot, (side, leaf) in tensors.items():
                if side == "parameters" and leaf.made_by is not None:
                    owner = self._records[key].name.owner
                    found[owner].setdefault(slot.partition(".")[2], self.parameter(key, slot) or "")
        return found

    def _state_of(self, owner: str) -> dict[str, str]:
        return self._states.get(owner, {})


def is_carried(made_by: str | None) -> bool:
    """Whether an earlier step made a value or an optimizer has kept it: no call of this step made it."""
    name = (made_by or "").removeprefix(_SHARES)
    return name.startswith("optimizer:") or earlier_step(name) is not None


def is_copied(leaf: Leaf) -> bool:
    """Whether a value was copied, perhaps in part, from what made it."""
    return leaf.made_by is not None and leaf.made_by.startswith(_SHARES)


def _is_tensor(leaf: Leaf) -> bool:
    """Whether a leaf is a tensor of the framework."""
    return leaf.is_tensor and leaf.type != "numpy.ndarray"
