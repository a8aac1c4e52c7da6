"""What the tests of the store share: records to write, and how to look at what was written."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Header, Leaf, Record, Stack
from msprobe.store.run import Run
from msprobe.store.writer import Writer

HEADER = Header("statistics", "mix", "pytorch")
STATS = Statistics(1.5, -2.0, 0.25, 3.0)
TENSOR = Leaf("torch.Tensor", dtype="torch.float32", shape=(2, 3), stats=STATS, requires_grad=True)
FRAMES = ('File a.py, line 1, in f, \n x = "y"', "File b.py, line 2, in <module>, \n f()")


def call(text: str, **fields: Any) -> Record:
    return Record(CallName.parse(text), fields, Stack(0, FRAMES), None, has_parent=True)


def write(folder: Path, *records: Record, header: Header = HEADER) -> Path:
    """A finished recording."""
    writer = Writer(folder, header, suffix=".pt", with_tensors=False)
    for record in records:
        writer.append(record)
    writer.close()
    return folder


def record_step(run: Run, step: int = 0, rank: int | None = None, name: str = "Torch.f.0.forward") -> Path:
    """A finished recording of a run, with one call."""
    writer = run.record(step, rank, HEADER, suffix=".pt", with_tensors=False)
    writer.append(call(name, output=[]))
    writer.close()
    return writer.folder


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def tree(root: Path) -> dict[str, list[str]]:
    """Each recording below a folder, and the calls in it; the time in `previous/{time}` is left out."""
    found = {}
    for path in sorted(root.rglob("dump.json")):
        parts = path.parent.relative_to(root).parts
        name = "/".join(("previous", *parts[2:]) if parts[0] == "previous" else parts)
        found[name] = list(load(path)["data"])
    return found


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The messages of the log."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    keep = Keep()
    log = logging.getLogger("msprobe")
    log.addHandler(keep)
    yield messages
    log.removeHandler(keep)
