"""TorchAdapter: PyTorch's answers to the questions of msprobe.adapter."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from msprobe.adapter import Around, GradientSink, ModuleWatch, Region, Undo, Want
from msprobe.pytorch import apis, autograd, describe, modules
from msprobe.pytorch.checkpoint import watch_checkpoints
from msprobe.pytorch.distributed import Completions
from msprobe.pytorch.intercept import Interception, replace_places
from msprobe.record import Leaf


def _file_of(function: Any) -> str:
    """The file that frames of a function show."""
    path: str = inspect.unwrap(function).__code__.co_filename
    return path


class TorchAdapter:
    """PyTorch, as far as recording needs it."""

    framework = "pytorch"
    module_prefix = "Module"
    file_suffix = ".pt"
    hidden_files = (_file_of(torch.overrides.handle_torch_function),)
    frame_groups = {
        _file_of(torch.optim.Optimizer.zero_grad): "optimizer",
        _file_of(torch.nn.utils.clip_grad_norm_): "clip_grad",
    }

    def __init__(self) -> None:
        self._described = describe.Described()
        self._escaped: set[int] = set()  # storages whose content may change without torch noticing
        self._custom: dict[tuple[int, str], apis.Place] = {}
        self._completions = Completions()
        self.is_tensor = torch.is_tensor
        self.snapshot = describe.snapshot
        self.describe_other = describe.describe_other
        self.begin_backward = autograd.Begun
        self.parameters = modules.parameters
        self.on_model_call = modules.on_model_call
        self.watch = modules.watch_modules
        self.on_completion = self._completions.expect

    def describe(self, tensor: Tensor, want: Want) -> Leaf:
        return self._described.leaf(tensor, want)

    def pending(self) -> int:
        return len(self._described)

    def settle(self) -> None:
        self._described.settle()

    def version_of(self, tensor: Tensor) -> Hashable | None:
        """torch counts in-place changes; it cannot where memory was handed out or in inference mode."""
        if tensor.is_inference() or (self._escaped and _storage(tensor) in self._escaped):
            return None
        return tensor._version * 2 + tensor.requires_grad

    def differentiates(self) -> bool:
        return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()

    def on_backward(self, begun: Any, outputs: Sequence[Tensor], sink: GradientSink) -> bool:
        return autograd.Tap(sink).attach(begun, outputs)

    def on_gradient(self, tensor: Tensor, callback: Callable[[Any], None]) -> Undo | None:
        if not tensor.requires_grad:
            return None
        handle = tensor.register_hook(lambda gradient: callback(gradient))
        return handle.remove

    def is_control_flow(self, error: BaseException) -> bool:
        return type(error).__name__ == "_StopRecomputationError"

    def intercept(self, around: Around, region: Region) -> Undo:
        self._escaped.clear()
        known = apis.load()
        mode = Interception(known, around, self._note_escape)
        undo = [
            replace_places([*known.replaced, *self._custom.values()], around),
            self._completions.install(),
            watch_checkpoints(region, mode.visible),
            mode.install(),
        ]

        def undo_all() -> None:
            while undo:
                undo.pop()()

        return undo_all

    def _note_escape(self, tensor: Any) -> None:
        if torch.is_tensor(tensor) and tensor.layout is torch.strided and not tensor.is_meta:
            self._escaped.add(_storage(tensor))

    def register(self, module: Any, name: str, prefix: str | None) -> None:
        """Record a user's function too (register_custom_api)."""
        self._custom[id(module), name] = apis.replaceable(module, name, prefix)

    def forget(self, module: Any, name: str) -> None:
        self._custom.pop((id(module), name), None)

    def rank(self) -> int | None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank()
        size, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
        return int(rank) if size.isdecimal() and int(size) > 1 and rank.isdecimal() else None

    @contextmanager
    def untracked(self) -> Iterator[None]:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            yield


def _storage(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr()
