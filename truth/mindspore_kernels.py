"""Wrong kernels below the recorder in MindSpore, where no dispatch mode stands between a call and its kernel.

A function of mindspore.ops, or the class of a primitive, is replaced before the recorder is started, which
then wraps the replacement. It calls the original and overwrites the memory of the result: autograd has no
part in it, so that backward sees wrong numbers and not another function. A kernel of a backward pass is made
wrong in the same way: a hook of the node that the call has put into the graph overwrites the gradient that
the kernel gave, before the recorder's own hook of this node reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

Change = Callable[[np.ndarray], np.ndarray]


class Fault(NamedTuple):
    """The n-th call of a kernel in one step gives `change(result)`."""

    kernel: str  # of mindspore.ops: a function, or the class of a primitive
    number: int
    change: Change
    gradient: int | None = None  # of backward: which input's gradient is wrong


# Kernels that round otherwise on another device.
ROUNDED = (
    "MatMul",
    "BiasAdd",
    "LayerNorm",
    "Conv2D",
    "BatchNorm",
    "matmul",
    "softmax",
    "gelu",
    "mean",
    "cross_entropy",
)


@contextlib.contextmanager
def kernels(fault: Fault | None, rounds_otherwise: bool) -> Iterator[None]:
    """Run the block with such kernels; a fault that never acts is an error of the case."""
    acted: list[str] = []
    random = np.random.default_rng(5)
    with contextlib.ExitStack() as stack:
        if rounds_otherwise:
            for kernel in ROUNDED:
                stack.enter_context(_replaced(kernel, lambda result: overwrite(result, rounded(random))))
        if fault is not None:
            stack.enter_context(_replaced(fault.kernel, _failing(fault, acted)))
        yield
    if fault is not None and not acted:
        raise RuntimeError(f"the kernel {fault.kernel} was not called {fault.number + 1} times")


@contextlib.contextmanager
def _replaced(kernel: str, change: Callable[[Tensor], None]) -> Iterator[None]:
    """Have `change` see every result of a function, or of a primitive's class."""
    holder, attribute = (ops, kernel) if kernel[0].islower() else (getattr(ops, kernel), "__call__")
    original = getattr(holder, attribute)
    is_own = attribute in vars(holder)

    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        change(result[0] if isinstance(result, tuple) else result)
        return result

    setattr(holder, attribute, call)
    try:
        yield
    finally:
        if is_own:
            setattr(holder, attribute, original)
        else:
            delattr(holder, attribute)


def _failing(fault: Fault, acted: list[str]) -> Callable[[Tensor], None]:
    """Let the n-th result be wrong, or the gradient that belongs to it."""
    calls = 0

    def change(result: Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 != fault.number:
            return
        if fault.gradient is None:
            overwrite(result, fault.change)
            acted.append("forward")
        else:
            place = fault.gradient
            result._grad_node.register_hook(lambda given, _: hook(given[place]))

    def hook(gradient: Tensor) -> None:
        overwrite(gradient, fault.change)
        acted.append("backward")

    return change


def overwrite(tensor: Tensor, change: Change) -> None:
    """Change the numbers of a tensor where they lie; autograd and the recorder do not notice."""
    if not tensor.is_contiguous():
        raise RuntimeError("the memory of this tensor is not in order")
    before = tensor.asnumpy()  # waits for the kernel
    after = np.asarray(change(before.copy()), before.dtype, order="C")
    assert after.shape == before.shape
    ctypes.memmove(tensor.data_ptr(), after.ctypes.data, after.nbytes)


# ---- what a faulty kernel does to its result ----


def scaled(factor: float) -> Change:
    """All of it too large by a factor."""
    return lambda y: y * np.asarray(factor, y.dtype)


def shifted(share: float) -> Change:
    """All of it too large by a share of its root mean square."""
    return lambda y: y + np.asarray(share * _size(y), y.dtype)


def rolled(y: np.ndarray) -> np.ndarray:
    """Every element one place further along the last axis."""
    return np.roll(y, 1, -1)


def rows_swapped(y: np.ndarray) -> np.ndarray:
    """The first two rows of the first axis exchanged."""
    y[[0, 1]] = y[[1, 0]]
    return y


def heads_swapped(y: np.ndarray) -> np.ndarray:
    """The first two heads of (batch, heads, ...) exchanged."""
    y[:, [0, 1]] = y[:, [1, 0]]
    return y


def row_dropped(y: np.ndarray) -> np.ndarray:
    """The last row was never written: zeros."""
    y[-1] = 0
    return y


def tile_stale(y: np.ndarray) -> np.ndarray:
    """A tile of 8 columns holds what the tile before it has."""
    y[..., 8:16] = y[..., :8].copy()
    return y


def negated(y: np.ndarray) -> np.ndarray:
    return -y


def one_element(y: np.ndarray) -> np.ndarray:
    """One element is off by four times the root mean square."""
    y.reshape(-1)[y.size // 2] += np.asarray(4 * _size(y), y.dtype)
    return y


def rounded(random: np.random.Generator) -> Change:
    """Elements one unit in the last place larger or smaller, or as they are; zeros stay."""

    def change(y: np.ndarray) -> np.ndarray:
        step = random.choice((0, 0, 1, -1), y.shape)
        moved = np.nextafter(y, np.where(step > 0, np.inf, -np.inf).astype(y.dtype))
        return np.where((step != 0) & (np.abs(y) > np.finfo(y.dtype).tiny), moved, y)

    return change


def _size(y: np.ndarray) -> float:
    return float(np.sqrt(np.square(y.astype(np.float64)).mean()))


# ---- the runs ----


def record(net: str, dtype: str, fault: Fault | None, rounds_otherwise: bool, config: str) -> None:
    """Record one step of a net of porting_mindspore.py with such kernels."""
    from msprobe.mindspore import PrecisionDebugger
    from truth.porting import data
    from truth.porting_mindspore import NETS, load

    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_seed(7)
    model = NETS[net]("sound")
    load(model, net, "sound")
    x, y = (Tensor(each) for each in data(net))
    if dtype != "float32":
        for parameter in model.get_parameters():
            parameter.set_dtype(getattr(ms, dtype))
        x = x.astype(getattr(ms, dtype)) if x.dtype == ms.float32 else x
    model.set_train()

    def forward() -> Tensor:
        return ops.cross_entropy(model(x).astype(ms.float32), y)

    step = ms.value_and_grad(forward, None, list(model.trainable_params()))
    with kernels(fault, rounds_otherwise):
        debugger = PrecisionDebugger(config)
        debugger.start(model)
        step()
        debugger.stop()
        debugger.step()
