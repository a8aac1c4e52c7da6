"""The net that the golden recordings were made of, a debugger of its own per test, and what it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from msprobe.log import logger
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.framework import executor

Step = Callable[[Any], Any]

logger()  # pytest catches what a logger tells that is there before the test


class Net(nn.Cell):
    """Every way to compute that has a prefix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3, pad_mode="pad", padding=1, has_bias=True)
        self.norm = nn.LayerNorm((8,))
        self.fc1 = nn.Dense(32, 4)
        self.fc2 = nn.Dense(4, 2)
        self.relu = nn.ReLU()
        self.matmul = ops.MatMul()
        self.w = Parameter(Tensor(np.ones((2, 2), np.float32)), name="w")

    def construct(self, x: Tensor) -> Tensor:
        x = self.conv1(x).reshape(2, 4, 8)
        x = ops.abs(self.norm(x))
        x = mint.nn.functional.relu(mint.add(x, 1.0))
        x = (x + 1).reshape((2, 32))
        x = self.fc2(self.relu(self.fc1(x)))
        return self.matmul(x, self.w)


def numbered(net: nn.Cell) -> nn.Cell:
    """The net with the weights of the golden recordings."""
    random = np.random.RandomState(0)
    for parameter in net.get_parameters():
        parameter.set_data(Tensor((random.randn(*parameter.shape) * 0.1).astype(np.float32)))
    return net


def golden_inputs() -> list[Tensor]:
    random = np.random.RandomState(0)
    for parameter in Net().get_parameters():
        random.randn(*parameter.shape)
    return [Tensor(random.randn(2, 1, 4, 4).astype(np.float32)) for _ in range(2)]


def training(net: nn.Cell) -> Step:
    """One step: the loss and the gradients of all parameters."""

    def forward(x: Tensor) -> Tensor:
        y = net(x)
        return ops.mean(y * y)

    step: Step = ms.value_and_grad(forward, None, net.trainable_params())
    return step


class Probe:
    """Makes the debugger of a test and reads its recordings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "dump"
        self._config = folder / "config.json"

    def debugger(self, level: str = "L1", task: str = "statistics", **keys: Any) -> PrecisionDebugger:
        """Keys of the task's section are given as `section={...}`, keys of the top level by their names."""
        section = keys.pop("section", {})
        config = {"task": task, "level": level, "dump_path": str(self.folder), **keys}
        self._config.write_text(json.dumps({**config, task: section}))
        return PrecisionDebugger(str(self._config))

    def record(self, net: nn.Cell, *inputs: Any, level: str = "L1", model: Any = None, **keys: Any) -> Any:
        """Train a step on each of the inputs; the loss and gradients of the last one."""
        debugger = self.debugger(level, **keys)
        step, result = training(net), None
        for x in inputs:
            debugger.start(net if model is None else model)
            result = step(x)
            debugger.stop()
            debugger.step()
        return result

    def close(self) -> None:
        if PrecisionDebugger.the._held is not None:
            PrecisionDebugger.the.get().close()
        PrecisionDebugger.the.clear()

    def rank(self, step: int = 0) -> Path:
        return self.folder / f"step{step}" / "rank"

    def head(self, step: int = 0) -> dict[str, Any]:
        file = self.rank(step) / "dump.json"
        file = file if file.exists() else self.rank(step) / "debug.json"
        head: dict[str, Any] = json.loads(file.read_text())
        return head

    def data(self, step: int = 0) -> dict[str, Any]:
        data: dict[str, Any] = self.head(step)["data"]
        return data

    def construct(self, step: int = 0) -> dict[str, str | None]:
        parents: dict[str, str | None] = json.loads((self.rank(step) / "construct.json").read_text())
        return parents

    def files(self, step: int = 0) -> set[str]:
        return {file.name for file in (self.rank(step) / "dump_tensor_data").iterdir()}

    def tensor(self, name: str, step: int = 0) -> Any:
        return np.load(self.rank(step) / "dump_tensor_data" / f"{name}.npy")

    def troubles(self, step: int = 0) -> str:
        file = self.rank(step) / "dump_error_info.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    made = Probe(tmp_path)
    made.close()
    yield made
    made.close()
    executor.clear_res()  # after an error in the midst of a graph MindSpore takes the next one for its rest
