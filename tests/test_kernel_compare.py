"""Kernels of MindSpore graphs, by rank and step, beside what release 8.3.3 makes of the same folders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest

from cross_case import Crossed, crossed
from msprobe.analyse.measure import measure_tensors
from msprobe.cli.main import main
from msprobe.store.tensor_file import StoredTensor

__all__ = ["crossed"]

STEP = "rank_0/Net/0/1"


def request(folder: Path, target: Path, golden: Path, **keys: Any) -> str:
    path = folder / "compare.json"
    path.write_text(json.dumps({"npu_path": str(target), "bench_path": str(golden), **keys}))
    return str(path)


def command(file: str, out: Path, *more: str) -> int:
    return main(["-f", "mindspore", "compare", "-i", file, "-o", str(out), *more])


def shown(out: Path, mark: str) -> list[dict[str, Any]]:
    (path,) = out.glob(f"compare_result_{mark}_[0-9]*.xlsx")
    sheet = openpyxl.load_workbook(path).active
    assert sheet is not None
    header, *rows = sheet.iter_rows(values_only=True)
    return [dict(zip(map(str, header), row, strict=True)) for row in rows]


def as_number(cell: Any) -> float | None:
    try:
        return float(str(cell).rstrip("%"))
    except ValueError:
        return None


def differ(ours: Any, theirs: str) -> bool:
    a, b = as_number(ours), as_number(theirs)
    if a is None or b is None:
        return ("" if ours is None else str(ours)) != theirs
    return not math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def dump(folder: Path, rank: int, step: int, **tensors: np.ndarray[Any, Any]) -> Path:
    """A kernel dump; the name of a tensor is its kernel's, and it is the only output."""
    place = folder / f"rank_{rank}" / "Net" / "0" / str(step)
    place.mkdir(parents=True, exist_ok=True)
    for number, (name, array) in enumerate(tensors.items()):
        np.save(
            place / f"MatMul.Default_{name}.0.0.{1000 + number}.output.0.DefaultFormat.Float32.npy", array
        )
    return folder


ONES = np.ones((2, 3), np.float32)


@pytest.mark.spec("K002", "MSs")
@pytest.mark.spec("K012", "CLI")
@pytest.mark.spec("K022", "MSs")
@pytest.mark.spec("K035", "CLI")
def test_tensors_of_kernels_have_the_numbers_of_the_release(crossed: Crossed, tmp_path: Path) -> None:
    file = request(tmp_path, crossed.kernels("a"), crossed.kernels("b"), rank_id=[], step_id=[])
    assert command(file, tmp_path / "out") == 0
    ours = {Path(row["NPU Name"]).name: row for row in shown(tmp_path / "out", "0_1")}
    theirs = {Path(row["NPU Name"]).name: row for row in crossed.table("kernel_all", "_0_1")}
    assert ours.keys() == theirs.keys()
    assert list(next(iter(ours.values()))) == list(next(iter(theirs.values())))
    wrong = [
        (name, header, ours[name][header], cell)
        for name, row in theirs.items()
        for header, cell in row.items()
        if not header.endswith("Name") and differ(ours[name][header], cell.rstrip("\n"))
    ]
    assert wrong == []
    assert {Path(row["Bench Name"]).name for row in ours.values()} == {
        Path(row["Bench Name"]).name for row in theirs.values()
    }


@pytest.mark.spec("K002", "MSs")
def test_statistics_of_kernels_have_the_numbers_of_the_release(crossed: Crossed, tmp_path: Path) -> None:
    folders = crossed.kernels("statistic_csv/a"), crossed.kernels("statistic_csv/b")
    assert command(request(tmp_path, *folders, rank_id=[0]), tmp_path / "out") == 0
    ours, theirs = shown(tmp_path / "out", "0_0"), crossed.table("kernel_stat", "_0_0")
    assert [list(row) for row in ours] == [list(row) for row in theirs]
    wrong = [
        (header, mine[header], cell)
        for mine, row in zip(ours, theirs, strict=True)
        for header, cell in row.items()
        if not header.endswith("CSV File") and differ(mine[header], cell)
    ]
    assert wrong == []


@pytest.mark.spec("K036", "CLI")
@pytest.mark.spec("K037", "CLI")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rank_id": [], "step_id": []}, {"0_0", "0_1", "1_0", "1_1"}),
        ({"rank_id": [1]}, {"1_0", "1_1"}),
        ({"step_id": [1]}, {"0_1", "1_1"}),
        ({"rank_id": [0], "step_id": [0]}, {"0_0"}),
    ],
)
def test_the_ranks_and_steps_that_are_asked_for(
    tmp_path: Path, keys: dict[str, list[int]], expected: set[str]
) -> None:
    for rank in (0, 1):
        for step in (0, 1):
            dump(tmp_path / "a", rank, step, fc=ONES)
            dump(tmp_path / "b", rank, step, fc=ONES)
    file = request(tmp_path, tmp_path / "a", tmp_path / "b", **keys)
    assert command(file, tmp_path / "out") == 0
    marks = {path.name.split("_", 2)[2].rpartition("_")[0] for path in (tmp_path / "out").iterdir()}
    assert marks == expected


@pytest.mark.parametrize(
    ("keys", "more", "sentence"),
    [
        pytest.param(
            {"rank_id": [3]},
            [],
            "b has no rank 3, which rank_id names; it has 0.",
            marks=pytest.mark.spec("K036", "CLI"),
        ),
        pytest.param(
            {"step_id": [7, 0]},
            [],
            "a has no step 7, which step_id names; it has 0.",
            marks=pytest.mark.spec("K037", "CLI"),
        ),
        (
            {"rank_id": ["0"]},
            [],
            "'rank_id' is ['0']; it must be a list of numbers from 0 on, such as",
        ),
        ({"step_id": 0}, [], "'step_id' is 0; it must be a list of numbers from 0 on"),
        ({"rank_id": [True]}, [], "'rank_id' is [True]; it must be a list of numbers"),
        pytest.param(
            {"rank_id": []},
            ["-s", "-c"],
            "are compared with -i and -o alone; leave out --stack_mode, --compare_only.",
            marks=pytest.mark.spec("K022", "MSs"),
        ),
    ],
)
def test_what_is_asked_for_and_missing_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, Any], more: list[str], sentence: str
) -> None:
    dump(tmp_path / "a", 0, 0, fc=ONES)
    dump(tmp_path / "a", 3, 0, fc=ONES)
    dump(tmp_path / "b", 0, 0, fc=ONES)
    file = request(tmp_path, tmp_path / "a", tmp_path / "b", **keys)
    assert command(file, tmp_path / "out", *more) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.splitlines()) == 1


@pytest.mark.spec("R22", "CLI")
def test_a_path_that_is_no_folder_of_kernels_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(tmp_path / "a", 0, 0, fc=ONES)
    (tmp_path / "empty").mkdir()
    for golden, sentence in (
        (tmp_path / "gone", "'bench_path' must be the folder of a kernel dump;"),
        (
            tmp_path / "empty",
            "empty holds no kernel dump; below it a folder such as rank_0/Net/0/1 is",
        ),
    ):
        file = request(tmp_path, tmp_path / "a", golden, rank_id=[])
        assert command(file, tmp_path / "out") == 2
        said = capsys.readouterr().err
        assert sentence in said and len(said.splitlines()) == 1


def test_a_kernel_that_one_run_lacks_and_one_of_another_shape(tmp_path: Path) -> None:
    dump(tmp_path / "a", 0, 0, first=ONES, here=ONES, shaped=ONES)
    dump(tmp_path / "b", 0, 0, there=ONES, first=-ONES, shaped=np.ones((3, 2), np.float32))
    assert command(request(tmp_path, tmp_path / "a", tmp_path / "b", rank_id=[]), tmp_path / "out") == 0
    rows = shown(tmp_path / "out", "0_0")
    assert [(row["Accuracy Reached or Not"], row["Err_message"]) for row in rows] == [
        ("No", ""),
        ("Unmatched", "The golden run has no such tensor."),
        ("Unmatched", "The shapes differ: (2, 3) and (3, 2)."),
        ("Unmatched", "The target has no such tensor."),
    ]


def test_a_kernel_that_is_complex_in_one_run_alone(tmp_path: Path) -> None:
    """A complex number is two, so that whoever counts the elements of one run reads beyond the other's."""
    dump(tmp_path / "a", 0, 0, first=ONES.astype(np.complex64), second=ONES)
    dump(tmp_path / "b", 0, 0, first=ONES, second=ONES.astype(np.complex64))
    assert command(request(tmp_path, tmp_path / "a", tmp_path / "b", rank_id=[]), tmp_path / "out") == 0
    assert [row["Err_message"] for row in shown(tmp_path / "out", "0_0")] == [
        "The dtypes differ: complex64 and float32.",
        "The dtypes differ: float32 and complex64.",
    ]
    pair = StoredTensor(ONES, "float32"), StoredTensor(ONES.astype(np.complex64), "complex64")
    with pytest.raises(ValueError, match="6 and 12 numbers"):
        measure_tensors(*pair)


def test_a_kernel_that_ran_twice_is_paired_in_order(tmp_path: Path) -> None:
    for run, values in (("a", (1.0, 2.0)), ("b", (1.0, 2.0))):
        place = tmp_path / run / STEP
        place.mkdir(parents=True)
        for time, value in zip((20, 10), values, strict=True):
            np.save(place / f"Add.Default_Add.0.0.{time}.output.0.DefaultFormat.Float32.npy", value * ONES)
    assert command(request(tmp_path, tmp_path / "a", tmp_path / "b", rank_id=[]), tmp_path / "out") == 0
    rows = shown(tmp_path / "out", "0_1")
    assert [(row["NPU max"], row["Bench max"]) for row in rows] == [(2, 2), (1, 1)]


def test_long_names_come_from_the_mapping_beside_the_files(tmp_path: Path) -> None:
    whole = f"MatMul.Default_{'x' * 240}.0.0.5.output.0.DefaultFormat.Float32.npy"
    for run, short in (("a", "11111111111111111111111111111111"), ("b", "22222222222222222222222222222222")):
        place = tmp_path / run / STEP
        place.mkdir(parents=True)
        np.save(place / f"{short}.npy", ONES)
        (place / "mapping.csv").write_text(f"{short}.npy,{whole}\n")
    assert command(request(tmp_path, tmp_path / "a", tmp_path / "b", rank_id=[]), tmp_path / "out") == 0
    (row,) = shown(tmp_path / "out", "0_1")
    assert (row["Accuracy Reached or Not"], row["Cosine"]) == ("Yes", 1)


def test_a_damaged_tensor_costs_its_own_row(tmp_path: Path) -> None:
    for run in ("a", "b"):
        dump(tmp_path / run, 0, 1, first=ONES, second=ONES)
    broken = next((tmp_path / "a" / STEP).glob("*first*"))
    broken.write_bytes(b"nothing")
    assert command(request(tmp_path, tmp_path / "a", tmp_path / "b", rank_id=[]), tmp_path / "out") == 0
    first, second = shown(tmp_path / "out", "0_1")
    assert (
        first["Accuracy Reached or Not"] == "Unmatched" and "was written neither by" in first["Err_message"]
    )
    assert second["Accuracy Reached or Not"] == "Yes"


@pytest.mark.parametrize("name", ["statistic.csv", "mapping.csv"])
def test_a_table_that_is_none_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for run in ("a", "b"):
        place = tmp_path / run / STEP
        place.mkdir(parents=True)
        (place / name).write_text("Op Type,Op Name\n" + "x" * 200_000)
    assert command(request(tmp_path, tmp_path / "a", tmp_path / "b", rank_id=[]), tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert f"{name} is no table of a kernel dump: field larger than field limit" in said
    assert len(said.splitlines()) == 1
