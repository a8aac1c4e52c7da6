"""What goes wrong in releases 8.3.3 and 26.2.0 as they record MindSpore, each as a test that passes here.

Others stand where they belong: MsprobeInitStep that does nothing (test_ms_kernels, test_ms_static), jit of a
release that has moved its executor (test_ms_jit), the kernels of a single API (test_ms_kernel_config); of
comparing, `-f` with statistics and the documented file of `-am` (tests/test_cross_framework.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from ms_case import Net, Probe, golden_inputs, numbered, probe

from msprobe.mindspore import PrecisionDebugger

__all__ = ["probe"]

LEVELS = ("L0", "L1", "mix")


@pytest.mark.parametrize("level", LEVELS)
def test_it_runs_on_releases_whose_numbers_have_two_digits(level: str, probe: Probe) -> None:
    """As texts "2.10.0" comes before "2.7.0"; who compares these calls the hooks of an older release."""
    probe.record(numbered(Net()), golden_inputs()[0], level=level)
    assert any("backward" in name for name in probe.data())
    assert probe.troubles() == ""


@pytest.mark.parametrize("level", LEVELS)
def test_tokens_before_the_range_are_not_recorded(level: str, probe: Probe) -> None:
    debugger, net = probe.debugger(level), numbered(Net())
    debugger.start(net, token_range=[2, 3])
    seen = []
    for scale in range(5):
        net(golden_inputs()[0] * scale)
        seen.append(recorder_of().listening)
    debugger.stop()
    debugger.step()
    assert seen == [False] * 5
    name = "Functional.abs.{}.forward" if level == "L1" else "Cell.conv1.Conv2d.forward.{}"
    counts = [count for count in range(5) if name.format(count) in probe.data()]
    assert counts == [0, 1]
    if level != "L1":
        largest = [probe.data()[name.format(count)]["input_args"][0]["Max"] for count in counts]
        assert largest == [float((golden_inputs()[0] * scale).max()) for scale in (2, 3)]


def recorder_of() -> Any:
    return PrecisionDebugger.the.get()._recorder


class Copied(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        y = x * 2
        y.copy_(y * 3)
        return (y * y).sum()


class Set(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        z = ops.abs(x) * 2
        z[0] = z[0] * 5
        return (z * z).sum()


class Assigned(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.state = Parameter(Tensor(np.zeros(4, np.float32)), name="state", requires_grad=False)

    def construct(self, x: Tensor) -> Tensor:
        ops.assign(self.state, x * 3)
        return (self.state * x).sum()


IN_PLACE: dict[type[nn.Cell], Callable[[Any], list[float]]] = {
    Copied: lambda x: [72 * v for v in x],
    Set: lambda x: [200 * x[0], *(8 * v for v in x[1:])],
    Assigned: lambda x: [3 * v for v in x],
}


@pytest.mark.spec("M011", "MSd")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", IN_PLACE)
def test_operators_in_place_keep_their_gradients(kind: type[nn.Cell], level: str, probe: Probe) -> None:
    values, net = [1.0, 2.0, 3.0, 4.0], kind()
    alone = ms.grad(kind())(Tensor(values)).asnumpy().tolist()
    debugger = probe.debugger(level)
    debugger.start(net)
    gradient = ms.grad(net)(Tensor(values)).asnumpy().tolist()
    debugger.stop()
    debugger.step()
    assert gradient == alone == IN_PLACE[kind](values)


@pytest.mark.parametrize("level", LEVELS)
def test_dropout_drops_while_it_is_recorded_and_after(level: str, probe: Probe) -> None:
    x, drop = Tensor(np.ones((100, 100), np.float32)), nn.Dropout(p=0.5).set_train()
    debugger, holder = probe.debugger(level), nn.SequentialCell(drop).set_train()

    def zeros() -> list[bool]:
        found = [drop(x), ops.dropout(x, p=0.5), holder(x)]
        return [4500 < int((output == 0).sum()) < 5500 for output in found]

    assert zeros() == [True] * 3
    debugger.start(holder)
    assert zeros() == [True] * 3
    debugger.stop()
    assert zeros() == [True] * 3
    debugger.step()
    assert zeros() == [True] * 3


def test_the_end_of_a_scope_of_cells_is_recorded(probe: Probe) -> None:
    ends = ["Cell.norm.LayerNorm.forward.0", "Cell.relu.ReLU.forward.0"]
    probe.record(numbered(Net()), golden_inputs()[0], level="L0", section={"scope": ends})
    assert list(probe.data()) == [ends[0], "Cell.fc1.Dense.forward.0", ends[1]]


def fail_on(bad: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = PrecisionDebugger.the.get().adapter
    describe = adapter.describe

    def refuse(tensor: Tensor, want: Any) -> Any:
        if tensor is bad:
            raise RuntimeError("its memory is gone")
        return describe(tensor, want)

    monkeypatch.setattr(adapter, "describe", refuse)


@pytest.mark.spec("M052", "MSd")
def test_names_are_right_after_an_error(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    debugger, bad = probe.debugger("L1", "tensor"), Tensor([3.0])
    fail_on(bad, monkeypatch)
    debugger.start()
    mint.cat([Tensor([1.0]), bad])
    ops.abs(Tensor([1.0]))
    mint.cat([Tensor([1.0]), Tensor([2.0])])
    debugger.stop()
    debugger.step()
    assert "its memory is gone" in probe.troubles()
    assert probe.data()["Functional.abs.0.forward"]["input_args"][0]["data_name"] == (
        "Functional.abs.0.forward.input.0.npy"
    )
    later = probe.data()["Mint.cat.1.forward"]["input_args"][0]
    assert [leaf["data_name"] for leaf in later] == [f"Mint.cat.1.forward.input.0.{i}.npy" for i in (0, 1)]


@pytest.mark.spec("M052", "MSd")
def test_the_error_log_is_there_only_after_an_error(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    debugger, bad = probe.debugger("L1"), Tensor([3.0])
    fail_on(bad, monkeypatch)
    for x in (Tensor([1.0]), bad, Tensor([1.0])):
        debugger.start()
        ops.abs(x)
        debugger.stop()
        debugger.step()
    there = [(probe.rank(step) / "dump_error_info.log").exists() for step in range(3)]
    assert there == [False, True, False]
    assert "Functional.abs.0.forward" in probe.troubles(1)


@ms.jit
def cubed(x: Tensor, y: Tensor) -> Tensor:
    return x * x * x + y


@pytest.mark.spec("M065", "MSd")
@pytest.mark.spec("M068", "MSd")
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_backward_of_compiled_code_holds_its_gradients(level: str, probe: Probe) -> None:
    debugger, x, y = probe.debugger(level, "tensor"), Tensor([1.0, 2.0]), Tensor([5.0, 6.0])
    debugger.start(nn.SequentialCell(nn.ReLU()))
    ms.grad(lambda x, y: (cubed(x * 1.0, y * 1.0) * 10).sum(), (0, 1))(x, y)
    debugger.stop()
    debugger.step()
    slots = ("forward.input.0", "forward.input.1", "forward.output.0")
    slots += ("backward.input.0", "backward.output.0", "backward.output.1")
    assert [probe.tensor(f"Jit.cubed.0.{slot}").tolist() for slot in slots] == [
        [1.0, 2.0], [5.0, 6.0], [6.0, 14.0], [10.0, 10.0], [30.0, 120.0], [10.0, 10.0]
    ]  # fmt: skip


DTYPES = ("float16", "float32", "float64", "bfloat16", "bool_", "int8", "int16", "int32", "int64", "uint8",
          "uint16", "uint32", "uint64", "complex64", "complex128")  # fmt: skip
SHAPES = {"matrix": [[1, 0], [3, 1]], "scalar": 3, "empty": []}


@pytest.mark.spec("M060", "MSd")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_has_its_statistics_on_a_cpu(name: str, shape: str, probe: Probe) -> None:
    """They are not computed with mint.norm, mint.max or mint.mean, which a CPU has not for all of these."""
    dtype, values = getattr(ms, name), np.array(SHAPES[shape], np.float64)
    kind = np.float32 if name == "bfloat16" else ms.dtype_to_nptype(dtype)
    tensor = Tensor(values.astype(kind))
    debugger = probe.debugger("debug")
    debugger.save(tensor.astype(dtype) if name == "bfloat16" else tensor, "it")
    debugger.step()
    assert probe.troubles() == ""
    leaf = probe.data()["it.0.debug"]
    assert leaf["shape"] == list(values.shape)
    assert [leaf[key] for key in ("Max", "Min", "Mean", "Norm")] == _expected(name, shape, values)


def _expected(name: str, shape: str, values: Any) -> list[Any]:
    if shape == "empty":
        return [None] * 4
    if name == "bool_":
        return [True, shape == "scalar", None, None]
    if shape == "scalar":
        return [3.0] * 4
    return [3.0, 0.0, 1.25, pytest.approx(np.sqrt(11), rel=1e-6)]
