"""MindSporeAdapter: MindSpore's answers to the questions of msprobe.adapter, in dynamic graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from mindspore import Tensor
from mindspore.communication import GlobalComm, get_rank

from msprobe.adapter import Around, ModuleWatch, Region, Undo
from msprobe.capture.patch import CustomApis, replace_places
from msprobe.mindspore import apis, cells, describe, gradients
from msprobe.mindspore.framework import executor, no_grad
from msprobe.mindspore.intercept import Interception


class MindSporeAdapter:
    """MindSpore, as far as recording needs it."""

    framework = "mindspore"
    module_prefix = cells.CELL
    file_suffix = ".npy"

    def __init__(self) -> None:
        self.model: Any = None  # whose primitives are APIs too; None: nobody has named one
        self.custom = CustomApis()
        self._gradients = gradients.Gradients()
        self._primitives = cells.Primitives()
        self.is_tensor = gradients.is_tensor
        self.describe = describe.describe
        self.describe_other = describe.describe_other
        self.snapshot = describe.snapshot
        self.untracked = no_grad
        self.begin_backward = self._gradients.begin
        self.on_backward = self._gradients.attach
        self.on_gradient = self._gradients.of_leaf
        self.settle = self._gradients.settle  # asked for at stop() and step()
        self.parameters = cells.parameters
        self.on_model_call = cells.on_model_call

    def pending(self) -> int:
        return 0

    def parts_of(self, value: Any) -> None:
        return None

    def version_of(self, tensor: Tensor) -> Hashable | None:
        return None  # MindSpore counts changes, and tells nobody

    def differentiates(self) -> bool:
        return bool(executor.requires_grad() and executor.enable_grad())

    def on_completion(self, result: Any, callback: Callable[[], None]) -> bool:
        return False

    def is_control_flow(self, error: BaseException) -> bool:
        return False

    def intercept(self, around: Around, region: Region) -> Undo:
        installs = [
            lambda: replace_places(apis.places(), around),
            lambda: self.custom.install(around),
        ]
        if self.model is not None:
            installs.append(lambda: self._primitives.install(self.model, around))
        return Interception(around, installs).on()

    def watch(self, models: Any, watch: ModuleWatch) -> Undo:
        return cells.watch_cells(models, watch)

    def rank(self) -> int | None:
        return int(get_rank()) if GlobalComm.INITED else None
