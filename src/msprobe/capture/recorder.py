"""A call becomes a Record. Whatever goes wrong here, training sees nothing of it."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from msprobe.adapter import Adapter, Api, OptimizerState, Want
from msprobe.capture.calls import Again, Call, Counts, Guard, Mark, Thread
from msprobe.capture.descriptions import Descriptions
from msprobe.capture.gradients import CallGradients, ParameterGradients
from msprobe.capture.makers import Carried
from msprobe.capture.memo import Seen
from msprobe.capture.module_state import MODULE_STATE, ModuleState
from msprobe.capture.scope import Scope
from msprobe.capture.sink import RecordSink
from msprobe.capture.stacks import Stacks
from msprobe.log import logger
from msprobe.name import BACKWARD, CallName, call_owner, slot_name
from msprobe.plural import counted
from msprobe.record import PLAIN, Leaf, Record, Tree, array_leaf, filled, plain_leaf, tensors_in, walk
from msprobe.store.tensors import file_name

T = TypeVar("T")

MAX_PENDING = 64  # descriptions that may wait on a device before one transfer fetches them all


class Plan(NamedTuple):
    """What a recording holds, as the configuration asks for it."""

    want: Want
    saves: Callable[[str], bool]  # is the content of the tensors of a record of this name saved too?
    with_parents: bool  # levels L0 and mix say which module a call ran in
    backward_like_forward: bool = False  # gradients stand in the fields that a forward call has
    with_state: bool = False  # buffers of modules; a sketch of parameters, buffers and their gradients
    fills: Callable[[Leaf], bool] | None = None  # which leaves bring their content along to the sink


class Recorder:
    """Records one step of one rank; gradients are taken until close(), calls only while listening."""

    def __init__(
        self,
        adapter: Adapter,
        sink: RecordSink,
        scope: Scope,
        stacks: Stacks,
        plan: Plan,
        carried: Carried | None = None,
    ) -> None:
        """`carried`: what earlier steps have made; without it this step knows only itself."""
        self.listening = False
        self.closed = False
        self.scope = scope
        self._adapter = adapter
        self._sink = sink
        self._stacks = stacks
        self.plan = plan
        self._descriptions = Descriptions(
            adapter, plan.want, carried or Carried(), sketches_state=plan.with_state
        )
        self._counts = Counts()
        self._thread = Thread()
        self._lock = threading.RLock()
        # Whose content is under each file name: a name may be written again (backward run twice).
        self._saved: dict[str, Seen | None] = {}
        self._waiting: list[Record] = []  # records whose statistics are still on a device
        self._parameters: dict[str, ParameterGradients] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no record can be written any more; that was logged."""
        return not self._sink.is_open

    # --- calls of APIs ---

    def around(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an intercepted function and record the call; of nested calls only the outermost counts."""
        thread = self._thread
        if thread.inside or not (self.listening or self._runs_again()):
            return function(*args, **kwargs)
        thread.inside = True
        try:
            call = self._begin(self._count(call_owner(api.prefix, api.name)), args, kwargs)
            try:
                output = function(*args, **kwargs)
            except BaseException as error:
                self._fail(call, error)
                raise
            if api.communicates:
                results = [*args, *kwargs.values()]
                if not self._adapter.on_completion(output, lambda: self._arrived(call, results)):
                    self._arrived(call, results)
            elif call.recorded or call.tapped:
                self._end(call, output, args[0] if api.in_place and args else None)
            self.scope.leave(call.name)
            return output
        finally:
            thread.inside = False

    def _arrived(self, call: Call, results: list[Any]) -> None:
        """A communication is complete; that it wrote into its arguments is not counted as a change."""
        for tensor in tensors_in(results, self._adapter.is_tensor):
            self._descriptions.drop(tensor)
        self._end(call, results)

    def _begin(self, name: CallName, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        text = str(name)
        recorded = self.scope.enter(name) and (self._adapter.marks_recompute or self._thread.counts is None)
        tapped = self.scope.expects_backward(name) and self._adapter.differentiates()
        if not recorded and not tapped:
            return Call(name, text, False)
        given = name, text, recorded, tapped, args, kwargs
        return self.safely("record the inputs of", text, self._begun, *given) or Call(name, text, False)

    def _begun(
        self,
        name: CallName,
        text: str,
        recorded: bool,
        tapped: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Call:
        place = self._stacks.here()
        since = self._descriptions.moment
        fields: dict[str, Any] = {}
        tensors: list[Any] = []
        if recorded and self.scope.sides.input:
            fields["input_args"] = self._trees(args, text, "input", tensors)
            trees = self._trees(kwargs.values(), text, "kwargs", tensors, kwargs) if kwargs else ()
            fields["input_kwargs"] = dict(zip(kwargs, trees, strict=True))
        elif tapped:
            tensors = tensors_in([args, kwargs], self._adapter.is_tensor)
        begun = self._adapter.begin_backward(tensors) if tapped else None
        modules = self._thread.modules
        around = modules[-1] if modules else None
        return Call(name, text, recorded, tapped, place, around, fields, begun, since)

    def _end(self, call: Call, output: Any, changed: Any = None) -> None:
        """`changed`: what an in-place call changed, which is its output where it returns nothing."""
        self.safely("record the outputs of", call.text, self._ended, call, output, changed)

    def _ended(self, call: Call, output: Any, changed: Any) -> None:
        tensors: list[Any] = []
        results = (
            output if isinstance(output, (tuple, list)) and not hasattr(output, "_fields") else (output,)
        )
        if call.recorded:
            self._emit(call, self._finished(call, results, tensors))
            if changed is not None:
                self._descriptions.note_changed(call.text, changed, tensors)
        if call.tapped:
            outputs = tensors or tensors_in([results, changed], self._adapter.is_tensor)
            if outputs:
                sink = CallGradients(self, call.name.facing(BACKWARD), self._backward_parent(call))
                self._adapter.on_backward(call.begun, outputs, sink)

    def _finished(self, call: Call, results: Sequence[Any], tensors: list[Any]) -> dict[str, Any]:
        """The fields of a record, in the order of the file format."""
        fields = dict(call.fields or {})
        remark = self._remark(self._thread.counts is not None)
        has_state = "parameters" in fields  # as those of modules have
        state = {key: fields.pop(key) for key in MODULE_STATE if key in fields} if has_state else {}
        fields |= {} if state else remark
        if self.scope.sides.output:
            fields["output"] = self._trees(results, call.text, "output", tensors, since=call.since)
        return {**fields, **state, **remark} if state else fields

    def _remark(self, again: bool) -> dict[str, bool]:
        return {"is_recompute": again} if self._adapter.marks_recompute else {}

    def _fail(self, call: Call, error: BaseException) -> None:
        """The call raised: note its inputs and the error, unless the framework raised it to steer itself."""
        self.scope.leave(call.name)
        if call.recorded and not self._adapter.is_control_flow(error):
            with self.guarded("record the failure of", call.text):
                fields = {**(call.fields or {}), **self._remark(self._runs_again())}
                self._emit(call, {**fields, "exception": f"{type(error).__name__}: {error}"[:500]})

    def _emit(self, call: Call, fields: dict[str, Any]) -> None:
        stack = group = None
        if call.place is not None:
            stack, group = call.place
        parent = call.parent.text if call.parent is not None else group
        self.commit(Record(call.name, fields, stack, parent, self.plan.with_parents))

    # --- modules ---

    def enter(self, owner: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.listening or self._runs_again():
            self._thread.modules.append(self.begin(owner, module, args, kwargs))

    def begin(
        self,
        owner: str,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        around: Call | None = None,
    ) -> Call:
        """A module begins to run; `around`: the one it runs in, where no thread of Python runs them."""
        call = self._begin(self._count(owner), args, kwargs)
        if around is not None:
            call = call._replace(parent=around)
        if call.recorded and call.fields is not None:
            state = ModuleState(self._adapter, self.describe, module, call.text)
            with self.guarded("record the parameters of", call.text):
                call.fields.update(state.before(self.plan.with_state and self.scope.sides.input))
            if state.has_buffers:
                call = call._replace(state=state)
        return call

    def end(self, call: Call, module: Any, output: Any) -> None:
        if call.recorded or call.tapped:
            if call.state is not None and call.fields is not None:
                with self.guarded("record the buffers of", call.text):
                    call.fields.update(call.state.after(call.since))
            self._end(call, output)
            if call.tapped:
                self._await_parameters(call.name, module)
        self.scope.leave(call.name)

    def leave(self, owner: str, module: Any, output: Any, failed: bool) -> None:
        call = self._left(owner)
        if call is None:
            return
        error = sys.exc_info()[1] if failed else None
        if error is not None:
            self._fail(call, error)
        elif not failed:
            self.end(call, module, output)

    def _left(self, owner: str) -> Call | None:
        """The call of a module that is over; what an exception left behind inside it goes with it."""
        modules = self._thread.modules
        for depth in range(len(modules) - 1, -1, -1):
            if modules[depth].name.owner == owner:
                call = modules[depth]
                for inner in modules[depth + 1 :]:
                    self.scope.leave(inner.name)
                del modules[depth:]
                return call
        return None

    def _await_parameters(self, name: CallName, module: Any) -> None:
        with self.guarded("follow the parameter gradients of", name):
            waiting = self._parameters.get(name.owner)
            if waiting is None:
                waiting = self._parameters[name.owner] = ParameterGradients(self, name)
            waiting.follow(self._adapter, self._adapter.parameters(module))

    # --- checkpointed code runs a second time; its calls keep their first names ---

    def mark(self) -> Mark:
        return self._counts.mark(self._thread)

    def again(self, mark: Mark) -> AbstractContextManager[None]:
        return Again(self._thread, mark)

    # --- copies that calls make which are not recorded ---

    def copied(self, source: Any, copy: Any, *, is_whole: bool) -> None:
        if not self._thread.inside and (self.listening or self._runs_again()):
            self.safely("note a copy of", "a tensor", self._descriptions.note_copy, source, copy, is_whole)

    def optimizes(self, states: Iterable[OptimizerState]) -> None:
        if not self._thread.inside and self.listening:
            self.safely("name the state of", "an optimizer", self._descriptions.name_kept, states)

    def _runs_again(self) -> bool:
        """Checkpointed code may run again after stop(), when backward comes; then only this run is seen."""
        return self._thread.counts is not None and not self.closed

    # --- shared by calls, modules and gradients ---

    def name_state(self, models: Any) -> None:
        with self.guarded("name the parameters of the model"):
            self._descriptions.name_state(models)

    def describe(self, tensor: Any, record: str, slot: str, since: int | None = None) -> Leaf:
        """The leaf of a tensor; its content is saved too where the plan says so.

        `since`: when the call began that it came out of, as Descriptions counts; None for what went in.
        """
        leaf, seen = self._descriptions.of(tensor, record, slot, since)
        if self.plan.fills is not None:
            return filled(leaf, self._adapter.snapshot(tensor)) if self.plan.fills(leaf) else leaf
        tensors = self._sink.tensors
        if tensors is None or not self.plan.saves(record):
            return leaf
        name = slot_name(record, slot)
        if self._thread.counts is not None and name in self._saved:
            return leaf  # the first run's file must stay what the first run's record says
        if seen is not None and seen.file is not None and self._saved.get(seen.file) is seen:
            tensors.link(name, seen.file)
        else:
            snapshot = self._adapter.snapshot(tensor)
            if snapshot is None:
                return leaf
            tensors.put(name, snapshot)
            if seen is not None:
                seen.file = name
        self._saved[name] = seen
        return leaf._replace(data_name=file_name(name, self._adapter.file_suffix))

    def sketched(self, tensor: Any, leaf: Leaf) -> Leaf:
        """The leaf of the gradient of a parameter, with a sketch where the plan asks for it."""
        return self._descriptions.sketched(tensor, leaf)

    def commit(self, record: Record) -> None:
        """Write a finished record, at once or as soon as its statistics arrive from the device."""
        with self._lock:
            if self.closed:
                return
            if self._waiting or self._adapter.pending():
                self._waiting.append(record)
                if len(self._waiting) >= MAX_PENDING:
                    self.settle()
            else:
                self._sink.append(record)

    def settle(self) -> None:
        with self._lock:
            self._adapter.settle()
            waiting, self._waiting = self._waiting, []
            for record in waiting:
                self._sink.append(record)

    def pause(self) -> None:
        """stop(): no more calls; gradients of the calls so far may still come."""
        self.listening = False
        self._thread = Thread()  # modules that are still running end unseen
        self._descriptions.forget()
        self.settle()

    def close(self) -> None:
        """step(): whatever has not come by now is not coming."""
        self.pause()
        for waiting in self._parameters.values():
            waiting.close()
        self._parameters.clear()
        self._saved.clear()
        with self._lock:  # a record that another thread commits comes before this, or not at all
            self.settle()
            self.closed = True

    def tell_result(self, step: int) -> None:
        """Say why nothing was recorded, if nothing was."""
        if self._sink.is_open and not self._sink.records + self._sink.lost:
            left_out = self.scope.left_out.items()
            reasons = [f"{counted(count, 'call', 'are')} {reason}" for reason, count in left_out]
            why = "; ".join(reasons) or "no call was made between start() and stop() outside compiled code"
            logger().warning("step %d: nothing was recorded: %s.", step, why)

    def safely(self, doing: str, record: str, work: Callable[..., T], *args: Any) -> T | None:
        """`work(*args)` as in guarded(), at less cost, for what is done at every call."""
        thread = self._thread
        inside, thread.inside = thread.inside, True
        try:
            with self._adapter.untracked():
                return work(*args)
        except Exception as error:  # noqa: BLE001 - recording must never stop training
            self._sink.tell(f"{doing} {record}", error)
            return None
        finally:
            thread.inside = inside

    def guarded(self, doing: str, name: object = "") -> Guard:
        return Guard(self._thread, self._adapter.untracked(), self._sink.tell, doing, name)

    def _trees(
        self,
        values: Iterable[Any],
        record: str,
        word: str,
        tensors: list[Any],
        keys: Iterable[str] | None = None,
        since: int | None = None,
    ) -> list[Tree]:
        """What was seen in each value, at the slots `word.0`, `word.1` or `word.key`; notes the tensors.

        `since`: when the call began, of what came out of it.
        """
        is_tensor = self._adapter.is_tensor
        trees: list[Tree] = []
        for value, key in zip(values, itertools.count() if keys is None else keys, strict=False):
            if is_tensor(value):
                tensors.append(value)
                trees.append(self.describe(value, record, f"{word}.{key}", since))
            elif value is None or type(value) in PLAIN:  # most that are no tensors
                trees.append(plain_leaf(value))
            else:
                trees.append(walk(value, self._seeing(record, tensors, since), f"{word}.{key}"))
        return trees

    def _seeing(self, record: str, tensors: list[Any], since: int | None) -> Callable[[Any, str], Tree]:
        adapter = self._adapter

        def see(value: Any, slot: str) -> Tree:
            if adapter.is_tensor(value):
                tensors.append(value)
                return self.describe(value, record, slot, since)
            leaf = plain_leaf(value) or adapter.describe_other(value) or array_leaf(value)
            parts = adapter.parts_of(value) if leaf is None else None
            if parts is None:
                return leaf
            tree: dict[str, Any] = {
                key: self.describe(part, record, slot) if adapter.is_tensor(part) else part
                for key, part in parts.items()
            }
            return tree

        return see

    def _count(self, owner: str) -> CallName:
        return self._counts.name(self._thread, owner)

    def _backward_parent(self, call: Call) -> str | None:
        if call.parent is None or not self.plan.with_parents:
            return None
        return str(call.parent.name.facing(BACKWARD))
