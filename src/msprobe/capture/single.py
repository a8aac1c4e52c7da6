"""One debugger for a process: whoever makes another gets the first, or is told why that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msprobe.config import Config
from msprobe.errors import UsageError
from msprobe.log import logger

T = TypeVar("T")


class Single(Generic[T]):
    """Holds the debugger of this process and the configuration it was made with."""

    def __init__(self) -> None:
        self._held: tuple[Config, T] | None = None

    def make(self, config: Config, build: Callable[[], T]) -> T:
        if self._held is None:
            self._held = (config, build())
        elif self._held[0] == config:
            logger().warning("PrecisionDebugger was made again with the same configuration; the first one goes on.")
        else:
            different = [key for key in type(config).model_fields if getattr(config, key) != getattr(self._held[0], key)]
            raise UsageError(
                f"PrecisionDebugger exists already, with another {', '.join(different)}. Make it once, before the training "
                "loop; to record with another configuration start another process."
            )
        return self._held[1]

    def get(self) -> T:
        if self._held is None:
            raise UsageError("PrecisionDebugger instance is not created: make one before start(), stop() or step().")
        return self._held[1]

    def clear(self) -> None:
        self._held = None
