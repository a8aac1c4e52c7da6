"""scope, list and data_mode with PyTorch: the records that release 8.3.3 makes of the same net.

tests/test_scope.py has the finer cases, on the toy framework.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from msprobe.config import Scene, load  # noqa: E402
from msprobe.pytorch.debugger import TorchDebugger  # noqa: E402


class Sub(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(3, 3), nn.Tanh()

    def forward(self, x: Any) -> Any:
        return self.act(self.fc(x)) + torch.sigmoid(x)


class Filtered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), Sub(), nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.c(F.relu(self.b(torch.exp(self.a(x)))))


IN_SUB = ["Functional.linear.1", "Torch.tanh.0", "Torch.sigmoid.0", "Tensor.__add__.0"]
APIS = [
    "Functional.linear.0",
    "Torch.exp.0",
    *IN_SUB,
    "Functional.relu.0",
    "Functional.linear.2",
    "Tensor.sum.0",
]
ONES = "Torch.ones_like.0.forward"


def forward(*calls: str) -> set[str]:
    return {f"{call}.forward" for call in calls}


def backward(*calls: str) -> set[str]:
    return {f"{call}.backward" for call in calls}


def modules(direction: str, *names: str) -> set[str]:
    return {f"Module.{name}.{direction}.0" for name in names}


SUB = ("b.fc.Linear", "b.act.Tanh", "b.Sub")
SUB_FORWARD = forward(*IN_SUB) | modules("forward", *SUB)
SUB_BACKWARD = backward(*IN_SUB) | modules("backward", *SUB) | {"Module.b.fc.Linear.parameters_grad"}
AFTER_SUB = forward(*APIS[6:]) | {ONES, "Module.c.Linear.forward.0", "Module.c.Linear.parameters_grad"}
AFTER_SUB |= backward(*APIS[6:]) | {"Module.c.Linear.backward.0"}


@pytest.fixture
def filtered(tmp_path: Path) -> Iterator[Callable[..., set[str]]]:
    """Records one step of the net with these settings and gives the names of the records."""
    made: list[TorchDebugger] = []

    def filtered(level: str, task: str = "statistics", **keys: Any) -> set[str]:
        path = tmp_path / "config.json"
        common = {"dump_path": str(tmp_path / "run"), "rm_dropout": False}
        path.write_text(json.dumps({**common, "level": level, "task": task, task: keys}))
        made.append(TorchDebugger(load(path, scene=Scene.PYTORCH)[0], Filtered()))
        debugger, net = made[0], made[0]._model
        debugger.start()
        net(torch.ones(2, 3)).sum().backward()
        debugger.stop()
        debugger.step()
        return set(json.loads((tmp_path / "run/step0/rank/dump.json").read_bytes())["data"])

    yield filtered
    for debugger in made:
        debugger.close()


Filter = Callable[..., set[str]]


@pytest.mark.spec("C061", "PT")
@pytest.mark.spec("C062", "PT")
@pytest.mark.spec("C068", "PT")
@pytest.mark.spec("R03", "PT")
@pytest.mark.parametrize(
    ("level", "scope", "expected"),
    [
        ("L1", [], forward(*APIS) | backward(*APIS) | {ONES}),
        ("L1", ["Torch.exp.0.forward", "Functional.relu.0.forward"], forward(*APIS[1:7])),
        ("L1", ["Functional.relu.0.forward", "Functional.relu.0.backward"],
         forward(*APIS[6:]) | {ONES} | backward(*APIS[6:])),
        ("L0", ["Module.b.Sub.forward.0", "Module.b.Sub.forward.0"], modules("forward", *SUB)),
        ("mix", ["Module.b.Sub.forward.0", "Module.b.Sub.forward.0"], SUB_FORWARD),
        ("mix", ["Module.b.Sub.forward.0", "Module.b.Sub.backward.0"],
         SUB_FORWARD | AFTER_SUB | SUB_BACKWARD),
        ("mix", ["Module.b.Sub.backward.0", "Module.a.Linear.backward.0"],
         SUB_BACKWARD | backward("Torch.exp.0") | modules("backward", "a.Linear")
         | {"Module.a.Linear.parameters_grad"}
         | {"Functional.linear.0.backward"}),  # inside the end; 8.3.3 leaves it out
    ],
)  # fmt: skip
def test_scope(filtered: Filter, level: str, scope: list[str], expected: set[str]) -> None:
    assert filtered(level, scope=scope) == expected


@pytest.mark.spec("C063", "PT")
@pytest.mark.spec("C064", "PT")
@pytest.mark.parametrize(
    ("level", "listed", "expected"),
    [
        ("L1", ["linear"], {name for name in forward(*APIS) | backward(*APIS) if "linear" in name}),
        ("L1", ["Functional.linear.1.forward", "Torch.exp.0.backward"],
         {"Functional.linear.1.forward", "Torch.exp.0.backward"}),
        ("L0", ["Sub"], modules("forward", "b.Sub") | modules("backward", "b.Sub")),
        ("L0", ["Module.b"],
         modules("forward", *SUB) | modules("backward", *SUB) | {"Module.b.fc.Linear.parameters_grad"}),
        ("mix", ["Module.b.Sub"], SUB_FORWARD | SUB_BACKWARD),
        ("mix", ["Module.b.Sub.forward.0"], SUB_FORWARD),
    ],
)  # fmt: skip
def test_list(filtered: Filter, level: str, listed: list[str], expected: set[str]) -> None:
    assert filtered(level, list=listed) == expected


@pytest.mark.spec("C075", "PT")
@pytest.mark.spec("C076", "PT")
@pytest.mark.spec("C077", "PT")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"scope": ["Torch.tanh.0.forward", "Tensor.__add__.0.forward"]}, forward(*IN_SUB[1:])),
        ({"list": ["Torch.tanh.0.forward", "Torch.exp.0.backward"]},
         {"Torch.tanh.0.forward", "Torch.exp.0.backward"}),
        ({"list": ["relu"]}, {"Functional.relu.0.forward", "Functional.relu.0.backward"}),
    ],
)  # fmt: skip
def test_task_tensor_filters_alike(
    filtered: Filter, tmp_path: Path, keys: dict[str, Any], expected: set[str]
) -> None:
    assert filtered("L1", "tensor", **keys) == expected
    files = {path.name for path in (tmp_path / "run/step0/rank/dump_tensor_data").iterdir()}
    assert {".".join(name.split(".")[:4]) for name in files} == expected


INPUTS = {"input_args", "input_kwargs"}


@pytest.mark.spec("C069", "PT")
@pytest.mark.spec("C070", "PT")
@pytest.mark.spec("C082", "PT")
@pytest.mark.spec("R02", "PT")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("data_mode", "of_forward", "of_backward"),
    [
        (["all"], INPUTS | {"output"}, {"input", "output"}),
        ("forward", INPUTS | {"output"}, set()),
        (["backward"], set(), {"input", "output"}),
        (["input"], INPUTS, {"input"}),
        (["output"], {"output"}, {"output"}),
        (["forward", "input"], INPUTS, set()),
        (["backward", "output"], set(), {"output"}),
        (["forward", "backward", "output"], {"output"}, {"output"}),
    ],
)
def test_data_mode(
    filtered: Filter, tmp_path: Path, task: str, data_mode: Any, of_forward: set[str], of_backward: set[str]
) -> None:
    filtered("mix", task, data_mode=data_mode)
    data = json.loads((tmp_path / "run/step0/rank/dump.json").read_bytes())["data"]
    seen: dict[str, set[str]] = {"forward": set(), "backward": set()}
    for name, fields in data.items():
        if "parameters_grad" not in name:
            kept = set(fields) - {"is_recompute", "parameters"}
            direction = "forward" if "forward" in name else "backward"
            assert seen[direction] in (set(), kept)
            seen[direction] = kept
    assert seen == {"forward": of_forward, "backward": of_backward}
    assert any("parameters_grad" in name for name in data) == bool(of_backward)
