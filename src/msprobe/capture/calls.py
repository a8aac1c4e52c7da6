"""A call under way, and what each thread knows of the calls it is in."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from msprobe.capture.stacks import Place
from msprobe.name import FORWARD, CallName


class Call(NamedTuple):
    """A call under way: its name, where it was made, what its inputs were."""

    name: CallName
    text: str  # the name as it is written
    recorded: bool
    tapped: bool = False  # its backward is recorded
    place: Place | None = None
    parent: Call | None = None  # the module it runs in
    fields: dict[str, Any] | None = None
    begun: Any = None  # the adapter's note of where the inputs hang in the graph
    since: int = 0  # when it began, as capture.makers counts moments
    state: Any = None  # of a module that has buffers: its ModuleState

    def bare(self) -> Call:
        """Enough to be a parent: holds nothing of the graph."""
        return Call(self.name, self.text, self.recorded)


class Thread(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.inside = False  # a recorded call, or our own work on one
        self.modules: list[Call] = []
        self.counts: Counter[str] | None = None  # set while checkpointed code runs a second time


class Guard:
    """Around our own work on a call: not recorded, outside every graph, and never an error for training."""

    __slots__ = ("_doing", "_inside", "_name", "_tell", "_thread", "_untracked")

    def __init__(
        self,
        thread: Thread,
        untracked: AbstractContextManager[Any],
        tell: Callable[[str, BaseException], None],
        doing: str,
        name: object,
    ) -> None:
        self._thread = thread
        self._untracked = untracked
        self._tell = tell
        self._doing = doing
        self._name = name

    def __enter__(self) -> None:
        self._inside = self._thread.inside
        self._thread.inside = True
        self._untracked.__enter__()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        self._untracked.__exit__(None, None, None)
        self._thread.inside = self._inside
        if not isinstance(error, Exception):
            return False
        self._tell(f"{self._doing} {self._name}".strip(), error)
        return True


class Mark(NamedTuple):
    """Where the calls stood when checkpointed code ran first."""

    counts: Counter[str]
    modules: tuple[Call, ...]


class Counts:
    """How often each API was called; checkpointed code that runs again counts from where it first began."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def name(self, thread: Thread, owner: str) -> CallName:
        """The name of the next call."""
        if thread.counts is not None:
            number = thread.counts[owner]
            thread.counts[owner] = number + 1
            return CallName(owner, FORWARD, number)
        with self._lock:
            number = self._counts[owner]
            self._counts[owner] = number + 1
        return CallName(owner, FORWARD, number)

    def mark(self, thread: Thread) -> Mark:
        counts = Counter(self._counts if thread.counts is None else thread.counts)
        return Mark(counts, tuple(call.bare() for call in thread.modules))


class Again:
    """While checkpointed code runs again in this thread: its calls carry the names of the first run."""

    __slots__ = ("_before", "_mark", "_thread")

    def __init__(self, thread: Thread, mark: Mark) -> None:
        self._thread = thread
        self._mark = mark

    def __enter__(self) -> None:
        thread = self._thread
        self._before = thread.counts, thread.modules
        thread.counts, thread.modules = Counter(self._mark.counts), list(self._mark.modules)

    def __exit__(self, *_error: object) -> None:
        self._thread.counts, self._thread.modules = self._before
