"""What each of two workers does; test_msa_ranks.py has msrun start both with `msa_worker.py FOLDER`."""

import sys
from pathlib import Path

import mindtorch
import numpy as np
import torch
import torch.distributed as dist

from msprobe.mindspore import PrecisionDebugger

FOLDER = Path(sys.argv[1])


def main() -> None:
    dist.init_process_group("mccl")
    shared = torch.tensor(np.full((2,), dist.get_rank() + 1.0, np.float32))
    debugger = PrecisionDebugger(task="tensor", dump_path=str(FOLDER / "dump"), level="L1")
    debugger.start()
    try:
        dist.all_reduce(shared)
    except Exception as error:  # mindtorch communicates between Ascend devices only
        (FOLDER / f"refused{dist.get_rank()}.txt").write_text(f"{type(error).__name__}: {error}")
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    assert sys.modules["torch"].Tensor is mindtorch.Tensor
    main()
