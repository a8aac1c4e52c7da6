"""TorchAdapter: PyTorch's answers to the questions of msprobe.adapter."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from types import FunctionType, MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from msprobe.adapter import Around, GradientSink, ModuleWatch, Region, Undo, Want
from msprobe.capture.patch import CustomApis, Place, replace_place, replace_places, together
from msprobe.pytorch import apis, autograd, describe, modules
from msprobe.pytorch.checkpoint import watch_checkpoints
from msprobe.pytorch.compiled import CompiledCode
from msprobe.pytorch.distributed import Transfers, parts_of_p2p
from msprobe.pytorch.exchange import exchange
from msprobe.pytorch.intercept import Interception
from msprobe.pytorch.npu import overflow_flag
from msprobe.pytorch.optimizers import watch_optimizers
from msprobe.pytorch.versions import SEEN_DOORS, UNSEEN_DOORS, Versions, extent_of, memory_of
from msprobe.record import Leaf
from msprobe.store.tensor_file import TensorData


def _file_of(function: Any) -> str:
    """The file that frames of a function show."""
    path: str = inspect.unwrap(function).__code__.co_filename
    return path


class TorchAdapter:
    """PyTorch, as far as recording needs it."""

    framework = "pytorch"
    module_prefix = "Module"
    file_suffix = ".pt"
    marks_recompute = True
    hidden_files = (_file_of(torch.overrides.handle_torch_function),)
    frame_groups = MappingProxyType(
        {
            _file_of(torch.optim.Optimizer.zero_grad): "optimizer",
            _file_of(torch.nn.utils.clip_grad_norm_): "clip_grad",
        }
    )

    def __init__(self) -> None:
        self._described = describe.Described()
        self._versions = Versions()
        self._transfers = Transfers(self._versions.escaped)
        self._compiled = CompiledCode()
        self._modules = modules.ModuleCalls(self._compiled)
        self._interception: Interception | None = None
        self.custom = CustomApis(_recorded)
        self._doors: Undo = together()  # watched only while no call is intercepted, which shows them too
        self.is_tensor: Callable[[Any], bool] = Tensor.__instancecheck__  # torch.is_tensor, without a detour
        self.describe_other = describe.describe_other
        self.untracked = torch._C.DisableTorchFunction
        self.pending = self._described.waiting.__len__
        self.settle = self._described.settle
        self.version_of = self._versions.of
        self.memory_of = memory_of
        self.extent_of = extent_of
        self.begin_backward = autograd.Begun
        self.parameters = modules.parameters
        self.buffers = modules.buffers
        self.named_state = modules.named_state
        self.gradient_of = modules.gradient_of
        self.on_model_call = modules.on_model_call
        self.on_completion = self._transfers.expect
        self.counted_rank = self.rank
        self.overflow_flag = overflow_flag

    def describe(self, tensor: Tensor, want: Want) -> Leaf:
        leaf = self._described.leaf(tensor, want)
        if self._transfers.is_under_way:
            return leaf._replace(stats=None, checksum=None, sketch=None, hash=None)
        return leaf

    def sketch(self, tensor: Tensor) -> bytes | None:
        return None if self._transfers.is_under_way else describe.sketch(tensor)

    def parts_of(self, value: Any) -> dict[str, Any] | None:
        if torch.distributed.is_available() and isinstance(value, torch.distributed.P2POp):
            return parts_of_p2p(value)
        return None

    def snapshot(self, tensor: Tensor) -> TensorData | None:
        return None if self._transfers.is_under_way else describe.snapshot(tensor)

    def differentiates(self) -> bool:
        return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()

    def on_backward(self, begun: Any, outputs: Sequence[Tensor], sink: GradientSink) -> bool:
        return autograd.Tap(sink).attach(begun, outputs)

    def on_gradient(self, tensor: Tensor, callback: Callable[[Any], None]) -> Undo | None:
        if not tensor.requires_grad:
            return None
        handle: RemovableHandle = tensor.register_hook(callback)  # type: ignore[no-untyped-call]  # torch's
        return handle.remove

    def is_control_flow(self, error: BaseException) -> bool:
        return type(error).__name__ == "_StopRecomputationError"

    def intercept(self, around: Around, region: Region) -> Undo:
        self._versions.forget()
        self._doors()
        known = apis.load()
        if self._interception is None or self._interception.apis is not known:
            self._interception = Interception(known, self._versions.escaped, self._compiled)
        mode = self._interception
        return together(
            lambda: self._versions.watch(UNSEEN_DOORS),
            lambda: replace_places(known.replaced, around),
            self._transfers.follow_writes,
            self._transfers.follow_works,
            lambda: watch_checkpoints(region, mode.visible),
            lambda: mode.install(around, region.copied),
            lambda: watch_optimizers(region.optimizes),
            lambda: self.custom.install(around),
        )

    def watch(self, models: Any, watch: ModuleWatch) -> Undo:
        self._versions.forget()
        return together(
            self._transfers.follow_writes,
            self._watch_doors,
            lambda: self._modules.watch(models, watch),
        )

    def _watch_doors(self) -> Undo:
        self._doors = self._versions.watch((*SEEN_DOORS, *UNSEEN_DOORS))
        return self._doors

    def rank(self) -> int | None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank()
        size, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
        return int(rank) if size.isdecimal() and int(size) > 1 and rank.isdecimal() else None

    def rank_of(self, model: torch.nn.Module) -> int | None:
        """The number of the device that a model is on; of one that is on none, the rank of this process."""
        index: int | None = next((parameter.device.index for parameter in model.parameters()), None)
        return self.rank() if index is None else index


def _recorded(place: Place, around: Around) -> Undo:
    """A Python function is seen whoever bound its name; any other function where it stands."""
    holder, name, api = place
    held = inspect.getattr_static(holder, name)
    function = getattr(held, "__func__", held)  # of a static or class method
    if not isinstance(function, FunctionType):
        return replace_place(place, around)
    exchanged = exchange(function, lambda *args, **kwargs: around(api, exchanged.original, args, kwargs))
    return exchanged.undo
