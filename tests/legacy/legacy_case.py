"""What the tests of the old package share: a session of its own for each, the golden net, files as tables."""

from __future__ import annotations

import csv
import json
import logging
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ptdbg_ascend
from msprobe.log import logger
from ptdbg_ascend import session
from unpacked import unpacked

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    getattr(ptdbg_ascend, "compare")  # noqa: B009  # the first use of an old name says that there are new ones

ARCHIVE = Path(__file__).parent.parent / "golden/ptdbg23.tar.xz"


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the real release 2.3 wrote."""
    return unpacked(ARCHIVE, tmp_path_factory)


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package in a fresh folder, with nothing called yet; random states and switches are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", "0"))
    cudnn: Any = torch.backends.cudnn
    flags = cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _renew()
    yield ptdbg_ascend
    _renew()
    torch.set_num_threads(threads)
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = flags[:3]
    torch.use_deterministic_algorithms(flags[3])
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def _renew() -> None:
    session.follow(None)
    vars(session.the).clear()


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What msprobe says in the log."""
    said: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listening = Listening()
    logger().addHandler(listening)
    yield said
    logger().removeHandler(listening)


class Net(nn.Module):
    """The net of the golden script, number by number."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.bn = nn.BatchNorm1d(4)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn(self.fc(x)))
        z = y.permute(1, 0)
        v, _ = torch.sort(z, dim=0)
        return (v * self.scale + 1).sum()


def train(
    old: Any,
    path: str,
    tag: str = "t",
    mode: str = "all",
    scale: float = 1.0,
    rank: int | None = None,
    **more: Any,
) -> Path:
    """What the golden script does; the folder of its rank."""
    old.seed_all()
    net = Net(scale)
    old.set_dump_path(path, dump_tag=tag)
    old.register_hook(net, old.acc_cmp_dump, rank=rank)
    old.set_dump_switch("ON", mode=mode, **more)
    net(torch.randn(3, 8)).backward()
    old.set_dump_switch("OFF", **({"mode": mode, **more} if mode != "all" else {}))
    return Path(path).parent / f"{tag}_v2.3" / f"rank{rank or 0}"


def lines(path: Path) -> list[list[Any]]:
    """The lines of a .pkl, read without the package."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]


def names(path: Path, direction: str = "") -> list[str]:
    return [line[0] for line in lines(path) if direction in line[0]]


def files(folder: Path, direction: str = "") -> set[str]:
    return {path.name for path in folder.iterdir() if direction in path.name} if folder.is_dir() else set()


def table(folder: Path, name: str = "compare_result*.csv") -> list[dict[str, str]]:
    """The rows of the one result in a folder."""
    (path,) = folder.glob(name)
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def pair(npu: Path, bench: Path, **more: Any) -> dict[str, Any]:
    """What compare is given for two .pkl files."""
    return {
        "npu_pkl_path": str(npu),
        "bench_pkl_path": str(bench),
        "npu_dump_data_dir": str(npu.with_suffix("")),
        "bench_dump_data_dir": str(bench.with_suffix("")),
        **more,
    }
