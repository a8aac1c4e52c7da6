"""What mindspore.jit compiles inside a dynamic graph: one call, with its backward, and nothing breaks it."""

from __future__ import annotations

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from graph_case import part
from mindspore import Tensor, nn, ops
from ms_case import Probe, numbered, probe, training

__all__ = ["probe"]


@ms.jit
def compiled(x: Tensor) -> Tensor:
    return ops.abs(x) * 2


@ms.jit(capture_mode="bytecode")
def captured(x: Tensor) -> Tensor:
    return ops.exp(x)


class Compiled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(2, 2)

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.fc(ops.abs(x))


class Both(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.graph, self.fc = Compiled(), nn.Dense(2, 2)

    def construct(self, x: Tensor) -> Tensor:
        return captured(compiled(self.fc(self.graph(x))))


JIT = {f"Jit.{name}.0.{way}" for name in ("Compiled", "compiled") for way in ("forward", "backward")}
CAPTURED = {"Functional.exp.0.forward", "Functional.exp.0.backward"}
CELLS = {f"Cell.{name}.{way}.0" for name in ("graph.Compiled", "fc.Dense") for way in ("forward", "backward")}
NAMES = {"L0": CELLS, "L1": JIT | CAPTURED, "mix": CELLS | JIT | CAPTURED}


@pytest.mark.spec("M065", "MSd")
@pytest.mark.spec("M066", "MSd")
@pytest.mark.parametrize("level", NAMES)
def test_compiled_parts(level: str, probe: Probe) -> None:
    x = Tensor(np.array([[1.0, -2.0], [3.0, 4.0]], np.float32))
    loss, gradients = training(numbered(Both()))(x)
    for _ in range(2):  # compiled in the first step, and called again in the second
        recorded = probe.record(numbered(Both()), x, level=level)
        assert recorded[0].asnumpy() == loss.asnumpy()
        for ours, theirs in zip(recorded[1], gradients, strict=True):
            assert ours.asnumpy().tobytes() == theirs.asnumpy().tobytes()
    found = probe if level == "L1" else part(probe, "pynative")
    for step in (0, 1):
        assert NAMES[level] <= set(found.data(step))
        assert not {name for name in found.data(step) if name.startswith("Functional.abs")}
        assert found.troubles(step) == ""
