"""Calls that wait to be sent and to be acknowledged; training waits for room at most a second."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from msprobe.log import logger
from msprobe.online.blob import Malformed
from msprobe.online.message import call_message
from msprobe.record import Record
from msprobe.store.dtypes import TensorData

if TYPE_CHECKING:
    from typing_extensions import Buffer

_COST = 1 << 12  # bytes that a waiting call takes beside its tensors
_MOST_TOLD = 20


class Outgoing(NamedTuple):
    """A call on its way."""

    sequence: int
    step: int
    record: Record
    tensors: Mapping[str, TensorData]
    cost: int


class Outbox:
    """Training puts calls in; one thread sends them, in order, and settles those that were acknowledged.

    What finds no room is dropped and counted. As long as nothing moves, training does not wait again.
    """

    def __init__(self, *, budget: int = 256 << 20, most: int = 1024, patience: float = 1.0) -> None:
        self._budget = budget
        self._most = most
        self._patience = patience
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal may interrupt training here, and its handler train too
        self._room = threading.Condition(self._lock)
        self._calls: deque[Outgoing] = deque()  # from the first that is not settled
        self._sent = 0  # how many of them were sent
        self._sent_cost = 0
        self._cost = 0
        self._sequence = 0
        self._stuck_at = -1
        self._told: set[str] = set()
        self._wake: Callable[[], None] = lambda: None
        self.settled = 0  # calls that were acknowledged
        self.dropped = 0
        self.waits = 0  # how often training waited for room
        self.reached = False  # the checking side answers
        self.closing = False
        self.refused = ""  # why the checking side takes nothing from us

    # --- training ---

    def put(self, step: int, record: Record, tensors: Mapping[str, TensorData]) -> bool:
        """Have a call sent; False if it is dropped."""
        if os.getpid() != self._process:
            return False
        cost = sum(memoryview(tensor.data).nbytes for tensor in tensors.values()) + _COST
        with self._lock:
            if not (self.closing or self.refused) and self._has_room(cost):
                self._sequence += 1
                self._calls.append(Outgoing(self._sequence, step, record, tensors, cost))
                self._cost += cost
                self._wake()
                return True
            self.dropped += 1
        if not (self.closing or self.refused):
            self.tell(
                f"the online check does not keep up: {record.name} is the first call that is not checked; "
                "training goes on, and how many were dropped is told at the end.",
                "full",
            )
        return False

    def _has_room(self, cost: int) -> bool:
        if not self._is_full(cost):
            return True
        if self.settled == self._stuck_at:
            return False
        self.waits += 1
        deadline = time.monotonic() + self._patience
        while self._is_full(cost) and not self.refused:
            left = deadline - time.monotonic()
            if left <= 0:
                self._stuck_at = self.settled
                return False
            self._room.wait(left)
        return not self.refused

    def _is_full(self, cost: int) -> bool:
        """One call fits in any case, however large it is."""
        full = self._cost + cost > self._budget or len(self._calls) >= self._most
        return full and bool(self._calls)

    def close(self) -> None:
        """Nothing more comes from training."""
        with self._lock:
            self.closing = True
            self._wake()

    @property
    def unsettled(self) -> int:
        with self._lock:
            return len(self._calls)

    # --- the thread that sends ---

    def on_change(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._wake = wake

    def rewind(self) -> None:
        """A new connection: all that is not settled is sent again."""
        with self._lock:
            self._sent = self._sent_cost = 0

    def next(self, most: int = 1, most_bytes: int = 0) -> Outgoing | None:
        """The next call to send, if so many may be unanswered; it stays here until it is settled."""
        with self._lock:
            if self._sent >= len(self._calls) or self._sent >= most:
                return None
            call = self._calls[self._sent]
            if self._sent and self._sent_cost + call.cost > most_bytes:
                return None
            self._sent += 1
            self._sent_cost += call.cost
            return call

    def message_of(self, call: Outgoing, largest: int) -> list[Buffer] | None:
        """What is sent of a call; None if it cannot be, and is dropped."""
        try:
            chunks = call_message(call.sequence, call.step, call.record, call.tensors)
        except Exception as error:  # noqa: BLE001 - this call must not hold up those behind it
            its = "its message" if isinstance(error, Malformed) else "it cannot be written:"
            self.drop(call, f"{its} {error}")
            return None
        size = sum(memoryview(chunk).nbytes for chunk in chunks)
        if size > largest:
            self.drop(call, f"it has {size} bytes, and the checker takes {largest}")
            return None
        return chunks

    def settle(self, sequence: int) -> None:
        """All calls up to this one were acknowledged."""
        with self._lock:
            while self._calls and self._calls[0].sequence <= sequence:
                self._leave(self._calls.popleft())
                self.settled += 1
            self._room.notify_all()

    def drop(self, call: Outgoing, reason: str) -> None:
        """A call that was taken last cannot be sent at all."""
        with self._lock:
            if call not in self._calls:  # given up meanwhile
                return
            self._calls.remove(call)
            self._leave(call)
            self.dropped += 1
            self._room.notify_all()
        self.tell(f"a call is not checked, {call.record.name} for one: {reason}.", "dropped")

    def _leave(self, call: Outgoing) -> None:
        self._cost -= call.cost
        if self._sent:
            self._sent -= 1
            self._sent_cost -= call.cost

    def refuse(self, reason: str) -> None:
        """The checking side wants nothing of us: all that waits is dropped, and all that comes."""
        with self._lock:
            self.refused = reason
            self._forget()
        self.tell(f"the online check refused this process, and nothing more is checked: {reason}")

    def give_up(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self.dropped += len(self._calls)
        self._calls.clear()
        self._cost = self._sent = self._sent_cost = 0
        self._room.notify_all()

    def tell(self, sentence: str, kind: str = "") -> None:
        """Each kind of sentence once, and not for ever new ones."""
        kind = kind or sentence
        if kind not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(kind)
            logger().warning("%s", sentence)
