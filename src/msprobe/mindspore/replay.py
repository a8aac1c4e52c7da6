"""MindSporeReplay: MindSpore's answers where a call is made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, ops

from msprobe.adapter import Api, Surroundings
from msprobe.errors import UsageError
from msprobe.mindspore import apis, describe
from msprobe.mindspore.framework import no_grad
from msprobe.mindspore.gradients import is_tensor
from msprobe.name import FORWARD, CallName, call_owner
from msprobe.operators import operator_of
from msprobe.store.dtypes import TensorData, as_float, bits_of

# Random kernels keep the state of their random numbers to themselves, so that a second call would shift those
# of training. What stands under mindspore.mint draws from a generator, which can be set back.
_WITH_GENERATOR = ("Mint", "MintFunctional")
_CANNOT_DRAW_AGAIN = "random, and MindSpore cannot set back what they draw from"
_TOGETHER = "communication, which all ranks must make together"
_COMPILED = "compiled, and may change what nobody sees, such as parameters"

_cast = ops.cast  # as they are while nobody watches who calls them
_copy = Tensor.copy
_get_state = getattr(mindspore, "get_rng_state", lambda: None)


class MindSporeReplay:
    """MindSpore, as far as calling one of its APIs again needs it."""

    is_tensor = staticmethod(is_tensor)
    outside = staticmethod(no_grad)

    def __init__(self, *, speaks_torch: bool = False) -> None:
        """`speaks_torch`: the training script knows torch's names only (MSAdapter)."""
        self._speaks_torch = speaks_torch

    def function_of(self, name: CallName) -> Callable[..., Any] | None:
        return apis.by_owner().get(name.owner)

    def obstacle(self, api: Api, tensors: Sequence[Any] = ()) -> str | None:
        if api.communicates or api.prefix.endswith("Distributed"):
            return _TOGETHER
        if api.prefix == "Jit":
            return _COMPILED
        name = CallName(call_owner(api.prefix, api.name), FORWARD, 0)
        draws = operator_of(name).is_random and api.prefix not in _WITH_GENERATOR
        return _CANNOT_DRAW_AGAIN if draws else None

    def comparable(self, api: Api, output: Any) -> Any:
        """On the host the kernel of BatchNorm leaves memory that it gives as its statistics unwritten."""
        return output[:1] if api.name.endswith(".BatchNorm") and isinstance(output, tuple) else output

    def listed_as(self, name: CallName) -> str:
        return str(name) if self._speaks_torch else apis.full_name(name)

    def means(self, entry: str, name: CallName) -> bool:
        return entry in str(name) if self._speaks_torch else entry == apis.full_name(name)

    def dtype_of(self, tensor: Tensor) -> str:
        return describe.name_of(tensor.dtype).lower()

    def device_of(self, tensor: Tensor) -> str:
        return str(mindspore.get_context("device_target"))  # where every tensor is that a call takes

    def snapshot(self, tensor: Tensor) -> TensorData | None:
        data = describe.snapshot(tensor)
        if data is not None and self.dtype_of(tensor) == "bfloat16":  # which numpy shows as float32
            halves = bits_of(data).view(np.uint32) >> np.uint32(16)
            return TensorData(halves.astype(np.uint16).data, "bfloat16", data.shape)
        return data

    def shape_of(self, tensor: Any) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def make(self, data: TensorData, device: str = "cpu") -> Tensor:
        made = Tensor(as_float(bits_of(data), data.dtype).reshape(data.shape).copy())
        return _cast(made, getattr(mindspore, data.dtype))

    def moved(self, tensor: Tensor, dtype: str | None = None, device: str | None = None) -> Tensor:
        return tensor if dtype is None else _cast(tensor, getattr(mindspore, dtype))

    def copy(self, tensor: Tensor, *, in_graph: bool = False) -> Tensor:
        return _cast(tensor, tensor.dtype) if in_graph else _alike(tensor, _copy(tensor))

    def like(self, tensor: Tensor, data: TensorData) -> Tensor:
        return _alike(tensor, self.make(data))

    def surroundings(self) -> Surroundings:
        return _anywhere

    def randomness(self, values: Sequence[Any] = ()) -> Any:
        return _get_state()

    def restore_randomness(self, state: Any) -> None:
        if state is not None:
            mindspore.set_rng_state(state)

    def gradients(
        self, call: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[Any], of_outputs: Sequence[Any]
    ) -> list[Any]:
        raise UsageError("MindSpore has no backward stage in free_benchmark.")


def _anywhere(*, mixed: bool, differentiable: bool) -> nullcontext[None]:
    """A dynamic graph has no mixed precision but what its cells cast themselves."""
    return nullcontext()


def _alike(tensor: Tensor, copy: Tensor) -> Tensor:
    """Some functions take nothing but a parameter."""
    if isinstance(tensor, Parameter):
        return Parameter(copy, name=tensor.name, requires_grad=tensor.requires_grad)
    return copy
