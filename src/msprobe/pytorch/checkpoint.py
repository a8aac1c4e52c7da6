"""Activation checkpointing: tells the first run of checkpointed code from the runs that backward makes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

from msprobe.adapter import Region, Undo
from msprobe.capture.patch import replace, together
from msprobe.capture.rerun import FirstThenRerun, Rerun, Visible

# Classes whose forward(ctx, run_function, ...) keeps run_function for backward, if they are imported already.
_REENTRANT = (
    ("torch.utils.checkpoint", "CheckpointFunction"),
    ("megatron.core.tensor_parallel.random", "CheckpointFunction"),
)
_GENERATOR = "_checkpoint_without_reentrant_generator"


def watch_checkpoints(region: Region, visible: Visible) -> Undo:
    """Follow checkpointed code from here on; code checkpointed meanwhile is followed until its graph dies."""

    def keeping(original: Callable[..., Any]) -> Any:
        def forward(ctx: Any, run_function: Callable[..., Any], *args: Any) -> Any:
            return original(ctx, FirstThenRerun(run_function, region, visible), *args)

        return staticmethod(forward)

    def beginning(original: Callable[..., Any]) -> Callable[..., Any]:
        def generator(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return original(Rerun(fn, region, visible), *args, **kwargs)

        return generator

    kinds = [getattr(sys.modules.get(module), name, None) for module, name in _REENTRANT]
    changes = [(kind, "forward", keeping) for kind in kinds if kind is not None]
    if hasattr(torch.utils.checkpoint, _GENERATOR):
        changes.append((torch.utils.checkpoint, _GENERATOR, beginning))
    return together(*(functools.partial(replace, *change) for change in changes))
