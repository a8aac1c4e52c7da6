"""What a torch value is, in the words of the file format; statistics come from one pass over its memory."""

from __future__ import annotations

import ctypes
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from msprobe import kernels
from msprobe.adapter import Want
from msprobe.kernels import Statistics
from msprobe.record import Deferred, Leaf
from msprobe.store.tensor_file import TensorData

_KINDS = {
    torch.float32: "f4",
    torch.float64: "f8",
    torch.float16: "f2",
    torch.bfloat16: "bf2",
    torch.int8: "i1",
    torch.int16: "i2",
    torch.int32: "i4",
    torch.int64: "i8",
    torch.uint8: "u1",
    torch.bool: "b1",
}
_DTYPES = {value: str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)}
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_UNKNOWN = Statistics(None, None, None, None)


class Described:
    """The descriptions of one recorder; those that wait on a device are fetched together."""

    def __init__(self) -> None:
        self._pending: list[tuple[Deferred, Tensor]] = []

    def __len__(self) -> int:
        return len(self._pending)

    def leaf(self, tensor: Tensor, want: Want) -> Leaf:
        content, type_name, extra = _content(tensor)
        stats: Statistics | Deferred = _UNKNOWN
        if content is not None:
            stats = _statistics(content) if content.device.type == "cpu" else self._defer(content)
        leaf = Leaf(
            type=type_name,
            dtype=_DTYPES[tensor.dtype],
            shape=tuple(tensor.shape),
            stats=stats,
            requires_grad=tensor.requires_grad,
            extra=extra,
        )
        if content is None or not (want.checksum or want.sketch):
            return leaf
        host = content.cpu().contiguous()
        return leaf._replace(
            checksum=kernels.checksum(_memory(host)) if want.checksum else None,
            sketch=_sketch(host) if want.sketch else None,
        )

    def _defer(self, tensor: Tensor) -> Deferred:
        deferred = Deferred()
        self._pending.append((deferred, _device_statistics(tensor)))
        return deferred

    def settle(self) -> None:
        """One transfer for all that waits."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        rows = torch.stack([row for _, row in pending]).cpu().tolist()
        for (deferred, _), (largest, smallest, mean, norm, nan, inf) in zip(pending, rows, strict=True):
            deferred.statistics = Statistics(largest, smallest, mean, norm, int(nan), int(inf))


def _content(tensor: Tensor) -> tuple[Tensor | None, str, dict[str, Any] | None]:
    """The plain tensor whose values stand for this one (None when it has none), and how it is called."""
    kind = type(tensor)
    if kind in _PLAIN and tensor.layout is torch.strided and not tensor.is_quantized:
        if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return None, "torch.Tensor", None
        return tensor.detach() if tensor.is_complex() else tensor, "torch.Tensor", None
    if kind.__name__ == "DTensor":
        mesh = {"device_mesh": tensor.device_mesh.mesh.tolist(), "placements": _placements(tensor.placements)}  # type: ignore[attr-defined]
        return tensor._local_tensor, "torch.distributed.tensor.DTensor", mesh  # type: ignore[attr-defined]
    if kind.__name__ == "FakeTensor" or tensor.is_meta:
        name = "torch._subclasses.fake_tensor.FakeTensor" if kind.__name__ == "FakeTensor" else "torch.Tensor"
        return None, name, None
    if tensor.is_quantized:
        return tensor.dequantize(), "torch.Tensor", None
    if tensor.layout is not torch.strided:
        return tensor.to_dense(), "torch.Tensor", None
    if tensor.is_nested or torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        return None, "torch.Tensor", None
    return tensor, "torch.Tensor", None


def _placements(placements: Any) -> list[dict[str, Any]]:
    found = []
    for placement in placements:
        fields = {key: getattr(placement, key) for key in ("dim", "reduce_op") if hasattr(placement, key)}
        found.append({type(placement).__name__.lstrip("_"): fields})
    return found


def _statistics(tensor: Tensor) -> Statistics:
    """The statistics of a tensor in the memory of the host."""
    if tensor.dim() == 0:
        return _of_scalar(tensor)
    kind = _KINDS.get(tensor.dtype)
    if kind is None:
        return _of_rare(tensor)
    dense = tensor if _is_dense(tensor) else tensor.contiguous()
    return kernels.statistics(dense.data_ptr(), dense.numel(), kind)


def _of_scalar(tensor: Tensor) -> Statistics:
    """All four are the value itself, as every reader of this format expects."""
    value = abs(tensor.item()) if tensor.is_complex() else tensor.item()
    if isinstance(value, bool):
        return Statistics(value, value, None, None)
    nan, inf = int(value != value), int(abs(value) == float("inf"))
    return Statistics(value, value, value, value, nan, inf)


def _of_rare(tensor: Tensor) -> Statistics:
    """complex (of the absolute values), float8, and unsigned integers wider than a byte."""
    if tensor.is_complex():
        wide = tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor
        return _statistics(wide.abs())
    if tensor.is_floating_point():
        return _statistics(tensor.to(torch.float32))
    if tensor.dtype.itemsize > 1 and not tensor.dtype.is_signed:
        return kernels.statistics_of(tensor.numpy())
    return _UNKNOWN


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one block of memory, in whatever order (a transposed matrix does)."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _device_statistics(tensor: Tensor) -> Tensor:
    """max, min, mean, norm and the counts of NaN and Inf as six numbers that stay on the device."""
    if tensor.numel() == 0:
        return torch.full((6,), float("nan"), device=tensor.device)
    values = tensor.abs() if tensor.is_complex() else tensor
    values = values.float() if values.dtype not in (torch.float32, torch.float64) else values
    smallest, largest = torch.aminmax(values)
    norm = values if values.dim() == 0 else torch.linalg.vector_norm(values)
    parts = [largest, smallest, values.mean(), norm, values.isnan().sum(), values.isinf().sum()]
    return torch.stack([part.to(torch.float64) for part in parts])


def _sketch(host: Tensor) -> bytes | None:
    if host.is_complex():
        host = torch.view_as_real(host.to(torch.complex64) if host.dtype is torch.complex32 else host)
    kind = _KINDS.get(host.dtype)
    if kind is None:
        if not host.is_floating_point():
            return kernels.sketch_of(host.numpy())
        host, kind = host.to(torch.float32), "f4"
    host = host.contiguous()
    return kernels.sketch(host.data_ptr(), host.numel(), kind)


def _memory(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor on the host, without a copy; valid while the tensor lives."""
    size = tensor.numel() * tensor.element_size()
    return (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""


def snapshot(tensor: Tensor) -> TensorData | None:
    """A private copy of a tensor's values as bytes; None for one without values (meta, fake, nested)."""
    content, _, _ = _content(tensor)
    if content is None:
        return None
    host = content.detach().cpu().resolve_conj().resolve_neg().contiguous()
    size = host.numel() * host.element_size()
    data = ctypes.string_at(host.data_ptr(), size) if size else b""
    return TensorData(data, _DTYPES[host.dtype].removeprefix("torch."), tuple(host.shape))


def describe_other(value: Any) -> Leaf | None:
    """A value that only torch knows."""
    kind = type(value)
    if kind is torch.Size:
        return Leaf("torch.Size", list(value))
    if kind is torch.dtype:
        return Leaf("torch.dtype", str(value))
    if kind is torch.device:
        return Leaf("torch.device", str(value))
    if kind is torch.memory_format:
        return Leaf("torch.memory_format", extra={"format": str(value).removeprefix("torch.")})
    if kind is np.ndarray or torch.distributed.is_available() is False:
        return None
    return _describe_distributed(value, kind)


def _describe_distributed(value: Any, kind: type) -> Leaf | None:
    name = kind.__name__
    if name == "ProcessGroup":
        ranks = torch.distributed.get_process_group_ranks(value)
        return Leaf("torch.ProcessGroup", extra={"group_ranks": ranks, "group_id": group_id(ranks)})
    if name in ("ReduceOp", "RedOpType"):
        return Leaf("torch.distributed.ReduceOp", str(value.op if name == "ReduceOp" else value))
    return None


def group_id(ranks: list[int]) -> str:
    return f"{zlib.crc32(str(ranks).encode()):08x}"
