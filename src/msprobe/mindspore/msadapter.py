"""MSAdapter: a torch whose tensors are MindSpore's, and so its names are recorded, not MindSpore's."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from mindspore import Tensor

from msprobe.capture.patch import Place
from msprobe.log import logger
from msprobe.mindspore import msadapter_apis
from msprobe.mindspore.adapter import MindSporeAdapter
from msprobe.mindspore.cells import Kind

_torch: Any = sys.modules.get("torch")  # when msprobe is imported: one that comes later is not meant


def is_active() -> bool:
    """Whether the training script speaks torch to MindSpore."""
    return _is_adapter(_torch)


def tell_if_late() -> None:
    if _torch is None and _is_adapter(sys.modules.get("torch")):
        logger().warning(
            "torch computes with MindSpore here (MSAdapter), but it was imported after msprobe: MindSpore's "
            "own names are recorded. Import torch before msprobe to record torch's."
        )


def _is_adapter(torch: Any) -> bool:
    """Asked of the class, because a tensor that is made might wake up a device."""
    kind = getattr(torch, "Tensor", None)
    return isinstance(kind, type) and issubclass(kind, Tensor)


class MSAdapter(MindSporeAdapter):
    """MindSpore's answers where the training script speaks torch."""

    framework = "mindtorch"

    def __init__(self) -> None:
        super().__init__(
            Kind(
                _torch.nn.Module,
                "torch.nn.Module",
                "Module",
                lambda module: module.named_modules(),
                lambda module: module.named_parameters(recurse=False),
                lambda module: module.named_buffers(recurse=False),
                lambda module: bool(module._forward_pre_hooks),
            )
        )

    def gradient_of(self, parameter: Any) -> Any:
        return parameter.grad if parameter.grad is not None else super().gradient_of(parameter)

    def places(self) -> Iterable[Place]:
        return msadapter_apis.places(_torch)
