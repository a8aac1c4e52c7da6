"""The process that calls recorded APIs again: one line of JSON comes in for each call, one goes out.

It is started by `main` alone. Whatever a called function prints goes to the error stream, for the output
stream belongs to the answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch

from msprobe.precheck.calls import Skip, Skipped
from msprobe.precheck.protocol import serve
from msprobe.pytorch import apis
from msprobe.pytorch.replay import TorchReplay
from msprobe.record import Leaf

_SEED = 1234
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_ACCELERATORS = ("npu", "cuda")
_OOM_SCORE = Path("/proc/self/oom_score_adj")


class CheckedTorch(TorchReplay):
    """PyTorch, as far as the pre-check needs it."""

    def apis(self) -> list[str]:
        return sorted({name for names in apis.read_list(apis.SUPPORT_LIST).values() for name in names})

    def device(self, index: int) -> str:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch_npu")  # which puts torch.npu in its place
        for name in _ACCELERATORS:
            module = getattr(torch, name, None)
            if module is not None and module.is_available():
                if index >= module.device_count():
                    raise ValueError(
                        f"There is no device {name}:{index}; this machine has {module.device_count()}."
                    )
                module.init()
                return f"{name}:{index}"
        return "cpu"

    def special(self, leaf: Leaf, device: str, raised: Callable[[str], str]) -> Any:
        make = _SPECIAL.get(leaf.type)
        if make is None:
            raise Skipped(Skip.LOST_ARGUMENT, f"It is a {leaf.type}.")
        try:
            return make(leaf, device, raised)
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise Skipped(Skip.LOST_ARGUMENT, f"{leaf.type}: {error}") from None

    def drew(self, before: Any) -> bool:
        host, devices, _ = self.randomness()
        same = torch.equal(host, before[0]) and devices.keys() == before[1].keys()
        return not same or any(
            not torch.equal(now, then)
            for device in devices
            for now, then in zip(devices[device], before[1][device], strict=True)
        )


def _dtype(leaf: Leaf, _device: str, raised: Callable[[str], str]) -> torch.dtype:
    name = raised(str(leaf.value).removeprefix("torch."))
    found = vars(torch).get(name)  # torch itself would import whole packages of other names
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} is no dtype")
    return found


def _memory_format(leaf: Leaf, *_: Any) -> torch.memory_format:
    found = vars(torch).get(str((leaf.extra or {}).get("format")))
    if not isinstance(found, torch.memory_format):
        raise ValueError("no such memory format")
    return found


def _scalar(kind: str) -> Callable[..., Any]:
    import numpy as np

    return lambda leaf, *_: np.dtype(kind).type(leaf.value)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "torch.dtype": _dtype,
    "torch.device": lambda _leaf, device, _raised: torch.device(device),
    "torch.Size": lambda leaf, *_: torch.Size(leaf.value),
    "torch.memory_format": _memory_format,
    "complex": lambda leaf, *_: complex(leaf.value),
    "slice": lambda leaf, *_: slice(*leaf.value),
    "ellipsis": lambda *_: Ellipsis,
    **{
        kind: _scalar(kind)
        for kind in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
    },
}


def main(replay: CheckedTorch | None = None) -> None:
    """Serve until the input ends."""
    answers = _own_output()
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    _offer_to_die()
    torch.manual_seed(_SEED)
    serve(sys.stdin, answers, replay or CheckedTorch(), torch.set_num_threads)


def _offer_to_die() -> None:
    """If memory runs out the system ends this process, which costs one call, and not the check itself."""
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text("1000")


def _own_output() -> TextIO:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    main()
