"""A torch that computes with MindSpore, the net of document 002, and a debugger of its own per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import mindtorch  # makes `torch` mean itself, and so comes before torch
import numpy as np
import pytest
import torch  # before msprobe, as the specification demands
import torch.nn as nn
import torch.nn.functional as F

from ms.ms_case import Probe as MindSporeProbe

__all__ = [
    "F",
    "Net",
    "Probe",
    "Wide",
    "arrays",
    "made",
    "mindtorch",
    "ms",
    "nn",
    "numbered",
    "probe",
    "torch",
    "training",
]


class Net(nn.Module):
    """The net of document 002."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(in_features=8, out_features=4)
        self.linear2 = nn.Linear(in_features=4, out_features=2)

    def forward(self, x: Any) -> Any:
        x1 = self.linear1(x)
        x2 = self.linear2(x1)
        logits = F.relu(x2)
        return logits  # noqa: RET504 - as it is printed


class Wide(nn.Module):
    """Many ways to compute, and none that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        h = torch.matmul(h, h.transpose(-1, -2)).softmax(-1) @ h
        h = h + self.down(self.act(self.up(h)))
        a, b = torch.split(h, 4, dim=-1)
        h = self.tail(torch.cat([b, a], dim=-1) * 2.0)
        h = torch.stack([h, h], dim=0).mean(0)
        return self.tail[2](F.silu(torch.cat([h, h], dim=-1)))


def made(*shape: int, seed: int = 0) -> Any:
    """A tensor that is the same in every run; mindtorch's own randn() cannot be seeded on a CPU."""
    return torch.tensor(np.random.RandomState(seed).randn(*shape).astype(np.float32))


def numbered(net: Any) -> Any:
    """The net with parameters that are the same in every run."""
    for seed, parameter in enumerate(net.parameters()):
        parameter.assign_value(made(*parameter.shape, seed=seed))
    return net


def training(net: Any) -> Any:
    """One step: the loss, the gradient of the input and those of the parameters."""
    return ms.value_and_grad(lambda x: (net(x) * 3.0).sum(), 0, list(net.parameters()))


def arrays(values: Any) -> list[Any]:
    """What value_and_grad gave, as arrays."""
    if isinstance(values, (tuple, list)):
        return [array for value in values for array in arrays(value)]
    return [values.asnumpy()]


class Probe(MindSporeProbe):
    """Makes the debugger of a test and reads its recordings."""

    def record(self, net: Any, *inputs: Any, level: str = "L1", model: Any = None, **keys: Any) -> list[Any]:
        """Train a step on each of the inputs; the loss and gradients of the last one."""
        debugger = self.debugger(level, **keys)
        step, result = training(net), None
        for x in inputs:
            debugger.start(net if model is None else model)
            result = step(x)
            debugger.stop()
            debugger.step()
        return arrays(result)

    def around(self, calls: Any, level: str = "L1", **keys: Any) -> dict[str, Any]:
        """What is recorded of a function's calls."""
        debugger = self.debugger(level, **keys)
        debugger.start()
        calls()
        debugger.stop()
        debugger.step()
        return self.data()


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    own = Probe(tmp_path)
    own.close()
    yield own
    own.close()
