"""GraphDebugger: level L0 where cells are compiled, in a static graph and by mindspore.jit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import mindspore

from msprobe.capture.chosen import Chosen
from msprobe.capture.recorder import Plan
from msprobe.capture.scope import Scope
from msprobe.capture.stacks import Place, Stacks
from msprobe.config import Config, Scene
from msprobe.errors import UsageError
from msprobe.log import logger
from msprobe.mindspore.framework import raise_late_errors, release
from msprobe.mindspore.graph_adapter import GraphAdapter
from msprobe.mindspore.model_debugger import ModelDebugger
from msprobe.record import Stack

_OLDEST = (2, 7, 0)
_OF_TENSOR_DUMP = ("MS_DUMP_SLICE_SIZE", "MS_DUMP_WAIT_TIME")


class _NoStacks(Stacks):
    """No Python code calls the cells of a graph."""

    def here(self) -> Place:
        return Place(Stack(0, ()), None)


class GraphDebugger(ModelDebugger):
    """Records cells as graphs run them, through taps that the graphs are compiled with."""

    adapter: GraphAdapter

    def __init__(self, config: Config) -> None:
        _check(config)
        static = config.scene is Scene.MINDSPORE_STATIC
        # A static graph gives complete tensors or statistics, not both.
        adapter = GraphAdapter(everywhere=static, statistics=not (static and config.task == "tensor"))
        super().__init__(config, adapter, _NoStacks())

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Also a step that is not recorded may compile the graph that later steps run."""
        model = self.adapter.model if model is None else model
        if self._pid == os.getpid():
            raise_late_errors()
            if model is not None:
                self.adapter.put_taps(model)
        super().start(model, token_range)

    def stop(self) -> None:
        self._end(super().stop)

    def step(self) -> None:
        self._end(super().step)

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # of training, which has told it
            self._end(super().close)

    def _end(self, end: Callable[[], None]) -> None:
        """Graphs run on while nobody asks for their results. If one fails, that is an error of training."""
        try:
            if self._pid == os.getpid():
                self.adapter.remove_taps()
                raise_late_errors()
        finally:
            end()

    def _finish(self) -> None:
        super()._finish()
        self.adapter.forget()

    def _plan(self) -> Plan:
        return super()._plan()._replace(backward_like_forward=True)

    def _report(self, scope: Scope | Chosen) -> None:
        super()._report(scope)
        if self._writer is not None and self._writer.is_open and not self._writer.records:
            self.tell_once(
                "a graph that was compiled before start(model) stays as it is: call start(model) before the "
                "first step, also where that step is not recorded."
            )


def obstacle() -> str | None:
    """Why the cells of graphs cannot be recorded here."""
    if release() < _OLDEST:
        oldest, this = ".".join(map(str, _OLDEST)), mindspore.__version__
        return f"recording compiled cells needs MindSpore {oldest} or later, and this is {this}"
    return None


def _check(config: Config) -> None:
    reason = obstacle()
    if reason is not None:
        raise UsageError(f"{reason}.")
    device = mindspore.get_context("device_target")
    if device != "CPU":
        logger().warning(
            "the graph runs on %s, and the taps that show its cells on the CPU, where MindSpore brings what "
            "they show: a step takes much longer with them.",
            device,
        )
    if config.scene is Scene.MINDSPORE_STATIC and getattr(config.section, "list", None):
        raise UsageError(
            f'"{config.task}.list" names kernels in a static graph, and level L0 has none: leave it empty, '
            "and give start() the part of the model that you want to see."
        )
    for name in _OF_TENSOR_DUMP:
        if name in os.environ:
            logger().info("%s has no effect: it is for mindspore.ops.TensorDump, which is not used.", name)
    if getattr(config.section, "file_format", "npy") != "npy":
        logger().warning("file_format has no effect at level %s: tensors are saved as npy.", config.level)
