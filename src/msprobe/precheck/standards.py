"""api_precision_compare: two details tables of one recording, row by row, by the standard of each API.

Beside the standard stands a verdict: a result passes if rounding explains its error, or if it is not worse
than that of the trusted device. A standard may ask more than a dtype can hold: of a convolution in bfloat16,
which rounds to 0.004, that 99.9 % of the elements be off by less than 0.001. So a device fails beside itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msprobe.analyse.accuracy import Accuracy
from msprobe.analyse.standards import ERROR, PASS, SKIP, Standard, compare, standard_of, worst
from msprobe.errors import UsageError
from msprobe.metrics.rounding import CANNOT_TELL
from msprobe.name import CallName, call_of
from msprobe.plural import counted
from msprobe.precheck.check import output_folder, stamp_now
from msprobe.record import number_type
from msprobe.report.precheck_csv import (
    BLANK,
    COMPARED_COLUMNS,
    COMPARED_RESULT_COLUMNS,
    RELATIVE_ERROR,
    SCALE_ERROR,
    SPECIFIED_DETAIL_COLUMNS,
    VERDICT,
    accuracy_of,
    number,
    parsed,
    read_table,
    write_table,
)

Row = Mapping[str, str]

_NAME, _, _DTYPE = SPECIFIED_DETAIL_COLUMNS[:3]
_MESSAGE, _STATUS = "Message", "Status"
_NOT_THERE = "The other table has no row of this name."
_NO_METRICS = "It has no metrics on one side."
_REASON = "Verdict Reason"
_AS_GOOD = 2.0  # how many times the trusted device's error is still as good


class Place(NamedTuple):
    """One output or gradient."""

    name: str
    status: str
    message: str = ""
    standard: Standard | None = None
    cells: Mapping[str, float | str] = {}
    verdict: str = SKIP
    reason: str = ""


class ComparedDetails(NamedTuple):
    """What was found, and the tables that say so."""

    places: tuple[Place, ...]
    files: tuple[Path, ...]

    @property
    def failed(self) -> bool:
        return any(place.verdict == ERROR for place in self.places)

    @property
    def nothing_judged(self) -> str:
        """Return, in a sentence, why this comparison says nothing; empty if a result was judged."""
        if any(place.verdict in (PASS, ERROR) for place in self.places):
            return ""
        if all(place.message == _NOT_THERE for place in self.places):
            return "No result was judged: the two tables have no row in common. Are they of one recording?"
        unknown = sum(place.verdict == CANNOT_TELL for place in self.places)
        rest = (
            f"{counted(len(self.places) - unknown, 'row', 'were')} skipped on one side or is there only once"
        )
        return f"No result was judged: {rest}, {unknown} cannot be told."

    def told(self) -> Iterator[str]:
        judged = [place for place in self.places if place.verdict != SKIP]
        wrong = [place for place in judged if place.verdict == ERROR]
        passed = sum(place.verdict == PASS for place in judged)
        unknown = len(judged) - passed - len(wrong)
        yield (
            f"{counted(len(judged), 'result')} judged: {passed} pass, {len(wrong)} fail"
            f"{f', {unknown} cannot be told' if unknown else ''}"
        )
        for place in wrong[:20]:
            standard = place.standard.value if place.standard is not None else ""
            yield f"error: {place.name} ({standard}): {place.reason}"
        for status, verb in ((PASS, "pass"), (ERROR, "fail")):
            other = [each.name for each in judged if each.verdict == status and each.status != status]
            if other:
                yield (
                    f"The specified standards differ (column 比对结果): {counted(len(other), 'result')} "
                    f"{verb} by the verdict and not by the standard: {', '.join(other[:3])}"
                    f"{', ...' if other[3:] else ''}."
                )
        yield from (f"wrote {path}" for path in self.files)


def compare_details(target: Path, golden: Path, out: Path) -> ComparedDetails:
    theirs = {row[_NAME]: row for row in read_table(golden, SPECIFIED_DETAIL_COLUMNS)}
    rows = read_table(target, SPECIFIED_DETAIL_COLUMNS)
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
    place = Place(name, verdict.status, verdict.message, standard, cells)
    if VERDICT in row and VERDICT in other:
        word, reason = _verdict(row, other)
        return place._replace(verdict=word, reason=reason)
    good = verdict.status == PASS or _is_no_worse(ours, theirs)
    reason = "" if good else f"{verdict.message} The trusted device does better."
    return place._replace(verdict=PASS if good else ERROR, reason=reason)


def _verdict(row: Row, other: Row) -> tuple[str, str]:
    """By the relative and the scale error of the two devices, each beside the exact reference."""
    verdict, why = row[VERDICT], row[_REASON].strip()
    if verdict != ERROR:
        return verdict, why
    for column, word in ((RELATIVE_ERROR, "relative"), (SCALE_ERROR, "scale")):
        ours, theirs = (parsed(each[column]) for each in (row, other))
        if ours is None or theirs is None:
            if ours is not theirs or row[_MESSAGE] != other[_MESSAGE]:
                return ERROR, why
        elif not abs(ours) <= _AS_GOOD * abs(theirs):
            beside = f"{100 * abs(ours):.2g} %, and {100 * abs(theirs):.2g} % on the trusted device"
            return ERROR, f"{why} The {word} error is {beside}."
    return PASS, f"{why} But the trusted device does no better."


def _is_no_worse(ours: Accuracy, theirs: Accuracy) -> bool:
    """Whether no metric of a table without verdicts is worse than on the trusted device."""
    return all(
        getattr(ours, field) == getattr(theirs, field) or getattr(ours, field) < getattr(theirs, field)
        for field in ("error_rate", "rmse", "max_relative", "mean_relative", "not_finite_rate", "max_abs")
        if getattr(ours, field) is not None and getattr(theirs, field) is not None
    )


def _api(place: str) -> str:
    return CallName.parse(f"{call_of(place)}.forward").api


def _cells(place: Place) -> list[str]:
    filled = {column: number(value) for column, value in place.cells.items()}
    filled |= {"API Name": place.name, "比对结果": place.status, "Message": place.message or BLANK}
    filled |= {"Verdict": place.verdict, "Verdict Reason": place.reason or BLANK}
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
        verdicts = [_worst_verdict(side) or BLANK for side in (forward, backward)]
        reasons = [f"{place.name}: {place.reason}" for place in found if place.verdict == ERROR]
        yield [call, *statuses, " ".join([*told, *skips]), *verdicts, " ".join(reasons) or BLANK]


def _worst_verdict(places: Sequence[Place]) -> str:
    found = {place.verdict for place in places}
    return next((verdict for verdict in (ERROR, CANNOT_TELL, PASS, SKIP) if verdict in found), "")
