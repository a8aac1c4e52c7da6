"""PrecisionDebugger for PyTorch: how a training script uses it."""

import contextlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from msprobe.errors import UsageError  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402
from msprobe.pytorch import debugger as bound  # noqa: E402
from msprobe.store import read, tensor_path  # noqa: E402
from msprobe.store.tensor_file import read as read_tensor  # noqa: E402

Make = Callable[..., PrecisionDebugger]
Names = Callable[..., list[str]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the debugger of this process: keyword arguments are keys of config.json, `arguments` its own."""

    def make(arguments: dict[str, Any] | None = None, **keys: Any) -> PrecisionDebugger:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"dump_path": str(tmp_path / "run"), "rm_dropout": False, **keys}))
        return PrecisionDebugger(str(path), **(arguments or {}))

    yield make
    with contextlib.suppress(UsageError):  # none was made
        bound._the.get().close()
    bound._the.clear()


@pytest.fixture
def names(tmp_path: Path) -> Names:
    def names(step: int = 0, run: str = "run") -> list[str]:
        return list(json.loads((tmp_path / run / f"step{step}/rank/dump.json").read_bytes())["data"])

    return names


def steps(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("step*"))


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [line.partition("msprobe: ")[2] for line in lines if "msprobe: " in line]


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.fc(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.head = Part(), nn.Linear(3, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.part(x))


# --- making it ---


@pytest.mark.spec("P01", "PT")
def test_arguments_win_over_the_file(make: Make, tmp_path: Path) -> None:
    in_file = {"task": "statistics", "level": "L1", "step": [0]}
    make(
        {
            "task": "tensor",
            "level": "mix",
            "step": [1, "3-4"],
            "dump_path": str(tmp_path / "b"),
            "model": Net(),
        },
        **in_file,
    )
    config = bound._the.get().config
    assert (config.task, config.level, config.step, config.dump_path) == (
        "tensor",
        "mix",
        (1, 3, 4),
        str(tmp_path / "b"),
    )
    for _ in range(5):
        PrecisionDebugger.start()  # the model was given before
        net = bound._the.get()._model
        net(torch.ones(1, 3))
        PrecisionDebugger.step()
    assert steps(tmp_path / "b") == ["step1", "step3", "step4"]
    assert not (tmp_path / "run").exists()
    (recording, *_) = read(tmp_path / "b")
    assert recording.header == ("tensor", "mix", "pytorch")
    assert "Module.part.fc.Linear.forward.0" in recording.records


@pytest.mark.spec("C001", "PT")
def test_without_a_file_the_packaged_configuration_holds(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Names
) -> None:
    monkeypatch.chdir(tmp_path)
    debugger = PrecisionDebugger()
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.stop()
    debugger.step()
    assert bound._the.get().config.dump_path == "./dump_path"
    assert names(run="dump_path") == ["Torch.relu.0.forward"]


def test_a_method_before_any_debugger_says_what_to_do() -> None:
    for method in (PrecisionDebugger.start, PrecisionDebugger.stop, PrecisionDebugger.step):
        with pytest.raises(UsageError, match="PrecisionDebugger instance is not created: make one before"):
            method()


@pytest.mark.spec("R16", "PT")
def test_making_it_again_resets_nothing(make: Make, names: Names, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(4):
        debugger = make()
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.stop()
        debugger.step()
    assert [names(step) for step in range(4)] == [["Torch.relu.0.forward"]] * 4
    assert told(capsys) == [
        "PrecisionDebugger was made again with the same configuration; the first one goes on."
    ]
    with pytest.raises(UsageError) as caught:
        make(task="tensor", level="L0")
    assert str(caught.value) == (
        "PrecisionDebugger exists already, with another task, level, section. Make it once, before the "
        "training loop; to record with another configuration start another process."
    )


# --- start, stop, step ---


@pytest.mark.spec("P02", "PT")
def test_segments_and_a_backward_after_stop(make: Make, names: Names) -> None:
    debugger = make()
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    y = torch.exp(x)
    debugger.stop()
    torch.sin(y)
    debugger.start()
    z = torch.relu(y).sum()
    debugger.stop()
    torch.cos(y)
    z.backward()
    debugger.step()
    torch.exp(x).sum().backward()
    assert names() == [
        "Torch.exp.0.forward",
        "Torch.relu.0.forward",
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Torch.relu.0.backward",
        "Torch.exp.0.backward",
    ]


@pytest.mark.spec("P02", "PT")
def test_step_alone_completes_each_step(make: Make, names: Names) -> None:
    debugger = make()
    for _ in range(2):
        debugger.start()
        torch.relu(torch.ones(2, requires_grad=True)).sum().backward()
        debugger.step()
    expected = ["Torch.relu.0.forward", "Tensor.sum.0.forward", "Torch.ones_like.0.forward"]
    expected += ["Tensor.sum.0.backward", "Torch.relu.0.backward"]
    assert (names(0), names(1)) == (expected, expected)


@pytest.mark.spec("P02", "PT")
def test_without_stop_and_step_all_is_written_at_exit(tmp_path: Path, names: Names) -> None:
    script = (
        "import torch\n"
        "from msprobe.pytorch import PrecisionDebugger\n"
        "debugger = PrecisionDebugger(dump_path='run')\n"
        "for _ in range(2):\n"
        "    debugger.start()\n"
        "    torch.relu(torch.ones(2))\n"
        "raise SystemExit(3)\n"
    )
    assert run_script(script, tmp_path).returncode == 3
    assert names() == ["Torch.relu.0.forward", "Torch.relu.1.forward"]
    assert not (tmp_path / "run/step0/rank/journal.log").exists()


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    source = str(Path(bound.__file__).parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.spec("C014", "PT")
@pytest.mark.spec("R14", "PT")
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ([], ["step0", "step1", "step2", "step3"]),
        ([0, 2], ["step0", "step2"]),
        (["1-2"], ["step1", "step2"]),
        ([3, 9], ["step3"]),
    ],
)
def test_steps(make: Make, tmp_path: Path, step: list[Any], expected: list[str]) -> None:
    debugger = make(step=step, rank=[])
    for _ in range(4):
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.stop()
        debugger.step()
    assert steps(tmp_path / "run") == expected


@pytest.mark.spec("P05", "PT")
@pytest.mark.spec("R18", "PT")
@pytest.mark.parametrize(("first", "expected"), [(None, ["step0", "step1"]), (10, ["step10", "step11"])])
def test_set_init_step(make: Make, tmp_path: Path, first: int | None, expected: list[str]) -> None:
    debugger = make()
    if first is not None:
        PrecisionDebugger.set_init_step(first)
    for _ in range(2):
        debugger.start()
        torch.relu(torch.ones(2))
        debugger.step()
    assert steps(tmp_path / "run") == expected


@pytest.mark.spec("C011", "PT")
@pytest.mark.spec("C012", "PT")
@pytest.mark.spec("R14", "PT")
@pytest.mark.parametrize(
    ("rank", "recorded"),
    [([], True), ([0], True), ([0, 3], True), ([1], False), ([10], False), (["0-2"], True)],
)
def test_one_process_is_rank_0(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], rank: list[Any], recorded: bool
) -> None:
    debugger = make(rank=rank)
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.stop()
    debugger.step()
    assert (tmp_path / "run/step0/rank/dump.json").exists() == recorded
    sentence = f"records rank {rank} and this process is rank 0 (not distributed): nothing is recorded here."
    assert told(capsys) == ([] if recorded else [f"the configuration {sentence}"])


def test_the_old_name_of_stop(make: Make, names: Names, capsys: pytest.CaptureFixture[str]) -> None:
    debugger = make()
    debugger.start()
    torch.relu(torch.ones(2))
    debugger.forward_backward_dump_end()
    torch.exp(torch.ones(2))
    debugger.step()
    assert names() == ["Torch.relu.0.forward"]
    assert told(capsys) == ["forward_backward_dump_end() is deprecated; call stop()."]


# --- models ---


@pytest.mark.spec("P03", "PT")
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda net: net, ["part.fc.Linear", "part.Part", "head.Linear"]),
        (lambda net: [net], ["0.part.fc.Linear", "0.part.Part", "0.head.Linear"]),
        (lambda net: (net.part, net), ["0.fc.Linear", "1.part.fc.Linear", "1.part.Part", "1.head.Linear"]),
    ],
)
def test_models(make: Make, names: Names, build: Callable[[Net], Any], expected: list[str]) -> None:
    debugger = make(level="L0")
    net = Net()
    debugger.start(model=build(net))
    with torch.no_grad():
        net(torch.ones(1, 3))
    debugger.step()
    assert sorted(names()) == sorted(f"Module.{name}.forward.0" for name in expected)


@pytest.mark.spec("P03", "PT")
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_missing_model(make: Make, level: str) -> None:
    debugger = make(level=level)
    with pytest.raises(UsageError) as caught:
        debugger.start()
    assert str(caught.value) == (
        f"level {level} records modules, so start() needs the model: call start(model=your_model)."
    )


@pytest.mark.spec("P03", "PT")
@pytest.mark.parametrize(
    ("model", "kind"),
    [(3, "a int"), ([nn.Linear(1, 1), "x"], "a list of Linear, str"), ([], "a list of nothing")],
)
def test_wrong_model(make: Make, model: Any, kind: str) -> None:
    sentence = f"is {kind}; it must be a torch.nn.Module or a list or tuple of them"
    with pytest.raises(UsageError, match=sentence):
        make({"model": model})
    with pytest.raises(UsageError, match=sentence):
        make().start(model)


@pytest.mark.spec("P07", "PT")
@pytest.mark.parametrize(("level", "token_range"), [("L1", [1, 2]), ("mix", (0, 0)), ("L0", [2, 7])])
def test_token_range(make: Make, tmp_path: Path, level: str, token_range: Any) -> None:
    debugger = make(level=level, task="tensor")
    net = Net()
    inputs = [torch.full((1, 3), float(number)) for number in range(4)]
    debugger.start(net, token_range)
    with torch.no_grad():
        for number, x in enumerate(inputs):
            net(x)
            torch.argmax(torch.ones(number + 1))  # between the calls of the model
    debugger.stop()
    debugger.step()
    (recording,) = read(tmp_path / "run")
    first = "Functional.linear" if level == "L1" else "Module.part.Part"
    leaves = [
        record.fields["input_args"][0]
        for record in recording.records.values()
        if record.name.owner == first and record.fields["input_args"][0].shape == (1, 3)
    ]
    seen = {read_tensor(tensor_path(recording, leaf)).array.flat[0] for leaf in leaves}
    wanted = {float(number) for number in range(4) if token_range[0] <= number <= token_range[1]}
    assert {value for value in seen if value in (0.0, 1.0, 2.0, 3.0)} == wanted
    assert not [name for name in recording.records if "argmax" in name]


# --- save ---


@pytest.mark.spec("P04", "PT")
@pytest.mark.spec("R01", "PT")
def test_save(make: Make, tmp_path: Path) -> None:
    make(level="debug", task="tensor")
    x = torch.full((2,), 3.0, requires_grad=True)
    y = x * 2
    PrecisionDebugger.save({"a": y, "l": [x, 3, "s", True, 1.5, None]}, "var")
    PrecisionDebugger.save(x, "x", save_backward=False)
    y.sum().backward()
    PrecisionDebugger.step()
    folder = tmp_path / "run/step0/rank"
    files = {path.name: read_tensor(path).array.tolist() for path in (folder / "dump_tensor_data").iterdir()}
    assert files == {
        "var.0.debug.a.pt": [6.0, 6.0],
        "var.0.debug.l.0.pt": [3.0, 3.0],
        "var_grad.0.debug.a.pt": [1.0, 1.0],
        "var_grad.0.debug.l.0.pt": [2.0, 2.0],
        "x.0.debug.pt": [3.0, 3.0],
    }
    data = json.loads((folder / "debug.json").read_bytes())["data"]
    assert list(data) == ["var.0.debug", "x.0.debug", "var_grad.0.debug"]
    assert data["var.0.debug"]["l"][1:] == [
        {"type": "int", "value": 3},
        {"type": "str", "value": "s"},
        {"type": "bool", "value": True},
        {"type": "float", "value": 1.5},
        None,
    ]
    gradients = data["var_grad.0.debug"]
    assert gradients["l"][1:] == [None] * 5
    assert {key: gradients["a"][key] for key in ("type", "dtype", "shape", "Max", "data_name")} == {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": 1.0,
        "data_name": "var_grad.0.debug.a.pt",
    }
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]


# --- functions of the user's own ---


@pytest.fixture
def mine() -> Iterator[types.ModuleType]:
    module = types.ModuleType("mine")
    source = "import torch\ndef scale(x, k=2):\n    return torch.mul(x, k)\nname = 'x'\n"
    exec(source, module.__dict__)
    sys.modules["mine"] = module
    yield module
    del sys.modules["mine"]


@pytest.mark.spec("P06", "PT")
def test_custom_api(make: Make, names: Names, mine: Any) -> None:
    debugger = make()
    early = mine.scale
    debugger.register_custom_api(mine, "scale")
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    mine.scale(early(x), k=3).sum().backward()
    debugger.stop()
    mine.scale(x)
    debugger.step()
    PrecisionDebugger.restore_custom_api(mine, "scale")
    debugger.start()
    mine.scale(x)
    debugger.step()
    assert names() == [
        "mine.scale.0.forward",
        "mine.scale.1.forward",
        "Tensor.sum.0.forward",
        "Torch.ones_like.0.forward",
        "Tensor.sum.0.backward",
        "mine.scale.1.backward",
        "mine.scale.0.backward",
    ]
    assert names(1) == ["Torch.mul.0.forward"]
    assert mine.scale is early and x.grad is not None and x.grad.tolist() == [6.0, 6.0]


@pytest.mark.spec("P06", "PT")
def test_custom_api_counts_at_once_and_may_have_a_prefix(make: Make, names: Names, mine: Any) -> None:
    debugger = make()
    debugger.start()
    mine.scale(torch.ones(2))
    PrecisionDebugger.register_custom_api(mine, "scale", api_prefix="Mine")
    PrecisionDebugger.register_custom_api(torch, "neg")  # a function in C that is recorded anyhow
    mine.scale(torch.neg(torch.ones(2)))
    PrecisionDebugger.restore_custom_api(mine, "scale")
    mine.scale(torch.ones(2))
    debugger.step()
    assert names() == [
        "Torch.mul.0.forward",
        "torch.neg.0.forward",
        "Mine.scale.0.forward",
        "Torch.mul.1.forward",
    ]


@pytest.mark.parametrize("kind", ["plain", "static", "of_class"])
def test_custom_api_may_be_a_method(make: Make, names: Names, kind: str) -> None:
    class Tools:
        def plain(self, x: Any) -> Any:
            return torch.mul(x, 2)

        @staticmethod
        def static(x: Any) -> Any:
            return torch.mul(x, 2)

        @classmethod
        def of_class(cls, x: Any) -> Any:
            return torch.mul(x, 2)

    held = vars(Tools)[kind]
    debugger = make()
    debugger.register_custom_api(Tools, kind)
    debugger.start()
    result = getattr(Tools(), kind)(torch.ones(2))
    debugger.step()
    assert result.tolist() == [2.0, 2.0]
    assert names() == [f"Tools.{kind}.0.forward"]
    assert vars(Tools)[kind] is held


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gone",), "has no function 'gone'"),
        (("name",), "has no function 'name'"),
        ((3,), "has no function 3"),
        (("scale", 7), "api_prefix is 7; it must be a str or None"),
        (("scale", ""), "api_prefix is ''; it must be a str or None"),
    ],
)
def test_wrong_custom_api(make: Make, mine: Any, arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make().register_custom_api(mine, *arguments)


# --- enable_dataloader ---


DATALOADER = """
import json, torch
from torch.utils.data import DataLoader, TensorDataset
json.dump({"dump_path": "run", "enable_dataloader": True, "step": [1, 3], "level": "L1"}, open("c.json", "w"))
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger("c.json")
data = TensorDataset(torch.arange(6.0).reshape(6, 1))
loader = DataLoader(data, batch_size=2, num_workers=WORKERS)
for epoch in range(9):
    for (batch,) in loader:
        debugger.start()  # has no effect, nor have the others
        torch.neg(batch)
        debugger.stop()
        debugger.step()
        print(epoch, batch.flatten().tolist(), flush=True)
print("not reached")
"""


@pytest.mark.spec("P17", "PT")
@pytest.mark.spec("C026", "PT")
@pytest.mark.spec("C027", "PT")
@pytest.mark.parametrize("workers", [0, 1])
def test_dataloader(tmp_path: Path, workers: int) -> None:
    done = run_script(DATALOADER.replace("WORKERS", str(workers)), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["0 [0.0, 1.0]", "0 [2.0, 3.0]", "0 [4.0, 5.0]", "1 [0.0, 1.0]"]
    assert 'c.json, line 1: "enable_dataloader" is deprecated and works on a single card only' in done.stderr
    assert "enable_dataloader: the configured steps are recorded; training exits here." in done.stderr
    assert done.stderr.count("enable_dataloader is true, so start() has no effect") == 1
    recordings = read(tmp_path / "run")
    assert [recording.step for recording in recordings] == [1, 3]
    assert [recording.finished for recording in recordings] == [True, True]
    largest = [
        recording.records["Torch.neg.0.forward"].fields["input_args"][0].stats.max for recording in recordings
    ]
    assert largest == [3.0, 1.0]


def test_dataloader_needs_the_model_early(make: Make) -> None:
    with pytest.raises(
        UsageError, match=r"so pass the model here: PrecisionDebugger\(\.\.\., model=your_model\)"
    ):
        make(level="mix", enable_dataloader=True)


def test_workers_of_a_data_loader_record_nothing(make: Make, names: Names) -> None:
    class Items(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return torch.sin(torch.full((1,), float(index)))

    debugger = make(task="tensor")
    debugger.start()
    for batch in torch.utils.data.DataLoader(Items(), batch_size=2, num_workers=1):
        torch.neg(batch)
    debugger.stop()
    debugger.step()
    assert [name for name in names() if "sin" in name] == []
    assert [name for name in names() if "neg" in name] == ["Torch.neg.0.forward", "Torch.neg.1.forward"]
