"""What was seen of each tensor, and who made it: each version of a tensor is described once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from msprobe.adapter import Adapter, OptimizerState, Want
from msprobe.capture.makers import BEFORE_ALL, NAMED, Carried, Makers, sharing
from msprobe.capture.memo import Memo, Seen
from msprobe.capture.module_state import MODULE_STATE
from msprobe.kernels import SKETCH_SIZE
from msprobe.name import slot_name
from msprobe.record import Leaf, is_float, tensors_in, with_sketch

_UNSEEN = Leaf("tensor")
_WHOLE = 4 * SKETCH_SIZE  # bytes


def _outline(tensor: Any) -> Leaf:
    """The leaf of a tensor of which only dtype and shape are asked for."""
    return Leaf(
        "tensor", dtype=str(tensor.dtype), shape=tuple(tensor.shape), requires_grad=tensor.requires_grad
    )


class Descriptions:
    """Describes the tensors of one step; holds none of them alive."""

    def __init__(
        self, adapter: Adapter, want: Want, carried: Carried, *, sketches_state: bool = False
    ) -> None:
        self._adapter = adapter
        self._version_of, self._memory_of = adapter.version_of, adapter.memory_of
        self._describe = adapter.describe
        self._want = want
        self._sketches_state = sketches_state and not want.sketch  # steps are compared by them
        self._want_of_state = want._replace(float_sketch=self._sketches_state)
        self._memo = Memo()
        self._makers = Makers(adapter, carried)
        self.drop: Callable[[Any], None] = self._memo.drop

    @property
    def moment(self) -> int:
        """Now, as makers are noted: what a call makes is noted after the moment at which it began."""
        return self._makers.moment

    def name_state(self, models: Any) -> None:
        """Learn the names of the parameters and buffers of the models that start() was given."""
        self._makers.name(self._adapter.named_state(models))

    def name_kept(self, states: Iterable[OptimizerState]) -> None:
        """Learn the names of what an optimizer has kept."""
        self._makers.name_kept(states)

    def of(self, tensor: Any, record: str, slot: str, since: int | None = None) -> tuple[Leaf, Seen | None]:
        """The leaf of a tensor, and what is known of it while it does not change.

        `since`: the moment at which the call began that it came out of; None for what went in.
        """
        version = self._version_of(tensor)
        seen = self._memo.find(tensor, version) if version is not None else None
        if seen is None:
            leaf, seen = self._first(tensor, version, record, slot, since)
            return leaf, None if version is None else seen
        leaf = seen.with_maker()
        if since is not None and seen.moment <= since:  # what went into the call comes out of it
            seen.comes_from(slot_name(record, slot))
            self._makers.note(tensor, self._memory_of(tensor), seen)
        return leaf, seen

    def _first(
        self, tensor: Any, version: Hashable | None, record: str, slot: str, since: int | None
    ) -> tuple[Leaf, Seen]:
        """The leaf of a tensor that is new, and what is known of it from now on."""
        makers = self._makers
        memory, name = self._memory_of(tensor), makers.name_of(tensor)
        # What a call wrote into a parameter shows where it is used.
        is_written = since is not None and name is not None and name.startswith("parameter:")
        if (name is None and not slot.startswith(MODULE_STATE)) or is_written:
            leaf = self._describe(tensor, self._want)
        else:
            leaf = self.sketched(tensor, self._describe(tensor, self._want_of_state))
        if name is None and (since is None or version is None):
            start = BEFORE_ALL if since is None else since
            maker = makers.find(tensor, memory, version, leaf, start, record)
            if since is None or maker is not None:
                seen = self._kept(tensor, version, leaf, maker)
                return seen.with_maker(), seen
        seen = self._kept(tensor, version, leaf, name or slot_name(record, slot))
        makers.note(tensor, memory, seen)
        if name is None:
            return leaf, seen
        seen.moment = NAMED
        return seen.with_maker(), seen

    def sketched(self, tensor: Any, leaf: Leaf) -> Leaf:
        """The leaf of a parameter, a buffer or a gradient of one: with a sketch if it has numbers for it."""
        is_whole = leaf.sketch is not None and len(leaf.sketch) == _WHOLE
        if is_whole or not self._sketches_state or not is_float(leaf.dtype):
            return leaf
        sketch = self._adapter.sketch(tensor)
        return leaf if sketch is None else with_sketch(leaf, sketch)

    def _kept(self, tensor: Any, version: Hashable | None, leaf: Leaf, maker: str | None) -> Seen:
        """What is known of a tensor; it is found again only if it has versions."""
        return Seen(None, leaf, maker) if version is None else self._memo.keep(tensor, version, leaf, maker)

    def note_changed(self, record: str, changed: Any, outputs: Iterable[Any]) -> None:
        """Note what a call changed in its first argument and did not return, such as `x[0] = y`."""
        returned = list(outputs)
        for number, tensor in enumerate(tensors_in(changed, self._adapter.is_tensor)):
            if not self._is_among(tensor, returned) and self._makers.name_of(tensor) is None:
                slot = "input.0" if tensor is changed else f"input.0.{number}"
                maker = f"~{slot_name(record, slot)}"  # the argument as it was, and not what became of it
                self._makers.note(tensor, self._memory_of(tensor), Seen(None, _UNSEEN, maker))

    def note_copy(self, source: Any, copy: Any, is_whole: bool) -> None:
        """Note that a copy in memory of its own has the maker of its source; neither is described.

        It is `~maker` if it has some of the elements only or another dtype, or is a snapshot of state.
        """
        makers = self._makers
        if makers.share_memory(source, copy):
            return
        of_source, of_copy = _outline(source), _outline(copy)
        name = makers.name_of(source)
        maker = name or self._maker_of(source, of_source)
        if maker is None:
            return
        is_same = is_whole and (of_source.dtype, of_source.shape) == (of_copy.dtype, of_copy.shape)
        is_snapshot = name is not None and not of_copy.requires_grad
        if not is_same or is_snapshot:
            maker = sharing(maker)
        makers.note(copy, self._memory_of(copy), Seen(self._version_of(copy), of_copy, maker))

    def _maker_of(self, tensor: Any, outline: Leaf) -> str | None:
        """The maker of a tensor that need not have been described."""
        version = self._version_of(tensor)
        seen = self._memo.find(tensor, version) if version is not None else None
        if seen is not None:
            return seen.maker
        return self._makers.find(tensor, self._memory_of(tensor), version, outline)

    def _is_among(self, tensor: Any, others: Sequence[Any]) -> bool:
        """Whether one of the others is this tensor, perhaps as another object."""
        return any(each is tensor for each in others) or any(
            self._makers.coincide(tensor, each) for each in others
        )

    def forget(self) -> None:
        """Whatever is seen from now on may have been changed unnoticed."""
        self._memo.forget()
        self._makers.forget()
