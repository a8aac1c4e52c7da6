"""Our comparison of real recordings beside those of the releases that made them, row by row."""

from __future__ import annotations

from pathlib import Path

import openpyxl
import pytest

from compare_case import NEW, OLD, OLDEST, Golden, Goldens, goldens
from golden_rows import (
    ADVISED,
    GOLDENS,
    MESSAGE,
    RESULTS,
    SIGMOID,
    STACK,
    UNMATCHED,
    different,
    is_half,
    rows,
)
from msprobe.cli.main import main
from msprobe.report.advice import advise
from msprobe.report.columns import VERDICT, table
from msprobe.verdict.comparison import Comparison

__all__ = ["goldens"]


def columns(comparison: Comparison, *, with_stack: bool) -> list[str]:
    return [header for header in table(comparison, with_stack=with_stack).columns if header not in VERDICT]


def once(text: str) -> str:
    """A message without its repetitions: it says the same thing for each input, and 16 times of a scalar."""
    lines = dict.fromkeys(line.strip() for line in text.split("\n"))
    zero_dim = "This is type of 0-d tensor"
    return "\n".join(zero_dim if line.startswith(zero_dim) else line for line in lines).strip()


# ---- agreement ----


@pytest.mark.spec("P21", "CLI")
@pytest.mark.spec("K028", "CLI")
@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_rows_numbers_and_verdicts_are_those_of_the_release(goldens: Goldens, golden: Golden) -> None:
    assert [cell for row in rows(goldens, golden) for cell in different(golden, row)] == []


@pytest.mark.spec("P21", "CLI")
@pytest.mark.spec("K028", "CLI")
@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_columns_are_those_of_8_3_3(goldens: Goldens, golden: Golden) -> None:
    """1.2.2 lacks some; 26.2.0 calls one verdict otherwise, and has messages beside checksums too."""
    theirs = [header for header in goldens.table(golden)[0] if header != "row_fill"]
    ours = columns(goldens.compared(golden), with_stack=STACK in theirs)
    if golden.release == OLDEST:
        ours = [header for header in ours if "Requires_grad" not in header and header != "EucDist"]
    if golden.release == NEW:
        ours = ["Result" if header == "Accuracy Reached or Not" else header for header in ours]
        if MESSAGE not in ours:
            ours.insert(ours.index("Result") + 1, MESSAGE)
    assert ours == theirs


@pytest.mark.spec("P21", "CLI")
@pytest.mark.parametrize("golden", ADVISED, ids=str)
def test_messages_and_colours_are_those_of_the_release(goldens: Goldens, golden: Golden) -> None:
    """1.2.2 has other words."""
    wrong = []
    for row in rows(goldens, golden):
        ours, theirs = str(row.ours.get(MESSAGE, "")), row.theirs.get(MESSAGE, "")
        if is_half(row.theirs):
            continue
        if golden.release == OLDEST:
            theirs = theirs.replace("No bench data matched.", "NPU does not have data file.")
            theirs = theirs.replace("input/parameters's", "input/parameter's")
        if once(ours) != once(theirs):
            wrong.append((row.name, ours, theirs))
        if row.fill[2:] != row.theirs["row_fill"][2:]:
            wrong.append((row.name, row.fill, row.theirs["row_fill"]))
    assert wrong == []


@pytest.mark.spec("P21", "CLI")
@pytest.mark.parametrize(
    "golden", [golden for golden in ADVISED if golden != Golden(OLDEST, "L1_tensor")], ids=str
)
def test_the_advice_is_that_of_the_release(goldens: Goldens, golden: Golden) -> None:
    assert str(advise(goldens.compared(golden).findings)) == goldens.advice(golden)


def test_saved_variables_of_1_2_2_are_compared(goldens: Goldens) -> None:
    """It cannot do that itself; the rows are those that 8.3.3 has of the same variables."""
    shown = table(goldens.compared(Golden(OLDEST, "debug_tensor")), with_stack=False)
    names = [row["NPU Name"] for row in goldens.table(Golden(OLD, "debug_tensor"))]
    assert [row[0] for row in shown.rows] == names
    loss = dict(zip(shown.columns, shown.rows[-1], strict=True))
    assert (loss["NPU max"], loss["Bench max"]) == (0.9870569109916687, 0.987025260925293)
    assert (loss["MaxAbsErr"], loss["MaxRelativeErr"]) == (3.1650066e-05, 3.2066116e-05)


@pytest.mark.spec("K010", "CLI")
@pytest.mark.spec("K011", "CLI")
@pytest.mark.spec("K053", "CLI")
@pytest.mark.spec("K054", "CLI")
@pytest.mark.spec("P21", "CLI")
def test_the_command_writes_what_8_3_3_writes(
    goldens: Goldens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without -o into ./output; the first place that is not accurate is advised on screen and in a file."""
    golden = Golden(OLD, "L1_tensor")
    monkeypatch.chdir(tmp_path)
    target, trusted = (str(run / "step0") for run in goldens.runs(golden))
    assert main(["-f", "pytorch", "compare", target, trusted, "-s"]) == 0
    (advice,) = (tmp_path / "output").glob("advisor_[0-9]*.txt")
    assert advice.read_text().rstrip("\n") == goldens.advice(golden)
    assert "The specification's fixed rules: " in capsys.readouterr().out
    (result,) = (tmp_path / "output").glob("compare_result_[0-9]*.xlsx")
    sheet = openpyxl.load_workbook(result).active
    assert sheet is not None
    header, *body = sheet.iter_rows(values_only=True)
    theirs = goldens.table(golden)
    assert list(header)[: -len(VERDICT)] == [key for key in theirs[0] if key != "row_fill"]
    assert [row[0] for row in body] == [row["NPU Name"] for row in theirs]


# ---- what has no counterpart ----


@pytest.mark.spec("K020", "CLI")
@pytest.mark.parametrize("golden", UNMATCHED, ids=str)
def test_a_call_that_one_run_lacks(goldens: Goldens, golden: Golden) -> None:
    """The bench run has no torch.sigmoid; no other row suffers, and names are matched as they are."""
    wrong = [cell for row in rows(goldens, golden) for cell in different(golden, row)]
    assert [cell for cell in wrong if cell[1] not in RESULTS] == []
    assert {name for name, *_ in wrong} <= set(SIGMOID)
