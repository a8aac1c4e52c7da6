"""The nets of the kernel faults: a transformer, a convolutional net, two recurrent ones, a wide MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH, HEADS, LENGTH, BATCH = 59, 48, 4, 14, 4


def words(seed: int, length: int = LENGTH) -> Tensor:
    return torch.randint(0, WORDS, (BATCH, length), generator=torch.Generator().manual_seed(seed))


class Attention(nn.Module):
    """Causal attention in separate calls, so that every kernel of it is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.query_key_value(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-2, -1)) / (WIDTH // HEADS) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        shares = torch.softmax(scores.masked_fill(future, float("-inf")), -1)
        return self.out(torch.matmul(shares, v).transpose(1, 2).reshape(batch, length, -1))


class FusedAttention(Attention):
    """The same in one call."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.query_key_value(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, attention: type[Attention]) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), attention(), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Blocks 0 and 2 have attention in separate calls, block 1 in one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(kind) for kind in (Attention, FusedAttention, Attention))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self) -> Tensor:
        return F.cross_entropy(self(words(31)).flatten(0, 1).float(), words(32).flatten())


class Convolutional(nn.Module):
    """Convolutions with batch norm and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv1, self.norm1 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24)
        self.conv3 = nn.Conv2d(24, 24, 3, padding=1, groups=4)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        x = x + F.relu(self.norm1(self.conv1(x)))
        x = F.silu(self.norm2(self.conv2(x)))
        x = F.avg_pool2d(torch.tanh(self.conv3(x)), 2)
        return self.head(x.flatten(2).mean(2))

    def loss(self) -> Tensor:
        random = torch.Generator().manual_seed(33)
        pictures = torch.randn(6, 3, 16, 16, generator=random).to(self.head.weight.dtype)
        labels = torch.randint(0, 10, (6,), generator=random)
        return F.cross_entropy(self(pictures).float(), labels)


class Recurrent(nn.Module):
    """A gated recurrent unit in plain calls over eight words, then a fused LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.gates, self.fresh = nn.Linear(2 * WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        state, states = torch.zeros_like(x[:, 0]), []
        for i in range(x.shape[1]):
            reset, keep = torch.sigmoid(self.gates(torch.cat((x[:, i], state), -1))).chunk(2, -1)
            fresh = torch.tanh(self.fresh(torch.cat((x[:, i], reset * state), -1)))
            state = keep * state + (1 - keep) * fresh
            states.append(state)
        return self.head(self.lstm(torch.stack(states, 1))[0])

    def loss(self) -> Tensor:
        return F.cross_entropy(self(words(34, 8)).flatten(0, 1).float(), words(35, 8).flatten())


class FusedGru(nn.Module):
    """Two layers of the fused gated recurrent unit."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.gru(self.words(x))[0]))

    def loss(self) -> Tensor:
        return F.cross_entropy(self(words(36)).flatten(0, 1).float(), words(37).flatten())


class Wide(nn.Module):
    """A perceptron whose hidden layer has 10^7 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Parameter(torch.randn(1000, 40) / 7),
            nn.Parameter(torch.randn(8, 1000) / 30),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, self.first)), self.second)

    def loss(self) -> Tensor:
        random = torch.Generator().manual_seed(38)
        x = torch.randn(10000, 40, generator=random).to(self.first.dtype)
        return self(x).float().square().mean()


NETS: dict[str, Callable[[], Any]] = {
    "transformer": Transformer,
    "conv": Convolutional,
    "recurrent": Recurrent,
    "gru": FusedGru,
    "wide": Wide,
}
