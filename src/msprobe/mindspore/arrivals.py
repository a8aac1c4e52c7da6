"""What taps show becomes calls of cells, told to the recorder as they arrive: in any order and thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from msprobe.adapter import GradientSink, ModuleWatch, Undo
from msprobe.mindspore.layouts import Slot, slots_of
from msprobe.mindspore.taps import Taps
from msprobe.store.dtypes import WIDER, Array


class Values(NamedTuple):
    """A tensor of a graph, as it is shown; without an array where it cannot be."""

    array: Array | None
    dtype: str
    shape: tuple[int, ...]
    key: int | None = None  # of a parameter whose gradient is shown, too


class Name(NamedTuple):
    """The owner of a cell's records, and those of the cells around it, the nearest first."""

    owner: str
    around: tuple[str, ...]


class Tapped(NamedTuple):
    """A cell that is recorded: its names in the model, and its parameters with the keys of their taps."""

    names: tuple[Name, ...]
    parameters: tuple[tuple[str, int | None], ...]


class Backward:
    """Where the gradients of a call go; nowhere until its outputs have been seen."""

    def __init__(self, inputs: int) -> None:
        self.sink: GradientSink | None = None
        self.silent = dict.fromkeys(range(inputs))  # the inputs whose gradient has not come


class Running:
    """A call of a cell that has begun, or whose gradients may still come."""

    def __init__(self, watch: ModuleWatch, inputs: list[Slot], parameters: list[tuple[str, Values]]) -> None:
        self.watch = watch
        self.calls: list[Any] = []  # one for each name of the cell
        self.inputs = inputs
        self.outputs: list[Slot] = []
        self.parameters = parameters
        self.awaited = 0  # gradients, if all of them come

    @property
    def backwards(self) -> list[Backward]:
        return [call.begun for call in self.calls if call.begun is not None]


class Arrivals:
    """Takes what taps show. While nobody listens it looks at nothing."""

    def __init__(self) -> None:
        self.taps = Taps(self)
        self.cells: dict[int, Tapped] = {}  # by the number that their taps have
        self._watch: ModuleWatch | None = None
        self._last: ModuleWatch | None = None  # who listened last in this step
        self._lock = threading.RLock()
        self._tokens = 0
        self._running: dict[int, Running] = {}
        self._open: dict[str, list[Any]] = {}  # calls by owner that have begun and not ended
        self._inside: Counter[tuple[str, str]] = Counter()  # how often a cell ran inside a certain call
        self._under_way: dict[Backward, GradientSink] = {}  # some of their gradients have come, and not all
        self._waiting: dict[int, list[Callable[[Array], None]]] = {}  # for the gradient of a parameter

    def listen(self, watch: ModuleWatch) -> Undo:
        self._watch = self._last = watch

        def undo() -> None:
            self._watch = None

        return undo

    def forget(self) -> None:
        """The step is over, and nothing of it is coming any more."""
        with self._lock:
            self._last = None
            for kept in (self._running, self._open, self._inside, self._under_way, self._waiting):
                kept.clear()

    # --- what taps show ---

    def enter(self, layout: int, arrays: Sequence[Any]) -> int:
        watch = self._watch
        if watch is None or not watch.listening:
            return 0
        return watch.safely("see the inputs of", "a cell", self._enter, watch, layout, arrays) or 0

    def leave(self, token: int, layout: int, arrays: Sequence[Any]) -> None:
        running = self._running.get(token)
        if running is not None:
            running.watch.safely("see the outputs of", "a cell", self._leave, running, layout, arrays)

    def of_input(self, token: int, index: int, array: Any) -> None:
        running = self._running.get(token)
        if running is not None:
            running.watch.safely("see a gradient of", "a cell", self._of_input, token, running, index, array)

    def of_output(self, token: int, index: int, array: Any) -> None:
        running = self._running.get(token)
        if running is not None:
            running.watch.safely("see a gradient of", "a cell", self._of_output, token, running, index, array)

    def of_parameter(self, key: int, array: Any) -> None:
        watch = self._last
        if watch is not None:
            with self._lock:
                for take in self._waiting.pop(key, ()):
                    watch.safely("see the gradient of", "a parameter", take, array)

    def _enter(self, watch: ModuleWatch, number: int, arrays: Sequence[Any]) -> int:
        layout = self.taps.layouts.found[number]
        cell = self.cells.get(layout.cell)
        if cell is None:  # of a model that was given to an earlier start()
            return 0
        args, kwargs, parameters = _filled(layout.tree, iter(arrays))
        known = [
            (name, values._replace(key=key))
            for (name, key), values in zip(cell.parameters, parameters, strict=True)
        ]
        with self._lock:
            running = Running(watch, list(slots_of(layout.tree[:2])), known)
            for name in cell.names:
                call = watch.begin(name.owner, running, args, kwargs, self._around(name))
                self._open.setdefault(name.owner, []).append(call)
                running.calls.append(call)
            # Whoever is shown an array may not keep it: its memory is the graph's.
            running.parameters = [(name, values._replace(array=None)) for name, values in known]
            self._tokens += 1
            self._running[self._tokens] = running
            return self._tokens

    def _around(self, name: Name) -> Any:
        """The call that a cell is called in, as far as that shows: of several, one that called it least."""
        for owner in name.around:
            calls = self._open.get(owner)
            if calls:
                around = min(calls, key=lambda call: self._inside[call.text, name.owner])
                self._inside[around.text, name.owner] += 1
                return around
        return None

    def _leave(self, running: Running, number: int, arrays: Sequence[Any]) -> None:
        tree = self.taps.layouts.found[number].tree
        output = _filled(tree, iter(arrays))
        with self._lock:
            running.outputs = list(slots_of(tree))
            running.awaited = sum(slot.has_gradient for slot in running.inputs + running.outputs)
            for call in reversed(running.calls):
                self._open[call.name.owner].remove(call)
                running.watch.end(call, running, output)

    def _of_input(self, token: int, running: Running, index: int, array: Array) -> None:
        with self._lock:
            values = _values(running.inputs[index], array)
            for backward, sink in self._sinks(running):
                backward.silent.pop(index, None)
                sink.of_input(index, values)
            self._count_down(token, running)

    def _of_output(self, token: int, running: Running, index: int, array: Array) -> None:
        with self._lock:
            values = _values(running.outputs[index], array)
            for _, sink in self._sinks(running):
                sink.of_output(index, values)
            self._count_down(token, running)

    def _sinks(self, running: Running) -> Iterator[tuple[Backward, GradientSink]]:
        for backward in running.backwards:
            if backward.sink is not None:
                self._under_way[backward] = backward.sink
                yield backward, backward.sink

    def _count_down(self, token: int, running: Running) -> None:
        running.awaited -= 1
        if not running.awaited:
            del self._running[token]
            self._finish(running.backwards)

    def _finish(self, backwards: Sequence[Backward]) -> None:
        for backward in backwards:
            sink = self._under_way.pop(backward, None)
            if sink is not None:
                for index in backward.silent:
                    sink.of_input(index, None)
                sink.finish()

    # --- what the recorder asks for ---

    def parameters(self, running: Running) -> list[tuple[str, Values]]:
        return running.parameters

    def begin_backward(self, inputs: Sequence[Any]) -> Any:
        return Backward(len(inputs))

    def on_backward(self, begun: Any, outputs: Sequence[Any], sink: GradientSink) -> bool:
        begun.sink = sink
        return True

    def on_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Undo | None:
        """Of a parameter."""
        if tensor.key is None:
            return None

        def take(array: Array) -> None:
            callback(Values(array.reshape(tensor.shape), tensor.dtype, tensor.shape))

        waiting = self._waiting.setdefault(tensor.key, [])
        waiting.append(take)
        return lambda: waiting.remove(take) if take in waiting else None

    def settle(self) -> None:
        """Nothing runs: what has not come of a backward that has begun is not coming."""
        with self._lock:
            self._finish(list(self._under_way))


def _filled(tree: Any, arrays: Iterator[Any]) -> Any:
    """What a layout stands for, with the values of tensors in their slots."""
    if isinstance(tree, Slot):
        return _values(tree, next(arrays, None) if tree.is_shown else None)
    if isinstance(tree, tuple):
        return tuple(_filled(part, arrays) for part in tree)
    if isinstance(tree, dict):
        return {key: _filled(part, arrays) for key, part in tree.items()}
    return tree


def _values(slot: Slot, array: Array | None) -> Values:
    if array is None and slot.is_known and not slot.is_shown:
        array = np.empty(slot.shape, WIDER.get(slot.dtype.lower(), slot.dtype.lower()))
    return Values(None if array is None else array.reshape(slot.shape), slot.dtype, slot.shape)
