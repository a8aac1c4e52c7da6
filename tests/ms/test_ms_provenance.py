"""Who made each tensor that MindSpore computed, in dynamic graphs.

MindSpore says neither which tensors share memory nor, on all devices, that one was written to. So the call
that made a tensor is named exactly only while the content is the same, and a view that no call was seen to
make has no maker.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from ms_case import Probe, numbered, probe
from ms_nets import NETS, Block, train

from msprobe.graph import Graph, Maker
from msprobe.mindspore.framework import mark, mark_of, raise_late_errors
from msprobe.record import Leaf, Recording, slots
from msprobe.store.recordings import read_one

__all__ = ["probe"]


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Dense(4, 4), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        h = ops.relu(self.first(x))
        return self.last(h + ops.tanh(h))


def given() -> Tensor:
    return Tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))


def gradients_of(model: nn.Cell) -> Callable[[Tensor], Any]:
    step: Callable[[Tensor], Any] = ms.value_and_grad(
        lambda x: model(x).sum(), None, model.trainable_params()
    )
    return step


def record(probe: Probe, work: Callable[[], Any], level: str = "L1", model: Any = None, **keys: Any) -> Any:
    """Record one step of work; the makers that its tensors name, by their slots."""
    debugger = probe.debugger(level, **keys)
    debugger.start(model)
    work()
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""
    return makers(probe)


def makers(probe: Probe, step: int = 0) -> dict[str, str | None]:
    found = read_one(probe.rank(step) / "dump.json")
    return {f"{key}.{slot}": leaf.made_by for key, slot, _, leaf in tensors(found)}


def tensors(recording: Recording) -> Iterator[tuple[str, str, str, Leaf]]:
    for key, each in recording.records.items():
        for slot, side, leaf in slots(each):
            if leaf is not None and leaf.is_tensor:
                yield key, slot, side, leaf


def graph_of(probe: Probe, level: str, **section: str) -> Graph:
    model = Net()
    record(probe, lambda: gradients_of(model)(given()), level, model, section=section)
    return Graph(read_one(probe.rank() / "dump.json"))


# ---- forward ----


@pytest.mark.parametrize("mode", ["statistics", "md5"])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_inputs_name_the_calls_that_made_them(probe: Probe, level: str, mode: str) -> None:
    """The hash shows that nothing was written in between, of which MindSpore says nothing."""
    graph = graph_of(probe, level, summary_mode=mode)
    relu, tanh = "Functional.relu.0.forward", "Functional.tanh.0.forward"
    assert graph.makers(tanh, "input.0") == (Maker("call", relu, "output.0"),)
    added = "Tensor.__add__.0.forward"
    assert graph.makers(added, "input.0") == (Maker("call", relu, "output.0"),)
    assert graph.makers(added, "input.1") == (Maker("call", tanh, "output.0"),)
    back = {maker.name for maker in graph.makers("Functional.relu.0.backward", "input.0")}
    assert back == {"Functional.tanh.0.backward", "Tensor.__add__.0.backward"}


def test_parameters_have_their_names(probe: Probe) -> None:
    graph = graph_of(probe, "mix")
    assert graph.parameter("Cell.first.Dense.forward.0", "parameters.weight") == "first.weight"
    assert graph.parameter("Cell.last.Dense.parameters_grad", "bias") == "last.bias"
    assert graph.makers("Cell.last.Dense.forward.0", "input.0") == (
        Maker("call", "Tensor.__add__.0.forward", "output.0"),
    )


def test_running_statistics_are_parameters(probe: Probe) -> None:
    model = nn.SequentialCell(nn.BatchNorm1d(4)).set_train()
    found = record(probe, lambda: model(given()), "mix", model)
    name = "Cell.0.BatchNorm1d.forward.0.parameters.moving_mean"
    assert found[name] == "parameter:0.moving_mean"


def test_a_view_is_known_where_its_call_was_recorded(probe: Probe) -> None:
    """MindSpore does not say whose memory a view shows: at level L0 its maker is left out."""

    class Heads(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.left, self.right = nn.Dense(4, 4), nn.Dense(2, 2), nn.Dense(4, 4)

        def construct(self, x: Tensor) -> Tensor:
            both = self.both(x)
            return self.left(both.view(6, 2)).sum() + self.right(both).sum()

    model = Heads()
    found = record(probe, lambda: model(given()), "mix", model)
    added = "Primitive.bias_add.BiasAdd.0.forward.output.0"
    assert found["Tensor.view.0.forward.input.0"] == added
    assert found["Cell.left.Dense.forward.0.input.0"] == "Tensor.view.0.forward.output.0"
    probe.close()
    found = record(probe, lambda: model(given()), "L0", model)
    assert found["Cell.left.Dense.forward.0.input.0"] is None
    assert found["Cell.right.Dense.forward.0.input.0"] == "Cell.both.Dense.forward.0.output.0"


def test_changes_in_place_have_makers_of_their_own(probe: Probe) -> None:
    """A change that was not recorded shows in the content: then the tensor only lies where it was made.

    The in-place calls of MindSpore's list give a new tensor on a CPU, so that one of our own stands in.
    """
    own = types.ModuleType("own")
    own.copy_ = lambda to, other: to.copy_(other)  # type: ignore[attr-defined]

    def work() -> None:
        x = mint.exp(given())
        mint.sin(x)
        own.copy_(x, given())
        mint.cos(x)
        x[0] = 3.0  # MindSpore's list does not have this
        mint.tan(x)
        y = mint.exp(given())
        y[0] = 3.0
        mint.abs(y)
        z = mint.exp(given())
        z.add_(1.0)
        mint.square(z)

    debugger = probe.debugger("L1")
    debugger.register_custom_api(own, "copy_")
    debugger.start()
    work()
    debugger.stop()
    debugger.step()
    found = makers(probe)
    assert found["Mint.sin.0.forward.input.0"] == "Mint.exp.0.forward.output.0"
    assert found["own.copy_.0.forward.input.0"] == "Mint.exp.0.forward.output.0"
    assert found["Mint.cos.0.forward.input.0"] == "own.copy_.0.forward.output.0"
    assert found["Mint.tan.0.forward.input.0"] == "~own.copy_.0.forward.output.0"
    assert found["Mint.abs.0.forward.input.0"] == "~Mint.exp.1.forward.output.0"
    assert found["Mint.square.0.forward.input.0"] in (  # on a CPU; elsewhere
        "~Tensor.add_.0.forward.input.0",
        "Tensor.add_.0.forward.output.0",
    )


def test_what_comes_out_as_it_went_in_comes_from_the_call(probe: Probe) -> None:
    """That such an output names the maker of the input is left out: it looks as if it were written to."""

    def work() -> None:
        ops.sin(ops.dropout(ops.exp(given()), p=0.5, training=False))

    found = record(probe, work)
    assert found["Functional.dropout.0.forward.output.0"] is None
    assert found["Functional.sin.0.forward.input.0"] == "Functional.dropout.0.forward.output.0"


def test_a_tensor_that_is_gone_is_never_taken_for_another(probe: Probe) -> None:
    """The same address and the same numbers do not make it the same tensor."""
    addresses = []
    make = ops.Exp()  # nobody sees this one

    def work() -> None:
        x = ops.exp(given())
        for _ in range(30):
            x = ops.exp(given())
            addresses.append(x.data_ptr())
            del x
            gc.collect()
            x = make(given())
            addresses.append(x.data_ptr())
            ops.sin(x)

    found = record(probe, work)
    assert len(set(addresses)) < len(addresses)
    assert {maker for slot, maker in found.items() if ".sin." in slot} == {None}


# ---- backward ----


def test_gradients_name_the_backward_calls_that_gave_them_out(probe: Probe) -> None:
    """A sum of several has no single maker; a gradient that only passes keeps the one that it has."""
    model = Net()
    found = record(probe, lambda: gradients_of(model)(given()), "mix", model)
    backward = {slot: maker for slot, maker in found.items() if ".backward." in slot and ".input." in slot}
    last = "Primitive.matmul.MatMul.1.backward.output.0"
    assert backward == {
        "Tensor.sum.0.backward.input.0": None,
        "Primitive.bias_add.BiasAdd.1.backward.input.0": "Tensor.sum.0.backward.output.0",
        "Primitive.matmul.MatMul.1.backward.input.0": "Tensor.sum.0.backward.output.0",
        "Cell.last.Dense.backward.0.input.0": "Tensor.sum.0.backward.output.0",
        "Tensor.__add__.0.backward.input.0": last,
        "Functional.tanh.0.backward.input.0": last,
        "Functional.relu.0.backward.input.0": None,
        "Primitive.bias_add.BiasAdd.0.backward.input.0": "Functional.relu.0.backward.output.0",
        "Primitive.matmul.MatMul.0.backward.input.0": "Functional.relu.0.backward.output.0",
        "Cell.first.Dense.backward.0.input.0": "Functional.relu.0.backward.output.0",
    }
    assert found["Tensor.__add__.0.backward.output.0"] == last
    assert found["Cell.last.Dense.backward.0.output.0"] == last
    assert found["Cell.last.Dense.parameters_grad.weight"] == "Primitive.matmul.MatMul.1.backward.output.1"


def test_a_mark_belongs_to_one_tensor_and_dies_with_it() -> None:
    x = ops.exp(given())
    known = mark(x)
    assert mark(x) is known
    assert mark_of(x.data) is known  # another object for the same tensor
    assert [mark_of(other) for other in (x.view(6, 2), x.copy(), x + 0, x[1:])] == [None] * 4
    dead = weakref.ref(known)
    del known
    gc.collect()
    assert dead() is not None
    raise_late_errors()  # until they have run, the calls hold their arguments
    del x
    gc.collect()
    assert dead() is None


def test_no_mark_outlives_a_step(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = []

    def counted(tensor: Tensor) -> Any:
        known = mark(tensor)
        marks.append(weakref.ref(known))
        return known

    monkeypatch.setattr("msprobe.mindspore.gradients.mark", counted)
    model = Net()
    record(probe, lambda: gradients_of(model)(given()), "mix", model)
    raise_late_errors()
    gc.collect()
    assert marks
    assert all(each() is None for each in marks)


def test_a_recomputed_block_has_the_makers_of_any_other(probe: Probe) -> None:
    """The forward calls are those of the first run, the gradients those of the second, under its names."""
    found: list[dict[str, str | None]] = []
    for recomputes in (False, True):
        model = nn.SequentialCell(numbered(Block()), numbered(Block()))
        if recomputes:
            model[0].recompute()
            model[1].recompute(use_reentrant=False)
        found.append(record(probe, lambda m=model: gradients_of(m)(given()), "mix", model))  # type: ignore[misc]
        probe.close()
    plain, again = found
    assert plain.keys() <= again.keys()  # MindSpore computes the gradient of a block's input as well
    assert {slot: again[slot] for slot in plain} == plain
    assert plain["Functional.sin.0.backward.input.0"] == "Primitive.matmul.MatMul.1.backward.output.0"


# ---- the optimizer, and steps ----


class Tied(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Dense(4, 4), nn.Dense(4, 4)
        self.b.weight = self.a.weight
        self.shift = Parameter(Tensor(np.ones((3, 4), np.float32)), name="shift")

    def construct(self, x: Tensor) -> Tensor:
        return self.b(ops.tanh(self.a(x)) + self.shift)


def trained(probe: Probe, level: str) -> list[dict[str, str | None]]:
    """The makers of two steps with an optimizer."""
    model = Tied()
    optimizer = nn.SGD(model.trainable_params(), 0.1)
    step, debugger = gradients_of(model), probe.debugger(level)
    for _ in range(2):
        debugger.start(model)
        _, gradients = step(given())
        optimizer(gradients)
        debugger.stop()
        debugger.step()
    assert probe.troubles() == probe.troubles(1) == ""
    return [makers(probe), makers(probe, 1)]


def test_an_optimizer_takes_the_gradients_of_parameters(probe: Probe) -> None:
    """Also of one that two cells share, by its first name; in each step those of this step."""
    one, two = trained(probe, "mix")
    assert one == two
    taken = [one[f"Jit.SGD.0.forward.input.1.{number}"] for number in range(4)]
    # The model itself is not recorded, and so nobody looks at the gradient of its own parameter.
    shift = "Primitive.matmul.MatMul.1.backward.output.0"
    assert taken == [shift, "gradient:a.weight", "gradient:a.bias", "gradient:b.bias"]
    assert one["Primitive.matmul.MatMul.1.forward.input.1"] == "parameter:a.weight"
    assert one["Cell.b.Dense.forward.0.parameters.weight"] == "parameter:a.weight"
    # The addition hands one gradient to the parameter and to tanh: backward goes on with that of a call.
    assert one["Functional.tanh.0.backward.input.0"] == shift


def test_without_cells_an_optimizer_takes_what_calls_gave_out(probe: Probe) -> None:
    """At level L1 nobody looks at parameters: a gradient that was added up has no maker."""
    one, two = trained(probe, "L1")
    assert one == two
    assert [one[f"Jit.SGD.0.forward.input.1.{number}"] for number in range(4)] == [
        "Primitive.matmul.MatMul.1.backward.output.0",
        None,
        "Primitive.bias_add.BiasAdd.0.backward.output.1",
        "Primitive.bias_add.BiasAdd.1.backward.output.1",
    ]


@pytest.mark.parametrize(
    ("by_step", "is_changed", "maker"),
    [
        (False, False, "Cell.0.Dense.forward.0.output.0"),
        (True, False, "step0/Cell.0.Dense.forward.0.output.0"),
        (True, True, "~step0/Cell.0.Dense.forward.0.output.0"),
    ],
)
def test_what_outlives_a_stop_keeps_its_maker(
    probe: Probe, by_step: bool, is_changed: bool, maker: str
) -> None:
    model = nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 4))
    debugger = probe.debugger("L0")
    debugger.start(model)
    h = model[0](given())
    debugger.stop()
    if by_step:
        debugger.step()
    if is_changed:
        h[0] = 1
    debugger.start(model)
    model[1](h)
    debugger.stop()
    debugger.step()
    found = makers(probe, int(by_step))
    assert found["Cell.1.Dense.forward.0.input.0"] == maker
    assert found["Cell.1.Dense.forward.0.parameters.weight"] == "parameter:1.weight"


class Momentum(nn.Optimizer):
    """One of the user's own; MindSpore compiles its own optimizers, whose state nobody sees."""

    def __init__(self, parameters: list[Parameter]) -> None:
        super().__init__(0.1, parameters)
        self.kept = self.parameters.clone(prefix="moment", init="zeros")

    def construct(self, gradients: tuple[Tensor, ...]) -> None:
        for parameter, kept, gradient in zip(self.parameters, self.kept, gradients, strict=True):
            ops.assign(kept, ops.add(ops.mul(kept, 0.9), gradient))
            ops.assign_sub(parameter, ops.mul(kept, 0.1))


def test_what_an_optimizer_keeps_has_names(probe: Probe) -> None:
    model = nn.SequentialCell(nn.Dense(4, 4))
    optimizer = Momentum(model.trainable_params())
    step, debugger = gradients_of(model), probe.debugger("L1")
    for _ in range(2):
        debugger.start(model)
        _, gradients = step(given())
        optimizer(gradients)
        debugger.stop()
        debugger.step()
    assert probe.troubles() == probe.troubles(1) == ""
    one, two = makers(probe), makers(probe, 1)
    for found in (one, two):
        assert found["Functional.mul.0.forward.input.0"] == "optimizer:moment.0.weight"
        assert found["Functional.mul.2.forward.input.0"] == "optimizer:moment.0.bias"
    assert type(optimizer).__call__ is nn.Cell.__call__


# ---- nothing that is said is wrong ----


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("net", NETS)
def test_every_value_is_what_its_maker_gave_out(probe: Probe, net: str, level: str) -> None:
    """Bit by bit, over two steps."""
    train(NETS[net], probe.debugger(level, "tensor"), steps=2)
    for step in (0, 1):
        assert probe.troubles(step) == ""
        found = read_one(probe.rank(step) / "dump.json")
        graph, folder, checked, backward = Graph(found), probe.rank(step) / "dump_tensor_data", 0, 0
        for key, slot, side, leaf in tensors(found):
            for maker in graph.makers(key, slot):
                if maker.kind == "call" and maker.is_exact:
                    made = graph.leaf(maker.name, maker.slot)
                    assert made is not None
                    assert content(folder, leaf) == content(folder, made), (key, slot, maker)
                    checked += 1
                    backward += side == "input" and ".backward" in key
        assert checked > 5
        assert backward > 2


def content(folder: Path, leaf: Leaf) -> bytes:
    assert leaf.data_name is not None
    return (folder / leaf.data_name).read_bytes()
