"""Which torch is taken for MSAdapter's, with MindSpore's newest release; tests/msadapter has a real one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")

HERE = Path(__file__).parent


def said(folder: Path, script: str) -> list[str]:
    """The lines that a process of its own prints."""
    path = folder / "script.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(HERE)!r})\n{textwrap.dedent(script)}")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_real_torch_beside_mindspore_is_none(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed here")
    script = """
        import inspect, json
        import torch

        def refuse(*args, **kwargs):
            raise AssertionError("a tensor was made, which may wake up a device")

        torch.tensor = refuse
        import mindspore as ms
        from msprobe.mindspore import PrecisionDebugger, seed_all

        debugger = PrecisionDebugger(task="statistics", dump_path="dump", level="L1")
        debugger.start()
        torch.abs(torch.ones(2))
        ms.ops.abs(ms.Tensor([1.0]))
        debugger.stop()
        debugger.step()
        found = json.load(open("dump/step0/rank/dump.json"))
        print(found["framework"], *found["data"])
        print(inspect.signature(seed_all).parameters["rm_dropout"].default)
    """
    assert said(tmp_path, script) == ["mindspore Functional.abs.0.forward", "False"]


def test_a_torch_of_mindspore_tensors_is_one(tmp_path: Path) -> None:
    script = """
        import json
        import stand_in_torch
        stand_in_torch.install()
        import mindspore as ms
        import torch
        import torch.nn.functional as F
        from msprobe.mindspore import PrecisionDebugger

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(3, 2)

            def forward(self, x):
                return F.relu(self.linear(torch.abs(x)))

        net, debugger = Net(), PrecisionDebugger(task="statistics", dump_path="dump", level="mix")
        for _ in range(2):
            debugger.start(net)
            ms.value_and_grad(net.forward, 0, [net.linear.weight])(ms.Tensor([[1.0, -2.0, 3.0]]))
            debugger.stop()
            debugger.step()
        found = json.load(open("dump/step1/rank/dump.json"))
        print(found["framework"], *found["data"])
        print(found["data"]["Functional.relu.0.forward"]["output"][0]["dtype"])
    """
    head, dtype = said(tmp_path, script)
    framework, *names = head.split()
    assert (framework, dtype) == ("mindtorch", "Float32")
    calls = ("Torch.abs.0", "Functional.linear.0", "Functional.relu.0")
    expected = {f"{call}.{direction}" for call in calls for direction in ("forward", "backward")}
    expected |= {f"Module.linear.Linear.{end}" for end in ("forward.0", "backward.0", "parameters_grad")}
    assert set(names) == expected
