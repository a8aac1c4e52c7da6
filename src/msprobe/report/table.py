"""A table as a value, and as a csv file that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from msprobe.store.layout import write_whole

Cell = str | int | float | bool | None

_LINES_AT_ONCE = 1000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?%?|inf|nan)", re.IGNORECASE)
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character: no encoding can write it
REPLACEMENT = "\ufffd"


class Table(NamedTuple):
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    fills: Mapping[int, str] = MappingProxyType(
        {}
    )  # index into rows -> colour behind the whole row, as "FFFF0000" (ARGB)
    widths: Sequence[float] | None = None  # in characters; None: as the content needs

    def lean(self, optional: Collection[str], blank: Collection[Cell]) -> Table:
        """Without those of the optional columns that have no other cells than blank ones."""
        shown = [
            header not in optional or any(row[number] not in blank for row in self.rows)
            for number, header in enumerate(self.columns)
        ]
        rows = [list(compress(row, shown)) for row in self.rows]
        return self._replace(columns=list(compress(self.columns, shown)), rows=rows)


class _Lines:
    """Where csv.writer writes; ends each line with a line feed alone.

    Told to end lines so itself, csv.writer leaves a carriage return inside a cell without quotes.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []

    def write(self, line: str) -> None:
        self._lines.append(line[:-2] + "\n")

    def take(self) -> bytes:
        text = "".join(self._lines)
        self._lines.clear()
        try:
            return text.encode()
        except UnicodeEncodeError:
            return SURROGATE.sub(REPLACEMENT, text).encode()


def write_csv(path: Path, table: Table) -> None:
    """Write the whole table, or nothing if anything goes wrong."""
    write_whole(path, _csv(table))


def _csv(table: Table) -> Iterator[bytes]:
    yield csv_lines([table.columns])
    rows = iter(table.rows)
    while some := list(islice(rows, _LINES_AT_ONCE)):
        yield csv_lines(some)


def csv_lines(rows: Iterable[Sequence[Cell]]) -> bytes:
    """The rows as they stand in a file."""
    lines = _Lines()
    csv.writer(lines).writerows(
        [_harmless(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return lines.take()


def _harmless(text: str) -> str:
    """The text, after an apostrophe if a spreadsheet would compute it; -1.5 and -inf stay as they are."""
    if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        return "'" + text
    return text


def written(cell: str) -> str:
    """What was to be written where this cell was read."""
    return cell[1:] if cell.startswith("'") and _harmless(cell[1:]) == cell else cell
