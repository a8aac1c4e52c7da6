"""Three networks for injected faults: a transformer, a convolutional and a recurrent one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH, LENGTH, BATCH = 48, 32, 12, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.reshape(batch, length, 4, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) * (width // 4) ** -0.5
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        x = x + self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def loss(self, random: torch.Generator) -> Tensor:
        words = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=random)
        mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), diagonal=1)
        x = self.words(words[:, :-1])
        for block in self.blocks:
            x = block(x, mask)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), words[:, 1:].flatten())


class Convolutional(nn.Module):
    """Residual, with batch statistics; a mask hides part of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))
        self.head = nn.Linear(16, 10)

    def loss(self, random: torch.Generator) -> Tensor:
        pictures = torch.randn(8, 3, 12, 12, generator=random).to(self.head.weight.dtype)
        labels = torch.randint(0, 10, (8,), generator=random)
        hidden = torch.rand(8, 1, 12, 12, generator=random) < 0.2
        x = self.stem(pictures).masked_fill(hidden, 0.0)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x)))
        x = F.avg_pool2d(x, 3)
        return F.cross_entropy(self.head(x.mean(dim=(2, 3))), labels)


class Recurrent(nn.Module):
    """A gated cell over ten steps, in plain operators, with attention to the past that skips padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.gates, self.fresh = nn.Linear(2 * WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def loss(self, random: torch.Generator) -> Tensor:
        words = torch.randint(0, WORDS, (BATCH, 11), generator=random)
        lengths = torch.randint(5, 11, (BATCH,), generator=random)
        padding = torch.arange(10)[None, :] >= lengths[:, None]
        xs = self.words(words[:, :-1])
        state = torch.zeros(BATCH, WIDTH, dtype=xs.dtype)
        states = []
        for t in range(10):
            both = torch.cat([xs[:, t], state], dim=-1)
            keep, show = torch.sigmoid(self.gates(both)).chunk(2, dim=-1)
            new = torch.tanh(self.fresh(torch.cat([xs[:, t], show * state], dim=-1)))
            state = keep * state + (1 - keep) * new
            states.append(state)
        past = self.norm(torch.stack(states, dim=1))
        scores = torch.matmul(past, state.unsqueeze(-1)).squeeze(-1).masked_fill(padding, float("-inf"))
        mixed = torch.matmul(F.softmax(scores, dim=-1).unsqueeze(1), past).squeeze(1)
        return F.cross_entropy(self.head(mixed), words[:, -1])


NETS: dict[str, type[nn.Module]] = {
    "transformer": Transformer,
    "convolutional": Convolutional,
    "recurrent": Recurrent,
}
