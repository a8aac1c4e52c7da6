"""Kernels below the recorder: one that computes something else, and all of them rounding otherwise.

Both are dispatch modes: the recorder sees the arguments that the network gave and the result that the kernel
returned, as on a device whose kernel is wrong or rounds in its own way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Change = Callable[[Tensor], Tensor]
EXACT, EITHER_WAY, TOWARD_ZERO = "exact", "either way", "toward zero"
ROUNDINGS = (EXACT, EITHER_WAY, TOWARD_ZERO)

# Kernels that compute in floating point, without the trailing _ of those that work in place. Casts, copies,
# selections and comparisons give the same bits on every device.
_NAMES = """
    add sub rsub mul div pow sqrt rsqrt reciprocal exp exp2 expm1 log log1p log2 sin cos tan tanh sigmoid erf
    softplus silu gelu elu mish hardswish leaky_relu log_sigmoid_forward logsumexp norm linalg_vector_norm
    sum mean var var_mean std cumsum cumprod prod
    mm addmm bmm baddbmm addbmm mv addmv dot addr _addmm_activation linear mkldnn_linear _grouped_mm
    convolution _convolution mkldnn_convolution _slow_conv2d_forward thnn_conv2d
    native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm
    _batch_norm_with_update mkldnn_batch_norm _fused_rms_norm
    _softmax _log_softmax nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss
    binary_cross_entropy_with_logits
    avg_pool2d _adaptive_avg_pool2d upsample_bilinear2d upsample_bicubic2d
    _scaled_dot_product_flash_attention_for_cpu mkldnn_rnn_layer lerp addcmul addcdiv
    gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward softplus_backward mish_backward
    hardswish_backward log_sigmoid_backward _softmax_backward_data _log_softmax_backward_data
    native_layer_norm_backward native_group_norm_backward native_batch_norm_backward
    mkldnn_batch_norm_backward
    batch_norm_backward _fused_rms_norm_backward convolution_backward mkldnn_linear_backward
    nll_loss_backward mse_loss_backward smooth_l1_loss_backward avg_pool2d_backward
    _adaptive_avg_pool2d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward
    _scaled_dot_product_flash_attention_for_cpu_backward mkldnn_rnn_layer_backward
    embedding_dense_backward
"""
ROUNDED = frozenset(_NAMES.split())
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fault(NamedTuple):
    """The n-th call of a kernel in one step gives `change(result)`."""

    kernel: str
    number: int
    change: Change
    output: int = 0


class Kernels(TorchDispatchMode):
    """Compute as torch does, but round as `rounding` says and let one kernel fail."""

    def __init__(
        self, rounding: str = EXACT, fault: Fault | None = None, only: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self._rounding, self._fault, self._calls = rounding, fault, 0
        self._only = only  # count and change only calls that give this dtype
        self._random = torch.Generator().manual_seed(5)
        self.applied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # nothing below a kernel is a call of its own
            result = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if self._rounding != EXACT and name.rstrip("_") in ROUNDED:
                for value in result if isinstance(result, tuple | list) else (result,):
                    if isinstance(value, Tensor):
                        self._round_otherwise(value)
            if self._fault is not None and name == self._fault.kernel:
                self._count(self._fault, result)
        return result

    def _count(self, fault: Fault, result: Any) -> None:
        """Let the n-th call of the kernel fail."""
        value = result[fault.output] if isinstance(result, tuple | list) else result
        if self._only is None or (isinstance(value, Tensor) and value.dtype == self._only):
            self._calls += 1
            if self._calls - 1 == fault.number:
                value.copy_(fault.change(value.clone()))
                self.applied += 1

    def _round_otherwise(self, value: Tensor) -> None:
        """Move elements by one unit in the last place; zeros, NaN, infinities and extremes stay."""
        if not value.is_floating_point() or not value.numel():
            return
        if bool((value == value.round()).all()):
            return  # sums and products of whole numbers are exact everywhere
        bits = value.view(_BITS[value.element_size()])
        if self._rounding == TOWARD_ZERO:
            step = -torch.randint(0, 2, value.shape, generator=self._random, dtype=torch.int8)
        else:
            step = torch.randint(0, 4, value.shape, generator=self._random, dtype=torch.int8)
            step = torch.where(step == 3, -1, torch.where(step == 2, 1, 0))
        limits = torch.finfo(value.dtype)
        sized = (value.abs() > limits.tiny) & (value.abs() < limits.max)
        bits.add_(torch.where(sized, step, 0).to(bits.dtype))


@contextlib.contextmanager
def kernels(
    rounding: str = EXACT, fault: Fault | None = None, only: torch.dtype | None = None
) -> Iterator[None]:
    """Run the block with such kernels; a fault that never acts is an error of the case."""
    if rounding == EXACT and fault is None:
        yield
        return
    with Kernels(rounding, fault, only) as mode:
        yield
    if fault is not None and not mode.applied:
        raise RuntimeError(f"the kernel {fault.kernel} was not called {fault.number + 1} times")


# ---- what a faulty kernel does to its result ----


def scaled(factor: float) -> Change:
    """All of it too large by a factor."""
    return lambda y: torch.mul(y, factor)


def shifted(share: float) -> Change:
    """All of it too large by a share of its root mean square: a mean that is off."""
    return lambda y: y + (share * y.double().square().mean().sqrt()).to(y.dtype)


def rolled(y: Tensor) -> Tensor:
    """Every element one place further along the last axis."""
    return torch.roll(y, 1, -1)


def rows_swapped(y: Tensor) -> Tensor:
    """The first two rows of the first axis exchanged."""
    y[[0, 1]] = y[[1, 0]]
    return y


def heads_swapped(y: Tensor) -> Tensor:
    """Two heads of (batch * heads, ...) exchanged, in every sequence of four heads."""
    order = torch.arange(y.shape[0]).reshape(-1, 4)[:, [1, 0, 2, 3]].flatten()
    return y[order]


def row_dropped(y: Tensor) -> Tensor:
    """The last row was never written: zeros."""
    y.select(0, y.shape[0] - 1).zero_()
    return y


def tile_stale(y: Tensor) -> Tensor:
    """A tile of 8 columns holds what the tile before it has."""
    y[..., 8:16] = y[..., :8].clone()
    return y


def tile_zero(y: Tensor) -> Tensor:
    """The last 4 columns were never written: zeros."""
    y[..., -4:] = 0
    return y


def negated(y: Tensor) -> Tensor:
    return -y


def channels_in_turn(share: float, axis: int = -1) -> Change:
    """Channels too large and too small in turn; as a whole it keeps its scale."""

    def change(y: Tensor) -> Tensor:
        shape = [1] * y.dim()
        shape[axis] = y.shape[axis]
        signs = torch.where(torch.arange(y.shape[axis]) % 2 == 0, 1.0, -1.0).reshape(shape)
        return (y.float() * (1 + share * signs)).to(y.dtype)

    return change


def one_element(y: Tensor) -> Tensor:
    """One element is off by four times the root mean square."""
    flat = y.reshape(-1)
    flat[flat.numel() // 2] += (4 * y.double().square().mean().sqrt()).to(y.dtype)
    return flat.reshape(y.shape)


def coarser(bits: int) -> Change:
    """Rounded to so many bits of mantissa: 7 is bfloat16, 10 is TF32."""

    def change(y: Tensor) -> Tensor:
        mantissa, exponent = torch.frexp(y.double())
        return torch.ldexp(torch.round(mantissa * 2 ** (bits + 1)) / 2 ** (bits + 1), exponent).to(y.dtype)

    return change


def term_lost(share: float) -> Change:
    """One of the added terms is missing: a share of the size, of a fixed pattern unlike the result."""

    def change(y: Tensor) -> Tensor:
        random = torch.Generator().manual_seed(9)
        size = y.double().square().mean().sqrt()
        return (y.double() - share * size * torch.randn(y.shape, generator=random).abs()).to(y.dtype)

    return change
