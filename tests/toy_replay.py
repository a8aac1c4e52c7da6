"""The answers of the toy where a call is made again."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from msprobe.adapter import Api, Surroundings
from msprobe.name import CallName
from msprobe.store.dtypes import TensorData, bits_of
from toy import Array, ops, tape


class ToyReplay:
    """The toy, as far as calling one of its APIs again needs it."""

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, Array)

    def function_of(self, name: CallName) -> Callable[..., Any] | None:
        found: Callable[..., Any] | None = vars(ops).get(name.api)
        return found

    def obstacle(self, api: Api, tensors: Sequence[Any]) -> str | None:
        return "communication" if api.communicates else None

    def comparable(self, api: Api, output: Any) -> Any:
        return output

    def listed_as(self, name: CallName) -> str:
        return f"toy.{name.api}"

    def means(self, entry: str, name: CallName) -> bool:
        return entry == self.listed_as(name)

    def dtype_of(self, tensor: Array) -> str:
        return tensor.values.dtype.name

    def device_of(self, tensor: Array) -> str:
        return "device" if tensor.on_device else "cpu"

    def shape_of(self, tensor: Array) -> tuple[int, ...]:
        return tuple(tensor.values.shape)

    def snapshot(self, tensor: Array) -> TensorData:
        return TensorData(tensor.values.tobytes(), tensor.values.dtype.name, tensor.values.shape)

    def make(self, data: TensorData, device: str = "cpu") -> Array:
        return Array(bits_of(data).reshape(data.shape).copy(), on_device=device != "cpu")

    def moved(self, tensor: Array, dtype: str | None = None, device: str | None = None) -> Array:
        return tensor

    def copy(self, tensor: Array, *, in_graph: bool = False) -> Array:
        return tensor if in_graph else Array(tensor.values.copy(), requires_grad=tensor.requires_grad)

    def like(self, tensor: Array, data: TensorData) -> Array:
        return Array(bits_of(data).reshape(data.shape).copy(), requires_grad=tensor.requires_grad)

    def outside(self) -> Any:
        return tape.switched(False)

    def surroundings(self) -> Surroundings:
        return lambda *, mixed, differentiable: nullcontext()

    def randomness(self, values: Sequence[Any] = ()) -> Any:
        return None

    def restore_randomness(self, state: Any) -> None:
        assert state is None

    def gradients(
        self,
        call: Callable[[Sequence[Any]], Sequence[Any]],
        inputs: Sequence[Array],
        of_outputs: Sequence[Any],
    ) -> list[Any]:
        """By differences: what the toy's tape gives is what is checked."""
        step = 2.0**-7
        found = []
        for place, one in enumerate(inputs):
            gradient = np.zeros_like(one.values)
            for index in np.ndindex(one.values.shape):
                sides = []
                for sign in (1, -1):
                    moved = [Array(each.values.copy()) for each in inputs]
                    moved[place].values[index] += sign * step
                    given = zip(call(moved), of_outputs, strict=False)
                    sides.append(sum(float((out.values * of.values).sum()) for out, of in given))
                gradient[index] = (sides[0] - sides[1]) / (2 * step)
            found.append(Array(gradient))
        return found
