"""A worker on a machine with faults: one API crashes, one hangs, Linear is wrong by 1 % in float32."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from msprobe.name import CallName
from msprobe.pytorch.worker import CheckedTorch
from msprobe.pytorch.worker import main as serve


def crash(*_args: Any, **_kwargs: Any) -> None:
    os.abort()


def hang(*_args: Any, **_kwargs: Any) -> None:
    time.sleep(3600)


class Faulty(CheckedTorch):
    def function_of(self, name: CallName) -> Callable[..., Any] | None:
        function = super().function_of(name)
        if name.api == "softmax":
            return crash
        if name.api == "gelu":
            return hang
        if name.api == "linear" and function is not None:
            return lambda x, *args, **kwargs: (
                function(x, *args, **kwargs) * (1.01 if x.dtype is torch.float32 else 1.0)
            )
        return function


def main() -> None:
    serve(Faulty())
