"""What the tests of comparing share: real pairs with the tables of the releases, and runs made by hand."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from msprobe import kernels
from msprobe.compare import compare
from msprobe.kernels import KIND_OF_DTYPE, address_of
from msprobe.name import CallName
from msprobe.record import Header, Leaf, Record, Stack, plain_leaf
from msprobe.store.run import Run
from msprobe.store.tensor_file import TensorData
from msprobe.verdict.comparison import Comparison
from unpacked import unpacked

ARCHIVE = Path(__file__).parent / "golden/compare.tar.xz"

OLDEST, OLD, NEW = "1.2.2", "8.3.3", "26.2.0"


class Golden(NamedTuple):
    """A release, what it recorded twice, and the rank that one of its tables is about."""

    release: str
    name: str
    rank: int | None = None

    def __str__(self) -> str:
        return f"{self.release}-{self.name}" + ("" if self.rank is None else f"-rank{self.rank}")


class Goldens:
    """The unpacked pairs; each is compared once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compared: dict[tuple[str, str], list[Comparison]] = {}

    def runs(self, golden: Golden) -> tuple[Path, Path]:
        """The folders of both runs: a weight of the first is another, or the second lacks a call."""
        place = self._folder / golden.release / golden.name
        return place / "npu", place / "bench"

    def compared(self, golden: Golden) -> Comparison:
        key = golden.release, golden.name
        if key not in self._compared:
            self._compared[key] = compare(*self.runs(golden))
        (found,) = (c for c in self._compared[key] if c.target.rank == golden.rank)
        return found

    def all_ranks(self, golden: Golden) -> list[Comparison]:
        self.compared(golden)
        return self._compared[golden.release, golden.name]

    def table(self, golden: Golden) -> list[dict[str, str]]:
        """What the release made of the pair, row by row; `row_fill` is the colour of the row."""
        with self._result(golden, "*compare_result{}_2*.csv").open(newline="") as stream:
            return list(csv.DictReader(stream))

    def advice(self, golden: Golden) -> str:
        return self._result(golden, "advisor{}_2*.txt").read_text().rstrip("\n")

    def _result(self, golden: Golden, pattern: str) -> Path:
        rank = "" if golden.rank is None else f"_rank{golden.rank}"
        (path,) = (self._folder / golden.release / golden.name / "compare").glob(pattern.format(rank))
        return path


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Goldens:
    return Goldens(unpacked(ARCHIVE, tmp_path_factory))


# ---- runs made by hand ----


class Call(NamedTuple):
    """A call to record: arrays become tensors, all else plain values."""

    name: str
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()


def recorded(
    folder: Path, *calls: Call, mode: str = "statistics", step: int = 0, rank: int | None = None
) -> Path:
    """A run with one recording, described by the kernels that describe real tensors."""
    run = Run(folder)
    with_tensors = mode == "tensor"
    header = Header("tensor" if with_tensors else "statistics", "L1", "pytorch")
    writer = run.record(step, rank, header, suffix=".pt", with_tensors=with_tensors)
    for call in calls:
        seen = {
            side: [_leaf(value, f"{call.name}.{side}.{place}", mode) for place, value in enumerate(values)]
            for side, values in (("input", call.inputs), ("output", call.outputs))
        }
        fields = {"input_args": seen["input"], "input_kwargs": {}, "output": seen["output"]}
        writer.append(Record(CallName.parse(call.name), fields, Stack(0, ("File net.py, line 1, in f",))))
        if writer.tensors is not None:
            for leaf, value in zip(_flat(seen.values()), _flat((call.inputs, call.outputs)), strict=True):
                if isinstance(value, np.ndarray):
                    content = TensorData(_packed(value).data, value.dtype.name, value.shape)
                    writer.tensors.put(leaf.data_name.removesuffix(".pt"), content)
    writer.close()
    run.close()
    return folder


def _leaf(value: Any, slot: str, mode: str) -> Leaf | None:
    if not isinstance(value, np.ndarray):
        return plain_leaf(value)
    array = _packed(value)
    return Leaf(
        "torch.Tensor",
        dtype=f"torch.{array.dtype.name}",
        shape=value.shape,
        stats=kernels.statistics(address_of(array), array.size, KIND_OF_DTYPE[array.dtype.name]),
        requires_grad=False,
        checksum=f"{zlib.crc32(array.data):08x}" if mode == "md5" else None,
        data_name=f"{slot}.pt" if mode == "tensor" else None,
    )


def _packed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.copy(order="C")


def _flat(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return [item for part in parts for item in part]
