"""The columns of a comparison of kernels, which has its own order of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msprobe.analyse.measure import NOTHING, StatisticsErrors, TensorErrors
from msprobe.report.columns import STATISTICS, VERDICT, metrics
from msprobe.report.table import Cell, Table
from msprobe.verdict.levels import Verdict

_BASIC = (
    *(f"{side} {word}" for word in ("Name", "Dtype", "Tensor Shape") for side in ("NPU", "Bench")),
    *(f"{side} {word}" for side in ("NPU", "Bench") for word in STATISTICS),
    "Accuracy Reached or Not",
    "Err_message",
)
_TENSORS = metrics("tensor").headers
_STATISTICS = metrics("statistics").headers
_SOURCES = ("NPU CSV File", "Bench CSV File")


class KernelSide(NamedTuple):
    """A tensor of a kernel, as one run has it."""

    name: str  # its file, or what it is called in a statistic.csv
    dtype: str
    shape: str
    values: tuple[Cell, ...]  # max, min, mean and norm
    source: str = ""  # the statistic.csv


class KernelRow(NamedTuple):
    """One tensor of both runs; a side may be missing."""

    target: KernelSide | None
    golden: KernelSide | None
    errors: TensorErrors | StatisticsErrors | None
    result: str
    message: str = ""


def kernel_table(rows: Sequence[KernelRow], verdicts: Sequence[Verdict], *, of_statistics: bool) -> Table:
    """The specified columns, and our verdict behind them."""
    headers = [*_BASIC, *((*_STATISTICS, *_SOURCES) if of_statistics else _TENSORS), *VERDICT]
    tail = _statistics if of_statistics else _tensors
    cells = [
        [*_basic(row), *tail(row), verdict.level, verdict.error, verdict.reason]
        for row, verdict in zip(rows, verdicts, strict=True)
    ]
    return Table(headers, cells)


def _basic(row: KernelRow) -> list[Cell]:
    sides = (row.target, row.golden)
    cells = [_ask(side, ask) for ask in (_name, _dtype, _shape) for side in sides]
    for side in sides:
        cells += side.values if side is not None else (NOTHING,) * len(STATISTICS)
    return [*cells, row.result, row.message]


def _ask(side: KernelSide | None, ask: Callable[[KernelSide], str]) -> Cell:
    return NOTHING if side is None else ask(side)


def _name(side: KernelSide) -> str:
    return side.name


def _dtype(side: KernelSide) -> str:
    return side.dtype


def _shape(side: KernelSide) -> str:
    return side.shape


def _source(side: KernelSide) -> str:
    return side.source


def _tensors(row: KernelRow) -> Sequence[Cell]:
    return row.errors.metrics if isinstance(row.errors, TensorErrors) else (None,) * len(_TENSORS)


def _statistics(row: KernelRow) -> Sequence[Cell]:
    sources = [_ask(side, _source) for side in (row.target, row.golden)]
    if not isinstance(row.errors, StatisticsErrors):
        return *(NOTHING,) * len(_STATISTICS), *sources
    return *row.errors.metrics, *sources
