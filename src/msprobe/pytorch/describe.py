"""What a torch value is, in the words of the file format; statistics come from one pass over its memory."""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from msprobe import kernels
from msprobe.adapter import Want
from msprobe.kernels import Description, Statistics
from msprobe.kernels_hash import NOTHING, digits, part_at
from msprobe.kernels_layout import PIECE, stored
from msprobe.pytorch import on_device, pieces
from msprobe.pytorch.autograd import Untracked
from msprobe.pytorch.on_device import Numbers
from msprobe.pytorch.pieces import KINDS, PER_TENSOR, WIDER, data_ptr, memory
from msprobe.pytorch.versions import _NEAR, _PLAIN
from msprobe.record import Deferred, Leaf
from msprobe.store.tensor_file import TensorData

_DTYPES = {value: str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)}
_TENSOR = "torch.Tensor"
_UNKNOWN = Statistics(None, None, None, None)
_MOST_COPIED = 1 << 24  # bytes; a tensor that can only be described from a larger copy has less to tell
_MOST_DENSE = 1 << 28  # bytes; a sparse tensor that would take more is not saved

_make = tuple.__new__  # much sooner than Leaf(), because this is done for every tensor
_is_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor


class Described:
    """The descriptions of one recorder; those that wait on a device are fetched together."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Deferred, Numbers]] = []

    def leaf(self, tensor: Tensor, want: Want) -> Leaf:
        """Describe a tensor; the common kind on a short way, because this is done for every tensor."""
        kind = KINDS.get(tensor.dtype)
        if kind is not None and type(tensor) in _PLAIN:
            try:
                address, shape = data_ptr(tensor), tuple(tensor.shape)
                has_memory = address > _NEAR or _has_memory(tensor)
                if shape and has_memory and tensor.is_cpu and not tensor.is_neg():
                    dense = tensor if tensor.is_contiguous() else _dense(tensor)
                    if dense is not None:
                        count = tensor.numel()
                        is_whole = want.sketch or (want.float_sketch and tensor.is_floating_point())
                        stats, digest, sketch = kernels.described(data_ptr(dense), count, kind, is_whole)
                        checksum = kernels.checksum(memory(dense)) if want.checksum else None
                        dtype, grad = _DTYPES[tensor.dtype], tensor.requires_grad
                        found = (stats, grad, checksum, sketch, None, None, digest, None)
                        return _make(Leaf, (_TENSOR, None, dtype, shape, *found))
            except RuntimeError:
                pass  # its values do not lie in memory of its own: it is sparse, nested, or wraps another
        with Untracked():
            return self._rare_leaf(tensor, want)

    def _rare_leaf(self, tensor: Tensor, want: Want) -> Leaf:
        content, type_name, extra = _content(tensor)
        stats: Statistics | Deferred = _UNKNOWN
        checksum = sketch = digest = None
        if content is not None:
            if content.is_cpu or not content.numel():
                stats, digest, sketch = _described(content)
            else:
                stats = self._defer(content)
            values = _laid_out(content) if want.checksum or want.sketch else None
            if values is not None:
                checksum = pieces.checksum(values) if want.checksum else None
                sketch = pieces.sketch(values) if want.sketch else sketch
        dtype, shape, grad = _DTYPES[tensor.dtype], _shape(tensor, content), tensor.requires_grad
        return Leaf(type_name, None, dtype, shape, stats, grad, checksum, sketch, None, extra, digest)

    def _defer(self, content: Tensor) -> Deferred | Statistics:
        if _is_unbounded(content):
            return _UNKNOWN
        deferred = Deferred()
        self.waiting.append((deferred, on_device.compute(content)))
        return deferred

    def settle(self) -> None:
        """One transfer from each device for all that waits there."""
        count = len(self.waiting)  # other threads may add to it meanwhile
        waiting = self.waiting[:count]
        del self.waiting[:count]
        with Untracked():
            for device in dict.fromkeys(found.row.device for _, found in waiting):
                here = [entry for entry in waiting if entry[1].row.device == device]
                numbers = iter(torch.cat([found.row for _, found in here]).cpu().tolist())
                for deferred, found in here:
                    deferred.statistics, deferred.hash, deferred.sketch = found.read(numbers)


def _dense(tensor: Tensor) -> Tensor | None:
    """A copy of a tensor with its elements in a row; None of a large one, which is copied piece by piece."""
    if tensor.layout is not torch.strided or tensor.nbytes > PIECE:
        return None
    with Untracked():
        return tensor.contiguous()


def sketch(tensor: Tensor) -> bytes | None:
    """The sketch of a tensor in the memory of the host; None for any other."""
    kind = KINDS.get(tensor.dtype)
    if kind is not None and type(tensor) in _PLAIN:
        try:
            if tensor.is_contiguous() and tensor.is_cpu and not tensor.is_neg():
                address = data_ptr(tensor)
                if address > _NEAR:
                    return kernels.sketch(address, tensor.numel(), kind)
        except RuntimeError:
            pass  # its values do not lie in memory of its own
    with Untracked():
        content = _content(tensor)[0]
        values = _laid_out(content) if content is not None and content.is_cpu else None
        return None if values is None else pieces.sketch(values)


def _is_plain(tensor: Tensor) -> bool:
    """Whether its memory holds its values, in a way that the kernels understand."""
    return (
        type(tensor) in _PLAIN
        and tensor.dtype in KINDS
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
    return not tensor.numel() or data_ptr(tensor) > tensor.storage_offset() * tensor.element_size()


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
    is_known = tensor.is_quantized or tensor.dtype in KINDS or tensor.dtype in WIDER
    return (tensor if is_known else None), _TENSOR, None


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


def _described(tensor: Tensor) -> Description:
    """The statistics, the hash and the brief sketch of a tensor in the memory of the host."""
    kind = KINDS.get(tensor.dtype)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return *_described_by_parts(tensor), None
    if kind is None or tensor.numel() * tensor.element_size() > PIECE:
        return (*_described_in_pieces(tensor), pieces.brief_sketch(tensor))
    dense = tensor.resolve_neg().contiguous() if tensor.is_neg() else tensor.contiguous()
    stats, digest, sketch = kernels.described(data_ptr(dense), dense.numel(), kind)
    return (stats if tensor.dim() else _of_scalar(tensor.item())), digest, sketch


def _described_by_parts(tensor: Tensor) -> tuple[Statistics, str | None]:
    if _is_unbounded(tensor):
        return _UNKNOWN, None
    tensor = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
    parts = pieces.hashed_tensors(tensor)
    return _statistics(tensor), pieces.content_hash(parts) if parts else None


def _described_in_pieces(tensor: Tensor) -> tuple[Statistics, str]:
    if tensor.dim() == 0 or 0 in tensor.stride():
        return _statistics(tensor), pieces.content_hash([tensor])
    found, whole, size = [], NOTHING, tensor.element_size()
    for piece in pieces.pieces(tensor):  # of which each is copied, if it must be, only once
        found.append(_of_piece(piece))
        whole = whole.then(part_at(data_ptr(piece), piece.numel() * size))
    return kernels.merged(found), digits(whole, tensor.numel() * size)


def _statistics(tensor: Tensor) -> Statistics:
    """The statistics of a tensor in the memory of the host; of the absolute values where it is complex."""
    if tensor.layout is not torch.strided:
        return _of_sparse(tensor)
    if tensor.dim() == 0:
        return _of_scalar(_numbers(tensor).item())
    view, times = stored(tensor.shape, tensor.stride())
    found = pieces.pieces(pieces.part_of(tensor, view) if times > 1 else tensor)
    return kernels.repeated(kernels.merged(_of_piece(piece) for piece in found), times)


def _of_piece(piece: Tensor) -> tuple[Statistics, int]:
    numbers = _numbers(piece)
    return kernels.statistics(data_ptr(numbers), numbers.numel(), KINDS[numbers.dtype]), piece.numel()


def _numbers(values: Tensor) -> Tensor:
    """Real numbers of a dtype that the kernels know."""
    values = values.dequantize() if values.is_quantized else values
    values = values.to(WIDER[values.dtype]) if values.dtype in WIDER else values
    return values.abs() if values.is_complex() else values


def _of_scalar(value: Any) -> Statistics:
    """All four are the value itself, as every reader of this format expects."""
    if isinstance(value, bool):
        return Statistics(value, value, None, None)
    return Statistics(value, value, value, value, int(value != value), int(abs(value) == math.inf))


def _of_sparse(tensor: Tensor) -> Statistics:
    """From the values that are stored and one zero for all others, so that the whole is never made."""
    values = _stored(tensor).reshape(-1)
    found = [(_statistics(values), values.numel())]
    if values.numel() < tensor.numel():
        found.append((_statistics(values.new_zeros(1)), tensor.numel() - values.numel()))
    return kernels.merged(found)


def _is_unbounded(content: Tensor) -> bool:
    """Whether describing it needs a copy that cannot be made piece by piece, of more than is allowed."""
    if content.layout is torch.sparse_coo:
        copied = 0 if content.is_coalesced() else content._values().numel() * 8 * (2 + content.sparse_dim())
    elif content.layout is torch._mkldnn:  # type: ignore[attr-defined]
        copied = content.numel() * content.element_size()
    elif content.is_quantized and content.qscheme() not in PER_TENSOR:
        copied = content.numel() * 4
    else:
        copied = 0
    return copied > _MOST_COPIED


def _stored(tensor: Tensor) -> Tensor:
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
        return tensor.to_dense()
    return tensor.values()


def _laid_out(content: Tensor) -> Tensor | None:
    """The tensor with every element in memory; None for a sparse one that would be too large."""
    if content.layout is torch.strided:
        return None if _is_unbounded(content) else content
    return content.to_dense() if content.numel() * content.element_size() <= _MOST_COPIED else None


def _on_host(content: Tensor) -> Tensor | None:
    """All values in one block of the host's memory, in order; None for what is too large to be laid out."""
    if content.layout is not torch.strided:
        if content.numel() * content.element_size() > _MOST_DENSE:
            return None
        content = content.to_dense()
    content = content.dequantize() if content.is_quantized else content
    return content.cpu().contiguous().resolve_neg().resolve_conj()


def snapshot(tensor: Tensor) -> TensorData | None:
    """A private copy of a tensor's values as bytes; None for one without values (meta, fake)."""
    with Untracked():
        content = _content(tensor)[0]
        host = None if content is None else _on_host(content)
    if host is None:
        return None
    size = host.numel() * host.element_size()
    data = ctypes.string_at(data_ptr(host), size) if size else b""
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
