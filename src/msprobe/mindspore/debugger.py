"""PrecisionDebugger for MindSpore: what a training script makes, bound to the framework-free Debugger."""

from __future__ import annotations

from typing import ClassVar

from msprobe.capture.door import Door, OpenDebugger
from msprobe.capture.single import Single
from msprobe.config import Config, Scene
from msprobe.mindspore import msadapter
from msprobe.mindspore.dynamic_debugger import DynamicDebugger
from msprobe.mindspore.framework import is_graph_mode


class PrecisionDebugger(Door):
    """Records what a training run computes. A process has one, and its methods may be called on the class.

    debugger = PrecisionDebugger("config.json")
    for data, label in dataset:
        debugger.start(net)
        loss, gradients = value_and_grad(data, label)
        debugger.stop()
        debugger.step()
    """

    the: ClassVar[Single[OpenDebugger]] = Single()

    @classmethod
    def scene(cls) -> Scene:
        if msadapter.is_active():
            return Scene.MSADAPTER
        return Scene.MINDSPORE_STATIC if is_graph_mode() else Scene.MINDSPORE_DYNAMIC

    @classmethod
    def build(cls, config: Config) -> OpenDebugger:
        scene = cls.scene()
        msadapter.tell_if_late()
        if config.level == "L2":
            from msprobe.mindspore.kernel_debugger import KernelDebugger

            return KernelDebugger(config, scene)
        if scene is Scene.MINDSPORE_STATIC:
            from msprobe.mindspore.graph_debugger import GraphDebugger

            return GraphDebugger(config)
        return DynamicDebugger(config, msadapter.MSAdapter() if scene is Scene.MSADAPTER else None)
