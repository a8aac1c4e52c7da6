"""Whether a tensor is still what it was when it was last looked at.

torch counts changes in place, but not all: fused optimizers, batch norm, collectives and whoever holds the
memory (`.data`, numpy) change a tensor without a count. So a version also says where the memory lies and, on
the host, how it begins; what is known to have got out is asked anew each time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)})
_BEGINNING = 64  # bytes
_untyped_storage = Tensor.untyped_storage  # as they are while nobody watches who asks for the memory
_data_ptr = Tensor.data_ptr
_all_disabled = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


class Versions:
    """Knows versions, and the tensors whose memory somebody else may write to."""

    def __init__(self) -> None:
        self._escaped: set[int] = set()  # addresses of storages

    def of(self, tensor: Tensor) -> Hashable | None:
        """Changes whenever the tensor's content may have; None when nothing can be said."""
        if not _has_memory(tensor) or tensor.is_inference():
            return None
        if self._escaped and _untyped_storage(tensor).data_ptr() in self._escaped:
            return None
        address = _data_ptr(tensor)
        if tensor.is_cpu:
            return tensor._version, tensor.requires_grad, address, _beginning(tensor, address)
        if tensor.is_leaf and not tensor.requires_grad:
            return None  # a statistic of batch norm, for one
        return tensor._version, tensor.requires_grad, address

    def escaped(self, tensor: Any) -> None:
        """From now on its memory may change unnoticed."""
        if _all_disabled():  # our own work, which changes nothing
            return
        with torch._C.DisableTorchFunction():
            if isinstance(tensor, Tensor) and _has_memory(tensor):
                self._escaped.add(_untyped_storage(tensor).data_ptr())

    def forget(self) -> None:
        self._escaped.clear()


def _has_memory(tensor: Tensor) -> bool:
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_nested or _is_wrapped(tensor))
    )


def _beginning(tensor: Tensor, address: int) -> bytes:
    if not tensor.numel():
        return b""
    size = min(tensor.nbytes, _BEGINNING) if tensor.is_contiguous() else tensor.element_size()
    return ctypes.string_at(address, size)
