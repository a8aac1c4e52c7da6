"""The command line: what each command says, its exit codes, and how little it loads to say it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from msprobe import __version__
from msprobe.cli import recover, show
from msprobe.cli.main import main
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Frame, Header, Leaf, Record, Stack
from msprobe.store.run import Run
from msprobe.store.tensor_file import TensorData

TENSOR = Leaf("torch.Tensor", dtype="torch.float32", shape=(2,), stats=Statistics(1.0, 0.0, 0.5, 1.0))


def made(folder: Path, *, steps: int = 1, close: bool = True, left_out: dict[str, int] | None = None) -> Path:
    """A run of the tensor task; not closed it is as a killed process leaves it."""
    run = Run(folder)
    for step in range(steps):
        writer = run.record(step, None, Header("tensor", "mix", "pytorch"), suffix=".pt", with_tensors=True)
        assert writer.tensors is not None
        writer.tensors.put("a", TensorData(b"\0" * 8, "float32", (2,)))
        writer.tensors.link("b", "a")
        for name in ("Torch.f.0.forward", "Torch.f.1.forward", "Module.a.B.forward.0", "Torch.f.0.backward"):
            leaf = TENSOR._replace(data_name="a.pt" if "0" in name else "b.pt")
            writer.append(Record(CallName.parse(name), {"output": [leaf]}))
        writer.tensors.drain()
        if close:
            writer.close(left_out)
    run.close()
    return folder


def started(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "msprobe", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


# --- the program --------------------------------------------------------------------------------------------


def test_version() -> None:
    result = started("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"msprobe {__version__}\n", "")


def test_the_installed_command_is_the_same() -> None:
    command = Path(sys.executable).with_name("msprobe")
    if not command.exists():
        pytest.skip("msprobe is not installed in this environment")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, f"msprobe {__version__}\n")


@pytest.mark.parametrize(
    "words", [["--help"], ["-h"], ["recover", "--help"], ["show", "-h"], ["-f", "pytorch", "show", "-h"]]
)
def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    assert "example" in capsys.readouterr().out


def test_help_and_version_load_nothing_heavy() -> None:
    """That is what makes them answer at once."""
    code = (
        "import sys\nfrom msprobe.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.splitlines()[-1].split())
    assert loaded & {"numpy", "pydantic", "torch", "mindspore", "yaml", "isal", "xxhash"} == set()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["-f", "jax", "show", "x"], "invalid choice: 'jax'"),
        (["show"], "required: PATH"),
        (["recover"], "required: DIR"),
    ],
)
def test_wrong_usage_ends_with_2(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert (end.value.code, sentence in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("framework", [["-f", "pytorch"], ["--framework", "pytorch"], []])
def test_the_framework_stands_before_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], framework: list[str]
) -> None:
    made(tmp_path)
    assert main([*framework, "show", str(tmp_path)]) == 0
    assert main(["-f", "mindspore", "show", str(tmp_path)]) == 2
    assert "was recorded with pytorch, not with mindspore" in capsys.readouterr().err


def test_an_input_error_is_one_sentence(tmp_path: Path) -> None:
    result = started("show", str(tmp_path / "gone"))
    assert (result.returncode, result.stdout, result.stderr) == (
        2,
        "",
        f"msprobe: {tmp_path}/gone holds no recording: there is nothing of this name.\n",
    )


def test_an_unexpected_error_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(arguments: Any) -> int:
        raise KeyError("surprise")

    monkeypatch.setattr(show, "run", broken)
    monkeypatch.delenv("MSPROBE_DEBUG", raising=False)
    assert main(["show", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "msprobe: unexpected KeyError: 'surprise'. Set MSPROBE_DEBUG=1 to see where, and please report it.\n"
    )
    monkeypatch.setenv("MSPROBE_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["show", str(tmp_path)])


def test_an_interrupt_ends_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(recover, "run", interrupted)
    assert main(["recover", str(tmp_path)]) == 130


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    made(tmp_path, steps=200)
    command = f"{sys.executable} -m msprobe show {tmp_path} | head -n 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode in (0, 141), result.stderr) == (True, "")
    assert result.stdout.startswith(str(tmp_path))


def test_names_that_are_no_text_are_shown(tmp_path: Path) -> None:
    folder = made(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))
    result = subprocess.run(
        [sys.executable, "-m", "msprobe", "show", folder], capture_output=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert rb"\udcff: pytorch, level mix, task tensor" in result.stdout


# --- recover ------------------------------------------------------------------------------------------------


@pytest.mark.spec("P18", "PT")
def test_recover_finishes_what_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, steps=2, close=False)
    folder = tmp_path / "step0/rank"
    (folder / "dump_tensor_data/b.pt").unlink()
    assert main(["recover", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/step0/rank: recovered, 4 records; 1 tensor file not written before the end",
        f"{tmp_path}/step1/rank: recovered, 4 records",
        "2 recordings: 2 recovered.",
    ]
    assert json.loads((folder / "dump.json").read_text())["missing_files"] == ["b.pt"]
    assert main(["recover", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["2 recordings: 2 complete already."]


def test_recover_tells_each_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "run", steps=3, close=False)
    with (tmp_path / "run/step0/rank/journal.log").open("ab") as journal:
        journal.write(b"R\ttorn")
    (tmp_path / "run/step1/rank/journal.log").write_bytes(b"")
    assert main(["recover", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/run/step0/rank: recovered, 4 records; 1 damaged line left out",
        f"{tmp_path}/run/step1/rank: cannot be recovered: {tmp_path}/run/step1/rank/journal.log has no "
        "header line, so nothing of this recording can be read.",
        f"{tmp_path}/run/step2/rank: recovered, 4 records",
        "3 recordings: 2 recovered, 1 damaged.",
    ]


def test_recover_leaves_a_running_process_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path)
    writer = run.record(0, 3, Header("statistics", "L1", "pytorch"), suffix=".pt", with_tensors=False)
    assert main(["recover", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/step0/rank3: left alone, process {os.getpid()} on {os.uname().nodename} is still "
        "recording it",
        "1 recording: 1 still being recorded.",
    ]
    writer.close()
    run.close()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gone", "is not a folder; give the dump_path of a recording."),
        ("file", "is not a folder; give the dump_path of a recording."),
        ("", "holds no recording; give the folder that has step0, step1, ... in it."),
    ],
)
def test_recover_without_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, sentence: str
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["recover", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err == f"msprobe: {tmp_path / name} {sentence}\n"


# --- show ---------------------------------------------------------------------------------------------------


def test_show_tells_what_was_recorded_and_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "run", steps=2, left_out={"outside the scope": 5})
    assert main(["show", str(run)]) == 0
    size = sum(
        path.lstat().st_blocks * 512
        for path in (run / "step0").rglob("*")
        if path.name != "b.pt" and path.is_file()
    )
    again = sum(path.lstat().st_blocks * 512 for path in (run / "step1").rglob("*.json"))  # tensors are links
    assert capsys.readouterr().out.splitlines() == [
        f"{run}: pytorch, level mix, task tensor",
        "",
        "  step  rank  forward  backward  tensor files  on disk",
        f"     0     -        3         1             2  {size / 1000:.1f} kB",
        f"     1     -        3         1             2  {again / 1000:.1f} kB",
        "",
        f"  total   2 recordings, 8 records, {(size + again) / 1000:.1f} kB on disk",
        "  calls   Torch 4, Module 2",
        f"  where   {run}/step0/rank: construct.json, dump.json, dump_tensor_data/, stack.json",
        "  tensors 4 files, of which 3 are links to the others",
        "  note    step 0, rank -: 5 calls left out: outside the scope",
        "  note    step 1, rank -: 5 calls left out: outside the scope",
    ]


def test_show_tells_of_the_calls_whose_names_begin_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The places of each call and its stack; a control character steers no terminal; a wrong name is told."""
    run = Run(tmp_path)
    writer = run.record(0, None, Header("statistics", "L1", "pytorch"), suffix=".pt", with_tensors=False)
    inner, outer = Frame("net.py", "7", "forward", "x = f(x)\x1b"), Frame("train.py", "3", "<module>", None)
    fields = {"input_args": [TENSOR, Leaf("int", 3), Leaf("str", "mean")], "output": [None]}
    for name in ("Torch.f.0.forward", "Torch.g.0.forward"):
        writer.append(Record(CallName.parse(name), fields, Stack(0, (str(inner), str(outer)))))
    writer.close()
    run.close()
    assert main(["show", str(tmp_path), "Torch.f"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Statistic Info:",
        "  [Torch.f.0.forward.input.0][dtype: torch.float32][shape: [2]][max: 1.0][min: 0.0][mean: 0.5]",
        "  [Torch.f.0.forward.input.1][dtype: <class 'int'>][shape: []][max: 3][min: 3][mean: 3]",
        "  [Torch.f.0.forward.input.2][dtype: <class 'str'>][shape: []][value: mean]",
        "",
        "Trace back(Torch.f.0.forward):",
        '  File "train.py", line 3, in <module>',
        '  File "net.py", line 7, in forward',
        "    x = f(x)\\x1b",
    ]
    assert main(["show", str(tmp_path), "Torch.h"]) == 2
    assert f"{tmp_path} has no call whose name begins with 'Torch.h'." in capsys.readouterr().err


def test_show_names_the_steps_that_have_a_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, steps=2)
    assert main(["show", str(tmp_path), "Torch.f.1"]) == 0
    told = capsys.readouterr().out
    assert [f"{tmp_path}/step{step}/rank:" in told for step in (0, 1)] == [True, True]


def test_show_tells_what_a_reader_should_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path)
    first = run.record(0, 1, Header("statistics", "L1", "pytorch"), suffix=".pt", with_tensors=False)
    first.append(Record(CallName.parse("Torch.f.0.forward"), {"exception": "ValueError: no"}))
    first.append(Record(CallName.parse("Torch.f.1.forward"), {"input_args": [Leaf("int", 10**5000)]}))
    first.close()
    run.record(1, 1, Header("statistics", "L1", "pytorch"), suffix=".pt", with_tensors=False)
    run.close()
    run = Run(tmp_path)
    run.record(0, 1, Header("statistics", "L1", "pytorch"), suffix=".pt", with_tensors=False).close()
    run.close()
    (earlier,) = (tmp_path / "previous").iterdir()
    assert (main(["show", str(tmp_path)]), main(["recover", str(tmp_path)])) == (0, 0)
    assert main(["show", str(earlier)]) == 0
    notes = [line[10:] for line in capsys.readouterr().out.splitlines() if line.startswith("  note")]
    assert notes == [
        f"an earlier run is in {earlier}",
        "step 0, rank 1: 1 record could not be written",
        "step 0, rank 1: 1 call raised an exception",
        "step 0, rank 1: errors while recording are in dump_error_info.log",
        "step 1, rank 1: recovered after its process died",
    ]


def test_show_reads_an_unfinished_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, close=False)
    (tmp_path / "step0/rank/dump_tensor_data/a.pt").unlink()
    assert main(["show", str(tmp_path / "step0")]) == 0
    notes = [line[10:] for line in capsys.readouterr().out.splitlines() if line.startswith("  note")]
    assert notes == [
        "step 0, rank -: unfinished; if its process died, `msprobe recover` finishes it",
        "step 0, rank -: 1 tensor file missing",
    ]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123.5 kB"), (5 * 10**12, "5.0 TB")],
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert show._bytes(size) == text
