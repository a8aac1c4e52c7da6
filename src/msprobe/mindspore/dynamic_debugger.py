"""DynamicDebugger: what MindSpore computes in dynamic graphs."""

from __future__ import annotations

from msprobe.capture.stacks import Stacks
from msprobe.config import Config
from msprobe.mindspore.adapter import MindSporeAdapter
from msprobe.mindspore.model_debugger import ModelDebugger


class DynamicDebugger(ModelDebugger):
    """Records calls as Python makes them."""

    def __init__(self, config: Config, adapter: MindSporeAdapter | None = None) -> None:
        super().__init__(config, adapter or MindSporeAdapter(), Stacks())
