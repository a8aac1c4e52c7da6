"""Our comparison of real recordings beside that of the release which made them, row by row."""

from __future__ import annotations

import csv
import math
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from msprobe.analyse.measure import TensorErrors
from msprobe.compare import Comparison, compare
from msprobe.report.columns import columns
from msprobe.report.table import Cell

GOLDEN = Path(__file__).parent / "golden/compare.tar.xz"
COMPARED = ("L1_tensor", "L1_statistics", "L0_md5", "L1_md5", "mix_statistics", "debug_tensor")

# Where we differ on purpose from release 8.3.3, each with the reason that docs/compare.md gives.
FORMAT = "Torch.ones_like.0.forward.input.memory_format"  # it loses the value and says NoneType


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def compared(golden: Path) -> Mapping[str, Comparison]:
    return {
        name: compare(golden / "8.3.3" / name / "npu/step0", golden / "8.3.3" / name / "bench/step0")[0]
        for name in COMPARED
    }


def table(folder: Path) -> list[dict[str, str]]:
    (path,) = folder.glob("*.csv")
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def agree(ours: Cell, theirs: str, scale: float) -> bool:
    """Equal texts, or numbers that are equal but for 8.3.3 cutting statistics to 16 decimals.

    `scale` is that of what a relative error refers to.
    """
    theirs = theirs.replace("\t", "")  # it writes infinities so
    if isinstance(ours, str) and ours.endswith("%") and theirs.endswith("%"):
        return math.isclose(float(ours[:-1]), float(theirs[:-1]), rel_tol=1e-9, abs_tol=3e-14 / scale)
    if isinstance(ours, (bool, str)) or ours is None:
        return str(ours) == theirs
    try:
        number = float(theirs)
    except ValueError:
        return False
    return ours == number or math.isclose(ours, number, rel_tol=1e-9, abs_tol=6e-13)


def scale_of(row: Mapping[str, str], header: str) -> float:
    """The size of the statistic that a relative error is relative to."""
    words = {"Max": "max", "Min": "min", "Mean": "mean", "Norm": "l2norm"}
    word = words.get(header.removesuffix("RelativeErr"))
    return abs(float(row[f"Bench {word}"])) if word and row.get(header, "").endswith("%") else 1.0


def is_half(row: Mapping[str, str]) -> bool:
    """float16: adding 2.2e-16 to a zero changes nothing there, so 8.3.3 divides by zero and gets NaN."""
    return row["NPU Dtype"] == "torch.float16" and row.get("MaxRelativeErr") == "Nan"


def is_ours(name: str, header: str) -> bool:
    """Whether this cell differs on purpose; MaxRelativeErr: see test_relative_errors_agree_to_the_dtype."""
    return name == FORMAT and header in ("NPU Dtype", "Bench Dtype", "NPU MD5", "BENCH MD5")


def once(text: str) -> str:
    """A message without its repetitions: it says the same thing for each input, and 16 times of a scalar."""
    lines = dict.fromkeys(line.strip() for line in text.split("\n"))
    zero_dim = "This is type of 0-d tensor"
    return "\n".join(zero_dim if line.startswith(zero_dim) else line for line in lines).strip()


@pytest.mark.spec("P21", "CLI")
@pytest.mark.spec("K028", "CLI")
@pytest.mark.parametrize("name", COMPARED)
def test_rows_numbers_and_verdicts_are_those_of_8_3_3(
    golden: Path, compared: Mapping[str, Comparison], name: str
) -> None:
    comparison = compared[name]
    theirs = table(golden / "8.3.3" / name / "compare")
    assert [finding.pair.place.name for finding in comparison.findings] == [row["NPU Name"] for row in theirs]
    shown = columns(comparison.mode, with_stack=name not in ("debug_tensor",))
    assert [column.header for column in shown] == [key for key in theirs[0] if key != "row_fill"]
    wrong = []
    for finding, row in zip(comparison.findings, theirs, strict=True):
        place = finding.pair.place.name
        if is_half(row):
            continue
        for column in shown:
            if column.header in ("Err_message", "NPU_Stack_Info"):
                continue
            if is_ours(place, column.header):
                continue
            if comparison.mode == "tensor" and column.header == "MaxRelativeErr":
                continue
            if not agree(column.fill(finding), row[column.header], scale_of(row, column.header)):
                wrong.append((place, column.header, column.fill(finding), row[column.header]))
        if once(finding.message) != once(row.get("Err_message", "")):
            wrong.append((place, "Err_message", finding.message, row["Err_message"]))
        if (finding.fill or "")[2:] != row["row_fill"][2:]:
            wrong.append((place, "colour", finding.fill, row["row_fill"]))
    assert wrong == []


@pytest.mark.parametrize("name", ["L1_tensor", "debug_tensor"])
def test_relative_errors_agree_to_the_dtype(
    golden: Path, compared: Mapping[str, Comparison], name: str
) -> None:
    """8.3.3 divides in the dtype of the tensor, we in float64."""
    for finding, row in zip(compared[name].findings, table(golden / "8.3.3" / name / "compare"), strict=True):
        assert isinstance(finding.measured, TensorErrors)
        ours, theirs = finding.measured.max_relative, row["MaxRelativeErr"]
        if isinstance(ours, str) or is_half(row):
            assert theirs in (ours, "Nan")
        else:
            tolerance = 1e-3 if "16" in row["NPU Dtype"] else 1e-6
            assert math.isclose(ours, float(theirs), rel_tol=tolerance, abs_tol=tolerance * 0.1), row[
                "NPU Name"
            ]
