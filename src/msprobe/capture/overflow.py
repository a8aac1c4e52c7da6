"""overflow_check: of all calls those that give NaN or an infinity are recorded, and their producers named."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from msprobe.adapter import Adapter, Api
from msprobe.capture.calls import Call
from msprobe.capture.overflow_judge import Held, Judge, given_to, made_by, slots
from msprobe.capture.overflow_limit import Limit
from msprobe.capture.overflow_verdict import ENTERED, PASSED_ON, PRODUCER, VERDICTS, kinds_of
from msprobe.capture.recorder import Plan, Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.sink import FolderSink
from msprobe.capture.stacks import Stacks
from msprobe.log import logger
from msprobe.name import FORWARD, PARAMETERS_GRAD, CallName, slot_name
from msprobe.plural import counted
from msprobe.record import Leaf, Record, Stack, filled, nearest_frames, on_one_line
from msprobe.store import overflow_csv
from msprobe.store.layout import OVERFLOWS
from msprobe.store.overflow_csv import Overflow
from msprobe.store.tensors import file_name

_ARGUMENTS = ("input.", "kwargs.")  # their slots begin so
_ASSIGNING = "assign"  # MindSpore's functions that change their first argument are called so
_MOST_TOLD = 10  # producers named in the log for each step; overflow.csv has all of them
_MOST_TOLD_ALONE = 100  # calls, of all verdicts, where there is no overflow.csv


class _Thread(threading.local):
    """Whether the call that begins in this thread changes its arguments, and its name if it overflowed."""

    def __init__(self) -> None:
        self.changes = False
        self.overflowed = ""


class Kernels(Protocol):
    """Has a device dump the kernels of a call that overflowed."""

    def prepare(self, args: Any, kwargs: Any) -> Any:
        """Copy arguments that the call is about to change."""
        ...

    def dump(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Make the call again, on copies, while its kernels are dumped; no error leaves it."""
        ...

    def dump_gradients(self, name: str) -> None:
        """Say how kernels of a backward call are dumped."""
        ...


class OverflowRecorder(Recorder):
    """Describes every call as any recorder does, judges it when it is complete, and keeps what overflowed."""

    def __init__(
        self,
        adapter: Adapter,
        writer: FolderSink,
        scope: Scope,
        stacks: Stacks,
        plan: Plan,
        limit: Limit,
        kernels: Kernels | None = None,
    ) -> None:
        super().__init__(adapter, writer, scope, stacks, plan._replace(saves=lambda name: False, fills=None))
        self._fills = plan.fills
        self._writer = writer
        self._limit = limit
        self._kernels = kernels
        self._judge = Judge(adapter)
        self._judged = 0
        self._verdicts: Counter[str] = Counter()
        self._noted = 0  # in overflow.csv
        self._kept: set[str] = set()
        self._undecided: dict[CallName, str] = {}  # parameters' gradients: where they are not finite
        self._places: dict[CallName, Stack] = {}
        self._call = _Thread()

    @property
    def is_idle(self) -> bool:
        """Never: what overflows is named, and ends training, also where nothing can be written."""
        return False

    # --- calls ---

    def around(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._thread.inside or not (self.listening or self._runs_again()):
            return function(*args, **kwargs)
        self._end_training()
        self._call.changes = _changes(api, kwargs)
        self._call.overflowed = ""
        arguments = args, kwargs
        if self._kernels is not None and self._call.changes:
            with self.guarded("copy the arguments of", api.name):
                arguments = self._kernels.prepare(args, kwargs)
        try:
            output = super().around(api, function, args, kwargs)
        finally:
            self._call.changes = False
        if self._kernels is not None and self._call.overflowed:
            with self.guarded("dump the kernels of", self._call.overflowed):
                self._kernels.dump(self._call.overflowed, function, *arguments)
        self._end_training()
        return output

    def _end_training(self) -> None:
        """Between two calls, and not while checkpointed code runs again, which backward waits for."""
        if self._limit.is_due and self._thread.counts is None:
            self.listening = False
            self._writer.publish(dict(self.scope.left_out))
            self._limit.end_training()

    def _begun(self, name: CallName, *further: Any) -> Call:
        call = super()._begun(name, *further)
        if call.place is not None:
            self._places[name] = call.place.stack
        return call

    def _arrived(self, call: Call, results: list[Any]) -> None:
        self._judge.note_communication(call.text)
        super()._arrived(call, results)

    def _ended(self, call: Call, output: Any, changed: Any) -> None:
        super()._ended(call, changed if output is None else output, changed)

    # --- tensors ---

    def describe(self, tensor: Any, record: str, slot: str, since: int | None = None) -> Leaf:
        held = self._judge.hold(super().describe(tensor, record, slot, since), tensor, slot)
        if self._call.changes and slot.startswith(_ARGUMENTS):
            held.copy = self._adapter.snapshot(tensor)
        elif record.endswith(PARAMETERS_GRAD):
            self._release(held)
        return held

    def _release(self, held: Held) -> None:
        """Who holds the gradient of a parameter makes backward copy it; so only what is bad is kept."""
        self._fetch()
        if kinds_of(held):
            held.copy = self._adapter.snapshot(held.tensor)
        held.tensor = None

    def _fetch(self) -> None:
        """Statistics that are still on a device: a call is judged before the next one."""
        if self._adapter.pending():
            self._adapter.settle()

    def _written(self, tree: Any, record: str, with_files: bool) -> Any:
        """The tree without what it holds; the tensors are in files, as far as they are what was described."""
        if isinstance(tree, Held):
            leaf = Leaf._make(tree)
            data = (tree.copy or self._content(tree)) if with_files else None
            if self._fills is not None:
                return filled(leaf, data) if self._fills(leaf) else leaf
            if data is None or self._writer.tensors is None:
                return leaf
            name = slot_name(record, tree.slot)
            self._writer.tensors.put(name, data)
            return leaf._replace(data_name=file_name(name, self._adapter.file_suffix))
        if isinstance(tree, list):
            return [self._written(item, record, with_files) for item in tree]
        if isinstance(tree, dict):
            return {key: self._written(item, record, with_files) for key, item in tree.items()}
        return tree

    def _content(self, held: Held) -> Any:
        """None where the tensor was changed after it was described, by a call whose name does not say so."""
        if held.tensor is None:
            return None
        again = self._adapter.describe(held.tensor, self.plan.want)
        self._fetch()
        if repr(again.statistics) != repr(held.statistics):  # NaN equals NaN here
            return None
        return self._adapter.snapshot(held.tensor)

    # --- judging ---

    def commit(self, record: Record) -> None:
        with self._lock:
            if self.closed:
                return
            self._fetch()
            self._judged += 1
            if record.name.direction == PARAMETERS_GRAD:
                found = slots(made_by(record))
                if found:
                    self._undecided[record.name] = found
                    self._keep(record)
                return
            verdict = self._judge.verdict(record)
            if verdict is not None and self._keep(record):
                self._call.overflowed = str(record.name) if record.name.direction == FORWARD else ""
                if self._kernels is not None and record.name.direction != FORWARD:
                    self._kernels.dump_gradients(str(record.name))
                stack = record.stack or self._places.get(record.name.facing(FORWARD))
                given, made = slots(given_to(record)), slots(made_by(record))
                self._tell(Overflow(str(record.name), verdict, given, made, _called_at(stack)))

    def _keep(self, record: Record) -> bool:
        """Write a record; False if it was there, as in backward run twice or checkpointed code run again."""
        text = str(record.name)
        again = text in self._kept
        self._kept.add(text)
        with_files = not (again and self._thread.counts is not None)  # files are those of the first run
        if self._writer.is_open:
            fields = {key: self._written(tree, text, with_files) for key, tree in record.fields.items()}
            self._writer.append(record._replace(fields=fields))
        return not again

    def _tell(self, overflow: Overflow) -> None:
        self._verdicts[overflow.verdict] += 1
        is_producer, is_written = overflow.verdict == PRODUCER, self._is_noted(overflow)
        number = self._limit.count(overflow.verdict, self._writer.place if is_written else None)
        if self._is_told(overflow.verdict, is_written):
            sentence = _producer_told(overflow) if is_producer else _given_told(overflow)
            numbered = overflow.verdict != PASSED_ON
            logger().warning("%s", f"overflow {number}: {sentence}" if numbered else sentence)

    def _is_noted(self, overflow: Overflow) -> bool:
        if self._writer.is_open:
            try:
                overflow_csv.add(self._writer.folder, overflow)
            except OSError as error:
                self._writer.tell(f"note {overflow.name} in {OVERFLOWS}", error)
            else:
                self._noted += 1
                return True
        return False

    def _is_told(self, verdict: str, is_written: bool) -> bool:
        if not is_written:
            return self._verdicts.total() <= _MOST_TOLD_ALONE
        return verdict == ENTERED or (verdict == PRODUCER and self._verdicts[PRODUCER] <= _MOST_TOLD)

    def settle(self) -> None:
        """No backward runs: whoever is to blame for the gradients of parameters has been heard."""
        super().settle()
        with self._lock:
            while self._undecided:
                name = next(iter(self._undecided))
                found = self._undecided.pop(name)
                self._tell(Overflow(str(name), self._judge.of_parameters(name), "", found, ""))

    def tell_result(self, step: int) -> None:
        """What the step came to."""
        if not self._judged:
            super().tell_result(step)
        elif not self._verdicts:
            logger().info("step %d: no overflow in %s.", step, counted(self._judged, "record"))
        else:
            kinds = [f"{word}: {count}" for word in VERDICTS if (count := self._verdicts[word])]
            unnoted = self._verdicts.total() - self._noted
            lacking = f", which lacks {unnoted} of them" if unnoted else ""
            written = f"see {overflow_csv.path(self._writer.folder)}{lacking}"
            logger().warning(
                "step %d: %d of %s overflowed (%s); %s.",
                step,
                self._verdicts.total(),
                counted(self._judged, "record"),
                ", ".join(kinds),
                written if self._writer.is_open else "nothing of it could be written",
            )

    def pause(self) -> None:
        super().pause()
        self._judge.excuses.forget()


def _changes(api: Api, kwargs: dict[str, Any]) -> bool:
    """Whether a call changes its arguments, as far as its name and its keywords say so."""
    return api.in_place or api.communicates or "out" in kwargs or api.name.startswith(_ASSIGNING)


def _called_at(stack: Stack | None) -> str:
    return on_one_line(nearest_frames(stack.frames)[0]) if stack is not None and stack.frames else ""


def _producer_told(overflow: Overflow) -> str:
    found = overflow.outputs or "finite numbers, while the overflow register was set"
    where = f"; called at {overflow.called_at}" if overflow.called_at else ""
    return f"{overflow.name} gave {found}, and its inputs were finite{where}"


def _given_told(overflow: Overflow) -> str:
    where = f"; called at {overflow.called_at}" if overflow.called_at else ""
    if overflow.verdict == PASSED_ON:
        return f"{overflow.name} passed on {overflow.inputs or overflow.outputs}{where}"
    if not overflow.inputs:
        return f"{overflow.name} received {overflow.outputs}{where}"
    return f"{overflow.name} was given {overflow.inputs}, which no recorded call has made{where}"
