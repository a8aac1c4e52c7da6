"""The PyTorch half of docs/tutorial_mindspore.md: trains a small net and records it in ./pytorch_run.

The weights it starts with are saved in weights.npz, so that the MindSpore half starts with the same ones.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(F.relu(self.fc1(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.blocks = nn.Sequential(Block(16), Block(16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(x)))


torch.manual_seed(0)
net = Net()
np.savez("weights.npz", **{name: value.detach().numpy() for name, value in net.named_parameters()})

random = np.random.RandomState(0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
debugger = PrecisionDebugger(task="tensor", level="mix", dump_path="./pytorch_run")
for step in range(2):
    x = torch.from_numpy(0.1 * random.randn(32, 8).astype(np.float32))
    y = torch.from_numpy(random.randint(0, 4, 32))
    debugger.start(net)
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    debugger.stop()
    debugger.step()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.6f}")
