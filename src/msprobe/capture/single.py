"""One debugger for a process: whoever makes another gets the first, or is told why that cannot be."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from msprobe.config import Config
from msprobe.errors import UsageError
from msprobe.log import logger

T = TypeVar("T")


class _Held(NamedTuple, Generic[T]):
    process: int  # a forked child holds what its parent made, and may make its own
    config: Config
    debugger: T


class Single(Generic[T]):
    """Holds the debugger of this process and the configuration it was made with."""

    def __init__(self) -> None:
        self._held: _Held[T] | None = None
        self._warned = False

    def make(self, config: Config, build: Callable[[], T]) -> T:
        held = self._held
        if held is None or held.process != os.getpid():
            self._held = held = _Held(os.getpid(), config, build())
        elif held.config == config:
            if not self._warned:  # in a training loop it may be made each time
                logger().warning(
                    "PrecisionDebugger was made again with the same configuration; the first one goes on."
                )
            self._warned = True
        else:
            keys = type(config).model_fields
            different = [key for key in keys if getattr(config, key) != getattr(held.config, key)]
            raise UsageError(
                f"PrecisionDebugger exists already, with another {', '.join(different)}. Make it once, "
                "before the training loop; to record with another configuration start another process."
            )
        return held.debugger

    def get(self) -> T:
        if self._held is None:
            raise UsageError(
                "PrecisionDebugger instance is not created: make one before start(), stop() or step()."
            )
        return self._held.debugger

    def clear(self) -> None:
        self._held = None
        self._warned = False
