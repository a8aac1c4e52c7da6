"""A call that loses digits, found without a second run: `python unstable_torch.py transformer --fault`.

Each net has a number that it divides by. With --fault this number is the difference of two large, nearly
equal ones, as when a value is kept as the difference of two totals. free_benchmark flips the last bit of an
input of every call and names the call whose answer moves: the subtraction, where the digits are lost. The
division after it answers to its own inputs as well as it can, and is not named. Without --fault nothing is.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger

WORDS, WIDTH, HEADS, LENGTH = 16, 8, 2, 4
SEED = 9


class Attention(nn.Module):
    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        temperature = (WIDTH / HEADS) ** 0.5
        low = 65536.0 if fault else 0.0
        self.low, self.high = nn.Parameter(torch.tensor(low)), nn.Parameter(torch.tensor(low + temperature))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.reshape(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        temperature = self.high - self.low
        weights = F.softmax(torch.matmul(q, k.transpose(-2, -1)) / temperature, dim=-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, WIDTH))


class Transformer(nn.Module):
    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(fault)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        x = x + self.attention(self.norm1(x))
        return self.head(x + self.down(F.gelu(self.up(self.norm2(x)))))

    def loss(self, generator: torch.Generator) -> Tensor:
        words = torch.randint(0, WORDS, (2, LENGTH + 1), generator=generator)
        return F.cross_entropy(self(words[:, :-1]).reshape(-1, WORDS), words[:, 1:].reshape(-1))


class ConvNet(nn.Module):
    """Scales its features by their mean size, which it takes from a running total."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 4)
        self.register_buffer("total", torch.tensor(1e7 if fault else 0.0))

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.conv(images))
        total = self.total + x.detach().sum()
        size = (total - self.total) / x.numel()
        return self.head(F.adaptive_avg_pool2d(x / size, 1).flatten(1))

    def loss(self, generator: torch.Generator) -> Tensor:
        images = torch.rand(4, 3, 4, 4, generator=generator)
        return F.cross_entropy(self(images), torch.randint(0, 4, (4,), generator=generator))


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
    debugger = PrecisionDebugger(str(out / "config.json"))
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = {"transformer": Transformer, "conv": ConvNet}[net](fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        debugger.start(model)
        loss = model.loss(generator)
        debugger.stop()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
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
