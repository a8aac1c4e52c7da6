"""Cells out of the ordinary: called by name, shared, nested arguments, hooks and a backward of their own."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from ms_case import Probe, numbered, probe
from ms_nets import NETS, Block

__all__ = ["probe"]

X = Tensor(np.random.RandomState(2).randn(3, 4).astype(np.float32))


def record(probe: Probe, name: str, level: str = "L0") -> tuple[Any, dict[str, Any]]:
    """The net, and the gradients of its parameters by their names."""
    net = numbered(NETS[name].build())
    _, gradients = probe.record(net, X, level=level, task="tensor")
    names = [parameter.name for parameter in net.trainable_params()]
    assert probe.troubles() == ""
    return net, dict(zip(names, [gradient.asnumpy() for gradient in gradients], strict=True))


def test_a_shared_cell_counts_its_calls_and_has_one_gradient(probe: Probe) -> None:
    _, gradients = record(probe, "shared")
    directions = ("forward.0", "forward.1", "forward.2", "backward.2", "backward.1", "backward.0")
    assert list(probe.data()) == [
        *(f"Cell.fc.Dense.{way}" for way in directions),
        "Cell.fc.Dense.parameters_grad",
    ]
    total = probe.tensor("Cell.fc.Dense.parameters_grad.weight")
    assert total.tolist() == gradients["same.weight"].tolist()  # MindSpore names it by the last attribute
    shares = []
    for call in range(3):
        given = probe.tensor(f"Cell.fc.Dense.forward.{call}.input.0")
        shares.append(probe.tensor(f"Cell.fc.Dense.backward.{call}.input.0").T @ given)
    assert np.allclose(sum(shares), total, rtol=1e-5)


def test_a_backward_of_its_own(probe: Probe) -> None:
    record(probe, "bprop", level="mix")
    given = probe.tensor("Cell.rule.Rule.backward.0.input.0")
    assert probe.tensor("Cell.rule.Rule.backward.0.output.0").tolist() == (given * 2).tolist()
    assert np.allclose(probe.tensor("Cell.rule.Rule.backward.0.output.1"), np.tanh(given), rtol=1e-6)
    assert probe.construct()["Functional.exp.0.forward"] == "Cell.rule.Rule.forward.0"


def test_inputs_are_seen_behind_the_hooks_of_a_cell(probe: Probe) -> None:
    net, gradients = record(probe, "hooks")
    fc = "Cell.fc.Dense"
    given, gave = probe.tensor(f"{fc}.forward.0.input.0"), probe.tensor(f"{fc}.forward.0.output.0")
    assert given.tolist() == (X.asnumpy() * 2).tolist()
    weight, bias = net.fc.weight.asnumpy(), net.fc.bias.asnumpy()
    assert np.allclose(gave, given @ weight.T + bias + 1, rtol=1e-5)
    assert {name: len(getattr(net.fc, name)) for name in ("_forward_pre_hook", "_forward_hook")} == {
        "_forward_pre_hook": 1,
        "_forward_hook": 1,
    }
    assert probe.tensor("Cell.mid.Dense.parameters_grad.weight").tolist() == gradients["mid.weight"].tolist()


@pytest.mark.spec("M053", "MSd")
@pytest.mark.spec("M055", "MSd")
@pytest.mark.spec("R08", "MSd")
def test_nested_arguments_have_their_places_in_names(probe: Probe) -> None:
    record(probe, "nested")
    cell = "Cell.one.Pair.forward.0"
    places = ("input.0.0.0", "input.0.0.1.0", "input.0.0.1.1", "input.0.1.n", "kwargs.scale.s")
    places += ("output.0.0", "output.0.1.0", "output.0.1.1.c", "output.0.1.1.n")
    assert {name for name in probe.files() if name.startswith(cell)} == {
        f"{cell}.{place}.npy" for place in places
    }
    assert probe.tensor(f"{cell}.input.0.0.1.1").tolist() == (X.asnumpy() * 2).tolist()
    record_ = probe.data()[cell]
    assert record_["output"][1:] == [{"type": "int", "value": 3}, None]


class Named(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def construct(self, x: Tensor) -> Tensor:
        return self.block(x=x * 1.0)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_arguments_by_name(level: str, probe: Probe) -> None:
    probe.record(numbered(Named()), X, level=level, task="tensor")
    assert probe.troubles() == ""
    if level != "L1":
        assert probe.tensor("Cell.block.Block.forward.0.kwargs.x").tolist() == X.asnumpy().tolist()
        backward = probe.data()["Cell.block.Block.backward.0"]
        assert [leaf and leaf["shape"] for leaf in backward["output"]] == [None]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_cell_that_is_differentiated_itself_has_its_backward(level: str, probe: Probe) -> None:
    debugger, net = probe.debugger(level, "tensor"), numbered(Named())
    debugger.start(net)
    gradient = ms.grad(net.block)(X)
    debugger.stop()
    debugger.step()
    block = "Cell.block.Block.backward.0"
    assert probe.tensor(f"{block}.output.0").tolist() == gradient.asnumpy().tolist()
    assert probe.tensor(f"{block}.input.0").tolist() == np.ones(X.shape).tolist()


def test_an_input_that_is_given_twice_has_a_gradient_for_each_place(probe: Probe) -> None:
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    ms.grad(lambda x: ops.mul(x * 1.0, x * 1.0).sum() + (lambda y: ops.mul(y, y).sum())(x * 3.0))(X)
    debugger.stop()
    debugger.step()
    for call, scale in ((0, 1.0), (1, 3.0)):
        shares = [probe.tensor(f"Functional.mul.{call}.backward.output.{place}") for place in (0, 1)]
        assert [np.allclose(share, X.asnumpy() * scale, rtol=1e-6) for share in shares] == [True, True]
