"""Hash and statistics of torch tensors of any layout: those of a plain copy, in little memory."""

import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe import kernels_layout
from msprobe.adapter import Want
from msprobe.kernels import Description, Statistics
from msprobe.pytorch import on_device
from msprobe.pytorch.describe import Described
from msprobe.record import Leaf
from test_hash import by_definition

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.complex32,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "sliced": lambda x: x[1:, ::2, 3:],
    "one row": lambda x: x[1],
    "expanded in front": lambda x: x.expand(3, *x.shape),
    "expanded behind": lambda x: x[..., :1].expand(*x.shape),
    "expanded in the middle": lambda x: x[:, :1].expand(-1, 7, -1),
    "expanded twice": lambda x: x[:1, 0, None, :].expand(5, 4, -1),
    "one number expanded": lambda x: x[0, 0, 0].expand(70, 70),
    "overlapping": lambda x: x.as_strided((9, 8), (1, 2)),
    "0-d": lambda x: x[1, 2, 3],
    "empty": lambda x: x[:, :0],
    "0-d of a view": lambda x: x[..., -1][0, 1],
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
}


def numbers(dtype: torch.dtype, *shape: int) -> Tensor:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex32 is experimental
        if dtype.is_complex:
            return torch.randn(*shape, dtype=torch.complex64).to(dtype)
        return (torch.randn(*shape).abs() * 8).to(dtype)


def bytes_of(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.flatten().view(torch.uint8).tolist()) if plain.numel() else b""


def leaf_of(tensor: Tensor, want: Want = Want()) -> Leaf:  # noqa: B008  # a constant
    return Described().leaf(tensor, want)


def from_device(tensor: Tensor) -> Description:
    """What the way over a device gives, here on the CPU."""
    found = on_device.compute(tensor)
    return found.read(iter(found.row.tolist()))


def same(ours: Statistics, theirs: Statistics, tolerance: float = 1e-12) -> bool:
    return all(
        a == b
        or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
        or (a is not None and b is not None and math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-300))
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_layout_has_the_hash_of_its_bytes(dtype: torch.dtype, layout: str) -> None:
    tensor = LAYOUTS[layout](numbers(dtype, 6, 5, 130))
    expected = by_definition(bytes_of(tensor))
    found = leaf_of(tensor)
    assert found.hash == expected
    assert found.hash == leaf_of(tensor.detach().clone().contiguous()).hash
    if tensor.numel():
        assert from_device(tensor)[1] == expected


SKETCHED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool)


def sums_of(sketch: bytes | None) -> list[float] | None:
    return None if sketch is None else np.frombuffer(sketch, "<f4").tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [6, 60])
def test_every_layout_has_the_brief_sketch_of_its_elements(
    rows: int, dtype: torch.dtype, layout: str
) -> None:
    tensor = LAYOUTS[layout](numbers(dtype, rows, 5, 130))
    plain = tensor.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    found, expected = leaf_of(tensor).sketch, leaf_of(plain).sketch
    assert found == expected
    assert (found is None) == (tensor.numel() == 0 or dtype not in SKETCHED)
    if found is not None:
        sums = sums_of(from_device(tensor)[2])
        most = float(plain.double().norm()) if dtype is not torch.bool else 1.0
        assert sums == pytest.approx(sums_of(found), rel=1e-4, abs=1e-5 * most)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors of some hundred KB are cut as those of gigabytes are."""
    from msprobe.pytorch import describe, pieces

    for module in (kernels_layout, pieces, on_device, describe):
        monkeypatch.setattr(module, "PIECE", 8192)
    powers = on_device._powers, on_device._weights
    for each in powers:
        each.cache_clear()
    yield
    for each in powers:
        each.cache_clear()


LARGE: dict[str, Callable[[Tensor], Tensor]] = {
    **LAYOUTS,
    "expanded to whole blocks": lambda x: x.reshape(-1)[:2048].expand(9, 2048),
    "expanded to parts of blocks": lambda x: x.reshape(-1)[:7].expand(3001, 7),
    "expanded, not a multiple": lambda x: x[0, 0, 0].expand(33_333),
    "broadcast mask": lambda x: x[:2, 0, None, None, :64].expand(2, 3, 64, 64),
    "expanded blocks of expanded rows": lambda x: x[0, 0, :64].expand(5, 256, 64),
    "expanded and transposed": lambda x: x[0].t()[:, None].expand(-1, 11, -1),
    "windows": lambda x: x.reshape(-1).unfold(0, 64, 3),
    "outer blocks of expanded rows": lambda x: x[:, 0, None, :64].expand(-1, 128, -1),
}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("layout", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.float64, torch.complex64], ids=str)
def test_large_tensors_are_described_in_pieces(dtype: torch.dtype, layout: str) -> None:
    tensor = LARGE[layout](numbers(dtype, 6, 35, 130))
    plain = tensor.detach().clone(memory_format=torch.contiguous_format)
    expected = by_definition(bytes_of(plain))
    want = Want(checksum=True, sketch=True)
    ours, theirs = leaf_of(tensor, want), leaf_of(plain, want)
    assert (ours.hash, ours.checksum, ours.sketch) == (expected, theirs.checksum, theirs.sketch)
    assert isinstance(ours.stats, Statistics) and isinstance(theirs.stats, Statistics)
    assert same(ours.stats, theirs.stats)
    if tensor.numel():
        stats, digest, sketch = from_device(tensor)
        assert digest == expected
        brief = leaf_of(tensor).sketch
        assert brief == leaf_of(plain).sketch
        expected_sums = None if brief is None else pytest.approx(sums_of(brief), rel=1e-4, abs=1e-3)
        assert sums_of(sketch) == expected_sums
        assert same(stats, theirs.stats, 1e-5)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "values", [[math.nan, 1.0], [math.inf, 1.0], [math.inf, -math.inf], [-math.inf, 0.0]]
)
def test_what_is_not_finite_counts_as_often_as_it_is_repeated(values: list[float]) -> None:
    tensor = torch.tensor(values)[:, None].expand(-1, 5000)
    ours, theirs = leaf_of(tensor).stats, leaf_of(tensor.contiguous()).stats
    assert isinstance(ours, Statistics) and isinstance(theirs, Statistics)
    assert same(ours, theirs)
    assert ours.nan + ours.inf == 5000 * sum(not math.isfinite(value) for value in values)


@pytest.mark.usefixtures("small_pieces")
def test_statistics_of_pieces_merge() -> None:
    for tensor in (
        torch.randn(300, 100, dtype=torch.float64).t() * 1e200,
        torch.randint(-(2**62), 2**62, (300, 100)).t(),
        torch.zeros(300, 100).t(),
        torch.randn(300, 100).t().index_fill(0, torch.tensor([3]), math.inf).t().t(),
        torch.ones(300, 100, dtype=torch.bool).t(),
    ):
        ours, theirs = leaf_of(tensor).stats, leaf_of(tensor.contiguous()).stats
        assert isinstance(ours, Statistics) and isinstance(theirs, Statistics)
        assert same(ours, theirs)
        assert [type(value) for value in ours] == [type(value) for value in theirs]


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "conj": lambda x: x.conj(),
    "neg": lambda x: x.conj().imag,
    "conj transposed": lambda x: x.conj().transpose(0, 2),
    "conj expanded": lambda x: x[:1].conj().expand(50, -1, -1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("pieces", ["one", "many"])
def test_lazy_views_are_hashed_as_their_values(
    view: str, pieces: str, request: pytest.FixtureRequest
) -> None:
    if pieces == "many":
        request.getfixturevalue("small_pieces")
    tensor = VIEWS[view](numbers(torch.complex64, 6, 35, 130))
    assert tensor.is_conj() or tensor.is_neg()
    expected = by_definition(bytes_of(tensor))
    assert leaf_of(tensor).hash == expected
    assert from_device(tensor)[1] == expected


def quantised() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.randn(60, 70), 0.1, 3, torch.quint8)


def per_channel() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scales, points = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 2, 3])
        return torch.quantize_per_channel(torch.randn(5, 3), scales, points, 1, torch.qint8)


SCALE = torch.tensor([0.1], dtype=torch.float64)
DENSE = torch.randn(60, 80) * (torch.rand(60, 80) < 0.4)
COMPOUND: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], list[Tensor]]]] = {
    "coo": (DENSE.to_sparse, lambda x: [x.indices(), x.values()]),
    "coo of rows": (lambda: DENSE.to_sparse(1), lambda x: [x.indices(), x.values()]),
    "coo that is empty": (torch.zeros(3, 4).to_sparse, lambda x: [x.indices(), x.values()]),
    "csr": (DENSE.to_sparse_csr, lambda x: [x.crow_indices(), x.col_indices(), x.values()]),
    "csc": (DENSE.to_sparse_csc, lambda x: [x.ccol_indices(), x.row_indices(), x.values()]),
    "bsr": (
        lambda: DENSE.to_sparse_bsr((2, 4)),
        lambda x: [x.crow_indices(), x.col_indices(), x.values()],
    ),
    "quantised": (quantised, lambda x: [x.int_repr(), SCALE, torch.tensor([3])]),
    "quantised, of a view": (
        lambda: quantised().t()[3:],
        lambda x: [x.int_repr(), SCALE, torch.tensor([3])],
    ),
    "quantised per channel": (
        per_channel,
        lambda x: [x.int_repr(), x.q_per_channel_scales(), x.q_per_channel_zero_points(), torch.tensor([1])],
    ),
}


@pytest.mark.parametrize("pieces", ["one", "many"])
@pytest.mark.parametrize("name", COMPOUND)
def test_what_consists_of_several_tensors_is_hashed_as_these(
    name: str, pieces: str, request: pytest.FixtureRequest
) -> None:
    if pieces == "many":
        request.getfixturevalue("small_pieces")
    make, parts = COMPOUND[name]
    tensor = make()
    expected = by_definition(*map(bytes_of, parts(tensor)))
    assert leaf_of(tensor).hash == expected
    if tensor.numel():
        assert from_device(tensor)[1] == expected


def test_equal_sparse_tensors_have_equal_hashes_and_others_have_not() -> None:
    """However their entries are ordered, and also where every statistic says that they are equal."""
    places, values = torch.tensor([[3, 1, 3]]), torch.tensor([1.0, 2.0, 4.0])
    tensor = torch.sparse_coo_tensor(places, values, (5,))
    assert leaf_of(tensor).hash == leaf_of(tensor.coalesce()).hash
    moved = torch.sparse_coo_tensor(places + 1, values, (5,))
    assert leaf_of(moved).stats == leaf_of(tensor).stats
    assert leaf_of(moved).hash != leaf_of(tensor).hash


def test_where_the_bits_are_not_known_there_is_no_hash() -> None:
    assert leaf_of(torch.zeros(3, device="meta")).hash is None


@pytest.mark.usefixtures("small_pieces")
def test_quantised_and_sparse_in_pieces() -> None:
    want = Want(checksum=True, sketch=True)
    tensor = quantised()
    ours, theirs = leaf_of(tensor, want), leaf_of(tensor.dequantize(), want)
    assert (ours.checksum, ours.sketch) == (theirs.checksum, theirs.sketch)
    assert isinstance(ours.stats, Statistics) and isinstance(theirs.stats, Statistics)
    assert same(ours.stats, theirs.stats)
    dense = torch.randn(100, 100) * (torch.rand(100, 100) < 0.4)
    ours, theirs = leaf_of(dense.to_sparse()), leaf_of(dense)
    assert isinstance(ours.stats, Statistics) and isinstance(theirs.stats, Statistics)
    assert same(ours.stats, theirs.stats)
    stats, digest, _ = from_device(dense.to_sparse())
    assert same(stats, theirs.stats, 1e-5) and digest == ours.hash


def test_nested_tensors_are_hashed_as_their_values() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)], layout=torch.jagged)
    assert leaf_of(nested).hash == by_definition(bytes_of(nested.values()))


def test_another_bit_is_another_hash() -> None:
    zero = torch.zeros(3)
    assert leaf_of(zero).hash != leaf_of(-zero).hash  # which every statistic says is equal
    assert leaf_of(zero).hash == leaf_of(torch.zeros(3)).hash


class Launches(TorchDispatchMode):
    """Counts the calls that would launch a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += not (isinstance(result, Tensor) and result._is_view())
        return result


def test_a_device_computes_with_few_launches_and_hands_over_few_numbers() -> None:
    tensor = torch.arange(16.0 * 2**20)  # 64 MB
    on_device.compute(tensor)  # makes tables, once
    with Launches() as launches:
        found = on_device.compute(tensor)
    assert launches.count < 500
    assert found.row.numel() < 64
    stats, digest, _ = found.read(iter(found.row.tolist()))
    expected = leaf_of(tensor)
    assert digest == expected.hash
    assert isinstance(expected.stats, Statistics) and same(stats, expected.stats, 1e-5)


# ---- memory ----

_SCRIPT = """
import json, resource, sys, warnings
warnings.simplefilter("ignore")
import torch
from msprobe.adapter import Want
from msprobe.pytorch.describe import Described

base = torch.ones(2048, 2048)
half = torch.ones(1 << 22, dtype=torch.bfloat16)
made = {
    "expanded": lambda: torch.ones(1).expand(2**33 + 5),
    "mask": lambda: base.expand(4, 32, 2048, 2048),
    "rows": lambda: base[:, None, :].expand(-1, 8, -1),
    "mask of one byte": lambda: torch.ones(4, 1, 1, 2048, dtype=torch.bool).expand(4, 8, 2048, 2048),
    "overlapping": lambda: half[: 1 << 20].unfold(0, 48, 1),
    "transposed": lambda: torch.ones(4096, 6000).t(),
    "conjugate": lambda: torch.ones(2048, 4096, dtype=torch.complex64).conj(),
    "complex": lambda: torch.ones(2048, 4096, dtype=torch.complex64),
    "float8": lambda: torch.ones(4096, 8192).to(torch.float8_e4m3fn),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(4096, 8192), 0.1, 0, torch.qint8),
    "sparse": lambda: torch.sparse_coo_tensor(
        torch.arange(1 << 23)[None], torch.ones(1 << 23), (2**40,), is_coalesced=True
    ),
    "uncoalesced": lambda: torch.sparse_coo_tensor(
        torch.zeros(1, 1 << 23, dtype=torch.int64), torch.ones(1 << 23), (2**40,)
    ),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2048, 4096)] * 2, layout=torch.jagged),
}
described = Described()
for everything in (Want(), Want(checksum=True, sketch=True)):
    described.leaf(torch.ones(2000, 2000).t(), everything)  # what everything needs once


def reset():
    with open("/proc/self/clear_refs", "w") as stream:
        stream.write("5")


def peak():
    with open("/proc/self/status") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith("VmHWM")) // 1024


found = {}
for name, make in made.items():
    tensor = make()
    reset()
    before = peak()
    all_of_it = name not in ("expanded", "mask")  # which would take seconds
    leaf = described.leaf(tensor, Want(checksum=all_of_it, sketch=all_of_it))
    found[name] = [peak() - before, leaf.hash, leaf.stats]
    del tensor
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of a while")
def test_describing_takes_at_most_32_mb() -> None:
    # So that what is freed goes back at once and shows when it is taken again.
    frugal = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | frugal)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 13
    assert {name: megabytes for name, (megabytes, _, _) in found.items() if megabytes > 32} == {}
    without = {name for name, (_, digest, _) in found.items() if digest is None}
    assert without == {"uncoalesced"}
    assert found["expanded"][2] == [1.0, 1.0, 1.0, math.sqrt(2**33 + 5), 0, 0]
    assert found["mask"][2] == [1.0, 1.0, 1.0, 2048 * math.sqrt(128), 0, 0]
    assert found["uncoalesced"][2][:4] == [None] * 4
