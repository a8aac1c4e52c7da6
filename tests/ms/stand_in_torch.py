"""A little of a torch whose tensors are MindSpore's; install() stands for its import.

It is itself the package that holds its functions, where the torch of mindtorch shows those of another.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, ops


class Module:
    """As much of torch.nn.Module as recording asks for."""

    def __init__(self) -> None:
        self._forward_pre_hooks: dict[int, Any] = {}

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield from value.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, Any]]:
        yield from ((name, value) for name, value in vars(self).items() if isinstance(value, Parameter))


class Linear(Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((out, width), np.float32)), "weight")
        self.bias = Parameter(Tensor(np.ones(out, np.float32)), "bias")

    def forward(self, x: Any) -> Any:
        return sys.modules["torch.nn.functional"].linear(x, self.weight, self.bias)


def install() -> None:
    torch, nn, functional = (types.ModuleType(f"torch{inner}") for inner in ("", ".nn", ".nn.functional"))
    torch.__dict__.update(nn=nn, Tensor=Tensor, abs=lambda x: ops.abs(x), tensor=Tensor)
    functional.__dict__.update(
        linear=lambda x, weight, bias: ops.matmul(x, weight.T) + bias, relu=lambda x: ops.relu(x)
    )
    Module.__module__ = "torch.nn"
    nn.__dict__.update(Module=Module, Linear=Linear, functional=functional)
    sys.modules.update({"torch": torch, "torch.nn": nn, "torch.nn.functional": functional})
