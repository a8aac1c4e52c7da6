"""Every column of the result table once: its header, and how a finding fills it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msprobe.analyse.comparison import Comparison
from msprobe.analyse.judge import Finding, needs_agree
from msprobe.analyse.match import Place, frames_of
from msprobe.analyse.measure import (
    NOTHING,
    UNSUPPORTED,
    StatisticsErrors,
    TensorErrors,
    checksum_of,
    measure_sketches,
    values_of,
)
from msprobe.record import Leaf
from msprobe.report.table import Cell, Table


class Column(NamedTuple):
    """A header, and what a finding has under it."""

    header: str
    fill: Callable[[Finding], Cell]


def columns(mode: str, *, with_stack: bool) -> list[Column]:
    """Those of a comparison of `tensor`s, of `statistics`, or of checksums (`md5`)."""
    found = [*_BASIC, *_METRICS[mode]]
    if mode != "md5":
        found += _STATISTICS
    found.append(Column("Requires_grad Consistent", lambda finding: needs_agree(finding.pair)))
    found.append(Column(_RESULT[mode], lambda finding: finding.result))
    if mode != "md5":
        found.append(Column("Err_message", lambda finding: finding.message))
    if with_stack:
        found.append(Column(_STACK, lambda finding: NOTHING))
    if mode == "tensor":
        found.append(Column("Data_name", _data_names))
    return found


def table(comparison: Comparison, *, with_stack: bool) -> Table:
    """All findings as rows, our verdict behind; the stack of a call stands in its first row."""
    findings = comparison.findings
    shown = columns(comparison.mode, with_stack=with_stack)
    rows = [[column.fill(finding) for column in shown] for finding in findings]
    if with_stack:
        number = [column.header for column in shown].index(_STACK)
        for row, frames in zip(rows, frames_of(finding.pair for finding in findings), strict=True):
            row[number] = str(list(frames)) if frames else NOTHING
    for row, verdict in zip(rows, comparison.verdicts, strict=True):
        row += (verdict.level, verdict.error, verdict.reason)
    headers = [*(column.header for column in shown), *VERDICT]
    if _are_sketched(findings):
        headers += SKETCH
        for row, finding in zip(rows, findings, strict=True):
            row += _sketched(finding)
    if any(finding.pair.certainty is not None for finding in findings):
        headers += ALIGNMENT
        for row, finding in zip(rows, findings, strict=True):
            row += finding.pair.certainty or (None,) * len(ALIGNMENT)
    fills = {number: finding.fill for number, finding in enumerate(findings) if finding.fill is not None}
    return Table(headers, rows, fills)


def _are_sketched(findings: Sequence[Finding]) -> bool:
    leaves = (finding.pair.place.leaf for finding in findings)
    return any(leaf is not None and leaf.sketch is not None for leaf in leaves)


def _sketched(finding: Finding) -> tuple[Cell, ...]:
    """What two sketches tell of the tensors, and how well they know it."""
    pair = finding.pair
    if pair.reason or pair.target is None or pair.golden is None:
        return (None,) * len(SKETCH)
    ours, theirs = pair.target.leaf, pair.golden.leaf
    errors = measure_sketches(ours, theirs) if ours is not None and theirs is not None else None
    return (None,) * len(SKETCH) if errors is None else (errors.relative, errors.cosine, errors.sd)


def _side(name: str, ask: Callable[[Place], Cell]) -> Callable[[Finding], Cell]:
    def fill(finding: Finding) -> Cell:
        place = finding.pair.target if name == "target" else finding.pair.golden
        return NOTHING if place is None else ask(place)

    return fill


def _dtype(place: Place) -> str:
    leaf = place.leaf
    if leaf is None:
        return "None"
    if leaf.is_tensor:
        return str(leaf.dtype)
    return leaf.type if leaf.type in ("torch.Size", "slice") else f"<class '{leaf.type}'>"


def _shape(place: Place) -> str:
    leaf = place.leaf
    if leaf is None:
        return "None"
    if leaf.is_tensor:
        return str(list(leaf.shape or ()))
    return str(leaf.value) if leaf.type == "torch.Size" else "[]"


def _needs_gradient(place: Place) -> Cell:
    return NOTHING if place.leaf is None or place.leaf.requires_grad is None else place.leaf.requires_grad


def _value(index: int) -> Callable[[Place], Cell]:
    def ask(place: Place) -> Cell:
        value = values_of(place.leaf)[index]
        return value if isinstance(value, (str, int, float, bool)) else str(value)

    return ask


def _metric(field: str) -> Callable[[Finding], Cell]:
    def fill(finding: Finding) -> Cell:
        return getattr(finding.measured, field) if isinstance(finding.measured, TensorErrors) else UNSUPPORTED

    return fill


def _statistic(field: str, index: int) -> Callable[[Finding], Cell]:
    def fill(finding: Finding) -> Cell:
        measured = finding.measured
        if not isinstance(measured, StatisticsErrors):
            return NOTHING
        values: Sequence[Any] = getattr(measured, field)
        cell: Cell = values[index]
        return cell

    return fill


def _checksum(place: Place) -> str:
    return checksum_of(place.leaf)


def _data_names(finding: Finding) -> str:
    def of(place: Place | None) -> str:
        leaf: Leaf | None = None if place is None else place.leaf
        if place is None:
            return NOTHING
        return "-1" if leaf is None or leaf.data_name is None else leaf.data_name

    return str([of(finding.pair.target), of(finding.pair.golden)])


_STACK = "NPU_Stack_Info"
# Ours, behind all that the specification names: the level, the tolerance that would have passed, and why.
VERDICT = ("Verdict", "Passing Tolerance", "Verdict Reason")
# Where both recordings have sketches: estimates of the whole tensors, known to this share of themselves.
SKETCH = ("Sketch Relative Err", "Sketch Cosine", "Sketch Uncertainty")
# Where no mapping was given across frameworks: how sure it is that the two calls belong together, and why.
ALIGNMENT = ("Alignment Confidence", "Alignment Reason")
_BASIC = [
    Column(f"{word} {header}", _side(side, ask))
    for header, ask in (
        ("Name", lambda place: place.name),
        ("Dtype", _dtype),
        ("Tensor Shape", _shape),
        ("Requires_grad", _needs_gradient),
    )
    for word, side in (("NPU", "target"), ("Bench", "golden"))
]
_STATISTICS = [
    Column(f"{word} {header}", _side(side, _value(index)))
    for word, side in (("NPU", "target"), ("Bench", "golden"))
    for index, header in enumerate(("max", "min", "mean", "l2norm"))
]
_METRICS = {
    "tensor": [
        Column(header, _metric(field))
        for header, field in (
            ("Cosine", "cosine"),
            ("EucDist", "euclidean"),
            ("MaxAbsErr", "max_abs"),
            ("MaxRelativeErr", "max_relative"),
            ("One Thousandth Err Ratio", "one_thousandth"),
            ("Five Thousandths Err Ratio", "five_thousandths"),
        )
    ],
    "statistics": [
        Column(header, _statistic(field, index))
        for field, headers in (
            ("differences", ("Max diff", "Min diff", "Mean diff", "L2norm diff")),
            ("relative", ("MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr")),
        )
        for index, header in enumerate(headers)
    ],
    "md5": [Column("NPU MD5", _side("target", _checksum)), Column("BENCH MD5", _side("golden", _checksum))],
}
_RESULT = {"tensor": "Accuracy Reached or Not", "statistics": "Result", "md5": "Result"}
