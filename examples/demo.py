"""Trains a small transformer twice, once with one wrong call, records both runs and compares them.

    make demo          or          python examples/demo.py [FOLDER]

The two recordings, golden and target, and the result of comparing them lie below the folder (default:
build/demo).
"""

import shutil
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger, seed_all

STEPS = 2


class Block(nn.Module):
    """A transformer block; `wrong` computes attention with a scale that is 1 % off."""

    def __init__(self, width: int, heads: int, wrong: bool) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5 * (1.01 if wrong else 1.0)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.reshape(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        x = x + self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Three blocks; the one numbered `wrong`, if any, has the fault."""

    def __init__(self, wrong: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block(32, 4, wrong=number == wrong) for number in range(3))
        self.head = nn.Linear(32, 64)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        length = words.shape[1]
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        x = self.words(words)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def train(folder: Path, wrong: int | None) -> None:
    seed_all(1234)
    model = Transformer(wrong)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    debugger = PrecisionDebugger(task="tensor", dump_path=str(folder), level="mix")
    for step in range(STEPS):
        words = torch.randint(0, 64, (4, 17))
        debugger.start(model)
        loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        debugger.stop()
        debugger.step()
        optimizer.step()
        optimizer.zero_grad()
        print(f"  step {step}: loss {loss.item():.6f}")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/demo")
    shutil.rmtree(folder, ignore_errors=True)
    for name, wrong in (("golden", "none"), ("target", "1")):
        fault = "" if wrong == "none" else ", whose block 1 scales attention by 1 % too much"
        print(f"Training the {name} run{fault}:")
        sys.stdout.flush()
        # A process of its own for each run, as two real runs would be.
        subprocess.run([sys.executable, __file__, "--train", str(folder / name), wrong], check=True)
    for name in ("golden", "target"):
        print(f"\nWhat was recorded in {folder / name}:")
        sys.stdout.flush()
        subprocess.run([sys.executable, "-m", "msprobe", "show", str(folder / name)], check=True)
    print("\nWhich call made the difference?")
    sys.stdout.flush()
    words = ["compare", str(folder / "target"), str(folder / "golden"), "-o", str(folder / "result")]
    subprocess.run([sys.executable, "-m", "msprobe", *words], check=True)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--train":
        train(Path(sys.argv[2]), None if sys.argv[3] == "none" else int(sys.argv[3]))
    else:
        main()
