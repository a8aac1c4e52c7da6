"""Real recordings of a net in MindSpore and PyTorch, real kernel dumps, and what releases made of them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from unpacked import unpacked

ARCHIVE = Path(__file__).parent / "golden/xframework.tar.xz"


class Crossed:
    """The unpacked files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, name: str) -> Path:
        """`ms_`: MindSpore; `msn_`: the same with one number changed; `pt_`: PyTorch; then level and task."""
        return self._folder / "inputs" / name

    def mapping(self, name: str) -> str:
        return str(self._folder / "yaml" / f"{name}.yaml")

    def kernels(self, name: str) -> Path:
        return self._folder / "kernels" / name

    def table(self, case: str, mark: str = "", release: str = "8.3.3") -> list[dict[str, str]]:
        """What a release made of it, row by row."""
        results = "results" if release == "8.3.3" else f"results-{release}"
        (path,) = (self._folder / results / case).glob(f"compare_result{mark}_2*.csv")
        with path.open(newline="", encoding="utf-8-sig") as stream:
            return list(csv.DictReader(stream))


@pytest.fixture(scope="session")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Crossed:
    return Crossed(unpacked(ARCHIVE, tmp_path_factory))
