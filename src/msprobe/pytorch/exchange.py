"""How functions of torch are changed for a while.

A Python function runs other code while it stays the same object, for everyone who holds it: replacing an
attribute would miss `from torch.nn.functional import relu` and break `act is F.relu`. What is written in C
has to be replaced where it stands.
"""

from __future__ import annotations

import functools
import linecache
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from msprobe.adapter import Undo
from msprobe.capture.patch import replace

_ACTIVE = "_msprobe_exchanges"  # on a function: its exchanges that are on, the last one runs
_WRAPPED = "__wrapped__"  # inspect, and so torch.jit, reads source and signature through this
_ABSENT = object()
_CHANGING = threading.RLock()  # one for all, because several exchanges may change one function
_Make = Callable[[Any], Any]  # of what stands somewhere, what shall stand there


class Replacement:
    """An attribute and another value for it, made anew only when another original stands there."""

    __slots__ = ("_make", "_original", "_undo", "_value", "_where")

    def __init__(self, holder: Any, name: str, make: _Make) -> None:
        self._where = holder, name
        self._make = make
        self._original = self._value = _ABSENT
        self._undo: Undo

    def on(self) -> None:
        self._undo = replace(*self._where, self._made)

    def off(self) -> None:
        self._undo()

    def _made(self, original: Any) -> Any:
        if original is not self._original:
            self._original, self._value = original, self._make(original)
        return self._value


class Exchange:
    """A function and other code for it: while `on`, every call becomes `stand_in(*args, **kwargs)`.

    `original` does what the function did before. Several exchanges of one function nest.
    """

    __slots__ = ("_during", "_function", "original")

    def __init__(self, function: FunctionType, make: _Make) -> None:
        """`make(original)` gives the stand-in."""
        self.original = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        self.original.__kwdefaults__ = function.__kwdefaults__
        functools.update_wrapper(self.original, function)
        for name in (_WRAPPED, _ACTIVE):
            self.original.__dict__.pop(name, None)
        self._function = function
        self._during = _calling(make(self.original), function.__code__)

    def on(self) -> None:
        function = self._function
        self.original.__code__ = function.__code__
        function.__code__ = self._during
        active = function.__dict__.setdefault(_ACTIVE, [])
        active.append(self)
        if len(active) == 1:
            function.__dict__.setdefault(_WRAPPED, self.original)

    def off(self) -> None:
        function = self._function
        active = function.__dict__[_ACTIVE]
        place = active.index(self)
        above = function if active[-1] is self else active[place + 1].original
        above.__code__ = self.original.__code__
        del active[place]
        if not active:
            del function.__dict__[_ACTIVE]
        if function.__dict__.get(_WRAPPED) is self.original:
            del function.__dict__[_WRAPPED]
            if active:
                function.__dict__[_WRAPPED] = active[0].original


class Exchanges:
    """Exchanges that go on and off together, and pause while any thread wants them to."""

    def __init__(self, exchanges: Iterable[Exchange | Replacement]) -> None:
        self._exchanges = list(exchanges)
        self._pauses = 0
        self._active = False

    def on(self) -> Undo:
        with _CHANGING:
            self._active = True
            if not self._pauses:
                self._apply()
        return self._off

    def _off(self) -> None:
        """Nobody is waited for any more who wanted a pause: he may be told nothing from now on."""
        with _CHANGING:
            if not self._pauses:
                self._withdraw()
            self._active = False
            self._pauses = 0

    def pause(self) -> None:
        with _CHANGING:
            self._pauses += 1
            if self._active and self._pauses == 1:
                self._withdraw()

    def resume(self) -> None:
        with _CHANGING:
            if self._pauses == 1 and self._active:
                self._apply()
            self._pauses = max(self._pauses - 1, 0)

    def _apply(self) -> None:
        for exchange in self._exchanges:
            exchange.on()

    def _withdraw(self) -> None:
        for exchange in reversed(self._exchanges):
            exchange.off()


class Exchanged(NamedTuple):
    """A function whose code was exchanged: `original` still does what it did."""

    original: Callable[..., Any]
    undo: Undo


def exchange(function: FunctionType, stand_in: Callable[..., Any]) -> Exchanged:
    """Exchange one function until it is undone."""
    exchanged = Exchange(function, lambda _original: stand_in)
    exchanged.on()
    return Exchanged(exchanged.original, exchanged.off)


_PLACE = "the stand-in"


def _calling(stand_in: Callable[..., Any], before: CodeType) -> CodeType:
    """Code that calls the callable, which is its constant; it has the free variables of the old code."""
    code = _template(before.co_freevars)
    constants = tuple(stand_in if constant == _PLACE else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_name=before.co_name)


@functools.cache
def _template(free: tuple[str, ...]) -> CodeType:
    """Compiled, not put together: code with free variables begins by fetching them, else a traceback that
    looks at the frame's locals crashes the interpreter."""
    names = ", ".join(free)
    source = (
        f"def _outer({names}):\n"
        "    def _inner(*_args, **_kwargs):\n"
        f"        if False: {names or None}\n"  # never run, and yet it makes them free variables
        f"        _stand_in = {_PLACE!r}\n"
        "        return _stand_in(*_args, **_kwargs)\n"
    )
    place = f"{__file__}: stand-in"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)  # for tracebacks
    code = compile(source, place, "exec")
    for _ in ("_outer", "_inner"):
        code = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return code
