"""Gradients that arrive while backward runs become records: of a call, and of a module's parameters."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msprobe.adapter import Adapter, Undo
from msprobe.capture.makers import BEFORE_ALL
from msprobe.name import PARAMETERS_GRAD, CallName
from msprobe.record import Leaf, Record

if TYPE_CHECKING:
    from msprobe.capture.recorder import Recorder


class CallGradients:
    """Collects one call's gradients; in the file `input` are those of its outputs, `output` of its inputs.

    A gradient may be given as a function that makes it. Autograd calls this, so no error may leave it.
    """

    def __init__(self, recorder: Recorder, name: CallName, parent: str | None) -> None:
        self._recorder = recorder
        self._name = name
        self._parent = parent
        self._wanted: bool | None = None  # unknown until the first gradient comes
        self._text = ""
        self._inputs: dict[int, Leaf | None] = {}
        self._outputs: dict[int, Leaf | None] = {}

    def of_output(self, index: int, gradient: Any) -> None:
        if self._wanted is None:
            self._begin()
        if self._wanted and self._recorder.scope.sides.input:
            self._inputs[index] = self._leaf(gradient, f"input.{index}")

    def of_input(self, index: int, gradient: Any) -> None:
        if self._wanted is None:
            self._begin()
        if self._wanted and self._recorder.scope.sides.output:
            self._outputs[index] = self._leaf(gradient, f"output.{index}", BEFORE_ALL)

    def _leaf(self, gradient: Any, slot: str, since: int | None = None) -> Leaf | None:
        if gradient is None:
            return None
        recorder = self._recorder
        return recorder.safely("record the gradients of", self._text, self._describe, gradient, slot, since)

    def _describe(self, gradient: Any, slot: str, since: int | None) -> Leaf | None:
        """`since` is BEFORE_ALL for what comes out: a gradient that only passes keeps its maker.

        The hook of a module sees at one node what came in after the call inside it has seen what went out.
        """
        if callable(gradient):
            gradient = gradient()
        return None if gradient is None else self._recorder.describe(gradient, self._text, slot, since)

    def _begin(self) -> None:
        if not self._recorder.closed:
            self._text = str(self._name)
            self._wanted = self._recorder.scope.enter(self._name)

    def finish(self) -> None:
        """All gradients of this backward pass have come."""
        recorder = self._recorder
        if self._wanted is None:
            return
        if self._wanted and not recorder.closed:
            recorder.safely("write the gradients of", self._text, self._write)
        recorder.scope.leave(self._name)
        self._wanted = None
        self._inputs, self._outputs = {}, {}

    def _write(self) -> None:
        recorder = self._recorder
        fields: dict[str, Any] = {}
        if recorder.scope.sides.input:
            like_forward = recorder.plan.backward_like_forward
            fields["input_args" if like_forward else "input"] = _in_order(self._inputs)
            fields |= {"input_kwargs": {}} if like_forward else {}
        if recorder.scope.sides.output:
            fields["output"] = _in_order(self._outputs)
        recorder.commit(Record(self._name, fields, None, self._parent, recorder.plan.with_parents))


def _in_order(leaves: dict[int, Leaf | None]) -> list[Leaf | None]:
    return list(map(leaves.get, range(max(leaves) + 1))) if leaves else []


class ParameterGradients:
    """Collects the gradients of one module's parameters, and writes them when all have come."""

    def __init__(self, recorder: Recorder, name: CallName) -> None:
        self._recorder = recorder
        self._name = name.facing(PARAMETERS_GRAD)
        self._text = str(self._name)
        self._leaves: dict[str, Leaf | None] = {}
        self._undo: dict[str, Undo] = {}
        self._written = False

    def follow(self, adapter: Adapter, parameters: Iterable[tuple[str, Any]]) -> None:
        for key, parameter in parameters:
            if key in self._undo:
                continue
            undo = adapter.on_gradient(parameter, functools.partial(self._take, key))
            if undo is not None:
                self._undo[key] = undo
                self._leaves.setdefault(key, None)

    def _take(self, key: str, gradient: Any) -> None:
        undo = self._undo.pop(key, None)
        if undo is not None:
            undo()
        recorder = self._recorder
        if recorder.closed or not recorder.scope.enter(self._name):
            return
        recorder.safely("record a parameter's gradient of", self._text, self._told, key, gradient)

    def _told(self, key: str, gradient: Any) -> None:
        recorder = self._recorder
        leaf = recorder.describe(gradient, self._text, key)
        self._leaves[key] = recorder.sketched(gradient, leaf)
        self._written = False
        if not self._undo:
            self._write()

    def _write(self) -> None:
        self._written = True
        fields: dict[str, Any] = {key: [leaf] for key, leaf in self._leaves.items()}
        self._recorder.commit(Record(self._name, fields))

    def close(self) -> None:
        """Write what came; a parameter without a gradient shows as null."""
        for undo in self._undo.values():
            undo()
        self._undo.clear()
        if self._leaves and not self._written and self._recorder.scope.enter(self._name):
            self._write()
