"""What a torch value is, in the words of the file format; statistics come from one pass over its memory."""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from msprobe import kernels
from msprobe.adapter import Want
from msprobe.kernels import KIND_OF_DTYPE, Statistics
from msprobe.pytorch.autograd import Untracked
from msprobe.pytorch.versions import _NEAR, _PLAIN
from msprobe.record import Deferred, Leaf
from msprobe.store.tensor_file import TensorData

# How the elements of a dtype lie in memory, for the kernels; not every release of torch has each of them.
_KINDS = {getattr(torch, name): kind for name, kind in KIND_OF_DTYPE.items() if hasattr(torch, name)}
# What a rarer dtype is widened to. One in neither table (float4, packed bits) has no values to speak of.
_WIDER = {
    getattr(torch, name): wide
    for wide, names in {
        torch.complex64: ("complex32", "complex64"),
        torch.complex128: ("complex128",),
        torch.float32: (
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
        ),
    }.items()
    for name in names
    if hasattr(torch, name)
}
_DTYPES = {value: str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)}
_UINT64 = getattr(torch, "uint64", None)
_WIDE_UNSIGNED = frozenset(getattr(torch, name) for name in ("uint16", "uint32") if hasattr(torch, name))
_TOP_BIT = -(2**63)
_TENSOR = "torch.Tensor"
_UNKNOWN = Statistics(None, None, None, None)
_MOST_DENSE = 1 << 28  # bytes; a sparse tensor that would take more has statistics only

_data_ptr = Tensor.data_ptr  # as it is while nobody watches who asks for the memory
_is_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


class Described:
    """The descriptions of one recorder; those that wait on a device are fetched together."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Deferred, Tensor, torch.dtype]] = []

    def leaf(self, tensor: Tensor, want: Want) -> Leaf:
        """Describe a tensor; the common kind on a short way, because this is done for every tensor."""
        kind = _KINDS.get(tensor.dtype)
        if kind is not None and type(tensor) in _PLAIN:
            try:
                if tensor.is_contiguous() and tensor.is_cpu and not tensor.is_neg():
                    address, shape = _data_ptr(tensor), tuple(tensor.shape)
                    if shape and (address > _NEAR or _has_memory(tensor)):
                        stats = kernels.statistics(address, tensor.numel(), kind)
                        checksum = kernels.checksum(_memory(tensor)) if want.checksum else None
                        sketch = _sketch(tensor) if want.sketch else None
                        dtype = _DTYPES[tensor.dtype]
                        return Leaf(
                            _TENSOR, None, dtype, shape, stats, tensor.requires_grad, checksum, sketch
                        )
            except RuntimeError:
                pass  # its values do not lie in memory of its own: it is sparse, nested, or wraps another
        with Untracked():
            return self._rare_leaf(tensor, want)

    def _rare_leaf(self, tensor: Tensor, want: Want) -> Leaf:
        content, type_name, extra = _content(tensor)
        stats: Statistics | Deferred = _UNKNOWN
        checksum = sketch = None
        if content is not None:
            stats = _statistics(content) if content.is_cpu else self._defer(content)
            host = _on_host(content) if want.checksum or want.sketch else None
            if host is not None:
                checksum = kernels.checksum(_memory(host)) if want.checksum else None
                sketch = _sketch(host) if want.sketch else None
        dtype, shape = _DTYPES[tensor.dtype], _shape(tensor, content)
        return Leaf(type_name, None, dtype, shape, stats, tensor.requires_grad, checksum, sketch, None, extra)

    def _defer(self, content: Tensor) -> Deferred | Statistics:
        if content.numel() == 0:
            return _UNKNOWN
        deferred = Deferred()
        self.waiting.append((deferred, _on_device(content), content.dtype))
        return deferred

    def settle(self) -> None:
        """One transfer from each device for all that waits there."""
        count = len(self.waiting)  # other threads may add to it meanwhile
        waiting = self.waiting[:count]
        del self.waiting[:count]
        with Untracked():
            for device in dict.fromkeys(row.device for _, row, _ in waiting):
                here = [entry for entry in waiting if entry[1].device == device]
                numbers = iter(torch.cat([row for _, row, _ in here]).cpu().tolist())
                for deferred, row, dtype in here:
                    deferred.statistics = _from_device(dtype, list(islice(numbers, row.numel())))


def _is_plain(tensor: Tensor) -> bool:
    """Whether its memory holds its values, in a way that the kernels understand."""
    return (
        type(tensor) in _PLAIN
        and tensor.dtype in _KINDS
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_neg() or tensor.is_nested or _is_wrapped(tensor))
    )


def _content(tensor: Tensor) -> tuple[Tensor | None, str, dict[str, Any] | None]:
    """The tensor in memory whose values stand for this one (None when it has none), and how it is called."""
    if _is_plain(tensor):
        return (tensor if _has_memory(tensor) else None), _TENSOR, None
    return _rare_content(tensor, type(tensor))


def _has_memory(tensor: Tensor) -> bool:
    """Not so once its storage was freed (`resize_(0)`, as between uses of sharded parameters).

    Then its address is its offset in bytes, which is not 0 for a view.
    """
    return not tensor.numel() or _data_ptr(tensor) > tensor.storage_offset() * tensor.element_size()


def _rare_content(tensor: Any, kind: Any) -> tuple[Tensor | None, str, dict[str, Any] | None]:
    if kind.__name__ == "DTensor":
        extra = {
            "device_mesh": tensor.device_mesh.mesh.tolist(),
            "placements": _placements(tensor.placements),
        }
        return _content(tensor._local_tensor)[0], "torch.distributed.tensor.DTensor", extra
    if kind.__name__ in ("FakeTensor", "AsyncCollectiveTensor"):
        return None, f"{kind.__module__}.{kind.__qualname__}", None
    if tensor.is_nested:
        return _content(tensor.values())[0], _TENSOR, None
    if tensor.is_meta or _is_wrapped(tensor) or kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return None, _TENSOR, None  # a class with a dispatch of its own keeps its values where it likes
    if tensor.layout is torch.strided and not _has_memory(tensor):
        return None, _TENSOR, None
    if tensor.is_quantized:
        return tensor.dequantize(), _TENSOR, None
    if tensor.dtype not in _KINDS and tensor.dtype not in _WIDER:
        return None, _TENSOR, None
    return tensor.resolve_neg().resolve_conj(), _TENSOR, None


def _shape(tensor: Tensor, content: Tensor | None) -> tuple[int, ...]:
    """The shape in whole numbers: of a nested tensor that of its values; -1 is a size still open."""
    if tensor is content:
        return tuple(tensor.shape)
    shape = tensor.values().shape if tensor.is_nested else tensor.shape
    return tuple(size if type(size) is int else -1 for size in shape)


def _placements(placements: Any) -> list[dict[str, Any]]:
    found = []
    for placement in placements:
        fields = {key: getattr(placement, key) for key in ("dim", "reduce_op") if hasattr(placement, key)}
        found.append({type(placement).__name__.lstrip("_"): fields})
    return found


def _statistics(tensor: Tensor) -> Statistics:
    """The statistics of a tensor in the memory of the host; of the absolute values where it is complex."""
    if tensor.layout is not torch.strided:
        return _of_sparse(tensor)
    kind = _KINDS.get(tensor.dtype)
    if kind is None:
        wide = tensor.to(_WIDER[tensor.dtype])
        return _statistics(wide.abs() if wide.is_complex() else wide)
    if tensor.dim() == 0:
        return _of_scalar(tensor.item())
    dense = tensor if _is_dense(tensor) else tensor.contiguous()
    return kernels.statistics(_data_ptr(dense), dense.numel(), kind)


def _of_scalar(value: Any) -> Statistics:
    """All four are the value itself, as every reader of this format expects."""
    if isinstance(value, bool):
        return Statistics(value, value, None, None)
    return Statistics(value, value, value, value, int(value != value), int(abs(value) == math.inf))


def _of_sparse(tensor: Tensor) -> Statistics:
    """From the values that are stored and one zero for all others, so that the whole is never made."""
    values = _stored(tensor).reshape(-1)
    if values.numel() == tensor.numel():
        return _statistics(values)
    stats = _statistics(torch.cat([values, values.new_zeros(1)]))
    if stats.mean is None:
        return stats
    return stats._replace(mean=stats.mean * (values.numel() + 1) / tensor.numel())


def _stored(tensor: Tensor) -> Tensor:
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
        return tensor.to_dense()
    return tensor.values()


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


def _on_device(tensor: Tensor) -> Tensor:
    """The statistics as numbers that stay on the device, for _from_device()."""
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    values = tensor.to(_WIDER[tensor.dtype]) if tensor.dtype in _WIDER else tensor
    values = values.abs() if values.is_complex() else values
    if not values.is_floating_point():
        return _whole_on_device(values)
    values = values if values.dtype is torch.float64 else values.float()
    smallest, largest = torch.aminmax(values)
    limits = torch.finfo(values.dtype)
    # A power of two, so that dividing by it rounds nothing, and squares and sums stay within the dtype.
    scale = torch.maximum(largest.abs(), smallest.abs()).clamp(limits.tiny, limits.max / 4)
    scale = scale.log2().floor().exp2()
    scaled = values / scale
    parts = torch.stack([largest, smallest, scaled.mean(), _norm(scaled), scale])
    counts = torch.stack([values.isnan().sum(), values.isinf().sum()])
    return torch.cat([parts.double(), counts.double()])


def _whole_on_device(values: Tensor) -> Tensor:
    """Each end goes in two halves, because one float64 does not hold 64 bits."""
    smallest, largest = _ends(values)
    halves = [largest >> 32, smallest >> 32, largest & 0xFFFFFFFF, smallest & 0xFFFFFFFF]
    values = values.double()
    return torch.cat([torch.stack(halves).double(), torch.stack([values.mean(), _norm(values)])])


def _ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest, in the bits of int64; torch orders no unsigned numbers but bytes."""
    if values.dtype is _UINT64:
        low, high = torch.aminmax(values.view(torch.int64) ^ _TOP_BIT)  # which has the same order
        return low ^ _TOP_BIT, high ^ _TOP_BIT
    low, high = torch.aminmax(values.long() if values.dtype in _WIDE_UNSIGNED else values)
    return low.long(), high.long()


def _norm(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values) if values.dim() else values


def _from_device(dtype: torch.dtype, numbers: list[float]) -> Statistics:
    if dtype in _WIDER or dtype.is_floating_point:
        largest, smallest, mean, norm, scale, nan, inf = numbers
        return Statistics(largest, smallest, mean * scale, norm * scale, int(nan), int(inf))
    *halves, mean, norm = numbers
    high_largest, high_smallest, low_largest, low_smallest = map(int, halves)
    ends = (high_largest << 32) + low_largest, (high_smallest << 32) + low_smallest
    if dtype is _UINT64:
        return Statistics(ends[0] % 2**64, ends[1] % 2**64, mean, norm)
    if dtype is torch.bool:
        return Statistics(bool(ends[0]), bool(ends[1]), None, None)
    return Statistics(*ends, mean, norm)


def _on_host(content: Tensor) -> Tensor | None:
    """The values in one block of the host's memory, in order; None for what is too large to be laid out."""
    if content.layout is not torch.strided:
        if content.numel() * content.element_size() > _MOST_DENSE:
            return None
        content = content.to_dense()
    return content.cpu().contiguous()


def _sketch(host: Tensor) -> bytes:
    if host.dtype in _WIDER:
        host = host.to(_WIDER[host.dtype])
        host = torch.view_as_real(host).contiguous() if host.is_complex() else host
    return kernels.sketch(_data_ptr(host), host.numel(), _KINDS[host.dtype])


def _memory(host: Tensor) -> Any:
    """The bytes of a tensor on the host, without a copy; valid while the tensor lives."""
    size = host.numel() * host.element_size()
    return (ctypes.c_char * size).from_address(_data_ptr(host)) if size else b""


def snapshot(tensor: Tensor) -> TensorData | None:
    """A private copy of a tensor's values as bytes; None for one without values (meta, fake)."""
    with Untracked():
        content = _content(tensor)[0]
        host = None if content is None else _on_host(content)
    if host is None:
        return None
    size = host.numel() * host.element_size()
    data = ctypes.string_at(_data_ptr(host), size) if size else b""
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
    return _describe_distributed(value, kind) if torch.distributed.is_available() else None


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
