"""When overflows end training: at the N-th producer of a run, where training can take an exception."""

from __future__ import annotations

from msprobe.errors import OverflowLimitReached


class Limit:
    """How many producers a run has met, and when that ends training. One for all recordings of a run."""

    def __init__(self, most: int) -> None:
        self._most = most  # -1: never
        self._folder: object = None  # of the recording that holds the last one, if it could be written
        self.met = 0
        self.over = False

    def count(self, folder: object) -> int:
        self.met += 1
        if self._most == -1 or self.met <= self._most:
            self._folder = folder
        return self.met

    @property
    def is_due(self) -> bool:
        return not self.over and self._most != -1 and self.met > 0 and self.met >= self._most

    def end_training(self) -> None:
        """Raise, once, if it is time to. Only where training can take it: not while backward runs."""
        if self.is_due:
            self.over = True
            saved = f"dump file is saved in '{self._folder}'"
            raise OverflowLimitReached(
                f"[overflow {self.met} times]: {saved if self._folder else 'no dump file could be saved'}."
            )
