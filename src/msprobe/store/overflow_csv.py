"""overflow.csv beside dump.json: the calls that overflowed, in order, and which of them is to blame."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import NamedTuple

from msprobe.store.layout import OVERFLOWS, open_new


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
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if not os.path.lexists(path(folder)):
        lines.writerow(Overflow._fields)
    lines.writerow(overflow)
    descriptor = open_new(path(folder), os.O_APPEND)
    try:
        os.write(descriptor, text.getvalue().encode("utf-8", "replace"))
    finally:
        os.close(descriptor)
