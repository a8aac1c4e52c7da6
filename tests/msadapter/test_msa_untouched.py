"""Training with the tool on is training: the same to the bit, and nothing stays behind after stop()."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("mindtorch", reason="MSAdapter is not installed here")
from msa_case import Probe, Wide, arrays, made, mindtorch, ms, nn, numbered, probe, torch, training

from msprobe.mindspore import msadapter_apis
from msprobe.mindspore.framework import api

__all__ = ["probe"]


def trained(steps: int, debugger: Any = None) -> list[Any]:
    """Losses, gradients and parameters of a few steps of gradient descent."""
    net, found = numbered(Wide()), []
    step = training(net)
    for number in range(steps):
        if debugger is not None:
            debugger.start(net)
        result = step(made(2, 3, 8, seed=number))
        if debugger is not None:
            debugger.stop()
            debugger.step()
        found += arrays(result)
        for parameter, gradient in zip(net.parameters(), result[1][1], strict=True):
            parameter.assign_value(torch.tensor(parameter.asnumpy() - 0.1 * gradient.asnumpy()))
    return found + arrays(list(net.parameters()))


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    return trained(3)


@pytest.mark.parametrize("level, task", [("L0", "tensor"), ("L1", "statistics"), ("mix", "tensor")])
def test_training_is_the_same_to_the_bit(level: str, task: str, alone: list[Any], probe: Probe) -> None:
    seen = trained(3, probe.debugger(level, task))
    assert [a.tobytes() for a in seen] == [b.tobytes() for b in alone]
    assert all(probe.data(step) and not probe.troubles(step) for step in range(3))


HOLDERS = (
    *{id(place.holder): place.holder for place in msadapter_apis.places(torch)}.values(),
    torch, torch.nn.functional, nn.Module, ms.nn.Cell, ms.ops, ms.mint, api._JitExecutor,
)  # fmt: skip


def as_it_is() -> dict[tuple[int, str], Any]:
    return {(id(holder), name): value for holder in HOLDERS for name, value in list(vars(holder).items())}


def hooks_of(net: Any) -> list[Any]:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    found = [hooks for module in net.modules() for name in names if (hooks := getattr(module, name))]
    return found + [hooks for parameter in net.parameters() if (hooks := parameter.hooks())]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_after_stop_everything_is_as_it_was(level: str, probe: Probe) -> None:
    debugger, net = probe.debugger(level), numbered(Wide())
    step, x = training(net), made(2, 3, 8)
    step(x)
    before = as_it_is()
    for _ in range(2):
        debugger.start(net)
        assert [key for key, value in as_it_is().items() if before.get(key) is not value]
        step(x)
        debugger.stop()
        debugger.step()
        after = as_it_is()
        assert after.keys() == before.keys()
        assert [key for key, value in after.items() if before[key] is not value] == []
        assert hooks_of(net) == []


def test_tensors_keep_their_device(probe: Probe) -> None:
    """mindtorch notes it on the tensor object, and computes with none that lacks it."""
    net, devices = numbered(Wide()), []

    def forward(x: Any) -> Any:
        y = net(x)
        devices.append(str((y * 2.0).device))
        return y.sum()

    debugger, x = probe.debugger("mix"), made(2, 3, 8)
    debugger.start(net)
    ms.grad(forward)(x)
    debugger.stop()
    debugger.step()
    assert devices == [str(x.device)] == [str(mindtorch.device("cpu"))]


def test_a_module_whose_hook_changes_its_input_is_shown_the_changed_one(probe: Probe) -> None:
    net = numbered(Wide())
    handle = net.up.register_forward_pre_hook(lambda module, args: (args[0] * 0.0,))
    probe.record(net, made(2, 3, 8), level="L0")
    handle.remove()
    (leaf,) = probe.data()["Module.up.Linear.forward.0"]["input_args"]
    assert (leaf["Max"], leaf["Min"], leaf["Norm"]) == (0.0, 0.0, 0.0)
    assert hooks_of(net) == []


def test_a_call_that_fails_is_recorded_and_fails(probe: Probe) -> None:
    debugger = probe.debugger("L1")
    debugger.start()
    with pytest.raises(ValueError, match="MatMul") as raised:
        torch.matmul(torch.tensor(np.ones((2, 3), np.float32)), torch.tensor(np.ones((2, 3), np.float32)))
    debugger.stop()
    debugger.step()
    (record,) = probe.data().values()
    assert record["exception"] == f"ValueError: {raised.value}"[:500]
