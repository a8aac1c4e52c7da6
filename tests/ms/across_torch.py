"""The two nets of tests/across_pairs.py as one writes them in PyTorch, and how they are recorded."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from across_pairs import BATCH, CLASSES, HEADS, LENGTH, WIDTH, WORDS, data, weight
from across_record import Wanted, main
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch import debugger as door


class Attention(nn.Module):
    """Keys and values come before queries, unlike in the other net."""

    def __init__(self) -> None:
        super().__init__()
        self.k_proj, self.v_proj, self.q_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        k, v, q = (self.heads(part(x)) for part in (self.k_proj, self.v_proj, self.q_proj))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS)
        weights = F.softmax(scores.masked_fill(mask, -1e9), dim=-1)
        return self.o_proj(torch.matmul(weights, v).permute(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH))

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(BATCH, LENGTH, HEADS, -1).permute(0, 2, 1, 3)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.gelu = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), MLP()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(WORDS, WIDTH)
        self.h = nn.ModuleList([Block(), Block()])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        x = self.wte(words)
        for block in self.h:
            x = block(x, mask)
        return self.lm_head(self.ln_f(x))


class BasicBlock(nn.Module):
    """ReLU is a function here; the shortcut comes first."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.downsample: nn.Module | None = None
        if before != after:
            conv = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(after))
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + short)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.maxpool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(BasicBlock(4, 4), BasicBlock(4, 4))
        self.layer2 = nn.Sequential(BasicBlock(4, 6))
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.mean(x, (2, 3)))


NETS: dict[str, Callable[[], nn.Module]] = {"transformer": Transformer, "resnet": ResNet}


def record(wanted: Wanted, config: str) -> float:
    net = NETS[wanted.net]()
    for name, parameter in net.named_parameters():
        parameter.data = torch.from_numpy(weight(name, tuple(parameter.shape)))
    x, mask, target = (torch.from_numpy(array) for array in data(wanted.net))
    debugger = PrecisionDebugger(config)
    debugger.start(net)
    y = net(x, mask) if wanted.net == "transformer" else net(x)
    loss = F.cross_entropy(y.reshape(-1, y.shape[-1]), target.long())
    loss.backward()
    debugger.stop()
    debugger.step()
    door.PrecisionDebugger.the.get().close()
    door.PrecisionDebugger.the.clear()
    return float(loss.item())


if __name__ == "__main__":
    main(record)
