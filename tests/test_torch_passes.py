"""Backward in all the ways it is run: twice, of a part, of gradients, after stop(); what each level holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets import Gpt, gpt_loss, raw
from torch_fixtures import Probe, probe

__all__ = ["probe"]


def start(probe: Probe, task: str = "tensor") -> Any:
    debugger = probe.debugger("L1", task)
    debugger.start()
    return debugger


def end(debugger: Any) -> None:
    debugger.stop()
    debugger.step()


def grads(probe: Probe, record: str, side: str) -> list[list[float] | None]:
    leaves = probe.data()[f"{record}.backward"][side]
    return [leaf and probe.tensor(leaf["data_name"].removesuffix(".pt")).tolist() for leaf in leaves]


@pytest.mark.spec("P02", "PT")
def test_a_backward_after_stop_is_recorded_until_step(probe: Probe) -> None:
    debugger = start(probe)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.mul(x, 3)
    debugger.stop()
    torch.mul(y, 2).sum().backward()
    debugger.step()
    assert grads(probe, "Torch.mul.0", "output") == [[6.0, 6.0]]
    assert list(probe.data()) == ["Torch.mul.0.forward", "Torch.mul.0.backward"]


def test_a_backward_after_step_is_not(probe: Probe) -> None:
    debugger = start(probe)
    x = torch.ones(2, requires_grad=True)
    y = torch.mul(x, 3)
    end(debugger)
    debugger.start()
    y.sum().backward()
    end(debugger)
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
    assert list(probe.data(0)) == ["Torch.mul.0.forward"]
    assert "Torch.mul.0.backward" not in probe.data(1)


def test_the_same_graph_twice_shows_the_second_pass(probe: Probe) -> None:
    debugger = start(probe)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.mul(x, x)
    y.backward(torch.tensor([1.0, 1.0]), retain_graph=True)
    y.backward(torch.tensor([10.0, 100.0]))
    end(debugger)
    assert grads(probe, "Torch.mul.0", "input") == [[10.0, 100.0]]
    assert grads(probe, "Torch.mul.0", "output") == [[10.0, 200.0], [10.0, 200.0]]
    assert x.grad is not None and x.grad.tolist() == [22.0, 404.0]


def test_gradients_of_some_inputs_only(probe: Probe) -> None:
    debugger = start(probe)
    x, w, b = (torch.rand(shape, requires_grad=True) for shape in ((2, 3, 4), (5, 4), (5,)))
    of_w = torch.autograd.grad(F.linear(x, w, b).sum(), [w])[0]
    end(debugger)
    seen = grads(probe, "Functional.linear.0", "output")
    assert (seen[0], seen[1]) == (None, of_w.tolist())
    assert (x.grad, w.grad, b.grad) == (None, None, None)


def test_inputs_that_need_no_gradient_have_none(probe: Probe) -> None:
    debugger = start(probe)
    x, w, b = torch.rand(2, 4), torch.rand(5, 4, requires_grad=True), torch.rand(5)
    F.linear(x, w, b).sum().backward()
    end(debugger)
    assert [leaf is None for leaf in probe.data()["Functional.linear.0.backward"]["output"]] == [True, False]


def test_gradients_of_gradients(probe: Probe) -> None:
    def work() -> tuple[bytes | None, bytes | None]:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = torch.sin(torch.mul(x, x)).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (y + torch.square(first).sum()).backward()
        return raw(first), raw(x.grad)

    wanted = work()
    debugger = start(probe)
    got = work()
    end(debugger)
    assert got == wanted
    assert {"Torch.sin.0.backward", "Torch.mul.0.backward", "Torch.square.0.backward"} <= set(probe.data())


def test_a_penalty_on_gradients_inside_training(probe: Probe) -> None:
    """As critics are trained: the loss holds a gradient."""

    def work(debugger: Any = None) -> list[bytes | None]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 1))
        x = torch.ones(2, 3, requires_grad=True)
        if debugger is not None:
            debugger.start(model)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (slope.norm(dim=1) - 1).square().mean().backward()
        if debugger is not None:
            end(debugger)
        return [raw(p.grad) for p in model.parameters()]

    assert work(probe.debugger("mix")) == work()


def test_outputs_that_are_never_used_have_no_gradient(probe: Probe) -> None:
    debugger = start(probe)
    x = torch.ones(2, 4, requires_grad=True)
    y = torch.exp(x)
    torch.mul(x, 2)
    y.detach().add(1)
    x.sum().backward()
    end(debugger)
    assert not [
        name for name in probe.data() if name.endswith("backward") and ("exp" in name or "mul" in name)
    ]


def test_a_call_without_inputs_that_need_gradients_has_no_backward(probe: Probe) -> None:
    debugger = start(probe)
    w = torch.ones(2, requires_grad=True)
    (torch.mul(torch.ones(2), 2) * w).sum().backward()
    end(debugger)
    assert "Torch.mul.0.backward" not in probe.data()
    assert "Tensor.__mul__.0.backward" in probe.data()


def test_an_error_in_backward_passes_through(probe: Probe) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            raise ValueError("no gradient here")

    debugger = start(probe)
    x = torch.ones(2, requires_grad=True)
    y = F.linear(Failing.apply(x).view(1, 1, 2), torch.ones(3, 2, requires_grad=True))
    with pytest.raises(ValueError, match="no gradient here"):
        y.sum().backward()
    torch.exp(x).sum().backward()
    end(debugger)
    assert {"Tensor.sum.0.backward", "Torch.exp.0.backward"} <= set(probe.data())
    assert probe.troubles() == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_go_through(probe: Probe, value: float) -> None:
    debugger = start(probe, "statistics")
    x = torch.tensor([value, 1.0], requires_grad=True)
    torch.mul(x, x).sum().backward()
    end(debugger)
    seen = probe.data()["Torch.mul.0.backward"]["output"][0]
    counted = "Nan_count" if value != value else "Inf_count"
    assert (seen[counted], seen["shape"]) == (1, [2])
    assert str(seen["Max"]) == str(value)


def test_gradients_in_float64_and_bfloat16_stay_so(probe: Probe) -> None:
    debugger = start(probe, "statistics")
    for dtype in (torch.float64, torch.bfloat16):
        torch.mul(torch.ones(2, dtype=dtype, requires_grad=True), 3).sum().backward()
    end(debugger)
    kinds = [probe.data()[f"Torch.mul.{count}.backward"]["output"][0]["dtype"] for count in (0, 1)]
    assert kinds == ["torch.float64", "torch.bfloat16"]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, *, scale: Tensor) -> tuple[Tensor, Tensor]:
        return x + F.gelu(self.layer(x)) * scale, x.detach()


@pytest.mark.spec("C117", "PT")
@pytest.mark.spec("C016", "PT")
def test_a_module_has_its_own_share_too(probe: Probe) -> None:
    """Also where its input goes around it, is used elsewhere, and one output has no gradient."""
    torch.manual_seed(1)
    model = nn.ModuleList([Residual()])
    x = torch.randn(2, 3, 4, requires_grad=True)
    scale = torch.rand(4, requires_grad=True)
    h = x.sin()
    debugger = probe.debugger("L0", "tensor")
    debugger.start(model)
    y, _ = model[0](h, scale=scale)
    ((y * torch.arange(24.0).view(2, 3, 4)).sum() + h.square().sum() + scale.sum()).backward()
    end(debugger)
    arrived = probe.tensor("Module.0.Residual.backward.0.input.0")
    assert torch.equal(arrived, torch.arange(24.0).view(2, 3, 4))
    alone, by = h.detach().requires_grad_(), scale.detach().requires_grad_()
    of_h, of_scale = torch.autograd.grad(model[0](alone, scale=by)[0], [alone, by], arrived)
    assert torch.equal(probe.tensor("Module.0.Residual.backward.0.output.0"), of_h)
    assert torch.equal(probe.tensor("Module.0.Residual.backward.0.output.1"), of_scale)
    assert model[0].layer.weight.grad is not None
    weight = probe.tensor("Module.0.layer.Linear.parameters_grad.weight")
    assert torch.equal(weight, model[0].layer.weight.grad)


@pytest.mark.spec("C016", "PT")
@pytest.mark.spec("C117", "PT")
def test_level_l0_holds_every_module_and_nothing_else(probe: Probe) -> None:
    model = Gpt()
    debugger = probe.debugger("L0")
    debugger.start(model)
    gpt_loss(model, 0).backward()
    end(debugger)
    owners = {
        f"Module.{path}.{type(module).__name__}"
        for path, module in model.named_modules()
        if path and not isinstance(module, nn.ModuleList)
    }
    data = probe.data()
    assert {name for name in data if ".forward." in name} == {f"{owner}.forward.0" for owner in owners}
    with_parameters = {
        f"Module.{path}.{type(module).__name__}.parameters_grad"
        for path, module in model.named_modules()
        if list(module.parameters(recurse=False))
    }
    assert {name for name in data if "parameters_grad" in name} == with_parameters
    assert set(data["Module.head.Linear.forward.0"]) == {
        "input_args", "input_kwargs", "output", "parameters", "is_recompute"
    }  # fmt: skip
    assert set(data["Module.head.Linear.forward.0"]["parameters"]) == {"weight", "bias"}


@pytest.mark.spec("C020", "PT")
@pytest.mark.spec("C017", "PT")
def test_level_mix_holds_what_l0_and_l1_hold(probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> None:
    seen = {}
    for level in ("L0", "L1", "mix"):
        one = Probe(tmp_path_factory.mktemp(level))
        torch.manual_seed(0)
        model = Gpt()
        debugger = one.debugger(level)
        debugger.start(model)
        gpt_loss(model, 0).backward()
        end(debugger)
        one.close()
        seen[level] = without_makers(one.data())
    assert seen["mix"] == {**seen["L0"], **seen["L1"]}
    assert not set(seen["L0"]) & set(seen["L1"])


def without_makers(node: Any) -> Any:
    """At each level other calls are seen, and so others are the makers."""
    if isinstance(node, list):
        return [without_makers(item) for item in node]
    if isinstance(node, dict):
        return {key: without_makers(item) for key, item in node.items() if key != "from"}
    return node


KEYS = ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad"]


@pytest.mark.parametrize(
    ("task", "section", "more"),
    [
        pytest.param(
            "statistics", {}, [], marks=[pytest.mark.spec("C006", "PT"), pytest.mark.spec("C074", "PT")]
        ),
        pytest.param("statistics", {"summary_mode": "statistics"}, [], marks=pytest.mark.spec("C072", "PT")),
        pytest.param(
            "statistics",
            {"summary_mode": "md5"},
            ["md5"],
            marks=[pytest.mark.spec("C072", "PT"), pytest.mark.spec("C073", "PT")],
        ),
        pytest.param("statistics", {"summary_mode": "sketch"}, [], marks=pytest.mark.spec("P19", "PT")),
        pytest.param(
            "tensor",
            {},
            ["data_name"],
            marks=[pytest.mark.spec("C007", "PT"), pytest.mark.spec("C089", "PT")],
        ),
    ],
)
def test_what_each_task_holds_of_a_tensor(
    probe: Probe, task: str, section: dict[str, str], more: list[str]
) -> None:
    debugger = probe.debugger("L1", task, section=section)
    debugger.start()
    x = torch.rand(2, 2, requires_grad=True)
    y = F.relu(x)
    y.sum().backward()
    end(debugger)
    leaf = probe.data()["Functional.relu.0.forward"]["input_args"][0]
    place = 1 if more == ["md5"] else 0
    assert list(leaf) == [*KEYS, *more[:place], "hash", "sketch", *more[place:]]
    is_asked = section.get("summary_mode") == "sketch"
    assert leaf["sketch"].startswith("cs64:" if is_asked else "cs16:")
    files = {file.name for file in probe.rank().rglob("*.pt")}
    if task == "statistics":
        assert files == set()
    else:
        assert leaf["data_name"] == "Functional.relu.0.forward.input.0.pt"
        assert torch.equal(probe.tensor("Functional.relu.0.forward.input.0"), x)
        assert torch.equal(probe.tensor("Functional.relu.0.backward.input.0"), torch.ones(2, 2))
        assert {"Functional.relu.0.forward.output.0.pt", "Functional.relu.0.backward.output.0.pt"} <= files


def test_a_file_keeps_the_content_of_its_own_record(probe: Probe) -> None:
    """Backward run twice writes its files anew; what was linked to the first ones must not follow them."""
    x = torch.tensor([0.5, 1.5], requires_grad=True)
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    y = torch.sin(x)
    y.backward(first, retain_graph=True)
    y.backward(second)
    torch.neg(first)
    torch.neg(second)
    debugger.stop()
    debugger.step()
    assert torch.equal(probe.tensor("Torch.sin.0.backward.input.0"), second)
    assert torch.equal(probe.tensor("Torch.neg.0.forward.input.0"), first)
    assert torch.equal(probe.tensor("Torch.neg.1.forward.input.0"), second)


def test_a_backward_after_one_that_failed_midway(probe: Probe) -> None:
    class Fails(nn.Module):
        failing = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            middle = x.exp()
            middle.register_hook(self.fail)
            return middle.sin()

        def fail(self, gradient: torch.Tensor) -> None:
            if self.failing:
                raise RuntimeError("midway")

    model = nn.Sequential(Fails())
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    debugger = probe.debugger("L0", "tensor")
    debugger.start(model)
    y = model(x)
    with pytest.raises(RuntimeError, match="midway"):
        y.sum().backward(retain_graph=True)
    model[0].failing = False
    y.backward(torch.tensor([2.0, 3.0]))
    debugger.stop()
    debugger.step()
    backward = probe.data()["Module.0.Fails.backward.0"]
    assert [leaf["Max"] for leaf in backward["input"]] == [3.0]
    assert x.grad is not None
    assert torch.equal(probe.tensor("Module.0.Fails.backward.0.output.0"), x.grad)
