"""Whether a tensor is still what it was when it was last looked at.

torch counts changes in place, but not all: fused optimizers, batch norm, collectives and whoever holds the
memory (`.data`, numpy) change a tensor without a count. So a version also says where the memory lies and, on
the host, what a glance at it shows; what is known to have got out, or to have come from outside, is asked
anew each time.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Iterable
from operator import mul
from typing import Any

import torch
from torch import Tensor

from msprobe.adapter import Extent, Undo
from msprobe.capture.patch import replace, together
from msprobe.kernels import glance
from msprobe.record import Leaf

# They hand out the memory of a tensor, or give it another; of these a torch-function mode is told, ...
SEEN_DOORS = ("data", "numpy", "data_ptr", "untyped_storage", "storage", "__array__", "__dlpack__")
UNSEEN_DOORS = ("set_",)  # ... and of these it is not
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)})
_untyped_storage = Tensor.untyped_storage  # as they are while nobody watches who asks for the memory
_data_ptr = Tensor.data_ptr
_NEAR = 1 << 40  # an address below may be the offset into a storage that was freed
_all_disabled = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)


class Versions:
    """Knows versions, and the tensors whose memory somebody else may write to."""

    def __init__(self) -> None:
        self._escaped: set[int] = set()  # addresses of storages

    def of(self, tensor: Tensor) -> Hashable | None:
        """Changes whenever the tensor's content may have; None when nothing can be said."""
        if type(tensor) not in _PLAIN:
            return None
        try:
            address, version = _data_ptr(tensor), tensor._version
        except RuntimeError:  # it has no memory of its own, or is an inference tensor, which has no versions
            return None
        if address < _NEAR and address <= tensor.storage_offset() * tensor.element_size():
            return None
        if self._escaped and _untyped_storage(tensor).data_ptr() in self._escaped:
            return None
        if tensor.is_cpu:
            differentiated = tensor.requires_grad
            if not differentiated and not _untyped_storage(tensor).resizable():
                return None  # from_numpy, for one: whoever gave the memory may write there at any time
            if tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj()):
                size, layout = tensor.nbytes, None
            else:
                size, layout = _span(tensor), _layout(tensor)
            return version, differentiated, address, size, layout, glance(address, size)
        if tensor.is_leaf and not tensor.requires_grad:
            return None  # a statistic of batch norm, for one
        return version, tensor.requires_grad, *_lies(tensor), None

    def escaped(self, tensor: Any) -> None:
        """From now on its memory may change unnoticed."""
        if type(tensor) not in _PLAIN or _all_disabled():  # disabled: our own work, which changes nothing
            return
        with torch._C.DisableTorchFunction(), contextlib.suppress(RuntimeError):
            self._escaped.add(_untyped_storage(tensor).data_ptr())

    def watch(self, doors: Iterable[str]) -> Undo:
        """Notice whose memory these attributes of Tensor hand out."""
        return together(*(functools.partial(replace, Tensor, name, self._noticing) for name in doors))

    def _noticing(self, original: Any) -> Any:
        if not callable(original):
            return property(self._noticing(original.__get__), self._noticing(original.__set__))

        @functools.wraps(original)
        def door(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.escaped(tensor)
            result = original(tensor, *args, **kwargs)
            self.escaped(tensor)  # it may have got other memory
            return result

        return door

    def forget(self) -> None:
        self._escaped.clear()


def _span(tensor: Tensor) -> int:
    """How many bytes lie from the first element to the last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    strides = tensor.stride()
    last: int = sum(map(mul, tensor.shape, strides)) - sum(strides)
    return (last + 1) * tensor.element_size()


def memory_of(tensor: Tensor) -> Any:
    """The storage of a tensor; a class that keeps its values where it likes has only itself."""
    if type(tensor) not in _PLAIN:
        return tensor
    try:
        return _untyped_storage(tensor)
    except RuntimeError:  # sparse, for one
        return None


def extent_of(tensor: Tensor | None, version: Hashable | None, leaf: Leaf) -> Extent:
    """Where in its storage a tensor lies: what its version says, or nobody but itself."""
    if isinstance(version, tuple):
        count, _, start, size, layout, seen = version
        return Extent(start, start + size, (leaf.dtype, leaf.shape, layout, seen), count)
    if tensor is None or type(tensor) not in _PLAIN:
        return Extent(0, 1, None, None)
    try:
        start, size, layout = _lies(tensor)
    except RuntimeError:  # it wraps another
        return Extent(0, 0, None, None)
    return Extent(start, start + size, (leaf.dtype, leaf.shape, layout, None), None)


def _lies(tensor: Tensor) -> tuple[int, int, Any]:
    """Where a tensor begins, how many bytes it spans, and its layout."""
    try:
        start = _data_ptr(tensor)
    except RuntimeError:  # fake or functional, as while a model is traced: there is nothing at an address
        return 0, 0, None
    return start, _span(tensor), _layout(tensor)


def _layout(tensor: Tensor) -> Any:
    """How the numbers are read from memory; None for the usual way, in row-major order and as they are."""
    strides = None if tensor.is_contiguous() else tensor.stride()
    is_negated, is_conjugated = tensor.is_neg(), tensor.is_conj()
    return (strides, is_negated, is_conjugated) if is_negated or is_conjugated else strides
