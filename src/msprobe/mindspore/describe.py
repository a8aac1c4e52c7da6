"""What a MindSpore value is in the file format; its numbers are read where asnumpy() shows them."""

from __future__ import annotations

import functools
import math
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops
from mindspore._c_expression import typing

from msprobe import kernels
from msprobe.adapter import Want
from msprobe.kernels import Statistics
from msprobe.kernels_layout import PIECE
from msprobe.record import Leaf, number_type
from msprobe.store.dtypes import DTYPES, Array
from msprobe.store.tensor_file import TensorData

TENSOR = "mindspore.Tensor"
_UNKNOWN = Statistics(None, None, None, None)
# numpy has none of these, and float32 has all their values.
_WIDENED = frozenset({"BFloat16", "Float8E4M3FN", "Float8E5M2", "HiFloat8"})
_FLOATS = frozenset({"Float16", "Float32", "Float64", "Complex64", "Complex128", *_WIDENED})
_NUMBERS = (
    *_FLOATS,
    "Bool",
    "Int4",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
)
_NAMES = {f"mindspore.{name.lower()}": name for name in _NUMBERS}  # by what repr() says
_Type: type = typing.Type  # of every dtype object

_asnumpy = Tensor.asnumpy  # as they are while nobody watches who calls them
_cast = ops.cast
_is_contiguous: Any = Tensor.is_contiguous
_stride: Any = Tensor.stride
_narrow: Any = Tensor.narrow


@functools.cache
def name_of(dtype: Any) -> str:
    """As MindSpore prints it, also where MSAdapter has it print something else."""
    return _NAMES.get(repr(dtype).replace("_", ""), str(dtype))


def is_differentiable(tensor: Tensor) -> bool:
    """Whether its numbers are of a kind that has gradients."""
    return name_of(tensor.dtype) in _FLOATS


def describe(tensor: Tensor, want: Want) -> Leaf:
    dtype, shape = name_of(tensor.dtype), tuple(tensor.shape)
    array = _values(tensor)
    return Leaf(TENSOR, None, dtype, shape, _UNKNOWN) if array is None else leaf_of(array, dtype, shape, want)


def sketch(tensor: Tensor) -> bytes | None:
    """The sketch of a tensor; None while it has no values."""
    array = _values(tensor)
    return None if array is None else kernels.sketch_of(array)


def leaf_of(array: Array, dtype: str, shape: tuple[int, ...], want: Want) -> Leaf:
    """Describe the values of a tensor."""
    stats, digest, brief = kernels.described_of(array)
    return Leaf(
        TENSOR,
        None,
        dtype,
        shape,
        stats if shape else _of_scalar(array.item()),
        None,
        kernels.checksum_of_parts(map(_bytes, kernels.pieces_of(array))) if want.checksum else None,
        kernels.sketch_of(array) if want.sketch else brief,
        hash=digest if number_type(dtype) == array.dtype.name else _narrow_hash(array, dtype),
    )


def _narrow_hash(array: Array, dtype: str) -> str | None:
    """The hash of the bits that a tensor has; None where the array, which is wider, does not show them."""
    if (dtype, array.dtype.name) != ("BFloat16", "float32"):
        return None
    return kernels.hash_of_parts(
        (piece.view(np.uint32) >> 16).astype(np.uint16) for piece in kernels.pieces_of(array)
    )


def snapshot(tensor: Tensor) -> TensorData | None:
    """A private copy of the values; None for a tensor without any, as before its first initialisation."""
    array = _values(tensor)
    return None if array is None else copy_of(array)


def copy_of(array: Array) -> TensorData | None:
    if array.dtype.name not in DTYPES:
        return None
    return TensorData(array.tobytes(), array.dtype.name, array.shape)


def _values(tensor: Tensor) -> Array | None:
    """The values in the host's memory; None while there are none. Asking for these would make them."""
    if getattr(tensor, "has_init", False):
        return None
    shape = tuple(tensor.shape)
    stored = _stored(tensor)
    if name_of(tensor.dtype) in _WIDENED:
        stored = _cast(stored, mindspore.float32)
    array: Array = _asnumpy(stored)
    return array if stored.shape == shape else np.broadcast_to(array, shape)


def _stored(tensor: Tensor) -> Tensor:
    """The tensor without what its expanded dimensions repeat: reading it would make every element."""
    if _is_contiguous(tensor) or tensor.nbytes <= PIECE:
        return tensor
    for dimension, stride in enumerate(_stride(tensor)):
        if not stride:
            tensor = _narrow(tensor, dimension, 0, 1)
    return tensor


def _of_scalar(value: Any) -> Statistics:
    """Every reader of this format expects the value itself four times."""
    if isinstance(value, bool):
        return Statistics(value, value, None, None)
    size = abs(value)
    shown = size if isinstance(value, complex) else value
    return Statistics(*(shown,) * 4, nan=int(size != size), inf=int(size == math.inf))


def _bytes(piece: Array) -> memoryview:
    return piece.view(np.uint8).data


def describe_other(value: Any) -> Leaf | None:
    """A value that only MindSpore knows."""
    return Leaf("mindspore.dtype", name_of(value)) if isinstance(value, _Type) else None
