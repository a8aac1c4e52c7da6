"""Small networks that do what real ones do, and one way to train any of them."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH, LENGTH = 32, 16, 8


class Attention(nn.Module):
    def __init__(self, heads: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (
            part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        return self.out(torch.matmul(self.drop(weights), v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A transformer; `checkpointing` is None or the value of use_reentrant."""

    def __init__(self, layers: int = 1, checkpointing: bool | None = None) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.checkpointing = checkpointing

    def forward(self, words: Tensor) -> Tensor:
        length = words.shape[1]
        x = self.words(words) + self.places(torch.arange(length))
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        for block in self.blocks:
            if self.checkpointing is None:
                x = block(x, mask)
            else:
                x = checkpoint(block, x, mask, use_reentrant=self.checkpointing)
        return self.head(self.norm(x))


def gpt_loss(model: Callable[[Tensor], Tensor], step: int) -> Tensor:
    words = torch.randint(0, WORDS, (2, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return F.cross_entropy(model(words[:, :-1]).reshape(-1, WORDS), words[:, 1:].reshape(-1))


class Conv(nn.Module):
    """In-place activations, batch statistics, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.conv, self.norm = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(self.body(images), 2)
        x = F.relu_(self.norm(self.conv(x)))
        x = (x * 2).add_(0.5)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def image_loss(model: Callable[[Tensor], Tensor], step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    images, labels = (
        torch.randn(4, 3, 8, 8, generator=generator),
        torch.randint(0, 4, (4,), generator=generator),
    )
    return F.cross_entropy(model(images), labels)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.cell = nn.GRUCell(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, (hidden, _) = self.lstm(x)
        return self.head(self.cell(states[:, -1], hidden[-1]))


class Squash(torch.autograd.Function):
    """x / (1 + |x|), and the sign as a second output without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.scale = scale
        sign = x.sign()
        ctx.mark_non_differentiable(sign)
        return scale * x / (1 + x.abs()), sign

    @staticmethod
    def backward(ctx: Any, of_output: Tensor, _of_sign: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return ctx.scale * of_output / (1 + x.abs()).square(), None


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        squashed, sign = Squash.apply(self.first(x), 2.0)
        return self.last(squashed * sign.abs())


class Shared(nn.Module):
    """One layer called several times and known by two names; one parameter in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.again = self.layer
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.layer.weight
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + torch.tanh(self.norm(self.layer(x)))
        return self.head(self.tied(self.again(x)))


@dataclasses.dataclass
class Parts:
    hidden: Tensor
    named: dict[str, Tensor | None]


class Pair(NamedTuple):
    low: Tensor
    high: Tensor


class Nested(nn.Module):
    """Tensors in and out by every kind of container, and by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.split, self.join, self.head = Split(), Join(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts, pair = self.split(x, flag=True)
        return self.head(self.join(parts, pair=pair, extras={"bias": [x, None, 2.0]}))


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, *, flag: bool) -> tuple[Parts, Pair]:
        x = self.layer(x)
        low, high = x.chunk(2, dim=-1)
        return Parts(x, {"sum": x.sum(), "none": None}), Pair(low, high)


class Join(nn.Module):
    def forward(self, parts: Parts, pair: Pair, extras: dict[str, Any]) -> Tensor:
        joined = torch.cat([pair.low, pair.high], dim=-1) + parts.hidden * parts.named["sum"]
        return joined + extras["bias"][0] * extras["bias"][2]


def row_loss(model: Callable[[Tensor], Tensor], step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    rows, labels = torch.randn(5, 6, generator=generator), torch.randint(0, 3, (5,), generator=generator)
    return F.cross_entropy(model(rows), labels)


def sequence_loss(model: Callable[[Tensor], Tensor], step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    rows, labels = torch.randn(5, 4, 6, generator=generator), torch.randint(0, 3, (5,), generator=generator)
    return F.cross_entropy(model(rows), labels)


class Net(NamedTuple):
    """A network to train: how it is made, what its loss is, in which precision it runs."""

    build: Callable[[], nn.Module]
    loss: Callable[[Any, int], Tensor]
    autocast: torch.dtype | None = None


NETS = {
    "gpt": Net(Gpt, gpt_loss),
    "conv": Net(Conv, image_loss),
    "lstm": Net(Lstm, sequence_loss),
    "custom": Net(Custom, row_loss),
    "shared": Net(Shared, row_loss),
    "nested": Net(Nested, row_loss),
    "reentrant": Net(lambda: Gpt(checkpointing=True), gpt_loss),
    "non_reentrant": Net(lambda: Gpt(checkpointing=False), gpt_loss),
    "bf16": Net(Gpt, gpt_loss, torch.bfloat16),
    "fp16": Net(Gpt, gpt_loss, torch.float16),
}


class Outcome(NamedTuple):
    """Everything two trainings must have in common to count as the same, as bytes."""

    losses: list[bytes]
    gradients: list[dict[str, bytes | None]]
    state: dict[str, bytes]
    randomness: tuple[bytes, Any, str]


def seed(number: int = 7) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def train(
    net: Net,
    debugger: Any = None,
    *,
    steps: int = 2,
    make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    wrap: Callable[[nn.Module], Any] = lambda model: model,
    save: bool = False,
) -> Outcome:
    """Train for some steps, recorded by a debugger or not; all chance begins anew."""
    seed()
    model = net.build()
    runs = wrap(model)
    optimizer = make_optimizer(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=net.autocast is torch.float16, init_scale=1024.0)
    losses, gradients = [], []
    for step in range(steps):
        if debugger is not None:
            debugger.start(model)
        with torch.autocast("cpu", dtype=net.autocast, enabled=net.autocast is not None):
            loss = net.loss(runs, step)
        if save:
            debugger.save({"loss": loss, "head": list(model.parameters())[-1]}, "seen")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        losses.append(raw(loss))
        gradients.append({name: raw(p.grad) for name, p in model.named_parameters()})
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    state = {name: raw(tensor) or b"" for name, tensor in model.state_dict().items()}
    chance = (raw(torch.get_rng_state()) or b"", random.getstate(), str(np.random.get_state()))
    return Outcome([loss or b"" for loss in losses], gradients, state, chance)


def raw(tensor: Tensor | None) -> bytes | None:
    """The bits of a tensor, so that NaN equals NaN and -0.0 differs from 0.0."""
    if tensor is None:
        return None
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
