"""What must hold of a recording whose process was killed (tests/killing.py kills them)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from msprobe import store
from msprobe.cli.main import main
from msprobe.record import Leaf, Recording, leaves
from msprobe.store.layout import recording_folders

KILLING = Path(__file__).parent / "killing.py"


class Kill(NamedTuple):
    """One killed process."""

    folder: Path
    task: str
    level: str


class Checked(NamedTuple):
    """What was found after one kill."""

    noted: int
    recovered: int
    missing_files: int


def kills(folder: Path, *, count: int, seed: int) -> Iterator[Kill]:
    command = [sys.executable, str(KILLING), str(folder), str(count), str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in result.stdout.splitlines():
        kill = json.loads(line)
        assert kill.pop("killed") in (True, False)
        yield Kill(Path(kill["folder"]), kill["task"], kill["level"])


def check_kill(kill: Kill) -> Checked:
    """Every noted call is in the recording, before and after `msprobe recover`; all files are whole."""
    noted = _noted(kill.folder / "noted")
    run = kill.folder / "run"
    if not list(recording_folders(run)):
        assert noted == set()
        return Checked(0, 0, 0)
    assert noted <= _calls(store.read(run))
    assert [main(["recover", str(run)]) for _ in range(2)] == [0, 0]
    for path in run.rglob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))
    recordings = store.read(run)
    assert noted <= _calls(recordings)
    assert all(recording.finished for recording in recordings)
    assert {recording.header[:2] for recording in recordings} == {(kill.task, kill.level)}
    assert list(run.rglob("journal.log")) + list(run.rglob("*.part")) + list(run.rglob("*.tmp")) == []
    for recording in recordings:
        _check_tensor_files(recording, saved=kill.task == "tensor")
    recovered = [recording for recording in recordings if recording.recovered]
    return Checked(len(noted), len(recovered), sum(len(recording.missing_files) for recording in recovered))


def _noted(path: Path) -> set[tuple[int | None, str]]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line.split() for line in lines if line.endswith("\n")]
    return {(int(step), name) for step, name in whole}


def _calls(recordings: list[Recording]) -> set[tuple[int | None, str]]:
    return {(recording.step, name) for recording in recordings for name in recording.records}


def _check_tensor_files(recording: Recording, *, saved: bool) -> None:
    """What is described is in a file that torch reads, or listed as missing, which only a killed step has."""
    missing = set(recording.missing_files)
    assert recording.recovered or not missing
    named = set()
    for leaf in _tensors(recording):
        assert (leaf.data_name is not None) == saved
        path = store.tensor_path(recording, leaf)
        if path is None:
            continue
        named.add(path.name)
        assert path.is_file() != (path.name in missing)
        if path.is_file():
            tensor = torch.load(path, weights_only=True)
            assert (tuple(tensor.shape), str(tensor.dtype)) == (leaf.shape, leaf.dtype)
    assert missing <= named
    for path in (Path(recording.folder) / "dump_tensor_data").glob("*"):
        torch.load(path, weights_only=True)  # also files whose call was not finished are whole


def _tensors(recording: Recording) -> Iterator[Leaf]:
    for record in recording.records.values():
        for field in record.fields.values():
            tree: Any = None if isinstance(field, (bool, str)) else field
            yield from (leaf for leaf in leaves(tree) if leaf.is_tensor)
