"""Another MSAdapter, the one of that name: its torch remembers what it showed, and a loss has backward()."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindtorch", reason="MSAdapter is not installed here")

HOME = Path(sys.prefix) / "msadapter"  # apart, because both bring a mindtorch

SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from mindspore import _c_expression
_c_expression.AscendDeviceProperties = type("AscendDeviceProperties", (), {})  # edit: there are none on a CPU
import msadapter, torch
import numpy as np
import torch.nn as nn
import torch.nn.functional as F
from msprobe.mindspore import PrecisionDebugger


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(8, 4), nn.Linear(4, 2)

    def forward(self, x):
        return F.relu(self.linear2(self.linear1(x)))


def train(net, x):
    for parameter in net.parameters():
        parameter.grad = None
    loss = net(x).sum()
    loss.backward()
    return [t.asnumpy().tolist() for t in (loss, *(parameter.grad for parameter in net.parameters()))]


x = torch.tensor(np.random.RandomState(0).randn(10, 8).astype(np.float32))
net, debugger = Net(), PrecisionDebugger(task="tensor", dump_path="dump", level="mix")
native, alone, seen = F.relu, train(net, x), []
for _ in range(2):
    debugger.start(net)
    seen.append(train(net, x))
    debugger.stop()
    debugger.step()
print(json.dumps({"same": seen == [alone, alone], "native": F.relu is native, "gradient": alone[1]}))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    if not HOME.is_dir():
        pytest.skip("this MSAdapter is not installed here")
    folder = tmp_path_factory.mktemp("other")
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(HOME)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return folder / "dump", said


def test_training_is_the_same_and_nothing_stays_behind(ran: tuple[Path, dict[str, Any]]) -> None:
    assert (ran[1]["same"], ran[1]["native"]) == (True, True)


@pytest.mark.parametrize("step", [0, 1])
def test_what_is_recorded(step: int, ran: tuple[Path, dict[str, Any]]) -> None:
    where = ran[0] / f"step{step}" / "rank"
    head = json.loads((where / "dump.json").read_text())
    calls = ("Functional.linear.0", "Functional.linear.1", "Functional.relu.0", "Tensor.sum.0")
    expected = {f"{call}.{direction}" for call in calls for direction in ("forward", "backward")}
    ends = ("forward.0", "backward.0", "parameters_grad")
    expected |= {f"Module.linear{n}.Linear.{end}" for n in (1, 2) for end in ends}
    assert head["framework"] == "mindtorch"
    assert expected <= set(head["data"])
    largest = max(map(max, ran[1]["gradient"]))
    assert head["data"]["Module.linear1.Linear.parameters_grad"]["weight"][0]["Max"] == largest
    assert not (where / "dump_error_info.log").exists()
