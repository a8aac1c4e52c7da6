"""Which calls free_benchmark checks: those that its configuration names; every "no" has a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msprobe.adapter import Replay
from msprobe.capture.scope import NOT_LISTED, nearest
from msprobe.name import BACKWARD, FORWARD, CallName

NOT_IN_SCOPE = "not in the scope"

_REMEMBERED = 2_000  # names kept to suggest the nearest one to a misspelt one


class Chosen:
    """The filter of one step.

    names    whole names of calls, as recordings have them, with or without the direction
    entries  what the framework's list holds: parts of names, or names of APIs
    """

    def __init__(self, names: Sequence[str], entries: Sequence[str], replay: Replay) -> None:
        self.left_out: Counter[str] = Counter()
        self._replay = replay
        self._names = frozenset(names)
        self._entries = tuple(entries)
        self._unmet = dict.fromkeys(names, "scope") | dict.fromkeys(entries, "list")
        self._made: set[str] = set()

    def enter(self, name: CallName) -> bool:
        """A call begins: is it checked?"""
        if not self._names and not self._entries:
            return True
        if len(self._made) < _REMEMBERED:
            self._made.add(name.call if self._names else self._replay.listed_as(name))
        if self._names:
            own = {name.call, str(name.facing(FORWARD)), str(name.facing(BACKWARD))}
            met = list(own & self._names)
        else:
            met = [entry for entry in self._entries if self._replay.means(entry, name)]
        for entry in met:
            self._unmet.pop(entry, None)
        return bool(met) or self.refuse(NOT_IN_SCOPE if self._names else NOT_LISTED)

    def refuse(self, reason: str) -> bool:
        self.left_out[reason] += 1
        return False

    def never_met(self) -> dict[str, str]:
        """The names of the configuration that no call had, each with the key that holds it."""
        return dict(self._unmet)

    def nearest(self, name: str) -> str | None:
        return nearest(name, self._made)
