"""Level debug: variables saved by hand, with their gradients, under names the user gives."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msprobe.adapter import Adapter
from msprobe.capture.recorder import Plan, Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.stacks import Stacks
from msprobe.log import logger
from msprobe.name import DEBUG, CallName
from msprobe.record import Leaf, Record, Tree, plain_leaf, walk
from msprobe.store.writer import Writer

_KINDS = "a tensor, int, float, str, bool, None, or a list, tuple or dict of these"


class VariableRecorder:
    """Records the variables of one step; gradients join their variable as backward runs."""

    def __init__(self, adapter: Adapter, writer: Writer, plan: Plan) -> None:
        self._adapter = adapter
        self._recorder = Recorder(adapter, writer, Scope(), Stacks(), plan)
        self._counts: Counter[str] = Counter()
        self._gradients: list[_Gradient] = []

    def save(self, variable: Any, name: str, save_backward: bool) -> None:
        if not isinstance(name, str) or not name:
            logger().warning("save() needs a name of type str, not %r; this variable is not saved.", name)
            return
        if not isinstance(save_backward, bool):
            logger().warning("save_backward of save(%r) must be True or False, not %r.", name, save_backward)
            return
        wrong = self._unsupported(variable)
        if wrong is not None:
            logger().warning("save(%r) was given %s; it takes %s. Not saved.", name, wrong, _KINDS)
            return
        call = CallName(name, DEBUG, self._counts[name])
        self._counts[name] += 1
        with self._recorder.guarded(f"save {name}"):
            tree = self._describe(call, variable)
            self._recorder.commit(Record(call, tree))
            if save_backward:
                gradient = _Gradient(self._recorder, CallName(f"{name}_grad", DEBUG, call.count))
                gradient.follow(self._adapter, variable)
                self._gradients.append(gradient)

    def close(self) -> None:
        for gradient in self._gradients:
            gradient.close()
        self._gradients.clear()
        self._recorder.close()

    def _describe(self, call: CallName, variable: Any) -> Tree:
        def see(value: Any, slot: str) -> Leaf | None:
            if self._adapter.is_tensor(value):
                return self._recorder.describe(value, str(call), slot[1:])
            return plain_leaf(value)

        return walk(variable, see, "")

    def _unsupported(self, variable: Any) -> str | None:
        if isinstance(variable, dict):
            wrong = next((key for key in variable if not isinstance(key, str)), None)
            if wrong is not None:
                return f"a dict with the key {wrong!r}, which is not a str"
            variable = list(variable.values())
        if isinstance(variable, (list, tuple)):
            return next(filter(None, map(self._unsupported, variable)), None)
        if variable is None or self._adapter.is_tensor(variable) or isinstance(variable, (int, float, str, bool)):
            return None
        return f"a {type(variable).__name__}"


class _Gradient:
    """The gradients of one saved variable, in its shape; null where none came."""

    def __init__(self, recorder: Recorder, name: CallName) -> None:
        self._recorder = recorder
        self._name = name
        self._tree: Any = None
        self._places: dict[str, tuple[Any, Any]] = {}
        self._undo: list[Any] = []
        self._missing = 0

    def follow(self, adapter: Adapter, variable: Any) -> None:
        holder: dict[str, Any] = {}
        self._tree = holder
        holder[""] = self._mirror(adapter, variable, holder, "", "")

    def _mirror(self, adapter: Adapter, value: Any, holder: Any, key: Any, slot: str) -> Any:
        if isinstance(value, dict):
            inner: dict[str, Any] = {}
            for name, item in value.items():
                inner[name] = self._mirror(adapter, item, inner, name, f"{slot}.{name}")
            return inner
        if isinstance(value, (list, tuple)):
            items: list[Any] = [None] * len(value)
            for i, item in enumerate(value):
                items[i] = self._mirror(adapter, item, items, i, f"{slot}.{i}")
            return items
        if adapter.is_tensor(value):
            undo = adapter.on_gradient(value, lambda gradient: self._take(holder, key, slot, gradient))
            if undo is not None:
                self._undo.append(undo)
                self._missing += 1
        return None

    def _take(self, holder: Any, key: Any, slot: str, gradient: Any) -> None:
        if self._recorder.closed:
            return
        with self._recorder.guarded(f"save the gradient of {self._name}"):
            holder[key] = self._recorder.describe(gradient, str(self._name), slot[1:])
            self._missing -= 1
            if self._missing == 0:
                self._write()

    def _write(self) -> None:
        self._recorder.commit(Record(self._name, self._tree[""]))

    def close(self) -> None:
        for undo in self._undo:
            undo()
        if self._missing or not self._undo:
            self._write()
