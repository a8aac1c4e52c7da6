"""MindSporeAdapter: MindSpore's answers to the questions of msprobe.adapter, in dynamic graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from mindspore import Tensor
from mindspore.communication import GlobalComm, get_local_rank, get_rank

from msprobe.adapter import Api, Around, Extent, ModuleWatch, Region, Undo
from msprobe.capture.patch import CustomApis, Place, Shared, replace_places, together
from msprobe.mindspore import apis, cells, describe, gradients
from msprobe.mindspore.framework import SHOWS_NODES, executor, mark, mark_of, no_grad, raise_late_errors
from msprobe.mindspore.intercept import Interception
from msprobe.mindspore.output_gradients import OutputGradients
from msprobe.mindspore.recompute import watch_recompute
from msprobe.record import Leaf


class MindSporeAdapter:
    """MindSpore, as far as recording needs it."""

    framework = "mindspore"
    file_suffix = ".npy"
    marks_recompute = False

    def __init__(self, kind: cells.Kind = cells.CELLS) -> None:
        self.module_prefix = kind.prefix
        self._kind = kind
        self.model: Any = None  # whose primitives are APIs too; None: nobody has named one
        self.custom = CustomApis()
        self._gradients = gradients.Gradients() if SHOWS_NODES else OutputGradients()
        self._primitives = cells.Primitives(kind)
        self.is_tensor = gradients.is_tensor
        self.describe = describe.describe
        self.describe_other = describe.describe_other
        self.sketch = describe.sketch
        self.snapshot = describe.snapshot
        self.untracked = no_grad
        self.begin_backward = self._gradients.begin
        self.on_backward = self._gradients.attach
        self.on_gradient = self._gradients.of_leaf
        self.settle = self._gradients.settle  # asked for at stop() and step()
        self.parameters = kind.parameters
        self.named_state = functools.partial(cells.named_state, kind=kind)
        self.on_model_call = functools.partial(cells.on_model_call, kind=kind)
        self.models_of = functools.partial(cells.models_of, kind=kind)

    def places(self) -> Iterable[Place]:
        """The functions whose calls are recorded."""
        return apis.places()

    def pending(self) -> int:
        return 0

    def parts_of(self, value: Any) -> None:
        return None

    def version_of(self, tensor: Tensor) -> Hashable | None:
        return None  # MindSpore counts changes, and tells nobody

    def memory_of(self, tensor: Tensor) -> Any:
        """The tensor itself, or what stands for it; which memory it shares with others nothing tells."""
        return mark_of(tensor) or tensor

    def extent_of(self, tensor: Any, version: Hashable | None, leaf: Leaf) -> Extent:
        return Extent(0, 1, None, None)

    def buffers(self, module: Any) -> Iterable[tuple[str, Any, int]]:
        return ((name, buffer, buffer.numel()) for name, buffer in self._kind.buffers(module))

    def gradient_of(self, parameter: Any) -> Any:
        return self._gradients.held_by(parameter)

    def differentiates(self) -> bool:
        return bool(executor.requires_grad() and executor.enable_grad())

    def on_completion(self, result: Any, callback: Callable[[], None]) -> bool:
        return False

    def is_control_flow(self, error: BaseException) -> bool:
        return type(error).__name__ == "_StopRecomputationError"

    def overflow_flag(self) -> None:
        return None

    def intercept(self, around: Around, region: Region) -> Undo:
        seen = _exact(around)
        installs = [
            lambda: replace_places(self.places(), seen),
            lambda: self.custom.install(seen),
            lambda: cells.watch_optimizers(region.optimizes),
        ]
        if self.model is not None:
            installs.append(lambda: self._primitives.install(self.model, seen))
        sight = Shared(*installs)
        return together(
            Interception(seen, [sight.on], self._kind.plain).on, lambda: watch_recompute(region, sight.held)
        )

    def watch(self, models: Any, watch: ModuleWatch) -> Undo:
        return cells.watch_cells(models, watch, self._kind)

    def rank(self) -> int | None:
        return int(get_rank()) if GlobalComm.INITED else None

    def counted_rank(self) -> int | None:
        return int(get_local_rank()) if GlobalComm.INITED else None


def _exact(around: Around) -> Around:
    """A call fails where it was made, and not in our reading of what it gave, which would hide that."""

    def exact(api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            output = function(*args, **kwargs)
            raise_late_errors()
            if api.in_place and SHOWS_NODES and args and gradients.is_tensor(args[0]):
                mark(args[0])  # what such a call returns is the same tensor as another object
            return output

        raise_late_errors()
        return around(api, run, args, kwargs)

    return exact
