"""The ported nets as they were in PyTorch: the golden half."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from truth.cases import Training
from truth.porting import BATCH, CLASSES, HEADS, LENGTH, WIDTH, WORDS, data, weight


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / (WIDTH // HEADS) ** 0.5
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        shares = F.softmax(scores.masked_fill(future, -1e9), -1)
        return self.o(torch.matmul(shares, v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pos = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words) + self.pos(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x)).reshape(-1, WORDS)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        return self.fc(F.relu(self.norm2(self.conv2(x))).mean((2, 3)))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(WIDTH, 32), nn.Linear(32, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.tanh(self.fc1(x)))))


NETS = {"encoder": Encoder, "conv": Conv, "mlp": Mlp}


def train(net: str, learning: str) -> Training:
    """A net with the shared weights, and its step; the second step of the conv net evaluates."""
    model = NETS[net]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weight(f"{net}.{name}", tuple(parameter.shape))))
    x, y = (torch.from_numpy(each) for each in data(net))
    optimizer = {
        "none": lambda: None,
        "sgd": lambda: torch.optim.SGD(model.parameters(), 0.1),
        "adam": lambda: torch.optim.Adam(model.parameters(), 1e-2, eps=1e-8),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1),
    }[learning]()

    def step(number: int) -> None:
        model.train(net != "conv" or number == 0)
        model.zero_grad()
        F.cross_entropy(model(x), y.long()).backward()
        if optimizer is not None:
            optimizer.step()

    return model, step
