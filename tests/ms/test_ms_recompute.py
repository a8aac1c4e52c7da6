"""Blocks that backward runs a second time: their calls keep their first names, and are written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from ms_case import Probe, numbered, probe
from ms_nets import Block

__all__ = ["probe"]

Run = Callable[[nn.Cell, Tensor], Tensor]


class Blocks(nn.Cell):
    """Three blocks in a row; the middle one, at least, may be recomputed."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Dense(4, 4), Block(), Block()
        self.run = run

    def construct(self, x: Tensor) -> Tensor:
        x = ops.abs(self.first(x))
        return ops.abs(self.last(self.run(self.middle, x)))


def called(cell: nn.Cell, x: Tensor) -> Tensor:
    return cell(x)


def merged(cell: nn.Cell, x: Tensor) -> Tensor:
    return ms.recompute(cell, x, use_reentrant=False, output_recompute=True)


WAYS: dict[str, Callable[[], nn.Cell]] = {
    "function": lambda: Blocks(lambda cell, x: ms.recompute(cell, x)),
    "function, not reentrant": lambda: Blocks(lambda cell, x: ms.recompute(cell, x, use_reentrant=False)),
    "function, output too": lambda: Blocks(merged),
    "method": lambda: _recomputed(Blocks(called)),
    "method, not reentrant": lambda: _recomputed(Blocks(called), use_reentrant=False),
}


def _recomputed(net: Any, **keys: Any) -> nn.Cell:
    for cell in (net.middle, net.last):
        cell.recompute(**keys)
    return net


def recorded(probe: Probe, net: nn.Cell, level: str, early: bool) -> tuple[Any, Any, Any]:
    debugger = probe.debugger(level)

    def forward(x: Tensor) -> Tensor:
        y = net(x)
        if early:
            debugger.stop()
        return ops.mean(y * y)

    step = ms.value_and_grad(forward, None, net.trainable_params())
    x = Tensor(np.random.RandomState(1).randn(3, 4).astype(np.float32))
    debugger.start(net)
    loss, gradients = step(x)
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""
    data, parents = _own(probe.data()), _own(probe.construct())
    probe.close()
    return data, parents, [value.asnumpy().tolist() for value in (loss, *gradients)]


def _own(found: dict[str, Any]) -> dict[str, Any]:
    """Without what MindSpore calls to keep the output of a block."""
    return {name: item for name, item in found.items() if "stop_gradient" not in name}


def _assert_equal(ours: Any, theirs: Any) -> None:
    """Everything is equal; but the maker of a value may be unknown where it was computed again."""
    if isinstance(ours, dict):
        unknown = {"from"} - (ours.keys() & theirs.keys())
        assert ours.keys() - unknown == theirs.keys() - unknown
        for key in ours.keys() - unknown:
            _assert_equal(ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            _assert_equal(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize("early", [False, True], ids=["stop after backward", "stop before it"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("way", WAYS)
def test_a_recomputed_block_is_recorded_as_any_other(
    way: str, level: str, early: bool, tmp_path_factory: pytest.TempPathFactory, probe: Probe
) -> None:
    plain = recorded(probe, numbered(Blocks(called)), level, early)
    other = Probe(tmp_path_factory.mktemp("recomputed"))
    again = recorded(other, numbered(WAYS[way]()), level, early)
    _assert_equal(again, plain)
    assert [name for name in again[0] if "forward" in name] == [
        name for name in plain[0] if "forward" in name
    ]
