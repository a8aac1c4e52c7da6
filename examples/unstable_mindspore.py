"""The same as unstable_torch.py with MindSpore: `python unstable_mindspore.py transformer --fault`."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from msprobe.mindspore import PrecisionDebugger

WORDS, WIDTH, HEADS, LENGTH = 16, 8, 2, 4
SEED = 1


class Attention(nn.Cell):
    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Dense(WIDTH, WIDTH) for _ in range(4))
        temperature = (WIDTH / HEADS) ** 0.5
        low = 65536.0 if fault else 0.0
        self.low = Parameter(Tensor(low, ms.float32), name="low")
        self.high = Parameter(Tensor(low + temperature, ms.float32), name="high")

    def construct(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS)
        q, k, v = (dense(x).reshape(shape).swapaxes(1, 2) for dense in (self.q, self.k, self.v))
        temperature = ops.sub(self.high, self.low)
        weights = ops.softmax(ops.div(ops.matmul(q, k.swapaxes(-2, -1)), temperature), axis=-1)
        return self.out(ops.matmul(weights, v).swapaxes(1, 2).reshape(x.shape))


class Transformer(nn.Cell):
    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
        self.attention = Attention(fault)
        self.up, self.down = nn.Dense(WIDTH, 2 * WIDTH), nn.Dense(2 * WIDTH, WIDTH)
        self.head = nn.Dense(WIDTH, WORDS)

    def construct(self, words: Tensor, following: Tensor) -> Tensor:
        x = self.words(words)
        x = x + self.attention(self.norm1(x))
        x = self.head(x + self.down(ops.gelu(self.up(self.norm2(x)))))
        return ops.cross_entropy(x.reshape((-1, WORDS)), following.reshape((-1,)))

    def batch(self, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
        words = random.randint(0, WORDS, (2, LENGTH + 1)).astype(np.int32)
        return Tensor(words[:, :-1]), Tensor(words[:, 1:])


class ConvNet(nn.Cell):
    """Scales its features by their mean size, which it takes from a running total."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, pad_mode="pad", padding=1), nn.Dense(4, 4)
        self.total = Parameter(Tensor(1e7 if fault else 0.0, ms.float32), name="total", requires_grad=False)

    def construct(self, images: Tensor, labels: Tensor) -> Tensor:
        x = ops.relu(self.conv(images))
        total = ops.add(self.total, ops.stop_gradient(x).sum())
        size = ops.div(ops.sub(total, self.total), x.size)
        x = ops.div(x, size).mean(axis=(2, 3))
        return ops.cross_entropy(self.head(x), labels)

    def batch(self, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
        images = random.rand(4, 3, 4, 4).astype(np.float32)
        return Tensor(images), Tensor(random.randint(0, 4, 4).astype(np.int32))


def check(net: str, fault: bool, out: Path, mode: str = "bit_noise", steps: int = 2) -> list[dict[str, str]]:
    """Train for some steps while every call is checked; the rows of free_benchmark.csv."""
    config = {
        "task": "free_benchmark",
        "dump_path": str(out),
        "level": "L1",
        "free_benchmark": {"pert_mode": mode},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    debugger = PrecisionDebugger(str(out / "config.json"))
    random = np.random.RandomState(SEED)
    model = {"transformer": Transformer, "conv": ConvNet}[net](fault)
    for parameter in model.trainable_params():
        if parameter.ndim:
            parameter.set_data(Tensor((0.2 * random.randn(*parameter.shape)).astype(np.float32)))
    optimizer = nn.SGD(model.trainable_params(), learning_rate=0.1)
    train = ms.value_and_grad(model, None, optimizer.parameters)
    for _ in range(steps):
        debugger.start(model)
        _, gradients = train(*model.batch(random))
        debugger.stop()
        optimizer(gradients)
        debugger.step()
    with open(out / "free_benchmark.csv", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", choices=["transformer", "conv"])
    parser.add_argument("--fault", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("unstable"))
    given = parser.parse_args()
    for row in check(given.net, given.fault, given.out):
        print(
            f"step {row['step']}: {row['api_name']} moves by {row['max_rel']}, {row['dtype']} {row['shape']}"
        )
