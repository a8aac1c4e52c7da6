"""A training script of an old user; `legacy_train.py RANK PORT FOLDER` is one of two gloo processes."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from leaving import leave
from ptdbg_ascend import *  # noqa: F403  # as every old script begins
from ptdbg_ascend import session


class Net(nn.Module):
    """`shift` is what the faulty device does: it gives the numbers of one call in another order."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 4)
        self.norm = nn.BatchNorm1d(16)
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.relu(self.one(x)))
        x = torch.roll(x, self.shift, 1)
        return self.two(torch.tanh(x))


def train(path: str, tag: str, device: str, rank: int | None = None, **switch: Any) -> None:
    """One iteration, dumped as the guide says; `device` is npu, which is faulty, or gpu."""
    seed_all()  # noqa: F405
    set_dump_path(path, dump_tag=tag)  # noqa: F405
    model: nn.Module = Net(3 if device == "npu" else 0)
    if rank is not None:
        model = nn.parallel.DistributedDataParallel(model)
    register_hook(model, acc_cmp_dump, rank=rank)  # noqa: F405
    set_dump_switch("ON", **switch)  # noqa: F405
    model(torch.randn(8, 16) + (rank or 0)).pow(2).mean().backward()
    session.follow(None)  # the process of a script ends here


def main() -> None:
    rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for device in ("npu", "gpu"):
        train(f"{folder}/{device}_dump/myDump.pkl", "dump_conv2d", device, rank, mode="api_stack")
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()
