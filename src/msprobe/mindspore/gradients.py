"""A call's own gradients, read where the graph of backward has them; nothing is inserted into it.

The nodes between the outputs of a call and its inputs were made by the call. Those among them with an edge to
an input have that input's share of the gradient. A hook on the input itself would show the sum over all its
uses, and an identity put in front of the call would add up these uses in another order, with other rounding,
and cut off whoever changes the input in place.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from mindspore import Tensor, ops

from msprobe.adapter import GradientSink, Undo
from msprobe.mindspore.describe import is_differentiable
from msprobe.mindspore.framework import (
    LEAF,
    executor,
    grad_node,
    hook_gradient,
    mark,
    no_grad,
    node_key,
    raise_late_errors,
)

_MOST_NODES = 200_000

_add = ops.add  # as it is while nobody watches who calls it


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


class _Input(NamedTuple):
    """An input of a call: the first of its places, how often it comes, which output of its node it is."""

    place: int
    times: int
    number: int | None  # None: no other input comes from that node


class Begun:
    """Where the inputs of a call hung in the graph before it ran."""

    def __init__(self, inputs: Sequence[Tensor], newest: int) -> None:
        self.newest = newest  # of all nodes made before the call, as far as they were seen
        self.count = len(inputs)
        self._nodes: list[Any] = []  # held, so that a number stays the number of its node
        self._inputs: dict[Hashable, list[_Input]] = {}  # by the node
        places: dict[int, list[int]] = {}
        for place, tensor in enumerate(inputs):
            places.setdefault(id(tensor), []).append(place)
        by_node: dict[Hashable, list[Tensor]] = {}
        for found in places.values():
            tensor = inputs[found[0]]
            node = grad_node(tensor)
            if node is not None:
                self._nodes.append(node)
                self.newest = max(self.newest, _age(node))
                by_node.setdefault(node_key(node), []).append(tensor)
        for number, tensors in by_node.items():
            self._inputs[number] = [
                _Input(
                    places[id(tensor)][0],
                    len(places[id(tensor)]),
                    _output_number(tensor) if len(tensors) > 1 else None,
                )
                for tensor in tensors
            ]

    def find(self, node: Any, number: int) -> _Input | None:
        """The input that an edge to this output of a node leads to."""
        for found in self._inputs.get(node_key(node), ()):
            if found.number is None or found.number == number:
                return found
        return None

    def made(self, node: Any) -> bool:
        """Whether the call made this node."""
        number = node._sequence_nr()
        return bool(self.newest < number < LEAF)


def _age(node: Any) -> int:
    number: int = node._sequence_nr()
    return -1 if number == LEAF else number


def _output_number(tensor: Tensor) -> int | None:
    """Which output of its node a tensor is; only an edge tells, so that one is made that leads nowhere."""
    enabled = executor.enable_grad()
    executor.set_enable_grad(True)
    try:
        edges = grad_node(ops.HookBackward(_ignore)(tensor)).next_functions
    finally:
        executor.set_enable_grad(enabled)
    return edges[0][1] if edges else None


def _ignore(_gradient: Any) -> None:
    """Never called: nothing leads here."""


class _Border:
    """A node with edges to inputs of the call: which of its gradients belong to which place."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.ways: list[tuple[int, _Input]] = []


def _borders(begun: Begun, tops: Sequence[Any]) -> list[_Border]:
    """All nodes of the call with an edge to one of its inputs, from its outputs down."""
    found = []
    seen = {node_key(node): node for node in tops}
    waiting = list(seen.values())
    while waiting and len(seen) < _MOST_NODES:
        border = _Border(waiting.pop())
        for edge, (node, number) in enumerate(border.node.next_functions):
            if node is None:
                continue
            leads_to = begun.find(node, number)
            if leads_to is not None:
                border.ways.append((edge, leads_to))
            elif begun.made(node) and node_key(node) not in seen:
                seen[node_key(node)] = node
                waiting.append(node)
        if border.ways:
            found.append(border)
    return found


class Tap:
    """The hooks of one call; tells its sink each gradient, and when all have come."""

    def __init__(
        self, sink: GradientSink, count: int, under_way: dict[Tap, None], at_the_end: Callable[[], None]
    ) -> None:
        self._sink = sink
        self._under_way = under_way
        self._at_the_end = at_the_end
        self._left = 0
        self._silent = dict.fromkeys(range(count))  # the inputs that have told nothing
        self._expected: dict[int, int] = {}  # by place: how many shares make the gradient of an input
        self._shares: dict[int, list[Tensor | None]] = {}

    def attach(self, begun: Begun, outputs: Sequence[Tensor]) -> bool:
        tops = []
        for index, tensor in enumerate(outputs):
            node = grad_node(tensor) if is_differentiable(tensor) else None
            if node is not None and begun.made(node):
                tops.append(node)
                hook_gradient(tensor, self._told(index))
        borders = _borders(begun, tops) if tops else []
        for border in borders:
            for _, leads_to in border.ways:
                self._expected[leads_to.place] = self._expected.get(leads_to.place, 0) + 1
        for border in borders:
            border.node.register_hook(self._hook(border.ways))
        self._left = len(borders)
        return bool(tops)

    def _told(self, index: int) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            raise_late_errors()
            self._begin()
            self._sink.of_output(index, gradient)

        return hook

    def _hook(self, ways: Sequence[tuple[int, _Input]]) -> Callable[[Any, Any], None]:
        def hook(of_inputs: Sequence[Tensor | None], _of_outputs: Any) -> None:
            raise_late_errors()
            self._begin()
            for further, (edge, leads_to) in enumerate(ways):
                place, times, _ = leads_to
                if times > 1 and times == len(ways) == self._expected[place]:
                    self._tell(place + further, of_inputs[edge])  # as in `x * x`: to each place its own
                else:
                    self._gather(place, of_inputs[edge])
            self._left -= 1
            if not self._left:
                self.finish()

        return hook

    def _gather(self, place: int, share: Tensor | None) -> None:
        """Add a share of the gradient of an input; report their sum when the last one has come."""
        shares = self._shares.setdefault(place, [])
        shares.append(share)
        if len(shares) == self._expected[place]:
            self._tell(place, _total(self._shares.pop(place)))

    def _tell(self, place: int, gradient: Any) -> None:
        self._silent.pop(place, None)
        if is_tensor(gradient):
            mark(gradient)  # whoever takes it is handed another object
        self._sink.of_input(place, gradient)

    def _begin(self) -> None:
        if self not in self._under_way:
            if not self._under_way:
                executor.queue_backward_final_callback(self._at_the_end)
            self._under_way[self] = None

    def finish(self) -> None:
        """All gradients have come, or those that have not never will."""
        if self in self._under_way:
            del self._under_way[self]
            while self._shares:
                place, shares = self._shares.popitem()
                self._tell(place, _total(shares))
            for place in self._silent:
                self._sink.of_input(place, None)
            self._sink.finish()


def finish_all(under_way: dict[Tap, None]) -> None:
    """Backward is over."""
    for tap in list(under_way):
        tap.finish()


def _total(shares: Sequence[Tensor | None]) -> Any:
    """The one share, or a function that adds them up."""
    known = [share for share in shares if share is not None]
    return functools.partial(_sum, known) if len(known) > 1 else known[0] if known else None


def _sum(shares: Sequence[Tensor]) -> Tensor:
    with no_grad():
        return functools.reduce(_add, shares)


_Held = tuple["weakref.ref[Tensor]", "weakref.ref[Any]"]  # a parameter, and the mark of its gradient


class Gradients:
    """The calls of one adapter whose gradients are wanted."""

    def __init__(self) -> None:
        self._newest = -1
        self._under_way: dict[Tap, None] = {}  # something of their backward has come, and not all
        # Made once and held: after an error MindSpore lets go of it where Python must not free anything.
        self._at_the_end = self._finish
        self._removals: list[Undo] = []
        self._arrived: list[_Held] = []  # in the backward that runs
        self._held: dict[int, _Held] = {}  # by the id of the parameter

    def begin(self, inputs: Sequence[Tensor]) -> Begun:
        begun = Begun(inputs, self._newest)
        self._newest = begun.newest
        return begun

    def attach(self, begun: Begun, outputs: Sequence[Tensor], sink: GradientSink) -> bool:
        attached = Tap(sink, begun.count, self._under_way, self._at_the_end).attach(begun, outputs)
        for tensor in outputs:
            node = grad_node(tensor)
            if node is not None:
                self._newest = max(self._newest, _age(node))
        return attached

    def of_leaf(self, tensor: Tensor, callback: Callable[[Any], None]) -> Undo | None:
        """Call back once with the total gradient of a tensor."""
        info = getattr(tensor, "param_info", None)  # of parameters; other tensors need not say they want one
        if not is_differentiable(tensor) or not (info is None or info.requires_grad):
            return None
        fired: list[bool] = []
        owner = weakref.ref(tensor)  # which holds the hook, and so must not be held by it

        def hook(gradient: Any) -> None:
            raise_late_errors()
            if not fired:
                fired.append(True)
                callback(gradient)
                if is_tensor(gradient):
                    self._arrive(owner, gradient)

        handle = hook_gradient(tensor, hook)

        def undo() -> None:
            """MindSpore does not survive that a hook is removed while it runs."""
            if fired:
                self._removals.append(handle.remove)
            else:
                handle.remove()

        return undo

    def _arrive(self, parameter: weakref.ref[Tensor], gradient: Tensor) -> None:
        if not self._arrived:
            executor.queue_backward_final_callback(self._at_the_end)
        self._arrived.append((parameter, weakref.ref(mark(gradient))))

    def held_by(self, parameter: Tensor) -> Any:
        """The mark of the gradient that the last backward gave a parameter; None once that is gone.

        While backward runs it is None as well: there a gradient is what a call gave out.
        """
        known = self._held.get(id(parameter))
        return known[1]() if known is not None and known[0]() is parameter else None

    def _finish(self) -> None:
        """Backward is over."""
        finish_all(self._under_way)
        arrived, self._arrived = self._arrived, []
        known = {key: each for key, each in self._held.items() if each[1]() is not None}
        self._held = known | {id(each[0]()): each for each in arrived}

    def settle(self) -> None:
        """No backward runs: what has not come is not coming, and hooks that have fired can be taken off."""
        self._finish()
        while self._removals:
            self._removals.pop()()
