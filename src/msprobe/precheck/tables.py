"""The two tables of a check on disk: begun, filled call by call, and taken up again after a kill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msprobe.errors import UsageError
from msprobe.name import call_of
from msprobe.precheck.calls import Call
from msprobe.precheck.judging import Answer
from msprobe.report.precheck_csv import (
    BLANK,
    DETAIL_COLUMNS,
    RESULT_COLUMNS,
    RESULT_NAME,
    SPECIFIED_DETAIL_COLUMNS,
    SPECIFIED_RESULT_COLUMNS,
    Growing,
    Summed,
    detail_cells,
    read_table,
    result_cells,
    write_table,
)

Row = dict[str, str]


class Tables:
    """accuracy_checking_result_{stamp}.csv and accuracy_checking_details_{stamp}.csv."""

    def __init__(self, folder: Path, stamp: str, results: Iterable[Row] = (), details: Iterable[Row] = ()):
        self.stamp = stamp
        self.result_file = folder / f"accuracy_checking_result_{stamp}.csv"
        self.details_file = folder / f"accuracy_checking_details_{stamp}.csv"
        self._results = {row[RESULT_COLUMNS[0]]: _cells(row, RESULT_COLUMNS) for row in results}
        self._details: dict[str, list[list[str]]] = {}
        for row in details:
            self._details.setdefault(call_of(row[DETAIL_COLUMNS[0]]), []).append(_cells(row, DETAIL_COLUMNS))
        self._growing: tuple[Growing, Growing] | None = None

    @classmethod
    def resumed(cls, path: Path) -> Tables:
        """From the result table of a check that was interrupted, and the details beside it."""
        found = RESULT_NAME.fullmatch(path.name)
        if found is None:
            raise UsageError(
                f"{path} is no result to go on with: its name must be accuracy_checking_result_ and "
                "14 digits, with the ending .csv."
            )
        results = read_table(path, SPECIFIED_RESULT_COLUMNS)
        tables = cls(path.parent, found[1])
        details = read_table(tables.details_file, SPECIFIED_DETAIL_COLUMNS)
        return cls(path.parent, found[1], results, details)

    def begin(self, calls: Sequence[Call]) -> list[Call]:
        """The calls that are not in the tables; what is there of a call that was not finished is dropped."""
        names = [call.text for call in calls]
        strange = self._results.keys() - set(names)
        if strange:
            raise UsageError(
                f"{self.result_file} holds {sorted(strange)[0]}, which is not among the calls to check; go "
                "on with the same dump.json and the same options that it was begun with."
            )
        self._details = {name: self._details.get(name, []) for name in names if name in self._results}
        kept = list(self._details)
        self._growing = (
            Growing(self.details_file, DETAIL_COLUMNS, [row for name in kept for row in self._details[name]]),
            Growing(self.result_file, RESULT_COLUMNS, [self._results[name] for name in kept]),
        )
        return [call for call in calls if call.text not in self._results]

    def add(self, answer: Answer) -> None:
        """Details first: a call is finished once its result stands in the other table."""
        assert self._growing is not None
        name = answer.summed.call
        self._details[name] = [detail_cells(result) for result in answer.results]
        self._results[name] = result_cells(answer.summed)
        self._growing[0].append(self._details[name])
        self._growing[1].append([self._results[name]])

    def finish(self, calls: Sequence[Call]) -> list[Summed]:
        """All results, in the order of the calls; so are the files, whatever order they grew in."""
        assert self._growing is not None
        for table in self._growing:
            table.close()
        names = [call.text for call in calls]
        if list(self._results) != names:
            details = [row for name in names for row in self._details[name]]
            write_table(self.details_file, DETAIL_COLUMNS, details)
            write_table(self.result_file, RESULT_COLUMNS, [self._results[name] for name in names])
        return [Summed(*(cell.strip() for cell in self._results[name])) for name in names]


def _cells(row: Row, columns: Sequence[str]) -> list[str]:
    return [row.get(column, BLANK) for column in columns]  # an older release has no verdict
