"""Part `kernels`: one wrong kernel below the recorder, over nets, dtypes and directions, in three roundings.

What may be named follows from the net's source: calls of one kind are numbered in forward order, kernels of a
backward pass run in the opposite order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from truth import kernel_faults as k
from truth.cases import ALL_MODES, MIX, Pair, Run, Suite, Training
from truth.nets import NETS

SOURCES = ("cases.py", "kernel_faults.py", "nets.py", "part_kernels.py", "recording.py")
DTYPES = ("float32", "bfloat16", "float16", "autocast")
# A wrong factor that the dtype can just show, a clear one, and a change beside the size of the values.
SLIGHT = {"float32": 1.001, "float16": 1.004, "bfloat16": 1.01, "autocast": 1.01}
SHIFT = {"float32": 0.001, "float16": 0.005, "bfloat16": 0.02, "autocast": 0.02}
LOST = {"float32": 0.002, "float16": 0.02, "bfloat16": 0.05, "autocast": 0.05}
# Five bits fewer than half precision has; float32 computed as TF32.
COARSE = {"float32": 10, "float16": 5, "bfloat16": 2, "autocast": 2}


class Row(NamedTuple):
    """A wrong kernel of one net: which call of it, what it does, and the recorded call it belongs to."""

    name: str
    kernel: str
    number: int
    change: str  # a function of kernel_faults, or one of the sizes above
    culprit: str
    output: int = 0


FLASH = "_scaled_dot_product_flash_attention_for_cpu"
ROWS = {
    "transformer": (
        Row("up_slight", "addmm", 6, "slight", r"Functional\.linear\.6\.forward"),
        Row("gelu_5%", "gelu", 1, "scaled 1.05", r"Functional\.gelu\.1\.forward"),
        Row("softmax_rolled", "_softmax", 1, "rolled", r"Torch\.softmax\.1\.forward"),
        Row("heads_swapped", "bmm", 1, "heads_swapped", r"Torch\.matmul\.1\.forward"),
        Row("norm_shifted", "native_layer_norm", 3, "shifted", r"Functional\.layer_norm\.3\.forward"),
        Row("sdpa_row", FLASH, 0, "row_dropped", r"scaled_dot_product_attention\.0\.forward"),
        Row("out_channels", "addmm", 9, "channels", r"Functional\.linear\.9\.forward"),
        Row("down_element", "addmm", 3, "one_element", r"Functional\.linear\.3\.forward"),
        Row("down_coarse", "addmm", 7, "coarse", r"Functional\.linear\.7\.forward"),
        Row("norm_term", "native_layer_norm", 6, "lost", r"Functional\.layer_norm\.6\.forward"),
        Row("gelu_back_slight", "gelu_backward", 1, "slight", r"Functional\.gelu\.1\.backward"),
        Row("norm_back_2%", "native_layer_norm_backward", 2, "scaled 1.02", r"layer_norm\.4\.backward"),
        Row("softmax_back_sign", "_softmax_backward_data", 0, "negated", r"Torch\.softmax\.1\.backward"),
        Row("linear_back_tile", "mm", 12, "tile_zero", r"linear\.6\.backward|up\.Linear\.parameters_grad"),
        Row("matmul_back_row", "bmm", 8, "row_dropped", r"Torch\.matmul\.1\.backward"),
        Row(
            "norm_weight_grad",
            "native_layer_norm_backward",
            3,
            "scaled 1.2",
            r"layer_norm\.3\.backward|norm2\.LayerNorm\.parameters_grad",
            1,
        ),
        Row("qkv_tile_stale", "addmm", 0, "tile_stale", r"Functional\.linear\.0\.forward"),
        Row("loss_2%", "_log_softmax", 0, "scaled 1.02", r"Functional\.cross_entropy\.0\.forward"),
    ),
    "conv": (
        Row("conv_slight", "convolution", 1, "slight", r"Functional\.conv2d\.1\.forward"),
        Row("conv_rows", "convolution", 2, "rows_swapped", r"Functional\.conv2d\.2\.forward"),
        Row("norm_shifted", "native_batch_norm", 1, "shifted", r"Functional\.batch_norm\.1\.forward"),
        Row("silu_5%", "silu", 0, "scaled 1.05", r"Functional\.silu\.0\.forward"),
        Row("pool_row", "avg_pool2d", 0, "row_dropped", r"avg_pool2d\.0\.forward"),
        Row("conv_channels", "convolution", 3, "channels_1", r"Functional\.conv2d\.3\.forward"),
        Row("tanh_element", "tanh", 0, "one_element", r"Torch\.tanh\.0\.forward"),
        Row("mean_5%", "mean", 0, "scaled 1.05", r"Tensor\.mean\.0\.forward"),
        Row("conv_back_slight", "convolution_backward", 1, "slight", r"Functional\.conv2d\.2\.backward"),
        Row(
            "conv_weight_grad",
            "convolution_backward",
            2,
            "scaled 1.05",
            r"conv2d\.1\.backward|conv1\.Conv2d\.parameters_grad",
            1,
        ),
        Row("norm_back_sign", "native_batch_norm_backward", 1, "negated", r"batch_norm\.1\.backward"),
        Row("silu_back_rolled", "silu_backward", 0, "rolled", r"Functional\.silu\.0\.backward"),
    ),
    "recurrent": (
        Row("gates_slight", "addmm", 6, "slight", r"Functional\.linear\.6\.forward"),
        Row("sigmoid_rolled", "sigmoid", 4, "rolled", r"Torch\.sigmoid\.4\.forward"),
        Row("tanh_element", "tanh", 2, "one_element", r"Torch\.tanh\.2\.forward"),
        Row("lstm_5%", "mkldnn_rnn_layer", 0, "scaled 1.05", r"VF\.lstm\.0\.forward"),
        Row("tanh_back_slight", "tanh_backward", 3, "slight", r"Torch\.tanh\.4\.backward"),
        Row("lstm_back_5%", "mkldnn_rnn_layer_backward", 0, "scaled 1.05", r"VF\.lstm\.0\.backward"),
    ),
    "gru": (
        Row("tanh_5%", "tanh_", 9, "scaled 1.05", r"Torch\.gru\.0\.forward"),
        Row("sigmoid_back_sign", "sigmoid_backward", 7, "negated", r"Torch\.gru\.0\.backward"),
    ),
    "wide": (
        Row("gelu_slight", "gelu", 0, "slight", r"Functional\.gelu\.0\.forward"),
        Row("linear_channels", "mm", 0, "channels", r"Functional\.linear\.0\.forward"),
        Row("linear_element", "mm", 0, "one_element", r"Functional\.linear\.0\.forward"),
        Row("linear_row", "mm", 0, "row_dropped", r"Functional\.linear\.0\.forward"),
        Row("gelu_shifted", "gelu", 0, "shifted", r"Functional\.gelu\.0\.forward"),
        Row("gelu_back_1%", "gelu_backward", 0, "scaled 1.01", r"Functional\.gelu\.0\.backward"),
    ),
}


# These ask that nothing but one kernel computes an LSTM: other kernels of the same names would fail first.
LSTM_ROWS = ("lstm_5%", "lstm_back_5%", "tanh_back_slight")


def change_of(name: str, dtype: str) -> k.Change:
    """The function that a row names; sizes that depend on the dtype come from the tables above."""
    if name.startswith("scaled "):
        return k.scaled(float(name.split()[1]))
    sized = {
        "slight": lambda: k.scaled(SLIGHT[dtype]),
        "shifted": lambda: k.shifted(SHIFT[dtype]),
        "lost": lambda: k.term_lost(LOST[dtype]),
        "coarse": lambda: k.coarser(COARSE[dtype]),
        "channels": lambda: k.channels_in_turn(0.03),
        "channels_1": lambda: k.channels_in_turn(0.03, 1),
    }
    change: k.Change = sized[name]() if name in sized else getattr(k, name)
    return change


def train(net: str, dtype: str, rounding: str, row: Row | None) -> Training:
    """One step of a net with such kernels."""
    model = NETS[net]()
    if dtype != "autocast":
        model = model.to(getattr(torch, dtype))
    fault = None if row is None else k.Fault(row.kernel, row.number, change_of(row.change, dtype), row.output)

    def step(number: int) -> None:
        with k.kernels(rounding, fault):
            with _computing(dtype):
                loss = model.loss()
            loss.backward()

    return model, step


@contextlib.contextmanager
def _computing(dtype: str) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16) if dtype == "autocast" else contextlib.nullcontext():
        yield


def prepare() -> None:
    """Load in the worker what torch loads when kernels are first intercepted; that takes seconds."""
    from msprobe.pytorch import PrecisionDebugger  # noqa: F401  # for the forks of this process

    _, step = train("transformer", "float32", k.EITHER_WAY, ROWS["transformer"][0])
    step(0)


def suite() -> Suite:
    """Every fault in float32 and bfloat16, every second in float16 and below autocast; sound pairs too."""
    made = Suite({}, [], SOURCES)
    for net, rows in ROWS.items():
        for dtype in DTYPES[:2] if net == "wide" else DTYPES:
            if net == "recurrent" and dtype == "autocast" and not _has_recurrent_kernel(dtype):
                continue  # oneDNN refuses it
            golden = _run(made, net, dtype, k.EXACT, None)
            modes = tuple(mode for mode in ALL_MODES if net != "wide" or mode != "statistics-L0")
            for rounding in k.ROUNDINGS:
                if rounding != k.EXACT:
                    target = _run(made, net, dtype, rounding, None)
                    made.pairs.append(Pair(f"sound kernels, {rounding}", target, target, golden, modes=modes))
                for number, row in enumerate(rows):
                    if DTYPES.index(dtype) < 2 or number % 2 == DTYPES.index(dtype) - 2:
                        _add(made, net, dtype, rounding, row, golden, modes if rounding == k.EXACT else MIX)
    return made


def _add(
    made: Suite, net: str, dtype: str, rounding: str, row: Row, golden: str, modes: tuple[str, ...]
) -> None:
    if row.name in LSTM_ROWS and not _has_recurrent_kernel(dtype):
        return
    target = _run(made, net, dtype, rounding, row)
    made.pairs.append(Pair(f"kernel faults, {rounding}", target, target, golden, row.culprit, modes=modes))


def _has_recurrent_kernel(dtype: str) -> bool:
    """Whether oneDNN computes an LSTM here in one kernel; else torch calls many others for it."""
    if dtype in ("bfloat16", "autocast"):
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # some CPUs have no instructions for it
    return dtype == "float32"


def _run(made: Suite, net: str, dtype: str, rounding: str, row: Row | None) -> str:
    name = f"{net}.{dtype}.{row.name if row else 'sound'}.{rounding.replace(' ', '_')}"
    return made.add(Run(name, partial(train, net, dtype, rounding, row), is_large=net == "wide"))
