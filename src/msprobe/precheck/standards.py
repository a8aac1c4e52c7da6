"""api_precision_compare: two details tables of one recording, row by row, by the standard of each API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msprobe.analyse.standards import ERROR, SKIP, Standard, compare, standard_of, worst
from msprobe.errors import UsageError
from msprobe.name import CallName, call_of
from msprobe.plural import counted
from msprobe.precheck.check import output_folder, stamp_now
from msprobe.record import number_type
from msprobe.report.precheck_csv import (
    BLANK,
    COMPARED_COLUMNS,
    COMPARED_RESULT_COLUMNS,
    DETAIL_COLUMNS,
    accuracy_of,
    number,
    read_table,
    write_table,
)

Row = Mapping[str, str]

_NAME, _, _DTYPE = DETAIL_COLUMNS[:3]
_MESSAGE, _STATUS = "Message", "Status"
_NOT_THERE = "The other table has no row of this name."
_NO_METRICS = "It has no metrics on one side."


class Place(NamedTuple):
    """One output or gradient."""

    name: str
    status: str
    message: str = ""
    standard: Standard | None = None
    cells: Mapping[str, float | str] = {}


class ComparedDetails(NamedTuple):
    """What was found, and the tables that say so."""

    places: tuple[Place, ...]
    files: tuple[Path, ...]

    @property
    def failed(self) -> bool:
        return any(place.status == ERROR for place in self.places)

    def told(self) -> Iterator[str]:
        judged = [place for place in self.places if place.status != SKIP]
        wrong = [place for place in judged if place.status == ERROR]
        yield f"{counted(len(judged), 'place')} judged, {len(judged) - len(wrong)} pass, {len(wrong)} do not"
        for place in wrong[:20]:
            standard = place.standard.value if place.standard is not None else ""
            yield f"error: {place.name} ({standard}): {place.message}"
        yield from (f"wrote {path}" for path in self.files)


def compare_details(target: Path, golden: Path, out: Path) -> ComparedDetails:
    theirs = {row[_NAME]: row for row in read_table(golden, DETAIL_COLUMNS)}
    rows = read_table(target, DETAIL_COLUMNS)
    if not rows:
        raise UsageError(f"{target} holds no rows.")
    places = tuple(_place(row, theirs.get(row[_NAME])) for row in rows)
    folder, stamp = output_folder(out), stamp_now()
    details = folder / f"api_precision_compare_details_{stamp}.csv"
    result = folder / f"api_precision_compare_result_{stamp}.csv"
    write_table(details, COMPARED_COLUMNS, map(_cells, places))
    write_table(result, COMPARED_RESULT_COLUMNS, _by_call(places))
    return ComparedDetails(places, (result, details))


def _place(row: Row, other: Row | None) -> Place:
    name = row[_NAME]
    if other is None:
        return Place(name, SKIP, _NOT_THERE)
    for one in (row, other):
        if one[_STATUS] == SKIP:
            return Place(name, SKIP, one[_MESSAGE].strip())
    ours, theirs = accuracy_of(row), accuracy_of(other)
    if ours is None or theirs is None:
        return Place(name, SKIP, _NO_METRICS)
    dtype = number_type(row[_DTYPE])
    is_float = "float" in dtype or "complex" in dtype
    standard = standard_of(_api(name), is_float=is_float)
    cells, verdict = compare(standard, dtype, ours, theirs)
    return Place(name, verdict.status, verdict.message, standard, cells)


def _api(place: str) -> str:
    return CallName.parse(f"{call_of(place)}.forward").api


def _cells(place: Place) -> list[str]:
    filled = {column: number(value) for column, value in place.cells.items()}
    filled |= {"API Name": place.name, "比对结果": place.status, "Message": place.message or BLANK}
    if place.standard is not None:
        filled["比对算法"] = place.standard.value
    return [filled.get(column, BLANK) for column in COMPARED_COLUMNS]


def _by_call(places: tuple[Place, ...]) -> Iterator[list[str]]:
    calls: dict[str, list[Place]] = {}
    for place in places:
        calls.setdefault(call_of(place.name), []).append(place)
    for call, found in calls.items():
        forward = [place for place in found if place.name.startswith(f"{call}.forward.")]
        backward = [place for place in found if place not in forward]
        told = [f"{place.name}: {place.message}" for place in found if place.status == ERROR]
        skips = dict.fromkeys(place.message for place in found if place.status == SKIP)
        statuses = [worst(place.status for place in side) or BLANK for side in (forward, backward)]
        yield [call, *statuses, " ".join([*told, *skips])]
