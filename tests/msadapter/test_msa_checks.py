"""The checks that need no second run, through MSAdapter: the faulty call is named, and training untouched."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindtorch", reason="MSAdapter is not installed here")
import numpy as np
from msa_case import Probe, Wide, arrays, made, numbered, probe, torch, training

from msprobe.errors import OverflowLimitReached

__all__ = ["probe"]


def rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream))


def test_an_overflow_ends_training_and_is_named(probe: Probe) -> None:
    debugger = probe.debugger("L1", task="overflow_check", section={"overflow_nums": 1})
    half = torch.tensor(np.full((4,), 300.0, np.float16))
    debugger.start()
    torch.abs(half)
    with pytest.raises(OverflowLimitReached, match="overflow 1 times"):
        torch.mul(half, half)
        torch.abs(half)
    assert [row["name"] for row in rows(probe.rank() / "overflow.csv")] == ["Torch.mul.0.forward"]


def test_what_loses_digits_is_named(probe: Probe) -> None:
    section = {"pert_mode": "bit_noise", "list": []}
    debugger = probe.debugger("L1", task="free_benchmark", section=section)
    x = torch.tensor(np.full((64,), 1000.0, np.float32))
    near = torch.tensor(np.full((64,), 1000.05, np.float32))
    debugger.start()
    torch.mul(x, 2.0)
    torch.sub(x, near)
    debugger.stop()
    debugger.step()
    assert {row["api_name"] for row in rows(probe.folder / "free_benchmark.csv")} == {"Torch.sub.0.forward"}


@pytest.mark.parametrize("task", ["overflow_check", "free_benchmark"])
def test_training_is_the_same_to_the_last_bit(task: str, probe: Probe) -> None:
    sections: dict[str, dict[str, Any]] = {
        "overflow_check": {"overflow_nums": -1},
        "free_benchmark": {"pert_mode": "bit_noise"},
    }
    x = made(2, 4, 8)
    plain = arrays(training(numbered(Wide()))(x))
    debugger = probe.debugger("L1", task=task, section=sections[task])
    debugger.start()
    checked = arrays(training(numbered(Wide()))(x))
    debugger.stop()
    debugger.step()
    assert len(plain) == len(checked) > 1
    assert all(np.array_equal(a, b) for a, b in zip(plain, checked, strict=True))
    assert rows(probe.rank() / "overflow.csv") == []
