"""Recording a MindSpore dynamic graph: names, places, files and numbers, beside those of release 8.3.3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from ms_case import Net, Probe, golden_inputs, numbered, probe, training

from msprobe.errors import UsageError

__all__ = ["probe"]

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "ms" / "mix_stat.json").read_text())
# A cast to the same dtype gives its input back: there is nothing that backward could run through.
IDENTITIES = ("Tensor.to.0.backward", "Tensor.to.1.backward")
for identity in IDENTITIES:
    del GOLDEN["data"][identity], GOLDEN["construct"][identity]
PREFIXES = {
    "L0": {"Cell"},
    "L1": {"Tensor", "Functional", "Mint", "MintFunctional", "Primitive"},
    "mix": {"Cell", "Tensor", "Functional", "Mint", "MintFunctional", "Primitive"},
}


def prefixes(data: dict[str, Any]) -> set[str]:
    return {name.partition(".")[0] for name in data}


def bits(result: Any) -> list[bytes]:
    """Loss and gradients to the last bit."""
    loss, gradients = result
    return [loss.asnumpy().tobytes(), *(gradient.asnumpy().tobytes() for gradient in gradients)]


def forward_names(data: dict[str, Any]) -> list[str]:
    return [name for name in data if "backward" not in name and "parameters_grad" not in name]


@pytest.mark.spec("M010", "MSd")
@pytest.mark.spec("M061", "MSd")
def test_mix_has_the_records_of_release_8_3_3(probe: Probe) -> None:
    probe.record(numbered(Net()), golden_inputs()[0], level="mix")
    data, golden = probe.data(), GOLDEN["data"]
    assert forward_names(data) == forward_names(golden)
    assert set(data) == set(golden)
    assert probe.construct() == GOLDEN["construct"]
    assert probe.troubles() == ""


@pytest.mark.spec("M060", "MSd")
@pytest.mark.parametrize("name", GOLDEN["data"])
def test_mix_has_the_content_of_release_8_3_3(name: str, mixed: dict[str, Any]) -> None:
    ours, theirs = mixed[name], GOLDEN["data"][name]
    assert list(ours) == list(theirs)
    if name.startswith("Primitive.") and name.endswith(".backward"):
        # There the gradients of a primitive's inputs stand as they came: the last first, none without.
        ours, theirs = _sorted(ours), _sorted(theirs)
    assert _without_makers(ours) == _close(theirs)


def _without_makers(node: Any) -> Any:
    """The release does not say who made a tensor."""
    if isinstance(node, list):
        return [_without_makers(item) for item in node]
    if isinstance(node, dict):
        return {
            key: _without_makers(item) for key, item in node.items() if key not in ("from", "hash", "sketch")
        }
    return node


def _sorted(record: dict[str, Any]) -> dict[str, Any]:
    """A backward without nulls, its gradients in an order of their own."""
    return {
        side: sorted(filter(None, leaves), key=lambda leaf: (leaf["shape"], round(leaf["Max"], 6)))
        for side, leaves in record.items()
    }


def _close(node: Any) -> Any:
    """Equal to all that differs in nothing but the last digits of its numbers."""
    if isinstance(node, dict):
        return {key: _close(item) for key, item in node.items()}
    if isinstance(node, list):
        return [_close(item) for item in node]
    return pytest.approx(node, rel=2e-5, abs=1e-8) if isinstance(node, float) else node


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = Probe(tmp_path_factory.mktemp("mixed"))
    made.close()
    made.record(numbered(Net()), golden_inputs()[0], level="mix")
    yield made.data()
    made.close()


@pytest.mark.spec("M007", "MSd")
@pytest.mark.spec("M051", "MSd")
@pytest.mark.spec("M068", "MSd")
@pytest.mark.parametrize("level", PREFIXES)
def test_levels(level: str, probe: Probe) -> None:
    probe.record(numbered(Net()), *golden_inputs(), level=level)
    for step in (0, 1):
        head = probe.head(step)
        assert prefixes(head["data"]) == PREFIXES[level]
        assert (head["task"], head["level"], head["framework"]) == ("statistics", level, "mindspore")
        assert {file.name for file in probe.rank(step).iterdir()} == {
            "dump.json",
            "stack.json",
            "construct.json",
        }
    assert (probe.construct() == {}) == (level == "L1")


@pytest.mark.parametrize("level", PREFIXES)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_training_is_equal_to_the_last_bit(level: str, task: str, probe: Probe) -> None:
    x = golden_inputs()[0]
    alone = bits(training(numbered(Net()))(x))
    assert bits(probe.record(numbered(Net()), x, level=level, task=task)) == alone


class Attention(nn.Cell):
    """Uses its input three times, and who calls it uses it a fourth time."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Dense(4, 4), nn.Dense(4, 4), nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        weights = ops.softmax(ops.matmul(self.q(x), self.k(x).swapaxes(-1, -2)), -1)
        return ops.matmul(weights, self.v(x))


class Around(nn.Cell):
    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        self.fc, self.inner = nn.Dense(4, 4), inner

    def construct(self, x: Tensor) -> Tensor:
        x = self.fc(x) * 1.0
        return x + self.inner(x)


class Setting(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        x[0] = x[0] * 3
        return x * 2


class Copying(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        x.copy_(x * 3)
        return x * 2


@pytest.mark.parametrize("level", PREFIXES)
@pytest.mark.parametrize("inner", [Attention, Setting, Copying])
def test_gradients_keep_their_bits_and_their_ways(inner: type[nn.Cell], level: str, probe: Probe) -> None:
    x = Tensor(np.random.RandomState(3).randn(5, 4).astype(np.float32))
    alone = bits(training(numbered(Around(inner())))(x))
    assert bits(probe.record(numbered(Around(inner())), x, level=level)) == alone
    assert probe.troubles() == ""


def test_a_cell_tells_its_own_share_of_the_gradient(probe: Probe) -> None:
    x, net = Tensor(np.random.RandomState(3).randn(5, 4).astype(np.float32)), numbered(Around(Attention()))
    probe.record(net, x, level="mix", task="tensor")
    total = probe.tensor("Tensor.__mul__.0.backward.input.0")
    shares = [
        probe.tensor(f"{name}.output.0")
        for name in ("Cell.inner.Attention.backward.0", "Tensor.__add__.0.backward")
    ]
    assert np.allclose(sum(shares), total, rtol=1e-5)
    parts = [probe.tensor(f"Cell.inner.{name}.Dense.backward.0.output.0") for name in "qkv"]
    assert np.allclose(sum(parts), shares[0], rtol=1e-5)


def test_outputs_of_one_call_are_told_apart(probe: Probe) -> None:
    debugger = probe.debugger("L1", "tensor")

    def forward(x: Tensor) -> Tensor:
        a, b = mint.split(x * 1.0, 2)
        return ops.addcmul(a * 0.0, b, a).sum() + mint.cat([b, a * 5.0]).sum()

    debugger.start()
    ms.grad(forward)(Tensor([1.0, 2.0, 3.0, 4.0]))
    debugger.stop()
    debugger.step()
    shares = [probe.tensor(f"Functional.addcmul.0.backward.output.{i}").tolist() for i in (1, 2)]
    assert shares == [[1.0, 2.0], [3.0, 4.0]]
    assert [probe.tensor(f"Mint.split.0.backward.input.{i}").tolist() for i in (0, 1)] == [
        [8.0, 9.0],
        [2.0, 3.0],
    ]


class InPlace(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        y = self.fc(x) * 1.0
        y.copy_(y * 3)
        z = y * 2
        z[0] = z[0] * 5
        z.copy_(mint.add(z, 1.0))
        return ops.relu(z * z)


@pytest.mark.parametrize("level", PREFIXES)
def test_changes_in_place_keep_their_gradients(level: str, probe: Probe) -> None:
    x = Tensor(np.arange(8, dtype=np.float32).reshape(2, 4))
    alone = bits(training(numbered(InPlace()))(x))
    assert bits(probe.record(numbered(InPlace()), x, level=level)) == alone
    assert any(name.endswith("backward") or ".backward." in name for name in probe.data())


def standing() -> list[Any]:
    """What recording changes for a while."""
    return [
        nn.Cell.__call__,
        *(vars(Tensor).get(name) for name in ("__add__", "reshape", "abs", "add_")),
        *(holder.add for holder in (ops, mint)),
        mint.nn.functional.relu,
    ]


def test_stop_leaves_nothing_behind(probe: Probe) -> None:
    before, net = standing(), numbered(Net())
    probe.record(net, golden_inputs()[0], level="mix")
    assert standing() == before
    assert type(net.matmul) is ops.MatMul
    assert all(not cell._forward_hook and not cell._forward_pre_hook for cell in net.cells())


@pytest.mark.spec("M020", "MSd")
def test_primitives_are_apis_of_a_model_that_is_given(probe: Probe) -> None:
    debugger, step = probe.debugger("L1"), training(numbered(Net()))
    debugger.start()
    step(golden_inputs()[0])
    debugger.stop()
    debugger.step()
    assert prefixes(probe.data()) == PREFIXES["L1"] - {"Primitive"}


class Outer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
        self.b = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


CELLS = {
    "whole": (lambda net: net, ["a.0.Dense", "a.1.ReLU", "a.SequentialCell", "b.Dense"]),
    "part": (lambda net: net.a, ["0.Dense", "1.ReLU"]),
    "list": (
        lambda net: [net.a, net],
        ["0.0.Dense", "0.1.ReLU", "1.a.0.Dense", "1.a.1.ReLU", "1.a.SequentialCell", "1.b.Dense"],
    ),
    "tuple": (lambda net: (net.b, net.a), ["1.0.Dense", "1.1.ReLU"]),
}


@pytest.mark.spec("M017", "MSd")
@pytest.mark.spec("M021", "MSd")
@pytest.mark.spec("M058", "MSd")
@pytest.mark.parametrize("case", CELLS)
def test_the_given_cell_is_not_recorded_and_its_children_are(case: str, probe: Probe) -> None:
    chosen, names = CELLS[case]
    net = numbered(Outer())
    probe.record(net, Tensor(np.ones((2, 4), np.float32)), level="L0", model=chosen(net))
    found = {
        name.removeprefix("Cell.").partition(".forward")[0] for name in probe.data() if "forward" in name
    }
    assert found == set(names)


@pytest.mark.spec("M017", "MSd")
@pytest.mark.spec("M018", "MSd")
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("model", [None, 3, [], [Net]], ids=str)
def test_levels_of_cells_need_a_model(model: Any, level: str, probe: Probe) -> None:
    with pytest.raises(UsageError, match="start"):
        probe.debugger(level).start(model)
