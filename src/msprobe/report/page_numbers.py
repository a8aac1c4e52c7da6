"""The numbers of a page: as bytes in the few digits that it shows, with the texts that stand among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from msprobe.report.table import Cell

_SAMPLE = 1000  # cells that show whether a column holds percentages; as texts they would only take more room
_EDGE = 8  # each part begins at a multiple, as the script's arrays want it


class Numbers:
    """Collects columns of numbers, one behind the other."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: Sequence[Any]) -> dict[str, Any]:
        """Numbers, or rows of equally many; None is NaN. Says where they are."""
        array = np.array(values, np.float64)
        narrow = _narrowed(array)
        content = narrow.astype(narrow.dtype.newbyteorder("<")).tobytes()
        found = {"at": self._size, "bytes": narrow.itemsize, "count": narrow.size}
        self._parts += (content, bytes(-len(content) % _EDGE))
        self._size += len(content) + -len(content) % _EDGE
        return found

    def column(self, cells: Sequence[Cell]) -> dict[str, Any] | None:
        """Cells of which some are numbers or percentages; None if none is."""
        types = set(map(type, cells))
        if float in types:
            texts = (
                {row: cell for row, cell in enumerate(cells) if isinstance(cell, str)} if str in types else {}
            )
            values = [None if isinstance(cell, str) else cell for cell in cells] if texts else cells
            return {"texts": texts, **self.add(values)}
        if any(_share(cell) is not None for cell in cells[:_SAMPLE]):
            known = {cell: _share(cell) for cell in set(cells)}  # one pair of values stands in several rows
            shares = [known[cell] for cell in cells]
            texts = {row: str(cells[row]) for row, share in enumerate(shares) if share is None}
            return {"texts": texts, "unit": "%", **self.add(shares)}
        return None

    def packed(self) -> bytes:
        return b"".join(self._parts)


def _share(cell: Cell) -> float | None:
    """The number of a percentage; None of what is none, such as a checksum that ends like one."""
    text = str(cell)
    try:
        return float(text[:-1]) if text.endswith("%") else None
    except ValueError:
        return None


def _narrowed(values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """In single precision, unless one is too large or too small for it, or a whole number would change."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
        lost = np.isfinite(values) & ((narrow == 0) | np.isinf(narrow) | (values == np.rint(values)))
        lost &= narrow != values
    return values if lost.any() else narrow
