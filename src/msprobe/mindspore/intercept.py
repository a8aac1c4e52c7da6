"""Sees every listed call once, and steps aside while mindspore.jit compiles: it reads what stands there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mindspore import nn

from msprobe.adapter import Api, Around, Undo
from msprobe.capture.patch import replace, together
from msprobe.mindspore.framework import api as graph_api
from msprobe.mindspore.framework import bytecode_capture

_Install = Callable[[], Undo]


class Interception:
    """What is installed while calls are seen."""

    def __init__(self, around: Around, installs: Sequence[_Install], kind: type = nn.Cell) -> None:
        """`kind`: what models are made of."""
        self._around = around
        self._kinds = (nn.Cell, kind)
        self._installs = installs
        self._lock = threading.RLock()
        self._undo: Undo | None = None

    def on(self) -> Undo:
        self._undo = together(*self._installs)
        return together(lambda: self._off, self._see_jit, *map(_captures_nothing, bytecode_capture()))

    def _off(self) -> None:
        with self._lock:
            if self._undo is not None:
                self._undo()
                self._undo = None

    @contextmanager
    def _stepping_aside(self) -> Iterator[None]:
        with self._lock:
            seen = self._undo is not None
            self._off()
        try:
            yield
        finally:
            with self._lock:
                if seen:
                    self._undo = together(*self._installs)

    def _see_jit(self) -> Undo:
        """What was compiled from source is one call, named by its function or by the class of its cell."""

        def make(call: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(call)
            def seen(compiled: Any, *args: Any, **kwargs: Any) -> Any:
                def run(*args: Any, **kwargs: Any) -> Any:
                    with self._stepping_aside():
                        return call(compiled, *args, **kwargs)

                cell = args[0] if args and isinstance(args[0], self._kinds) else None
                name = compiled.fn.__name__ if cell is None else type(cell).__name__
                return self._around(Api("Jit", name), run, args, kwargs)

            return seen

        return replace(graph_api._JitExecutor, "__call__", make)


def _captures_nothing(capture: type) -> _Install:
    """Bytecode that is captured runs unseen; without that its calls are those of a dynamic graph."""
    return lambda: together(
        lambda: replace(capture, "__enter__", lambda _: lambda context: context),
        lambda: replace(capture, "__exit__", lambda _: lambda context, *error: False),
    )
