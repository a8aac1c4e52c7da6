"""TorchReplay: PyTorch's answers where a call is made again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from msprobe.adapter import Api, Surroundings
from msprobe.name import CallName
from msprobe.pytorch import apis, describe
from msprobe.pytorch.autograd import Untracked
from msprobe.store.dtypes import TensorData


class TorchReplay:
    """PyTorch, as far as calling one of its APIs again needs it."""

    is_tensor = staticmethod(Tensor.__instancecheck__)
    outside = Untracked
    snapshot = staticmethod(describe.snapshot)

    def function_of(self, name: CallName) -> Callable[..., Any] | None:
        return apis.by_owner().get(name.owner)

    def obstacle(self, api: Api, tensors: Sequence[Any]) -> str | None:
        """Where a tensor is spread over ranks, torch communicates inside any call."""
        together = api.communicates or any(hasattr(tensor, "placements") for tensor in tensors)
        return "communication, which all ranks must make together" if together else None

    def comparable(self, api: Api, output: Any) -> Any:
        """Which of two equal values was found says nothing, so that of torch.max only the values count."""
        if isinstance(output, tuple) and hasattr(output, "values") and hasattr(output, "indices"):
            return (output.values,)
        return output

    def listed_as(self, name: CallName) -> str:
        return str(name)

    def means(self, entry: str, name: CallName) -> bool:
        return entry in str(name)

    def dtype_of(self, tensor: Tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def device_of(self, tensor: Tensor) -> str:
        return str(tensor.device)

    def shape_of(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def make(self, data: TensorData, device: str = "cpu") -> Tensor:
        made = torch.empty(data.shape, dtype=getattr(torch, data.dtype))
        if made.numel():
            source = bytes(data.data) if not isinstance(data.data, bytes) else data.data
            ctypes.memmove(made.data_ptr(), source, len(source))
        return made.to(device)

    def moved(self, tensor: Tensor, dtype: str | None = None, device: str | None = None) -> Tensor:
        kind = tensor.dtype if dtype is None else getattr(torch, dtype)
        return tensor.to(device=tensor.device if device is None else device, dtype=kind)

    def copy(self, tensor: Tensor, *, in_graph: bool = False) -> Tensor:
        return tensor.clone() if in_graph else _alike(tensor, tensor.detach())

    def like(self, tensor: Tensor, data: TensorData) -> Tensor:
        return _alike(tensor, tensor.detach().clone().copy_(self.make(data)))

    def surroundings(self) -> Surroundings:
        """Kernels are chosen by whether a graph is built too, as that of an LSTM is."""
        kinds = [(kind, torch.get_autocast_dtype(kind)) for kind in _autocasting()]
        builds_graph = torch.is_grad_enabled()

        def enter(*, mixed: bool, differentiable: bool) -> ExitStack:
            with ExitStack() as entered:
                for kind, dtype in kinds:
                    entered.enter_context(torch.autocast(kind, dtype, enabled=mixed, cache_enabled=False))
                entered.enter_context(torch.set_grad_enabled(builds_graph))
                if not differentiable:
                    entered.enter_context(saved_tensors_hooks(_drop, _drop))
                return entered.pop_all()

        return enter

    def randomness(self, values: Sequence[Any] = ()) -> Any:
        generators = [value for value in values if isinstance(value, torch.Generator)]
        return (
            torch.get_rng_state(),
            {device: module.get_rng_state_all() for device, module in _devices()},
            [(generator, generator.get_state()) for generator in generators],
        )

    def restore_randomness(self, state: Any) -> None:
        host, devices, generators = state
        torch.set_rng_state(host)
        for generator, own in generators:
            generator.set_state(own)
        for device, module in _devices():
            if device in devices:
                module.set_rng_state_all(devices[device])

    def gradients(
        self,
        call: Callable[[Sequence[Any]], Sequence[Any]],
        inputs: Sequence[Tensor],
        of_outputs: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        leaves = [_leaf(tensor) for tensor in inputs]
        with torch.enable_grad():
            # An in-place call must not change a leaf, so it is given a copy that leads back to it.
            outputs = call([leaf.clone() if leaf.requires_grad else leaf for leaf in leaves])
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, of_outputs, strict=False)
            if gradient is not None and output.requires_grad
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not pairs or not wanted:
            return [None] * len(leaves)
        outputs = [output for output, _ in pairs]
        given = [gradient.to(output.device, output.dtype) for output, gradient in pairs]
        found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True))
        return [next(found) if leaf.requires_grad else None for leaf in leaves]


def _alike(tensor: Tensor, values: Tensor) -> Tensor:
    """A copy of the values that wants a gradient where the tensor does: kernels are chosen by that too."""
    if not tensor.requires_grad or torch.is_inference_mode_enabled():
        return values.clone()
    if tensor.is_leaf:
        return values.clone().requires_grad_()
    with torch.enable_grad():  # what is no leaf may be changed in place
        return values.requires_grad_().clone()


def _drop(_tensor: Any) -> Any:
    """Nobody goes back through this graph; and checkpointing counts what it is asked to keep."""


def _leaf(tensor: Tensor) -> Tensor:
    leaf = tensor.detach()
    return leaf.requires_grad_() if leaf.is_floating_point() or leaf.is_complex() else leaf


def _autocasting() -> list[str]:
    """The kinds of devices whose calls choose their precision now."""
    kinds = ("cpu", *(kind for kind in ("cuda", "npu") if hasattr(torch, kind)))
    return [kind for kind in kinds if torch.is_autocast_enabled(kind)]


def _devices() -> Iterator[tuple[str, Any]]:
    for name in ("cuda", "npu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available() and module.is_initialized():
            yield name, module
