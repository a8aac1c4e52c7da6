"""Level debug: variables saved by hand, with their gradients, under names the user gives."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msprobe.adapter import Adapter, Undo
from msprobe.capture.recorder import Plan, Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.stacks import Stacks
from msprobe.log import logger
from msprobe.name import DEBUG, CallName
from msprobe.record import MAX_DEPTH, Leaf, Record, Tree, plain_leaf, walk
from msprobe.store.writer import Writer

_KINDS = "a tensor, int, float, str, bool, None, or a list, tuple or dict of these"


class VariableRecorder:
    """Records the variables of one step; gradients join their variable as backward runs."""

    def __init__(self, adapter: Adapter, writer: Writer, plan: Plan) -> None:
        self._adapter = adapter
        self._recorder = Recorder(adapter, writer, Scope(), Stacks(), plan)
        self._counts: Counter[str] = Counter()
        self._gradients: list[_Gradients] = []

    def save(self, variable: Any, name: str, save_backward: bool) -> None:
        wrong = self._problem(variable, name, save_backward)
        if wrong is not None:
            logger().warning("%s. Not saved.", wrong)
            return
        call = CallName(name, DEBUG, self._counts[name])
        self._counts[name] += 1
        with self._recorder.guarded(f"save {name}"):
            self._recorder.commit(Record(call, self._describe(call, variable)))
            if save_backward:
                gradients = _Gradients(self._recorder, CallName(f"{name}_grad", DEBUG, call.count))
                self._gradients.append(gradients)
                gradients.follow(self._adapter, variable)

    def pause(self) -> None:
        """stop(): what was saved so far is written; gradients may still come."""
        with self._recorder.guarded("fetch the last statistics"):
            self._recorder.settle()

    def close(self) -> None:
        with self._recorder.guarded("finish the saved variables"):
            for gradients in self._gradients:
                gradients.close()
            self._recorder.close()
        self._gradients.clear()

    def _describe(self, call: CallName, variable: Any) -> Any:
        def see(value: Any, slot: str) -> Leaf | None:
            if self._adapter.is_tensor(value):
                return self._recorder.describe(value, str(call), slot[1:])
            return plain_leaf(value)

        return walk(variable, see, "")

    def _problem(self, variable: Any, name: Any, save_backward: Any) -> str | None:
        if not isinstance(name, str) or not name:
            return f"save() needs a name of type str, not {name!r}"
        if not isinstance(save_backward, bool):
            return f"save_backward of save({name!r}) must be True or False, not {save_backward!r}"
        wrong = self._unsupported(variable)
        return None if wrong is None else f"save({name!r}) was given {wrong}; it takes {_KINDS}"

    def _unsupported(self, variable: Any) -> str | None:
        waiting = [(variable, 0)]
        while waiting:
            value, depth = waiting.pop()
            if depth > MAX_DEPTH:
                return f"something nested more than {MAX_DEPTH} deep"
            if isinstance(value, dict):
                wrong = next((key for key in value if not isinstance(key, str)), None)
                if wrong is not None:
                    return f"a dict with the key {wrong!r}, which is not a str"
                waiting += [(item, depth + 1) for item in value.values()]
            elif isinstance(value, (list, tuple)):
                waiting += [(item, depth + 1) for item in value]
            elif not (
                value is None or isinstance(value, (int, float, str)) or self._adapter.is_tensor(value)
            ):
                return f"a value of type {type(value).__name__}"
        return None


class _Gradients:
    """The gradients of one saved variable, in its shape; null where none came."""

    def __init__(self, recorder: Recorder, name: CallName) -> None:
        self._recorder = recorder
        self._name = name
        self._shape: Tree = None  # the variable with the slot of each tensor in its place
        self._leaves: dict[str, Leaf | None] = {}
        self._undo: list[Undo] = []
        self._written = False

    def follow(self, adapter: Adapter, variable: Any) -> None:
        def see(value: Any, slot: str) -> Leaf | None:
            if not adapter.is_tensor(value):
                return plain_leaf(value)
            undo = adapter.on_gradient(value, lambda gradient: self._take(slot, gradient))
            if undo is not None:
                self._undo.append(undo)
                self._leaves[slot] = None
            return Leaf(_PLACE, slot)

        self._shape = walk(variable, see, "")

    def _take(self, slot: str, gradient: Any) -> None:
        if self._recorder.closed:
            return
        with self._recorder.guarded(f"save the gradient of {self._name}"):
            self._leaves[slot] = self._recorder.describe(gradient, str(self._name), slot[1:])
            if None not in self._leaves.values():
                self._write()

    def _write(self) -> None:
        self._written = True
        fields: Any = self._filled(self._shape)
        self._recorder.commit(Record(self._name, fields))

    def _filled(self, shape: Tree) -> Tree:
        if isinstance(shape, list):
            return [self._filled(item) for item in shape]
        if isinstance(shape, dict):
            return {name: self._filled(item) for name, item in shape.items()}
        if shape is not None and shape.type == _PLACE:
            return self._leaves.get(shape.value)
        return None

    def close(self) -> None:
        for undo in self._undo:
            undo()
        if not self._written:
            self._write()


_PLACE = "the place of a gradient"
