"""run_ut, multi_run_ut, api_precision_compare and run_overflow_check as commands, with real workers."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import nets
from msprobe.cli.main import main
from msprobe.precheck.calls import Skip
from msprobe.precheck.check import Checked, Options, new_tables, precheck, summary
from msprobe.precheck.pool import Pool, command_of
from msprobe.precheck.protocol import Order
from msprobe.precheck.tables import Tables
from msprobe.precheck.work import REPLAYED
from msprobe.pytorch import debugger as door
from torch_fixtures import Probe, record

EXAMPLE = Path(__file__).parent / "config_examples" / "C109.json"
RESULT = "accuracy_checking_result_{}.csv"
DETAILS = "accuracy_checking_details_{}.csv"


def closed() -> None:
    try:
        door._the.get().close()
    except door.UsageError:
        return
    door._the.clear()


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A whole training step of a transformer: forward, backward, clipping, optimizer."""
    closed()
    probe = Probe(tmp_path_factory.mktemp("step"))
    nets.train(nets.NETS["gpt"], probe.debugger(task="tensor"), steps=1)
    closed()
    yield probe.rank() / "dump.json"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three calls: linear, gelu, softmax."""
    closed()
    probe = Probe(tmp_path_factory.mktemp("small"))
    torch.manual_seed(2)
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(6, 8, requires_grad=True)

    def work() -> None:
        F.softmax(F.gelu(F.linear(x, weight)), dim=-1)
        torch.abs(x)

    record(probe, work, task="tensor")
    closed()
    return probe.rank() / "dump.json"


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.reader(stream))


def run(*words: object) -> int:
    return main(["-f", "pytorch", *map(str, words)])


def only(folder: Path, name: str) -> Path:
    (found,) = folder.glob(name.format("*"))
    return found


@pytest.fixture(scope="module")
def whole(step: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What run_ut makes of the whole step."""
    out = tmp_path_factory.mktemp("whole")
    assert run("run_ut", "-api_info", step, "-o", out) == 0
    return out


@pytest.mark.spec("P23", "CLI")
def test_columns(whole: Path) -> None:
    result, details = only(whole, RESULT), only(whole, DETAILS)
    assert re.fullmatch(r"accuracy_checking_result_\d{14}\.csv", result.name)
    assert details.name == result.name.replace("result", "details")
    assert result.read_bytes()[:3] == details.read_bytes()[:3] == b"\xef\xbb\xbf"
    assert rows(result)[0][:4] == ["API name", "Forward Test Success", "Backward Test Success", "Message"]
    assert rows(result)[0][4:] == ["Forward Verdict", "Backward Verdict", "Verdict Reason"]
    assert rows(details)[0][23:] == [
        *("Relative Error", "Scale Error", "Tolerance", "Verdict", "Verdict Reason"),
    ]
    assert ",".join(rows(details)[0][:23]) == (
        "API Name,Bench Dtype,DEVICE Dtype,Shape,余弦相似度,最大绝对误差,双百指标,双千指标,双万指标,"
        "二进制一致错误率,误差均衡性,均方根误差,小值域错误占比,相对误差最大值,相对误差平均值,inf/nan错误率,"
        "相对误差错误率,绝对误差错误率,ULP误差最大值,ULP误差平均值,ULP误差大于阈值占比,Status,Message"
    )
    linear = next(row for row in rows(details) if row[0] == "Functional.linear.0.forward.output.0")
    assert linear[1:4] == ["torch.float64", "torch.float32", "(2, 8, 48)"]
    assert all(re.fullmatch(r"\d+\.\d{14}", cell) for cell in linear[4:21])
    assert linear[21] == "pass"
    relative, scale, tolerance = map(float, linear[23:26])
    assert 0 < abs(scale) <= relative <= tolerance < 1e-6
    assert linear[26:] == ["pass", " "]
    assert oct(result.stat().st_mode & 0o777) == "0o640"


def test_a_whole_training_step_is_judged(step: Path, whole: Path) -> None:
    """At least 95 % of the distinct APIs; here all of them, and in the order of the recording."""
    found = rows(only(whole, RESULT))[1:]
    recorded = [name for name in json.loads(step.read_text())["data"] if name.endswith(".forward")]
    assert [f"{row[0]}.forward" for row in found] == recorded
    assert {row[1] for row in found} == {"pass"}
    assert {row[2] for row in found} == {"pass", " "}
    apis = {row[0].rpartition(".")[0] for row in found}
    assert {"Functional.linear", "Functional.layer_norm", "Torch._foreach_norm"} & apis
    assert len(apis) > 25


@pytest.mark.parametrize("kept", [0, 1, 100])
def test_a_check_is_taken_up_again(step: Path, whole: Path, tmp_path: Path, kept: int) -> None:
    """Killed after some calls, in the midst of writing the next one, it ends with the same tables."""
    stamp = re.findall(r"\d{14}", only(whole, RESULT).name)[0]
    result, details = tmp_path / RESULT.format(stamp), tmp_path / DETAILS.format(stamp)
    old_result, old_details = only(whole, RESULT).read_bytes(), only(whole, DETAILS).read_bytes()
    lines = old_result.splitlines(keepends=True)
    result.write_bytes(b"".join(lines[: kept + 1]) + lines[kept + 1][:7])
    last = lines[kept + 1].split(b",")[0] + b".forward.output.0"
    details.write_bytes(old_details[: old_details.index(last) + len(last) + 9])
    assert run("run_ut", "-api_info", step, "-csv_path", result) == 0
    assert (result.read_bytes(), details.read_bytes()) == (old_result, old_details)


def test_a_killed_check_goes_on(step: Path, whole: Path, tmp_path: Path) -> None:
    """A real kill; its workers die with it."""
    command = [sys.executable, "-m", "msprobe", "run_ut", "-api_info", str(step), "-o", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        found = list(tmp_path.glob(RESULT.format("*")))
        if found and found[0].read_bytes().count(b"\n") > 5:
            break
        time.sleep(0.01)
    process.kill()
    process.wait()
    result = only(tmp_path, RESULT)
    assert 5 < len(rows(result)) <= len(rows(only(whole, RESULT)))
    assert run("run_ut", "-api_info", step, "-csv_path", result) == 0
    assert result.read_bytes() == only(whole, RESULT).read_bytes()
    assert only(tmp_path, DETAILS).read_bytes() == only(whole, DETAILS).read_bytes()


@pytest.mark.spec("P23", "CLI")
def test_several_workers_give_the_same_tables(step: Path, whole: Path, tmp_path: Path) -> None:
    """But for the last digits: with fewer threads torch adds up in another order."""
    assert run("multi_run_ut", "-api_info", step, "-o", tmp_path, "-n", 2) == 0
    assert only(tmp_path, RESULT).read_bytes() == only(whole, RESULT).read_bytes()
    ours, theirs = rows(only(tmp_path, DETAILS)), rows(only(whole, DETAILS))
    assert [row[:4] + row[21:] for row in ours] == [row[:4] + row[21:] for row in theirs]


# ---- faults ----


@pytest.fixture(scope="module")
def faulty(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    out = tmp_path_factory.mktemp("faulty")
    options = Options(
        command_of("faulty_worker"), outputs=REPLAYED, error_folder=out, seconds=20.0, workers=1
    )
    return precheck(str(small), new_tables(str(out)), options, lambda done, count: None)


def test_a_call_that_crashes_or_hangs_costs_one_row(faulty: Checked) -> None:
    found = {call.call: call for call in faulty.summed}
    crashed, hung = found["Functional.softmax.0"], found["Functional.gelu.0"]
    assert (crashed.forward, hung.forward, found["Torch.abs.0"].forward) == ("SKIP", "SKIP", "pass")
    assert crashed.message.startswith(f"{Skip.CRASHED.value} It ended by signal SIGABRT.")
    assert hung.message == f"{Skip.HUNG.value} The limit is 20 s."
    assert faulty.lost == 2 and faulty.failed


def test_a_linear_wrong_by_one_percent_is_named(faulty: Checked) -> None:
    assert [call.call for call in faulty.summed if "error" in call] == ["Functional.linear.0"]
    (call,) = (call for call in faulty.summed if call.call == "Functional.linear.0")
    assert (call.forward, call.backward) == ("error", "error")
    assert call.message.startswith("Functional.linear.0.forward.output.0: Only 0.00% of the elements")


@pytest.mark.spec("C098", "PT")
def test_data_of_errors_are_saved(faulty: Checked) -> None:
    folder = faulty.error_folder
    assert folder is not None and re.fullmatch(r"ut_error_data\d{14}", folder.name)
    assert oct(folder.stat().st_mode & 0o777) == "0o750"
    names = {path.name for path in folder.iterdir()}
    assert {
        *("Functional.linear.0.forward.input.0.pt", "Functional.linear.0.forward.input.1.pt"),
        *("Functional.linear.0.forward.output.0.device.pt", "Functional.linear.0.forward.output.0.bench.pt"),
    } <= names
    assert all(name.startswith("Functional.linear.0.") for name in names)
    wrong, right = (
        torch.load(folder / f"Functional.linear.0.forward.output.0.{side}.pt") for side in ("device", "bench")
    )
    torch.testing.assert_close(wrong.double(), right * 1.01, rtol=1e-5, atol=1e-5)


def test_summary(faulty: Checked) -> None:
    assert list(summary(faulty)) == [
        "Overall Statistics",
        "----------------------",
        "Pass                 1",
        "Fail                 1",
        "Cannot Tell          0",
        "Skip                 2",
        "Passing Rate    50.00%",
        "",
        "Detail Statistics",
        "--------------------------------------",
        "Only Forward Fail                    0",
        "Only Backward Fail                   0",
        "Both Forward & Backward Fail         1",
        "",
        "APIs",
        "------------------",
        "Distinct         4",
        "Judged           2",
        "Share       50.00%",
        "",
        "Skipped",
        "-" * 63,
        "It gave no answer in time, and its process was ended.         1",
        "It ended its process.                                         1",
        "",
    ]


# ---- options ----


@pytest.mark.spec("C095", "PT")
@pytest.mark.spec("C096", "PT")
@pytest.mark.spec("C097", "PT")
@pytest.mark.spec("C098", "PT")
@pytest.mark.spec("C109", "PT")
def test_configuration(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed example, and the same with lists."""
    monkeypatch.chdir(tmp_path)
    assert run("run_ut", "-api_info", small, "-config", EXAMPLE, "-o", "all", "-save_error_data") == 0
    assert {row[1] for row in rows(only(tmp_path / "all", RESULT))[1:]} == {"pass"}
    assert list(tmp_path.glob("ut_error_data*")) == []
    example = json.loads(EXAMPLE.read_text())
    example["run_ut"] |= {"white_list": ["linear", "gelu"], "black_list": ["gelu", "abs"]}
    config = tmp_path / "lists.json"
    config.write_text(json.dumps(example))
    assert run("run_ut", "-api_info", small, "-config", config, "-o", "some") == 0
    assert {row[0]: row[1] for row in rows(only(tmp_path / "some", RESULT))[1:]} == {
        "Functional.linear.0": "pass",
        "Functional.gelu.0": "SKIP",
        "Functional.softmax.0": "SKIP",
        "Torch.abs.0": "SKIP",
    }


def config_with(tmp_path: Path, **section: Any) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "run_ut", "dump_path": "./", "run_ut": section}))
    return path


@pytest.mark.spec("C094", "PT")
@pytest.mark.parametrize("command", ["run_ut", "multi_run_ut", "run_overflow_check"])
def test_mindspore_has_no_run_ut(small: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main(["-f", "mindspore", command, "-api_info", str(small)]) == 2
    assert capsys.readouterr().err == (
        f"msprobe: {command} checks recordings of PyTorch only, not of MindSpore.\n"
    )


def test_mistakes(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: object) -> str:
        assert run("run_ut", "-api_info", small, "-o", tmp_path / "out", *words) == 2
        return capsys.readouterr().err

    assert "is no result to go on with" in told("-csv_path", tmp_path / "result.csv")
    assert "cannot be read" in told("-csv_path", tmp_path / RESULT.format("2" * 14))
    assert "each is 0 or more, and named once" in told("-d", 1, 1)
    assert "each is 0 or more" in told("-d", "-1")
    assert "it must be above 0" in told("--timeout", 0)
    assert "no such folder" in told("-config", config_with(tmp_path, error_data_path=str(tmp_path / "none")))
    wrong = told("-config", config_with(tmp_path, white_list=["linear", "no_such"]))
    assert "Invalid api in white_list: ['no_such']" in wrong
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"task": "run_ut", "run_ut": {}}))
    assert told("-config", bare) == (
        f'msprobe: {bare}: "dump_path" is missing; every configuration has it, also one of run_ut, whose '
        "tables go to -o instead: set it.\n"
    )
    statistics = tmp_path / "statistics.json"
    statistics.write_text(json.dumps({"task": "statistics", "dump_path": "./"}))
    assert 'this command needs "run_ut"' in told("-config", statistics)
    assert run("multi_run_ut", "-api_info", small, "-n", 65) == 2
    assert run("run_ut", "-api_info", tmp_path) == 2


def test_a_table_of_another_recording_is_refused(
    small: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (RESULT, DETAILS):
        path = only(whole, name)
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert run("run_ut", "-api_info", small, "-csv_path", only(tmp_path, RESULT)) == 2
    assert "which is not among the calls to check" in capsys.readouterr().err
    assert only(tmp_path, RESULT).read_bytes() == only(whole, RESULT).read_bytes()


def test_formulas_are_not_written(tmp_path: Path) -> None:
    from msprobe.precheck.judging import Answer
    from msprobe.report.precheck_csv import Result, Summed

    tables = Tables(tmp_path, "2" * 14)
    tables.begin([])
    tables.add(Answer(Summed("=1+1.0", "SKIP", "", "@x"), (Result("=1+1.0.forward.output.0", "SKIP"),)))
    assert rows(tables.result_file)[1] == ["'=1+1.0", "SKIP", " ", "'@x", " ", " ", " "]
    assert rows(tables.details_file)[1][0] == "'=1+1.0.forward.output.0"
    resumed = Tables.resumed(tables.result_file)
    assert list(resumed._results) == ["=1+1.0"]


# ---- api_precision_compare ----


@pytest.mark.spec("P23", "CLI")
def test_two_results_by_standard(
    whole: Path, faulty: Checked, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run_ut", "-api_info", small, "-o", tmp_path / "gpu", "--outputs", "replayed") == 0
    golden = only(tmp_path / "gpu", DETAILS)
    words = ("api_precision_compare", "-npu", faulty.details_file, "-gpu", golden, "-o", tmp_path / "out")
    capsys.readouterr()
    assert run(*words) == 1
    told = capsys.readouterr().out
    assert "error: Functional.linear.0.forward.output.0 (ULP误差比对法)" in told
    details = only(tmp_path / "out", "api_precision_compare_details_{}.csv")
    result = only(tmp_path / "out", "api_precision_compare_result_{}.csv")
    assert rows(details)[0][28:] == ["Verdict", "Verdict Reason"]
    assert ",".join(rows(details)[0][:28]) == (
        "API Name,小值域错误比值,小值域判定结果,均方根误差比值,均方根误差判定结果,相对误差最大值比值,"
        "相对误差最大值判定结果,相对误差平均值比值,相对误差平均值判定结果,误差均衡性比值,误差均衡性判定结果,inf/nan错误率,inf/nan判定结果,"
        "相对误差错误率,相对误差判定结果,绝对误差错误率,绝对误差判定结果,二进制一致错误率,二进制一致错误率判定结果,"
        "ULP误差平均值,ULP误差大于阈值占比,ULP误差大于阈值占比比值,ULP误差判定结果,双千指标,双千指标判定结果,"
        "比对结果,比对算法,Message"
    )
    assert rows(result)[0][:4] == ["API Name", "Forward Test Success", "Backward Test Success", "Message"]
    assert rows(result)[0][4:] == ["Forward Verdict", "Backward Verdict", "Verdict Reason"]
    assert [row[:3] for row in rows(result)[1:]] == [
        ["Functional.linear.0", "error", "error"],
        ["Functional.gelu.0", "SKIP", " "],
        ["Functional.softmax.0", "SKIP", " "],
        ["Torch.abs.0", "pass", "pass"],
    ]


@pytest.mark.spec("P23", "CLI")
def test_the_same_result_twice_passes(whole: Path, tmp_path: Path) -> None:
    path = only(whole, DETAILS)
    assert run("api_precision_compare", "-npu", path, "-gpu", path, "-o", tmp_path) == 0
    found = rows(only(tmp_path, "api_precision_compare_details_{}.csv"))[1:]
    standards = {row[26] for row in found}
    assert {row[28] for row in found} == {"pass"}
    assert {"绝对阈值法", "二进制一致法", "ULP误差比对法", "标杆比对法"} <= standards


@pytest.mark.parametrize("resumes", [False, True])
def test_a_check_of_nothing_is_no_pass(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], resumes: bool
) -> None:
    """A white list of another net; also where the table of such a check is taken up again."""
    config = tmp_path / "config.json"
    example = json.loads(EXAMPLE.read_text())
    config.write_text(json.dumps(example | {"run_ut": {"white_list": ["conv2d"]}}))
    words = ["run_ut", "-api_info", small, "-config", config, "-o", tmp_path]
    assert run(*words) == 2
    if resumes:
        assert run(*words, "-csv_path", only(tmp_path, RESULT)) == 2
    screen, sentence = capsys.readouterr()
    assert re.search(r"Skip +4\n", screen)
    assert sentence.strip().rpartition("\n")[2] == (
        "msprobe: No call was judged: 4 calls were skipped: API in black list or not in white list."
    )


def test_tables_without_a_common_row_are_no_pass(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = only(whole, DETAILS), tmp_path / "other.csv"
    other.write_text(path.read_text(encoding="utf-8-sig").replace("ward.", "ward.x."), encoding="utf-8-sig")
    assert run("api_precision_compare", "-npu", path, "-gpu", other, "-o", tmp_path) == 2
    screen, sentence = capsys.readouterr()
    assert screen.startswith("0 results judged: 0 pass, 0 fail\n")
    assert sentence == (
        "msprobe: No result was judged: the two tables have no row in common. Are they of one recording?\n"
    )


def test_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    assert run("api_precision_compare", "-npu", path, "-gpu", path) == 2
    assert "it has no column 'API Name'" in capsys.readouterr().err


# ---- run_overflow_check ----


@pytest.mark.spec("P23", "CLI")
def test_normal_and_abnormal_overflows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """float16 overflows where float32 does not; a division by zero overflows in both."""
    closed()
    probe = Probe(tmp_path)
    half = torch.full((4,), 300.0, dtype=torch.float16)

    def work() -> None:
        torch.mul(half, half)
        torch.div(torch.ones(2), torch.zeros(2))
        torch.abs(half)

    record(probe, work, task="tensor")
    closed()
    assert run("run_overflow_check", "-api_info", probe.rank() / "dump.json") == 1
    assert capsys.readouterr().out.splitlines() == [
        "The Torch.mul.0.forward overflow is an abnormal overflow.",
        "The Torch.div.0.forward overflow is a normal overflow.",
    ]


@pytest.mark.spec("P23", "CLI")
def test_what_overflow_check_recorded_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed()
    probe = Probe(tmp_path)
    half = torch.full((4,), 300.0, dtype=torch.float16, requires_grad=True)

    def work() -> None:
        torch.abs(torch.mul(half, half)).sum().backward()
        torch.div(torch.ones(2), torch.zeros(2))

    record(probe, work, task="overflow_check", section={"overflow_nums": -1})
    closed()
    assert run("run_overflow_check", "-api_info", probe.rank() / "dump.json") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The Torch.mul.0.forward overflow is an abnormal overflow."
    assert "The Torch.div.0.forward overflow is a normal overflow." in lines


@pytest.mark.spec("P23", "CLI")
def test_gradients_that_overflow_alone_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """overflow_check keeps what overflowed, here only the backward side of a call."""
    closed()
    probe = Probe(tmp_path)
    half = torch.full((4,), 300.0, dtype=torch.float16, requires_grad=True)

    def work() -> None:
        torch.mul(half, 200.0).backward(torch.full((4,), 1000.0, dtype=torch.float16))

    record(probe, work, task="overflow_check", section={"overflow_nums": -1})
    closed()
    assert list(probe.data()) == ["Torch.mul.0.backward"]
    assert run("run_overflow_check", "-api_info", probe.rank() / "dump.json") == 1
    told = capsys.readouterr().out
    assert told.startswith("The overflow of Torch.mul.0 could not be judged: only its gradients overflowed")


def test_a_recording_whose_tensors_are_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of what was computed then can be judged, and nobody shall take it for checked."""
    closed()
    probe = Probe(tmp_path)
    record(probe, lambda: torch.abs(torch.ones(3)), task="tensor")
    closed()
    alone = tmp_path / "alone" / "dump.json"
    alone.parent.mkdir()
    alone.write_bytes((probe.rank() / "dump.json").read_bytes())
    assert run("run_ut", "-api_info", alone, "-o", tmp_path / "out", "--outputs", "recorded") == 2
    assert "has no dump_tensor_data" in capsys.readouterr().err
    assert run("run_ut", "-api_info", alone, "-o", tmp_path / "out") == 0
    assert "was recorded with tensors, but dump_tensor_data is not there" in caplog.text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-d", "-3"), "-d -3: each is 0 or more, and named once."),
        (("--timeout", "0"), "--timeout 0.0: it must be above 0."),
    ],
)
def test_numbers_that_cannot_be(
    small: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    assert run("run_overflow_check", "-api_info", small, *words) == 2
    assert capsys.readouterr().err == f"msprobe: {sentence}\n"


@pytest.mark.spec("P23", "CLI")
def test_no_overflow(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run_overflow_check", "-api_info", small) == 0
    assert capsys.readouterr().out == "No call of this recording overflowed.\n"


def test_an_interrupt_leaves_no_worker(step: Path, tmp_path: Path) -> None:
    """The check takes far longer than this process needs to be woken, also on a busy machine."""
    process, status = _interrupted_check(_repeated(step, 200), tmp_path / "checked")
    assert status == 130
    deadline = time.monotonic() + 60  # a process that has ended is there until init has seen that
    while _has_members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _has_members(process.pid)


def _repeated(step: Path, times: int) -> Path:
    """A recording with the calls of another, each so many times under further numbers."""
    whole = json.loads(step.read_text())
    calls = {name: fields for name, fields in whole["data"].items() if name.endswith(".forward")}
    for name, fields in calls.items():
        api, number, direction = name.rsplit(".", 2)
        for repetition in range(1, times):
            whole["data"][f"{api}.{int(number) + 1000 * repetition}.{direction}"] = fields
    path = step.with_name("repeated.json")
    path.write_text(json.dumps(whole))
    return path


def _heed_interrupts() -> None:
    """In the background of a shell interrupts are ignored, and so are they by every process from there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted_check(step: Path, out: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Interrupt a check when it has begun to write its table, and return its exit status."""
    command = [sys.executable, "-m", "msprobe", "run_ut", "-api_info", str(step), "-o", str(out)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    deadline = time.monotonic() + 300
    while not list(out.glob(RESULT.format("*"))) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    return process, process.wait(60)


def test_an_interrupt_while_a_worker_is_started_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come between the start of a process and the first look at what it says."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args, **kwargs))
        return started[-1]

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", noted)
    order = Order("check", ".", 0, "auto", None, 1)
    with pytest.raises(KeyboardInterrupt), Pool([sys.executable, "-c", "input()"], [order], 60.0) as pool:
        monkeypatch.setattr(pool._selector, "register", interrupted)
        pool.start()
    assert [process.poll() is not None for process in started] == [True]


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# ---- the example of the documentation ----


@pytest.mark.parametrize(
    ("net", "fault", "named"),
    [
        ("transformer", True, {"Functional.linear.2"}),
        ("conv", True, {"Functional.linear.0"}),
        ("transformer", False, set()),
        ("conv", False, set()),
    ],
)
def test_the_example_names_the_wrong_linear(tmp_path: Path, net: str, fault: bool, named: set[str]) -> None:
    script = Path(__file__).parent.parent / "examples" / "wrong_linear.py"
    words = [sys.executable, str(script), net, "--out", str(tmp_path), *["--fault"][: int(fault)]]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == int(fault), done.stderr
    found = rows(only(tmp_path, RESULT))[1:]
    assert {row[0] for row in found if "error" in row[1:3]} == named
