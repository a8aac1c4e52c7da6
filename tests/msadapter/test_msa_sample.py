"""The sample of document 002, run on a CPU with a real MSAdapter; each edit has its comment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from described_keys import described_keys

pytest.importorskip("mindtorch", reason="MSAdapter is not installed here")

SAMPLE = """
import mindtorch  # edit: this MSAdapter makes `torch` mean itself when it is imported
import mindspore as ms
import torch
import torch.nn as nn
import torch.nn.functional as F

# 导入工具的数据采集接口
from msprobe.mindspore import PrecisionDebugger

# 在模型训练开始前实例化PrecisionDebugger
debugger = PrecisionDebugger(config_path='./config.json')


# 定义网络
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(in_features=8, out_features=4)
        self.linear2 = nn.Linear(in_features=4, out_features=2)

    def forward(self, x):
        x1 = self.linear1(x)
        x2 = self.linear2(x1)
        logits = F.relu(x2)
        return logits


net = Net()


def train_step(inputs):
    return net(inputs)


if __name__ == "__main__":
    data = (torch.randn(10, 8), torch.randn(10, 8), torch.randn(10, 8))
    grad_fn = ms.value_and_grad(train_step, grad_position=0)

    for inputs in data:
        # 开启数据 dump
        debugger.start(model=net)

        out, grad = grad_fn(inputs)

        # 停止数据 dump
        debugger.stop()
        # 更新 step 信息
        debugger.step()
"""

# What release 8.3.3 recorded of this sample, with repairs: without them it records nothing.
MODULES = {
    f"Module.{name}.Linear.{rest}"
    for name in ("linear1", "linear2")
    for rest in ("forward.0", "backward.0", "parameters_grad")
}
CALLS = {"Functional.relu.0.forward", "Functional.relu.0.backward"}
BY_LAYERS = {f"Functional.linear.{n}.{direction}" for n in (0, 1) for direction in ("forward", "backward")}
RECORDS = {"L0": MODULES, "L1": CALLS | BY_LAYERS, "mix": MODULES | CALLS | BY_LAYERS}
FILES_OF_833 = {
    *(f"{call}.{slot}.0.npy" for call in CALLS for slot in ("input", "output")),
    *(
        f"Module.linear{n}.Linear.{rest}.npy"
        for n in (1, 2)
        for rest in (
            "forward.0.input.0",
            "forward.0.output.0",
            "forward.0.parameters.weight",
            "forward.0.parameters.bias",
            "backward.0.input.0",
            "backward.0.output.0",
        )
    ),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample at level mix, as a script of its own."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "sample.py").write_text(SAMPLE)
    config = {
        "task": "tensor",
        "dump_path": "./dump_path",
        "rank": [],
        "step": [],
        "level": "mix",
        "tensor": {},
    }
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run([sys.executable, "sample.py"], cwd=folder, check=True, timeout=300)
    return folder / "dump_path"


def read(ran: Path, step: int, name: str = "dump") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ran / f"step{step}" / "rank" / f"{name}.json").read_text())
    return found


@pytest.mark.spec("A002", "MSA")
@pytest.mark.spec("A027", "MSA")
@pytest.mark.spec("A028", "MSA")
@pytest.mark.spec("A029", "MSA")
def test_the_printed_tree(ran: Path) -> None:
    found = {
        path.relative_to(ran).as_posix() for path in ran.rglob("*") if path.parent.name != "dump_tensor_data"
    }
    expected = {"step0", "step1", "step2"}
    expected |= {f"{step}/rank" for step in expected}
    inside = ("dump_tensor_data", "dump.json", "stack.json", "construct.json")
    expected |= {f"step{n}/rank/{name}" for n in range(3) for name in inside}
    assert {path for path in found if not path.startswith(".")} == expected


@pytest.mark.spec("A030", "MSA")
@pytest.mark.spec("A031", "MSA")
@pytest.mark.spec("A032", "MSA")
@pytest.mark.parametrize("step", [0, 1, 2])
def test_what_release_833_records_is_recorded(ran: Path, step: int) -> None:
    assert set(read(ran, step)["data"]) == RECORDS["mix"]
    assert {path.name for path in (ran / f"step{step}/rank/dump_tensor_data").iterdir()} >= FILES_OF_833


@pytest.mark.spec("A035", "MSA")
def test_the_head_and_the_leaves(ran: Path) -> None:
    head = read(ran, 0)
    folder = ran / "step0" / "rank" / "dump_tensor_data"
    assert (head["task"], head["level"], head["framework"]) == ("tensor", "mix", "mindtorch")
    assert os.path.samefile(head["dump_data_dir"], folder)
    record = head["data"]["Functional.relu.0.forward"]
    assert list(record) == ["input_args", "input_kwargs", "output"]
    (leaf,) = record["output"]
    array = np.load(folder / "Functional.relu.0.forward.output.0.npy")
    wide = array.astype(np.float64)
    assert leaf == {
        "type": "mindspore.Tensor",
        "dtype": "Float32",
        "shape": [10, 2],
        "Max": float(array.max()),
        "Min": float(array.min()),
        "Mean": pytest.approx(wide.mean(), rel=1e-6),
        "Norm": pytest.approx(np.linalg.norm(wide), rel=1e-6),
        **described_keys(array),
        "data_name": "Functional.relu.0.forward.output.0.npy",
    }


@pytest.mark.spec("A036", "MSA")
def test_stacks_and_hierarchy(ran: Path) -> None:
    assert read(ran, 1, "construct") == {
        "Functional.linear.0.forward": "Module.linear1.Linear.forward.0",
        "Module.linear1.Linear.forward.0": None,
        "Functional.linear.1.forward": "Module.linear2.Linear.forward.0",
        "Module.linear2.Linear.forward.0": None,
        "Functional.relu.0.forward": None,
        "Functional.relu.0.backward": None,
        "Functional.linear.1.backward": "Module.linear2.Linear.backward.0",
        "Module.linear2.Linear.backward.0": None,
        "Functional.linear.0.backward": "Module.linear1.Linear.backward.0",
        "Module.linear1.Linear.backward.0": None,
    }
    stacks = {name: lines for names, lines in read(ran, 1, "stack").values() for name in names}
    assert stacks.keys() == {name for name in RECORDS["mix"] if ".forward" in name}
    line = SAMPLE.splitlines().index("        logits = F.relu(x2)") + 1
    assert stacks["Functional.relu.0.forward"][0] == (
        f"File {ran.parent / 'sample.py'}, line {line}, in forward, \n logits = F.relu(x2)"
    )


def test_the_gradients_are_those_of_each_call(ran: Path) -> None:
    """The gradient of the outputs is 1, and each layer passes on what its weight makes of it."""

    def saved(name: str) -> Any:
        return np.load(ran / f"step2/rank/dump_tensor_data/{name}.npy")

    of_relu = np.where(saved("Functional.relu.0.forward.input.0") > 0, 1.0, 0.0).astype(np.float32)
    assert np.array_equal(saved("Functional.relu.0.backward.output.0"), of_relu)
    for gradient, name in (
        (of_relu, "linear2"),
        (saved("Module.linear2.Linear.backward.0.output.0"), "linear1"),
    ):
        weight = saved(f"Module.{name}.Linear.forward.0.parameters.weight")
        assert np.array_equal(saved(f"Module.{name}.Linear.backward.0.input.0"), gradient)
        passed = saved(f"Module.{name}.Linear.backward.0.output.0")
        np.testing.assert_allclose(passed, gradient @ weight, rtol=1e-5, atol=1e-6)
