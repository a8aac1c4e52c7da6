"""Train one run with the recorder on, and leave its recording in a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from truth.cases import MODES, Run, beside

SEED = 7


def configure(run: Run, mode: str, folder: Path) -> str:
    """Write config.json beside the folder of the recording, and return its path."""
    level, task, summary = MODES[mode]
    folder.mkdir(parents=True, exist_ok=True)
    path = beside(folder, ".config.json")
    config = {
        "task": task,
        "dump_path": str(folder),
        "level": level,
        "rm_dropout": False,
        "statistics": {"summary_mode": summary},
        **dict(run.config),
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def record(run: Run, mode: str, folder: Path) -> None:
    """Record all steps of a run, with each of its ranks in a process of its own."""
    config = configure(run, mode, folder)
    if run.record is not None:
        run.record(config)
    elif run.ranks == 1:
        _train(run, config)
    else:
        _train_ranks(run, config, folder)


def _train(run: Run, config: str) -> None:
    import torch

    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(SEED)
    model, step = run.make()
    debugger = PrecisionDebugger(config)
    for number in range(run.steps):
        torch.manual_seed(SEED + 13 + number)
        debugger.start(model)
        step(number)
        debugger.stop()
        debugger.step()


def _train_ranks(run: Run, config: str, folder: Path) -> None:
    """Fork a process for each rank; they meet through a file and talk over the loopback interface."""
    import torch.distributed as dist

    meeting = beside(folder, ".meeting")
    meeting.unlink(missing_ok=True)
    children = []
    for rank in range(run.ranks):
        child = os.fork()
        if not child:
            try:
                dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=run.ranks)
                _train(run, config)
                dist.barrier()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    if len(list(folder.glob("step0/rank*/dump.json"))) != run.ranks:
        raise RuntimeError(f"{run.name}: not every rank has left a recording")
