"""Making a run repeatable: the random states of MindSpore, deterministic kernels, dropout."""

from __future__ import annotations

import functools
import os
from typing import Any

import mindspore
from mindspore import mint, ops

from msprobe.adapter import Undo
from msprobe.capture.patch import replace, together
from msprobe.capture.seeds import fix_seeds
from msprobe.log import logger

# The primitives that all dropouts of mindspore.nn and mindspore.ops are made of.
_PRIMITIVES = ("Dropout", "Dropout2D", "Dropout3D")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Fix every random state that training draws from; `mode` asks for deterministic kernels."""
    fix_seeds(seed, mode, rm_dropout)
    mindspore.set_seed(seed)
    if mode:
        os.environ["HCCL_DETERMINISTIC"] = "true"
        mindspore.set_deterministic(True)
    if rm_dropout:
        remove_dropout()


def remove_dropout() -> Undo:
    """Let every dropout that is made from now on drop nothing, whatever it is asked for."""
    logger().info("dropout is switched off so that two runs can be compared.")
    return together(
        *(functools.partial(_keep_all, getattr(ops, name)) for name in _PRIMITIVES),
        lambda: replace(mint.nn.Dropout, "__init__", _made_without),
        lambda: replace(mint.nn.functional, "dropout", _without),
    )


def _keep_all(primitive: type) -> Undo:
    def make(init: Any) -> Any:
        @functools.wraps(init)
        def keep_all(self: Any, keep_prob: float = 0.5, *args: Any, **kwargs: Any) -> None:
            init(self, 1.0, *args, **kwargs)

        return keep_all

    return replace(primitive, "__init__", make)


def _made_without(init: Any) -> Any:
    @functools.wraps(init)
    def keep_all(self: Any, p: float = 0.5, *args: Any, **kwargs: Any) -> None:
        init(self, 0.0, *args, **kwargs)

    return keep_all


def _without(dropout: Any) -> Any:
    def keep_all(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return input  # asked to drop nothing it would still need a kernel that only Ascend has

    named = functools.update_wrapper(keep_all, dropout)
    del named.__wrapped__  # a graph would be compiled from what it wraps
    return named
