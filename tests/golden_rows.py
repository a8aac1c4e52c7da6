"""The rows of a release's table beside ours: how it writes the same cell, and which are others on purpose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from compare_case import NEW, OLD, OLDEST, Golden, Goldens
from msprobe.report.columns import table
from msprobe.report.table import Cell

GOLDENS = [
    Golden(OLDEST, "L0_statistics"),
    Golden(OLDEST, "L1_md5"),
    Golden(OLDEST, "L1_tensor"),
    Golden(OLD, "L0_md5"),
    Golden(OLD, "L0_statistics"),
    Golden(OLD, "L1_md5"),
    Golden(OLD, "L1_statistics"),
    Golden(OLD, "L1_tensor"),
    Golden(OLD, "mix_statistics"),
    Golden(OLD, "debug_tensor"),
    Golden(OLD, "ddp_mix_statistics", 0),
    Golden(OLD, "ddp_mix_statistics", 1),
    Golden(NEW, "L0_tensor"),
    Golden(NEW, "L1_statistics"),
    Golden(NEW, "L1_tensor"),
    Golden(NEW, "mix_md5"),
    Golden(NEW, "ddp_mix_tensor", 0),
    Golden(NEW, "ddp_mix_tensor", 1),
    Golden(NEW, "debug_statistics"),
]
ADVISED = [golden for golden in GOLDENS if golden.release != NEW]  # 26.2.0 gives no advice
UNMATCHED = [
    Golden(release, f"unmatched_{mode}") for release in (OLD, NEW) for mode in ("tensor", "statistics", "md5")
]
OF_TENSORS = [golden for golden in (*GOLDENS, *UNMATCHED) if golden.name.endswith("tensor")]

FORMAT = "Torch.ones_like.0.forward.input.memory_format"
REDUCE, SOURCE = "Distributed.all_reduce.1.forward.input.op", "Distributed.broadcast.0.forward.input.src"
# Arguments whose kind the releases do not tell, or write otherwise.
KINDS = (
    FORMAT,
    REDUCE,
    "Distributed.all_reduce.1.forward.output.1",
    SOURCE,
    "Distributed.recv.0.forward.input.src",
    "Distributed.send.0.forward.input.dst",
)
SIGMOID = [
    f"Torch.sigmoid.0.{direction}.{slot}.0"
    for direction in ("forward", "backward")
    for slot in ("input", "output")
]
MESSAGE, STACK = "Err_message", "NPU_Stack_Info"
RESULTS = ("Result", "Accuracy Reached or Not")
STATISTICS = ("max", "min", "mean", "l2norm")
RELATIVE = dict(
    zip(("MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr"), STATISTICS, strict=True)
)
DIFFERENCE = dict(zip(("Max diff", "Min diff", "Mean diff", "L2norm diff"), STATISTICS, strict=True))
RATIOS = {"One Thousandth Err Ratio": 0.001, "Five Thousandths Err Ratio": 0.005}
# Of an operation of batch_isend_irecv the releases show its tensor alone.
METRICS = ("Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", *RATIOS)
OPERATION = (".class_type", ".op", ".peer", ".tag", ".group_id")


class Row(NamedTuple):
    """A row of theirs beside the same row of ours."""

    theirs: Mapping[str, str]
    ours: Mapping[str, Cell]
    fill: str

    @property
    def name(self) -> str:
        return self.theirs["NPU Name"]


def rows(goldens: Goldens, golden: Golden) -> list[Row]:
    theirs = goldens.table(golden)
    shown = table(goldens.compared(golden), with_stack=STACK in theirs[0])
    ours = []
    for number, cells in enumerate(shown.rows):
        row = dict(zip(shown.columns, cells, strict=True))
        if is_operation(str(row["NPU Name"])):
            if str(row["NPU Name"]).endswith(OPERATION):
                continue
            for header in ("NPU Name", "Bench Name"):
                row[header] = str(row[header]).removesuffix(".tensor")
            row.pop(STACK)  # it stands in the first row of the call, which may be one of the left out
        ours.append((row, shown.fills.get(number, "")))
    assert [row["NPU Name"] for row, _ in ours] == [row["NPU Name"] for row in theirs]
    return [Row(their, our, fill) for their, (our, fill) in zip(theirs, ours, strict=True)]


def is_operation(name: str) -> bool:
    return name.startswith("Distributed.batch_isend_irecv")


# ---- how each release writes the same cell ----


def in_our_form(golden: Golden, row: Row, header: str) -> str:
    """A cell of theirs as release 8.3.3 writes it, which is our form."""
    text = row.theirs[header].strip(" \t")  # an infinity has a blank before it, or a tab behind it
    if golden.release == OLDEST:
        return _of_the_oldest(row.theirs, header, text)
    if golden.release == NEW:
        return _of_the_new(row.theirs, header, text)
    return text


def _of_the_oldest(row: Mapping[str, str], header: str, text: str) -> str:
    if header == "Data_name":
        return str([text, text])
    if text == "None" and (header == STACK or header.endswith("MD5")):
        return "N/A"
    if row["NPU Dtype"] == "slice" and header.endswith("Tensor Shape"):
        return "[]"
    return text


def _of_the_new(row: Mapping[str, str], header: str, text: str) -> str:
    if header.endswith(("Dtype", "Tensor Shape")) and text == "N/A" and row["Bench Name"] != "N/A":
        return "None"
    statistic = RELATIVE.get(header) or DIFFERENCE.get(header)
    if statistic is None or "Max diff" not in row or text not in ("0", "inf"):
        return text
    value = _number(row[f"Bench {statistic}"])
    if value is None:
        return "N/A"
    if not math.isfinite(value):
        return "Nan"
    if header in RELATIVE:
        return "0.0%" if value else "N/A"
    return text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def agree(golden: Golden, ours: Cell, theirs: str, scale: float) -> bool:
    """Equal texts, or numbers that are equal to the digits which the release printed.

    Its xlsx files keep 16 digits, so that a difference of two statistics (their size is `scale`) may be off
    by as much as the last of these, and more where it is divided by a small one.
    """
    digits = 1e-12 if golden.release == NEW else 1e-9
    if isinstance(ours, str) and ours.endswith("%") and theirs.endswith("%"):
        cut = 0.0 if golden.release == NEW else 3e-14
        return math.isclose(float(ours[:-1]), float(theirs[:-1]), rel_tol=digits, abs_tol=cut / scale)
    if isinstance(ours, (bool, str)) or ours is None:
        return str(ours) == theirs
    number = _number(theirs)
    if number is None:
        return False
    return ours == number or math.isclose(ours, number, rel_tol=digits, abs_tol=6e-13)


def scale_of(row: Mapping[str, str], header: str) -> float:
    """The size of the statistic that a relative error is relative to."""
    statistic = RELATIVE.get(header)
    return abs(float(row[f"Bench {statistic}"])) if statistic and row[header].endswith("%") else 1.0


def is_half(row: Mapping[str, str]) -> bool:
    """float16: adding 2.2e-16 to a zero changes nothing there, so they divide by zero and get NaN."""
    return row["NPU Dtype"] == "torch.float16" and row.get("MaxRelativeErr") == "Nan"


def on_purpose(golden: Golden, row: Row, header: str) -> bool:
    """Whether this cell is another on purpose; each case has a test of its own below."""
    if row.name in KINDS and header in ("NPU Dtype", "Bench Dtype", "NPU MD5", "BENCH MD5"):
        return True
    if golden.release == NEW and header in (*RESULTS, MESSAGE):
        return True
    if golden.release == OLDEST and (is_empty(row.theirs) or row.theirs["NPU Dtype"] == "slice"):
        return header in METRICS or header in RESULTS or header.endswith(STATISTICS)
    return golden in OF_TENSORS and (header == "MaxRelativeErr" or header in RATIOS)


def is_empty(row: Mapping[str, str]) -> bool:
    return ", 0]" in row["NPU Tensor Shape"]


def different(golden: Golden, row: Row) -> Iterator[tuple[str, str, Cell, str]]:
    """The cells of a row that are not the same, though they should be."""
    for header, ours in row.ours.items():
        if header not in row.theirs or header == MESSAGE or on_purpose(golden, row, header):
            continue
        theirs = in_our_form(golden, row, header)
        if not agree(golden, ours, theirs, scale_of(row.theirs, header)):
            yield row.name, header, ours, theirs
