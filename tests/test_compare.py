"""Matching two recordings, and the command that compares them, on recordings made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from made_runs import call, made, tensor
from msprobe.cli.main import main
from msprobe.compare import compare
from msprobe.errors import RecordingError
from msprobe.record import Leaf
from msprobe.report.advice import FINE, advise


def rows(target: Path, golden: Path, **options: Any) -> list[tuple[str | None, str | None, str]]:
    (comparison,) = compare(target, golden, **options)
    return [
        (pair.target and pair.target.name, pair.golden and pair.golden.name, pair.reason)
        for pair in (finding.pair for finding in comparison.findings)
    ]


# --- matching ------------------------------------------------------------------------------------------


def test_what_one_side_lacks_is_shown_from_both_sides(tmp_path: Path) -> None:
    target = made(
        tmp_path / "t", call("Torch.a.0.forward", tensor(1)), call("Torch.extra.0.forward", tensor(1))
    )
    golden = made(
        tmp_path / "g",
        call("Torch.first.0.forward", tensor(1)),
        call("Torch.a.0.forward", tensor(1), tensor(2)),
        call("Torch.last.0.forward", tensor(1)),
    )
    assert rows(target, golden) == [
        (None, "Torch.first.0.forward.output.0", "the target has no such call"),
        ("Torch.a.0.forward.output.0", "Torch.a.0.forward.output.0", ""),
        (None, "Torch.a.0.forward.output.1", "this call has no such place in the target"),
        (None, "Torch.last.0.forward.output.0", "the target has no such call"),
        ("Torch.extra.0.forward.output.0", None, "the golden run has no such call"),
    ]
    (comparison,) = compare(target, golden)
    assert [finding.result for finding in comparison.findings] == [
        "Unmatched", "", "Unmatched", "Unmatched", "Unmatched"
    ]  # fmt: skip


def test_no_advice_is_a_pass_where_nothing_could_be_compared(tmp_path: Path) -> None:
    same = tensor(1)
    target = made(tmp_path / "t", call("Torch.a.0.forward", same), call("Torch.b.0.forward", same))
    advices = []
    for other in ("b", "c"):
        golden = made(tmp_path / other, call(f"Torch.{other}.0.forward", same))
        (comparison,) = compare(target, golden)
        advices.append(advise(comparison.findings).text)
    assert advices == [FINE, "No data could be compared: the column Err_message says why of each."]


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        (tensor(1), tensor(1, (3, 2)), "the shapes differ: [2, 3] and [3, 2]"),
        (tensor(1), tensor(1, dtype="torch.int64"), "the dtypes differ: torch.float32 and torch.int64"),
        (tensor(1), tensor(1, dtype="torch.bfloat16"), ""),
        (tensor(1), None, "one side is None"),
        (None, None, ""),
        (tensor(1), Leaf("int", 3), "one side is a tensor, the other is not"),
        (Leaf("float", 1.0), Leaf("float", 2.0), ""),
    ],
)
def test_what_cannot_be_measured_says_why(
    tmp_path: Path, ours: Leaf | None, theirs: Leaf | None, reason: str
) -> None:
    target = made(tmp_path / "t", call("Torch.a.0.forward", ours))
    golden = made(tmp_path / "g", call("Torch.a.0.forward", theirs))
    name = "Torch.a.0.forward.output.0"
    assert rows(target, golden) == [(name, name, reason)]


@pytest.mark.spec("K015", "CLI")
def test_fuzzy_matches_calls_whose_counts_differ(tmp_path: Path) -> None:
    """The target has one more call, of another shape; without -f the counts must be equal."""
    target = made(
        tmp_path / "t",
        call("Torch.a.0.forward", tensor(5, (7,))),
        call("Torch.a.1.forward", tensor(1)),
        call("Torch.a.2.forward", tensor(2, (4,))),
    )
    golden = made(
        tmp_path / "g",
        call("Torch.a.0.forward", tensor(1)),
        call("Torch.a.1.forward", tensor(2, (4,))),
    )
    assert rows(target, golden, fuzzy=True) == [
        ("Torch.a.0.forward.output.0", None, "the golden run has no such call"),
        ("Torch.a.1.forward.output.0", "Torch.a.0.forward.output.0", ""),
        ("Torch.a.2.forward.output.0", "Torch.a.1.forward.output.0", ""),
    ]
    reasons = [reason for *_, reason in rows(target, golden, as_specified=True)]
    assert reasons[0].startswith("the shapes differ") and reasons[2] == "the golden run has no such call"


def test_steps_and_ranks_of_the_same_number_are_compared(tmp_path: Path) -> None:
    for name, ranks in (("t", (0, 1)), ("g", (1, 2))):
        for rank in ranks:
            made(tmp_path / name, call("Torch.a.0.forward", tensor(rank)), rank=rank)
    (comparison,) = compare(tmp_path / "t", tmp_path / "g")
    assert (comparison.target.rank, comparison.golden.rank) == (1, 1)


def test_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    for name, ranks in (("t", (0, 1)), ("g", (2, 3))):
        for rank in ranks:
            made(tmp_path / name, call("Torch.a.0.forward", tensor(rank)), rank=rank)
    with pytest.raises(RecordingError, match="no step and rank in common"):
        compare(tmp_path / "t", tmp_path / "g")


# --- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    target = made(tmp_path / "t", call("Torch.a.0.forward", tensor(9), inputs=(tensor(1),)))
    golden = made(tmp_path / "g", call("Torch.a.0.forward", tensor(1), inputs=(tensor(1),)))
    return target, golden


@pytest.mark.spec("K010", "CLI")
@pytest.mark.spec("K011", "CLI")
@pytest.mark.spec("K054", "CLI")
def test_a_table_and_an_advice(
    tmp_path: Path,
    runs: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *map(str, runs)]) == 0
    files = sorted(path.name for path in (tmp_path / "output").iterdir())
    kinds = [(name.partition("_2")[0], name.rpartition(".")[2]) for name in files]
    assert kinds == [
        ("advisor", "txt"), ("compare_result", "html"), ("compare_result", "xlsx"), ("next_config", "json")
    ]  # fmt: skip
    sheet = openpyxl.load_workbook(tmp_path / "output" / files[2]).active
    assert sheet is not None
    table = [[cell.value for cell in row] for row in sheet.iter_rows()]
    assert table[0][:2] == ["NPU Name", "Bench Name"]
    assert [row[0] for row in table[1:]] == ["Torch.a.0.forward.input.0", "Torch.a.0.forward.output.0"]
    assert table[2][table[0].index("Result")] == "Warning"
    advice = (tmp_path / "output" / files[0]).read_text()
    assert advice.startswith("Line: 1\nSuspect Nodes: Torch.a.0.forward.output.0\nExpert Advice: ")
    screen = capsys.readouterr().out
    assert "The specification's fixed rules: " in screen and files[0] in screen


@pytest.mark.spec("K008", "CLI")
@pytest.mark.spec("K029", "CLI")
@pytest.mark.spec("K031", "CLI")
@pytest.mark.spec("K032", "CLI")
def test_a_compare_json_names_both(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    paths = {
        key: str(run / "step0/rank/dump.json")
        for key, run in zip(("npu_path", "bench_path"), runs, strict=True)
    }
    file = tmp_path / "compare.json"
    stack = runs[0] / "stacks.json"
    (runs[0] / "step0/rank/stack.json").rename(stack)
    file.write_text(json.dumps({**paths, "stack_path": str(stack), "is_print_compare_log": True}))
    words = ["-f", "pytorch", "compare", "-i", str(file), "-o", str(tmp_path / "out"), "-s", "-c", "--csv"]
    assert main(words) == 0
    (result,) = (tmp_path / "out").iterdir()
    lines = result.read_text().splitlines()
    assert "NPU_Stack_Info" in lines[0]
    assert "File net.py, line 1" in lines[1]


@pytest.mark.spec("K009", "CLI")
@pytest.mark.parametrize(
    ("content", "words", "sentence"),
    [
        (None, [], "Nothing to compare: give TARGET and GOLDEN, or -i compare.json."),
        ('{"npu_path": "x"}', ["-i", "FILE"], "'bench_path' is missing"),
        ('{"npu_path": 3, "bench_path": "y"}', ["-i", "FILE"], "'npu_path' is 3; it must be a text."),
        ('{"npu_paths": "x"}', ["-i", "FILE"], "'npu_paths' is not a key of compare.json"),
        ('{"npu_path": "x",}', ["-i", "FILE"], "line 1"),
        ('{"npu_path": "/no/a", "bench_path": "/no/b"}', ["-i", "FILE"], "/no/a holds no recording"),
        (None, ["-i", "/no/compare.json"], "does not exist"),
    ],
)
def test_input_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: list[str], sentence: str
) -> None:
    file = tmp_path / "compare.json"
    if content is not None:
        file.write_text(content)
    given = [str(file) if word == "FILE" else word for word in words]
    assert main(["compare", *given, "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.splitlines()) == 1
