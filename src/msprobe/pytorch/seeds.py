"""Making a run repeatable: random states, deterministic algorithms, dropout."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.nn import functional

from msprobe.adapter import Undo
from msprobe.capture.seeds import fix_seeds
from msprobe.log import logger
from msprobe.pytorch.exchange import exchange

# Specified by name: seed_all switches off these and no other.
_DROPOUTS = ("dropout", "dropout2d", "dropout3d")
_MARK = "_msprobe_drops_nothing"


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Fix every random state that training draws from; `mode` asks torch for deterministic algorithms."""
    fix_seeds(seed, mode, rm_dropout)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.enable = False  # type: ignore[attr-defined]  # the documented name; torch reads the next one
    torch.backends.cudnn.enabled = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    npu: Any = sys.modules.get("torch_npu")
    if npu is not None:
        npu.npu.manual_seed(seed)
        npu.npu.manual_seed_all(seed)
    if mode:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ["HCCL_DETERMINISTIC"] = "True"
        torch.use_deterministic_algorithms(True)
    if rm_dropout:
        remove_dropout()


def remove_dropout() -> Undo:
    """Let F.dropout, dropout2d and dropout3d (and so nn.Dropout*) drop nothing, whatever p they are given."""
    undo = []
    for name in _DROPOUTS:
        function: Any = getattr(functional, name)
        if not hasattr(function, _MARK):
            undo.append(_without_dropping(function))
    if undo:
        logger().info(
            'dropout is switched off (p = 0) so that two runs can be compared; "rm_dropout": false keeps it.'
        )

    def undo_all() -> None:
        while undo:
            undo.pop()()

    return undo_all


def _without_dropping(function: Any) -> Undo:
    def keep_all(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return exchanged.original(input, 0.0, training, inplace)

    exchanged = exchange(function, keep_all)
    setattr(function, _MARK, True)

    def undo() -> None:
        exchanged.undo()
        delattr(function, _MARK)

    return undo
