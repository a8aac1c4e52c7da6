"""The two nets of tests/across_pairs.py as one writes them in MindSpore, and how they are recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

from across_pairs import BATCH, CLASSES, HEADS, LENGTH, WIDTH, WORDS, data, torch_name, weight
from across_record import Wanted, main
from msprobe.mindspore import PrecisionDebugger


class SelfAttention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Dense(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Dense(WIDTH, WIDTH)

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.heads(part(x)) for part in (self.query, self.key, self.value))
        scores = ops.matmul(q, k.swapaxes(-2, -1)) / math.sqrt(WIDTH // HEADS)
        weights = ops.softmax(ops.masked_fill(scores, mask, -1e9), axis=-1)
        return self.out(ops.matmul(weights, v).transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH))

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(BATCH, LENGTH, HEADS, -1).transpose(0, 2, 1, 3)


class FeedForward(nn.Cell):
    def __init__(self, approximate: bool) -> None:
        super().__init__()
        self.dense1, self.dense2 = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)
        self.act = nn.GELU(approximate=approximate)

    def construct(self, x: Tensor) -> Tensor:
        return self.dense2(self.act(self.dense1(x)))


class EncoderLayer(nn.Cell):
    def __init__(self, epsilon: float, approximate: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.norm2 = nn.LayerNorm((WIDTH,), epsilon=epsilon)
        self.attention, self.ffn = SelfAttention(), FeedForward(approximate)

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))


class Transformer(nn.Cell):
    """`eps` changes the second norm of each layer, `gelu` the activation."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        epsilon = 1e-3 if variant == "eps" else 1e-5
        self.encoder = nn.CellList([EncoderLayer(epsilon, variant == "gelu") for _ in range(2)])
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.head = mint.nn.Linear(WIDTH, WORDS)

    def construct(self, words: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.head(self.norm(x))


class ResBlock(nn.Cell):
    """Where it widens, the shortcut is a convolution too."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, pad_mode="pad", padding=1)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(after, after, 3, pad_mode="pad", padding=1)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut = None
        if before != after:
            conv = nn.Conv2d(before, after, 1, stride=stride, pad_mode="valid")
            self.shortcut = nn.SequentialCell(conv, nn.BatchNorm2d(after))
        self.relu2 = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        short = x if self.shortcut is None else self.shortcut(x)
        return self.relu2(y + short)


class ResNet(nn.Cell):
    def __init__(self, variant: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1, has_bias=True)
        self.stem_bn = nn.BatchNorm2d(4, eps=1e-3 if variant == "eps" else 1e-5)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.stage1 = nn.SequentialCell(ResBlock(4, 4), ResBlock(4, 4))
        self.stage2 = nn.SequentialCell(ResBlock(4, 6))
        self.classifier = nn.Dense(6, CLASSES)

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.stem_bn(self.stem(x))))
        x = self.stage2(self.stage1(x))
        return self.classifier(ops.mean(x, (2, 3)))


NETS: dict[str, Callable[[str], nn.Cell]] = {"transformer": Transformer, "resnet": ResNet}


_FIRST = {"transformer": "h.0.ln_1.weight", "resnet": "bn1.weight"}
_TIMES = {"perturbed": np.float32(1.01), "other": np.float32(5)}


def made(wanted: Wanted) -> nn.Cell:
    net = NETS[wanted.net](wanted.variant)
    for parameter in net.get_parameters():
        name = torch_name(wanted.net, parameter.name)
        value = weight(name, parameter.shape)
        if name == _FIRST[wanted.net]:
            value = value * _TIMES.get(wanted.variant, np.float32(1))
        parameter.set_data(Tensor(value))
    net.set_train(True)
    return net


def step_of(net: nn.Cell, name: str) -> Callable[[], Any]:
    x, mask, target = (Tensor(array) for array in data(name))

    def forward() -> Tensor:
        y = net(x, mask) if name == "transformer" else net(x)
        return ops.cross_entropy(y.reshape(-1, y.shape[-1]), target)

    step: Callable[[], Any] = ms.value_and_grad(forward, None, net.trainable_params())
    return step


def record(wanted: Wanted, config: str) -> float:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = made(wanted)
    step = step_of(net, wanted.net)
    debugger = PrecisionDebugger(config)
    debugger.start(net)
    loss, _ = step()
    debugger.stop()
    debugger.step()
    PrecisionDebugger.the.get().close()
    PrecisionDebugger.the.clear()
    return float(loss.asnumpy())


if __name__ == "__main__":
    main(record)
