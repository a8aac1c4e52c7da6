"""Who made each tensor that MindSpore computed, in dynamic graphs."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from ms_case import Probe, probe

from msprobe.graph import Graph, Maker
from msprobe.store.recordings import read_one

__all__ = ["probe"]


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Dense(4, 4), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        h = ops.relu(self.first(x))
        return self.last(h + ops.tanh(h))


def graph_of(probe: Probe, level: str, **section: str) -> Graph:
    model = Net()
    debugger = probe.debugger(level, section=section)
    step = ms.value_and_grad(lambda x: model(x).sum(), None, model.trainable_params())
    debugger.start(model)
    step(Tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)))
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""
    return Graph(read_one(probe.rank() / "dump.json"))


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
