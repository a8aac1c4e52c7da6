"""How the values of a tensor are changed a little: by noise, in their last bits, by two that trade places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from msprobe.store.dtypes import DTYPES, Array, TensorData, as_float, bits_of

Perturb = Callable[[TensorData], "TensorData | str"]  # the changed tensor, or why it is left as it is

# What add_noise adds; the root of it is the size below which two values are not told apart.
NOISE: Mapping[str, float] = MappingProxyType(
    {"bfloat16": 1e-4, "float16": 1e-6, "float32": 1e-8, "float64": 1e-16}
)
_SMALLEST_NORMAL = {"bfloat16": 2.0**-126, "float16": 2.0**-14, "float32": 2.0**-126, "float64": 2.0**-1022}

NO_DTYPE = "of a dtype that has no noise"
EMPTY = "without an element"
TOO_SMALL = "without an element as large as the noise"
ONE_VALUE = "without two values to change places"


def add_noise(tensor: TensorData) -> TensorData | str:
    """Each value that is much larger than the noise has it added."""
    found = _perturbable(tensor)
    if isinstance(found, str):
        return found
    bits, values = found
    noise = NOISE[tensor.dtype]
    large = np.isfinite(values) & (np.abs(values) > noise**0.5)
    changed = (values[large] + values.dtype.type(noise)).astype(values.dtype)
    bits[large] = _rounded(changed, tensor.dtype)
    return TensorData(bits.data, tensor.dtype, tensor.shape)


def bit_noise(tensor: TensorData) -> TensorData | str:
    """Each value has its last bit flipped; what is not finite, or next to nothing, stays."""
    found = _perturbable(tensor)
    if isinstance(found, str):
        return found
    bits, values = found
    large = np.isfinite(values) & (np.abs(values) > _SMALLEST_NORMAL[tensor.dtype])
    as_integers = bits.view(f"u{bits.dtype.itemsize}")
    as_integers[large] ^= 1
    return TensorData(bits.data, tensor.dtype, tensor.shape)


def relative_noise(tensor: TensorData, size: float) -> TensorData:
    """Each value is made larger or smaller by `size` of itself, as chance has it; the same in every run.

    Only of float32 and float64; other tensors stay.
    """
    if tensor.dtype not in ("float32", "float64"):
        return tensor
    values = bits_of(tensor)
    signs = np.random.Generator(np.random.PCG64(1)).integers(0, 2, values.size, dtype=np.int8) * 2 - 1
    with np.errstate(all="ignore"):
        changed = (values * (1.0 + size * signs)).astype(values.dtype)
    return TensorData(changed.data, tensor.dtype, tensor.shape)


def relative_change(old: TensorData, new: TensorData) -> float:
    """The norm of the change of a tensor, beside its own norm; over what is finite on both sides."""
    one, other = (as_float(bits_of(tensor), tensor.dtype).astype(np.float64) for tensor in (old, new))
    finite = np.isfinite(one) & np.isfinite(other)
    one, other = one[finite], other[finite]
    with np.errstate(all="ignore"):
        size = float(np.linalg.norm(one))
        return float(np.linalg.norm(other - one)) / size if size else 0.0


def change_value(tensor: TensorData) -> TensorData | str:
    """The first value and the last change places; with three dimensions or more, the first and last row."""
    ends = (0,) if len(tensor.shape) == 1 else (0, 0)
    if not tensor.shape or 0 in tensor.shape or all(size == 1 for size in tensor.shape[: len(ends)]):
        return ONE_VALUE
    bits = bits_of(tensor).copy().reshape(tensor.shape)
    last = tuple(-1 for _ in ends)
    bits[ends], bits[last] = bits[last].copy(), bits[ends].copy()
    return TensorData(bits.reshape(-1).data, tensor.dtype, tensor.shape)


PERTURBATIONS: Mapping[str, Perturb] = MappingProxyType(
    {
        "add_noise": add_noise,
        "bit_noise": bit_noise,
        "change_value": change_value,
    }
)


def _perturbable(tensor: TensorData) -> tuple[Array, Array] | str:
    """The bits of a tensor, to be changed, and their values; or why noise would say nothing of it."""
    noise = NOISE.get(tensor.dtype)
    if noise is None:
        return NO_DTYPE
    bits = bits_of(tensor).copy()
    if not bits.size:
        return EMPTY
    values = as_float(bits, tensor.dtype)
    if not np.abs(values).max(where=np.isfinite(values), initial=0.0) >= noise:
        return TOO_SMALL
    return bits, values


def _rounded(values: Array, dtype: str) -> Array:
    """Finite values in the bits of a dtype; numpy has no bfloat16, which is the upper half of float32."""
    if dtype != "bfloat16":
        return values.astype(DTYPES[dtype].numpy)
    bits = values.view(np.uint32)
    to_even = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + to_even + np.uint32(0x7FFF)) >> np.uint32(16)).astype(np.uint16)
