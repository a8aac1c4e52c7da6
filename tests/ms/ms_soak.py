"""Training many steps while recording, and looking at what is held from time to time."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from ms_case import Probe, numbered
from ms_nets import Kind


def live_tensors() -> int:
    gc.collect()
    kinds = Counter(map(type, gc.get_objects()))
    return sum(number for kind, number in kinds.items() if issubclass(kind, Tensor))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Looked(NamedTuple):
    """What was held when it was looked at."""

    tensors: list[int]
    memory: list[int]

    @property
    def new_tensors(self) -> list[int]:
        """From one look to the next: MindSpore itself keeps some of each recomputed step."""
        return [later - earlier for earlier, later in itertools.pairwise(self.tensors)]

    @property
    def growth(self) -> int:
        """Of the memory since the first look, in bytes."""
        return max(self.memory) - self.memory[0]


def follow(kind: Kind, steps: int, look_every: int, probe: Probe | None = None, **keys: Any) -> Looked:
    """Train a net, recorded if there is a probe, and look at what is held from time to time."""
    debugger = probe.debugger(**keys) if probe is not None else None
    net = numbered(kind.build()).set_train()
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)

    def forward(x: Tensor) -> Tensor:
        y = net(x)
        return ops.mean(y * y)

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
    looked = Looked([], [])
    for step in range(steps + 1):
        x = Tensor(np.random.randn(*kind.shape).astype(np.float32))
        if debugger is not None:
            debugger.start(net)
        loss, gradients = gradients_of(x)
        optimizer(gradients)
        if debugger is not None and probe is not None:
            debugger.stop()
            debugger.step()
            shutil.rmtree(probe.folder / f"step{step}")
        del loss, gradients, x
        if step and step % look_every == 0:
            looked.tensors.append(live_tensors())
            looked.memory.append(resident())
    return looked
