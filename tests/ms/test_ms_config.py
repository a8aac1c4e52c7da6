"""What config.json says as a MindSpore dynamic graph is recorded: tasks, steps, ranks, filters, summaries."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import numpy as np
from mindspore import Tensor, mint, nn, ops
from ms_case import Net, Probe, golden_inputs, numbered, probe, training

from config_case import EXAMPLES
from msprobe.errors import UsageError
from msprobe.mindspore import PrecisionDebugger

__all__ = ["probe"]

JSON = {"dump.json", "stack.json", "construct.json"}


def train(debugger: PrecisionDebugger, steps: int = 1) -> None:
    net = numbered(Net())
    step, x = training(net), golden_inputs()[0]
    for _ in range(steps):
        debugger.start(net)
        step(x)
        debugger.stop()
        debugger.step()


def leaves(node: Any) -> Iterator[dict[str, Any]]:
    """The tensors that a record tells of."""
    if isinstance(node, dict) and "dtype" in node:
        yield node
    elif isinstance(node, (dict, list)):
        for item in node.values() if isinstance(node, dict) else node:
            yield from leaves(item)


@pytest.mark.spec("C001", "MSd")
@pytest.mark.spec("C006", "MSd")
@pytest.mark.spec("C017", "MSd")
@pytest.mark.spec("M013", "MSd")
def test_without_a_file_the_packaged_configuration_holds(probe: Probe) -> None:
    train(PrecisionDebugger(dump_path=str(probe.folder)))
    head = probe.head()
    assert (head["task"], head["level"], head["framework"]) == ("statistics", "L1", "mindspore")
    assert {file.name for file in probe.rank().iterdir()} == JSON
    assert {name.partition(".")[0] for name in head["data"]} >= {"Tensor", "Functional", "Mint"}


@pytest.mark.spec("C001", "MSd")
@pytest.mark.spec("M013", "MSd")
def test_a_file_is_followed_and_arguments_win(probe: Probe, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"task": "statistics", "level": "L0", "dump_path": "/nowhere", "step": [9]}))
    train(PrecisionDebugger(str(file), task="tensor", dump_path=str(probe.folder), level="mix", step=[0]))
    head = probe.head()
    assert (head["task"], head["level"]) == ("tensor", "mix")
    assert {file.name for file in probe.rank().iterdir()} == JSON | {"dump_tensor_data"}


@pytest.mark.spec("C114", "MSd")
def test_the_printed_example_records(probe: Probe) -> None:
    train(PrecisionDebugger(str(EXAMPLES / "C114.json"), dump_path=str(probe.folder)))
    assert (probe.head()["task"], probe.head()["level"]) == ("statistics", "L1")
    assert probe.data()


@pytest.mark.spec("C021", "MSd")
@pytest.mark.spec("M005", "MSd")
@pytest.mark.parametrize("level", ["L0", "L1", "mix", "debug"])
def test_every_level_of_a_dynamic_graph_records(level: str, probe: Probe) -> None:
    """Document 000 grants L1 only; 003, which is later, grants all."""
    debugger = probe.debugger(level)
    if level == "debug":
        debugger.save(Tensor([1.0]), "it")
        debugger.step()
    else:
        train(debugger)
    assert probe.head()["level"] == level
    assert probe.data()


STEPS = {
    "unset": (None, [0, 1, 2, 3]),
    "empty": ([], [0, 1, 2, 3]),
    "some": ([0, 2], [0, 2]),
    "a range": (["1-2"], [1, 2]),
    "beyond": ([9], []),
}


@pytest.mark.spec("C014", "MSd")
@pytest.mark.spec("R18", "MSd")
@pytest.mark.parametrize("case", STEPS)
def test_steps(case: str, probe: Probe) -> None:
    steps, recorded = STEPS[case]
    debugger = probe.debugger("L1", **({} if steps is None else {"step": steps}))
    for _ in range(4):
        debugger.start()
        ops.abs(Tensor([1.0]))
        debugger.stop()
        debugger.step()
    assert sorted(folder.name for folder in probe.folder.glob("step*")) == [f"step{n}" for n in recorded]


@pytest.mark.spec("C011", "MSd")
@pytest.mark.spec("M059", "MSd")
@pytest.mark.parametrize(("rank", "recorded"), [(None, True), ([], True), ([0], True), ([1], False)], ids=str)
def test_ranks_without_distribution(rank: list[int] | None, recorded: bool, probe: Probe) -> None:
    train(probe.debugger("L1", **({} if rank is None else {"rank": rank})))
    assert [folder.name for folder in probe.folder.glob("step0/*")] == (["rank"] if recorded else [])


ALL_OF_FC1 = {"Cell.fc1.Dense.forward.0", "Cell.fc1.Dense.parameters_grad", "Cell.fc1.Dense.backward.0"}
FILTERS = {
    "list class": ("L1", {"list": ["relu"]}, {f"{name}.0.{way}" for name in ("MintFunctional.relu",
                   "Primitive.relu.ReLU") for way in ("forward", "backward")}),
    "list exact": ("L1", {"list": ["Mint.add.0.forward", "Functional.abs.0.backward"]},
                   {"Mint.add.0.forward", "Functional.abs.0.backward"}),
    "scope": ("L1", {"scope": ["Functional.abs.0.forward", "MintFunctional.relu.0.forward"]},
              {"Functional.abs.0.forward", "Mint.add.0.forward", "MintFunctional.relu.0.forward"}),
    "list of cells": ("L0", {"list": ["fc1"]}, ALL_OF_FC1),
    "scope of cells": ("L0", {"scope": ["Cell.fc1.Dense.forward.0", "Cell.fc2.Dense.forward.0"]},
                       {"Cell.fc1.Dense.forward.0", "Cell.relu.ReLU.forward.0", "Cell.fc2.Dense.forward.0"}),
    "scope of backward": ("L0", {"scope": ["Cell.relu.ReLU.backward.0", "Cell.fc1.Dense.backward.0"]},
                          {"Cell.relu.ReLU.backward.0", *ALL_OF_FC1} - {"Cell.fc1.Dense.forward.0"}),
    "cell at mix": ("mix", {"list": ["Cell.relu.ReLU.forward.0"]},
                    {"Cell.relu.ReLU.forward.0", "Primitive.relu.ReLU.0.forward"}),
    "scope at mix": ("mix", {"scope": ["Cell.relu.ReLU.forward.0", "Cell.relu.ReLU.forward.0"]},
                     {"Cell.relu.ReLU.forward.0", "Primitive.relu.ReLU.0.forward"}),
    "both": ("L1", {"scope": ["Functional.abs.0.forward", "MintFunctional.relu.0.forward"], "list": ["add"]},
             {"Mint.add.0.forward"}),
}  # fmt: skip


@pytest.mark.spec("C061", "MSd")
@pytest.mark.spec("C062", "MSd")
@pytest.mark.spec("C063", "MSd")
@pytest.mark.spec("C064", "MSd")
@pytest.mark.spec("C075", "MSd")
@pytest.mark.spec("C076", "MSd")
@pytest.mark.spec("C077", "MSd")
@pytest.mark.spec("R07", "MSd")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("case", FILTERS)
def test_scope_and_list(case: str, task: str, probe: Probe) -> None:
    level, section, expected = FILTERS[case]
    train(probe.debugger(level, task, section=section))
    assert set(probe.data()) == expected
    if task == "tensor":
        assert {leaf["data_name"] for leaf in leaves(probe.data())} == probe.files()


@pytest.mark.spec("C068", "MSd")
@pytest.mark.parametrize("section", [{}, {"scope": [], "list": []}], ids=str)
def test_without_scope_and_list_everything_is_recorded(section: dict[str, Any], probe: Probe) -> None:
    """Each call of Net, and the two of the loss."""
    train(probe.debugger("L1", section=section))
    made = [name.rpartition(".")[0] for name in probe.data() if name.endswith(".forward")]
    assert len(made) == len(set(made))
    assert {name.rpartition(".")[0] for name in made} == {
        "Primitive.conv2d.Conv2D", "Primitive.bias_add.BiasAdd", "Tensor.reshape",
        "Primitive.layer_norm.LayerNorm", "Functional.abs", "Mint.add", "MintFunctional.relu",
        "Tensor.__add__",
        "Primitive.matmul.MatMul", "Primitive.relu.ReLU", "Tensor.__mul__", "Functional.mean",
        "Tensor.to", "Primitive.shape_op.Shape",
    }  # fmt: skip


FORWARD, BACKWARD = {"input_args", "input_kwargs", "output"}, {"input", "output"}
SIDES = {
    "all": (["all"], FORWARD | BACKWARD),
    "forward": (["forward"], FORWARD),
    "backward": (["backward"], BACKWARD),
    "input": (["input"], {"input_args", "input_kwargs", "input"}),
    "output": (["output"], {"output"}),
    "forward output": (["forward", "output"], {"output"}),
    "backward input": (["backward", "input"], {"input"}),
}


@pytest.mark.spec("C069", "MSd")
@pytest.mark.spec("C070", "MSd")
@pytest.mark.spec("C082", "MSd")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("case", SIDES)
def test_data_mode(case: str, task: str, probe: Probe) -> None:
    modes, fields = SIDES[case]
    train(probe.debugger("L1", task, section={"data_mode": modes}))
    ways = {"forward", "backward"} & set(modes) or {"forward", "backward"}
    assert {name.rpartition(".")[2] for name in probe.data()} == ways
    assert {field for record in probe.data().values() for field in record} == fields
    if task == "tensor":
        assert {leaf["data_name"] for leaf in leaves(probe.data())} == probe.files()


PLAIN = {"type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "hash", "sketch"}
SUMMARIES = {"statistics": set[str](), "md5": {"md5"}, "sketch": set[str]()}


@pytest.mark.spec("C072", "MSd")
@pytest.mark.spec("C073", "MSd")
@pytest.mark.spec("C074", "MSd")
@pytest.mark.spec("M060", "MSd")
@pytest.mark.parametrize("mode", SUMMARIES)
def test_summary_mode(mode: str, probe: Probe) -> None:
    train(probe.debugger("mix", section={"summary_mode": mode}))
    keys = [set(leaf) - {"from"} for leaf in leaves(probe.data())]
    assert keys == [PLAIN | SUMMARIES[mode]] * len(keys)
    methods: dict[bool, set[str]] = {True: set(), False: set()}
    for name, record in probe.data().items():
        for leaf in leaves(record):
            is_state = name.endswith("parameters_grad") or leaf.get("from", "").startswith("parameter:")
            methods[is_state].add(leaf["sketch"].partition(":")[0])
    assert methods == {True: {"cs64"}, False: {"cs64" if mode == "sketch" else "cs16"}}
    assert not (probe.rank() / "dump_tensor_data").exists()


def test_tensor_list_saves_the_named_calls_only(probe: Probe) -> None:
    train(probe.debugger("L1", section={"tensor_list": ["relu"]}))
    named = {name for name, record in probe.data().items() if any("data_name" in x for x in leaves(record))}
    assert named == {name for name in probe.data() if "relu" in name} != set()
    assert {leaf["data_name"] for leaf in leaves(probe.data()) if "data_name" in leaf} == probe.files()


@pytest.mark.spec("R16", "MSd")
def test_made_again_it_goes_on_or_says_why_not(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "msprobe"):
        for _ in range(3):
            debugger = probe.debugger("L1")
            debugger.start()
            ops.abs(Tensor([1.0]))
            debugger.stop()
            debugger.step()
    assert [record for record in caplog.messages if "made again" in record] == [
        "PrecisionDebugger was made again with the same configuration; the first one goes on."
    ]
    assert sorted(folder.name for folder in probe.folder.glob("step*")) == ["step0", "step1", "step2"]
    with pytest.raises(UsageError, match="another level.*start another process"):
        probe.debugger("mix")


@pytest.mark.spec("M062", "MSd")
@pytest.mark.spec("M024", "MSd")
def test_tensors_are_there_at_once_and_json_after_stop(probe: Probe) -> None:
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    ops.abs(Tensor([1.0]))
    PrecisionDebugger.the.get()._writer.tensors.drain()  # they are written behind training
    assert probe.files() == {f"Functional.abs.0.forward.{slot}.0.npy" for slot in ("input", "output")}
    assert not (probe.rank() / "dump.json").exists()
    debugger.stop()
    assert list(probe.data()) == ["Functional.abs.0.forward"]
    debugger.step()
    debugger.start()
    mint.abs(Tensor([1.0]))
    debugger.stop()
    debugger.step()
    assert (list(probe.data(0)), list(probe.data(1))) == (
        ["Functional.abs.0.forward"],
        ["Mint.abs.0.forward"],
    )


@pytest.mark.spec("M061", "MSd")
@pytest.mark.spec("M010", "MSd")
def test_stacks_and_parents(probe: Probe) -> None:
    net = nn.SequentialCell(nn.SequentialCell(nn.Dense(4, 4)))
    probe.record(net, Tensor(np.ones((2, 4), np.float32)), level="mix")
    stacks = json.loads((probe.rank() / "stack.json").read_text())
    told = {name: frames for names, frames in stacks.values() for name in names}
    assert set(told) == {name for name in probe.data() if "forward" in name}
    matmul = "Primitive.matmul.MatMul.0.forward"
    assert any(Path(__file__).parent.joinpath("ms_case.py").as_posix() in frame for frame in told[matmul])
    assert not any("msprobe" in frame and "tests" not in frame for frame in told[matmul])
    parents = probe.construct()
    assert parents[matmul] == "Cell.0.0.Dense.forward.0"
    assert parents["Cell.0.0.Dense.forward.0"] == "Cell.0.SequentialCell.forward.0"
    assert parents["Cell.0.SequentialCell.forward.0"] is None
    assert parents["Primitive.matmul.MatMul.0.backward"] == "Cell.0.0.Dense.backward.0"
