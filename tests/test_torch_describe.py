"""What is written of a tensor is true, for every dtype, layout and kind."""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from msprobe.adapter import Want
from msprobe.kernels import Statistics, sketch_of
from msprobe.pytorch import describe, on_device
from msprobe.pytorch.describe import Described, snapshot
from msprobe.record import Deferred, Leaf
from torch_fixtures import probe

__all__ = ["probe"]

UNKNOWN = Statistics(None, None, None, None)
FLOATS = ["float64", "float32", "float16", "bfloat16"]
FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
COMPLEX = ["complex32", "complex64", "complex128"]


def leaf_of(tensor: Tensor, want: Want = Want()) -> Any:  # noqa: B008 - a frozen value
    return Described().leaf(tensor, want)


def wide(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The values as numbers that numpy can count with."""
    if tensor.is_complex():
        return tensor.to(torch.complex128).abs().numpy()
    if tensor.is_floating_point():
        return tensor.to(torch.float64).numpy()
    return tensor.numpy()


def reference(tensor: Tensor) -> Statistics:
    values = wide(tensor)
    if values.size == 0:
        return Statistics(None, None, None, None)
    if values.dtype == np.bool_:
        return Statistics(bool(values.any()), bool(values.all()), None, None)
    with np.errstate(all="ignore"):
        exact = [int(value) if values.dtype.kind in "iu" else float(value) for value in values.ravel()]
        mean, norm = (
            float(np.mean(values.astype(np.float64))),
            math.sqrt(sum(float(v) * float(v) for v in exact)),
        )
        largest, smallest = (max(exact), min(exact)) if not np.isnan(values).any() else (math.nan, math.nan)
    return Statistics(largest, smallest, mean, norm, int(np.isnan(values).sum()), int(np.isinf(values).sum()))


def assert_statistics(found: Statistics, wanted: Statistics, exact: bool = True) -> None:
    """Not exact: the absolute value of a complex number is rounded to the precision of its parts."""
    assert [type(found.max), type(found.min)] == [type(wanted.max), type(wanted.min)]
    for name, a, b in zip(Statistics._fields, found, wanted, strict=True):
        if isinstance(b, float):
            rounded = name in ("mean", "norm") or not exact
            assert a == pytest.approx(b, rel=1e-6 if rounded else 0, abs=0, nan_ok=True), name
        else:
            assert a == b, name


def some(dtype: str) -> Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    values = torch.linspace(-3, 5, 24, dtype=torch.float64).view(4, 6)
    if dtype in ("uint16", "uint32", "uint64"):
        return torch.from_numpy((np.arange(24).reshape(4, 6) * 977).astype(dtype))
    if dtype == "bool":
        return values > 0
    if kind.is_complex:
        return torch.complex(values, values.flip(0)).to(kind)
    if dtype == "float8_e8m0fnu":
        return (2.0 ** values.round()).to(torch.float32).to(kind)
    return (
        (values * 20 if not kind.is_floating_point else values).abs().to(kind)
        if dtype == "uint8"
        else values.to(kind)
    )


@pytest.mark.spec("C074", "PT")
@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8, *INTEGERS, *COMPLEX, "bool"])
def test_statistics_of_every_dtype(dtype: str) -> None:
    tensor = some(dtype)
    leaf = leaf_of(tensor)
    assert (leaf.type, leaf.dtype, leaf.shape) == ("torch.Tensor", f"torch.{dtype}", (4, 6))
    assert_statistics(leaf.stats, reference(tensor), exact=not tensor.is_complex())


BIG = {
    "float64": torch.tensor([1e300, -1e300, 1.0], dtype=torch.float64),
    "float64 small": torch.tensor([1e-200, 2e-200], dtype=torch.float64),
    "float32": torch.full((1000,), 3e38),
    "float16": torch.full((5000,), 60000.0, dtype=torch.float16),
    "bfloat16": torch.full((4096,), 1.0078125, dtype=torch.bfloat16),
    "int64": torch.tensor([2**60, 2**60 + 1, -(2**62)]),
    "uint64": torch.from_numpy(np.array([2**64 - 1, 2**63], np.uint64)),
    "int8": torch.full((300,), 127, dtype=torch.int8),
    "complex": torch.tensor([1e308 + 1e308j]),
}


@pytest.mark.parametrize("name", BIG)
def test_large_values_neither_overflow_nor_lose_their_place(name: str) -> None:
    tensor = BIG[name]
    stats = leaf_of(tensor).stats
    values = [abs(value) if tensor.is_complex() else value for value in tensor.tolist()]
    if name == "complex":
        values = [math.inf]  # 1e308 + 1e308j is longer than the largest float
    assert (stats.max, stats.min) == (max(values), min(values))
    assert stats.norm == pytest.approx(math.hypot(*map(float, values)), rel=1e-6)
    assert stats.mean == pytest.approx(sum(float(value) / len(values) for value in values), rel=1e-6)


@pytest.mark.parametrize("dtype", [*FLOATS, "float8_e5m2", "complex64"])
@pytest.mark.parametrize(
    "values", [[math.nan, 1.0, -2.0], [math.inf, 1.0], [-math.inf, math.inf], [-math.inf, 3.0]]
)
def test_nan_and_infinity_are_shown_and_counted(dtype: str, values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype))
    assert_statistics(leaf_of(tensor).stats, reference(tensor))


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": lambda x: x[:0],
    "one": lambda x: x[:1, :1],
    "turned": lambda x: x.t(),
    "every second": lambda x: x[:, ::2],
    "rows": lambda x: x[1:3],
    "expanded": lambda x: x[:1].expand(5, 6),
    "turned round": lambda x: x.flip(0).t()[1:],
    "channels last": lambda x: x.reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "as strided": lambda x: x.as_strided((3, 3), (1, 1)),
    "parameter": lambda x: nn.Parameter(x, requires_grad=x.is_floating_point()),
    "requires grad": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
    "negative": lambda x: torch.complex(x.double(), x.double()).conj().imag if x.is_floating_point() else x,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_statistics_of_every_layout(dtype: str, shape: str) -> None:
    tensor = (
        SHAPES[shape](some(dtype)) if not (dtype == "complex64" and shape == "parameter") else some(dtype)
    )
    leaf = leaf_of(tensor)
    assert leaf.shape == tuple(tensor.shape)
    assert_statistics(leaf.stats, reference(tensor.detach().resolve_neg()), exact=dtype != "complex64")
    assert leaf.requires_grad == tensor.requires_grad


@pytest.mark.parametrize("value", [2.5, -3, True, math.nan, math.inf, 3 + 4j, 2**62, 1e308 + 1e308j])
def test_a_number_is_its_own_statistics(value: Any) -> None:
    tensor = torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else None)
    wanted = math.hypot(value.real, value.imag) if isinstance(value, complex) else tensor.item()
    stats = leaf_of(tensor).stats
    if isinstance(value, bool):
        assert stats == Statistics(True, True, None, None)
    else:
        assert list(stats[:4]) == pytest.approx([wanted] * 4, nan_ok=True)
        assert stats[4:] == (int(wanted != wanted), int(abs(wanted) == math.inf))


SPARSE: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda x: x.to_sparse(),
    "coo of rows": lambda x: x.to_sparse(1),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 3)),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64"])
def test_a_sparse_tensor_has_the_statistics_of_the_whole(name: str, dtype: str) -> None:
    whole = torch.relu(some("float64")).to(getattr(torch, dtype)) * 3
    tensor = SPARSE[name](whole)
    leaf = leaf_of(tensor, Want(checksum=True))
    assert leaf.shape == (4, 6)
    assert_statistics(leaf.stats, reference(whole), exact=dtype != "complex64")
    assert leaf.checksum == f"{zlib.crc32(whole.numpy().tobytes()):08x}"


def test_sparse_tensors_of_odd_kinds() -> None:
    doubled = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,))
    assert leaf_of(doubled).stats == Statistics(5.0, 0.0, 1.25, 5.0)
    empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0), (4,))
    assert leaf_of(empty).stats == Statistics(0.0, 0.0, 0.0, 0.0)
    huge = torch.sparse_coo_tensor(torch.tensor([[7], [9]]), torch.tensor([4.0]), (1 << 30, 1 << 20))
    leaf = leaf_of(huge, Want(checksum=True, sketch=True))
    assert (leaf.stats[:2], leaf.stats.norm, leaf.checksum, leaf.sketch) == ((4.0, 0.0), 4.0, None, None)
    assert snapshot(huge) is None
    assert leaf_of(torch.eye(3).to_mkldnn()).stats == leaf_of(torch.eye(3)).stats


def test_a_quantised_tensor_is_described_by_the_values_it_stands_for() -> None:
    tensor = torch.quantize_per_tensor(torch.tensor([[0.1, -0.5], [0.3, 0.0]]), 0.1, 2, torch.qint8)
    leaf = leaf_of(tensor)
    assert (leaf.dtype, leaf.shape) == ("torch.qint8", (2, 2))
    assert_statistics(leaf.stats, reference(tensor.dequantize()))
    saved = snapshot(tensor)
    assert saved is not None and (saved.dtype, saved.shape) == ("float32", (2, 2))


def test_tensors_without_values() -> None:
    unknown = UNKNOWN
    meta = leaf_of(torch.ones(3, device="meta"), Want(checksum=True, sketch=True))
    assert (meta.stats, meta.checksum, meta.sketch, meta.shape) == (unknown, None, None, (3,))
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(2, 3)
    leaf = leaf_of(fake)
    assert (leaf.type, leaf.stats, leaf.shape) == (
        "torch._subclasses.fake_tensor.FakeTensor",
        unknown,
        (2, 3),
    )
    bits = torch.zeros(3, dtype=torch.uint8).view(torch.bits8)
    assert leaf_of(bits, Want(checksum=True)).stats == unknown
    assert [snapshot(tensor) for tensor in (fake, bits, torch.ones(1, device="meta"))] == [None, None, None]


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float8_e5m2", "bool"])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[2:],
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x[3, 3],
        lambda x: x.conj()[1:],
    ],
)
def test_a_tensor_whose_storage_was_freed_has_no_values(dtype: str, view: Callable[[Tensor], Tensor]) -> None:
    """As parameters that are sharded between their uses."""
    whole = some(dtype)
    tensor = view(whole)
    whole.untyped_storage().resize_(0)
    leaf = leaf_of(tensor, Want(checksum=True, sketch=True))
    assert leaf[1:] == Leaf("", None, f"torch.{dtype}", tuple(tensor.shape), UNKNOWN, False)[1:]
    assert snapshot(tensor) is None


def test_nested_tensors_show_their_values() -> None:
    parts = [torch.ones(2, 3), torch.zeros(1, 3)]
    for layout in (torch.strided, torch.jagged):
        leaf = leaf_of(torch.nested.nested_tensor(parts, layout=layout))
        assert (leaf.stats.max, leaf.stats.min, leaf.stats.mean) == (1.0, 0.0, pytest.approx(2 / 3))
        assert math.prod(leaf.shape) == 9


class Named(Tensor):
    """A tensor class that only has another name."""


class Hidden(Tensor):
    """A tensor class that keeps its values elsewhere."""

    @staticmethod
    def __new__(cls, inside: Tensor) -> Hidden:
        made: Hidden = Tensor._make_wrapper_subclass(cls, inside.shape, dtype=inside.dtype)
        return made

    def __init__(self, inside: Tensor) -> None:
        self.inside = inside

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def test_tensor_classes_of_the_user() -> None:
    assert leaf_of(torch.tensor([1.0, 2.0]).as_subclass(Named)).stats.max == 2.0
    assert leaf_of(Hidden(torch.ones(2))).stats == Statistics(None, None, None, None)


# --- checksums, sketches, files ---


@pytest.mark.spec("C073", "PT")
@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8, *INTEGERS, *COMPLEX, "bool"])
def test_the_checksum_is_the_crc_of_the_bytes_in_order(dtype: str) -> None:
    tensor = some(dtype)
    for seen in (tensor, tensor.t(), tensor[:, ::2], tensor[:0]):
        data = seen.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert leaf_of(seen, Want(checksum=True)).checksum == f"{zlib.crc32(data):08x}"


@pytest.mark.spec("P19", "PT")
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "complex64", "complex128", "bool", "float8_e5m2"])
def test_the_sketch_is_that_of_the_values_in_order(dtype: str) -> None:
    tensor = some(dtype)
    for seen in (tensor, tensor.t(), tensor[:, ::2]):
        values = seen.float() if dtype in ("bfloat16", "float8_e5m2") else seen
        assert leaf_of(seen, Want(sketch=True)).sketch == sketch_of(values.contiguous().numpy())


@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8, *INTEGERS, *COMPLEX, "bool"])
def test_a_snapshot_is_a_copy_of_the_values_in_order(dtype: str) -> None:
    tensor = some(dtype)
    for seen in (tensor, tensor.t(), tensor[:, ::2], tensor[:0], tensor[0, 0]):
        saved = snapshot(seen)
        data = seen.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert saved is not None
        assert (bytes(saved.data), saved.dtype, saved.shape) == (data, dtype, tuple(seen.shape))


def test_a_conjugated_view_is_saved_as_the_values_it_shows() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    saved = snapshot(tensor.conj())
    assert saved is not None
    assert bytes(saved.data) == tensor.conj().resolve_conj().numpy().tobytes()


# --- a device, whose statistics come later and together ---


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_large_integers_come_whole_from_a_device(dtype: str) -> None:
    ends = {"int64": [2**60 + 1, -(2**62) - 3], "int32": [2**31 - 1, -(2**31)], "uint8": [255, 1]}[dtype]
    tensor = torch.tensor(ends, dtype=getattr(torch, dtype))
    described = Described()
    deferred = described._defer(tensor)
    described.settle()
    assert not isinstance(deferred, Statistics)
    assert list(deferred.statistics[:2]) == ends


@pytest.mark.parametrize("dtype", [*FLOATS, "float8_e5m2", "int64", "uint8", "bool", "complex64"])
def test_statistics_made_on_a_device_are_those_made_on_the_host(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [some(dtype), some(dtype)[0, 0], some(dtype)[:0]]
    described = Described()
    on_host = describe._described

    def elsewhere(tensor: Tensor) -> tuple[Any, str | None, bytes | None]:
        return (described._defer(tensor), None, None) if tensor.numel() else on_host(tensor)

    monkeypatch.setattr(describe, "_described", elsewhere)
    leaves = [described._rare_leaf(tensor, Want()) for tensor in tensors]
    assert len(described.waiting) == 2
    described.settle()
    assert len(described.waiting) == 0
    for leaf, tensor in zip(leaves, tensors, strict=True):
        stats = leaf.stats if isinstance(leaf.stats, Statistics) else leaf.stats.statistics
        wanted = leaf_of_host(tensor)
        assert leaf.content_hash == on_host(tensor)[1]
        assert [type(stats.max), type(stats.min)] == [type(wanted.max), type(wanted.min)]
        assert list(stats[:2]) == (
            list(wanted[:2]) if dtype != "complex64" else pytest.approx(list(wanted[:2]))
        )
        assert (stats.mean, stats.norm) == (
            pytest.approx((wanted.mean, wanted.norm), rel=1e-5) if wanted.mean is not None else (None, None)
        )


def leaf_of_host(tensor: Tensor) -> Statistics:
    return reference(tensor) if tensor.dim() else describe._of_scalar(wide(tensor).item())


EXTREME = {
    "large": torch.full((1000,), 1e25),
    "largest": torch.full((1000,), torch.finfo(torch.float32).max),
    "small": torch.full((1000,), -1e-30),
    "smallest": torch.full((1000,), 1.4e-45),
    "large and small": torch.tensor([1e30, -1e-30, 3.0]),
    "zero": torch.zeros(3),
    "float64": torch.tensor([1e300, -1e300, 1.0], dtype=torch.float64),
    "float64 small": torch.tensor([1e-200, 2e-200], dtype=torch.float64),
    "float16": torch.full((1000,), 60000.0, dtype=torch.float16),
    "nan": torch.tensor([math.nan, 1e30]),
    "infinite": torch.tensor([-math.inf, 1e30]),
    "int64": torch.tensor([2**62, -(2**63)]),
    **{
        name: torch.tensor([1, 2**bits - 1, 2 ** (bits - 1)], dtype=getattr(torch, name))
        for name, bits in (("uint16", 16), ("uint32", 32), ("uint64", 64))
        if hasattr(torch, name)
    },
}


@pytest.mark.parametrize("name", EXTREME)
def test_a_device_neither_overflows_nor_underflows(name: str) -> None:
    tensor = EXTREME[name]
    described = Described()
    deferred = described._defer(tensor)
    described.settle()
    assert isinstance(deferred, Deferred) and deferred.statistics is not None
    norm = math.hypot(*wide(tensor).ravel().tolist())  # does not overflow either
    found = deferred.statistics._replace(norm=None)
    assert_statistics(found, reference(tensor)._replace(norm=None))
    assert deferred.statistics.norm == pytest.approx(norm, rel=1e-5, abs=0, nan_ok=True)


def test_whole_numbers_are_not_rounded_by_a_device() -> None:
    described = Described()
    deferred = described._defer(torch.tensor([1.0, 2.0, 6.0, 3.0]))
    described.settle()
    assert isinstance(deferred, Deferred) and deferred.statistics is not None
    assert deferred.statistics.mean == 3.0


def test_each_device_is_asked_on_its_own() -> None:
    """One that does not answer takes nothing from the others."""
    described = Described()
    first = described._defer(torch.tensor([3.0, 4.0]))
    nowhere = on_device.compute(torch.tensor([3.0, 4.0]))
    nowhere = nowhere._replace(row=torch.empty_like(nowhere.row, device="meta"))
    described.waiting.append((Deferred(), nowhere))
    second = described._defer(torch.tensor([[7]]))
    with pytest.raises(NotImplementedError, match="no data"):
        described.settle()
    assert isinstance(first, Deferred) and isinstance(second, Deferred)
    assert [first.statistics, second.statistics] == [
        Statistics(4.0, 3.0, 3.5, 5.0),
        Statistics(7, 7, 7.0, 7.0),
    ]
    assert described.waiting == []


def test_no_statistics_are_lost_between_threads() -> None:
    described = Described()
    made: list[Any] = []

    def work() -> None:
        for number in range(400):
            made.append((described._defer(torch.tensor([number])), number))

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        described.settle()
    described.settle()
    assert [(deferred.statistics or UNKNOWN).max for deferred, _ in made] == [number for _, number in made]
