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
from msprobe.report.columns import VERDICT
from msprobe.store.kernel_summary import summarise
from msprobe.store.kernels_dir import kernel_folders
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
    assert list(next(iter(ours.values()))) == [*next(iter(theirs.values())), *VERDICT]
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
    assert [list(row) for row in ours] == [[*row, *VERDICT] for row in theirs]
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
            "compared with -i, -o, --csv, --json, --junit and --fail-on alone; leave out --stack_mode, --c",
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
    assert command(request(tmp_path, tmp_path / "a", tmp_path / "b", rank_id=[]), tmp_path / "out") == 2
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


# ---- our verdict ----


class Machine:
    """Runs a small training step and dumps its kernels, as MindSpore does: inputs, then outputs."""

    def __init__(self, folder: Path, *, noise: int = 0, wrong: str = "", outputs_only: bool = False) -> None:
        self._place = folder / "rank_0/Net/0/1"
        self._place.mkdir(parents=True)
        self._random = np.random.default_rng(noise) if noise else None
        self._wrong, self._outputs_only = wrong, outputs_only
        self._time = 1_794_769_698_838_000

    def kernel(self, op_type: str, name: str, result: Any, *inputs: Any) -> Any:
        """Dump a kernel; every number of its result may be rounded otherwise, and that of one is wrong."""
        result = np.asarray(result, np.float32)
        if self._random is not None and op_type not in ("ReluGrad", "ReLU"):
            steps = self._random.integers(-1, 2, result.shape)
            result = (result * (1 + steps * 2.0**-23)).astype(np.float32)
        if self._wrong == name:
            result = (result * np.float32(1.02)).astype(np.float32)
        for side, values in (("input", () if self._outputs_only else inputs), ("output", (result,))):
            for number, value in enumerate(values):
                self._save(op_type, name, side, number, np.asarray(value))
        return result

    def _save(self, op_type: str, name: str, side: str, number: int, value: np.ndarray[Any, Any]) -> None:
        self._time += 300
        kind = value.dtype.name.capitalize()
        np.save(
            self._place / f"{op_type}.{name}.0.0.{self._time}.{side}.{number}.DefaultFormat.{kind}.npy", value
        )

    def step(self) -> None:
        random = np.random.default_rng(16)
        x, w1, b1, w2 = (
            random.standard_normal(shape).astype(np.float32) for shape in ((32, 24), (48, 24), (48,), (8, 48))
        )
        off, on = np.bool_(False), np.bool_(True)
        z = self.kernel("MatMul", "Default_fc1_MatMul-op0", x @ w1.T, x, w1, off, on)
        y = self.kernel("BiasAdd", "Default_fc1_BiasAdd-op0", z + b1, z, b1)
        h = self.kernel("ReLU", "Default_relu_ReLU-op0", np.maximum(y, 0), y)
        out = self.kernel("MatMul", "Default_fc2_MatMul-op0", h @ w2.T, h, w2, off, on)
        loss = self.kernel("Square", "Default_loss_Square-op0", out * out, out)
        self.kernel("ReduceMean", "Default_loss_ReduceMean-op0", loss.mean(), loss)
        dout = self.kernel(
            "Mul", "Gradients_loss_Mul-op0", out * np.float32(2 / out.size), out, np.float32(2 / out.size)
        )
        dw2 = self.kernel("MatMul", "Gradients_fc2_MatMul-op1", dout.T @ h, dout, h, on, off)
        dh = self.kernel("MatMul", "Gradients_fc2_MatMul-op0", dout @ w2, dout, w2, off, off)
        dy = self.kernel("ReluGrad", "Gradients_relu_ReluGrad-op0", dh * (h > 0), dh, h)
        db1 = self.kernel("BiasAddGrad", "Gradients_fc1_BiasAddGrad-op0", dy.sum(0), dy)
        dw1 = self.kernel("MatMul", "Gradients_fc1_MatMul-op1", dy.T @ x, dy, x, on, off)
        lr = np.float32(0.1)
        for name, weight, gradient in (("op0", w2, dw2), ("op1", b1, db1), ("op2", w1, dw1)):
            after = (weight - lr * gradient).astype(np.float32)
            if self._wrong == f"Default_optimizer_SGD-{name}":
                after = (weight - np.float32(2) * lr * gradient).astype(np.float32)
            for side, values in (("input", (after, gradient, lr)), ("output", (after,))):
                for number, value in enumerate(values):
                    if side == "output" or not self._outputs_only:
                        self._save("SGD", f"Default_optimizer_SGD-{name}", side, number, np.asarray(value))
            self._save("Parameter", f"weight_{name}", "output", 0, after)


def judged(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    file = request(folder, folder / "a", folder / "b", rank_id=[])
    status = command(file, folder / "out", "--json", str(folder / "summary.json"), *more)
    return status, json.loads((folder / "summary.json").read_text())


KERNELS = (
    "Default_fc1_MatMul-op0",
    "Default_fc1_BiasAdd-op0",
    "Default_relu_ReLU-op0",
    "Default_loss_ReduceMean-op0",
    "Gradients_fc2_MatMul-op1",
    "Gradients_relu_ReluGrad-op0",
    "Gradients_fc1_BiasAddGrad-op0",
    "Gradients_fc1_MatMul-op1",
    "Default_optimizer_SGD-op1",
)


# Where everything rounds otherwise, a few numbers of a small ReluGrad may flip: more than 2 % of its
# norm; and what an optimizer makes of gradients that are not equal cannot be told.
NOISY = [kernel for kernel in KERNELS if "ReluGrad" not in kernel and "SGD" not in kernel]


@pytest.mark.parametrize(("wrong", "noise"), [*((k, 0) for k in KERNELS), *((k, 1) for k in NOISY)])
def test_a_wrong_kernel_is_named(tmp_path: Path, wrong: str, noise: int) -> None:
    """Scaled by 1.02, or with twice the learning rate; with noise every kernel also rounds otherwise."""
    Machine(tmp_path / "a", noise=noise, wrong=wrong).step()
    Machine(tmp_path / "b").step()
    status, found = judged(tmp_path, "--fail-on", "divergence")
    assert (status, found["diverged"]) == (1, True)
    assert found["culprit"]["name"].startswith(f"Kernel.{wrong}.")
    assert found["culprit"]["verdict"] == "originated"
    if not noise:
        assert found["first_not_equal"]["name"] == found["culprit"]["name"]


def test_an_optimizer_of_unequal_gradients_is_no_all_clear(tmp_path: Path) -> None:
    Machine(tmp_path / "a", noise=1, wrong="Default_optimizer_SGD-op0").step()
    Machine(tmp_path / "b").step()
    status, found = judged(tmp_path, "--fail-on", "divergence")
    assert (status, found["diverged"], found["culprit"]) == (1, "cannot tell", None)


@pytest.mark.parametrize("noise", [0, 1, 2, 3])
def test_sound_kernels_have_no_culprit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], noise: int
) -> None:
    Machine(tmp_path / "a", noise=noise).step()
    Machine(tmp_path / "b").step()
    status, found = judged(tmp_path, "--fail-on", "divergence")
    assert (status, found["diverged"], found["suspects"]) == (0, False, [])
    assert capsys.readouterr().out.startswith("No divergence: ")
    rows = shown(tmp_path / "out", "0_1")
    assert {row["Verdict"] for row in rows} <= {"same", "rounding", "passed on"}


def test_kernels_of_which_only_results_were_dumped(tmp_path: Path) -> None:
    Machine(tmp_path / "a", wrong="Default_fc2_MatMul-op0", outputs_only=True).step()
    Machine(tmp_path / "b", outputs_only=True).step()
    _, found = judged(tmp_path)
    culprit = found["culprit"]
    assert culprit["name"] == "Kernel.Default_fc2_MatMul-op0.MatMul.0.forward"
    assert culprit["reason"].endswith("its inputs were not dumped, and no value before it differs")
    assert [each["name"] for each in found["suspects"]] == [culprit["name"]]


def test_kernels_of_which_only_statistics_were_dumped(tmp_path: Path) -> None:
    Machine(tmp_path / "a", wrong="Default_fc2_MatMul-op0").step()
    Machine(tmp_path / "b").step()
    for run in ("a", "b"):
        (folder,) = kernel_folders(tmp_path / run)
        summarise(folder)
    status, found = judged(tmp_path, "--fail-on", "divergence")
    assert (status, found["culprit"]["name"]) == (1, "Kernel.Default_fc2_MatMul-op0.MatMul.0.forward")
    assert shown(tmp_path / "out", "0_1")[0]["Verdict"] == "same"


def test_kernels_without_a_counterpart_are_no_pass(tmp_path: Path) -> None:
    dump(tmp_path / "a", 0, 1, here=ONES)
    dump(tmp_path / "b", 0, 1, there=ONES)
    status, found = judged(tmp_path)
    assert (status, found["counts"]["not_judged"]) == (2, 2)


def test_kernels_of_two_graphs_have_names_of_their_own(tmp_path: Path) -> None:
    for run, factor in (("a", 2.0), ("b", 1.0)):
        for graph, value in ((0, 1.0), (1, factor)):
            place = tmp_path / run / f"rank_0/Net/{graph}/1"
            place.mkdir(parents=True)
            np.save(
                place / f"Add.Default_Add-op0.0.0.{10 - graph}.output.0.DefaultFormat.Float32.npy",
                value * ONES,
            )
    _, found = judged(tmp_path)
    assert found["culprit"]["name"] == "Kernel.Net.1.Default_Add-op0.Add.0.forward"


def test_a_real_pair_with_another_weight(
    crossed: Crossed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One number of a weight was changed before training: that weight comes in different."""
    file = request(tmp_path, crossed.kernels("b"), crossed.kernels("a"), rank_id=[], step_id=[])
    more = ("--json", str(tmp_path / "summary.json"), "--junit", str(tmp_path / "junit.xml"), "--csv")
    assert command(file, tmp_path / "out", *more) == 0
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["culprit"]["name"].endswith("_fc1-Dense_MatMul-op0.MatMul.0.forward")
    assert (found["culprit"]["slot"], found["culprit"]["verdict"]) == ("input.1", "entered")
    assert len(found["suspects"]) == 1
    said = capsys.readouterr().out
    assert said.startswith(
        "First divergence: Kernel.Default_network-WithLossCell__backbone-Net_fc1-Dense_MatMul"
    )
    assert said.index("By the fixed rules of the specification:") < said.index("do not reach accuracy")
    assert b"<failure " in (tmp_path / "junit.xml").read_bytes()
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".csv"]
