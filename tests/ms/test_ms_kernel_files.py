"""Folders of kernels without MindSpore: what adump writes on Ascend, and what we make of tensors."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest

from msprobe.cli.main import main
from msprobe.errors import RecordingError
from msprobe.store.kernel_summary import join, remove, set_aside, summarise
from msprobe.store.kernels_dir import (
    KernelFolder,
    kernel_folders,
    kernel_statistics,
    kernel_tensors,
    read_kernel_tensor,
    step_folders,
)

PRINTED = (
    "AssignAdd.Default_network-TrainOneStepCell_optimzer-Gsd_AssignAdd-op0.0.10.1735011096403740.input.0.ND.INT32.npy",
    "Cast.Default_network-TrainOneStepCell_network-WithLossCell__backbone-Net_Cast-op0.9.10.1735011096426349"
    ".input.0.ND.FLOAT.npy",
    "GetNext.Default_GetNext-op0.0.11.17350110964032987.output.0.ND.FLOAT.npy",
    "RefDAata.accum_bias1.6.10.1735011096424907.output.0.ND.FLOAT.npy",
    "Sub.Default_network-TrainOneStepCell_network-WithLossCell__backbone-Net_Sub-op0.10.10.1735011096427368"
    ".input.0.ND.BF16",
)
BF16 = np.array([1.0, -2.5, 0.25], "f4")


def as_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (values.view("u4") >> 16).astype("<u2")


def adump(run: Path, time: str, changed: int = 0) -> Path:
    """The printed tree: two steps, a type that .npy does not have, and one name that is too long."""
    for step in (0, 1):
        folder = run / "rank_0" / time / f"step_{step}"
        folder.mkdir(parents=True)
        for name in PRINTED:
            if name.endswith(".npy"):
                np.save(folder / name, np.arange(4, dtype="i4" if "INT32" in name else "f4") + changed)
            else:
                (folder / name).write_bytes(as_bfloat16(BF16).tobytes())
        short = f"{int(time) % 10}" * 32
        np.save(folder / f"{short}.npy", np.ones(3, "f4"))
        whole = f"MatMul.Default_{'x' * 240}.0.10.1735011096427999.output.0.ND.FLOAT.npy"
        (folder / "mapping.csv").write_text(f"{short}.npy,{whole}\n")
    (run / "acl_dump_0.json").write_text("{}")
    return run


@pytest.mark.spec("M045", "MSs")
@pytest.mark.spec("M046", "MSs")
@pytest.mark.spec("M047", "MSs")
@pytest.mark.spec("M048", "MSs")
@pytest.mark.spec("M049", "MSs")
@pytest.mark.spec("R15", "MSs")
def test_what_adump_writes_is_read(tmp_path: Path) -> None:
    folders = kernel_folders(adump(tmp_path, "20241224033136"))
    assert [folder[:4] for folder in folders] == [(0, 0, "", 0), (0, 1, "", 0)]
    found = kernel_tensors(folders[0])
    assert [(tensor.op_type, str(tensor.slot), tensor.stream, tensor.dtype) for tensor in found] == [
        ("AssignAdd", f"{PRINTED[0].split('.')[1]}.0.input.0", 10, "INT32"),
        ("RefDAata", "accum_bias1.6.output.0", 10, "FLOAT"),
        ("Cast", f"{PRINTED[1].split('.')[1]}.9.input.0", 10, "FLOAT"),
        ("Sub", f"{PRINTED[4].split('.')[1]}.10.input.0", 10, "BF16"),
        ("MatMul", f"Default_{'x' * 240}.0.output.0", 10, "FLOAT"),
        ("GetNext", "Default_GetNext-op0.0.output.0", 11, "FLOAT"),
    ]
    bare = read_kernel_tensor(found[3])
    assert (bare.dtype, bare.array.tolist()) == ("bfloat16", as_bfloat16(BF16).tolist())


@pytest.mark.spec("M045", "MSs")
@pytest.mark.spec("M047", "MSs")
def test_two_runs_of_adump_are_compared(tmp_path: Path) -> None:
    """The folder of a run is called by its time, which is another in each."""
    runs = adump(tmp_path / "a", "20241224033136", 5), adump(tmp_path / "b", "20250101000000")
    request = {"npu_path": str(runs[0]), "bench_path": str(runs[1]), "rank_id": [0], "step_id": [1]}
    (tmp_path / "compare.json").write_text(json.dumps(request))
    options = ["-i", str(tmp_path / "compare.json"), "-o", str(tmp_path / "out")]
    assert main(["-f", "mindspore", "compare", *options]) == 0
    (table,) = (tmp_path / "out").glob("compare_result_0_1_*.xlsx")
    sheet = openpyxl.load_workbook(table).active
    assert sheet is not None
    header, *rows = sheet.iter_rows(values_only=True)
    found = [dict(zip(map(str, header), row, strict=True)) for row in rows]
    assert [(row["NPU Dtype"], row["Accuracy Reached or Not"]) for row in found] == [
        ("int32", "No"),
        ("float32", "No"),
        ("float32", "No"),
        ("bfloat16", "Yes"),
        ("float32", "Yes"),
        ("float32", "No"),
    ]


@pytest.mark.spec("M047", "MSs")
def test_bare_numbers_of_a_type_that_cannot_be_read(tmp_path: Path) -> None:
    file = folder(tmp_path).path / "Add.Add.0.0.5.output.0.ND.INT4"
    file.write_bytes(b"\x12")
    (tensor,) = kernel_tensors(folder(tmp_path))
    with pytest.raises(RecordingError, match=r"INT4' holds bare INT4 numbers, which cannot be read\.$"):
        read_kernel_tensor(tensor)


# ---- statistics of tensors ----


def folder(run: Path, graph: int = 0, step: int = 0) -> KernelFolder:
    path = run / "rank_0" / "Net" / str(graph) / str(step)
    path.mkdir(parents=True, exist_ok=True)
    return KernelFolder(0, step, "Net", graph, path)


def put(place: KernelFolder, time: int, array: np.ndarray[Any, Any], dtype: str = "Float32") -> Path:
    path = place.path / f"Add.Default_Add-op0.0.0.{time}.output.0.DefaultFormat.{dtype}.npy"
    np.save(path, array)
    return path


def put_bfloat16(place: KernelFolder, time: int) -> None:
    """As MindSpore does on CPU: numpy does not know this type."""
    path = put(place, time, as_bfloat16(BF16), "BFloat16")
    path.write_bytes(path.read_bytes().replace(b"'<u2'", b"'<E2'"))


VALUES = [
    (np.array([[1.0, -2.0], [3.0, 4.0]], "f4"), "float32", "(2,2)", (4.0, -2.0, 1.5, math.sqrt(30.0))),
    (np.array([True, False, True]), "bool", "(3)", (1.0, 0.0, 2 / 3, math.sqrt(2.0))),
    (np.array(7, "i8"), "int64", "()", (7.0, 7.0, 7.0, 7.0)),
    (np.array([3 + 4j], "c8"), "complex64", "(1)", (5.0, 5.0, 5.0, 5.0)),
    (np.array([np.nan, 1.0], "f2"), "float16", "(2)", (math.nan,) * 4),
    (np.array([np.inf, 1.0], "f8"), "float64", "(2)", (math.inf, 1.0, math.inf, math.inf)),
]


@pytest.mark.spec("C006", "MSs")
def test_tensors_become_statistics(tmp_path: Path) -> None:
    place = folder(tmp_path)
    for time, (array, *_) in enumerate(VALUES):
        put(place, time, array)
    summarise(place)
    put_bfloat16(place, 100)
    summarise(place)
    assert [path.name for path in place.path.iterdir()] == ["statistic.csv"]
    lines = kernel_statistics(place)
    expected = [*VALUES, (BF16, "bfloat16", "(3)", (1.0, -2.5, -1.25 / 3, math.sqrt(7.3125)))]
    assert [(line.dtype, line.shape) for line in lines] == [(dtype, shape) for _, dtype, shape, _ in expected]
    for line, (_, _, _, values) in zip(lines, expected, strict=True):
        assert line.values == pytest.approx(values, rel=1e-6, nan_ok=True)


def test_a_tensor_that_cannot_be_read_keeps_its_line(tmp_path: Path) -> None:
    place = folder(tmp_path)
    put(place, 1, np.ones(2, "f4")).write_bytes(b"nothing")
    put(place, 2, np.ones(2, "f4"))
    summarise(place)
    assert [line.values for line in kernel_statistics(place)] == [
        (None,) * 4,
        (1.0, 1.0, 1.0, pytest.approx(math.sqrt(2.0))),
    ]


# ---- one step of several ----


def test_folders_are_joined_with_their_statistics_and_long_names(tmp_path: Path) -> None:
    for step in (0, 1, 2):
        place = folder(tmp_path, step=step)
        put(place, 10 * step, np.full(2, step, "f4"))
        summarise(place)
        put(place, 10 * step + 1, np.full(2, step, "f4"))
        np.save(place.path / f"{step}.npy", np.full(2, step, "f4"))
        whole = f"Add.{'x' * 250}.0.0.{10 * step + 2}.output.0.DefaultFormat.Float32.npy"
        (place.path / "mapping.csv").write_text(f"{step}.npy,{whole}\n")
    join(step_folders(tmp_path, 0, "Net", [1, 2]), 0)
    (one,) = kernel_folders(tmp_path)
    assert one == folder(tmp_path)
    assert [line.timestamp for line in kernel_statistics(one)] == [0, 10, 20]
    assert [(t.timestamp, len(t.slot.op_name)) for t in kernel_tensors(one)] == [
        (1, 15),
        (2, 250),
        (11, 15),
        (12, 250),
        (21, 15),
        (22, 250),
    ]
    with (one.path / "statistic.csv").open(newline="") as stream:
        assert len(list(csv.reader(stream))) == 4


def test_what_is_removed_and_what_is_set_aside(tmp_path: Path) -> None:
    for step in (0, 1):
        put(folder(tmp_path, step=step), 1, np.ones(2, "f4"))
    remove(step_folders(tmp_path, 0, "Net", [1, 5]))
    assert [found.step for found in kernel_folders(tmp_path)] == [0]
    set_aside(tmp_path, 0, "Net")
    assert kernel_folders(tmp_path) == []
    (place,) = (tmp_path / "previous").iterdir()
    assert [found.step for found in kernel_folders(place)] == [0]
    set_aside(tmp_path, 0, "Net")  # there is nothing to set aside
    assert len(list((tmp_path / "previous").iterdir())) == 1
