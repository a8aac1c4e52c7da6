"""ModelDebugger: a Debugger that remembers the model it was given, for whoever starts it knows none."""

from __future__ import annotations

from typing import Any

from msprobe.capture.debugger import Debugger
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, Scene
from msprobe.mindspore.adapter import MindSporeAdapter
from msprobe.mindspore.replay import MindSporeReplay


class ModelDebugger(Debugger):
    """What all levels of MindSpore that record calls have in common."""

    def __init__(self, config: Config, adapter: MindSporeAdapter, stacks: Stacks) -> None:
        self.adapter = adapter
        replay = MindSporeReplay(speaks_torch=config.scene is Scene.MSADAPTER)
        super().__init__(adapter, config, stacks, replay)
        self.register = adapter.custom.register
        self.forget = adapter.custom.forget

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """A callback starts each step anew, without a model: the one that was given last is meant."""
        if model is not None:
            self.adapter.models_of(model)
            self.adapter.model = model
        super().start(self.adapter.model, token_range)
