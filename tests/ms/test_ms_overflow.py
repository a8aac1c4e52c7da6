"""overflow_check with MindSpore: planted faults in dynamic graphs, and the refusal in static ones."""

from __future__ import annotations

import csv
import gc
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from ms_case import Probe, numbered, probe
from ms_nets import NETS, train
from ms_soak import live_tensors

from config_case import EXAMPLES
from msprobe.errors import HardwareError, OverflowLimitReached
from msprobe.log import logger
from msprobe.mindspore import PrecisionDebugger

__all__ = ["probe"]

GOLDEN = {  # as release 8.3.3 writes it, but for the steps: "all" would take those that nobody wants, too
    "dump_mode": 0,
    "net_name": "Net",
    "iteration": "0-4000000000",
    "saved_data": "full",
    "input_output": 0,
    "kernels": [],
    "support_device": list(range(8)),
    "op_debug_mode": 3,
    "file_format": "npy",
}

logger()


class Attention(nn.Cell):
    """Attention in float16; with `late` it scales the product of its factors, which no longer fits."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.late = nn.Dense(8, 24), nn.Dense(8, 8), late

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = ops.split(self.qkv(x).astype(ms.float16), 8, -1)
        k = ops.transpose(k, (0, 2, 1))
        if self.late:
            scores = ops.matmul(q * 4096, k * 4096) / 4096.0**2
        else:
            scores = ops.matmul(q, k)
        weights = ops.softmax(ops.masked_fill(scores, mask, float("-inf")), -1)
        return self.out(ops.matmul(weights, v).astype(ms.float32))


class Transformer(nn.Cell):
    shape = (2, 5, 8)

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.layers = nn.CellList([Attention(False), Attention(late), Attention(False)])
        self.norm = nn.LayerNorm((8,))

    def construct(self, x: Tensor) -> Tensor:
        mask = Tensor(np.triu(np.ones((5, 5), bool), 1))
        for layer in self.layers:
            x = x + layer(self.norm(x), mask)
        return x


class Conv(nn.Cell):
    """A convolution in float16 between two others."""

    shape = (2, 3, 8, 8)

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)
        self.weight = ms.Parameter(Tensor(np.ones((4, 4, 3, 3), np.float32)), name="own")
        self.late = late

    def construct(self, x: Tensor) -> Tensor:
        x = ops.relu(self.first(x)).astype(ms.float16)
        weight = self.weight.astype(ms.float16)
        x = ops.conv2d(x * 4096, weight * 4096) / 4096.0**2 if self.late else ops.conv2d(x, weight)
        return self.last(ops.relu(x.astype(ms.float32)))


def step_of(net: Any) -> Any:
    def forward(x: Tensor) -> Tensor:
        return ops.mean(ops.abs(net(x)))

    gradients_of = ms.value_and_grad(forward, None, net.trainable_params())
    x = Tensor(np.random.RandomState(1).randn(*net.shape).astype(np.float32))
    return lambda: gradients_of(x)


def start(probe: Probe, overflow_nums: int = -1, level: str = "L1", net: Any = None) -> PrecisionDebugger:
    debugger = probe.debugger(level, "overflow_check", section={"overflow_nums": overflow_nums})
    debugger.start(net)
    return debugger


def finish(probe: Probe, debugger: PrecisionDebugger) -> None:
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""


def lines(probe: Probe, step: int = 0) -> list[dict[str, str]]:
    path = probe.rank(step) / "overflow.csv"
    if not path.exists():
        return []
    with path.open() as stream:
        return list(csv.DictReader(stream))


def verdicts(probe: Probe, step: int = 0) -> dict[str, str]:
    return {line["name"]: line["verdict"] for line in lines(probe, step)}


def named(probe: Probe, verdict: str) -> list[str]:
    return [name for name, said in verdicts(probe).items() if said == verdict]


FAULTS = [
    pytest.param(
        Transformer, "Functional.matmul.2.forward", "scores = ops.matmul(q * 4096", id="transformer"
    ),
    pytest.param(Conv, "Functional.conv2d.0.forward", "ops.conv2d(x * 4096", id="conv"),
]


@pytest.mark.spec("C091", "MSd")
@pytest.mark.spec("C092", "MSd")
@pytest.mark.parametrize(("build", "name", "source"), FAULTS)
def test_a_planted_fault_is_named(probe: Probe, build: Any, name: str, source: str) -> None:
    net = numbered(build(late=True))
    start(probe, 1, net=net)
    with pytest.raises(OverflowLimitReached) as raised:
        step_of(net)()
    assert str(raised.value) == f"[overflow 1 times]: dump file is saved in '{probe.rank()}'."
    assert verdicts(probe) == {name: "producer"}
    assert source in lines(probe)[0]["called_at"]
    assert list(probe.data()) == [name]
    assert probe.head()["task"] == "overflow_check"
    inputs = [probe.tensor(f"{name}.input.{place}") for place in (0, 1)]
    assert all(np.isfinite(array).all() and array.dtype == np.float16 for array in inputs)
    assert not np.isfinite(probe.tensor(f"{name}.output.0")).all()


@pytest.mark.spec("C091", "MSd")
@pytest.mark.parametrize(("build", "name", "source"), FAULTS)
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_whole_step_of_a_planted_fault(
    probe: Probe, build: Any, name: str, source: str, level: str
) -> None:
    net = numbered(build(late=True))
    debugger = start(probe, -1, level, net)
    step_of(net)()
    finish(probe, debugger)
    assert named(probe, "producer")[0] == next(iter(verdicts(probe))) == name
    assert named(probe, "entered") == []
    assert set(verdicts(probe)) == set(probe.data())


@pytest.mark.spec("C091", "MSd")
@pytest.mark.parametrize("build", [Transformer, Conv])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_same_nets_without_the_fault_report_nothing(probe: Probe, build: Any, level: str) -> None:
    net = numbered(build(late=False))
    debugger = start(probe, 1, level, net)
    step_of(net)()
    finish(probe, debugger)
    assert (lines(probe), probe.data(), probe.files()) == ([], {}, set())


def test_cells_alone(probe: Probe) -> None:
    net = numbered(Transformer(late=True))
    debugger = start(probe, 1, "L0", net)
    step_of(net)()
    with pytest.raises(OverflowLimitReached):
        debugger.stop()
    assert named(probe, "producer") == ["Cell.layers.1.Attention.forward.0"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("name", sorted(NETS))
def test_training_is_the_same(probe: Probe, name: str, level: str) -> None:
    alone = train(NETS[name], steps=2)
    debugger = probe.debugger(level, "overflow_check", section={"overflow_nums": 1})
    assert train(NETS[name], debugger, steps=2) == alone
    assert [lines(probe, step) for step in (0, 1)] == [[], []]
    assert probe.troubles() == ""


def test_training_is_the_same_with_overflows(probe: Probe) -> None:
    def results() -> list[Any]:
        loss, gradients = step_of(numbered(Transformer(late=True)))()
        return [value.asnumpy().tobytes() for value in (loss, *gradients)]

    alone = results()
    debugger = start(probe)
    assert results() == alone
    finish(probe, debugger)
    assert named(probe, "producer") != []


def masks() -> Any:
    x = Tensor(np.random.RandomState(0).randn(2, 4, 4).astype(np.float32))
    where = Tensor(np.triu(np.ones((4, 4), bool), 1))
    outside = Tensor(np.where(where.asnumpy(), -math.inf, 0).astype(np.float32))
    yield lambda: ops.softmax(ops.masked_fill(x, where, -math.inf), -1)
    yield lambda: mint.nn.functional.softmax(x.masked_fill(where, -math.inf), -1)
    yield lambda: ops.softmax(x + outside, -1)
    yield lambda: ops.softmax(ops.where(where, Tensor(-math.inf, ms.float32), x), -1)
    yield lambda: ops.minimum(ops.full((4,), math.inf, dtype=ms.float32), x[0, 0])


@pytest.mark.parametrize("number", range(len(list(masks()))))
def test_a_mask_is_nobodys_overflow(probe: Probe, number: int) -> None:
    work = list(masks())[number]
    debugger = start(probe, 1)
    work()
    finish(probe, debugger)
    assert lines(probe) == []


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda x: ops.log(x - x), "Functional.log.0.forward"),
        (lambda x: (x * 1e38) * 1e9, "Tensor.__mul__.1.forward"),
        (lambda x: (x * 1e6).astype(ms.float16), "Tensor.to.0.forward"),
        (lambda x: mint.exp(x * 1000), "Mint.exp.0.forward"),
    ],
)
def test_producers(probe: Probe, work: Any, name: str) -> None:
    debugger = start(probe)
    work(Tensor([1.0, 2.0, 3.0], ms.float32))
    finish(probe, debugger)
    assert named(probe, "producer") == [name]
    assert named(probe, "entered") == []


@pytest.mark.spec("C092", "MSd")
def test_in_place_inputs_are_saved_as_they_were(probe: Probe) -> None:
    debugger = start(probe)
    x = Tensor([1.0, 2.0], ms.float32)
    x.mul_(Tensor(3e38, ms.float32))
    parameter = ms.Parameter(Tensor([1.0, 2.0], ms.float32), name="p")
    ops.assign(parameter, Tensor([math.inf, 0.0], ms.float32))
    finish(probe, debugger)
    assert verdicts(probe) == {
        "Tensor.mul_.0.forward": "producer",
        "Functional.assign.0.forward": "passed on",
    }
    assert probe.tensor("Tensor.mul_.0.forward.input.0").tolist() == [1.0, 2.0]
    assert probe.tensor("Tensor.mul_.0.forward.output.0").tolist() == [np.float32(3e38), math.inf]
    assert probe.tensor("Functional.assign.0.forward.input.0").tolist() == [1.0, 2.0]


@pytest.mark.parametrize("where", ["call", "stop", "step"])
def test_a_backward_overflow_ends_training_after_backward(probe: Probe, where: str) -> None:
    debugger = start(probe, 1)
    gradient = ms.grad(lambda x: ops.sqrt(x).sum())(Tensor([0.0, 1.0], ms.float32))
    assert gradient.asnumpy().tolist() == [math.inf, 0.5]  # backward itself went on
    with pytest.raises(OverflowLimitReached, match="overflow 1 times"):
        {"call": lambda: ops.abs(gradient), "stop": debugger.stop, "step": debugger.step}[where]()
    assert verdicts(probe) == {"Functional.sqrt.0.backward": "producer"}
    assert probe.tensor("Functional.sqrt.0.backward.output.0").tolist() == [math.inf, 0.5]


@pytest.mark.spec("C116", "MSd")
def test_the_printed_example(tmp_path: Path, probe: Probe) -> None:
    config = json.loads((EXAMPLES / "C116.json").read_text()) | {"dump_path": str(probe.folder)}
    (tmp_path / "printed.json").write_text(json.dumps(config))
    debugger = PrecisionDebugger(str(tmp_path / "printed.json"))
    debugger.start()
    with pytest.raises(ValueError, match=r"\[overflow 1 times\]: dump file is saved in '.*/step0/rank'\."):
        Tensor([3e38], ms.float32) * 10
    assert list(probe.data()) == ["Tensor.__mul__.0.forward"]


@pytest.mark.spec("C091", "MSd")
def test_three_overflows_in_two_steps(probe: Probe) -> None:
    debugger = start(probe, 3)
    for _ in range(2):
        (Tensor([3e38], ms.float32) * 10) + 1
    finish(probe, debugger)
    debugger.start()
    with pytest.raises(
        OverflowLimitReached, match=r"overflow 3 times\]: dump file is saved in '.*/step1/rank"
    ):
        Tensor([3e38], ms.float32) * 10
    assert list(verdicts(probe).values()) == ["producer", "passed on"] * 2


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_nothing_is_held_between_steps(probe: Probe, level: str) -> None:
    net = numbered(Transformer(late=True))
    debugger = probe.debugger(level, "overflow_check", section={"overflow_nums": -1})
    step = step_of(net)
    counts = []
    for _ in range(4):
        debugger.start(net)
        step()
        debugger.stop()
        debugger.step()
        gc.collect()
        counts.append(live_tensors())
    assert counts[1:] == counts[1:2] * 3


# --- static graphs ---


@pytest.mark.spec("C112", "MSs")
@pytest.mark.spec("C093", "MSs")
@pytest.mark.parametrize(("mode", "number"), [("all", 3), ("aicore", 1), ("atomic", 2)])
def test_a_static_graph_is_refused_where_there_is_no_ascend(
    tmp_path: Path, probe: Probe, mode: str, number: int
) -> None:
    config = json.loads((EXAMPLES / "C112.json").read_text()) | {"dump_path": str(probe.folder)}
    assert config["overflow_check"] == {"check_mode": "all"}
    config["overflow_check"]["check_mode"] = mode
    (tmp_path / "printed.json").write_text(json.dumps(config))
    ms.set_context(mode=ms.GRAPH_MODE)
    debugger = PrecisionDebugger(str(tmp_path / "printed.json"))
    file = probe.folder / "kernel_graph_overflow_check.json"
    with pytest.raises(HardwareError) as refused:
        debugger.start()
    assert str(refused.value) == (
        "task overflow_check in a static graph needs the overflow registers of Ascend, and this is CPU: "
        f"nothing is checked; {file} holds the settings that MindSpore would be given there."
    )
    expected = {**GOLDEN, "op_debug_mode": number, "path": str(probe.folder)}
    assert json.loads(file.read_text()) == {"common_dump_settings": expected}
