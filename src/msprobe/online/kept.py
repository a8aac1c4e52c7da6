"""Calls whose gradients may still come: these are computed again from the call's inputs, whose files stay."""

from __future__ import annotations

from msprobe.online.spool import Spool, Spooled
from msprobe.record import leaves

_MOST_WEIGHT = 2 << 30  # bytes of memory that records may take


class Kept:
    """Of one process that trains, in one step."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._calls: dict[str, Spooled] = {}
        self._step = 0
        self._size = self._weight = 0

    def enter(self, step: int) -> None:
        """Something of this step came: no gradients of another one come any more."""
        if step != self._step:
            self._step = step
            self.forget()

    def add(self, call: str, spooled: Spooled) -> None:
        """If there is no room for all, the latest stay: their gradients come first."""
        outputs = leaves(spooled.record.fields.get("output"))
        if not any(leaf.requires_grad for leaf in outputs):
            return
        self._drop(call)  # checkpointed code runs again, with the same inputs
        self._spool.hold(spooled)
        self._calls[call] = spooled
        self._size += spooled.size
        self._weight += spooled.weight
        while self._size > self._spool.room or self._weight > _MOST_WEIGHT:
            self._drop(next(iter(self._calls)))

    def take(self, call: str) -> Spooled | None:
        """A call that is not kept any more; whoever takes it holds it."""
        found = self._calls.pop(call, None)
        if found is not None:
            self._size -= found.size
            self._weight -= found.weight
        return found

    def forget(self) -> None:
        for call in list(self._calls):
            self._drop(call)

    def _drop(self, call: str) -> None:
        found = self.take(call)
        if found is not None:
            self._spool.release(found)
