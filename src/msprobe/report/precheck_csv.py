"""The tables of the pre-check: which columns, how a number is written, and how both files grow call by call.

A file is whole after every call: a process that was killed leaves at most one call half written, and that is
cut off when the check is resumed.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msprobe.analyse.accuracy import Accuracy
from msprobe.errors import UsageError
from msprobe.metrics.rounding import Judged
from msprobe.report.table import csv_lines, written
from msprobe.store.layout import open_new, open_regular, write_whole

SPECIFIED_RESULT_COLUMNS = ("API name", "Forward Test Success", "Backward Test Success", "Message")
RESULT_COLUMNS = (*SPECIFIED_RESULT_COLUMNS, "Forward Verdict", "Backward Verdict", "Verdict Reason")
# Of each metric: its column, and where it comes from.
METRICS = (
    ("余弦相似度", "cosine"),
    ("最大绝对误差", "max_abs"),
    ("双百指标", "hundredth"),
    ("双千指标", "thousandth"),
    ("双万指标", "ten_thousandth"),
    ("二进制一致错误率", "error_rate"),
    ("误差均衡性", "balance"),
    ("均方根误差", "rmse"),
    ("小值域错误占比", "small_share"),
    ("相对误差最大值", "max_relative"),
    ("相对误差平均值", "mean_relative"),
    ("inf/nan错误率", "not_finite_rate"),
    ("相对误差错误率", "relative_rate"),
    ("绝对误差错误率", "absolute_rate"),
    ("ULP误差最大值", "max_ulp"),
    ("ULP误差平均值", "mean_ulp"),
    ("ULP误差大于阈值占比", "ulp_share"),
)
SPECIFIED_DETAIL_COLUMNS = (
    *("API Name", "Bench Dtype", "DEVICE Dtype", "Shape"),
    *(column for column, _ in METRICS),
    *("Status", "Message"),
)
JUDGED_COLUMNS = RELATIVE_ERROR, SCALE_ERROR, TOLERANCE, VERDICT, REASON = (
    *("Relative Error", "Scale Error", "Tolerance", "Verdict", "Verdict Reason"),
)
DETAIL_COLUMNS = (*SPECIFIED_DETAIL_COLUMNS, *JUDGED_COLUMNS)
COMPARED_RESULT_COLUMNS = (
    *("API Name", "Forward Test Success", "Backward Test Success", "Message"),
    *("Forward Verdict", "Backward Verdict", "Verdict Reason"),
)
COMPARED_COLUMNS = (
    *("API Name", "小值域错误比值", "小值域判定结果", "均方根误差比值", "均方根误差判定结果"),
    *("相对误差最大值比值", "相对误差最大值判定结果", "相对误差平均值比值", "相对误差平均值判定结果"),
    *("误差均衡性比值", "误差均衡性判定结果", "inf/nan错误率", "inf/nan判定结果"),
    *("相对误差错误率", "相对误差判定结果", "绝对误差错误率", "绝对误差判定结果"),
    *("二进制一致错误率", "二进制一致错误率判定结果", "ULP误差平均值", "ULP误差大于阈值占比"),
    *("ULP误差大于阈值占比比值", "ULP误差判定结果", "双千指标", "双千指标判定结果"),
    *("比对结果", "比对算法", "Message", "Verdict", "Verdict Reason"),
)
BLANK = " "  # a cell without a value, as every release writes it
RESULT_NAME = re.compile(r"accuracy_checking_result_([0-9]{14})\.csv")

_MARK = "\ufeff".encode()  # by which a spreadsheet knows UTF-8
_MOST_BYTES = 1 << 30


class Result(NamedTuple):
    """One place of a call that was judged, or the reason why none was."""

    place: str  # Functional.linear.0.forward.output.0
    status: str
    message: str = ""
    reference_dtype: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    accuracy: Accuracy | None = None
    judged: Judged | None = None  # None: it was skipped


class Summed(NamedTuple):
    """One call, as the first table has it."""

    call: str
    forward: str
    backward: str  # "": it has none
    message: str = ""
    forward_verdict: str = ""
    backward_verdict: str = ""
    reason: str = ""


def result_cells(summed: Summed) -> list[str]:
    call, *cells = summed
    return [call, *(cell or BLANK for cell in cells[:2]), cells[2], *(cell or BLANK for cell in cells[3:])]


def detail_cells(result: Result) -> list[str]:
    metrics = [metric(result.accuracy, field) for _, field in METRICS]
    dtypes = [f"torch.{dtype}" if dtype else BLANK for dtype in (result.reference_dtype, result.dtype)]
    shape = BLANK if result.shape is None else str(result.shape)
    cells = [result.place, *dtypes, shape, *metrics, result.status, result.message or BLANK]
    return [*cells, *_judged_cells(result)]


def _judged_cells(result: Result) -> list[str]:
    if result.judged is None:
        return [BLANK, BLANK, BLANK, result.status, BLANK]
    *numbers, verdict, reason = result.judged
    return [*(BLANK if value is None else f"{value:.6g}" for value in numbers), verdict, reason or BLANK]


def metric(accuracy: Accuracy | None, field: str) -> str:
    if accuracy is None or (not accuracy.is_float and field != "error_rate"):
        return BLANK
    return number(getattr(accuracy, field))


def number(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or BLANK
    return f"{value:.14f}"


def accuracy_of(row: Mapping[str, str]) -> Accuracy | None:
    """The metrics of a row that was read, whatever release wrote it; None if it has none."""
    found = {field: parsed(row.get(column, "")) for column, field in METRICS}
    if all(value is None for value in found.values()):
        return None
    absent = {"cosine": None, "max_abs": None}
    known = {field: value for field, value in found.items() if value is not None}
    missing = {field: float("nan") for field in Accuracy._fields if field not in {*known, "mismatched"}}
    return Accuracy(**{**missing, **absent, **known})  # type: ignore[arg-type]


def parsed(cell: str) -> float | None:
    """Return the number in a cell; None if it holds none."""
    try:
        return float(cell)
    except ValueError:
        return None


class Growing:
    """A table that gets rows while the check runs; each append is on disk, or handed to the system, whole."""

    def __init__(self, path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]] = ()) -> None:
        self.path = path
        write_whole(path, [_MARK, csv_lines([columns]), csv_lines(rows)])
        self._file = os.fdopen(open_new(path, os.O_APPEND), "ab", buffering=0)

    def append(self, rows: Iterable[Sequence[str]]) -> None:
        self._file.write(csv_lines(rows))

    def close(self) -> None:
        self._file.close()


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    write_whole(path, [_MARK, csv_lines([columns]), csv_lines(rows)])


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows by column; a last line that was not finished is left out."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{path} is larger than {_MOST_BYTES} bytes, which no table of a pre-check is.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a csv file in UTF-8.") from None
    try:
        rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
    except csv.Error as error:
        raise UsageError(f"{path} cannot be understood: {error}.") from None
    missing = [column for column in columns if column not in (rows[0] if rows else [])]
    if missing:
        kind = "details" if columns is SPECIFIED_DETAIL_COLUMNS else "result"
        raise UsageError(f"{path} is no accuracy_checking_{kind} table: it has no column '{missing[0]}'.")
    return [
        dict(zip(rows[0], [written(cell) for cell in row] + [""] * len(rows[0]), strict=False))
        for row in rows[1:]
        if row
    ]
