"""Which part of a training step a call belongs to: the model, the optimizer, or the clipping of gradients."""

from __future__ import annotations

import functools
import re
from typing import Final

from msprobe.record import Record

MODEL: Final = "the model"
OPTIMIZER: Final = "the optimizer"
# What recordings have as the parent of a call that no module made.
_GROUPS = {"optimizer": OPTIMIZER, "clip_grad": "the clipping of gradients"}
_OPTIMIZER = re.compile(r"/(?:torch|mindspore(?:/\w+)*)/optim/")


def part_of(record: Record) -> str:
    """Return the part of the step that made a call, by its parent or its call stack; empty if unknown."""
    if record.parent in _GROUPS:
        return _GROUPS[record.parent]
    if record.parent is not None:
        return MODEL
    if record.stack is None or not record.stack.frames:
        return MODEL if record.name.is_module else ""
    return OPTIMIZER if _is_in_optimizer(record.stack.frames) else MODEL


@functools.lru_cache(maxsize=65_536)
def _is_in_optimizer(frames: tuple[str, ...]) -> bool:
    return any(map(_OPTIMIZER.search, frames))


def are_of_unlike_parts(ours: Record, theirs: Record) -> bool:
    """Whether two calls are known to belong to different parts of the step."""
    return are_unlike_parts(part_of(ours), part_of(theirs))


def are_unlike_parts(ours: str, theirs: str) -> bool:
    """Whether two parts are known and differ."""
    return ours != "" and theirs != "" and ours != theirs
