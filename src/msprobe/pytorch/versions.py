"""Whether a tensor is still what it was when it was last looked at.

torch counts changes in place, but not all: fused optimizers, batch norm, collectives and whoever holds the
memory (`.data`, numpy) change a tensor without a count. So a version also says where the memory lies and, on
the host, what a glance at it shows; what is known to have got out is asked anew each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from msprobe.kernels import glance

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)})
_untyped_storage = Tensor.untyped_storage  # as they are while nobody watches who asks for the memory
_data_ptr = Tensor.data_ptr
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
        if not address or (self._escaped and _untyped_storage(tensor).data_ptr() in self._escaped):
            return None
        if tensor.is_cpu:
            size = tensor.nbytes if tensor.is_contiguous() else tensor.element_size()
            return version, tensor.requires_grad, address, glance(address, size)
        if tensor.is_leaf and not tensor.requires_grad:
            return None  # a statistic of batch norm, for one
        return version, tensor.requires_grad, address

    def escaped(self, tensor: Any) -> None:
        """From now on its memory may change unnoticed."""
        if type(tensor) not in _PLAIN or _all_disabled():  # disabled: our own work, which changes nothing
            return
        with torch._C.DisableTorchFunction(), contextlib.suppress(RuntimeError):
            self._escaped.add(_untyped_storage(tensor).data_ptr())

    def forget(self) -> None:
        self._escaped.clear()
