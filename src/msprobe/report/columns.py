"""Every column of the result table once: its header, and how a finding fills it and its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from msprobe.analyse.judge import Finding
from msprobe.analyse.measure import (
    NOTHING,
    UNSUPPORTED,
    StatisticsErrors,
    TensorErrors,
    checksum_of,
    values_of,
)
from msprobe.kernels import SKETCH_SIZE
from msprobe.pairing.described import measure_sketches, sketch_lengths
from msprobe.pairing.match import Place, frames_of
from msprobe.report.table import Cell, Table
from msprobe.verdict.comparison import Comparison


class Columns(NamedTuple):
    """Headers that stand side by side, and what a finding has under them."""

    headers: tuple[str, ...]
    fill: Callable[[Finding], Sequence[Cell]]


def metrics(mode: str) -> Columns:
    """How far apart the contents are, or the statistics, or whether the checksums agree."""
    return _METRICS[mode]


def results(mode: str) -> Columns:
    """What the specification makes of it."""
    return _RESULTS[mode]


def columns(mode: str, *, with_stack: bool) -> list[Columns]:
    """Those of a comparison of `tensor`s, of `statistics`, or of checksums (`md5`)."""
    found = [_SIDES, metrics(mode)]
    if mode != "md5":
        found.append(_STATISTICS)
    found.append(results(mode))
    if with_stack:
        found.append(Columns((_STACK,), lambda finding: (NOTHING,)))
    if mode == "tensor":
        found.append(Columns(("Data_name",), _data_names))
    return found


def table(comparison: Comparison, *, with_stack: bool) -> Table:
    """All findings as rows, our verdict behind; the stack of a call stands in its first row."""
    findings = comparison.findings
    shown = columns(comparison.mode, with_stack=with_stack)
    headers = [header for some in shown for header in some.headers]
    rows = [_row(shown, finding) for finding in findings]
    if with_stack:
        number = headers.index(_STACK)
        for row, frames in zip(rows, frames_of(finding.pair for finding in findings), strict=True):
            row[number] = str(list(frames)) if frames else NOTHING
    for row, verdict in zip(rows, comparison.verdicts, strict=True):
        row += (verdict.level, verdict.error, verdict.reason)
    headers += VERDICT
    if 4 * SKETCH_SIZE in sketch_lengths(finding.pair for finding in findings):
        headers += SKETCH
        for row, finding in zip(rows, findings, strict=True):
            row += _sketched(finding)
    if any(finding.pair.certainty is not None for finding in findings):
        headers += ALIGNMENT
        for row, finding in zip(rows, findings, strict=True):
            row += finding.pair.certainty or (None,) * len(ALIGNMENT)
    fills = {number: finding.fill for number, finding in enumerate(findings) if finding.fill is not None}
    return Table(headers, rows, fills)


def _row(shown: Sequence[Columns], finding: Finding) -> list[Cell]:
    row: list[Cell] = []
    for some in shown:
        row += some.fill(finding)
    return row


def _sketched(finding: Finding) -> tuple[Cell, ...]:
    """What two sketches tell of the tensors, and how well they know it."""
    pair = finding.pair
    if pair.reason or pair.target is None or pair.golden is None:
        return (None,) * len(SKETCH)
    ours, theirs = pair.target.leaf, pair.golden.leaf
    errors = measure_sketches(ours, theirs) if ours is not None and theirs is not None else None
    if errors is None or errors.is_brief:
        return (None,) * len(SKETCH)
    return errors.relative, errors.cosine, errors.sd


# ---- one of the two sides ----


def description(place: Place | None) -> tuple[Cell, ...]:
    """What DESCRIPTION names."""
    if place is None:
        return (NOTHING,) * len(DESCRIPTION)
    leaf = place.leaf
    if leaf is None:
        return "None", "None", NOTHING
    needs = NOTHING if leaf.requires_grad is None else leaf.requires_grad
    if leaf.is_tensor:
        return leaf.dtype, _listed(leaf.shape or ()), needs
    is_named = leaf.type in ("torch.Size", "slice")
    shape = str(leaf.value) if leaf.type == "torch.Size" else "[]"
    return leaf.type if is_named else f"<class '{leaf.type}'>", shape, needs


@lru_cache(maxsize=4096)
def _listed(shape: tuple[int, ...]) -> str:
    return str(list(shape))


def _statistics(place: Place | None) -> Sequence[Cell]:
    if place is None:
        return (NOTHING,) * len(STATISTICS)
    values = values_of(place.leaf)
    if all(type(value) is float for value in values):
        return values
    return [value if isinstance(value, (str, int, float)) else str(value) for value in values]


def _checksum(place: Place | None) -> str:
    return NOTHING if place is None else checksum_of(place.leaf)


def _data_name(place: Place | None) -> str:
    if place is None:
        return NOTHING
    return "-1" if place.leaf is None or place.leaf.data_name is None else place.leaf.data_name


# ---- both sides ----


def _sides(finding: Finding) -> Sequence[Cell]:
    """Their names and descriptions, by turns."""
    target, golden = finding.pair.target, finding.pair.golden
    our_dtype, our_shape, our_needs = description(target)
    dtype, shape, needs = description(golden)
    names = NOTHING if target is None else target.name, NOTHING if golden is None else golden.name
    return *names, our_dtype, dtype, our_shape, shape, our_needs, needs


def _both_statistics(finding: Finding) -> Sequence[Cell]:
    measured = finding.measured
    if isinstance(measured, StatisticsErrors) and set(map(type, measured.values)) == _FLOATS:
        return measured.values
    return *_statistics(finding.pair.target), *_statistics(finding.pair.golden)


def _checksums(finding: Finding) -> Sequence[Cell]:
    return _checksum(finding.pair.target), _checksum(finding.pair.golden)


def _data_names(finding: Finding) -> Sequence[Cell]:
    return (str([_data_name(finding.pair.target), _data_name(finding.pair.golden)]),)


def _tensor_errors(finding: Finding) -> Sequence[Cell]:
    measured = finding.measured
    return measured.metrics if isinstance(measured, TensorErrors) else (UNSUPPORTED,) * 6


def _statistics_errors(finding: Finding) -> Sequence[Cell]:
    measured = finding.measured
    if not isinstance(measured, StatisticsErrors):
        return (NOTHING,) * 2 * len(STATISTICS)
    return measured.metrics


def _result(finding: Finding) -> Sequence[Cell]:
    return finding.gradients_agree, finding.result


def _result_and_message(finding: Finding) -> Sequence[Cell]:
    return finding.gradients_agree, finding.result, finding.message


_FLOATS = frozenset({float})
_STACK = "NPU_Stack_Info"
# Ours, behind all that the specification names: the level, the tolerance that would have passed, and why.
VERDICT = ("Verdict", "Passing Tolerance", "Verdict Reason")
# Where both recordings have sketches: estimates of the whole tensors, known to this share of themselves.
SKETCH = ("Sketch Relative Err", "Sketch Cosine", "Sketch Uncertainty")
# Where no mapping was given across frameworks: how sure it is that the two calls belong together, and why.
ALIGNMENT = ("Alignment Confidence", "Alignment Reason")

DESCRIPTION = ("Dtype", "Tensor Shape", "Requires_grad")
STATISTICS = ("max", "min", "mean", "l2norm")
RESULTS = ("Accuracy Reached or Not", "Result")  # of tensors, and of all else
_WORDS = ("NPU", "Bench")  # the target and the golden run
_SIDES = Columns(tuple(f"{word} {header}" for header in ("Name", *DESCRIPTION) for word in _WORDS), _sides)
_STATISTICS = Columns(tuple(f"{word} {header}" for word in _WORDS for header in STATISTICS), _both_statistics)
_METRICS = {
    "tensor": Columns(
        (
            "Cosine",
            "EucDist",
            "MaxAbsErr",
            "MaxRelativeErr",
            "One Thousandth Err Ratio",
            "Five Thousandths Err Ratio",
        ),
        _tensor_errors,
    ),
    "statistics": Columns(
        (
            *("Max diff", "Min diff", "Mean diff", "L2norm diff"),
            *("MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr"),
        ),
        _statistics_errors,
    ),
    "md5": Columns(("NPU MD5", "BENCH MD5"), _checksums),
}
_AGREE = "Requires_grad Consistent"
_RESULTS = {
    "tensor": Columns((_AGREE, RESULTS[0], "Err_message"), _result_and_message),
    "statistics": Columns((_AGREE, RESULTS[1], "Err_message"), _result_and_message),
    "md5": Columns((_AGREE, RESULTS[1]), _result),
}
