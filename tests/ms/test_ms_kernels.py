"""Level L2 with real graphs: which kernels of which steps are on disk, and that they can be compared."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import kernel_script
import mindspore as ms
import numpy as np
import openpyxl

from cross_case import Crossed, crossed
from msprobe.cli.main import main
from msprobe.mindspore.kernel_debugger import Steps
from msprobe.store.kernels_dir import (
    KernelFolder,
    kernel_folders,
    kernel_statistics,
    kernel_tensors,
    read_kernel_tensor,
)

__all__ = ["crossed"]

SCRIPT = Path(__file__).with_name("kernel_script.py")


class Recorded(NamedTuple):
    folder: Path
    said: str

    @property
    def dump(self) -> Path:
        return self.folder / "dump"

    @property
    def results(self) -> list[str]:
        found: list[str] = json.loads((self.folder / "results.json").read_text())
        return found

    def warnings(self) -> list[str]:
        return re.findall(r"\[WARNING\] msprobe: (.*)", self.said)

    def places(self) -> list[tuple[int, int]]:
        """Graph and step of each folder."""
        return sorted((folder.graph, folder.step) for folder in kernel_folders(self.dump))

    def folder_of(self, graph: int, step: int) -> KernelFolder:
        return next(f for f in kernel_folders(self.dump) if (f.graph, f.step) == (graph, step))


Record = Callable[..., Recorded]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Runs a scene of the script once, in a process of its own."""
    known: dict[str, Recorded] = {}

    def recorded(scene: str, task: str = "tensor", before: Any = None, **keys: Any) -> Recorded:
        if scene not in known:
            folder = tmp_path_factory.mktemp(scene)
            if before is not None:
                before(folder / "dump")
            config = {"task": task, "level": "L2", "dump_path": str(folder / "dump"), **keys}
            command = [sys.executable, str(SCRIPT), str(folder), scene, json.dumps(config)]
            paths = os.pathsep.join(sys.path)
            ended = subprocess.run(
                command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
            )
            assert ended.returncode == 0, ended.stderr
            known[scene] = Recorded(folder, ended.stderr)
        return known[scene]

    return recorded


class Nobody:
    """In the place of a debugger: the same scene without one."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def without_debugger(scene: str) -> list[str]:
    mode = ms.get_context("mode")
    try:
        found: list[str] = getattr(kernel_script, scene)(Path(), Nobody)
    finally:
        ms.set_context(mode=mode)
    return found


def timeless(path: Path) -> str:
    return re.sub(r"\.[0-9]{16}\.", ".time.", path.name)


@pytest.mark.spec("C008", "MSs")
@pytest.mark.spec("C019", "MSs")
@pytest.mark.spec("M004", "MSs")
@pytest.mark.spec("M037", "MSs")
@pytest.mark.spec("M050", "MSs")
def test_sample_of_a_static_graph(record: Record, crossed: Crossed) -> None:
    run = record("static_sample")
    assert {path.name for path in run.dump.iterdir()} == {"kernel_kbyk_dump.json", "rank_0"}
    assert run.places() == [(0, 0), (0, 1), (0, 2)]
    assert run.warnings() == []
    golden = {timeless(path): np.load(path) for path in (crossed.kernels("a") / "rank_0/Net/0/1").iterdir()}
    ours = {timeless(path): np.load(path) for path in run.folder_of(0, 1).path.iterdir()}
    assert ours.keys() == golden.keys()
    far = [name for name in ours if not np.allclose(ours[name], golden[name], rtol=1e-4, atol=1e-6)]
    assert far == []


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param("static_sample", marks=pytest.mark.spec("M011", "MSs")),
        "dynamic_sample",
        "dynamic_model",
        "counted_late",
    ],
)
def test_results_are_the_same_to_the_bit(record: Record, scene: str) -> None:
    keys = {"counted_late": {"task": "statistics"}}
    assert record(scene, **keys.get(scene, {})).results == without_debugger(scene)


def compared(request: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The rows of the one table."""
    (folder / "compare.json").write_text(json.dumps(request))
    options = ["-i", str(folder / "compare.json"), "-o", str(folder / "out")]
    assert main(["-f", "mindspore", "compare", *options]) == 0
    (table,) = (folder / "out").iterdir()
    assert re.fullmatch(r"compare_result_0_0_[0-9]{14}\.xlsx", table.name)
    sheet = openpyxl.load_workbook(table).active
    assert sheet is not None
    header, *rows = sheet.iter_rows(values_only=True)
    return [dict(zip(map(str, header), row, strict=True)) for row in rows]


@pytest.mark.spec("K002", "MSs")
@pytest.mark.spec("K022", "MSs")
def test_the_kernels_of_two_runs_are_compared(record: Record, tmp_path: Path) -> None:
    request = {
        "npu_path": str(record("changed_weight").dump),
        "bench_path": str(record("static_sample").dump),
        "rank_id": [0],
        "step_id": [0],
    }
    found = compared(request, tmp_path)
    assert len(found) == 113
    result = {timeless(Path(str(row["NPU Name"]))): row["Accuracy Reached or Not"] for row in found}
    forward = "MatMul.Default_network-WithLossCell__backbone-Net_fc1-Dense_MatMul-op0.0.0.time"
    assert [result[f"{forward}.{slot}.DefaultFormat.Float32.npy"] for slot in ("input.0", "input.1")] == [
        "Yes",
        "No",
    ]
    assert "Unmatched" not in result.values()


def summary(target: Path, golden: Path, folder: Path, status: int) -> Any:
    request = {"npu_path": str(target), "bench_path": str(golden), "rank_id": [0], "step_id": [0]}
    (folder / "compare.json").write_text(json.dumps(request))
    options = ["-i", str(folder / "compare.json"), "-o", str(folder / "out")]
    more = ["--json", str(folder / "summary.json"), "--fail-on", "divergence"]
    assert main(["-f", "mindspore", "compare", *options, *more]) == status
    return json.loads((folder / "summary.json").read_text())


def test_equal_kernels_do_not_diverge(record: Record, tmp_path: Path) -> None:
    run = record("static_sample")
    found = summary(run.dump, run.dump, tmp_path, 0)
    assert (found["diverged"], found["culprit"], found["first_not_equal"]) == (False, None, None)
    assert found["counts"]["same"] == found["counts"]["places"] == 113


def test_a_weight_that_differs_is_named_at_the_kernel_that_takes_it(record: Record, tmp_path: Path) -> None:
    found = summary(record("changed_weight").dump, record("static_sample").dump, tmp_path, 1)
    assert found["culprit"]["name"].endswith("fc1-Dense_MatMul-op0.MatMul.0.forward")
    assert (found["culprit"]["slot"], found["culprit"]["verdict"]) == ("input.1", "entered")
    assert [each["name"] for each in found["suspects"]] == [found["culprit"]["name"]]


def test_a_kernel_whose_result_is_wrong_is_named(record: Record, tmp_path: Path) -> None:
    run = record("static_sample")
    copy = shutil.copytree(run.dump, tmp_path / "wrong")
    (path,) = copy.glob("rank_0/Net/0/0/MatMul.*_fc2-Dense_Grad_MatMul_MatMul-op0.*output.0*.npy")
    np.save(path, np.load(path) * np.float32(1.02))
    found = summary(copy, run.dump, tmp_path, 1)
    assert found["culprit"]["name"].endswith("_fc2-Dense_Grad_MatMul_MatMul-op0.MatMul.0.forward")
    assert (found["culprit"]["slot"], found["culprit"]["verdict"]) == ("output.0", "originated")
    assert found["first_not_equal"]["name"] == found["culprit"]["name"]


STATISTICS = {
    "list": [
        r"name-regex(.*fc\d-Dense/MatMul.*)",
        "Default/network-WithLossCell/_loss_fn-MSELoss/Sub-op0",
    ],
    "data_mode": ["output"],
}
NET = "Default_network-WithLossCell_"
CHOSEN = [
    ("MatMul", f"{NET}_backbone-Net_fc1-Dense_MatMul-op0"),
    ("MatMul", f"{NET}_backbone-Net_fc2-Dense_MatMul-op0"),
    ("Sub", f"{NET}_loss_fn-MSELoss_Sub-op0"),
]


@pytest.mark.spec("C006", "MSs")
@pytest.mark.spec("C014", "MSs")
@pytest.mark.spec("C065", "MSs")
@pytest.mark.spec("C067", "MSs")
@pytest.mark.spec("C069", "MSs")
@pytest.mark.spec("C110", "MSs")
@pytest.mark.spec("M024", "MSs")
def test_statistics_of_chosen_kernels_at_chosen_steps(record: Record) -> None:
    """Nothing is left of the steps, graphs, kernels and sides that nobody asked for, nor of the tensors."""
    run = record("static_loop", "statistics", step=[0, 2], statistics=STATISTICS)
    assert run.places() == [(0, 0), (0, 2)]
    assert "it writes tensors, which become statistic.csv when a step ends and are removed." in run.said
    tensors = record("static_sample")
    for step in (0, 2):
        folder = run.folder_of(0, step)
        assert [path.name for path in folder.path.iterdir()] == ["statistic.csv"]
        with (folder.path / "statistic.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert list(rows[0]) == [
            *("Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Size"),
            *("Data Type", "Shape", "Max Value", "Min Value", "Avg Value", "L2Norm Value"),
        ]
        assert sorted((row["Op Type"], row["Op Name"]) for row in rows) == CHOSEN
        assert {(row["IO"], row["Slot"], row["Data Type"]) for row in rows} == {("output", "0", "float32")}
        values = {
            str(tensor.slot): read_kernel_tensor(tensor).array
            for tensor in kernel_tensors(tensors.folder_of(0, step))
        }
        for line in kernel_statistics(folder):
            array = values[str(line.slot)].astype(np.float64)
            expected = (array.max(), array.min(), array.mean(), np.linalg.norm(array))
            assert line.values == pytest.approx(expected, rel=1e-6)
            assert line.shape == f"({','.join(map(str, array.shape))})"


@pytest.mark.spec("M005", "MSd")
@pytest.mark.spec("M008", "MSd")
@pytest.mark.spec("M041", "MSd")
@pytest.mark.spec("M067", "MSd")
def test_sample_of_a_dynamic_graph(record: Record) -> None:
    """Of the compiled part alone; without step() its runs count, those of its backward with them."""
    run = record("dynamic_sample")
    assert run.places() == [(graph, step) for graph in (1, 2) for step in (0, 1, 2)]
    kinds = {tensor.op_type for tensor in kernel_tensors(run.folder_of(1, 0))}
    assert kinds == {"MatMul", "BiasAdd", "ReLU", "Parameter"}
    assert "Abs" not in {
        tensor.op_type for folder in kernel_folders(run.dump) for tensor in kernel_tensors(folder)
    }
    assert run.warnings() == []


@pytest.mark.spec("M042", "MSd")
def test_sample_of_a_dynamic_graph_with_model(record: Record) -> None:
    """The third graph is that of the optimizer, which MindSpore compiles."""
    run = record("dynamic_model")
    assert run.places() == [(graph, step) for graph in (1, 2, 3) for step in (0, 1, 2)]


@pytest.mark.spec("M006", "MSd")
@pytest.mark.spec("R13", "MSd")
def test_a_callback_says_which_step_it_is(record: Record) -> None:
    """MindSpore compiles forward, backward and the optimizer, each to a graph of its own."""
    run = record("dynamic_callback", step=[0, 2])
    assert run.places() == [(graph, step) for graph in (1, 2, 3) for step in (0, 2)]


@pytest.mark.spec("C080", "MSs")
@pytest.mark.spec("C082", "MSs")
@pytest.mark.spec("M031", "MSs")
@pytest.mark.spec("R13", "MSs")
def test_callbacks_of_model(record: Record) -> None:
    section = {"list": ["name-regex(.*Net/.*Dense/MatMul.*)"], "data_mode": "output"}
    run = record("resumed_model", step=[40, 42], tensor=section)
    assert run.places() == [(0, 40), (0, 42)]
    for step in (40, 42):
        chosen = {(t.op_type, str(t.slot).split(".")[-2]) for t in kernel_tensors(run.folder_of(0, step))}
        assert chosen == {("MatMul", "output")}


def test_which_step_a_graph_runs_in() -> None:
    steps = Steps()
    steps.begin(3)
    assert [steps.of(graph) for graph in "fbfbf"] == [3, 3, 4, 4, 5]
    steps.count()
    assert (steps.first, steps.taken_wrongly()) == (3, range(4, 6))
    assert [steps.of(graph) for graph in "ff"] == [4, 4]


@pytest.mark.spec("M027", "MSs")
def test_a_graph_may_run_several_times_in_a_step(record: Record) -> None:
    """Until step() is called for the first time its runs are taken for steps; then they are put right."""
    run = record("counted_late", "statistics")
    assert run.places() == [(0, 4), (0, 5), (0, 6)]
    assert [len(kernel_statistics(run.folder_of(0, step))) for step in (4, 5, 6)] == [50, 50, 50]
    assert run.warnings() == [
        "token_range has no effect at level L2.",
        "save() has no effect at level L2; it records at level debug.",
        "register_custom_api() has no effect at level L2; it is for levels L1 and mix.",
        "no kernel was recorded: no part that mindspore.jit compiles ran between start() and stop().",
    ]


def leave_older_kernels(dump: Path) -> None:
    (dump / "rank_0/Net/7/0").mkdir(parents=True)
    np.save(dump / "rank_0/Net/7/0/Add.Add.0.0.1.output.0.DefaultFormat.Float32.npy", np.ones(2))


@pytest.mark.spec("M048", "MSs")
def test_long_names_and_bfloat16_and_an_earlier_run(record: Record) -> None:
    run = record("long_names", before=leave_older_kernels)
    assert run.places() == [(0, 0), (1, 0)]
    (older,) = (run.dump / "previous").iterdir()
    assert kernel_folders(older)[0][:4] == (0, 0, "Net", 7)
    assert run.warnings() == [
        f"{run.dump}/rank_0/Net held the kernels of an earlier run; they are now in {older}/rank_0."
    ]
    folder = run.folder_of(0, 0)
    assert (folder.path / "mapping.csv").is_file()
    assert all(len(path.name) <= 255 for path in folder.path.iterdir())
    tensors = {str(tensor.slot): tensor for tensor in kernel_tensors(folder)}
    weight = next(tensor for name, tensor in tensors.items() if name.endswith("Dense_MatMul-op0.0.input.1"))
    assert len(weight.slot.op_name) > 200 and re.fullmatch(r"[0-9]+\.npy", weight.path.name)
    assert read_kernel_tensor(weight).array.shape == (2, 4)
    rounded = [read_kernel_tensor(tensor) for tensor in kernel_tensors(run.folder_of(1, 0))]
    by_dtype = {tensor.dtype: tensor.array for tensor in rounded}
    widened = (by_dtype["bfloat16"].astype("u4") << 16).view("f4")
    assert widened == pytest.approx(by_dtype["float32"], rel=2**-8) and widened.shape == (2, 4)


def test_kernels_of_bfloat16_are_compared(record: Record, tmp_path: Path) -> None:
    """The other run has 2 in the place of the first number."""
    run, other = record("long_names", before=leave_older_kernels), tmp_path / "other"
    shutil.copytree(run.dump, other, ignore=shutil.ignore_patterns("previous"))
    (changed,) = other.rglob("*.output.0.*.BFloat16.npy")
    content = bytearray(changed.read_bytes())
    first = 10 + int.from_bytes(content[8:10], "little")  # behind the head of a .npy file
    content[first : first + 2] = b"\x00\x40"
    changed.write_bytes(bytes(content))
    request = {"npu_path": str(run.dump), "bench_path": str(other), "rank_id": [0], "step_id": [0]}
    found = [row for row in compared(request, tmp_path) if row["NPU Dtype"] == "bfloat16"]
    (tensor,) = [tensor for tensor in kernel_tensors(run.folder_of(1, 0)) if tensor.path.name == changed.name]
    numbers = (read_kernel_tensor(tensor).array.astype("u4") << 16).view("f4")
    by_name = {Path(str(row["NPU Name"])).name: row for row in found}
    row = by_name[changed.name]
    assert row["NPU max"] == pytest.approx(numbers.max())
    assert row["MaxAbsErr"] == pytest.approx(abs(2 - numbers.flat[0]))
    assert (row["Bench Dtype"], row["Accuracy Reached or Not"]) == ("bfloat16", "No")


@pytest.mark.spec("M015", "MSs")
def test_a_debugger_that_starts_too_late_says_so(record: Record) -> None:
    run = record("too_late")
    assert run.places() == []
    assert run.warnings() == [
        "nothing is recorded: MindSpore takes up its dump with the first graph that it compiles, and start() "
        "came after that. At level L2 call start() before the model is made."
    ]


def test_what_mindspore_refuses_is_one_sentence(record: Record) -> None:
    """An expression that Python takes."""
    run = record("refused", tensor={"list": ["name-regex(a{,3})"]})
    file = run.dump / "kernel_kbyk_dump.json"
    sentence = f"MindSpore refuses what {file} asks it to record: Unexpected token in brace expression."
    assert run.results == [sentence, ""]


def test_a_folder_that_cannot_be_made_leaves_training_alone(record: Record) -> None:
    run = record("in_the_way", before=lambda dump: dump.write_text("mine"), async_dump=True)
    assert run.warnings() == [
        "async_dump has no effect on CPU: MindSpore writes what a kernel gave before it goes on.",
        f"nothing is recorded: {run.dump}: a file is in the way.",
    ]
    assert run.dump.read_text() == "mine"
    assert run.results == without_debugger("in_the_way")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.mark.spec("C011", "MSs")
@pytest.mark.spec("C013", "MSs")
@pytest.mark.spec("M015", "MSs")
@pytest.mark.spec("R09", "MSs")
def test_two_ranks(tmp_path: Path) -> None:
    """Rank 1 alone is asked for, and started in time; rank 0 was not, and says so."""
    place = Path(sys.executable).parent
    config = {"task": "tensor", "level": "L2", "dump_path": str(tmp_path / "dump"), "rank": [1]}
    command = [str(place / "msrun"), "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}"]
    command += [f"--log_dir={tmp_path / 'log'}", "--join=True", str(SCRIPT), str(tmp_path), "two_ranks"]
    paths = {
        "PATH": os.pathsep.join(
            [str(place), os.environ["PATH"]]
        ),  # msrun starts the python that stands first
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([*command, json.dumps(config)], cwd=tmp_path, env={**os.environ, **paths}, timeout=300)
    logs = [(tmp_path / f"log/worker_{rank}.log").read_text() for rank in (0, 1)]
    told = [re.findall(r"\[WARNING\] msprobe: (.*)", log) for log in logs]
    assert told == [
        [
            "start() came after mindspore.communication.init: the kernels may be missing. At level L2 call "
            "start() before it.",
            "the configuration records rank [1] of each node and this process is rank 0: nothing is recorded "
            "here.",
        ],
        [],
    ]
    results = [json.loads((tmp_path / f"results{rank}.json").read_text()) for rank in (0, 1)]
    assert results[0] == results[1]
    folders = kernel_folders(tmp_path / "dump")
    assert [(folder.rank, folder.graph, folder.step) for folder in folders] == [(1, 0, 0)]
    assert len(kernel_tensors(folders[0])) == 113
