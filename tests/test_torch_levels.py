"""What each level and each summary writes, on one small net whose records can be told in advance."""

from __future__ import annotations

import base64
import json
import zlib
from importlib import resources
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe import kernels
from torch_fixtures import Probe, probe

__all__ = ["probe"]


class Half(nn.Module):
    """A module of the user's own, with a child."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * 0.5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Half()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.part(x))


CALLS = [
    "Functional.linear.0.forward",
    "Torch.tanh.0.forward",
    "Tensor.__mul__.0.forward",
    "Functional.linear.1.forward",
    "Functional.cross_entropy.0.forward",
]
MODULES = [
    "Module.part.linear.Linear.forward.0",
    "Module.part.Half.forward.0",
    "Module.head.Linear.forward.0",
]


def record(probe: Probe, level: str, task: str = "statistics", **keys: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    net = Net()
    debugger = probe.debugger(level, task, **keys)
    debugger.start(net)
    F.cross_entropy(net(torch.randn(3, 4)), torch.tensor([0, 1, 0])).backward()
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""
    return probe.data()


def forwards(data: dict[str, Any], *, modules: bool) -> list[str]:
    return [name for name in data if ".forward" in name and name.startswith("Module") is modules]


@pytest.mark.spec("C016", "PT")
@pytest.mark.spec("C117", "PT")
def test_level_l0_records_every_module_and_no_call(probe: Probe) -> None:
    data = record(probe, "L0")
    assert forwards(data, modules=True) == MODULES
    assert forwards(data, modules=False) == []
    assert [name for name in data if ".backward." in name] == [
        "Module.head.Linear.backward.0",
        "Module.part.Half.backward.0",
        "Module.part.linear.Linear.backward.0",
    ]
    parameters = data["Module.part.linear.Linear.forward.0"]["parameters"]
    assert {name: leaf["shape"] for name, leaf in parameters.items()} == {"weight": [4, 4], "bias": [4]}
    gradients = data["Module.part.linear.Linear.parameters_grad"]
    assert {name: leaf[0]["shape"] for name, leaf in gradients.items()} == {"weight": [4, 4], "bias": [4]}


@pytest.mark.spec("C017", "PT")
def test_level_l1_records_every_call_and_no_module(probe: Probe) -> None:
    data = record(probe, "L1")
    assert [name for name in forwards(data, modules=False) if "ones_like" not in name] == CALLS
    assert forwards(data, modules=True) == []
    assert probe.construct() == {}


@pytest.mark.spec("C020", "PT")
def test_level_mix_is_both_and_says_what_ran_where(probe: Probe) -> None:
    data = record(probe, "mix")
    assert forwards(data, modules=True) == MODULES
    assert [name for name in forwards(data, modules=False) if "ones_like" not in name] == CALLS
    parents = probe.construct()
    assert parents["Torch.tanh.0.forward"] == "Module.part.Half.forward.0"
    assert parents["Functional.linear.0.forward"] == "Module.part.linear.Linear.forward.0"
    assert parents["Functional.linear.0.backward"] == "Module.part.linear.Linear.backward.0"
    assert parents["Module.part.linear.Linear.forward.0"] == "Module.part.Half.forward.0"
    assert parents["Module.part.Half.forward.0"] is None


@pytest.mark.spec("C006", "PT")
def test_task_statistics_writes_no_tensor_files(probe: Probe) -> None:
    data = record(probe, "L1")
    assert sorted(file.name for file in probe.rank().iterdir()) == [
        "construct.json",
        "dump.json",
        "stack.json",
    ]
    header = json.loads((probe.rank() / "dump.json").read_text())
    assert (header["task"], header["dump_data_dir"]) == ("statistics", None)
    leaf = data["Torch.tanh.0.forward"]["output"][0]
    assert {"Max", "Min", "Mean", "Norm"} <= leaf.keys()
    assert not {"data_name", "md5"} & leaf.keys()


@pytest.mark.spec("C073", "PT")
def test_summary_md5_adds_the_crc_32_of_each_tensor(probe: Probe) -> None:
    data = record(probe, "L1", section={"summary_mode": "md5"})
    torch.manual_seed(0)
    net, x = Net(), torch.randn(3, 4)
    expected = {
        "Functional.linear.0.forward": x,
        "Torch.tanh.0.forward": net.part.linear(x),
    }
    for name, tensor in expected.items():
        leaf = data[name]["input_args"][0]
        assert leaf["md5"] == f"{zlib.crc32(tensor.detach().numpy().tobytes()):08x}"
        assert leaf["Max"] == tensor.max().item()


@pytest.mark.spec("P19", "PT")
def test_summary_sketch_adds_a_linear_sketch(probe: Probe) -> None:
    data = record(probe, "L1", section={"summary_mode": "sketch"})
    torch.manual_seed(0)
    Net()
    x = torch.randn(3, 4).numpy()
    leaf = data["Functional.linear.0.forward"]["input_args"][0]
    stored = base64.b64decode(leaf["sketch"].removeprefix("cs64:"))
    assert stored == kernels.sketch_of(x)
    # Of so few elements the sketch is a rearrangement: it keeps their norm.
    assert np.linalg.norm(np.frombuffer(stored, "<f4")) == pytest.approx(np.linalg.norm(x), rel=1e-6)
    assert leaf["Norm"] == pytest.approx(np.linalg.norm(x), rel=1e-6)


@pytest.mark.spec("R29", "PT")
@pytest.mark.parametrize(
    "place", ["config.json", "config/config.json", "pytorch/hook_module/support_wrap_ops.yaml"]
)
def test_packaged_files_stand_at_the_printed_paths(place: str) -> None:
    assert resources.files("msprobe").joinpath(place).is_file()


@pytest.mark.spec("R28", "PT")
def test_tensor_list_saves_the_tensors_of_some_calls(probe: Probe) -> None:
    debugger = probe.debugger("L1", section={"tensor_list": ["relu"]})
    debugger.start()
    torch.relu(torch.sin(torch.tensor([-2.0, 3.0])))
    debugger.stop()
    debugger.step()
    folder = probe.rank() / "dump_tensor_data"
    names = [f"Torch.relu.0.forward.{side}.0.pt" for side in ("input", "output")]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert torch.equal(probe.tensor("Torch.relu.0.forward.input.0"), torch.sin(torch.tensor([-2.0, 3.0])))
    assert "data_name" not in probe.data()["Torch.sin.0.forward"]["output"][0]
