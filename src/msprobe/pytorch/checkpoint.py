"""Activation checkpointing: tells the first run of checkpointed code from the runs that backward makes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch.utils.checkpoint

from msprobe.adapter import Region, Undo
from msprobe.capture.patch import replace, together

# Classes whose forward(ctx, run_function, ...) keeps run_function for backward, if they are imported already.
_REENTRANT = (
    ("torch.utils.checkpoint", "CheckpointFunction"),
    ("megatron.core.tensor_parallel.random", "CheckpointFunction"),
)
_GENERATOR = "_checkpoint_without_reentrant_generator"


class _Again:
    """Stands for checkpointed code: every run that backward makes is told to the region."""

    def __init__(
        self,
        function: Callable[..., Any],
        region: Region,
        visible: Callable[[], AbstractContextManager[None]],
    ):
        self._function = function
        self._region = region
        self._visible = visible
        self._mark = region.mark()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._visible(), self._region.again(self._mark):
            return self._function(*args, **kwargs)


class _FirstThenAgain(_Again):
    """The same, where the first run comes through this object too."""

    def __init__(
        self,
        function: Callable[..., Any],
        region: Region,
        visible: Callable[[], AbstractContextManager[None]],
    ):
        super().__init__(function, region, visible)
        self._ran = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._ran:
            return super().__call__(*args, **kwargs)
        self._ran = True
        return self._function(*args, **kwargs)


def watch_checkpoints(region: Region, visible: Callable[[], AbstractContextManager[None]]) -> Undo:
    """Follow checkpointed code from here on; code checkpointed meanwhile is followed until its graph dies."""

    def keeping(original: Callable[..., Any]) -> Any:
        def forward(ctx: Any, run_function: Callable[..., Any], *args: Any) -> Any:
            return original(ctx, _FirstThenAgain(run_function, region, visible), *args)

        return staticmethod(forward)

    def beginning(original: Callable[..., Any]) -> Callable[..., Any]:
        def generator(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return original(_Again(fn, region, visible), *args, **kwargs)

        return generator

    kinds = [getattr(sys.modules.get(module), name, None) for module, name in _REENTRANT]
    changes = [(kind, "forward", keeping) for kind in kinds if kind is not None]
    if hasattr(torch.utils.checkpoint, _GENERATOR):
        changes.append((torch.utils.checkpoint, _GENERATOR, beginning))
    return together(*(functools.partial(replace, *change) for change in changes))
