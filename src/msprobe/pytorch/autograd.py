"""A call's own gradients: hooks on the graph nodes at its borders; no node is inserted, no total taken.

Before a call the gradient edge of each input is noted. After it the part of the graph that the call made is
walked from its outputs; nodes made by the call are told by their sequence number. The nodes whose edges leave that
part for a noted edge hold the call's share of that input's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from msprobe.adapter import GradientSink

_MANY_NODES = 200_000


class Begun:
    """Where the inputs of a call hung in the graph before it ran."""

    __slots__ = ("edges", "first_node", "leaves")

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.first_node: int = torch._C._autograd._get_sequence_nr()
        self.leaves: dict[int, int] = {}  # id of a leaf tensor -> index of the input
        self.edges: dict[tuple[int, int], tuple[int, Any]] = {}  # (node id, output number) -> index, the node itself
        for index, tensor in enumerate(inputs):
            if not tensor.requires_grad:
                continue
            node = tensor.grad_fn
            if node is None:
                self.leaves.setdefault(id(tensor), index)
            else:
                self.edges.setdefault((id(node), tensor.output_nr), (index, node))

    def input_of(self, node: Any, number: int) -> int | None:
        """Which input, if any, an edge that leaves the call leads to."""
        known = self.edges.get((id(node), number))
        if known is not None:
            return known[0]
        variable = getattr(node, "variable", None)
        return None if variable is None else self.leaves.get(id(variable))


class Tap:
    """The hooks of one call; tells its sink each gradient, and when all have come."""

    def __init__(self, sink: GradientSink) -> None:
        self._sink = sink
        self._expected = 0
        self._fired = 0
        self._partial: dict[int, Tensor | None] = {}  # an input that several edges lead to
        self._uses: dict[int, int] = {}

    def attach(self, begun: Begun, outputs: Sequence[Tensor]) -> bool:
        tops = self._tops(begun, outputs)
        if not tops:
            return False
        borders = self._borders(begun, [node for node, _ in tops.values()])
        for slots in borders.values():
            for index in slots[1].values():
                self._uses[index] = self._uses.get(index, 0) + 1
        nodes = {key: node for key, (node, _) in tops.items()} | {key: node for key, (node, _) in borders.items()}
        self._expected = len(nodes)
        for key, node in nodes.items():
            node.register_hook(self._hook(tops.get(key), borders.get(key)))
        return True

    def _tops(self, begun: Begun, outputs: Sequence[Tensor]) -> dict[int, tuple[Any, dict[int, int]]]:
        """Nodes that made outputs: id -> the node, and which of its gradients belongs to which output."""
        tops: dict[int, tuple[Any, dict[int, int]]] = {}
        index = 0
        for tensor in outputs:
            node = tensor.grad_fn
            if node is None or not _made_since(node, begun.first_node):
                continue
            tops.setdefault(id(node), (node, {}))[1].setdefault(tensor.output_nr, index)
            index += 1
        return tops

    def _borders(self, begun: Begun, tops: list[Any]) -> dict[int, tuple[Any, dict[int, int]]]:
        """Nodes with edges to inputs: id -> the node, and which of its edges leads to which input."""
        borders: dict[int, tuple[Any, dict[int, int]]] = {}
        if not begun.edges and not begun.leaves:
            return borders
        waiting = list(tops)
        seen = {id(node) for node in waiting}
        kept = list(waiting)  # Python forgets a node it does not hold, and would give it another id
        while waiting and len(kept) < _MANY_NODES:
            node = waiting.pop()
            for place, (below, number) in enumerate(node.next_functions):
                if below is None:
                    continue
                index = begun.input_of(below, number)
                if index is not None:
                    borders.setdefault(id(node), (node, {}))[1][place] = index
                elif id(below) not in seen and _made_since(below, begun.first_node):
                    seen.add(id(below))
                    kept.append(below)
                    waiting.append(below)
        return borders

    def _hook(
        self, top: tuple[Any, dict[int, int]] | None, border: tuple[Any, dict[int, int]] | None
    ) -> Callable[[Any, Any], None]:
        numbers = dict(top[1]) if top else {}
        places = dict(border[1]) if border else {}

        def hook(of_inputs: tuple[Tensor | None, ...], of_outputs: tuple[Tensor | None, ...]) -> None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                for number, index in numbers.items():
                    if number < len(of_outputs):
                        self._sink.of_output(index, of_outputs[number])
                for place, index in places.items():
                    if place < len(of_inputs):
                        self._take(index, of_inputs[place])
                self._fired += 1
                if self._fired == 1 and self._expected > 1:
                    torch.autograd.Variable._execution_engine.queue_callback(self._flush)
                if self._fired == self._expected:
                    self._flush()

        return hook

    def _take(self, index: int, gradient: Tensor | None) -> None:
        """One edge's share; an input with several edges is told when the last share has come."""
        if index in self._partial:
            known = self._partial[index]
            gradient = known if gradient is None else gradient if known is None else known + gradient
        self._uses[index] -= 1
        if self._uses[index] > 0:
            self._partial[index] = gradient
        else:
            self._partial.pop(index, None)
            self._sink.of_input(index, gradient)

    def _flush(self) -> None:
        """The end of this call's backward, or of the whole pass where some gradients never come."""
        if self._fired == 0:
            return
        for index, gradient in self._partial.items():
            self._sink.of_input(index, gradient)
        self._partial.clear()
        self._fired = 0
        self._sink.finish()


def _made_since(node: Any, first: int) -> bool:
    number: int = node._sequence_nr()
    return first <= number < _ACCUMULATE


_ACCUMULATE = 2**64 - 1  # the sequence number of every AccumulateGrad node
