"""Cells that mindspore.jit compiles inside a dynamic graph: recorded in a folder of their own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from graph_case import bits, part, random, visible
from mindspore import Tensor, nn, ops
from ms_case import Probe, numbered, probe, training

from msprobe.mindspore import PrecisionDebugger

__all__ = ["probe"]


class Inner(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Dense(4, 4), nn.Tanh()
        self.weight = ms.Parameter(Tensor(np.ones(4, np.float32)), name="weight")

    @ms.jit
    def construct(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.act(self.fc(x)) * self.weight * scale


class Outer(nn.Cell):
    """Holds a compiled cell, and is compiled itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.fc = Inner(), nn.Dense(4, 4)

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.fc(self.inner(x))


class Whole(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.outer, self.inner, self.after = nn.Dense(4, 4), Outer(), Inner(), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        x = ops.abs(self.before(x))
        return self.after(self.inner(self.outer(x), scale=2.0))


def cells(data: dict[str, Any]) -> set[str]:
    return {name.split(".forward")[0].removeprefix("Cell.") for name in data if ".forward." in name}


def in_places(record: dict[str, Any]) -> dict[str, Any]:
    """mindspore.jit hands keywords on by their places, and a tap does not know who made a value."""
    given = [*record["input_args"], *record["input_kwargs"].values()]
    return _without_makers({**record, "input_args": given, "input_kwargs": {}})


def _without_makers(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_makers(item) for item in node]
    if isinstance(node, dict):
        return {key: _without_makers(item) for key, item in node.items() if key != "from"}
    return node


GRAPH = {
    "outer.Outer", "outer.inner.Inner", "outer.inner.fc.Dense", "outer.inner.act.Tanh", "outer.fc.Dense",
    "inner.Inner", "inner.fc.Dense", "inner.act.Tanh",
}  # fmt: skip
OUTERMOST = {"outer.Outer", "inner.Inner"}
PYNATIVE = {"before.Dense", "after.Dense"} | OUTERMOST


@pytest.mark.spec("M063", "MSd")
@pytest.mark.spec("M064", "MSd")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_two_folders(level: str, task: str, probe: Probe) -> None:
    inputs = [random(2, 4), random(2, 4) * 2]
    alone = [bits(training(numbered(Whole()))(x)) for x in inputs]
    recorded = probe.record(numbered(Whole()), *inputs, level=level, task=task)
    assert bits(recorded) == alone[1]
    assert visible(probe.folder) == ["graph", "pynative"]
    for step in (0, 1):
        graph, pynative = part(probe, "graph"), part(probe, "pynative")
        assert cells(graph.data(step)) == GRAPH
        assert {name for name in cells(pynative.data(step)) if name[0].islower()} >= PYNATIVE
        assert not (GRAPH - OUTERMOST) & cells(pynative.data(step))
        assert graph.troubles(step) == pynative.troubles(step) == ""
        assert graph.head(step)["level"] == pynative.head(step)["level"] == level
        assert all(name.startswith("Cell.") for name in graph.data(step))
        assert ("Functional.abs.0.forward" in pynative.data(step)) == (level == "mix")
        for name in OUTERMOST:
            ours, theirs = (folder.data(step)[f"Cell.{name}.forward.0"] for folder in (graph, pynative))
            assert in_places(ours) == in_places(theirs)
    assert graph.construct()["Cell.outer.inner.fc.Dense.forward.0"] == "Cell.outer.inner.Inner.forward.0"
    assert graph.construct()["Cell.outer.Outer.forward.0"] is None


def test_gradients_of_compiled_cells(probe: Probe) -> None:
    net = numbered(Whole())
    _, gradients = probe.record(net, random(2, 4), level="L0", task="tensor")
    graph = part(probe, "graph")
    for parameter, gradient in zip(net.trainable_params(), gradients, strict=True):
        path, _, name = parameter.name.rpartition(".")
        owner = next((owner for owner in GRAPH if owner.rpartition(".")[0] == path), None)
        if owner is not None:
            found = graph.tensor(f"Cell.{owner}.parameters_grad.{name}")
            assert found.tobytes() == gradient.asnumpy().tobytes(), parameter.name
    inside = graph.tensor("Cell.outer.fc.Dense.backward.0.input.0")
    around = graph.tensor("Cell.outer.Outer.backward.0.input.0")
    assert np.array_equal(inside, around)
    assert np.array_equal(part(probe, "pynative").tensor("Cell.outer.Outer.backward.0.input.0"), around)


@pytest.mark.spec("M063", "MSd")
def test_without_compiled_cells_there_is_one_folder(probe: Probe) -> None:
    probe.record(numbered(nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())), random(2, 4), level="L0")
    assert visible(probe.folder) == ["step0"]


def test_a_level_without_cells_has_one_folder(probe: Probe) -> None:
    probe.record(numbered(Whole()), random(2, 4), level="L1")
    assert visible(probe.folder) == ["step0"]


@pytest.mark.spec("M019", "MSd")
def test_start_comes_before_the_first_step(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    net = numbered(Whole())
    step = training(net)
    step(random(2, 4))
    debugger = probe.debugger("L0")
    with caplog.at_level(logging.INFO, "msprobe"):
        debugger.start(net)
        step(random(2, 4))
        debugger.stop()
        debugger.step()
    assert part(probe, "graph").data() == {}
    assert cells(part(probe, "pynative").data()) >= PYNATIVE
    assert "call start(model) before the first step" in caplog.text


@pytest.mark.spec("M019", "MSd")
def test_a_step_that_is_not_recorded_compiles_for_one_that_is(probe: Probe) -> None:
    net, debugger = numbered(Whole()), probe.debugger("L0", step=[1])
    step = training(net)
    for _ in range(3):
        debugger.start(net)
        step(random(2, 4))
        debugger.stop()
        debugger.step()
    for name in ("graph", "pynative"):
        assert [folder.name for folder in part(probe, name).folder.glob("step*")] == ["step1"]
    assert cells(part(probe, "graph").data(1)) == GRAPH


def test_a_model_that_is_compiled_itself(probe: Probe) -> None:
    net = numbered(Outer())
    probe.record(net, random(2, 4), level="L0")
    assert cells(part(probe, "graph").data()) == {
        "inner.Inner",
        "inner.fc.Dense",
        "inner.act.Tanh",
        "fc.Dense",
    }


def test_forward_alone_then_stop_then_backward(probe: Probe) -> None:
    net, debugger = numbered(Whole()), probe.debugger("L0")

    def forward(x: Tensor) -> Tensor:
        debugger.start(net)
        y = net(x)
        debugger.stop()
        return (y * y).mean()

    alone = bits(training(numbered(Whole()))(random(2, 4)))
    assert bits(ms.value_and_grad(forward, None, net.trainable_params())(random(2, 4))) == alone
    debugger.step()
    graph = part(probe, "graph").data()
    assert {"Cell.outer.Outer.backward.0", "Cell.outer.inner.fc.Dense.backward.0"} <= graph.keys()


def test_after_stop_cells_are_as_they_were(probe: Probe) -> None:
    net, alone = numbered(Whole()), numbered(Whole())
    compile_graph = ms.graph.api._JitExecutor.compile
    probe.record(net, random(2, 4), level="L0")
    training(alone)(random(2, 4))
    for (_, ours), (_, theirs) in zip(net.cells_and_names(), alone.cells_and_names(), strict=True):
        assert vars(ours).keys() == vars(theirs).keys()
    assert ms.graph.api._JitExecutor.compile is compile_graph
    assert not any(parameter.hooks() for parameter in net.get_parameters())


def test_the_steps_of_both_folders_are_counted_alike(probe: Probe) -> None:
    net, debugger = numbered(Whole()), probe.debugger("L0")
    debugger.set_init_step(5)
    step = training(net)
    for _ in range(2):
        debugger.start(net)
        step(random(2, 4))
        debugger.stop()
        debugger.step()
    for name in ("graph", "pynative"):
        assert sorted(folder.name for folder in part(probe, name).folder.glob("step*")) == ["step5", "step6"]


def test_shapes_that_change_are_compiled_anew(probe: Probe) -> None:
    """Hooks for gradients stand on the parameters meanwhile, and are nothing a graph could be made of."""
    net, debugger = numbered(Whole()), probe.debugger("L0")

    def forward(x: Tensor) -> Tensor:
        return net(x).sum() + net(x[:1]).sum()

    alone = numbered(Whole())
    expected = bits(
        ms.value_and_grad(lambda x: alone(x).sum() + alone(x[:1]).sum(), None, alone.trainable_params())(
            random(2, 4)
        )
    )
    debugger.start(net)
    assert bits(ms.value_and_grad(forward, None, net.trainable_params())(random(2, 4))) == expected
    debugger.stop()
    debugger.step()
    assert "Cell.outer.fc.Dense.forward.1" in part(probe, "graph").data()


def test_older_runs_are_set_aside(probe: Probe, tmp_path: Path) -> None:
    for _ in range(2):
        probe.record(numbered(Whole()), random(2, 4), level="L0")
        probe.close()
        PrecisionDebugger.the.clear()
    for name in ("graph", "pynative"):
        assert [folder.name for folder in sorted(part(probe, name).folder.glob("[ps]*"))] == [
            "previous",
            "step0",
        ]
