"""In-place calls: their input as it was before, their gradients, and those of the calls around them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_fixtures import Probe, probe

__all__ = ["probe"]


def set_row(h: Tensor, y: Tensor) -> None:
    h[1] = y[0]


def add_to_row(h: Tensor, y: Tensor) -> None:
    h[1] += y[0]


def add(h: Tensor, y: Tensor) -> None:
    h += y


class InPlace(NamedTuple):
    """A call that changes part of h with the help of y: the same done without changing anything."""

    record: str
    call: Callable[[Tensor, Tensor], object]
    part: Callable[[Tensor], Tensor]  # what of h the call is given
    new: Callable[[Tensor, Tensor], Tensor]  # that part after the call


def whole(h: Tensor) -> Tensor:
    return h


def row(h: Tensor) -> Tensor:
    return h[1]


def columns(h: Tensor) -> Tensor:
    return h[:, 1:3]


def with_row(h: Tensor, y: Tensor) -> Tensor:
    return torch.cat([h[:1], y[:1], h[2:]])


IN_PLACE = {
    "relu_": InPlace("Tensor.relu_", lambda h, y: h.relu_(), whole, lambda h, y: h.relu()),
    "F.relu_": InPlace("Functional.relu_", lambda h, y: F.relu_(h), whole, lambda h, y: h.relu()),
    "F.relu": InPlace("Functional.relu", lambda h, y: F.relu(h, inplace=True), whole, lambda h, y: h.relu()),
    "F.leaky_relu": InPlace(
        "Functional.leaky_relu",
        lambda h, y: F.leaky_relu(h, 0.3, True),
        whole,
        lambda h, y: F.leaky_relu(h, 0.3),
    ),
    "add_": InPlace("Tensor.add_", lambda h, y: h.add_(y, alpha=2), whole, lambda h, y: h + 2 * y),
    "+=": InPlace("Tensor.__iadd__", add, whole, lambda h, y: h + y),
    "mul_": InPlace("Tensor.mul_", lambda h, y: h.mul_(y), whole, lambda h, y: h * y),
    "masked_fill_": InPlace(
        "Tensor.masked_fill_",
        lambda h, y: h.masked_fill_(y > 0, 0.5),
        whole,
        lambda h, y: h.masked_fill(y > 0, 0.5),
    ),
    "h[1] = v": InPlace("Tensor.__setitem__", set_row, whole, with_row),
    "row mul_": InPlace("Tensor.mul_", lambda h, y: h[1].mul_(y[0]), row, lambda h, y: h * y[0]),
    "columns mul_": InPlace(
        "Tensor.mul_", lambda h, y: h[:, 1:3].mul_(y[:, :2]), columns, lambda h, y: h * y[:, :2]
    ),
    "columns relu": InPlace(
        "Functional.relu_", lambda h, y: F.relu_(h[:, 1:3]), columns, lambda h, y: h.relu()
    ),
    "turned add_": InPlace(
        "Tensor.add_", lambda h, y: h.t().add_(y.t()), lambda h: h.t(), lambda h, y: h + y.t()
    ),
    "flat mul_": InPlace(
        "Tensor.mul_",
        lambda h, y: h.view(-1).mul_(y.view(-1)),
        lambda h: h.view(-1),
        lambda h, y: h * y.view(-1),
    ),
    "h[1] += v": InPlace("Tensor.__iadd__", add_to_row, row, lambda h, y: h + y[0]),
}


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(3, 4, dtype=torch.float64).requires_grad_(), torch.randn(
        3, 4, dtype=torch.float64
    ).requires_grad_()


WEIGHTS = torch.arange(1.0, 13.0, dtype=torch.float64).view(3, 4)


@pytest.mark.spec("P12", "PT")
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_calls_and_their_neighbours(probe: Probe, name: str) -> None:
    case = IN_PLACE[name]
    debugger = probe.debugger("L1", "tensor")
    x, y = inputs()
    debugger.start()
    h = torch.sin(x)
    case.call(h, y)
    (torch.mul(h, WEIGHTS)).sum().backward()
    debugger.stop()
    debugger.step()

    old = x.detach().sin()
    before = case.part(old).clone().requires_grad_()
    other = y.detach().clone().requires_grad_()
    after = case.new(before, other)
    arrived = case.part(WEIGHTS)
    of_before, of_other = torch.autograd.grad(after, [before, other], arrived, allow_unused=True)

    forward = probe.data()[f"{case.record}.0.forward"]
    assert torch.equal(probe.tensor(f"{case.record}.0.forward.input.0"), before)
    if forward["output"] != [None]:
        assert torch.equal(probe.tensor(f"{case.record}.0.forward.output.0"), after)
    assert torch.equal(probe.tensor(f"{case.record}.0.backward.input.0"), arrived)
    backward = probe.data()[f"{case.record}.0.backward"]
    if of_before is None:
        assert backward["output"][0] is None
    else:
        assert torch.equal(probe.tensor(f"{case.record}.0.backward.output.0"), of_before)
    if of_other is not None:
        assert x.grad is not None and y.grad is not None
        assert torch.equal(y.grad, of_other)
        assert backward["output"][-1] is not None
    assert {"Torch.sin.0.backward", "Torch.mul.0.backward"} <= probe.data().keys()
    assert torch.equal(probe.tensor("Torch.mul.0.backward.output.0"), WEIGHTS)
    of_h = torch.autograd.grad(_through(case, old, other), old, WEIGHTS)[0]
    assert torch.equal(probe.tensor("Torch.sin.0.backward.input.0"), of_h)


def _through(case: InPlace, old: Tensor, y: Tensor) -> Tensor:
    """h after the call, as a function of h before it."""
    h = old.requires_grad_() * 1.0
    case.call(h, y)
    return h


class Modules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))


@pytest.mark.spec("P12", "PT")
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_modules_that_work_in_place(probe: Probe, level: str) -> None:
    debugger = probe.debugger(level, "tensor")
    model = Modules()
    debugger.start(model)
    model(torch.randn(3, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    before = probe.tensor("Module.act.ReLU.forward.0.input.0")
    assert (before < 0).any()
    assert torch.equal(before, probe.tensor("Module.first.Linear.forward.0.output.0"))
    assert torch.equal(before.relu(), probe.tensor("Module.act.ReLU.forward.0.output.0"))
    arrived = probe.tensor("Module.act.ReLU.backward.0.input.0")
    assert torch.equal(probe.tensor("Module.act.ReLU.backward.0.output.0"), arrived * (before > 0))
    assert torch.equal(probe.tensor("Module.first.Linear.backward.0.input.0"), arrived * (before > 0))
    assert torch.equal(probe.tensor("Module.last.Linear.backward.0.output.0"), arrived)


class Editing(nn.Module):
    """Changes a view of what it is given, and returns it."""

    def forward(self, x: Tensor) -> Tensor:
        x[0] = x[0] * 2
        return x.add_(1)


@pytest.mark.spec("P12", "PT")
@pytest.mark.parametrize("view", [False, True], ids=["whole", "view"])
def test_a_module_that_edits_its_input(probe: Probe, view: bool) -> None:
    debugger = probe.debugger("L0", "tensor")
    model = nn.Sequential(Editing())
    x = torch.randn(2, 4, requires_grad=True)
    h = x * 3
    debugger.start(model)
    model(h[:, 1:3] if view else h)
    (h * torch.arange(8.0).view(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    part: Any = (slice(None), slice(1, 3)) if view else ...
    assert torch.equal(probe.tensor("Module.0.Editing.forward.0.input.0"), (x.detach() * 3)[part])
    arrived = torch.arange(8.0).view(2, 4)[part]
    assert torch.equal(probe.tensor("Module.0.Editing.backward.0.input.0"), arrived)
    wanted = torch.stack([arrived[0] * 2, arrived[1]])
    assert torch.equal(probe.tensor("Module.0.Editing.backward.0.output.0"), wanted)


class Mark:
    """Something that can be watched."""


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Only what nobody refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("record", [False, True], ids=["alone", "recorded"])
def test_a_graph_dies_with_its_last_tensor(probe: Probe, record: bool) -> None:
    debugger = probe.debugger("L1")
    if record:
        debugger.start()
    a = torch.ones(3, 4, requires_grad=True)
    y = a.exp()
    y = y + 0
    y[:2].mul_(torch.full((2, 4), 2.0))
    mark = Mark()
    assert y.grad_fn is not None
    y.grad_fn.metadata["mark"] = mark  # what lives as long as the node
    node = weakref.ref(mark)
    del y, mark
    assert node() is None
    debugger.stop()
