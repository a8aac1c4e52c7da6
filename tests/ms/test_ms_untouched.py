"""After stop() MindSpore is what it was, and nothing is held: no hook, no wrapper, no tensor, no memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from ms_case import Net, Probe, golden_inputs, numbered, probe, training
from ms_nets import NETS, Recomputed
from ms_soak import follow, live_tensors

from msprobe.mindspore import apis, framework, recompute

__all__ = ["probe"]

HOLDERS: tuple[Any, ...] = (
    ms, nn, ops, mint, mint.nn, mint.nn.functional, Tensor, ms.Parameter, nn.Cell, ms.graph.api,
    framework.api._JitExecutor, *framework.bytecode_capture(), recompute._home,
    recompute._home._RecomputeCell, *{place.holder for place in apis.places()}, ops.MatMul, ops.Conv2D,
)  # fmt: skip


_COUNTERS = ("total_instance_count",)


def as_it_is() -> dict[tuple[str, str], Any]:
    """Everything that stands where recording could put something else."""
    everything = [(holder, name, value) for holder in HOLDERS for name, value in list(vars(holder).items())]
    return {(str(holder), name): value for holder, name, value in everything if name not in _COUNTERS}


def changed(before: dict[Any, Any]) -> list[Any]:
    """Where something else stands now; a list of few, which a failing test can show."""
    after, nothing = as_it_is(), object()
    return [key for key in {**before, **after} if before.get(key, nothing) is not after.get(key, nothing)]


def hooks_of(net: nn.Cell) -> list[Any]:
    names = ("_forward_hook", "_forward_pre_hook", "_backward_hook", "_backward_pre_hook")
    found = [getattr(cell, name) for _, cell in net.cells_and_names() for name in names]
    return [hooks for hooks in [*found, *(parameter.hooks() for parameter in net.get_parameters())] if hooks]


def kinds_of(net: nn.Cell) -> list[type]:
    """The classes of the primitives, which are exchanged while they are seen."""
    cells = [cell for _, cell in net.cells_and_names()]
    return [type(primitive) for cell in cells for primitive in cell._primitives.values()]


@pytest.mark.parametrize("kind", [Net, Recomputed])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_after_stop_everything_is_as_it_was(level: str, kind: type[nn.Cell], probe: Probe) -> None:
    debugger, net = probe.debugger(level), numbered(kind())
    step, x = training(net), Tensor(np.ones((2, 1, 4, 4) if kind is Net else (2, 4), np.float32))
    step(x)
    before, kinds = as_it_is(), kinds_of(net)
    for _ in range(2):
        debugger.start(net)
        assert changed(before) != []
        step(x)
        debugger.stop()
        assert changed(before) == []
        assert kinds_of(net) == kinds
        debugger.step()
        assert changed(before) == []
        assert hooks_of(net) == []


@pytest.mark.parametrize("end", ["step", "close"])
def test_a_forgotten_stop_is_made_up_for(end: str, probe: Probe) -> None:
    debugger, net = probe.debugger("mix"), numbered(Net())
    before, kinds = as_it_is(), kinds_of(net)
    debugger.start(net)
    training(net)(golden_inputs()[0])
    debugger.step() if end == "step" else probe.close()
    assert changed(before) == []
    assert (kinds_of(net), hooks_of(net)) == (kinds, [])


def test_while_off_nothing_is_installed(probe: Probe) -> None:
    before = as_it_is()
    debugger, net = probe.debugger("mix", step=[1]), numbered(Net())
    kinds = kinds_of(net)
    debugger.start(net)
    assert changed(before) == []
    assert (kinds_of(net), hooks_of(net)) == (kinds, [])
    debugger.stop()
    debugger.step()
    assert not probe.folder.exists()


class Broken(nn.Cell):
    """Fails deep inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner = nn.Dense(4, 4), nn.SequentialCell(nn.Dense(4, 4), nn.Dense(3, 3))

    def construct(self, x: Tensor) -> Tensor:
        return self.inner(ops.relu(self.layer(x)))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_an_exception_in_the_model_leaves_nothing_behind(level: str, probe: Probe) -> None:
    debugger, net = probe.debugger(level), Broken()
    before, kinds = as_it_is(), kinds_of(net)
    x = Tensor(np.ones((2, 4), np.float32))
    debugger.start(net)
    with pytest.raises(ValueError, match="MatMul"):
        training(net)(x)
    debugger.stop()
    assert changed(before) == []
    debugger.step()
    assert (kinds_of(net), hooks_of(net)) == (kinds, [])


def test_hooks_of_gradients_that_never_come_end_with_the_step(probe: Probe) -> None:
    debugger, net = probe.debugger("L0"), numbered(Net())
    debugger.start(net)
    net(golden_inputs()[0])
    debugger.stop()
    debugger.step()
    assert hooks_of(net) == []


def test_what_is_registered_stands_again_after_stop(probe: Probe) -> None:
    own = types.ModuleType("own")
    own.double = plain = lambda x: x * 2
    debugger = probe.debugger("L1")
    debugger.register_custom_api(own, "double")
    debugger.start()
    assert own.double is not plain
    debugger.stop()
    assert own.double is plain


@pytest.mark.parametrize("name", ["golden", "nested", "recompute"])
@pytest.mark.parametrize(("level", "task"), [("mix", "statistics"), ("L1", "tensor")])
def test_no_tensor_outlives_its_step(level: str, task: str, name: str, probe: Probe) -> None:
    alone = follow(NETS[name], steps=6, look_every=2)
    recorded = follow(NETS[name], steps=6, look_every=2, probe=probe, level=level, task=task)
    assert recorded.new_tensors == alone.new_tensors


def test_a_call_holds_its_tensors_no_longer_than_the_model_does(probe: Probe) -> None:
    """What a call was given and gave dies when the script lets go of it, in the middle of the recording."""
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    ops.abs(Tensor([1.0]))
    before = live_tensors()
    for _ in range(3):
        ops.matmul(Tensor(np.ones((3, 3), np.float32)), Tensor(np.ones((3, 3), np.float32)))
        mint.cat([Tensor([1.0]), Tensor([2.0])])
        ms.grad(lambda x: ops.exp(x).sum())(Tensor([1.0]))
    assert live_tensors() == before
    debugger.stop()


def test_at_exit_without_stop_the_recording_is_complete(tmp_path: Path) -> None:
    script = f"""
        import atexit, json, sys
        import mindspore as ms
        from mindspore import Tensor, nn, ops
        standing = ops.abs, nn.Cell.__call__
        def last():
            assert (ops.abs, nn.Cell.__call__) == standing
            print("names", *json.load(open(r"{tmp_path}/dump/step0/rank/dump.json"))["data"])
        atexit.register(last)
        from msprobe.mindspore import PrecisionDebugger
        debugger = PrecisionDebugger(dump_path=r"{tmp_path}/dump", level="L1")
        debugger.start()
        ops.abs(Tensor([1.0]))
        sys.exit(3)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert "names Functional.abs.0.forward\n" in ended.stdout, ended.stderr
    assert ended.returncode == 3
