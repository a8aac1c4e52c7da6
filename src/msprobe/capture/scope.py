"""Which calls, steps, ranks and sides are recorded; every "no" has a reason a user can read."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from msprobe.name import BACKWARD, FORWARD, CallName

OUTSIDE_INTERVAL = "outside the scope"
NOT_LISTED = "not in the list"
OTHER_DIRECTION = "its direction is left out by data_mode"

_REMEMBERED = 5_000  # names kept to suggest the nearest one to a misspelt scope


class Sides:
    """Which fields of a record data_mode keeps."""

    def __init__(self, data_mode: Sequence[str]) -> None:
        words = set(data_mode)
        whole = "all" in words or not words
        directions = words & {"forward", "backward"}
        sides = words & {"input", "output"}
        self.forward = whole or not directions or "forward" in directions
        self.backward = whole or not directions or "backward" in directions
        self.input = whole or not sides or "input" in sides
        self.output = whole or not sides or "output" in sides

    def wants(self, name: CallName) -> bool:
        if name.direction == FORWARD:
            return self.forward
        return self.backward


class Scope:
    """The filter of one recording: `enter` and `leave` follow the calls as they run."""

    def __init__(self, interval: Sequence[str] = (), patterns: Sequence[str] = (), data_mode: Sequence[str] = ("all",)):
        self.sides = Sides(data_mode)
        self.left_out: Counter[str] = Counter()
        self._first, self._last = (interval[0], interval[-1]) if interval else ("", "")
        self._patterns = tuple(patterns)
        self._open = not interval
        self._met: set[str] = set()
        self._others: set[str] = set()
        self._listed_modules: list[str] = []

    def enter(self, name: CallName, listed: bool = False) -> bool:
        """A call begins: is it recorded? `listed`: it belongs to a call that the list names already."""
        if not (self._first or self._patterns):
            return self._allow(name)
        text = str(name)
        if self._first:
            self._watch(text)
            if text == self._first:
                self._open = True
            if not self._open:
                return self._refuse(OUTSIDE_INTERVAL)
        if self._patterns and not listed and not self._listed(name, text):
            return self._refuse(NOT_LISTED)
        return self._allow(name)

    def expects_backward(self, name: CallName) -> bool:
        """Whether the list and data_mode want the backward of a forward call; an interval decides when it runs."""
        if not self.sides.backward:
            return False
        if not self._patterns:
            return True
        text = str(name.facing(BACKWARD))
        return bool(self._listed_modules) or any(pattern in text for pattern in self._patterns)

    def leave(self, name: CallName) -> None:
        """The call ended; the interval ends with its last call, output included."""
        text = str(name)
        if self._first and text == self._last:
            self._open = False
        if text in self._listed_modules:
            self._listed_modules.remove(text)

    def never_met(self) -> list[str]:
        """A sentence for each name of the interval that no call had."""
        names = [name for name in dict.fromkeys((self._first, self._last)) if name and name not in self._met]
        sentences = []
        for name in names:
            near = difflib.get_close_matches(name, self._others, n=1, cutoff=0.0)
            hint = f"; the nearest that was made is {near[0]}" if near else ""
            sentences.append(f"scope names {name}, but no such call was made{hint}.")
        return sentences

    def _watch(self, text: str) -> None:
        if text in (self._first, self._last):
            self._met.add(text)
        elif len(self._others) < _REMEMBERED:
            self._others.add(text)

    def _listed(self, name: CallName, text: str) -> bool:
        """Named by a pattern, or run inside a module that is."""
        if any(pattern in text for pattern in self._patterns):
            if name.is_module and name.direction == FORWARD:
                self._listed_modules.append(text)
            return True
        return bool(self._listed_modules) and not name.is_module

    def _allow(self, name: CallName) -> bool:
        if not self.sides.wants(name):
            return self._refuse(OTHER_DIRECTION)
        return True

    def _refuse(self, reason: str) -> bool:
        self.left_out[reason] += 1
        return False
