"""When overflows end training: at the N-th of a run that counts, where training can take an exception."""

from __future__ import annotations

from collections.abc import Collection

from msprobe.capture.overflow_verdict import ENTERED, PRODUCER
from msprobe.errors import OverflowLimitReached


class Limit:
    """How many overflows a run has met, and when that ends training. One for all recordings of a run."""

    def __init__(self, most: int, verdicts: Collection[str] = (PRODUCER, ENTERED)) -> None:
        self._most = most  # -1: never
        self._verdicts = verdicts  # of the overflows that count
        self._place: object = None  # of the record of the last one, if it could be written
        self.met = 0
        self.over = False

    def count(self, verdict: str, place: object) -> int:
        """How many there are, with this one."""
        if verdict in self._verdicts:
            self.met += 1
            if self._most == -1 or self.met <= self._most:
                self._place = place
        return self.met

    @property
    def is_due(self) -> bool:
        return not self.over and self._most != -1 and self.met > 0 and self.met >= self._most

    def end_training(self) -> None:
        """Raise, once, if it is time to. Only where training can take it: not while backward runs.

        What backward met beyond the number that was asked for is not counted: the file is that of the last.
        """
        if self.is_due:
            self.over = True
            saved = f"dump file is saved in '{self._place}'"
            raise OverflowLimitReached(
                f"[overflow {self._most} times]: {saved if self._place else 'no dump file could be saved'}."
            )
