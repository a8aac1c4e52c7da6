"""What training does for the online check: calls are recorded as ever, and sent instead of written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msprobe.adapter import Adapter
from msprobe.capture.calls import Call
from msprobe.capture.recorder import MAX_PENDING, Plan, Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.stacks import Stacks
from msprobe.capture.tasks import Opening, Task
from msprobe.config import Tensor
from msprobe.log import logger, set_rank
from msprobe.name import CallName
from msprobe.online import tls
from msprobe.online.client import Network
from msprobe.online.folder import FolderWay
from msprobe.online.sender import Sender, Way
from msprobe.plural import counted
from msprobe.record import Leaf, Record, number_type
from msprobe.store.dtypes import TensorData
from msprobe.store.troubles import Told, Troubles

_DISTRIBUTED = "Distributed"


class OnlineChecking(Task):
    """Task tensor with online_run_ut: nothing is written here, calls and gradients go to the checker."""

    saves_tensors = False

    def __init__(self, section: Tensor) -> None:
        self._section = section
        self._way = _way(section)  # what cannot work is told before training begins
        self._sender: Sender | None = None
        self._told = Told()

    def recorder(self, opening: Opening) -> Recorder:
        if self._sender is None:
            rank = opening.adapter.rank()
            set_rank(rank)
            self._sender = Sender(self._way, rank or 0)
        scope = Scope(self._section.scope, self._section.list, _sent(self._section.data_mode))
        outlet = Outlet(self._sender, opening.step, self._told)
        return OnlineRecorder(opening.adapter, outlet, scope, opening.stacks, opening.plan)

    def obstacle(self) -> str | None:
        refused = self._sender.outbox.refused if self._sender is not None else ""
        return f"the online check refused this process: {refused}" if refused else None

    def close(self) -> None:
        """Training is over: see that all calls arrive, and say how many did not."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None


def _sent(data_mode: Sequence[str]) -> tuple[str, ...]:
    """A call is checked as a whole: of data_mode only the directions count, and gradients need their call."""
    return ("forward",) if {"forward", "backward"} & set(data_mode) == {"forward"} else ("all",)


def _way(section: Tensor) -> Way:
    if section.nfs_path:
        return FolderWay(section.nfs_path)
    assert section.port is not None
    return Network(section.host, section.port, tls.training_side(section.tls_path, section.host))


class Outlet:
    """Where the records of a step go: to the checker, each with the contents of its tensors."""

    is_open = True
    tensors = None  # contents are held until their record comes

    def __init__(self, sender: Sender, step: int, told: Told) -> None:
        self.records = 0
        self.lost = 0
        self._sender = sender
        self._step = step
        self._troubles = Troubles(told)
        self._held: dict[str, dict[str, TensorData]] = {}

    def hold(self, record: str, content: TensorData) -> str:
        """Keep a content until its record comes; what the leaf calls it."""
        held = self._held.setdefault(record, {})
        name = str(len(held))
        held[name] = content
        return name

    def append(self, record: Record) -> None:
        tensors = self._held.pop(str(record.name), {})
        if "exception" in record.fields:
            return
        if self._sender.put(self._step, record, tensors):
            self.records += 1
        else:
            self.lost += 1

    def tell(self, doing: str, error: BaseException) -> None:
        reason = str(error).rstrip(".") or type(error).__name__
        self._troubles.tell(f"online check: could not {doing}: {reason}; training goes on.", error)

    def close(self) -> None:
        self._held.clear()


class OnlineRecorder(Recorder):
    """Describes every call as any recorder does, with the contents of all of its tensors."""

    def __init__(self, adapter: Adapter, outlet: Outlet, scope: Scope, stacks: Stacks, plan: Plan) -> None:
        super().__init__(adapter, outlet, scope, stacks, plan)
        self._outlet = outlet

    def _begin(self, name: CallName, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """One process alone cannot communicate again, and the checker has devices of its own."""
        if name.prefix == _DISTRIBUTED:
            return Call(name, str(name), False)
        return super()._begin(name, args, {key: item for key, item in kwargs.items() if key != "device"})

    def describe(self, tensor: Any, record: str, slot: str, since: int | None = None) -> Leaf:
        """Without statistics: nobody needs them who has the content."""
        leaf = super().describe(tensor, record, slot, since)._replace(stats=None)
        content = self._adapter.snapshot(tensor)
        if content is None or (content.dtype, content.shape) != (number_type(leaf.dtype), leaf.shape):
            return leaf
        return leaf._replace(data_name=self._outlet.hold(record, content))

    def commit(self, record: Record) -> None:
        """At once, and without a lock: training may wait here, and other threads must not wait for it."""
        if not self.closed:
            self._outlet.append(record)
        if self._adapter.pending() >= MAX_PENDING:
            self.settle()

    def close(self) -> None:
        super().close()
        self._outlet.close()

    def tell_result(self, step: int) -> None:
        super().tell_result(step)
        if self._outlet.records:
            told = counted(self._outlet.records, "record")
            logger().info("step %d: %s of calls and gradients for the online check.", step, told)
