"""Recorded training of one of the nets, sound or with a fault, and what comparing two of them names."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from culprit_faults import (
    Fault,
    dropped_rows,
    in_bfloat16,
    negated,
    not_a_number,
    permuted_rows,
    scaled,
    stale,
    wrong_eps,
    wrong_mask,
)
from culprit_nets import NETS

from msprobe.compare import compare
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch import debugger as door
from msprobe.verdict.locate import Divergence, overall

STEPS = 1
TASKS = ("tensor", "sketch", "statistics")


class Case(NamedTuple):
    """A fault in a net, and the record that must be named first."""

    bug: str
    net: str
    fault: Fault
    culprit: str


def cases() -> list[Case]:
    found = []
    for net, bugs in _CASES.items():
        found += [Case(bug, net, Fault(*fault), culprit) for bug, (*fault, culprit) in bugs.items()]
    return found


_CASES: dict[str, dict[str, tuple[Any, ...]]] = {
    "transformer": {
        "wrong eps": ("aten.native_layer_norm", 2, wrong_eps(4), "Functional.layer_norm.2.forward"),
        "1 % scale": ("aten._softmax", 1, scaled(1.01), "Functional.softmax.1.forward"),
        "dropped rows": ("aten.addmm", 4, dropped_rows, "Functional.linear.4.forward"),
        "permuted rows": ("aten.native_layer_norm", 3, permuted_rows, "Functional.layer_norm.3.forward"),
        "wrong mask": ("aten.masked_fill", 1, wrong_mask(1), "Tensor.masked_fill.1.forward"),
        "computed in bf16": ("aten.bmm", 2, in_bfloat16, "Torch.matmul.2.forward"),
        "wrong gradient sign": ("aten.gelu_backward", 1, negated, "Functional.gelu.1.backward"),
        "stale buffer": ("aten.gelu", 1, stale, "Functional.gelu.1.forward"),
        "NaN producer": ("aten.gelu", 2, not_a_number, "Functional.gelu.2.forward"),
    },
    "convolutional": {
        "wrong eps": ("aten.native_batch_norm", 1, wrong_eps(7), "Functional.batch_norm.1.forward"),
        "1 % scale": ("aten.convolution", 2, scaled(1.01), "Functional.conv2d.2.forward"),
        "dropped rows": ("aten.relu", 1, dropped_rows, "Functional.relu.1.forward"),
        "permuted rows": ("aten.convolution", 3, permuted_rows, "Functional.conv2d.3.forward"),
        "wrong mask": ("aten.masked_fill", 0, wrong_mask(1), "Tensor.masked_fill.0.forward"),
        "computed in bf16": ("aten.convolution", 1, in_bfloat16, "Functional.conv2d.1.forward"),
        "wrong gradient sign": (
            "aten.native_batch_norm_backward", 1, negated, "Functional.batch_norm.2.backward"
        ),
        "stale buffer": ("aten.relu", 2, stale, "Functional.relu.2.forward"),
        "NaN producer": ("aten.avg_pool2d", 0, not_a_number, "Functional.avg_pool2d.0.forward"),
    },
    "recurrent": {
        "wrong eps": ("aten.native_layer_norm", 0, wrong_eps(4), "Functional.layer_norm.0.forward"),
        "1 % scale": ("aten.tanh", 3, scaled(1.01), "Torch.tanh.3.forward"),
        "dropped rows": ("aten.addmm", 7, dropped_rows, "Functional.linear.7.forward"),
        "permuted rows": ("aten.sigmoid", 4, permuted_rows, "Torch.sigmoid.4.forward"),
        "wrong mask": ("aten.masked_fill", 0, wrong_mask(1), "Tensor.masked_fill.0.forward"),
        "computed in bf16": ("aten.addmm", 5, in_bfloat16, "Functional.linear.5.forward"),
        "wrong gradient sign": ("aten.tanh_backward", 5, negated, "Torch.tanh.4.backward"),
        "stale buffer": ("aten.addmm", 9, stale, "Functional.linear.9.forward"),
        "NaN producer": ("aten.sigmoid", 6, not_a_number, "Torch.sigmoid.6.forward"),
    },
}  # fmt: skip


def record(
    folder: Path,
    net: str,
    task: str,
    *,
    modes: tuple[Any, ...] = (),
    dtype: torch.dtype = torch.float32,
    level: str = "L1",
    adam: bool = False,
    autocast: bool = False,
) -> Path:
    """Train for a few steps; `modes` stand below the recorder."""
    torch.manual_seed(7)
    model = NETS[net]().to(dtype)
    parameters = model.parameters()
    optimizer = torch.optim.Adam(parameters, lr=3e-3) if adam else torch.optim.SGD(parameters, lr=0.05)
    config = {"task": "tensor" if task == "tensor" else "statistics", "level": level, "rm_dropout": False}
    section: dict[str, Any] = {"summary_mode": "sketch"} if task == "sketch" else {}
    debugger = make_debugger(folder, config, section)
    random = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        debugger.start(model)
        with contextlib.ExitStack() as active:
            for mode in modes:
                mode.step()
                active.enter_context(mode)
            active.enter_context(torch.autocast("cpu", torch.bfloat16, enabled=autocast))
            loss = model.loss(random)  # type: ignore[operator]
            loss.backward()
        debugger.stop()
        debugger.step()
        optimizer.step()
        optimizer.zero_grad()
    close()
    return folder


def make_debugger(folder: Path, config: dict[str, Any], section: dict[str, Any]) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".json")
    whole = {**config, "dump_path": str(folder), config["task"]: section}
    file.write_text(json.dumps(whole))
    return PrecisionDebugger(str(file))


def close() -> None:
    """Leave no debugger behind."""
    try:
        door._the.get().close()
    except door.UsageError:
        return
    door._the.clear()


def culprit_of(target: Path, golden: Path) -> Divergence | None:
    return overall([comparison.located for comparison in compare(target, golden)])
