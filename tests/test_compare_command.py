"""`msprobe compare` for programs and for many ranks: exit codes, summaries, what to record next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest

import msprobe.mindspore
import msprobe.pytorch
from made_runs import call, made, tensor
from msprobe.cli.main import main
from msprobe.config import Scene, load
from msprobe.errors import UsageError
from msprobe.record import Record


def run(folder: Path, *values: float, **place: Any) -> Path:
    """A chain of calls, each with the input 1 and these outputs, one after the other."""
    records = [
        call(f"Torch.op{n}.0.forward", tensor(value), inputs=(tensor(1),)) for n, value in enumerate(values)
    ]
    return made(folder, *records, **place)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """The second of three calls is wrong."""
    return str(run(tmp_path / "t", 1, 1.5, 1)), str(run(tmp_path / "g", 1, 1, 1))


def summary(tmp_path: Path, *words: str) -> dict[str, Any]:
    file = tmp_path / "summary.json"
    assert main(["compare", *words, "-o", str(tmp_path / "out"), "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.spec("P22", "CLI")
def test_the_summary_names_the_culprit(tmp_path: Path, runs: tuple[str, str]) -> None:
    found = summary(tmp_path, *runs)
    assert found["diverged"] is True
    assert found["counts"] == {
        "places": 6, "same": 5, "rounding": 0, "passed_on": 0, "entered": 0, "originated": 1,
        "cannot_tell": 0, "not_judged": 0, "unmatched": 0,
    }  # fmt: skip
    culprit = found["culprit"]
    assert (culprit["name"], culprit["slot"]) == ("Torch.op1.0.forward", "output.0")
    assert (culprit["step"], culprit["rank"], culprit["verdict"]) == (0, None, "originated")
    assert culprit["error"] == pytest.approx(1 / 3)
    assert culprit["stack"] == ["File net.py, line 1, in Torch.op1.0.forward"]
    assert culprit["evidence"]["grade"] == "fair"  # statistics do not see everything
    assert culprit["evidence"]["checked"] == 3
    assert found["first_divergence"]["name"] == "Torch.op1.0.forward"
    for path in (*found["files"]["reports"][0].values(), found["files"]["next_config"]):
        assert Path(path).is_file()


def test_equal_runs_have_no_culprit(tmp_path: Path, runs: tuple[str, str]) -> None:
    found = summary(tmp_path, runs[1], runs[1])
    assert (found["diverged"], found["culprit"], found["first_divergence"]) == (False, None, None)
    assert found["files"]["next_config"] is None


@pytest.mark.spec("P22", "CLI")
@pytest.mark.parametrize(
    ("target", "golden", "fail_on", "status"),
    [
        ((1, 1), (1, 1), "divergence", 0),
        ((1, 1.2), (1, 1), "divergence", 1),
        ((1, 1.2), (1, 1), "accuracy", 0),  # the specification warns from one half on
        ((1, 9), (1, 1), "accuracy", 1),
        ((1, 1), (1, 1, 1), "divergence", 0),
        ((1, 1), (1, 1, 1), "unmatched", 1),
        ((1, 1, 1), (1, 1), "unmatched", 1),
        ((1, float("nan")), (1, 1), "divergence", 1),
    ],
)
def test_the_exit_status(
    tmp_path: Path, target: tuple[float, ...], golden: tuple[float, ...], fail_on: str, status: int
) -> None:
    words = [str(run(tmp_path / "t", *target)), str(run(tmp_path / "g", *golden)), "-o", str(tmp_path / "o")]
    assert main(["compare", *words]) == 0
    assert main(["compare", *words, "--fail-on", fail_on]) == status


@pytest.mark.spec("P22", "CLI")
def test_nothing_compared_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(run(tmp_path / "t")), str(run(tmp_path / "g")), "-o", str(tmp_path / "out")]
    assert main(["compare", *words]) == 2
    assert "Nothing was compared" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.spec("P22", "CLI")
def test_junit_has_a_test_for_each_call(tmp_path: Path) -> None:
    hostile = 'Torch.<b>&"\x01.0.forward'
    target = made(tmp_path / "t", call("Torch.a.0.forward", tensor(9)), call(hostile, tensor(1)))
    golden = made(tmp_path / "g", call("Torch.a.0.forward", tensor(1)), call("Torch.b.0.forward", tensor(1)))
    file = tmp_path / "junit.xml"
    words = [str(target), str(golden), "-o", str(tmp_path / "out"), "--junit", str(file)]
    assert main(["compare", *words]) == 0
    (suite,) = ElementTree.parse(file).getroot()
    assert suite.attrib == {
        "name": "step 0", "tests": "3", "failures": "1", "skipped": "2", "errors": "0"
    }  # fmt: skip
    outcomes = {case.attrib["name"]: [child.tag for child in case] for case in suite}
    assert outcomes == {
        "Torch.a.0.forward": ["failure"],
        'Torch.<b>&"\ufffd.0.forward': ["skipped"],
        "Torch.b.0.forward": ["skipped"],
    }


def unclear(tmp_path: Path) -> list[str]:
    """Two runs whose only difference beyond rounding is a shape whose maker was not recorded."""

    def records(value: float, length: int) -> list[Record]:
        chosen = tensor(1, (length, 4))
        first = call("Torch.op0.0.forward", tensor(value), inputs=(tensor(1),))
        return [first, call("Torch.expert.0.forward", chosen, inputs=(chosen,))]

    target, golden = made(tmp_path / "t", *records(1 + 2e-7, 3)), made(tmp_path / "g", *records(1, 4))
    return [str(target), str(golden)]


def few_ends(tmp_path: Path) -> list[str]:
    """Two runs that agree in one of the four results that the target ends with."""
    ends = [call(f"Torch.op{n}.0.forward", tensor(n + 1)) for n in range(4)]
    return [str(made(tmp_path / "t", *ends)), str(made(tmp_path / "g", ends[0]))]


UNKNOWN = (
    "it cannot be told whether this differs by more than rounding: Torch.expert.0.forward.input.0: its shape"
)
FEW = "only 1 of the 4 results that the target ends with (losses and gradients) could be judged"


@pytest.mark.spec("P22", "CLI")
@pytest.mark.parametrize(
    ("made_runs", "case", "reason"),
    [
        (unclear, "Torch.expert.0.forward", UNKNOWN),
        (few_ends, "the comparison as a whole", f"it cannot be told whether the runs diverge: {FEW}"),
    ],
)
def test_what_cannot_be_told_is_no_pass_for_programs(
    tmp_path: Path,
    made_runs: Callable[[Path], list[str]],
    case: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target, golden = made_runs(tmp_path)
    junit, request = tmp_path / "junit.xml", tmp_path / "compare.json"
    request.write_text(json.dumps({"npu_path": target, "bench_path": golden}))
    words = ["-i", str(request), "-o", str(tmp_path / "out"), "--junit", str(junit)]
    assert main(["compare", *words, "--fail-on", "divergence"]) == 1
    suite, whole = ElementTree.parse(junit).getroot()
    (skipped,) = (child for each in suite if each.attrib["name"] == case for child in each)
    assert skipped.tag == "skipped" and skipped.attrib["message"].startswith(reason)
    assert (whole.attrib["tests"], whole.attrib["errors"]) == ("1", "1")
    ((error,),) = whole
    screen = capsys.readouterr().out
    assert error.tag == "error"
    assert f"\n{error.attrib['message']}\n" in screen  # the first line of the answer
    assert error.attrib["message"].startswith("It cannot be told whether the runs diverge: ")
    assert f"{case}: {reason}" in screen and f"{case}: agrees" not in screen


def test_a_reader_that_stops_early_leaves_the_files_for_programs(
    tmp_path: Path, runs: tuple[str, str]
) -> None:
    """As `msprobe compare ... --json FILE | head -4`, whose pipe is closed while the answer is written."""
    files = tmp_path / "summary.json", tmp_path / "junit.xml"
    command = [
        "compare",
        *runs,
        "-o",
        str(tmp_path / "out"),
        "--json",
        str(files[0]),
        "--junit",
        str(files[1]),
    ]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        subprocess.run([sys.executable, "-u", "-m", "msprobe", *command], stdout=closed, check=False)
    assert all(file.stat().st_size for file in files)


def test_what_to_record_next_is_a_valid_configuration(tmp_path: Path, runs: tuple[str, str]) -> None:
    found = summary(tmp_path, *runs)
    config, notices = load(found["files"]["next_config"], scene=Scene.PYTORCH)
    assert notices == ()
    assert (config.task, config.level, list(config.step)) == ("tensor", "L1", [0])
    listed = json.loads(Path(found["files"]["next_config"]).read_text())["tensor"]["list"]
    assert listed[:2] == ["Torch.op0.0.forward", "Torch.op0.0.backward"]
    assert "Torch.op1.0.forward" in listed and "Torch.op2.0.forward" not in listed
    assert found["files"]["next_size"] == 4 * 2 * 3 * 4  # two calls of two tensors of 2 x 3 float32


@pytest.mark.spec("P20", "CLI")
def test_a_framework_that_is_named_must_be_right(
    tmp_path: Path, runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """-f before the command is the framework, behind it fuzzy matching."""
    words = ["compare", *runs, "-o", str(tmp_path / "out"), "-f"]
    assert main(["-f", "pytorch", *words]) == 0
    capsys.readouterr()
    assert main(["-f", "mindspore", *words]) == 2
    assert "was recorded with pytorch, not with mindspore" in capsys.readouterr().err


# --- several ranks ---------------------------------------------------------------------------------------


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[str, str]:
    """Rank 1 makes the difference; the collective call hands it to rank 0, which then looks guilty too."""
    for name, wrong in (("t", 1.5), ("g", 1.0)):
        for rank in (0, 1):
            own = wrong if rank == 1 else 1.0
            made(
                tmp_path / name,
                call("Torch.mul.0.forward", tensor(own), inputs=(tensor(1),)),
                call("Distributed.all_reduce.0.forward", tensor(wrong), inputs=(tensor(own),)),
                call("Torch.add.0.forward", tensor(wrong), inputs=(tensor(wrong),)),
                rank=rank,
            )
    return str(tmp_path / "t"), str(tmp_path / "g")


@pytest.mark.spec("K030", "CLI")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_each_rank_has_its_table_and_one_sums_them_up(
    tmp_path: Path, ranks: tuple[str, str], jobs: str
) -> None:
    file = tmp_path / "compare.json"
    paths = dict(zip(("npu_path", "bench_path"), (f"{run}/step0" for run in ranks), strict=True))
    file.write_text(json.dumps(paths))
    out = tmp_path / "out"
    assert main(["compare", "-i", str(file), "-o", str(out), "-j", jobs]) == 0
    kinds = sorted(path.name.rpartition("_")[0] for path in out.glob("*.xlsx"))
    assert kinds == ["compare_result_rank0", "compare_result_rank1", "compare_summary"]
    (overview,) = out.glob("compare_summary_*.xlsx")
    sheet = openpyxl.load_workbook(overview).active
    assert sheet is not None
    rows = [[cell.value for cell in row] for row in sheet.iter_rows()]
    culprit = rows[0].index("Culprit")
    assert [row[culprit] for row in rows[1:]] == [
        "Distributed.all_reduce.0.forward.output.0", "Torch.mul.0.forward.output.0"
    ]  # fmt: skip


def test_over_ranks_the_one_that_made_it_is_named(tmp_path: Path, ranks: tuple[str, str]) -> None:
    found = summary(tmp_path, *ranks)
    assert (found["culprit"]["name"], found["culprit"]["rank"]) == ("Torch.mul.0.forward", 1)
    first = found["recordings"][0]["culprit"]
    assert (first["name"], first["rank"]) == ("Distributed.all_reduce.0.forward", 0)
    assert "another rank" in first["hint"]


@pytest.mark.spec("K013", "CLI")
@pytest.mark.spec("K033", "CLI")
def test_stacks_of_a_compare_json(
    tmp_path: Path, ranks: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """-s needs stack_path on one card, and is not for several."""
    file = tmp_path / "compare.json"
    several = dict(zip(("npu_path", "bench_path"), (f"{run}/step0" for run in ranks), strict=True))
    file.write_text(json.dumps(several))
    assert main(["compare", "-i", str(file), "-o", str(tmp_path / "out"), "-s"]) == 2
    assert "is the folder of several" in capsys.readouterr().err
    single = {key: f"{path}/rank0/dump.json" for key, path in several.items()}
    file.write_text(json.dumps(single))
    assert main(["compare", "-i", str(file), "-o", str(tmp_path / "out"), "-s"]) == 2
    assert "'stack_path' is missing" in capsys.readouterr().err
    file.write_text(json.dumps({**single, "stack_path": f"{several['npu_path']}/rank0/stack.json"}))
    for words, shown in (([], False), (["-s"], True)):
        out = tmp_path / f"shown {shown}"
        assert main(["compare", "-i", str(file), "-o", str(out), "--csv", *words]) == 0
        (table,) = out.glob("*.csv")
        assert ("NPU_Stack_Info" in table.read_text()) is shown


@pytest.mark.spec("K034", "CLI")
def test_a_line_for_each_call_unless_switched_off(
    tmp_path: Path, runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = dict(zip(("npu_path", "bench_path"), runs, strict=True))
    for loud in (True, False, None):
        file = tmp_path / "compare.json"
        file.write_text(json.dumps(paths if loud is None else {**paths, "is_print_compare_log": loud}))
        assert main(["compare", "-i", str(file), "-o", str(tmp_path / "out")]) == 0
        said = capsys.readouterr().out
        assert ("Torch.op0.0.forward: agrees" in said) is (loud is not False)
        assert "Torch.op1.0.forward" in said


@pytest.mark.spec("K014", "CLI")
def test_only_the_table(tmp_path: Path, runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "-i", compare_json(tmp_path, runs), "-o", str(tmp_path / "out"), "-c"]) == 0
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".xlsx"]
    assert "Expert Advice" not in capsys.readouterr().out


def compare_json(tmp_path: Path, runs: tuple[str, str]) -> str:
    file = tmp_path / "compare.json"
    file.write_text(json.dumps(dict(zip(("npu_path", "bench_path"), runs, strict=True))))
    return str(file)


@pytest.mark.spec("K014", "CLI")
def test_the_specified_form_shows_the_whole_advice_after_our_answer(
    tmp_path: Path, runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "-i", compare_json(tmp_path, runs), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    (advice,) = (tmp_path / "out").glob("advisor_*.txt")
    ours, rule, rest = said.partition("By the fixed rules of the specification:\n")
    assert "\nCulprit: Torch.op1.0.forward (step 0).\n" in ours and rule
    assert rest.startswith(advice.read_text())


@pytest.mark.parametrize(("value", "marked"), [(1.2, "0 rows are"), (9.0, "1 row is")])
def test_two_paths_show_one_line_of_the_specification(
    tmp_path: Path, value: float, marked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = str(run(tmp_path / "t", 1, value)), str(run(tmp_path / "g", 1, 1))
    assert main(["compare", *paths, "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    (advice,) = (tmp_path / "out").glob("advisor_*.txt")
    assert f"\nThe specification's fixed rules: {marked} marked, see {advice}.\n" in said
    assert "Expert Advice" not in said


# --- functions -------------------------------------------------------------------------------------------


DOORS = pytest.mark.parametrize("door", [msprobe.pytorch, msprobe.mindspore], ids=lambda door: door.__name__)


@pytest.mark.spec("P20", "CLI")
@DOORS
def test_compare_as_a_function(tmp_path: Path, runs: tuple[str, str], door: Any) -> None:
    names = dict(zip(("npu_path", "bench_path"), runs, strict=True))
    (outcome,) = door.compare(names, tmp_path / "out", auto_analyze=False)
    assert outcome.located.culprit is not None
    assert str(outcome.located.culprit.place.record.name) == "Torch.op1.0.forward"
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".xlsx"]
    with pytest.raises(UsageError, match="did you mean 'npu_path'"):
        door.compare({"npu_pth": "x"}, tmp_path / "out")


@pytest.mark.spec("P20", "CLI")
@DOORS
def test_compare_distributed_as_a_function(tmp_path: Path, ranks: tuple[str, str], door: Any) -> None:
    outcomes = door.compare_distributed(*ranks, tmp_path / "out")
    assert [(outcome.step, outcome.rank) for outcome in outcomes] == [(0, 0), (0, 1)]
    assert len(list((tmp_path / "out").glob("compare_result_rank*.html"))) == 2


def test_nothing_judged_is_never_a_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where one run was recorded at level L0 and the other at L1."""
    target = made(tmp_path / "t", call("Module.net.Linear.forward.0", tensor(1)))
    words = ["compare", str(target), str(run(tmp_path / "g", 1)), "-o", str(tmp_path / "out")]
    assert (main(words), main([*words, "--fail-on", "divergence"])) == (2, 2)
    assert "Nothing could be judged" in capsys.readouterr().out


def test_runs_without_hashes_are_not_called_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Statistics that agree do not show that no number changed its place."""
    paths = [str(run(tmp_path / name, 1, 1)) for name in "tg"]
    assert main(["compare", *paths, "-o", str(tmp_path / "out")]) == 0
    words = "No divergence: 4 values were compared, and all agree as far as max, min, mean and norm show."
    assert capsys.readouterr().out.startswith(words)
