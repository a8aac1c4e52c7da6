"""Record the gradients of a single call, by hooks on the first and last graph nodes that it made.

Before a call the gradient edge of each input is noted. After it the part of the graph that the call made is
walked from its outputs; nodes made by the call are told by their sequence number. The nodes whose edges leave
that part for a noted edge hold the call's share of that input's gradient.

A call that changes a view in place makes a node for the whole tensor behind the view (CopySlices); there the
gradients of the view are the part of the whole that the view shows.

Autocast casts a parameter once and lets all calls use the copy, so the node of the cast holds the sum over
these calls. The share of a call is what goes into that node.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from msprobe.adapter import GradientSink

_MANY_NODES = 200_000
_ACCUMULATE = 2**64 - 1  # the sequence number of every AccumulateGrad node

_next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
_set_grad_enabled = torch._C._set_grad_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack


class Untracked:
    """While our own code touches tensors: no mode of the user sees it, and no graph is built.

    A dispatch mode may count what it sees (selective checkpointing does), so it must see nothing of ours.
    Tensor classes with a dispatch of their own keep it.
    """

    __slots__ = ("_builds_graph", "_modes", "_plain")

    def __enter__(self) -> None:
        self._modes = _disable_current_modes() if _dispatch_modes() else None
        if self._modes is not None:
            self._modes.__enter__()
        self._plain = torch._C.DisableTorchFunction()
        self._plain.__enter__()
        self._builds_graph = torch.is_grad_enabled()
        _set_grad_enabled(False)

    def __exit__(self, *_error: object) -> None:
        _set_grad_enabled(self._builds_graph)
        self._plain.__exit__(None, None, None)
        if self._modes is not None:
            self._modes.__exit__(None, None, None)


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
    """The part of a whole tensor that a view of it shows; a hook holds it, so it holds no node."""

    place: int  # of the view among the inputs
    size: Sequence[int]
    stride: Sequence[int]
    offset: int
    whole_size: Sequence[int]
    whole_stride: Sequence[int]

    def of(self, gradient: Tensor) -> Tensor | None:
        if gradient.layout is not torch.strided:
            return None
        with Untracked():
            like_whole = gradient.new_empty_strided(self.whole_size, self.whole_stride).copy_(gradient)
            return like_whole.as_strided(self.size, self.stride, self.offset)


class _Cast(NamedTuple):
    """A gradient of the copy of a parameter in another dtype, as one of the parameter."""

    dtype: torch.dtype

    def of(self, gradient: Tensor) -> Tensor:
        with Untracked():
            return gradient.to(self.dtype)


class _Changed(NamedTuple):
    """A view that a call changed in place."""

    node: Any  # what made the whole tensor, after the call
    window: _Window


def _changed_view(begun: Begun) -> _Changed | None:
    """The one view among the inputs that the call changed in place; None when there are more."""
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
        window = _Window(index, view.size(), view.stride(), offset, whole.size(), whole.stride())
        found = _Changed(node, window)
    return found


class _Border:
    """A node at the border of a call, and which of its gradients belong to which tensors of the call."""

    __slots__ = ("inputs", "node", "outputs")

    def __init__(self, node: Any) -> None:
        self.node = node
        self.outputs: list[_Way] = []
        self.inputs: list[_Way] = []


_Part = _Window | _Cast | None  # what makes of a node's gradient that of the tensor; None: it is that
_Way = tuple[int, int, _Part]  # number of a gradient of the node, index of a tensor of the call
_Borders = dict[int, _Border]  # by the id of the node, which the border holds and so keeps unique


def _outputs(begun: Begun, outputs: Sequence[Tensor], changed: _Changed | None) -> _Borders:
    """The nodes that made the outputs of a call."""
    borders: _Borders = {}
    for index, tensor in enumerate(outputs):
        node = tensor.grad_fn
        if node is None or not begun.made(node):
            continue
        way: _Way = (tensor.output_nr, index, None)
        if changed is not None and id(tensor) in begun.views:
            # The view has a node of its own, but whoever goes on with the whole tensor passes it by.
            node, way = changed.node, (0, index, changed.window)
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
            way: _Part = None
            if index is None:
                made = below._sequence_nr()
                if made == _ACCUMULATE:
                    index = leaves.get(id(getattr(below, "variable", None))) if leaves else None
                elif leaves and (cast := _cast_leaf(below, leaves)) is not None:
                    index, way = cast
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


def _cast_leaf(node: Any, leaves: dict[int, int]) -> tuple[int, _Cast] | None:
    """The index of the leaf among the inputs that a node casts, and what gives the leaf's gradient."""
    if type(node).__name__ != "ToCopyBackward0":
        return None
    leaf = getattr(node.next_functions[0][0], "variable", None)
    index = leaves.get(id(leaf))
    return None if leaf is None or index is None else (index, _Cast(leaf.dtype))


def _told_apart(borders: _Borders, index: int, further: list[int]) -> bool:
    """Give each place of a tensor among the inputs its own edge, if one node has them all, in their order."""
    for border in borders.values():
        edges = [i for i, (_, place, _) in enumerate(border.inputs) if place == index]
        if len(edges) == 1 + len(further):
            for i, place in zip(edges, [index, *further], strict=True):
                border.inputs[i] = (border.inputs[i][0], place, border.inputs[i][2])
            return True
    return False


_Share = tuple["Tensor | None", _Part]  # a gradient, and the part of it that counts


class Tap:
    """The hooks of one call, which hand each gradient to a sink and finish when all have come.

    A gradient that must be computed is handed over as a function, so that the sink can guard the call.
    """

    __slots__ = ("_came", "_expected", "_fired", "_pass", "_shares", "_sink")

    def __init__(self, sink: GradientSink) -> None:
        self._sink = sink
        self._expected = 0
        self._fired = 0
        self._pass = -1  # the number that torch gives to the backward under way
        self._shares: dict[int, int] = {}  # the inputs that several edges lead to, and how many
        self._came: dict[int, list[_Share]] = {}  # the shares of these so far

    def attach(self, begun: Begun, outputs: Sequence[Tensor]) -> bool:
        changed = _changed_view(begun) if begun.views else None
        borders = _outputs(begun, outputs, changed)
        if not borders:
            return False
        uses = _add_inputs(borders, begun, changed and changed.window)
        for index, further in begun.again.items():
            if uses.get(index) == 1 + len(further) and _told_apart(borders, index, further):
                uses[index] = 1
        for index, count in uses.items():
            if count > 1:
                self._shares[index] = count
        self._expected = len(borders)
        for border in borders.values():
            border.node.register_hook(_Hook(self, border.outputs, border.inputs))
        return True

    def fire(
        self,
        outputs: list[_Way],
        inputs: list[_Way],
        of_inputs: Sequence[Tensor | None],
        of_outputs: Sequence[Tensor | None],
    ) -> None:
        """Tell the gradients that a node of the call has just had and made."""
        sink = self._sink
        if self._expected > 1:
            self._follow_pass()
        self._fired += 1
        for number, index, part in outputs:
            sink.of_output(index, _told(of_outputs[number], part))
        for place, index, part in inputs:
            if index in self._shares:
                self._gather(index, (of_inputs[place], part))
            else:
                sink.of_input(index, _told(of_inputs[place], part))
        if self._fired == self._expected:
            self._flush()

    def _follow_pass(self) -> None:
        current = torch._C._current_graph_task_id()
        if current != self._pass:
            self._flush()  # what an earlier pass left behind that failed midway
            self._pass = current
            torch.autograd.Variable._execution_engine.queue_callback(self._flush)

    def _gather(self, index: int, share: _Share) -> None:
        """Keep one of several shares of an input's gradient; hand over their sum after the last."""
        shares = self._came.setdefault(index, [])
        shares.append(share)
        if len(shares) == self._shares[index]:
            self._sink.of_input(index, functools.partial(_sum, self._came.pop(index)))

    def _flush(self) -> None:
        """The end of this call's backward, or of the whole pass where some gradients never come."""
        if self._fired:
            self._fired = 0
            for index, shares in self._came.items():
                self._sink.of_input(index, functools.partial(_sum, shares))
            self._came.clear()
            self._sink.finish()


class _Hook:
    """A tap at one node, which it does not hold.

    A closure would be a handful of objects that live until backward, for each node of the model.
    """

    __slots__ = ("_inputs", "_outputs", "_tap")

    def __init__(self, tap: Tap, outputs: list[_Way], inputs: list[_Way]) -> None:
        self._tap = tap
        self._outputs = outputs
        self._inputs = inputs

    def __call__(self, of_inputs: Sequence[Tensor | None], of_outputs: Sequence[Tensor | None]) -> None:
        self._tap.fire(self._outputs, self._inputs, of_inputs, of_outputs)


def _told(gradient: Tensor | None, part: _Part) -> Any:
    return gradient if gradient is None or part is None else functools.partial(part.of, gradient)


def _sum(shares: list[_Share]) -> Tensor | None:
    total: Tensor | None = None
    with Untracked():
        for gradient, part in shares:
            share = gradient if gradient is None or part is None else part.of(gradient)
            total = share if total is None else total if share is None else _added(total, share)
    return total


def _added(total: Tensor, share: Tensor) -> Tensor:
    """torch adds a sparse tensor to a dense one, but not the other way round."""
    if total.layout is not torch.strided and share.layout is torch.strided:
        total, share = share, total
    return torch.add(total, share)
