"""overflow.csv beside dump.json: the calls that overflowed, in order, and which of them is to blame."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from msprobe.store.layout import OVERFLOWS
from msprobe.store.shared_csv import SharedCsv


class Overflow(NamedTuple):
    """A line of the file; the fields are its columns."""

    name: str
    verdict: str
    inputs: str  # what of them is not finite: `input.0: -inf, input.1: nan`
    outputs: str
    called_at: str


def path(folder: Path) -> Path:
    return folder / OVERFLOWS


def add(folder: Path, overflow: Overflow) -> None:
    """Append a line; it is there at once, whatever becomes of the process."""
    SharedCsv(path(folder), Overflow._fields).append([overflow])
