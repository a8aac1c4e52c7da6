"""PrecisionDebugger for MindSpore: what a training script makes, bound to the framework-free Debugger."""

from __future__ import annotations

from typing import Any, ClassVar

from msprobe.capture.debugger import Debugger
from msprobe.capture.door import Door
from msprobe.capture.single import Single
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, Scene
from msprobe.errors import UsageError
from msprobe.mindspore.adapter import MindSporeAdapter
from msprobe.mindspore.cells import models_of
from msprobe.mindspore.framework import is_graph_mode


class MindSporeDebugger(Debugger):
    """The Debugger with what only MindSpore has: a model that is remembered, primitives as APIs."""

    def __init__(self, config: Config) -> None:
        if config.level == "L2":
            raise UsageError("level L2 cannot be recorded for MindSpore by this release; use L0, L1 or mix.")
        self.adapter = MindSporeAdapter()
        super().__init__(self.adapter, config, Stacks())
        self.register = self.adapter.custom.register
        self.forget = self.adapter.custom.forget

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """A callback starts each step anew, and knows no model: the one that was given last is meant."""
        if model is not None:
            models_of(model)
            self.adapter.model = model
        super().start(self.adapter.model, token_range)


class PrecisionDebugger(Door):
    """Records what a training run computes. A process has one, and its methods may be called on the class.

    debugger = PrecisionDebugger("config.json")
    for data, label in dataset:
        debugger.start(net)
        loss, gradients = value_and_grad(data, label)
        debugger.stop()
        debugger.step()
    """

    the: ClassVar[Single[MindSporeDebugger]] = Single()

    @classmethod
    def scene(cls) -> Scene:
        if is_graph_mode():
            raise UsageError(
                "a MindSpore static graph cannot be recorded by this release; "
                "set_context(mode=mindspore.PYNATIVE_MODE) before PrecisionDebugger is made."
            )
        return Scene.MINDSPORE_DYNAMIC

    @classmethod
    def build(cls, config: Config) -> MindSporeDebugger:
        return MindSporeDebugger(config)
