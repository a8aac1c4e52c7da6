"""`probe`: a PrecisionDebugger of its own for each test, what it wrote, and ways to use it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch import debugger as door


class Probe:
    """Makes the debugger of a test and reads its recordings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "dump"
        self._config = folder / "config.json"

    def debugger(self, level: str = "L1", task: str = "statistics", *, model: Any = None, **keys: Any) -> Any:
        """Keys of the task's section are given as `section={...}`, keys of the top level by their names."""
        section = keys.pop("section", {})
        config = {"task": task, "level": level, "dump_path": str(self.folder), "rm_dropout": False, **keys}
        self._config.write_text(json.dumps({**config, task: section}))
        return PrecisionDebugger(str(self._config), model=model)

    def close(self) -> None:
        """Leave no debugger behind."""
        try:
            door._the.get().close()
        except door.UsageError:
            return
        door._the.clear()

    def rank(self, step: int = 0) -> Path:
        return self.folder / f"step{step}" / "rank"

    def data(self, step: int = 0) -> dict[str, Any]:
        """The entries of dump.json, or of debug.json."""
        file = self.rank(step) / "dump.json"
        file = file if file.exists() else self.rank(step) / "debug.json"
        data: dict[str, Any] = json.loads(file.read_text())["data"]
        return data

    def stack(self, step: int = 0) -> dict[str, list[str]]:
        """The frames of each record."""
        groups = json.loads((self.rank(step) / "stack.json").read_text()).values()
        return {name: frames for names, frames in groups for name in names}

    def construct(self, step: int = 0) -> dict[str, str | None]:
        parents: dict[str, str | None] = json.loads((self.rank(step) / "construct.json").read_text())
        return parents

    def tensor(self, name: str, step: int = 0) -> torch.Tensor:
        tensor: torch.Tensor = torch.load(
            self.rank(step) / "dump_tensor_data" / f"{name}.pt", weights_only=True
        )
        return tensor

    def troubles(self, step: int = 0) -> str:
        """What went wrong while recording; empty when nothing did."""
        file = self.rank(step) / "dump_error_info.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    made = Probe(tmp_path)
    made.close()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these tensors are so small that a second thread only costs
    yield made
    made.close()
    torch.set_num_threads(threads)


def names(probe: Probe, direction: str = "forward") -> list[str]:
    return [name for name in probe.data() if direction in name]


def record(probe: Probe, work: Callable[[], Any], level: str = "L1", model: Any = None, **keys: Any) -> Any:
    """What `work` gives while it is recorded; nothing may go wrong while it is."""
    debugger = probe.debugger(level, **keys)
    debugger.start(model)
    result = work()
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""
    return result
