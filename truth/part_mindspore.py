"""Part `mindspore`: one wrong kernel in a MindSpore run beside a sound MindSpore run, both in dynamic graphs.

The nets are those of porting_mindspore.py; mindspore_kernels.py says how a kernel is made wrong, forward and
backward. float32 and float16 only: the CPU kernels of MindSpore have no bfloat16.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any, NamedTuple

from truth.cases import MIX, Pair, Run, Suite
from truth.part_ports import unavailable

__all__ = ["prepare", "suite", "unavailable"]
SOURCES = (
    "cases.py",
    "mindspore_kernels.py",
    "part_mindspore.py",
    "porting.py",
    "porting_mindspore.py",
    "recording.py",
)
FAULTS, SOUND = "kernel faults, MindSpore", "sound kernels, MindSpore"
DTYPES = ("float32", "float16")


class Row(NamedTuple):
    """A wrong kernel of one net: which call of it, what it does, and the recorded call it belongs to."""

    net: str
    name: str
    kernel: str
    number: int
    change: str  # a function of mindspore_kernels, with its argument if it has one
    culprit: str
    gradient: int | None = None


ROWS = (
    Row("encoder", "up_2%", "MatMul", 4, "scaled 1.02", r"MatMul\.4\.forward"),
    Row("encoder", "gelu_5%", "gelu", 1, "scaled 1.05", r"Functional\.gelu\.1\.forward"),
    Row("encoder", "softmax_rolled", "softmax", 0, "rolled", r"Functional\.softmax\.0\.forward"),
    Row("encoder", "heads_swapped", "matmul", 2, "heads_swapped", r"Functional\.matmul\.2\.forward"),
    Row("encoder", "norm_shifted", "LayerNorm", 3, "shifted 0.02", r"LayerNorm\.3\.forward"),
    Row("encoder", "project_row", "MatMul", 9, "row_dropped", r"MatMul\.9\.forward"),
    Row("encoder", "down_element", "MatMul", 5, "one_element", r"MatMul\.5\.forward"),
    Row("encoder", "bias_sign", "BiasAdd", 10, "negated", r"BiasAdd\.10\.forward"),
    Row("encoder", "words_row", "Gather", 0, "row_dropped", r"Gather\.0\.forward"),
    Row("encoder", "query_tile", "MatMul", 0, "tile_stale", r"MatMul\.0\.forward"),
    Row("encoder", "loss_2%", "cross_entropy", 0, "scaled 1.02", r"Functional\.cross_entropy\.0\.forward"),
    Row("encoder", "up_back_2%", "MatMul", 10, "scaled 1.02", r"MatMul\.10\.backward", 0),
    Row("encoder", "softmax_back_sign", "softmax", 1, "negated", r"Functional\.softmax\.1\.backward", 0),
    Row("encoder", "norm_back_5%", "LayerNorm", 3, "scaled 1.05", r"LayerNorm\.3\.backward", 0),
    Row("encoder", "matmul_back_row", "matmul", 3, "row_dropped", r"Functional\.matmul\.3\.backward", 0),
    Row(
        "encoder",
        "down_weight_grad",
        "MatMul",
        11,
        "scaled 1.2",
        r"MatMul\.11\.backward|layers\.1\.down\.Dense\.parameters_grad",
        1,
    ),
    Row("conv", "conv_2%", "Conv2D", 1, "scaled 1.02", r"Conv2D\.1\.forward"),
    Row("conv", "conv_rows", "Conv2D", 0, "rows_swapped", r"Conv2D\.0\.forward"),
    Row("conv", "norm_shifted", "BatchNorm", 1, "shifted 0.02", r"BatchNorm\.1\.forward"),
    Row("conv", "relu_element", "ReLU", 1, "one_element", r"ReLU\.1\.forward"),
    Row("conv", "pool_row", "MaxPool", 0, "row_dropped", r"MaxPool\.0\.forward"),
    Row("conv", "mean_5%", "mean", 0, "scaled 1.05", r"Functional\.mean\.0\.forward"),
    Row("conv", "conv_back_5%", "Conv2D", 1, "scaled 1.05", r"Conv2D\.1\.backward", 0),
    Row("conv", "norm_back_sign", "BatchNorm", 1, "negated", r"BatchNorm\.1\.backward", 0),
)


def _record(net: str, dtype: str, row: Row | None, rounds_otherwise: bool, config: str) -> None:
    from truth import mindspore_kernels as k

    fault = None
    if row is not None:
        name, _, size = row.change.partition(" ")
        change = getattr(k, name)(float(size)) if size else getattr(k, name)
        fault = k.Fault(row.kernel, row.number, change, row.gradient)
    k.record(net, dtype, fault, rounds_otherwise, config)


def prepare() -> None:
    """Import what every run needs; nothing is computed, so that the process can still be forked."""
    for name in ("msprobe.mindspore", "truth.mindspore_kernels", "truth.porting_mindspore"):
        importlib.import_module(name)


def suite() -> Suite:
    """Every fault in float32, everything else bit-equal; half of them in float16, and with other rounding."""
    made = Suite({}, [], SOURCES)
    for dtype in DTYPES:
        for net in dict.fromkeys(row.net for row in ROWS):
            golden = _run(made, net, dtype, None, False)
            again = made.add(made.runs[golden]._replace(name=f"{golden}.again"))
            other = _run(made, net, dtype, None, True)
            made.pairs.extend(Pair(SOUND, each, each, golden, modes=MIX) for each in (again, other))
    for number, row in enumerate(ROWS):
        ways = [("float32", False), ("float32" if number % 2 else "float16", number % 2 == 1)]
        for dtype, rounds_otherwise in ways:
            target = _run(made, row.net, dtype, row, rounds_otherwise)
            golden = _run(made, row.net, dtype, None, False)
            made.pairs.append(Pair(FAULTS, target, target, golden, row.culprit, modes=MIX))
    return made


def _run(made: Suite, net: str, dtype: str, row: Row | None, rounds_otherwise: bool) -> str:
    name = f"{net}.{dtype}.{row.name if row else 'sound'}.{'either_way' if rounds_otherwise else 'exact'}"
    record = partial(_record, net, dtype, row, rounds_otherwise)
    return made.add(Run(name, _unused, record=record, python="mindspore"))


def _unused() -> Any:
    raise AssertionError("this run is recorded in its own way")
