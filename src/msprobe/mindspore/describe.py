"""What a MindSpore value is in the file format; its numbers are read where asnumpy() shows them."""

from __future__ import annotations

import functools
import math
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor
from mindspore._c_expression import typing
from mindspore.common import dtype as mstype

from msprobe import kernels
from msprobe.adapter import Want
from msprobe.kernels import Statistics
from msprobe.record import Leaf
from msprobe.store.dtypes import DTYPES, Array
from msprobe.store.tensor_file import TensorData

_TENSOR = "mindspore.Tensor"
_UNKNOWN = Statistics(None, None, None, None)
# numpy has none of these, and float32 has all their values.
_WIDENED = frozenset(
    str(getattr(mstype, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "hifloat8")
    if hasattr(mstype, name)
)
_FLOATS = frozenset({"Float16", "Float32", "Float64", "Complex64", "Complex128", *_WIDENED})
_Type: type = typing.Type  # of every dtype object

_asnumpy = Tensor.asnumpy  # as they are while nobody watches who calls them
_to = Tensor.to


@functools.cache
def _name(dtype: Any) -> str:
    return str(dtype)


def is_differentiable(tensor: Tensor) -> bool:
    """Whether its numbers are of a kind that has gradients."""
    return _name(tensor.dtype) in _FLOATS


def describe(tensor: Tensor, want: Want) -> Leaf:
    array = _values(tensor)
    dtype, shape = _name(tensor.dtype), tuple(tensor.shape)
    if array is None:
        return Leaf(_TENSOR, None, dtype, shape, _UNKNOWN)
    return Leaf(
        _TENSOR,
        None,
        dtype,
        shape,
        _of_scalar(array.item()) if not shape else kernels.statistics_of(array),
        None,
        kernels.checksum(_bytes(array)) if want.checksum else None,
        kernels.sketch_of(array) if want.sketch else None,
    )


def snapshot(tensor: Tensor) -> TensorData | None:
    """A private copy of the values; None for a tensor without any, as before its first initialisation."""
    array = _values(tensor)
    if array is None or array.dtype.name not in DTYPES:
        return None
    return TensorData(array.tobytes(), array.dtype.name, array.shape)


def _values(tensor: Tensor) -> Array | None:
    """The values in the host's memory; None while there are none. Asking for these would make them."""
    if getattr(tensor, "has_init", False):
        return None
    if _name(tensor.dtype) in _WIDENED:
        tensor = _to(tensor, mindspore.float32)
    array: Array = _asnumpy(tensor)
    return array


def _of_scalar(value: Any) -> Statistics:
    """Every reader of this format expects the value itself four times."""
    if isinstance(value, bool):
        return Statistics(value, value, None, None)
    size = abs(value)
    shown = size if isinstance(value, complex) else value
    return Statistics(*(shown,) * 4, nan=int(size != size), inf=int(size == math.inf))


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def describe_other(value: Any) -> Leaf | None:
    """A value that only MindSpore knows."""
    return Leaf("mindspore.dtype", _name(value)) if isinstance(value, _Type) else None
