"""The training side: one thread carries calls to the checker, and is waited for only as long as it moves."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Protocol

from msprobe.log import logger
from msprobe.online.message import Greeting
from msprobe.online.outbox import Outbox
from msprobe.plural import counted
from msprobe.record import Record
from msprobe.store.dtypes import TensorData

_STILL = 10.0  # seconds without an acknowledgement after which the end is not waited for
_AT_WORK = 6  # times as long, while the checker is there: a large call takes its time
_LONGEST = 600.0  # seconds after which the end is not waited for though calls are still acknowledged
_TELLING = 10.0  # how often the log says for how many calls the end is waited for
_LEAVING = 2.0


class Way(Protocol):
    """How calls get to the checker."""

    def carry(self, greeting: Greeting, outbox: Outbox) -> None:
        """Send until the outbox is closing and empty; runs in a thread of its own."""
        ...

    def abort(self) -> None:
        """End carry() soon, from another thread."""
        ...


class Sender:
    """Takes calls from training. Nothing here raises, and nothing holds training for more than a second."""

    def __init__(
        self,
        way: Way,
        rank: int,
        *,
        still: float = _STILL,
        longest: float = _LONGEST,
        telling: float = _TELLING,
        outbox: Outbox | None = None,
    ) -> None:
        self._way = way
        self._still, self._longest, self._telling = still, longest, telling
        self._process = os.getpid()
        self.greeting = Greeting(uuid.uuid4().hex, rank)
        self.outbox = outbox or Outbox()
        self._thread = threading.Thread(target=self._run, name="msprobe-online", daemon=True)
        self._thread.start()

    def put(self, step: int, record: Record, tensors: Mapping[str, TensorData]) -> bool:
        return self.outbox.put(step, record, tensors)

    def close(self) -> None:
        """Wait until all calls are acknowledged, as long as some still are; then say what became of them."""
        if os.getpid() != self._process:
            return
        self.outbox.close()
        seconds = self._wait()
        if self._thread.is_alive():
            self._way.abort()
            self._thread.join(_LEAVING)
        late = self.outbox.unsettled
        self.outbox.give_up()
        told = f"online check: {counted(self.outbox.settled, 'record')} taken"
        rest = f" ({late} of them still waited after {seconds:.0f} s)" if late else ""
        waits = self.outbox.waits
        waited = f"; training waited for it {counted(waits, 'time')}" if waits else ""
        if self.outbox.dropped:
            logger().warning("%s, %d dropped and not checked%s%s.", told, self.outbox.dropped, rest, waited)
        else:
            logger().info("%s, none dropped%s.", told, waited)

    def _wait(self) -> float:
        """For how many seconds the end was waited for."""
        began = told = since = time.monotonic()
        seen, late = self.outbox.settled, 0.0
        while self._thread.is_alive() and late < self._longest:
            self._thread.join(0.05)
            now = time.monotonic()
            late = now - began
            if self.outbox.settled != seen:
                seen, since = self.outbox.settled, now
            elif now - since >= self._patience():
                break
            if now - told >= self._telling and self.outbox.unsettled:
                told = now
                logger().info(
                    "online check: training is over; waiting for the checker to take %s, for at most %.0f s.",
                    counted(self.outbox.unsettled, "record"),
                    max(0.0, self._longest - late),
                )
        return late

    def _patience(self) -> float:
        return self._still * (_AT_WORK if self.outbox.reached else 1)

    def _run(self) -> None:
        try:
            self._way.carry(self.greeting, self.outbox)
        except Exception as error:  # noqa: BLE001 - the check must never stop training
            self.outbox.refuse(f"{type(error).__name__}: {error}")
