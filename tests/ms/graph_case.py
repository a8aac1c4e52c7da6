"""Nets for graphs that are compiled, a debugger in graph mode, and the two folders of a dynamic graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from ms_case import Probe


@pytest.fixture
def static(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    """A debugger for static graphs; the mode belongs to the process."""
    monkeypatch.chdir(tmp_path)  # where MindSpore leaves what it thinks of a graph that does not compile
    made = Probe(tmp_path)
    made.close()
    ms.set_context(mode=ms.GRAPH_MODE)
    yield made
    made.close()
    ms.set_context(mode=ms.PYNATIVE_MODE)


def part(probe: Probe, name: str) -> Probe:
    """One of the two folders that a dynamic graph with compiled cells has."""
    found = Probe(probe.folder)
    found.folder = probe.folder / name
    return found


def random(*shape: int) -> Tensor:
    return Tensor(np.random.RandomState(len(shape)).randn(*shape).astype(np.float32))


def visible(folder: Path) -> list[str]:
    """What a user sees in a folder."""
    return sorted(entry.name for entry in folder.glob("[!.]*"))


def bits(result: Any) -> list[Any]:
    """Whatever a step gives, to the last bit."""
    if isinstance(result, (tuple, list)):
        return [bit for item in result for bit in bits(item)]
    return [result.asnumpy().tobytes()] if isinstance(result, Tensor) else [result]


class Block(nn.Cell):
    """Takes a keyword, gives two tensors, and uses neither of them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Dense(4, 4), nn.LayerNorm((4,))

    def construct(self, x: Tensor, scale: float = 1.0) -> Any:
        y = self.norm(self.fc(x))
        return y * scale, y + 1


class Network(nn.Cell):
    """A cell that is called twice, cells in cells, a list of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.shared = Block(), nn.Dense(4, 4)
        self.tail = nn.SequentialCell(nn.Dense(4, 4), nn.Tanh())
        self.layers = nn.CellList([nn.Dense(4, 4), nn.ReLU()])

    def construct(self, x: Tensor) -> Tensor:
        a, b = self.block(x, scale=2.0)
        a = self.shared(self.shared(a))
        for layer in self.layers:
            b = layer(b)
        return self.tail(a + b)


class Attention(nn.Cell):
    """Uses its input three times; who calls it, a fourth time."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Dense(4, 4), nn.Dense(4, 4), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        weights = ops.softmax(ops.matmul(self.q(x), self.k(x).swapaxes(-1, -2)), -1)
        return ops.matmul(weights, self.v(x))


class Transformer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.attention = nn.Embedding(9, 4), nn.LayerNorm((4,)), Attention()
        self.mlp, self.drop = nn.SequentialCell(nn.Dense(4, 8), nn.GELU(), nn.Dense(8, 4)), nn.Dropout(p=0.3)

    def construct(self, x: Tensor) -> Tensor:
        x = self.embedding(ops.abs(x * 3).astype(ms.int32) % 9)
        x = x + self.attention(self.norm(x))
        return x + self.drop(self.mlp(x))


class Residual(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)
        self.short, self.relu, self.flat, self.fc = (
            nn.Conv2d(1, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dense(32, 3),
        )

    def construct(self, x: Tensor) -> Tensor:
        x = x.reshape((2, 1, 4, 4))
        return self.fc(self.flat(self.relu(self.norm(self.conv(x)) + self.short(x))))


class Flowing(nn.Cell):
    """A loop and a choice that the graph makes as it runs, and a parameter that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Dense(4, 4), nn.Tanh()
        self.seen = ms.Parameter(Tensor(np.zeros((2, 4), np.float32)), name="seen", requires_grad=False)

    def construct(self, x: Tensor) -> Tensor:
        count = Tensor(0, ms.int32)
        while count < 3:
            x = self.act(self.fc(x))
            count = count + 1
        ops.assign_add(self.seen, x)
        return self.fc(x) if x.sum() > 0 else self.act(x) + self.seen
