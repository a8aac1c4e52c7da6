"""Compiled code must not see us: its compiler would trace our code, and its guards would notice each change.

So whoever changes how torch runs steps back while a thread is in code that torch.compile made; what is
compiled is recorded at its boundary, where that is a module, and not inside.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from msprobe.adapter import Undo
from msprobe.capture.patch import Shared, replace
from msprobe.log import logger
from msprobe.pytorch.exchange import Exchange, Exchanges

_FRAMES = "torch._dynamo.eval_frame"
# torch calls the first of these that it has on the way into compiled code and on the way out.
_SWITCHES = ("_maybe_set_eval_frame", "set_eval_frame")
_CALLBACKS = (
    "torch._dynamo.callback"  # tells when something is compiled, which may be in the middle of backward
)
_RUNTIME = "torch._functorch._aot_autograd.utils"
_RUN = "call_func_at_runtime_with_args"  # torch calls compiled backward code with it


@dataclass(frozen=True, eq=False)
class _Follower:
    away: Callable[[], None]
    back: Callable[[], None]


class _Thread(threading.local):
    """Where this thread is."""

    def __init__(self) -> None:
        self.away: object = None  # in compiled code: what led in, and only that leads out
        self.told: list[_Follower] = []


class CompiledCode:
    """Tells its followers each time a thread goes into compiled code and comes out of it."""

    def __init__(self) -> None:
        self._followers: list[_Follower] = []
        self._thread = _Thread()
        self._compiles = Exchanges([Exchange(torch.compile, self._after_compiling)])  # type: ignore[arg-type]
        self._runs: Exchanges | None = None
        self._watching = Shared(self._begin)
        self._undo: dict[str, Undo] = {}

    def follow(self, away: Callable[[], None], back: Callable[[], None]) -> Undo:
        """Who comes first steps back last, and is back first."""
        follower = _Follower(away, back)
        self._followers.append(follower)
        watched = self._watching.on()

        def undo() -> None:
            self._followers.remove(follower)
            watched()

        return undo

    def _begin(self) -> Undo:
        self._undo["torch"] = self._compiles.on()
        self._watch()
        return self._stop

    def _stop(self) -> None:
        for undo in reversed(list(self._undo.values())):
            undo()
        self._undo.clear()
        self._thread = _Thread()  # how threads come out that are away now is seen no more

    def _go_away(self, led_by: object) -> None:
        thread = self._thread
        thread.away, thread.told = led_by, list(self._followers)
        for follower in reversed(thread.told):
            follower.away()

    def _come_back(self) -> None:
        thread = self._thread
        thread.away, told, thread.told = None, thread.told, []
        for follower in told:
            if follower in self._followers:
                follower.back()

    def _after_compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(*args: Any, **kwargs: Any) -> Any:
            compiled = original(*args, **kwargs)
            self._watch()
            return compiled

        return compile

    def _watch(self) -> None:
        frames: Any = sys.modules.get(_FRAMES)
        name = next((name for name in _SWITCHES if hasattr(frames, name)), None)
        if name is not None and _FRAMES not in self._undo:
            self._undo[_FRAMES] = replace(frames, name, self._switching)
        handler: Any = getattr(sys.modules.get(_CALLBACKS), "callback_handler", None)
        if handler is not None and _CALLBACKS not in self._undo:
            self._undo[_CALLBACKS] = self._watch_compiler(handler)
        runtime: Any = sys.modules.get(_RUNTIME)
        if runtime is not None and hasattr(runtime, _RUN) and _RUNTIME not in self._undo:
            self._runs = self._runs or Exchanges([Exchange(getattr(runtime, _RUN), self._aside)])
            self._undo[_RUNTIME] = self._runs.on()

    def _switching(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def switch(callback: Any) -> Any:
            if callback is not None and self._thread.away is None:
                self._go_away(_caller())
                _tell()
            before = original(callback)
            # Compiled code switches the compiler off for itself too; that does not lead out.
            if callback is None and self._thread.away == _caller():
                self._come_back()
            return before

        return switch

    def _watch_compiler(self, handler: Any) -> Undo:
        def begin(_args: Any = None) -> None:
            if self._thread.away is None:
                self._go_away(handler)

        def end(_args: Any = None) -> None:
            if self._thread.away is handler:
                self._come_back()

        handler.register_start_callback(begin)
        handler.register_end_callback(end)

        def undo() -> None:
            with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed them
                handler.remove_start_callback(begin)
                handler.remove_end_callback(end)

        return undo

    def _aside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._thread.away is not None:
                return original(*args, **kwargs)
            self._go_away(run)
            try:
                return original(*args, **kwargs)
            finally:
                if self._thread.away is run:
                    self._come_back()

        return run


def _caller() -> int:
    """The run of torch's function that calls the switch, perhaps through other switches of ours."""
    frame: Any = sys._getframe(2)
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return id(frame)


@functools.cache
def _tell() -> None:
    """Once for a process."""
    logger().info(
        "torch.compile: compiled modules are recorded at their boundary; calls inside compiled code are not."
    )
