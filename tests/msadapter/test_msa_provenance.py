"""Who made each tensor that MSAdapter's torch computed: as in MindSpore, and buffers by their names."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("mindtorch", reason="MSAdapter is not installed here")
from msa_case import Net, Probe, made, mindtorch, ms, nn, numbered, probe, torch

from msprobe.graph import Graph
from msprobe.record import slots
from msprobe.store.recordings import read_one

__all__ = ["probe"]


own = types.ModuleType("own")
own.take = lambda gradient: None  # type: ignore[attr-defined]


def makers(probe: Probe, step: int = 0) -> dict[str, str | None]:
    """The makers that the tensors of a step name, by their slots."""
    found: dict[str, str | None] = {}
    for key, each in read_one(probe.rank(step) / "dump.json").records.items():
        for slot, _, leaf in slots(each):
            if leaf is not None and leaf.is_tensor:
                found[f"{key}.{slot}"] = leaf.made_by
    return found


def record(
    probe: Probe, work: Callable[[], Any], level: str = "mix", model: Any = None, steps: int = 1
) -> Any:
    debugger = probe.debugger(level)
    debugger.register_custom_api(own, "take")
    for _ in range(steps):
        debugger.start(model)
        work()
        debugger.stop()
        debugger.step()
    assert [probe.troubles(step) for step in range(steps)] == [""] * steps
    return makers(probe)


def gradients_of(net: Any) -> Any:
    return ms.value_and_grad(lambda x: net(x).sum(), None, list(net.parameters()))


def test_buffers_have_their_names(probe: Probe) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4)).train()
    found = record(probe, lambda: model(made(3, 4)), model=model)
    assert found["Functional.batch_norm.0.forward.input.1"] == "buffer:0.running_mean"
    assert found["Functional.batch_norm.0.forward.input.2"] == "buffer:0.running_var"
    assert found["Functional.batch_norm.0.forward.input.3"] == "parameter:0.weight"
    module = "Module.0.BatchNorm1d.forward.0"
    for field in ("buffers", "buffers_after"):
        name = f"{module}.{field}.num_batches_tracked"
        assert found[name] == "buffer:0.num_batches_tracked"
    assert found[f"{module}.buffers.running_mean"] == "buffer:0.running_mean"
    graph = Graph(read_one(probe.rank() / "dump.json"))
    assert graph.parameter(module, "buffers.running_var") == "0.running_var"


def test_inputs_and_gradients_name_the_calls_that_made_them(probe: Probe) -> None:
    """In each step those of this step.

    Before its very first use a parameter of MindSpore 2.7.2 has no node in the graph of backward. So in the
    first step calls show no gradients of parameters, and these have no maker.
    """
    net, x = numbered(Net()), made(2, 8)
    step = gradients_of(net)
    first = record(probe, lambda: step(x), model=net, steps=2)
    found = makers(probe, 1)
    assert found.items() >= {slot: maker for slot, maker in first.items() if maker is not None}.items()
    one, two = "Functional.linear.0", "Functional.linear.1"
    expected = {
        f"{one}.forward.input.0": None,
        f"{one}.forward.input.1": "parameter:linear1.weight",
        "Module.linear1.Linear.forward.0.output.0": f"{one}.forward.output.0",
        f"{two}.forward.input.0": f"{one}.forward.output.0",
        "Functional.relu.0.forward.input.0": f"{two}.forward.output.0",
        "Tensor.sum.0.backward.input.0": None,
        "Functional.relu.0.backward.input.0": "Tensor.sum.0.backward.output.0",
        f"{two}.backward.input.0": "Functional.relu.0.backward.output.0",
        f"{one}.backward.input.0": f"{two}.backward.output.0",
        "Module.linear1.Linear.backward.0.input.0": f"{two}.backward.output.0",
        "Module.linear2.Linear.backward.0.output.0": f"{two}.backward.output.0",
        "Module.linear2.Linear.parameters_grad.weight": f"{two}.backward.output.1",
    }
    assert {slot: found[slot] for slot in expected} == expected


def test_views_and_changes_in_place(probe: Probe) -> None:
    """A view that no call was seen to make has no maker; a change that none made leaves only the place."""

    def work() -> None:
        x = torch.exp(made(3, 4))
        torch.sin(x)
        x.add_(1.0)
        torch.cos(x)
        torch.tanh(x.reshape(4, 3))
        y = torch.exp(made(3, 4))
        ms.Tensor.copy_(y, made(3, 4))  # MindSpore's own names are not recorded here
        torch.abs(y)

    found = record(probe, work, "L1")
    assert found["Torch.sin.0.forward.input.0"] == "Torch.exp.0.forward.output.0"
    assert found["Tensor.add_.0.forward.input.0"] == "Torch.exp.0.forward.output.0"
    assert found["Torch.cos.0.forward.input.0"] == "Tensor.add_.0.forward.output.0"
    assert found["Torch.tanh.0.forward.input.0"] == "Tensor.reshape.0.forward.output.0"
    assert found["Torch.abs.0.forward.input.0"] == "~Torch.exp.1.forward.output.0"


def test_at_level_L0_a_view_has_no_maker(probe: Probe) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.left, self.right = nn.Linear(4, 4), nn.Linear(2, 2), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            both = self.both(x)
            return self.left(both.reshape(6, 2)).sum() + self.right(both).sum()

    model = Heads()
    found = record(probe, lambda: model(made(3, 4)), "L0", model)
    assert found["Module.left.Linear.forward.0.input.0"] is None
    assert found["Module.right.Linear.forward.0.input.0"] == "Module.both.Linear.forward.0.output.0"


@pytest.mark.parametrize("attached", [True, False], ids=["grad", "handed out"])
def test_an_optimizer_takes_the_gradients_of_parameters(attached: bool, probe: Probe) -> None:
    """Those that parameters hold, and those that MindSpore hands out instead."""
    net, x = numbered(Net()), made(2, 8)
    parameters = list(net.parameters())
    with_grad = mindtorch.autograd.value_and_grad(lambda x: net(x).sum(), parameters)

    def work() -> None:
        if attached:
            for parameter in parameters:
                parameter.grad = None
            with_grad(x)
            gradients = [parameter.grad for parameter in parameters]
        else:
            _, gradients = gradients_of(net)(x)
        for gradient in gradients:
            own.take(gradient)

    record(probe, work, model=net, steps=2)
    for found in (makers(probe, 0), makers(probe, 1)):
        assert [found[f"own.take.{number}.forward.input.0"] for number in range(4)] == [
            f"gradient:{layer}.{name}" for layer in ("linear1", "linear2") for name in ("weight", "bias")
        ]
