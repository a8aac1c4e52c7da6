"""The traceability of the specification: the rows, the marks, what counts as shown, and what is printed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import spec
import spec_rows
from spec_rows import Row, SpecError

pytest_plugins = ["pytester"]

MATRIX = spec_rows.ROOT.parent / "shared" / "spec" / "MATRIX.md"

ROWS = {
    "C001": Row("C001", "000", ("PT", "MSd", "MSs"), "Y", "three environments"),
    "C002": Row("C002", "000", ("PT",), "Y*", "one environment"),
    "C003": Row("C003", "000", ("PT",), "N", "needs a device"),
    "C004": Row("C004", "000", ("PT",), "D", "advice"),
    "R01": Row("R01", "rulings", ("any",), "Y", "a ruling"),
}


# --- the matrix -----------------------------------------------------------------------------------


def test_matrix_is_read() -> None:
    text = """
| id | doc | env | requirement | exact names / defaults / rule | CPU | hardware note |
|---|---|---|---|---|---|---|
| C001 | 000 | PT,MSd | drives `a` | rule | Y* | H3 |
| C002 | 000 | ALL | everywhere | - | D |  |
| K001 | 004 | ALL | a command | - | N | H1 |
| X01 | levels | 000 | 003 | 003 |
| R01 | C015, 003:48 | a ruling |
| P20 | CLI | columns | Y |
"""
    assert spec_rows.import_matrix(text) == [
        Row("C001", "000", ("PT", "MSd"), "Y*", "drives `a`"),
        Row("C002", "000", ("PT", "MSd", "MSs"), "D", "everywhere"),
        Row("K001", "004", ("CLI",), "N", "a command"),
        Row("R01", "rulings", ("any",), "Y", "a ruling"),
        Row("P20", "PyTorch", ("CLI",), "Y", "columns"),
    ]


@pytest.mark.parametrize("text", ["", "| R01 | a | b |\n| R01 | a | b |\n"])
def test_text_without_a_sound_matrix_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is this really MATRIX.md"):
        spec_rows.import_matrix(text)


def test_rows_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(spec_rows.write_rows(ROWS.values()), encoding="utf-8")
    assert spec_rows.read_rows(path) == ROWS


def test_every_row_of_the_repository_is_usable() -> None:
    rows = spec_rows.read_rows()
    letters = {letter: sum(row_id[0] == letter for row_id in rows) for letter in spec_rows.LETTERS}
    assert letters == {"C": 129, "L": 104, "A": 38, "M": 70, "K": 54, "R": 30, "P": 24}
    known = {*spec_rows.ENVIRONMENTS, spec_rows.ANY}
    odd = [
        r.id for r in rows.values() if not set(r.environments) <= known or r.cpu not in ("Y", "Y*", "N", "D")
    ]
    assert odd == []


@pytest.mark.skipif(not MATRIX.exists(), reason="the matrix itself does not lie beside this clone")
def test_rows_are_those_of_the_matrix() -> None:
    rows = spec_rows.import_matrix(MATRIX.read_text(encoding="utf-8"))
    assert spec_rows.ROWS_FILE.read_text(encoding="utf-8") == spec_rows.write_rows(rows)


# --- marks and restrictions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "meaning"),
    [
        (("C001", "PT"), ("C001", ("PT",))),
        (("C001", "PT", "MSs"), ("C001", ("PT", "MSs"))),
        (("C001", "ALL"), ("C001", ("PT", "MSd", "MSs"))),
        (("R01", "CLI"), ("R01", ("CLI",))),
    ],
)
def test_mark(arguments: tuple[str, ...], meaning: tuple[str, tuple[str, ...]]) -> None:
    assert spec_rows.check_mark(ROWS, arguments) == meaning


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("C001",), "needs a row and at least one environment"),
        ((), "needs a row and at least one environment"),
        (("C001", 3), "needs a row and at least one environment"),
        (("C999", "PT"), "C999 is no row of the matrix"),
        (("C001", "PyTorch"), "PyTorch is no environment; there are PT, MSd, MSs, MSA, LEG, CLI"),
        (("C002", "MSd"), "C002 is a row of PT, not of MSd"),
        (("R01", "ALL"), "ALL is no environment"),
    ],
)
def test_wrong_mark(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_rows.check_mark(ROWS, arguments)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", ["C001", "C002", "C003", "C004", "R01"]),
        ("C002", ["C002"]),
        ("C002-C003, R01", ["C002", "C003", "R01"]),
        ("R01,C001-004", ["C001", "C002", "C003", "C004", "R01"]),
    ],
)
def test_restriction(text: str, ids: list[str]) -> None:
    assert [row.id for row in spec_rows.select_rows(ROWS, text)] == ids


@pytest.mark.parametrize("text", ["C009", "C001-C009", "C003-C001", "C001-R01", "all", "C001,,C002", "X01"])
def test_wrong_restriction(text: str) -> None:
    with pytest.raises(SpecError, match="--rows: "):
        spec_rows.select_rows(ROWS, text)


# --- what counts as shown -------------------------------------------------------------------------


def ran(outcome: str, row: str, *environments: str) -> dict[str, Any]:
    return {"test": f"{outcome}-{'-'.join(environments)}", "outcome": outcome, "shows": [[row, environments]]}


@pytest.mark.parametrize(
    ("row", "tests", "chosen", "state"),
    [
        ("C001", [], (), "missing"),
        ("C001", [ran("passed", "C001", "PT")], (), "partly"),
        ("C001", [ran("passed", "C001", "PT")], ("PT", "CLI"), "shown"),
        ("C001", [ran("passed", "C001", "PT"), ran("passed", "C001", "MSd", "MSs")], (), "shown"),
        ("C002", [ran("skipped", "C002", "PT")], (), "missing"),
        ("C002", [ran("xfailed", "C002", "PT")], (), "missing"),
        ("C002", [ran("passed", "C001", "PT")], (), "missing"),
        ("C002", [ran("passed", "C002", "PT"), ran("skipped", "C002", "PT")], (), "shown"),
        ("C002", [ran("passed", "C002", "PT"), ran("failed", "C002", "PT")], (), "failing"),
        ("C002", [ran("error", "C002", "PT")], (), "failing"),
        ("C001", [ran("passed", "C001", "PT"), ran("failed", "C001", "MSd")], ("PT",), "shown"),
        ("C003", [], (), "missing"),
        ("C003", [ran("passed", "C003", "PT")], (), "shown"),
        ("C004", [], (), "bare"),
        ("C004", [ran("passed", "C004", "PT")], (), "shown"),
        ("R01", [], (), "missing"),
        ("R01", [ran("passed", "R01", "MSs")], (), "shown"),
        ("R01", [ran("passed", "R01", "MSs")], ("PT",), "shown"),
    ],
)
def test_state_of_a_row(
    row: str, tests: list[Mapping[str, Any]], chosen: tuple[str, ...], state: str
) -> None:
    assert [one.state for one in spec.assess([ROWS[row]], tests, chosen)] == [state]


def test_row_outside_the_chosen_environments_is_not_due() -> None:
    assert [one.row.id for one in spec.assess(ROWS.values(), [], ("MSd",))] == ["C001", "R01"]


def test_only_advice_may_be_bare() -> None:
    assert [one.row.id for one in spec.unmet(spec.assess(ROWS.values(), []))] == [
        "C001",
        "C002",
        "C003",
        "R01",
    ]


# --- what is printed ------------------------------------------------------------------------------


def test_report_as_printed() -> None:
    tests = [ran("passed", "C001", "PT"), ran("passed", "R01", "CLI")]
    counts = {"passed": 2, "skipped": 1}
    report = {"runs": [{"finished": "today", "arguments": ["-q"], "counts": counts}], "tests": tests}
    text = spec.render(spec.assess(ROWS.values(), tests), report, spec.Printer())
    assert (
        text
        == """\
today  2 passed, 1 skipped  (pytest -q)

          rows    shown   partly  missing  failing     bare
C            4        -        1        2        -        1
R            1        1        -        -        -        -
all          5        1        1        2        -        1

Rows that run on a CPU (Y, Y*)
  shown 1
    R01
  partly 1
    C001  Y   +PT -MSd -MSs   three environments
  missing 1
    C002  Y*  -PT             one environment

Rows that need a device (N): validation and refusal
  missing 1
    C003  N   -PT             needs a device

Rows of advice (D): may be bare
  bare 1
    C004"""
    )


def test_verbose_report_names_the_tests() -> None:
    tests = [ran("passed", "C001", "PT", "MSd"), ran("failed", "C002", "PT")]
    rows = [ROWS["C001"], ROWS["C002"]]
    text = spec.render(spec.assess(rows, tests), {"runs": []}, spec.Printer(verbose=True))
    assert text.splitlines()[-6:] == [
        "  partly 1",
        "    C001  Y   +PT +MSd -MSs   three environments",
        "          PT,MSd  passed-PT-MSd",
        "  failing 1",
        "    C002  Y*  -PT             one environment",
        "          failed  failed-PT",
    ]


@pytest.mark.parametrize(
    ("ids", "joined"),
    [
        ([], []),
        (["C001"], ["C001"]),
        (["C001", "C002", "C003", "C007", "R08", "R09"], ["C001-C003", "C007", "R08-R09"]),
        (["C009", "C010", "L011"], ["C009-C010", "L011"]),
    ],
)
def test_ranges(ids: list[str], joined: list[str]) -> None:
    assert spec.ranges(ids) == joined


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], 0),
        (["--rows", "C016"], 0),
        (["--rows", "C016,C025", "--env", "PT"], 0),
        (["--rows", "C016,C020"], 1),
        (["--rows", "C018"], 1),
        (["--rows", "C001", "--env", "PT"], 0),
        (["--rows", "C001"], 1),
        (["--rows", "C016", "--env", "MSd"], 1),
        (["--env", "PT"], 1),
    ],
)
def test_exit_status(tmp_path: Path, arguments: list[str], status: int) -> None:
    report = tmp_path / "spec.json"
    tests = [ran("passed", "C016", "PT"), ran("passed", "C001", "PT")]
    report.write_text(json.dumps({"runs": [], "tests": tests}), encoding="utf-8")
    assert spec.run(["--report", str(report), *arguments]) == status


def test_reports_of_several_runs_are_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row of three environments is shown by two runs together, and fails if it failed in one."""
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for environments, file in zip((("PT",), ("MSd", "MSs")), files, strict=True):
        run = {"finished": "today", "arguments": [file.stem], "counts": {"passed": 1}}
        file.write_text(json.dumps({"runs": [run], "tests": [ran("passed", "C001", *environments)]}))
    words = ["--rows", "C001", "--report", *map(str, files)]
    assert spec.run(words) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"today  1 passed  (pytest {name})" for name in ("one", "two")
    ]
    report = json.loads(files[1].read_text())
    report["tests"].append(ran("failed", "C001", "PT"))
    files[1].write_text(json.dumps(report))
    assert spec.run(words) == 1


def test_without_one_of_the_reports_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that broke off leaves no report; what the others showed is then not all there is to say."""
    finished = tmp_path / "finished.json"
    finished.write_text(json.dumps({"runs": [], "tests": [ran("passed", "C016", "PT")]}))
    with pytest.raises(SpecError, match="no result of a finished test run"):
        spec.run(["--rows", "C016", "--report", str(finished), str(tmp_path / "none.json")])
    assert capsys.readouterr().out == ""


# --- the plugin -----------------------------------------------------------------------------------

OUTCOMES = """
import pytest

@pytest.fixture
def broken_teardown():
    yield
    raise RuntimeError

@pytest.mark.spec("C069", "PT", "MSd")
@pytest.mark.spec("R02", "PT")
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.spec("C002", "ALL"))])
def test_passes(x): pass

@pytest.mark.spec("C001", "PT")
def test_fails(): assert False

@pytest.mark.spec("C001", "PT")
def test_errs(broken_teardown): pass

@pytest.mark.spec("C001", "PT")
@pytest.mark.skip
def test_is_skipped(): pass

@pytest.mark.spec("C001", "PT")
def test_skips(): pytest.skip()

@pytest.mark.spec("C001", "PT")
@pytest.mark.xfail
def test_xfails(): assert False

@pytest.mark.spec("C001", "PT")
@pytest.mark.xfail(strict=False)
def test_passes_against_expectation(): pass

def test_without_mark(): pass
"""


def run_plugin(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=source)
    return pytester.runpytest_inprocess("-p", "spec_marks", "--spec-report=out/spec.json", *arguments)


def outcomes(pytester: pytest.Pytester) -> list[tuple[str, str, Any]]:
    report = json.loads((pytester.path / "out" / "spec.json").read_text(encoding="utf-8"))
    return [(test["test"].partition("::")[2], test["outcome"], test["shows"]) for test in report["tests"]]


def test_report_holds_what_ran(pytester: pytest.Pytester) -> None:
    run_plugin(pytester, OUTCOMES)
    both = [["R02", ["PT"]], ["C069", ["PT", "MSd"]]]
    shows = [["C001", ["PT"]]]
    assert outcomes(pytester) == [
        ("test_passes[1]", "passed", both),
        ("test_passes[2]", "passed", [*both, ["C002", ["PT", "MSd", "MSs"]]]),
        ("test_fails", "failed", shows),
        ("test_errs", "error", shows),
        ("test_is_skipped", "skipped", shows),
        ("test_skips", "skipped", shows),
        ("test_xfails", "xfailed", shows),
        ("test_passes_against_expectation", "xfailed", shows),
    ]


MARKED = 'import pytest\n@pytest.mark.spec("{row}", "{environment}")\ndef test_{row}(): pass\n'


@pytest.mark.parametrize(("append", "rows"), [(True, ["test_C001", "test_C002"]), (False, ["test_C002"])])
def test_append_keeps_earlier_runs(pytester: pytest.Pytester, append: bool, rows: list[str]) -> None:
    run_plugin(pytester, MARKED.format(row="C001", environment="PT"))
    run_plugin(pytester, MARKED.format(row="C002", environment="PT"), *(["--spec-append"] if append else []))
    assert [test for test, _, _ in outcomes(pytester)] == rows


@pytest.mark.parametrize(
    ("row", "environment", "message"),
    [
        ("C999", "PT", "*test_it.py::test_C999: spec: C999 is no row of the matrix."),
        ("C001", "TF", "*test_it.py::test_C001: spec: TF is no environment; there are *"),
        ("C010", "PT", "*test_it.py::test_C010: spec: C010 is a row of MSs, not of PT."),
    ],
)
def test_wrong_mark_ends_the_run(pytester: pytest.Pytester, row: str, environment: str, message: str) -> None:
    result = run_plugin(pytester, MARKED.format(row=row, environment=environment))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_unfinished_run_leaves_no_report(pytester: pytest.Pytester) -> None:
    run_plugin(pytester, MARKED.format(row="C001", environment="PT"))
    result = run_plugin(pytester, "raise RuntimeError")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert not (pytester.path / "out" / "spec.json").exists()
