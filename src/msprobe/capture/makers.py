"""Who made a tensor: known by its name, or by the memory that it shares with what calls gave out."""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from msprobe.adapter import Adapter, Extent, OptimizerState, State
from msprobe.capture.memo import Seen
from msprobe.name import earlier_step, in_step, is_forward
from msprobe.record import Leaf

BEFORE_ALL = -2  # a moment: what is known of a tensor counts, whenever it was noted
NAMED = sys.maxsize  # the moment of a parameter or buffer, which keeps its name whoever writes to it

_SHARES = "~"  # before a maker: its memory, but perhaps not its value
_MANY = 50_000
_MOST_TENSORS = 16  # that are remembered of one memory
_KINDS = ("parameter:", "buffer:", "gradient:", "optimizer:")  # makers that are no call begin so

_Named = tuple["weakref.ref[Any]", str]


class Carried:
    """Who made the tensors that outlive a stop(), over all steps; holds none of them alive.

    What writes to them after that is not seen, so they are what they were only if their content is the same.
    """

    def __init__(self) -> None:
        self.step = 0  # that is recorded now
        self._kept: dict[int, tuple[int, Seen]] = {}  # by the id of what stands for the memory

    def keep(self, noted: Iterable[Seen]) -> None:
        """Keep of what was noted what is still in memory."""
        kept = {key: each for key, each in self._kept.items() if each[1].memory() is not None}
        for seen in noted:
            memory = seen.memory()
            if memory is not None:
                kept[id(memory)] = self.step, seen
        self._kept = kept

    def knows(self, memory: Any) -> bool:
        """Whether anything may have been noted on a memory."""
        return id(memory) in self._kept

    def noted_on(self, memory: Any) -> Iterator[tuple[str, Seen]]:
        """What was noted on a memory when it was kept, and the maker as this step names it; latest first."""
        step, latest = self._kept.get(id(memory), (0, None))
        if latest is None or latest.memory() is not memory:
            return
        for seen in (latest, *reversed(latest.earlier)):
            if seen.maker is not None and not seen.maker.lstrip(_SHARES).startswith(_KINDS):
                yield _in_step(seen.maker, step, self.step), seen


class Makers:
    """The makers of one step's tensors; holds neither a tensor nor its memory alive.

    Memory that is gone never matches, although its address is used again: what is noted holds a weak
    reference to it.
    """

    def __init__(self, adapter: Adapter, carried: Carried) -> None:
        self.moment = 0  # counts what was noted
        self._adapter = adapter
        self._memory_of = adapter.memory_of
        self._carried = carried
        self._kept: dict[int, _Named] = {}  # states of optimizers, by the id of the tensor
        self._named: dict[int, _Named] = {}  # by the id of the tensor
        self._parameters: dict[tuple[int, ...], list[_Named]] = {}  # by shape
        self._named_memories: dict[int, list[_Named]] = {}  # by the id of what stands for the memory
        self._latest: dict[int, Seen] = {}  # what was noted last on a memory; by the same

    def name(self, states: Iterable[State]) -> None:
        """Learn the names of the parameters and buffers of a model."""
        named: dict[int, _Named] = {}
        parameters: dict[tuple[int, ...], list[_Named]] = defaultdict(list)
        memories: dict[int, list[_Named]] = defaultdict(list)
        memory_of = self._memory_of
        for kind, name, tensor, shape in states:
            known = weakref.ref(tensor), f"{kind}:{name}"
            is_first = named.setdefault(id(tensor), known) is known  # of its names
            memories[id(memory_of(tensor))].append(known)
            if kind == "parameter" and is_first:
                parameters[shape].append((known[0], name))
        self._named, self._parameters, self._named_memories = named, parameters, memories

    def name_kept(self, states: Iterable[OptimizerState]) -> None:
        """Learn the names of what an optimizer has kept, such as `exp_avg.0.weight`."""
        for name, parameter, tensor in states:
            of = None if parameter is None else self.name_of(parameter)
            if parameter is None or of is not None:
                full = name if of is None else f"{name}.{of.partition(':')[2]}"
                self._kept[id(tensor)] = weakref.ref(tensor), f"optimizer:{full}"

    def name_of(self, tensor: Any) -> str | None:
        """The name of a parameter, of a buffer, or of a gradient that was found to be one."""
        known = self._named.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def note(self, tensor: Any, memory: Any, seen: Seen) -> None:
        """Note on its memory that a tensor has the maker that is known of it."""
        self.moment = seen.moment = self.moment + 1
        if memory is None:
            return
        if seen.version is None:
            seen.version = self._adapter.extent_of(tensor, None, seen.leaf)
        key = id(memory)
        latest = self._latest.get(key)
        earlier: tuple[Seen, ...] = ()
        if latest is None:
            if len(self._latest) > _MANY:
                everything = list(self._latest.items())  # in one go: other threads add to it meanwhile
                self._latest = {at: each for at, each in everything if each.memory() is not None}
        elif latest.memory() is memory:
            others = (*latest.earlier, latest)[-_MOST_TENSORS:]
            earlier = tuple(each for each in others if each is not seen and each.version != seen.version)
            latest.earlier = ()
        seen.memory, seen.earlier = weakref.ref(memory), earlier
        self._latest[key] = seen

    def find(
        self,
        tensor: Any,
        memory: Any,
        version: Hashable | None,
        leaf: Leaf,
        since: int = BEFORE_ALL,
        record: str = "",
    ) -> str | None:
        """Who made a tensor whose identity tells nothing, as far as it was noted after `since`.

        `record`: where it was seen. While backward runs, no tensor is what a parameter holds already.
        """
        if since == BEFORE_ALL and leaf.shape in self._parameters and not leaf.requires_grad:
            is_held = not record or is_forward(record)
            name = (self._gradient(leaf.shape, tensor, memory) if is_held else None) or self.name_of(memory)
            if name is not None:
                return name
        if memory is None:
            return None
        noted = [seen for seen in self._seen_in(memory) if seen.moment > since]
        if noted:
            extent = self._adapter.extent_of(tensor, version, leaf)
            found = [(self._extent(seen), seen) for seen in noted]
            for where, seen in found:
                if _is_same(where, extent, seen.leaf, leaf):
                    return seen.maker
            if since != BEFORE_ALL:
                return None  # another tensor on the same memory, which the call itself made
            for where, seen in found:
                if where.changes == extent.changes and _holds(where, extent):
                    return seen.maker and sharing(seen.maker)
            for where, seen in found:
                if _overlap(where, extent):
                    return seen.maker and sharing(seen.maker)
        return self._of_old(tensor, memory, version, leaf) if since == BEFORE_ALL else None

    def _of_old(self, tensor: Any, memory: Any, version: Hashable | None, leaf: Leaf) -> str | None:
        """Who made a tensor that was there before this step began."""
        kept = self._kept.get(id(tensor))
        if kept is not None and kept[0]() is tensor:
            return kept[1]
        if id(memory) not in self._named_memories and not self._carried.knows(memory):
            return None
        extent = self._adapter.extent_of(tensor, version, leaf)
        return self._of_earlier(memory, extent, leaf) or next(self._named_in(memory, extent), None)

    def share_memory(self, one: Any, other: Any) -> bool:
        """Whether two tensors lie in the same memory, at any places; also where neither has any."""
        return self._memory_of(one) is self._memory_of(other)

    def coincide(self, one: Any, other: Any) -> bool:
        """Whether two tensors lie on the same bytes."""
        memory = self._memory_of(one)
        if memory is None or self._memory_of(other) is not memory:
            return False
        extents = (self._adapter.extent_of(each, None, Leaf("")) for each in (one, other))
        return len({extent[:2] for extent in extents}) == 1

    def _of_earlier(self, memory: Any, extent: Extent, leaf: Leaf) -> str | None:
        """Who made a tensor before a stop(): exactly this one only if its content says so."""
        for maker, seen in self._carried.noted_on(memory):
            where = self._extent(seen)
            if where[:2] == extent[:2] and _is_same_content(seen.leaf, leaf):
                return maker
            if _overlap(where, extent):
                return sharing(maker)
        return None

    def forget(self) -> None:
        """Forget who made what, but for what outlives this; a parameter stays the parameter that it is."""
        self._carried.keep(list(self._latest.values()))
        self._latest.clear()

    def _seen_in(self, memory: Any) -> Iterator[Seen]:
        """What was noted on a memory, the latest first."""
        latest = self._latest.get(id(memory))
        if latest is not None and latest.memory() is memory:
            earlier = latest.earlier  # other threads may take it away
            yield latest
            yield from reversed(earlier)

    def _extent(self, seen: Seen) -> Extent:
        version = seen.version
        return version if isinstance(version, Extent) else self._adapter.extent_of(None, version, seen.leaf)

    def _named_in(self, memory: Any, extent: Extent) -> Iterator[str]:
        """The parameters and buffers that share a part of a memory, as `~name`."""
        for reference, name in self._named_memories.get(id(memory), ()):
            state = reference()
            if state is not None and self._memory_of(state) is memory:
                where = self._adapter.extent_of(state, None, Leaf(""))
                if _overlap(where, extent):
                    yield f"{_SHARES}{name}"

    def _gradient(self, shape: tuple[int, ...], tensor: Any, memory: Any) -> str | None:
        """Name a tensor, or what stands for its memory, if it is the gradient that a parameter holds now."""
        for reference, name in self._parameters[shape]:
            parameter = reference()
            gradient = None if parameter is None else self._adapter.gradient_of(parameter)
            if gradient is not None and (gradient is tensor or gradient is memory):
                named = f"gradient:{name}"
                self._named[id(gradient)] = (weakref.ref(gradient), named)
                return named
        return None


def _is_same(where: Extent, extent: Extent, ours: Leaf, theirs: Leaf) -> bool:
    """Whether two tensors show the very same numbers: nobody wrote there, or the content is the same."""
    if where[:3] != extent[:3]:
        return False
    if where.changes is not None and extent.changes is not None:
        return where.changes == extent.changes
    return _is_same_content(ours, theirs)


def _is_same_content(ours: Leaf, theirs: Leaf) -> bool:
    """Whether two leaves are known to show the same bits."""
    content = ours.hash, ours.checksum
    is_known = content != (None, None) and content == (theirs.hash, theirs.checksum)
    return is_known and (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)


def sharing(maker: str) -> str:
    """Return `~maker`: what a value says of its maker that is perhaps not quite what that gave out."""
    return maker if maker.startswith(_SHARES) else f"{_SHARES}{maker}"


def _in_step(maker: str, step: int, now: int) -> str:
    """Name the maker of another step: `step0/Functional.relu.0.forward.output.0`."""
    name = maker.lstrip(_SHARES)
    if step == now or earlier_step(name) is not None:
        return maker
    return f"{_SHARES if maker.startswith(_SHARES) else ''}{in_step(name, step)}"


def _holds(whole: Extent, part: Extent) -> bool:
    return whole.start <= part.start and part.end <= whole.end


def _overlap(one: Extent, other: Extent) -> bool:
    return one.start < other.end and other.start < one.end
