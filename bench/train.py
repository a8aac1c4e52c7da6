"""One training run of a small GPT in the layout of GPT-2, plain or with the tool of its environment."""

import argparse

import torch
import torch.nn.functional as F
from timed import SIZES, configuration, options, train
from torch import nn

LAYERS = 4
WORDS = 512
DROPOUT = 0.0  # as GPTs are pretrained; both tools record the calls


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop_weights, self.drop1, self.drop2 = (nn.Dropout(DROPOUT) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.drop1(self.attend(self.norm1(x), mask))
        return x + self.drop2(self.down(F.gelu(self.up(self.norm2(x)))))

    def attend(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        scores = torch.matmul(q, k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        mixed = torch.matmul(self.drop_weights(weights), v)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))


class Gpt(nn.Module):
    def __init__(self, width: int, length: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.register_buffer("mask", torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.words(words) + self.places(torch.arange(words.shape[1])))
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


def make_debugger(given: argparse.Namespace):
    """The tool's debugger, or None for plain training; both tools have the same interface."""
    if given.tool == "plain":
        return None
    more = {"rm_dropout": False}
    if given.tool == "incumbent":
        more = {"rank": [], "step": [], "risk_level": "ALL"}
    path = configuration(given, **more)
    from msprobe.pytorch import PrecisionDebugger

    return PrecisionDebugger(config_path=path)


def main() -> None:
    given = options(["plain", "ours", "off", "incumbent"])
    torch.manual_seed(0)
    width, length, batch, heads = SIZES[given.net]
    model = Gpt(width, length, heads)
    debugger = make_debugger(given)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(record: bool) -> float:
        words = torch.randint(0, WORDS, (batch, length + 1))
        if record:
            debugger.start(model)
        loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        if record:
            debugger.stop()
            debugger.step()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    train(given, step)


if __name__ == "__main__":
    main()
