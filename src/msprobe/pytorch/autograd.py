"""A call's own gradients: hooks on the graph nodes at its borders; no node is inserted, no total taken.

Before a call the gradient edge of each input is noted. After it the part of the graph that the call made is
walked from its outputs; nodes made by the call are told by their sequence number. The nodes whose edges leave
that part for a noted edge hold the call's share of that input's gradient.

A call that changes a view in place makes a node for the whole tensor behind the view (CopySlices); there the
gradients of the view are the part of the whole that the view shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from msprobe.adapter import GradientSink

_MANY_NODES = 200_000
_ACCUMULATE = 2**64 - 1  # the sequence number of every AccumulateGrad node

_next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
_set_grad_enabled = torch._C._set_grad_enabled


class Untracked:
    """While our own code touches tensors: nobody overrides a torch function, and no graph is built."""

    __slots__ = ("_builds_graph", "_plain")

    def __enter__(self) -> None:
        self._plain = torch._C.DisableTorchFunction()
        self._plain.__enter__()
        self._builds_graph = torch.is_grad_enabled()
        _set_grad_enabled(False)

    def __exit__(self, *_error: object) -> None:
        _set_grad_enabled(self._builds_graph)
        self._plain.__exit__(None, None, None)


class Begun:
    """Where the inputs of a call hung in the graph before it ran."""

    __slots__ = ("again", "edges", "first_node", "leaves", "nodes", "views")

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.first_node = _next_number()
        self.leaves: dict[int, int] = {}  # id of a leaf tensor -> index of the input
        # (id of a node, number of its output) -> index of the input
        self.edges: dict[tuple[int, int], int] = {}
        self.nodes: list[Any] = []  # held, so that each id stays the id of its node
        # id of a view -> index of the input, the view, its version, its shape
        self.views: dict[int, tuple[int, Tensor, int, torch.Size]] = {}
        # index of an input -> indices at which the same tensor comes again, as in `x * x`
        self.again: dict[int, list[int]] = {}
        for index, tensor in enumerate(inputs):
            if tensor._is_view() and not tensor.is_inference():
                self.views[id(tensor)] = (index, tensor, tensor._version, tensor.shape)
            if not tensor.requires_grad:
                continue
            node = tensor.grad_fn
            if node is None:
                known = self.leaves.setdefault(id(tensor), index)
            else:
                self.nodes.append(node)
                known = self.edges.setdefault((id(node), tensor.output_nr), index)
            if known != index:
                self.again.setdefault(known, []).append(index)

    def made(self, node: Any) -> bool:
        """Whether a node was made since, by this thread."""
        number: int = node._sequence_nr()
        return self.first_node <= number < _ACCUMULATE


class _Window(NamedTuple):
    """The part of a whole tensor that a view of it shows."""

    place: int  # of the view among the inputs
    node: Any  # what made the whole tensor, after the call
    size: Sequence[int]
    stride: Sequence[int]
    offset: int
    whole_size: Sequence[int]
    whole_stride: Sequence[int]

    def of(self, gradient: Tensor | None) -> Tensor | None:
        if gradient is None or gradient.layout is not torch.strided:
            return None
        with Untracked():
            like_whole = gradient.new_empty_strided(self.whole_size, self.whole_stride).copy_(gradient)
            return like_whole.as_strided(self.size, self.stride, self.offset)


def _changed_view(begun: Begun) -> _Window | None:
    """The view among the inputs that the call changed in place; None when there is none, or more than one."""
    found = None
    for index, view, version, shape in begun.views.values():
        whole = view._base
        if whole is None or view._version == version or view.shape != shape:
            continue
        node = whole.grad_fn
        if node is None or not begun.made(node) or type(node).__name__ != "CopySlices":
            continue
        if found is not None:
            return None
        offset = int(view.storage_offset() - whole.storage_offset())
        found = _Window(index, node, view.size(), view.stride(), offset, whole.size(), whole.stride())
    return found


class _Border:
    """A node at the border of a call, and which of its gradients belong to which tensors of the call."""

    __slots__ = ("inputs", "node", "outputs")

    def __init__(self, node: Any) -> None:
        self.node = node
        self.outputs: list[_Way] = []
        self.inputs: list[_Way] = []


_Way = tuple[int, int, "_Window | None"]  # number of a gradient of the node, index of a tensor of the call
_Borders = dict[int, _Border]  # by the id of the node, which the border holds and so keeps unique


def _outputs(begun: Begun, outputs: Sequence[Tensor], window: _Window | None) -> _Borders:
    """The nodes that made the outputs of a call."""
    borders: _Borders = {}
    for index, tensor in enumerate(outputs):
        node = tensor.grad_fn
        if node is None or not begun.made(node):
            continue
        way: _Way = (tensor.output_nr, index, None)
        if window is not None and id(tensor) in begun.views:
            # The view has a node of its own, but whoever goes on with the whole tensor passes it by.
            node, way = window.node, (0, index, window)
        border = borders.get(id(node))
        if border is None:
            border = borders[id(node)] = _Border(node)
        if not border.outputs or all(number != way[0] for number, _, _ in border.outputs):
            border.outputs.append(way)
    return borders


def _add_inputs(borders: _Borders, begun: Begun, window: _Window | None) -> dict[int, int]:
    """Walk what the call made, from its outputs to the edges that leave it; how many lead to each input?"""
    uses: dict[int, int] = {}
    first, edges, leaves = begun.first_node, begun.edges, begun.leaves
    waiting = [border.node for border in borders.values()]
    seen = {id(node): node for node in waiting}  # a node that nobody holds would lend its id to another
    while waiting and len(seen) < _MANY_NODES:
        node = waiting.pop()
        for place, (below, number) in enumerate(node.next_functions):
            if below is None or id(below) in seen:
                continue
            index = edges.get((id(below), number))
            way = None
            if index is None:
                made = below._sequence_nr()
                if made == _ACCUMULATE:
                    index = leaves.get(id(getattr(below, "variable", None))) if leaves else None
                elif made >= first:
                    seen[id(below)] = below
                    waiting.append(below)
                    continue
                elif window is not None and place == 0 and type(node).__name__ == "CopySlices":
                    index, way = window.place, window
                if index is None:
                    continue
            border = borders.get(id(node))
            if border is None:
                border = borders[id(node)] = _Border(node)
            border.inputs.append((place, index, way))
            uses[index] = uses.get(index, 0) + 1
    return uses


def _told_apart(borders: _Borders, index: int, further: list[int]) -> bool:
    """Give each place of a tensor among the inputs its own edge, if one node has them all, in their order."""
    for border in borders.values():
        edges = [i for i, (_, place, _) in enumerate(border.inputs) if place == index]
        if len(edges) == 1 + len(further):
            for i, place in zip(edges, [index, *further], strict=True):
                border.inputs[i] = (border.inputs[i][0], place, border.inputs[i][2])
            return True
    return False


class Tap:
    """The hooks of one call; tells its sink each gradient, and when all have come."""

    __slots__ = ("_came", "_expected", "_fired", "_shares", "_sink")

    def __init__(self, sink: GradientSink) -> None:
        self._sink = sink
        self._expected = 0
        self._fired = 0
        self._shares: dict[int, int] = {}  # the inputs that several edges lead to, and how many
        self._came: dict[int, list[Tensor | None]] = {}  # the shares of these so far

    def attach(self, begun: Begun, outputs: Sequence[Tensor]) -> bool:
        window = _changed_view(begun) if begun.views else None
        borders = _outputs(begun, outputs, window)
        if not borders:
            return False
        uses = _add_inputs(borders, begun, window)
        for index, further in begun.again.items():
            if uses.get(index) == 1 + len(further) and _told_apart(borders, index, further):
                uses[index] = 1
        for index, count in uses.items():
            if count > 1:
                self._shares[index] = count
        self._expected = len(borders)
        for border in borders.values():
            border.node.register_hook(self._hook(border.outputs, border.inputs))
        return True

    def _hook(self, outputs: list[_Way], inputs: list[_Way]) -> Callable[[Any, Any], None]:
        sink = self._sink

        def hook(of_inputs: Sequence[Tensor | None], of_outputs: Sequence[Tensor | None]) -> None:
            if self._fired == 0 and self._expected > 1:
                torch.autograd.Variable._execution_engine.queue_callback(self._flush)
            self._fired += 1
            for number, index, window in outputs:
                gradient = of_outputs[number]
                sink.of_output(index, gradient if window is None else window.of(gradient))
            for place, index, window in inputs:
                gradient = of_inputs[place] if window is None else window.of(of_inputs[place])
                if index in self._shares:
                    self._gather(index, gradient)
                else:
                    sink.of_input(index, gradient)
            if self._fired == self._expected:
                self._flush()

        return hook

    def _gather(self, index: int, share: Tensor | None) -> None:
        """One of several shares of an input's gradient: their sum is told when the last has come."""
        shares = self._came.setdefault(index, [])
        shares.append(share)
        if len(shares) == self._shares[index]:
            self._sink.of_input(index, _sum(self._came.pop(index)))

    def _flush(self) -> None:
        """The end of this call's backward, or of the whole pass where some gradients never come."""
        if self._fired:
            self._fired = 0
            for index, shares in self._came.items():
                self._sink.of_input(index, _sum(shares))
            self._came.clear()
            self._sink.finish()


def _sum(shares: list[Tensor | None]) -> Tensor | None:
    total = None
    with Untracked():
        for share in shares:
            total = share if total is None else total if share is None else torch.add(total, share)
    return total
