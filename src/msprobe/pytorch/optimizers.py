"""What optimizers keep from step to step, as they begin a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from msprobe.adapter import OptimizerState, Undo

# Older releases have no hooks for all optimizers: there the state has no name.
_register = getattr(optimizers, "register_optimizer_step_pre_hook", None)
_is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", lambda: False)


def watch_optimizers(optimizes: Callable[[Iterable[OptimizerState]], None]) -> Undo:
    """Tell of the state of each optimizer before its step."""
    if _register is None:
        return lambda: None

    def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not _is_compiling():
            optimizes(_states(optimizer))

    undo: Undo = _register(before_step).remove
    return undo


def _states(optimizer: torch.optim.Optimizer) -> Iterator[OptimizerState]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, kept in optimizer.state.get(parameter, {}).items():
                if isinstance(kept, torch.Tensor):
                    yield OptimizerState(str(name), parameter, kept)
