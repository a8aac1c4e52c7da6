"""Which calls and which sides of them are recorded; every "no" has a reason a user can read."""

from __future__ import annotations

import difflib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from msprobe.errors import RecordingError
from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD, CallName

OUTSIDE_INTERVAL = "outside the scope"
NOT_LISTED = "not in the list"
OTHER_DIRECTION = "of a direction that data_mode leaves out"

_REMEMBERED = 2_000  # names kept to suggest the nearest one to a misspelt scope


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
        return self.forward if name.direction == FORWARD else self.backward


class _Thread(threading.local):
    """The modules under way in a thread, outermost first."""

    def __init__(self) -> None:
        self.modules: list[CallName] = []


class Scope:
    """The filter of one recording: `enter` and `leave` follow the calls as they run.

    interval  two names: what runs from the first to the last is recorded, both included
    patterns  parts of names: only calls whose name holds one are recorded, and with `inner` (level mix)
              whatever runs inside a module whose name holds one
    spelling  how another format spells names: then the patterns are beginnings of names so spelt
    """

    def __init__(
        self,
        interval: Sequence[str] = (),
        patterns: Sequence[str] = (),
        data_mode: Sequence[str] = ("all",),
        *,
        inner: bool = False,
        spelling: Callable[[CallName], str] | None = None,
    ) -> None:
        self.sides = Sides(data_mode)
        self.left_out: Counter[str] = Counter()
        self._interval = _Interval(interval[0], interval[-1]) if interval else None
        self._patterns = _Patterns(patterns, inner, spelling) if patterns else None
        self._thread = _Thread()
        self._made: set[str] = set()
        self._shut = ""

    @property
    def is_shut(self) -> bool:
        return bool(self._shut)

    def shut(self, reason: str) -> None:
        """From here on no call is recorded, for this reason."""
        self._shut = reason

    def enter(self, name: CallName) -> bool:
        """A call begins: is it recorded?"""
        if self._shut:
            return self._refuse(self._shut)
        interval, patterns = self._interval, self._patterns
        if interval is None and patterns is None:
            return self._allow(name)
        text = str(name)
        if len(self._made) < _REMEMBERED:
            self._made.add(text)
        around = self._thread.modules
        if name.is_module and name.direction == FORWARD:
            around.append(name)
        inside = interval is None or interval.enter(name, text, around)
        named = patterns is None or patterns.enter(name, around)
        if not inside:
            return self._refuse(OUTSIDE_INTERVAL)
        return self._allow(name) if named else self._refuse(NOT_LISTED)

    def expects_backward(self, name: CallName) -> bool:
        """After enter() of a call: may its backward be recorded? An interval decides when that runs."""
        if self._shut or not self.sides.backward:
            return False
        backward = name.facing(BACKWARD)
        if self._interval is not None:
            if self._interval.is_over:
                return False
            if self._interval.turns_on(str(backward)):
                return True
        return self._patterns is None or self._patterns.hold(backward, self._thread.modules)

    def leave(self, name: CallName) -> None:
        """The call ended; the interval ends with its last call, output included."""
        if self._interval is not None:
            self._interval.leave(str(name))
        modules = self._thread.modules
        if name in modules:
            del modules[modules.index(name) :]

    def never_met(self) -> dict[str, str]:
        """The names of the configuration that no call had, each with the key that holds it."""
        ends = self._interval.unmet if self._interval is not None else []
        parts = self._patterns.unmet if self._patterns is not None else []
        return dict.fromkeys(parts, "list") | dict.fromkeys(ends, "scope")

    def nearest(self, name: str) -> str | None:
        """Of the calls that were made, the name or the API that is most like this."""
        return nearest(name, self._made | {CallName.parse(text).api for text in self._made})

    def _allow(self, name: CallName) -> bool:
        return True if self.sides.wants(name) else self._refuse(OTHER_DIRECTION)

    def _refuse(self, reason: str) -> bool:
        self.left_out[reason] += 1
        return False


def nearest(name: str, made: Collection[str]) -> str | None:
    """Of these names the one that is most like this."""
    near = difflib.get_close_matches(name, sorted(made), n=1, cutoff=0.0)
    return near[0] if near else None


class _Interval:
    """From the beginning of one call to the end of another."""

    def __init__(self, first: str, last: str) -> None:
        self._ends = (first, last)
        self._met: set[str] = set()
        self._open = False
        self._over = False
        self._inside: set[str] = set()  # what checkpointed code runs again after the end was inside before
        # The backward of a module begins with that of a call inside it; its parameters' gradients follow it.
        self._opening = {first}
        self._opener = _module_of_backward(first)
        self._following: set[str] = set()

    @property
    def unmet(self) -> list[str]:
        return [name for name in self._ends if name not in self._met]

    @property
    def is_over(self) -> bool:
        return not self._open and self._ends[1] in self._met

    def enter(self, name: CallName, text: str, around: Sequence[CallName]) -> bool:
        if self._over and name.direction == FORWARD:
            return text in self._inside
        if text in self._ends:
            self._met.add(text)
        if self._opener is not None and name.direction == FORWARD and self._opener in around:
            self._opening.add(str(name.facing(BACKWARD)))
        if text in self._opening:
            self._open = True
            if self._opener is not None:
                self._opening.clear()
        # An end that is a module may have begun before the interval, or after the calls inside it.
        inside = self._open or text in self._following or (name.is_module and text in self._ends)
        if inside and name.is_module and name.direction == BACKWARD:
            self._following.add(str(name.facing(PARAMETERS_GRAD)))
        if inside:
            self._inside.add(text)
        return inside

    def turns_on(self, text: str) -> bool:
        """Whether the interval begins or ends with this call, so that it must be noticed."""
        return text in self._opening or text in self._ends

    def leave(self, text: str) -> None:
        if text == self._ends[1]:
            self._over = self._over or self._open
            self._open = False


def _module_of_backward(text: str) -> CallName | None:
    """The forward call of the module whose backward this names, if it names one."""
    try:
        name = CallName.parse(text)
    except RecordingError:
        return None
    return name.facing(FORWARD) if name.is_module and name.direction == BACKWARD else None


class _Patterns:
    """Parts of names; a module that holds one brings what runs inside it, in the direction that is named."""

    def __init__(
        self, patterns: Sequence[str], inner: bool, spelling: Callable[[CallName], str] | None
    ) -> None:
        self.unmet = list(dict.fromkeys(patterns))
        self._patterns = tuple(patterns)
        self._inner = inner
        self._spelling = spelling
        self._brought: set[str] = set()  # by name: checkpointed calls run again, outside their module

    def enter(self, name: CallName, around: Sequence[CallName]) -> bool:
        if self.unmet:
            met = self._met_by(name, self.unmet)
            self.unmet = [pattern for pattern in self.unmet if pattern not in met]
        return self.hold(name, around)

    def hold(self, name: CallName, around: Sequence[CallName]) -> bool:
        text = str(name)
        found = bool(self._met_by(name, self._patterns)) or text in self._brought
        if not found and self._inner and name.direction != PARAMETERS_GRAD:
            found = any(self._met_by(module.facing(name.direction), self._patterns) for module in around)
        if found and self._inner:
            self._brought.add(text)
            if name.is_module and name.direction == BACKWARD:
                self._brought.add(str(name.facing(PARAMETERS_GRAD)))
        return found

    def _met_by(self, name: CallName, patterns: Sequence[str]) -> list[str]:
        """Those of these patterns that the name of a call has in it, or begins with."""
        if self._spelling is None:
            text = str(name)
            return [pattern for pattern in patterns if pattern in text]
        text = self._spelling(name)
        return [pattern for pattern in patterns if text.startswith(pattern)]
