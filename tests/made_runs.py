"""Recordings made by hand: calls with tensors of which only statistics are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Header, Leaf, Record, Stack
from msprobe.store.run import Run

HEADER = Header("statistics", "L1", "pytorch")


def tensor(value: float, shape: tuple[int, ...] = (2, 3), dtype: str = "torch.float32", **facts: Any) -> Leaf:
    stats = Statistics(value, -value, value / 2, 2 * value)
    return Leaf("torch.Tensor", dtype=dtype, shape=shape, stats=stats, requires_grad=False, **facts)


def call(name: str, *outputs: Leaf | None, inputs: tuple[Leaf | None, ...] = ()) -> Record:
    fields = {"input_args": list(inputs), "input_kwargs": {}, "output": list(outputs)}
    return Record(CallName.parse(name), fields, Stack(0, (f"File net.py, line 1, in {name}",)))


def made(
    folder: Path, *records: Record, header: Header = HEADER, step: int = 0, rank: int | None = None
) -> Path:
    run = Run(folder)
    _write(run, records, header, step, rank)
    run.close()
    return folder


def made_steps(folder: Path, *steps: Sequence[Record]) -> Path:
    """The same with several steps."""
    run = Run(folder)
    for step, records in enumerate(steps):
        _write(run, records, HEADER, step, None)
    run.close()
    return folder


def _write(run: Run, records: Iterable[Record], header: Header, step: int, rank: int | None) -> None:
    writer = run.record(step, rank, header, suffix=".pt", with_tensors=False)
    for record in records:
        writer.append(record)
    writer.close()
