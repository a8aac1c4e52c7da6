"""The elements of a tensor in row-major order, a bounded piece at a time, whatever its layout."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from msprobe import kernels, kernels_hash, kernels_layout
from msprobe.kernels import KIND_OF_DTYPE
from msprobe.kernels_layout import PIECE, View, boxes, filled

# How the elements of a dtype lie in memory, for the kernels; not every release of torch has each of them.
KINDS = {getattr(torch, name): kind for name, kind in KIND_OF_DTYPE.items() if hasattr(torch, name)}
# What a rarer dtype is widened to. One in neither table (float4, packed bits) has no values to speak of.
WIDER = {
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

_Places = npt.NDArray[np.int64]

PER_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)
_WHOLE_NUMBERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}

data_ptr = Tensor.data_ptr  # as they are while nobody watches who asks for the memory
_untyped_storage = Tensor.untyped_storage
_set: Any = Tensor.set_


def part_of(tensor: Tensor, view: View) -> Tensor:
    """Return a view of some elements of a tensor."""
    return tensor.as_strided(view.shape, view.strides, tensor.storage_offset() + view.offset)


def pieces(tensor: Tensor, most: int | None = None) -> Iterator[Tensor]:
    """Yield the elements in flat pieces and a shorter last one, each valid until the next.

    `most`: how many elements a piece has; those of PIECE bytes if it is not given.
    """
    if most is None:
        most = PIECE // (4 if tensor.is_quantized else tensor.element_size())
    if tensor.numel() <= most:
        yield _flat(tensor)
    elif tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized):
        yield from torch.split(tensor.view(-1), most)
    else:
        dtype = torch.float32 if tensor.is_quantized else tensor.dtype
        buffer = torch.empty(most, dtype=dtype, device=tensor.device)
        yield from filled(buffer, map(_flat, boxes(tensor, most)))


def _flat(tensor: Tensor) -> Tensor:
    dense = tensor.dequantize() if tensor.is_quantized else tensor
    return dense.contiguous().resolve_neg().resolve_conj().view(-1)


def memory(host: Tensor) -> Any:
    """Return the bytes of a dense tensor on the host, without a copy; valid while the tensor lives."""
    size = host.numel() * host.element_size()
    return (ctypes.c_char * size).from_address(data_ptr(host)) if size else b""


def checksum(tensor: Tensor) -> str:
    """Return the CRC-32 of the elements."""
    return kernels.checksum_of_parts(memory(piece.cpu()) for piece in pieces(tensor))


def sketch(tensor: Tensor) -> bytes:
    """Return the sketch of the elements."""
    return kernels.sketch_of_parts(_numbers(piece.cpu()) for piece in pieces(tensor))


def brief_sketch(tensor: Tensor) -> bytes | None:
    """Return the brief sketch of a tensor on the host; None for a dtype that has none."""
    if not tensor.numel() or not (tensor.dtype in KINDS and kernels.is_sketched(KINDS[tensor.dtype])):
        return None
    places = in_storage(kernels.picked_places(tensor.numel()), tuple(tensor.shape), tensor.stride())
    picked = elements_at(tensor, torch.from_numpy(places))
    return kernels.brief(data_ptr(picked), tensor.numel(), KINDS[tensor.dtype])


def elements_at(tensor: Tensor, places: Tensor) -> Tensor:
    """Return the elements that lie so far from the first one of a tensor in its storage."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,), tensor.storage_offset())[places].resolve_neg()


def in_storage(places: _Places, shape: tuple[int, ...], strides: tuple[int, ...]) -> _Places:
    """Return how far from the first element of a tensor its elements at these places lie."""
    index: _Places = np.zeros_like(places)
    for along, stride in zip(np.unravel_index(places, shape) if shape else (), strides, strict=True):
        index += along * stride
    return index


def _numbers(piece: Tensor) -> tuple[int, int, str, Tensor]:
    if piece.dtype in WIDER:
        piece = piece.to(WIDER[piece.dtype])
        piece = torch.view_as_real(piece).reshape(-1) if piece.is_complex() else piece
    return data_ptr(piece), piece.numel(), KINDS[piece.dtype], piece


def content_hash(tensors: Sequence[Tensor]) -> str:
    """Return the hash of the elements of plain tensors on the host, each of which begins a block.

    What an expanded view repeats is hashed once.
    """
    whole, total = kernels_hash.NOTHING, 0
    for tensor in tensors:
        size = tensor.element_size()
        plan = kernels_layout.hash_plan(tensor.shape, tensor.stride(), size)
        parts = (_hash_part(part_of(tensor, view)) for view in kernels_layout.views(plan))
        whole = whole.then(kernels_layout.joined(plan, parts))
        total += tensor.numel() * size
    return kernels_hash.digits(whole, total)


def _hash_part(view: Tensor) -> kernels_hash.Part:
    size = view.element_size()
    return kernels_hash.chained(
        kernels_hash.part_at(data_ptr(piece), piece.numel() * size) for piece in pieces(view)
    )


# ---- tensors that consist of others ----


def hashed_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the plain tensors that a tensor consists of, which its hash is of; none if it has no hash."""
    layout = tensor.layout
    if tensor.is_quantized:
        return _of_quantised(tensor) if tensor.dtype in _WHOLE_NUMBERS else []
    if layout is torch.strided:
        return [tensor]
    if layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.to_dense()]


def _of_quantised(tensor: Tensor) -> list[Tensor]:
    stored = torch.empty(0, dtype=_WHOLE_NUMBERS[tensor.dtype], device=tensor.device)
    _set(stored, _untyped_storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.qscheme() in PER_TENSOR:
        scale = torch.tensor([tensor.q_scale()], dtype=torch.float64, device=tensor.device)
        return [stored, scale, torch.tensor([tensor.q_zero_point()], device=tensor.device)]
    axis = torch.tensor([tensor.q_per_channel_axis()], device=tensor.device)
    return [stored, tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points(), axis]
