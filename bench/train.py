"""One training run of a small GPT in the layout of GPT-2, plain or with a recording tool in its environment.

Run by record.py. Prints one JSON line: how long the measured steps took until all was on disk, and the peak
memory.
"""

import argparse
import atexit
import json
import os
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn

SIZES = {  # name: width, length, batch, heads
    "call-bound": (32, 64, 4, 4),
    "compute-bound": (192, 128, 12, 6),
}
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


def make_debugger(options: argparse.Namespace):
    """The tool's debugger, or None for plain training; both tools have the same interface."""
    if options.tool == "plain":
        return None
    task = {"scope": [], "list": [], "data_mode": ["all"]}
    if options.task == "statistics":
        task["summary_mode"] = options.summary
    config = {"task": options.task, "dump_path": options.out, "level": options.level, options.task: task}
    if options.tool == "incumbent":
        config |= {"rank": [], "step": [], "risk_level": "ALL"}
    else:
        config["rm_dropout"] = False
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(os.path.dirname(options.out), f"{os.path.basename(options.out)}.json")
    with open(path, "w") as stream:
        json.dump(config, stream)
    os.chmod(path, 0o640)
    from msprobe.pytorch import PrecisionDebugger

    return PrecisionDebugger(config_path=path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", choices=["plain", "ours", "off", "incumbent"], default="plain")
    parser.add_argument("--net", choices=list(SIZES), default="call-bound")
    parser.add_argument("--level", default="L1")
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--summary", default="statistics")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--out", default="out")
    options = parser.parse_args()
    measured: dict[str, float] = {}
    atexit.register(report, measured)  # the first to be registered is the last to run: all writers are done
    torch.manual_seed(0)
    width, length, batch, heads = SIZES[options.net]
    model = Gpt(width, length, heads)
    debugger = make_debugger(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recording = debugger is not None and options.tool != "off"

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

    for _ in range(options.warmup):
        step(record=False)
    if recording:
        step(record=True)  # the first recorded step pays for imports and caches; it is not measured
    measured["began"] = time.monotonic()
    for _ in range(options.steps):
        measured["loss"] = step(recording)


def report(measured: dict[str, float]) -> None:
    measured["seconds"] = time.monotonic() - measured.pop("began")
    measured["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
