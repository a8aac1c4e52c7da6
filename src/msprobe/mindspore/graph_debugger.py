"""Level L0 in a static graph."""

from __future__ import annotations

from msprobe.capture.door import OpenDebugger
from msprobe.config import Config
from msprobe.errors import UsageError


def open_graph(config: Config) -> OpenDebugger:
    raise UsageError(
        f"level {config.level} cannot be recorded in a MindSpore static graph by this release; use L2, or "
        "set_context(mode=mindspore.PYNATIVE_MODE) before PrecisionDebugger is made."
    )
