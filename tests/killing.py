"""Training processes that are killed at random moments: `python killing.py FOLDER COUNT SEED`.

torch is imported once; each training process is a fork. It notes the end of each call of its own with an
unbuffered write, so that whoever reads the recording knows what must be in it. One line of JSON per kill goes
to stdout.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger

PLANS = [(task, level) for task in ("statistics", "tensor") for level in ("L1", "mix", "L0")]
STEPS = 4
ROUNDS = 4


class Noted:
    """Notes the names that the recording must hold, in the order in which the calls end."""

    def __init__(self, path: Path, level: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        self._level = level
        self._counts: Counter[str] = Counter()
        self._called: list[tuple[str, int]] = []
        self.step = 0

    def call(self, owner: str) -> None:
        self._called.append((owner, self._counts[owner]))
        self._counts[owner] += 1
        self._write(*self._called[-1], "forward")

    def backward(self) -> None:
        for owner, count in self._called:
            self._write(owner, count, "backward")

    def next_step(self) -> None:
        self.step += 1
        self._counts.clear()
        self._called.clear()

    def _write(self, owner: str, count: int, direction: str) -> None:
        is_module = owner.startswith("Module.")
        if self._level == "mix" or is_module == (self._level == "L0"):
            name = f"{owner}.{direction}.{count}" if is_module else f"{owner}.{count}.{direction}"
            os.write(self._descriptor, f"{self.step} {name}\n".encode())


class Net(nn.Module):
    """A few calls of each kind; each one is noted when it has returned."""

    def __init__(self, noted: Noted) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(48, 48), nn.LayerNorm(48)
        self.noted = noted

    def forward(self, x: Tensor) -> Tensor:
        noted = self.noted
        for _ in range(ROUNDS):
            x = self.first(x)
            noted.call("Functional.linear")
            noted.call("Module.first.Linear")
            x = self.norm(x)
            noted.call("Functional.layer_norm")
            noted.call("Module.norm.LayerNorm")
            x = torch.tanh(x)
            noted.call("Torch.tanh")
            x = x * 1.5
            noted.call("Tensor.__mul__")
            x = F.softmax(x, dim=-1)
            noted.call("Functional.softmax")
        return x


def train(folder: Path, task: str, level: str) -> None:
    noted = Noted(folder / "noted", level)
    config = {"task": task, "level": level, "dump_path": str(folder / "run"), "rm_dropout": False}
    (folder / "config.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(str(folder / "config.json"))
    net = Net(noted)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(STEPS):
        debugger.start(net)
        loss = net(torch.randn(32, 48)).square().sum()
        loss.backward()
        noted.backward()
        debugger.stop()
        debugger.step()
        noted.next_step()
        optimizer.step()
        optimizer.zero_grad()


def forked(folder: Path, task: str, level: str) -> int:
    child = os.fork()
    if child == 0:
        try:
            train(folder, task, level)
        finally:
            os._exit(0)
    return child


def main() -> None:
    root, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    lives = {}
    for task, level in PLANS:  # how long each lives if nobody kills it
        folder = root / f"whole-{task}-{level}"
        folder.mkdir()
        start = time.monotonic()
        os.waitpid(forked(folder, task, level), 0)
        lives[task, level] = time.monotonic() - start
    for number in range(count):
        task, level = PLANS[number % len(PLANS)]
        folder = root / str(number)
        folder.mkdir()
        child = forked(folder, task, level)
        time.sleep(chance.uniform(0, lives[task, level]))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
        print(json.dumps({"folder": str(folder), "task": task, "level": level, "killed": killed}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # a fork has none of the threads of its parent
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer imports half of torch: once is enough
    main()
