"""Level L2: the order in which torch_npu is asked, and the one call that runs again."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from msprobe.errors import ConfigError, HardwareError, UsageError  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402
from msprobe.pytorch import debugger as bound  # noqa: E402
from npu_case import noting_npu  # noqa: E402

WATCHED = ("mul", "relu_", "native_dropout", "bernoulli_", "add", "max")


class Operators(TorchDispatchMode):
    """Notes the operators that really run."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self._notes = notes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WATCHED:
            self._notes.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A torch_npu that notes what it is asked, among the operators that run."""
    return noting_npu(monkeypatch)


Make = Callable[..., PrecisionDebugger]
BEGIN = ["init_dump", "set_dump acl.json", "synchronize"]
END = ["synchronize", "finalize_dump"]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "0")

    def make(scope: str, backward_input: Any = (), **keys: Any) -> PrecisionDebugger:
        (tmp_path / "kernels").mkdir(exist_ok=True)
        dump = {"dump_path": str(tmp_path / "kernels"), "dump_mode": "all", "dump_op_switch": "on"}
        (tmp_path / "acl.json").write_text(json.dumps({"dump": dump}))
        config = {
            "dump_path": str(tmp_path / "run"),
            "task": "tensor",
            "level": "L2",
            "acl_config": str(tmp_path / "acl.json"),
            "rm_dropout": False,
            "tensor": {"scope": [scope], "backward_input": list(backward_input)},
            **keys,
        }
        (tmp_path / "config.json").write_text(json.dumps(config))
        return PrecisionDebugger(str(tmp_path / "config.json"))

    yield make
    with contextlib.suppress(UsageError):  # none was made
        bound._the.get().close()
    bound._the.clear()


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [line.partition("msprobe: ")[2] for line in lines if "msprobe: " in line]


@pytest.mark.spec("C018", "PT")
@pytest.mark.spec("C118", "PT")
def test_forward(make: Make, notes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    debugger = make("Tensor.__mul__.1.forward")
    x = torch.full((2,), 3.0, requires_grad=True)
    with Operators(notes):
        x * 1  # before start: does not count
        debugger.start()
        y = x * 2
        z = y * y
        y * 4
        debugger.stop()
        debugger.step()
        debugger.start()
        x * 2
        x * 2
        debugger.stop()
    assert notes == ["mul", "mul", *BEGIN, "mul", *END, "mul", "mul", "mul", "mul"]
    z.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [24.0, 24.0]
    assert told(capsys) == [
        f"torch_npu has dumped the kernel data of Tensor.__mul__.1.forward as {tmp_path / 'acl.json'} says."
    ]
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "kernels").iterdir()) == []


@pytest.mark.spec("C078", "PT")
def test_list_names_the_api_as_well(make: Make, notes: list[str], tmp_path: Path) -> None:
    debugger = make("-", tensor={"list": ["Torch.mul.0.forward"]})
    debugger.start()
    with Operators(notes):
        torch.mul(torch.ones(2), 2)
    assert notes == [*BEGIN, "mul", *END, "mul"]


def saved(folder: Path, name: str, tensor: Any) -> str:
    torch.save(tensor, folder / name)
    return str(folder / name)


@pytest.mark.spec("C079", "PT")
def test_list_names_the_backward_as_well(make: Make, notes: list[str], tmp_path: Path) -> None:
    gradient = saved(tmp_path, "g.pt", torch.tensor([5.0, 7.0]))
    debugger = make("-", [gradient], tensor={"list": ["Torch.mul.0.backward"], "backward_input": [gradient]})
    debugger.start()
    with Operators(notes):
        torch.mul(torch.ones(2, requires_grad=True), 2)
    assert notes == ["mul", *BEGIN, "mul", *END, "mul"]


@pytest.mark.spec("C018", "PT")
@pytest.mark.parametrize("value", [None, "1", "2"])
def test_a_task_queue_is_told(
    make: Make,
    notes: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    value: str | None,
) -> None:
    """It runs calls late, so that what is dumped may be another's."""
    monkeypatch.delenv("TASK_QUEUE_ENABLE")
    if value is not None:
        monkeypatch.setenv("TASK_QUEUE_ENABLE", value)
    make("Tensor.__mul__.1.forward")
    assert told(capsys) == [
        "TASK_QUEUE_ENABLE is not 0: calls run late, which spoils kernel data. Set it before training starts."
    ]


@pytest.mark.spec("C081", "PT")
@pytest.mark.spec("C119", "PT")
def test_backward(make: Make, notes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gradient = saved(tmp_path, "Tensor.__mul__.0.backward.input.0.pt", torch.tensor([5.0, 7.0]))
    debugger = make("Tensor.__mul__.0.backward", [gradient])
    x = torch.full((2,), 3.0, requires_grad=True)
    k = torch.full((2,), 2.0, requires_grad=True)
    debugger.start()
    with Operators(notes):
        y = x * k
    debugger.stop()
    # forward on copies, then the two products of its backward, then the call itself
    assert notes == ["mul", *BEGIN, "mul", "mul", *END, "mul"]
    assert x.grad is None and k.grad is None
    y.sum().backward()
    assert (x.grad.tolist(), k.grad.tolist()) == ([2.0, 2.0], [3.0, 3.0])
    assert len(told(capsys)) == 1


@pytest.mark.spec("C119", "PT")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_gradient_of_the_file_is_used(
    make: Make, notes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    kind = getattr(torch, dtype)
    gradient = torch.tensor([[1.5], [-2.0]], dtype=kind)
    debugger = make("Torch.max.0.backward", [saved(tmp_path, "g.pt", gradient)])
    seen: list[Any] = []
    real = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *given: (seen.append(given), real(*given))[1])
    debugger.start()
    torch.max(torch.tensor([[1.0, 2.0], [4.0, 3.0]], dtype=kind, requires_grad=True), 1, keepdim=True)
    debugger.stop()
    ((outputs, gradients),) = seen
    assert [tensor.tolist() for tensor in outputs] == [[[2.0], [4.0]]]  # the indices have no gradient
    assert len(gradients) == 1 and torch.equal(gradients[0], gradient)


def test_an_in_place_call_runs_on_a_copy(make: Make, notes: list[str], tmp_path: Path) -> None:
    gradient = saved(tmp_path, "g.pt", torch.ones(2))
    debugger = make("Functional.relu_.0.backward", [gradient])
    leaf = torch.tensor([-1.0, 1.0], requires_grad=True)
    x = leaf.clone()
    debugger.start()
    with Operators(notes):
        torch.relu_(x)
    debugger.stop()
    assert notes == ["relu_", *BEGIN, *END, "relu_"]
    x.sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [0.0, 1.0]


def test_random_numbers_are_those_of_a_run_without_it(make: Make, notes: list[str]) -> None:
    from torch.nn import functional as F

    torch.manual_seed(5)
    plain = F.dropout(torch.ones(50), 0.5), torch.rand(3)
    debugger = make("Functional.dropout.0.forward")
    torch.manual_seed(5)
    debugger.start()
    watched = F.dropout(torch.ones(50), 0.5), torch.rand(3)
    debugger.stop()
    assert notes == [*BEGIN, *END]
    assert torch.equal(plain[0], watched[0]) and torch.equal(plain[1], watched[1])


def test_the_state_of_the_device_is_restored_too(make: Make, notes: list[str]) -> None:
    state = ["as before"]
    npu = sys.modules["torch_npu"].npu
    npu.get_rng_state = lambda: list(state)
    npu.set_rng_state = lambda held: state.__setitem__(slice(None), held)
    npu.init_dump = lambda: state.__setitem__(0, "drawn from")
    debugger = make("Torch.mul.0.forward")
    debugger.start()
    torch.mul(torch.ones(2), 2)
    assert state == ["as before"]


def test_checkpointed_calls_count_as_in_their_first_run(make: Make, notes: list[str]) -> None:
    from torch.utils.checkpoint import checkpoint

    debugger = make("Torch.mul.2.forward")
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    y = checkpoint(lambda z: torch.mul(torch.mul(z, 2), 3), x, use_reentrant=False)
    y.sum().backward()
    assert notes == []
    torch.mul(x, 2)
    debugger.stop()
    assert notes == [*BEGIN, *END]


@pytest.mark.parametrize(
    ("scope", "files", "reason"),
    [
        ("Torch.mul.0.backward", [torch.ones(3)],
         "its outputs have the shapes [[2]] and the files of backward_input [[3]]"),
        ("Torch.mul.0.backward", [torch.ones(2), torch.ones(2)],
         "its outputs have the shapes [[2]] and the files of backward_input [[2], [2]]"),
        ("Torch.argmax.0.backward", [torch.ones(())],
         "its outputs have the shapes [] and the files of backward_input [[]]"),
    ],
)  # fmt: skip
def test_a_dump_that_cannot_be_made_does_not_stop_training(
    make: Make,
    notes: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    scope: str,
    files: list[Any],
    reason: str,
) -> None:
    paths = [saved(tmp_path, f"g{index}.pt", tensor) for index, tensor in enumerate(files)]
    debugger = make(scope, paths)
    debugger.start()
    x = torch.ones(2, requires_grad=True)
    assert torch.mul(x, 2).tolist() == [2.0, 2.0]
    assert torch.argmax(x).item() == 0
    debugger.stop()
    assert notes == []
    assert told(capsys) == [f"the kernel data of {scope} could not be dumped: {reason}."]


def test_a_failure_in_the_middle_ends_the_dump(
    make: Make, notes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str) -> None:
        raise RuntimeError("no such device")

    sys.modules["torch_npu"].npu.set_dump = refuse
    debugger = make("Torch.mul.0.forward")
    debugger.start()
    assert torch.mul(torch.ones(2), 2).tolist() == [2.0, 2.0]
    assert notes == ["init_dump", "finalize_dump"]
    assert told(capsys) == ["the kernel data of Torch.mul.0.forward could not be dumped: no such device."]


def test_a_call_that_never_came_is_told_with_the_nearest(
    make: Make, notes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = make("Torch.mul.7.forward")
    debugger.start()
    for _ in range(3):
        torch.mul(torch.ones(2), 2)
    torch.relu(torch.ones(2))
    debugger.stop()
    debugger.step()
    for _ in range(9):  # each step counts from 0
        debugger.start()
        torch.mul(torch.ones(2), 2)
        debugger.stop()
        debugger.step()
    assert notes == []
    assert told(capsys)[:1] == [
        "no kernel data were dumped: Torch.mul.7.forward was not called in this step; "
        "the nearest call is Torch.mul.2.forward."
    ]


@pytest.mark.parametrize(("keys", "dumped"), [({"step": [1]}, 1), ({"rank": [3]}, None), ({}, 0)])
def test_step_and_rank_filter(make: Make, notes: list[str], keys: dict[str, Any], dumped: int | None) -> None:
    debugger = make("Torch.mul.0.forward", **keys)
    when = []
    for step in range(3):
        debugger.start()
        torch.mul(torch.ones(2), 2)
        debugger.stop()
        debugger.step()
        if notes:
            when.append(step)
            notes.clear()
    assert when == ([] if dumped is None else [dumped])


@pytest.mark.spec("C018", "PT")
@pytest.mark.spec("C078", "PT")
@pytest.mark.spec("C079", "PT")
@pytest.mark.spec("C118", "PT")
@pytest.mark.spec("C119", "PT")
@pytest.mark.spec("C125", "PT")
@pytest.mark.spec("C126", "PT")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_without_torch_npu_it_is_refused_in_one_sentence(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # cannot be imported
    gradient = saved(tmp_path, "g.pt", torch.ones(2))
    with pytest.raises(HardwareError) as caught:
        make(f"Torch.mul.0.{direction}", [gradient])
    assert re.fullmatch(
        r"level L2 dumps kernel data through torch_npu, which cannot be imported here \(.*torch_npu.*\): "
        r"nothing was dumped; use level L1 or mix on this machine\.",
        str(caught.value),
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["acl.json", "config.json", "g.pt", "kernels"]
    assert list((tmp_path / "kernels").iterdir()) == []
    with pytest.raises(UsageError, match="instance is not created"):
        PrecisionDebugger.start()


def test_the_configuration_is_checked_first(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(ConfigError, match="needs the full name of one API"):
        make("relu")
