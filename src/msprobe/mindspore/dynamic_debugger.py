"""DynamicDebugger: dynamic graphs; what mindspore.jit compiles in them is recorded beside the rest."""

from __future__ import annotations

from typing import Any

from msprobe.capture.stacks import Stacks
from msprobe.config import Config, Scene
from msprobe.mindspore.adapter import MindSporeAdapter
from msprobe.mindspore.graph_debugger import GraphDebugger, obstacle
from msprobe.mindspore.model_debugger import ModelDebugger
from msprobe.mindspore.taps import is_compiled
from msprobe.store.run import Run

GRAPH, PYNATIVE = "graph", "pynative"  # folders below dump_path, where some cells are compiled


class DynamicDebugger(ModelDebugger):
    """Records calls as Python makes them, and has another debugger record the cells that are compiled."""

    def __init__(self, config: Config, adapter: MindSporeAdapter | None = None) -> None:
        super().__init__(config, adapter or MindSporeAdapter(), Stacks())
        self._compiled: GraphDebugger | None = None

    def start(self, model: Any = None, token_range: Any = None) -> None:
        model = self.adapter.model if model is None else model
        if self._compiled is None and model is not None:
            self._part(model)
        super().start(model, token_range)
        if self._compiled is not None:
            self._compiled.start(model, token_range)

    def stop(self) -> None:
        super().stop()
        if self._compiled is not None:
            self._compiled.stop()

    def step(self) -> None:
        super().step()
        if self._compiled is not None:
            self._compiled.step()

    def set_init_step(self, step: int) -> None:
        super().set_init_step(step)
        if self._compiled is not None:
            self._compiled.set_init_step(step)

    def close(self) -> None:
        super().close()
        if self._compiled is not None:
            self._compiled.close()

    def _part(self, model: Any) -> None:
        """From now on there are two folders, if cells of the model are compiled."""
        is_recorded = (
            self.config.level in ("L0", "mix")
            and self.config.task in ("statistics", "tensor")
            and self.config.scene is Scene.MINDSPORE_DYNAMIC
        )
        if not is_recorded or not any(_has_compiled(root) for _, root in self.adapter.models_of(model)):
            return
        reason = obstacle()
        if reason is not None:
            self.tell_once(f"what mindspore.jit compiles is recorded as a whole: {reason}.")
            return
        path = self._run.path
        self._compiled = GraphDebugger(self.config.model_copy(update={"dump_path": str(path / GRAPH)}))
        self._compiled.set_init_step(self._step)
        self._run.close()
        self._run = Run(path / PYNATIVE)


def _has_compiled(root: Any) -> bool:
    return any(is_compiled(cell) for _, cell in root.cells_and_names())
