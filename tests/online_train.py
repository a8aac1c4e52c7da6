"""A small transformer under the online check: `online_train.py CONFIG RANK RANKS STORE [fault] [unwatched]`.

It prints loss, gradients, weights and the state of all random numbers, bit for bit. With "fault" the kernel
of addmm is wrong by 1 % where the widest Linear uses it, as on a machine that is broken.
"""

import hashlib
import random
import sys

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

from leaving import leave
from nets import WIDTH, Gpt, gpt_loss

STEPS = 2


def break_addmm() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")

    def addmm(bias, x, weight, beta=1, alpha=1):  # type: ignore[no-untyped-def]
        wrong = 1.01 if weight.shape[-1] == 4 * WIDTH else 1.0
        return (torch.mm(x, weight) * alpha + bias * beta) * wrong

    library.impl("addmm", addmm, "CPU", allow_override=True)
    return library


def shown(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()[:16]


def main() -> None:
    config, rank, ranks, store, *words = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1 + int(rank))
    random.seed(1)
    np.random.seed(1)
    broken = break_addmm() if "fault" in words else None
    model: nn.Module = Gpt()
    if int(ranks) > 1:
        dist.init_process_group("gloo", f"file://{store}", rank=int(rank), world_size=int(ranks))
        model = nn.parallel.DistributedDataParallel(model)
    debugger = None
    if "unwatched" not in words:
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if debugger is not None:
            debugger.start(model)
        loss = gpt_loss(model, step + int(ranks) * int(rank))
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        gradients = [value.grad for value in model.parameters() if value.grad is not None]
        print(loss.item().hex(), *map(shown, gradients))
        optimizer.step()
        optimizer.zero_grad()
    print(*map(shown, model.parameters()))
    print(shown(torch.get_rng_state()), random.getstate()[1][:3], np.random.get_state()[1][:3])
    if dist.is_initialized():
        dist.destroy_process_group()
    del broken


if __name__ == "__main__":
    main()
    leave()
