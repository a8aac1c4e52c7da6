"""A kernel that a device lacks fails one call late: training sees that as it would alone, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from ms_case import Probe, probe

from msprobe.mindspore.framework import executor

__all__ = ["probe"]

LEVELS = ("L0", "L1", "mix")


class Failing(nn.Cell):
    """In the middle of a net: what a CPU cannot do."""

    def construct(self, x: Tensor) -> Tensor:
        return mint.norm(x)


class Chain(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.failing, self.out = nn.Dense(4, 4), Failing(), nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        return self.out(self.failing(self.fc(x)) * 2)


def error_of(work: Callable[[], Any]) -> str:
    """Whatever comes, now or when the result is looked at."""
    with pytest.raises(RuntimeError) as caught:
        result = work()
        (result[0] if isinstance(result, tuple) else result).asnumpy()
    return str(caught.value).partition("\n")[0]


X = Tensor(np.ones((2, 4), np.float32))
WORK: dict[str, Callable[[nn.Cell], Callable[[], Any]]] = {
    "forward": lambda net: lambda: net(X),
    "training": lambda net: (
        lambda: ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(X)
    ),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("work", WORK)
def test_training_sees_the_error_it_would_see_alone(work: str, level: str, probe: Probe) -> None:
    alone = error_of(WORK[work](Chain()))
    debugger, net = probe.debugger(level), Chain()
    debugger.start(net)
    assert error_of(WORK[work](net)) == alone
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""
    failed = {name for name, record in probe.data().items() if "exception" in record}
    expected = {"Cell.failing.Failing.forward.0"} if level != "L1" else set()
    assert failed == expected | ({"Mint.norm.0.forward"} if level != "L0" else set())


@pytest.mark.parametrize("level", LEVELS)
def test_an_error_from_before_is_not_laid_to_a_call(level: str, probe: Probe) -> None:
    """What failed in a call that is not recorded comes out of the next one, which did nothing wrong."""
    debugger, net = probe.debugger(level), nn.SequentialCell(nn.ReLU())
    debugger.start(net)
    debugger.stop()
    bad = mint.norm(X)
    debugger.start(net)
    assert "LinalgVectorNorm" in error_of(lambda: net(ops.abs(bad)))
    result = net(ops.abs(X)).asnumpy().tolist()
    debugger.stop()
    debugger.step()
    assert result == X.asnumpy().tolist()
    assert not any("exception" in record for record in probe.data().values())
    assert probe.troubles() == ""


class FailsBackward(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x * 2

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout * mint.norm(dout),)


@pytest.mark.parametrize("level", LEVELS)
def test_an_error_of_backward_reaches_training(level: str, probe: Probe) -> None:
    def net() -> nn.Cell:
        return nn.SequentialCell(nn.Dense(4, 4), FailsBackward(), nn.Dense(4, 4))

    alone = error_of(WORK["training"](net()))
    debugger, recorded = probe.debugger(level), net()
    debugger.start(recorded)
    assert error_of(WORK["training"](recorded)) == alone
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""


def test_what_is_left_of_a_failed_backward_ends_no_process(probe: Probe) -> None:
    """MindSpore drops the callbacks of such a backward where Python must not free anything."""
    debugger = probe.debugger("L0")
    for _ in range(40):
        net = nn.SequentialCell(nn.Dense(4, 4), FailsBackward(), nn.Dense(4, 4))
        debugger.start(net)
        error_of(WORK["training"](net))
        debugger.stop()
        debugger.step()
        executor.clear_res()
    assert probe.troubles(39) == ""


def test_recording_goes_on_after_it(probe: Probe) -> None:
    debugger, net = probe.debugger("mix"), Chain()
    for _ in range(2):
        debugger.start(net)
        error_of(WORK["training"](net))
        ops.abs(X)
        debugger.stop()
        debugger.step()
    names = [set(probe.data(step)) for step in (0, 1)]
    assert names[0] == names[1] >= {"Functional.abs.0.forward", "Cell.fc.Dense.forward.0"}
