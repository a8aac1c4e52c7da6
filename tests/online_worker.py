"""A worker that starts at once: it knows abs, in numpy, and no framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np

from msprobe.name import CallName
from msprobe.precheck.arguments import Rebuilder
from msprobe.precheck.calls import Skip, Skipped
from msprobe.precheck.protocol import serve
from msprobe.record import Leaf
from msprobe.store.dtypes import TensorData, bits_of


class Numpy:
    """As much of a framework as outputs of abs need."""

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def function_of(self, name: CallName) -> Callable[..., Any] | None:
        return np.abs if name.owner == "Torch.abs" else None

    def snapshot(self, tensor: Any) -> TensorData:
        return TensorData(tensor.tobytes(), tensor.dtype.name, tensor.shape)

    def make(self, data: TensorData, device: str = "cpu") -> Any:
        return bits_of(data).reshape(data.shape).copy()

    def moved(self, tensor: Any, dtype: str | None = None, device: str | None = None) -> Any:
        return tensor.astype(dtype or tensor.dtype)

    def outside(self) -> Any:
        return nullcontext()

    def randomness(self, values: Sequence[Any] = ()) -> Any:
        return None

    def restore_randomness(self, state: Any) -> None:
        assert state is None

    def drew(self, before: Any) -> bool:
        return False

    def device(self, index: int) -> str:
        return "cpu"

    def special(self, leaf: Leaf, device: str, raised: Callable[[str], str]) -> Any:
        raise Skipped(Skip.LOST_ARGUMENT)

    def apis(self) -> list[str]:
        return ["abs"]


def main() -> None:
    serve(sys.stdin, sys.stdout, cast(Rebuilder, Numpy()), lambda threads: None)
