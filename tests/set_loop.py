"""Trains a net that goes over a set: the order of its calls depends on PYTHONHASHSEED.

python set_loop.py FOLDER LEVEL [FAULT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger

WIDTH = 16
NAMES = frozenset({"red", "green", "blue", "black", "white"})


class Expert(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)) * self.scale)


class Net(nn.Module):
    """Adds up what its experts say, in the order of a set."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.begin, self.norm, self.end = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleDict({name: Expert(0.51 if name == fault else 0.5) for name in sorted(NAMES)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        total = torch.zeros_like(x)
        for name in set(NAMES):
            total = total + self.experts[name](x)
        return self.end(self.norm(total))


def main(folder: Path, level: str, fault: str = "") -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Net(fault)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, foreach=False)
    config = folder.with_suffix(".json")
    config.write_text(json.dumps({"task": "statistics", "level": level, "dump_path": str(folder)}))
    debugger = PrecisionDebugger(str(config))
    for _ in range(2):
        debugger.start(net)
        net(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
