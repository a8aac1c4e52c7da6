"""Finds the call that overflows: a transformer in float16, whose second attention layer scales too late.

    python examples/overflow.py [FOLDER]

It is trained twice, without the fault and with it. What overflowed, and overflow.csv, lie below the folder
(default: build/overflow).
"""

import shutil
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.errors import OverflowLimitReached
from msprobe.pytorch import PrecisionDebugger, seed_all

STEPS = 3
WIDTH, HEADS, WORDS = 64, 4, 64


class Attention(nn.Module):
    """Attention in float16; with `late` it scales the product, which no longer fits, and not its factors."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late = late
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).half().chunk(3, dim=-1)
        q, k, v = (part.reshape(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        scale = (width // HEADS) ** -0.5
        if self.late:
            scores = torch.matmul(q * 256, k.transpose(-2, -1) * 256) * (scale / 256**2)
        else:
            scores = torch.matmul(q * scale, k.transpose(-2, -1))
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width).float())


class Transformer(nn.Module):
    """Three layers; the one numbered `late`, if any, has the fault."""

    def __init__(self, late: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Attention(number == late) for number in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        length = words.shape[1]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        x = self.words(words)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), mask)
        return self.head(x)


def train(folder: Path, late: int | None) -> None:
    seed_all(1234)
    model = Transformer(late)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    debugger = PrecisionDebugger(task="overflow_check", dump_path=str(folder), level="L1")
    for step in range(STEPS):
        words = torch.randint(0, WORDS, (4, 17))
        debugger.start(model)
        loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        debugger.stop()
        debugger.step()
        optimizer.step()
        optimizer.zero_grad()
        print(f"  step {step}: loss {loss.item():.6f}")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/overflow")
    shutil.rmtree(folder, ignore_errors=True)
    for name, late in (("sound", "none"), ("faulty", "1")):
        fault = "" if late == "none" else ", whose layer 1 scales attention too late"
        print(f"Training the {name} run{fault}:")
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, "--train", str(folder / name), late], check=True)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--train":
        try:
            train(Path(sys.argv[2]), None if sys.argv[3] == "none" else int(sys.argv[3]))
        except OverflowLimitReached as reached:
            print(f"  training ended: {reached}")
    else:
        main()
