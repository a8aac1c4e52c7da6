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
from msprobe.record import Record
from msprobe.store.dtypes import TensorData

_STILL = 10.0  # seconds without an acknowledgement after which the end is not waited for
_AT_WORK = 6  # times as long, while the checker is there: a large call takes its time
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

    def __init__(self, way: Way, rank: int, *, still: float = _STILL, outbox: Outbox | None = None) -> None:
        self._way = way
        self._still = still
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
        seen, since = -1, time.monotonic()
        while self._thread.is_alive() and time.monotonic() - since < self._patience():
            self._thread.join(0.05)
            if self.outbox.settled != seen:
                seen, since = self.outbox.settled, time.monotonic()
        if self._thread.is_alive():
            self._way.abort()
            self._thread.join(_LEAVING)
        self.outbox.give_up()
        settled, dropped, waits = self.outbox.settled, self.outbox.dropped, self.outbox.waits
        waited = f"; training waited for it {waits} times" if waits else ""
        if dropped:
            logger().warning(
                "online check: %d records were taken, %d were dropped and not checked%s.",
                settled,
                dropped,
                waited,
            )
        else:
            logger().info("online check: all %d records were taken%s.", settled, waited)

    def _patience(self) -> float:
        return self._still * (_AT_WORK if self.outbox.reached else 1)

    def _run(self) -> None:
        try:
            self._way.carry(self.greeting, self.outbox)
        except Exception as error:  # noqa: BLE001 - the check must never stop training
            self.outbox.refuse(f"{type(error).__name__}: {error}")
