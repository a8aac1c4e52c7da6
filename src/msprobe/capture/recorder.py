"""A call becomes a Record. Whatever goes wrong here, training sees nothing of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from msprobe.adapter import Adapter, Api, Want
from msprobe.capture.gradients import CallGradients, ParameterGradients
from msprobe.capture.memo import Memo
from msprobe.capture.scope import Scope
from msprobe.capture.stacks import Place, Stacks
from msprobe.kernels import statistics_of
from msprobe.name import BACKWARD, FORWARD, CallName, call_owner, slot_name
from msprobe.record import Leaf, Record, Tree, plain_leaf, tensors_in, walk
from msprobe.store.tensors import file_name
from msprobe.store.writer import Writer

MAX_PENDING = 64  # descriptions that may wait on a device before one transfer fetches them all


class Plan(NamedTuple):
    """What a recording holds, as the configuration asks for it."""

    want: Want
    saves: Callable[[str], bool]  # is the content of the tensors of a record of this name saved too?
    with_parents: bool  # levels L0 and mix say which module a call ran in


class Call(NamedTuple):
    """A call under way: its name, where it was made, what its inputs were."""

    name: CallName
    recorded: bool
    tapped: bool = False  # its backward is recorded
    place: Place | None = None
    parent: str | None = None
    fields: dict[str, Any] | None = None
    begun: Any = None  # the adapter's note of where the inputs hang in the graph


class _Thread(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.inside = False  # a recorded call, or our own work on one
        self.modules: list[Call] = []
        self.counts: Counter[str] | None = None  # set while checkpointed code runs a second time


class Recorder:
    """Records one step of one rank; gradients are taken until close(), calls only while listening."""

    def __init__(self, adapter: Adapter, writer: Writer, scope: Scope, stacks: Stacks, plan: Plan) -> None:
        self.listening = False
        self.scope = scope
        self._adapter = adapter
        self._writer = writer
        self._stacks = stacks
        self._plan = plan
        self._memo = Memo()
        self._counts: Counter[str] = Counter()
        self._thread = _Thread()
        self._lock = threading.RLock()
        self._waiting: list[Record] = []  # records whose statistics are still on a device
        self._parameters: dict[str, ParameterGradients] = {}
        self._closed = False

    # --- calls of APIs ---

    def around(self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an intercepted function and record the call; of nested calls only the outermost counts."""
        thread = self._thread
        if thread.inside or not (self.listening or self._runs_again()):
            return function(*args, **kwargs)
        call = self._begin(self._count(call_owner(api.prefix, api.name)), function, args, kwargs)
        thread.inside = True
        try:
            output = function(*args, **kwargs)
        except BaseException as error:
            thread.inside = False
            self._fail(call, error)
            raise
        thread.inside = False
        if api.communicates:
            results = [*args, *kwargs.values()]
            if not self._adapter.on_completion(output, lambda: self._end(call, results)):
                self._end(call, results)
        elif call.recorded or call.tapped:
            self._end(call, output)
        self.scope.leave(call.name)
        return output

    def _begin(
        self, name: CallName, function: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        recorded = self.scope.enter(name)
        tapped = self.scope.expects_backward(name) and self._adapter.differentiates()
        call = Call(name, recorded, tapped)
        if not recorded and not tapped:
            return call
        with self.guarded(f"record the inputs of {name}"):
            place = self._stacks.here(function)
            parent = self._parent() or place.group if self._plan.with_parents else None
            fields: dict[str, Any] | None = None
            tensors: list[Any] = []
            if recorded and self.scope.sides.input:
                see = self._seeing(str(name), tensors)
                fields = {
                    "input_args": [walk(value, see, f"input.{i}") for i, value in enumerate(args)],
                    "input_kwargs": {key: walk(value, see, f"kwargs.{key}") for key, value in kwargs.items()},
                }
            elif tapped:
                tensors = tensors_in([args, kwargs], self._adapter.is_tensor)
            begun = self._adapter.begin_backward(tensors) if tapped else None
            return Call(name, recorded, tapped, place, parent, fields or {}, begun)
        return Call(name, recorded=False)

    def _end(self, call: Call, output: Any) -> None:
        with self.guarded(f"record the outputs of {call.name}"):
            fields = dict(call.fields or {})
            tensors: list[Any] = []
            results = list(output) if isinstance(output, (tuple, list)) and not hasattr(output, "_fields") else [output]
            is_module = call.name.is_module
            if call.recorded:
                if not is_module:
                    fields["is_recompute"] = self._runs_again()
                if self.scope.sides.output:
                    see = self._seeing(str(call.name), tensors)
                    fields["output"] = [walk(value, see, f"output.{i}") for i, value in enumerate(results)]
                if is_module:
                    fields["parameters"] = fields.pop("parameters", {})
                    fields["is_recompute"] = self._runs_again()
                self._emit(call, fields)
            if call.tapped:
                outputs = tensors or tensors_in(results, self._adapter.is_tensor)
                sink = CallGradients(self, call.name.facing(BACKWARD), self._backward_parent(call))
                self._adapter.on_backward(call.begun, outputs, sink)

    def _fail(self, call: Call, error: BaseException) -> None:
        """The call raised: note its inputs and the error, unless the framework raised it to steer itself."""
        self.scope.leave(call.name)
        if call.recorded and not self._adapter.is_control_flow(error):
            with self.guarded(f"record the failure of {call.name}"):
                fields = {**(call.fields or {}), "is_recompute": self._runs_again()}
                self._emit(call, {**fields, "exception": f"{type(error).__name__}: {error}"[:500]})

    def _emit(self, call: Call, fields: dict[str, Any]) -> None:
        stack = call.place.stack if call.place is not None else None
        self.commit(Record(call.name, fields, stack, call.parent, self._plan.with_parents))

    # --- modules ---

    def enter(self, owner: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (self.listening or self._runs_again()):
            return
        call = self._begin(self._count(owner), None, args, kwargs)
        if call.recorded and call.fields is not None:
            with self.guarded(f"record the parameters of {call.name}"):
                see = self._seeing(str(call.name), [])
                parameters = self._adapter.parameters(module)
                call.fields["parameters"] = {name: see(value, f"parameters.{name}") for name, value in parameters}
        self._thread.modules.append(call)

    def leave(self, owner: str, module: Any, output: Any, failed: bool) -> None:
        modules = self._thread.modules
        while modules:  # what an exception left behind on top of this module goes with it
            call = modules.pop()
            self.scope.leave(call.name)
            if call.name.owner == owner:
                break
        else:
            return
        if failed or not (call.recorded or call.tapped):
            return
        self._end(call, output)
        if self.scope.sides.backward and self._adapter.differentiates():
            self._await_parameters(call.name, module)

    def _await_parameters(self, name: CallName, module: Any) -> None:
        with self.guarded(f"follow the parameter gradients of {name}"):
            waiting = self._parameters.get(name.owner)
            if waiting is None:
                waiting = self._parameters[name.owner] = ParameterGradients(self, name)
            waiting.follow(self._adapter, self._adapter.parameters(module))

    # --- checkpointed code runs a second time; its calls keep their first names ---

    def mark(self) -> Counter[str]:
        counts = self._thread.counts
        return Counter(self._counts if counts is None else counts)

    @contextmanager
    def again(self, mark: Counter[str]) -> Iterator[None]:
        thread = self._thread
        before = thread.counts, thread.modules
        thread.counts, thread.modules = Counter(mark), []
        try:
            yield
        finally:
            thread.counts, thread.modules = before

    def _runs_again(self) -> bool:
        """Checkpointed code may run again after stop(), when backward comes; only its second run is seen then."""
        return self._thread.counts is not None and not self._closed

    # --- shared by calls, modules and gradients ---

    def describe(self, tensor: Any, record: str, slot: str) -> Leaf:
        """The leaf of a tensor; its content is saved too where the plan says so."""
        version = self._adapter.version_of(tensor)
        seen = self._memo.find(tensor, version) if version is not None else None
        if seen is None:
            leaf = self._adapter.describe(tensor, self._plan.want)
            if version is not None:
                seen = self._memo.keep(tensor, version, leaf)
        else:
            leaf = seen.leaf
        if self._writer.tensors is None or not self._plan.saves(record):
            return leaf
        name = slot_name(record, slot)
        if seen is not None and seen.file is not None:
            self._writer.tensors.link(name, seen.file)
        else:
            snapshot = self._adapter.snapshot(tensor)
            if snapshot is None:
                return leaf
            self._writer.tensors.put(name, snapshot)
            if seen is not None:
                seen.file = name
        return leaf._replace(data_name=file_name(name, self._adapter.file_suffix))

    def commit(self, record: Record) -> None:
        """Write a finished record, at once or as soon as its statistics arrive from the device."""
        with self._lock:
            if self._closed:
                return
            if self._waiting or self._adapter.pending():
                self._waiting.append(record)
                if len(self._waiting) >= MAX_PENDING:
                    self.settle()
            else:
                self._writer.append(record)

    def settle(self) -> None:
        with self._lock:
            self._adapter.settle()
            waiting, self._waiting = self._waiting, []
            for record in waiting:
                self._writer.append(record)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def with_parents(self) -> bool:
        return self._plan.with_parents

    def pause(self) -> None:
        """stop(): no more calls; gradients of the calls so far may still come."""
        self.listening = False
        self._memo.forget()
        self.settle()

    def close(self) -> None:
        """step(): whatever has not come by now is not coming."""
        self.pause()
        for waiting in self._parameters.values():
            waiting.close()
        self._parameters.clear()
        self._closed = True

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Our own work on a call: not itself recorded, outside every graph, and never an error for training."""
        thread = self._thread
        inside, thread.inside = thread.inside, True
        try:
            with self._adapter.untracked():
                yield
        except Exception as error:  # recording must never stop training
            self._writer.tell(doing, error)
        finally:
            thread.inside = inside

    def _seeing(self, record: str, tensors: list[Any]) -> Callable[[Any, str], Tree]:
        adapter = self._adapter

        def see(value: Any, slot: str) -> Tree:
            if adapter.is_tensor(value):
                tensors.append(value)
                return self.describe(value, record, slot)
            leaf = plain_leaf(value) or adapter.describe_other(value) or _array(value)
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
        counts = self._thread.counts
        if counts is None:
            with self._lock:
                number = self._counts[owner]
                self._counts[owner] = number + 1
        else:
            number = counts[owner]
            counts[owner] = number + 1
        return CallName(owner, FORWARD, number)

    def _parent(self) -> str | None:
        modules = self._thread.modules
        return str(modules[-1].name) if modules else None

    def _backward_parent(self, call: Call) -> str | None:
        if call.parent is None:
            return None
        try:
            return str(CallName.parse(call.parent).facing(BACKWARD))
        except ValueError:
            return None


def _array(value: Any) -> Leaf | None:
    """A numpy array among the arguments."""
    if type(value).__module__ != "numpy" or not hasattr(value, "__array_interface__"):
        return None
    return Leaf("numpy.ndarray", dtype=value.dtype.name, shape=tuple(value.shape), stats=statistics_of(value))
