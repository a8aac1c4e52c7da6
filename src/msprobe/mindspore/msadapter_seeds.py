"""Making a run repeatable where torch computes with MindSpore: the random states and the dropout of both."""

from __future__ import annotations

import functools
import sys
from typing import Any

from msprobe.adapter import Undo
from msprobe.capture.patch import replace, together
from msprobe.mindspore import msadapter_apis, seeds

# The functions of torch.nn.functional that the adapter has, and that all its dropouts call.
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Fix every random state that training draws from; `mode` asks for deterministic kernels."""
    seeds.seed_all(seed, mode, rm_dropout)
    torch: Any = sys.modules["torch"]
    torch.manual_seed(seed)
    if rm_dropout:
        remove_dropout(torch)


def remove_dropout(torch: Any) -> Undo:
    """Let torch's dropout (and so its layers) drop nothing, whatever it is asked for."""
    return together(
        *(
            functools.partial(replace, holder, name, _without)
            for name in _DROPOUTS
            for holder in msadapter_apis.holders(torch, "torch.nn.functional", name)
        )
    )


def _without(dropout: Any) -> Any:
    @functools.wraps(dropout)
    def keep_all(input: Any, p: float = 0.5, *args: Any, **kwargs: Any) -> Any:
        return dropout(input, 0.0, *args, **kwargs)

    return keep_all
