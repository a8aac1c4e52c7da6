"""Where our comparison is another than that of a release, on purpose: each time both values, and why.

docs/compare.md lists them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compare_case import NEW, OLD, OLDEST, Golden, Goldens, goldens
from golden_rows import (
    FORMAT,
    MESSAGE,
    OF_TENSORS,
    OPERATION,
    RATIOS,
    REDUCE,
    RESULTS,
    SIGMOID,
    SOURCE,
    UNMATCHED,
    rows,
)
from msprobe import store
from msprobe.analyse.judge import Finding
from msprobe.compare import compare
from msprobe.report.advice import advise
from msprobe.report.table import Cell
from msprobe.store.tensor_file import as_float, read
from msprobe.verdict.comparison import Comparison

__all__ = ["goldens"]

Floats = npt.NDArray[Any]

# ---- what has no counterpart ----


@pytest.mark.parametrize(
    ("golden", "result", "message"),
    [
        (UNMATCHED[0], "None", "Requires_grad inconsistent. Bench api/module unmatched."),
        (UNMATCHED[1], "N/A", "No bench data matched.Requires_grad inconsistent. "),
        (UNMATCHED[2], "N/A", None),
        (UNMATCHED[3], "pass", "[]"),
        (UNMATCHED[4], "pass", "[]"),
        (UNMATCHED[5], "warning", '["warning: The parameter of NPU does not match the bench."]'),
    ],
    ids=map(str, UNMATCHED),
)
def test_what_is_unmatched_says_so(
    goldens: Goldens, golden: Golden, result: str, message: str | None
) -> None:
    comparison = goldens.compared(golden)
    column = "Result" if "Result" in goldens.table(golden)[0] else RESULTS[1]
    theirs = [row for row in goldens.table(golden) if row["Bench Name"] == "N/A"]
    said = [None if MESSAGE not in row else row[MESSAGE].split("\n")[0] for row in theirs]
    assert [(row["NPU Name"], row[column]) for row in theirs] == [(name, result) for name in SIGMOID]
    assert said == [message] * len(SIGMOID)
    ours = [finding for finding in comparison.findings if finding.pair.golden is None]
    assert [(finding.pair.place.name, finding.result, finding.message, finding.fill) for finding in ours] == [
        (name, "Unmatched", "the golden run has no such call.", None) for name in SIGMOID
    ]


@pytest.mark.parametrize("golden", UNMATCHED, ids=str)
def test_what_only_the_golden_run_has_is_shown(goldens: Goldens, golden: Golden) -> None:
    """The releases drop such rows: with the sides exchanged their tables have no sigmoid at all."""
    target, trusted = goldens.runs(golden)
    (comparison,) = compare(trusted, target)
    only = [finding for finding in comparison.findings if finding.pair.target is None]
    assert [(finding.pair.place.name, finding.result, finding.message) for finding in only] == [
        (name, "Unmatched", "the target has no such call.") for name in SIGMOID
    ]


# ---- numbers ----


def relative_errors(golden: Golden, ours: Floats, theirs: Floats, *, exact: bool) -> Floats:
    """As we take them, or as a release does: in the dtype of the tensor; 26.2.0 adds another epsilon."""
    finite = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = np.where(finite, ours, 0), np.where(finite, theirs, 0)
    kind: Any = np.float64 if exact or ours.dtype.kind != "f" else ours.dtype
    if golden.release == NEW and not exact:
        kind = np.result_type(kind, np.float32)
    ours, theirs = ours.astype(kind), theirs.astype(kind)
    epsilon = np.finfo(kind if golden.release == NEW and not exact else np.float64).eps
    zeros = theirs == 0
    with np.errstate(all="ignore"):
        ours[zeros] += epsilon
        theirs[zeros] += epsilon
        return np.abs((ours - theirs) / theirs)


def contents(finding: Finding, comparison: Comparison) -> tuple[Floats, Floats] | None:
    """The tensors of both sides, bfloat16 widened to float32."""
    found = []
    for place, recording in (
        (finding.pair.target, comparison.target),
        (finding.pair.golden, comparison.golden),
    ):
        path = None if place is None or place.leaf is None else store.tensor_path(recording, place.leaf)
        if path is None:
            return None
        stored = read(path)
        array = as_float(stored.array, stored.dtype) if stored.dtype == "bfloat16" else stored.array
        found.append(np.atleast_1d(array))
    return found[0], found[1]


@pytest.mark.parametrize("golden", OF_TENSORS, ids=str)
def test_relative_errors_are_taken_in_float64(goldens: Goldens, golden: Golden) -> None:
    """The releases divide in the dtype of the tensor; both numbers are as these definitions say."""
    comparison = goldens.compared(golden)
    findings = {finding.pair.place.name: finding for finding in comparison.findings}
    for row in rows(goldens, golden):
        finding = findings.get(row.name) or findings[f"{row.name}.tensor"]
        tensors = contents(finding, comparison)
        if tensors is None or not tensors[0].size:
            assert row.ours["MaxRelativeErr"] == "unsupported"
            continue
        for cells, exact in ((row.ours, True), (row.theirs, False)):
            errors = relative_errors(golden, *tensors, exact=exact)
            seen = float(str(cells["MaxRelativeErr"]).replace("Nan", "nan"))
            assert seen == pytest.approx(errors.max(), rel=1e-9, abs=6e-13, nan_ok=True), row.name
            for header, limit in RATIOS.items():
                if cells[header] != "unsupported":
                    assert float(str(cells[header])) == pytest.approx((errors < limit).mean(), abs=1e-12)


LINEAR, EMPTY = "Functional.linear.7.forward.output.0", "Tensor.__getitem__.0.forward.output.0"
WEIGHT = "Functional.embedding.0.forward.input.1"
RELATIVE_ERROR = "MaxRelativeErr"
PINNED: list[tuple[str, str, str, str, str, Cell]] = [
    (OLDEST, "L1_tensor", LINEAR, RELATIVE_ERROR, "0.708115875721", 0.708115883754),
    (OLD, "L1_tensor", LINEAR, RELATIVE_ERROR, "0.708115875721", 0.708115883754),
    (NEW, "L1_tensor", LINEAR, RELATIVE_ERROR, "0.708115875721", 0.708115883754),
    # float16: 2.2e-16 added to a zero changes nothing
    (OLD, "L1_tensor", "Torch.add.0.backward.input.0", RELATIVE_ERROR, "Nan", 0.0),
    (OLD, "L1_tensor", "Tensor.float.1.backward.output.0", "One Thousandth Err Ratio", "0.25", 1.0),
    (OLD, "unmatched_tensor", "Tensor.half.0.forward.output.0", RELATIVE_ERROR, "inf\t", 2251799813685248.0),
    # it adds 1.2e-7 to zeros
    (NEW, "L1_tensor", "Functional.conv1d.0.backward.output.2", RELATIVE_ERROR, "3.0", 16777216.0),
    (OLD, "L1_statistics", FORMAT, "NPU Dtype", "<class 'NoneType'>", "<class 'torch.memory_format'>"),
    (OLD, "ddp_mix_statistics", REDUCE, "NPU Dtype", "<class 'str'>", "<class 'torch.distributed.ReduceOp'>"),
    (NEW, "ddp_mix_tensor", SOURCE, "NPU Dtype", "int", "<class 'int'>"),
    (OLD, "L1_statistics", WEIGHT, "NPU max", "2.661676168441772", 2.6616761684417725),
    (OLDEST, "L1_tensor", EMPTY, "Cosine", "0", "unsupported"),
    (OLDEST, "L1_tensor", EMPTY, RESULTS[1], "No", "None"),
    (OLDEST, "L1_tensor", "Tensor.__getitem__.0.forward.input.1.2", "NPU max", "None", "[None, 0, None]"),
]


@pytest.mark.parametrize(("release", "name", "place", "header", "theirs", "ours"), PINNED)
def test_a_cell_that_is_another_on_purpose(
    goldens: Goldens, release: str, name: str, place: str, header: str, theirs: str, ours: Cell
) -> None:
    golden = Golden(release, name, 0 if name.startswith("ddp") else None)
    (row,) = (row for row in rows(goldens, golden) if row.name == place)
    assert (row.theirs[header], row.ours[header]) == (theirs, ours)


def test_float16_zeros_are_no_reason_for_red(goldens: Goldens) -> None:
    """Its NaN makes 8.3.3 say that the output is wrong, though both runs hold the same numbers."""
    by_name = {row.name: row for row in rows(goldens, Golden(OLD, "L1_tensor"))}
    row = by_name["Tensor.float.1.backward.output.0"]
    assert (row.theirs["row_fill"], row.fill) == ("FFFF0000", "")
    assert (row.theirs["EucDist"], row.ours["EucDist"], row.ours[MESSAGE]) == ("0", 0.0, "")
    assert row.theirs[MESSAGE].startswith(
        "Cannot compare by MaxRelativeError, the data contains nan/inf/-inf"
    )


def test_a_message_is_said_once(goldens: Goldens) -> None:
    by_name = {row.name: row for row in rows(goldens, Golden(OLD, "L1_tensor"))}
    loss = by_name["Functional.cross_entropy.0.forward.output.0"]
    ours = "This is type of 0-d tensor, can not calculate"
    assert str(loss.ours[MESSAGE]).count(ours) == 1
    assert loss.theirs[MESSAGE].count(ours) > 1
    drop = "The output's one thousandth err ratio decreases by more than 0.1"
    linear = by_name["Functional.linear.7.forward.output.0"]
    assert (str(linear.ours[MESSAGE]).count(drop), linear.theirs[MESSAGE].count(drop)) == (1, 3)


def test_an_empty_tensor_is_no_suspect(goldens: Goldens) -> None:
    """1.2.2 gives it the cosine 0, and with it the first `No`."""
    golden = Golden(OLDEST, "L1_tensor")
    assert goldens.advice(golden).splitlines()[1] == "Suspect Nodes: Tensor.__getitem__.0.forward.output.0"
    assert advise(goldens.compared(golden).findings).name == "Tensor.__add__.6.backward.output.1"


def test_an_operation_of_batch_isend_irecv_is_shown_with_its_peer(goldens: Goldens) -> None:
    """The releases show its tensor alone; a wrong peer would not be seen."""
    golden = Golden(OLD, "ddp_mix_statistics", 0)
    ours = [finding.pair.place.name for finding in goldens.compared(golden).findings]
    theirs = [row["NPU Name"] for row in goldens.table(golden)]
    operation = "Distributed.batch_isend_irecv.0.forward.input.0.0"
    assert {name.removeprefix(operation) for name in ours if name.startswith(operation)} >= set(OPERATION)
    assert [name for name in theirs if name.startswith(operation)] == [operation]
