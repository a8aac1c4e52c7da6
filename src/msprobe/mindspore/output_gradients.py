"""A call's gradients in releases that do not show the graph of backward: those of its outputs alone.

A hook on an input would show the sum over all its uses, and not the share of the call. Whatever else could be
put in front of the call takes part in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mindspore

from msprobe.adapter import GradientSink
from msprobe.log import logger
from msprobe.mindspore.describe import is_differentiable
from msprobe.mindspore.framework import hook_gradient, raise_late_errors
from msprobe.mindspore.gradients import Gradients


class _Given(NamedTuple):
    """The inputs of a call: how many, and which, to know them again among its outputs."""

    number: int
    ids: frozenset[int]


class _Tap:
    """The hooks of one call; its record is complete when the gradient of each output has come."""

    def __init__(self, sink: GradientSink, inputs: int, under_way: dict[_Tap, None]) -> None:
        self._sink = sink
        self._inputs = inputs
        self._under_way = under_way
        self._left = 0

    def attach(self, given: _Given, outputs: Sequence[Any]) -> bool:
        for index, tensor in enumerate(outputs):
            if is_differentiable(tensor) and id(tensor) not in given.ids:
                hook_gradient(tensor, self._told(index))
                self._left += 1
        return bool(self._left)

    def _told(self, index: int) -> Callable[[Any], None]:
        def hook(gradient: Any) -> None:
            raise_late_errors()
            self._under_way[self] = None
            self._sink.of_output(index, gradient)
            self._left -= 1
            if self._left <= 0:
                self.finish()

        return hook

    def finish(self) -> None:
        self._under_way.pop(self, None)
        for place in range(self._inputs):
            self._sink.of_input(place, None)
        self._sink.finish()


class OutputGradients(Gradients):
    """Stands in for Gradients, and says what it leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self._taps: dict[_Tap, None] = {}  # something of their backward has come, and not all
        logger().warning(
            "MindSpore %s does not show its graph of backward, as later releases do: of each call the "
            "gradients of its outputs are recorded, and null in place of those of its inputs.",
            mindspore.__version__,
        )

    def begin(self, inputs: Sequence[Any]) -> Any:
        return _Given(len(inputs), frozenset(map(id, inputs)))

    def attach(self, begun: Any, outputs: Sequence[Any], sink: GradientSink) -> bool:
        return _Tap(sink, begun.number, self._taps).attach(begun, outputs)

    def _arrive(self, parameter: Any, gradient: Any) -> None:
        """Nothing marks a gradient, and so nobody knows it again."""

    def settle(self) -> None:
        for tap in list(self._taps):
            tap.finish()
        super().settle()
