"""The doors of MSAdapter training: recognising it, start, stop, step, save, and what is on disk when."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mindtorch", reason="MSAdapter is not installed here")
from msa_case import Net, Probe, Wide, made, ms, nn, numbered, probe, torch, training

import msprobe
from msprobe.cli.main import main
from msprobe.errors import UsageError
from msprobe.mindspore import PrecisionDebugger

__all__ = ["probe"]


def script(folder: Path, text: str) -> str:
    """What a process of its own says last."""
    (folder / "script.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1] + "\n" + done.stderr


ORDERS = {
    "before": ("import mindtorch, torch", "", "mindtorch", False),
    "after": ("", "import mindtorch, torch", "mindspore", True),
}


@pytest.mark.spec("A001", "MSA")
@pytest.mark.parametrize("order", ORDERS)
def test_torch_is_recognised_if_it_was_imported_before_msprobe(order: str, tmp_path: Path) -> None:
    first, last, framework, is_told = ORDERS[order]
    said = script(
        tmp_path,
        f"""
        import json
        {first}
        from msprobe.mindspore import PrecisionDebugger
        {last}
        debugger = PrecisionDebugger(task="statistics", dump_path="dump", level="L1")
        debugger.start()
        torch.abs(torch.tensor([1.0]))
        debugger.stop()
        debugger.step()
        print(json.load(open("dump/step0/rank/dump.json"))["framework"])
        """,
    )
    assert said.splitlines()[0] == framework
    assert ("Import torch before msprobe" in said) == is_told


@pytest.mark.parametrize(
    "function, parameters",
    [
        pytest.param(function, parameters, marks=pytest.mark.spec(row, "MSA"))
        for function, parameters, row in (
            (PrecisionDebugger, ["config_path", "task", "dump_path", "level", "step"], "A006"),
            (PrecisionDebugger.stop, [], "A013"),
            (PrecisionDebugger.step, [], "A016"),
            (PrecisionDebugger.forward_backward_dump_end, [], "A017"),
        )
    ],
)
def test_prototypes(function: Any, parameters: list[str]) -> None:
    found = inspect.signature(function).parameters.values()
    assert [(parameter.name, parameter.default) for parameter in found] == [
        (name, None) for name in parameters
    ]


@pytest.mark.spec("A009", "MSA")
@pytest.mark.spec("A018", "MSA")
@pytest.mark.spec("A021", "MSA")
def test_prototypes_with_defaults() -> None:
    assert inspect.signature(PrecisionDebugger.start).parameters["model"].default is None
    saves = inspect.signature(PrecisionDebugger.save).parameters.values()
    nothing = inspect.Parameter.empty
    assert [(one.name, one.default) for one in saves] == [
        ("variable", nothing),
        ("name", nothing),
        ("save_backward", True),
    ]


@pytest.mark.spec("A007", "MSA")
def test_without_a_file_the_packaged_configuration_counts(probe: Probe, tmp_path: Path) -> None:
    PrecisionDebugger(dump_path=str(tmp_path / "dump"))
    config = PrecisionDebugger.the.get().config
    packaged = json.loads((Path(msprobe.__file__).parent / "config.json").read_text())
    assert (config.task, config.level) == (packaged["task"], packaged["level"])


@pytest.mark.spec("A007", "MSA")
@pytest.mark.spec("A008", "MSA")
def test_arguments_win_over_the_file(probe: Probe, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"task": "statistics", "level": "mix", "dump_path": "/nowhere", "step": [7]}')
    dump = str(tmp_path / "dump")
    debugger = PrecisionDebugger(str(path), task="tensor", level="L1", dump_path=dump, step=[1])
    for _ in range(3):
        debugger.start()
        torch.abs(made(2))
        debugger.stop()
        debugger.step()
    assert [folder.name for folder in (tmp_path / "dump").glob("step*")] == ["step1"]
    assert (probe.head(1)["task"], probe.head(1)["level"]) == ("tensor", "L1")
    assert probe.files(1) == {f"Torch.abs.0.forward.{slot}.0.npy" for slot in ("input", "output")}


@pytest.mark.spec("A010", "MSA")
@pytest.mark.spec("A011", "MSA")
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("model", [None, 3, [], [Net], ms.nn.ReLU()], ids=str)
def test_levels_of_modules_need_modules(model: Any, level: str, probe: Probe) -> None:
    with pytest.raises(UsageError, match=r"start\(\).*(torch.nn.Module|needs the model)"):
        probe.debugger(level).start(model)


@pytest.mark.spec("A010", "MSA")
def test_the_given_module_is_not_recorded_and_its_children_are(probe: Probe) -> None:
    net = numbered(Wide())
    probe.record(net, made(2, 3, 8), level="L0", model=net.tail)
    forwards = [name for name in probe.data() if "forward.0" in name]
    assert forwards == [f"Module.{name}.forward.0" for name in ("0.Linear", "1.ReLU", "2.Linear")]


@pytest.mark.spec("A009", "MSA")
@pytest.mark.spec("A013", "MSA")
def test_what_runs_between_start_and_stop_is_recorded(probe: Probe) -> None:
    debugger, x = probe.debugger("L1"), made(3)
    torch.abs(x)
    debugger.start()
    ms.grad(lambda x: torch.exp(x).sum())(x)
    debugger.stop()
    torch.abs(x)
    debugger.step()
    assert list(probe.data()) == [
        "Torch.exp.0.forward",
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Torch.exp.0.backward",
    ]


@pytest.mark.spec("A014", "MSA")
@pytest.mark.spec("A017", "MSA")
@pytest.mark.parametrize("end", ["stop", "forward_backward_dump_end"])
def test_a_backward_after_stop(end: str, probe: Probe, capsys: pytest.CaptureFixture[str]) -> None:
    debugger = probe.debugger("L1")

    def forward(x: Any) -> Any:
        debugger.start()
        x = torch.abs(x)
        getattr(debugger, end)()
        return torch.exp(x).sum()

    ms.grad(forward)(made(3))
    debugger.step()
    assert list(probe.data()) == ["Torch.abs.0.forward", "Torch.abs.0.backward"]
    assert ("deprecated; call stop()" in capsys.readouterr().err) == (end != "stop")


@pytest.mark.spec("A015", "MSA")
@pytest.mark.spec("A016", "MSA")
def test_files_are_complete_after_stop_and_steps_are_counted(probe: Probe) -> None:
    debugger, net = probe.debugger("mix"), numbered(Net())
    step = training(net)
    for number in range(2):
        debugger.start(net)
        step(made(2, 8))
        assert not (probe.rank(number) / "dump.json").exists()
        debugger.stop()
        stopped = set(probe.data(number))
        debugger.step()
        finished = set(probe.data(number))
        assert stopped <= finished
        assert finished - stopped <= {name for name in finished if "parameters_grad" in name}
        assert {"Module.linear1.Linear.forward.0", "Functional.linear.0.backward"} <= stopped
    assert sorted(folder.name for folder in probe.folder.glob("step*")) == ["step0", "step1"]


SAVED: dict[str, tuple[Any, Any]] = {
    "dict": (
        {"a": 1, "b": "text"},
        {"a": {"type": "int", "value": 1}, "b": {"type": "str", "value": "text"}},
    ),
    "list": ([1, 2.5], [{"type": "int", "value": 1}, {"type": "float", "value": 2.5}]),
    "tuple": ((1, "x"), [{"type": "int", "value": 1}, {"type": "str", "value": "x"}]),
    "int": (3, {"type": "int", "value": 3}),
    "float": (2.5, {"type": "float", "value": 2.5}),
    "str": ("text", {"type": "str", "value": "text"}),
}


@pytest.mark.spec("A019", "MSA")
@pytest.mark.parametrize("kind", SAVED)
def test_what_can_be_saved(kind: str, probe: Probe) -> None:
    debugger, (variable, expected) = probe.debugger("debug"), SAVED[kind]
    debugger.save(variable, "v", save_backward=False)
    debugger.step()
    assert probe.data() == {"v.0.debug": expected}


@pytest.mark.spec("A018", "MSA")
@pytest.mark.spec("A019", "MSA")
@pytest.mark.spec("A021", "MSA")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_save(task: str, probe: Probe) -> None:
    debugger, net, x = probe.debugger("debug", task), numbered(nn.Linear(4, 4)), made(2, 4)

    def forward(x: Any) -> Any:
        hidden = net(x)
        debugger.save({"h": hidden, "n": 3}, "d")
        debugger.save([hidden], "quiet", save_backward=False)
        return (hidden * hidden).sum()

    ms.value_and_grad(forward, 0, list(net.parameters()))(x)
    debugger.step()
    data, values = probe.data(), net(x).asnumpy()
    assert list(data) == ["d.0.debug", "quiet.0.debug", "d_grad.0.debug"]
    assert (data["d.0.debug"]["n"], data["d_grad.0.debug"]["n"]) == ({"type": "int", "value": 3}, None)
    assert [data[name]["h"]["Max"] for name in ("d.0.debug", "d_grad.0.debug")] == [
        values.max(),
        (2 * values).max(),
    ]
    if task == "tensor":
        assert np.array_equal(probe.tensor("d.0.debug.h"), values)
        assert np.array_equal(probe.tensor("d_grad.0.debug.h"), 2 * values)


@pytest.mark.spec("A019", "MSA")
@pytest.mark.spec("A020", "MSA")
@pytest.mark.spec("A021", "MSA")
@pytest.mark.parametrize(
    "arguments",
    [(object(), "v"), (1, 2), (1, None), (1, "v", "yes")],
    ids=["variable", "name", "none", "backward"],
)
def test_what_save_refuses_with_a_warning(
    arguments: tuple[Any, ...], probe: Probe, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = probe.debugger("debug")
    debugger.save(*arguments)
    debugger.save(1, "good", save_backward=False)
    debugger.step()
    assert list(probe.data()) == ["good.0.debug"]
    assert "[WARNING]" in capsys.readouterr().err


@pytest.mark.spec("A037", "MSA")
def test_tensor_files_are_there_as_soon_as_the_call_ran(tmp_path: Path) -> None:
    """They are written behind training, so they may take a moment; then the process dies without stop()."""
    said = script(
        tmp_path,
        """
        import os, time
        from pathlib import Path
        import mindtorch, torch
        import torch.nn.functional as F
        from msprobe.mindspore import PrecisionDebugger

        debugger = PrecisionDebugger(task="tensor", dump_path="dump", level="L1")
        debugger.start()
        F.relu(torch.tensor([1.0, -2.0]))
        file = Path("dump/step0/rank/dump_tensor_data/Functional.relu.0.forward.output.0.npy")
        for _ in range(1000):
            if file.exists() and file.stat().st_size > 128:
                break
            time.sleep(0.01)
        print(file.exists(), Path("dump/step0/rank/dump.json").exists(), flush=True)
        os._exit(0)
        """,
    )
    assert said.splitlines()[0] == "True False"
    file = tmp_path / "dump/step0/rank/dump_tensor_data/Functional.relu.0.forward.output.0.npy"
    assert np.load(file).tolist() == [1.0, 0.0]


def test_token_range(probe: Probe) -> None:
    debugger, net, x = probe.debugger("mix"), nn.Sequential(nn.Linear(4, 4)), made(2, 4)
    debugger.start(net, token_range=[1, 2])
    for _ in range(5):
        x = net(x)
    debugger.stop()
    debugger.step()
    assert [name for name in probe.data() if "Module" in name] == [
        f"Module.0.Linear.forward.{n}" for n in (0, 1)
    ]


def test_custom_api(probe: Probe) -> None:
    own: Any = types.ModuleType("own")
    own.double = lambda x: x * 2.0
    debugger = probe.debugger("L1")
    debugger.register_custom_api(own, "double")
    debugger.start()
    ms.grad(lambda x: own.double(x))(made(2))
    debugger.stop()
    debugger.step()
    assert list(probe.data()) == ["own.double.0.forward", "own.double.0.backward"]


FILTERS = {
    "api": ("L1", {"list": ["Functional.silu"]}, {"Functional.silu.0.forward", "Functional.silu.0.backward"}),
    "module": (
        "mix",
        {"list": ["Module.act.GELU.forward.0"]},
        {"Module.act.GELU.forward.0", "Functional.gelu.0.forward"},
    ),
    "scope": (
        "L0",
        {"scope": ["Module.up.Linear.forward.0", "Module.act.GELU.forward.0"], "data_mode": ["forward"]},
        {"Module.up.Linear.forward.0", "Module.act.GELU.forward.0"},
    ),
}


@pytest.mark.parametrize("case", FILTERS)
def test_filters(case: str, probe: Probe) -> None:
    level, section, expected = FILTERS[case]
    probe.record(numbered(Wide()), made(2, 3, 8), level=level, section=section)
    assert set(probe.data()) == expected


@pytest.mark.parametrize("named", [[], ["-f", "mindspore"]], ids=["", "named"])
def test_two_runs_are_compared(named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, factor in (("golden", 1.0), ("target", 1.01)):
        (tmp_path / name).mkdir()
        probe = Probe(tmp_path / name)
        probe.close()
        net = numbered(Wide())
        net.down.weight.assign_value(torch.tensor(net.down.weight.asnumpy() * np.float32(factor)))
        probe.record(net, made(2, 3, 8), level="mix")
        probe.close()
    folders = [str(tmp_path / name / "dump") for name in ("target", "golden")]
    assert main([*named, "show", folders[0]]) == 0
    assert "mindtorch, level mix, task statistics" in capsys.readouterr().out
    main([*named, "compare", *folders, "-o", str(tmp_path / "out")])
    assert "Module.down.Linear" in capsys.readouterr().out
