"""overflow_check with PyTorch: planted faults, masks, gradients, the end of training, and nothing else."""

from __future__ import annotations

import csv
import gc
import json
import math
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from config_case import EXAMPLES  # noqa: E402
from msprobe.errors import OverflowLimitReached  # noqa: E402
from msprobe.log import logger  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402
from nets import NETS, Attention, Conv, Gpt, gpt_loss, image_loss, seed, train  # noqa: E402
from torch_fixtures import Probe, probe  # noqa: E402

__all__ = ["probe"]

REPOSITORY = Path(__file__).resolve().parent.parent

logger()  # pytest catches what a logger tells that is there before the test


def start(probe: Probe, overflow_nums: int = -1, level: str = "L1", model: Any = None, **keys: Any) -> Any:
    debugger = probe.debugger(level, "overflow_check", section={"overflow_nums": overflow_nums}, **keys)
    debugger.start(model)
    return debugger


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


def finish(probe: Probe, debugger: Any) -> None:
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""


# --- planted faults ---


class Late(Attention):
    """Attention in float16 that scales the product of its factors, which no longer fits."""

    scale = 1024

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).half().chunk(3, dim=-1)
        q, k, v = (
            part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        scores = torch.matmul(q * self.scale, k.transpose(-2, -1) * self.scale) / self.scale**2
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width).float())


class LateConv(Conv):
    """The same of a convolution."""

    scale = 4096

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(self.body(images), 2)
        weight = self.conv.weight.half()
        x = (F.conv2d(x.half() * self.scale, weight * self.scale) / self.scale**2).float()
        return self.head(F.adaptive_avg_pool2d(F.relu_(self.norm(x)), 1).flatten(1))


def faulty_gpt() -> Gpt:
    model = Gpt(3)
    model.blocks[1].attention = Late()
    return model


FAULTS = [
    pytest.param(faulty_gpt, gpt_loss, "Torch.matmul.2.forward", "scores = torch.matmul(", id="transformer"),
    pytest.param(LateConv, image_loss, "Functional.conv2d.1.forward", "F.conv2d(x.half()", id="conv"),
]


@pytest.mark.spec("C091", "PT")
@pytest.mark.spec("C092", "PT")
@pytest.mark.parametrize(("build", "loss", "name", "source"), FAULTS)
def test_a_planted_fault_is_named(probe: Probe, build: Any, loss: Any, name: str, source: str) -> None:
    seed()
    model = build()
    start(probe, 1, model=model)
    with pytest.raises(OverflowLimitReached) as raised:
        loss(model, 0)
    assert str(raised.value) == f"[overflow 1 times]: dump file is saved in '{probe.rank()}'."
    assert verdicts(probe) == {name: "producer"}
    assert source in lines(probe)[0]["called_at"] and __file__ in lines(probe)[0]["called_at"]
    assert list(probe.data()) == [name]
    inputs = [probe.tensor(f"{name}.input.{place}") for place in (0, 1)]
    assert all(tensor.isfinite().all() and tensor.dtype is torch.float16 for tensor in inputs)
    assert not probe.tensor(f"{name}.output.0").isfinite().all()


@pytest.mark.spec("C091", "PT")
@pytest.mark.parametrize(("build", "loss", "name", "source"), FAULTS)
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_whole_step_of_a_planted_fault(
    probe: Probe, build: Any, loss: Any, name: str, source: str, level: str
) -> None:
    seed()
    model = build()
    debugger = start(probe, -1, level, model)
    loss(model, 0).backward()
    finish(probe, debugger)
    assert named(probe, "producer") == [name]
    assert named(probe, "entered") == []
    assert next(iter(verdicts(probe))) == name
    assert set(verdicts(probe)) == set(probe.data())


@pytest.mark.spec("C091", "PT")
@pytest.mark.parametrize(("build", "loss", "name", "source"), FAULTS)
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_same_nets_without_the_fault_report_nothing(
    probe: Probe, build: Any, loss: Any, name: str, source: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Late, "scale", 1)
    monkeypatch.setattr(LateConv, "scale", 1)
    seed()
    model = build()
    debugger = start(probe, -1, level, model)
    loss(model, 0).backward()
    finish(probe, debugger)
    assert verdicts(probe) == {}
    assert json.loads((probe.rank() / "dump.json").read_text())["task"] == "overflow_check"


@pytest.mark.spec("C091", "PT")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("name", sorted(NETS))
def test_training_is_the_same_and_sound_nets_report_nothing(probe: Probe, name: str, level: str) -> None:
    alone = train(NETS[name])
    debugger = probe.debugger(level, "overflow_check", section={"overflow_nums": 1})
    assert train(NETS[name], debugger) == alone
    assert [lines(probe, step) for step in (0, 1)] == [[], []]
    assert probe.troubles() == ""


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("build", [faulty_gpt, LateConv])
def test_training_is_the_same_with_overflows(probe: Probe, build: Any, level: str) -> None:
    net = NETS["gpt" if build is faulty_gpt else "conv"]._replace(build=build)
    alone = train(net)
    debugger = probe.debugger(level, "overflow_check", section={"overflow_nums": -1})
    assert train(net, debugger) == alone
    # What the model itself does between its modules is not seen at level L0.
    unseen = level == "L0" and build is LateConv
    assert named(probe, "entered" if unseen else "producer") != []
    assert probe.troubles() == ""


# --- what is meant to be infinite, and what nobody has written ---


def masks() -> Any:
    x = torch.randn(2, 4, 4)
    where = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
    yield lambda: F.softmax(x.masked_fill(where, -math.inf), -1)
    yield lambda: F.softmax(x.clone().masked_fill_(where, -math.inf), -1)
    yield lambda: F.softmax(x + torch.triu(torch.full((4, 4), -math.inf), 1), -1)
    yield lambda: torch.where(where, torch.tensor(-math.inf), x).view(-1, 4).softmax(-1)
    yield lambda: torch.where(where, -math.inf, x).log_softmax(-1)
    outside = torch.zeros(4, 4).masked_fill(where, -math.inf)
    yield lambda: F.scaled_dot_product_attention(x, x, x, attn_mask=outside)
    yield lambda: (x + outside[None]).softmax(-1)
    yield lambda: x.new_full((4,), -math.inf) + 1
    yield lambda: torch.full((4,), math.inf).minimum(x[0, 0])
    yield lambda: torch.linalg.vector_norm(x, math.inf)
    yield lambda: x.clamp(min=-math.inf, max=math.inf)

    def scores() -> Tensor:
        changed = x.clone()
        changed[:, where] = -math.inf
        return changed.softmax(-1)

    yield scores
    yield lambda: nn.Transformer.generate_square_subsequent_mask(4) + x


@pytest.mark.spec("C091", "PT")
@pytest.mark.parametrize("number", range(len(list(masks()))))
def test_a_mask_is_nobodys_overflow(probe: Probe, number: int) -> None:
    work = list(masks())[number]
    debugger = start(probe, 1)
    work()
    finish(probe, debugger)
    assert lines(probe) == []


@pytest.mark.spec("C091", "PT")
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_an_infinite_bound_of_clipping_is_meant(probe: Probe, level: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    debugger = start(probe, 1, level, model)
    model(torch.ones(2, 3)).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf)  # only measures
    finish(probe, debugger)
    assert norm.isfinite() and lines(probe) == []


def test_an_infinite_factor_elsewhere_is_not_meant(probe: Probe) -> None:
    debugger = start(probe)
    torch.ones(3) * math.inf
    finish(probe, debugger)
    assert verdicts(probe) == {"Tensor.__mul__.0.forward": "entered"}


class Scaled(nn.Module):
    """Its weight is called as the keyword that calls are told to overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Parameter(torch.full((3,), math.inf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.out


def test_a_weight_called_out_is_an_input(probe: Probe) -> None:
    model = nn.Sequential(Scaled())
    debugger = start(probe, -1, level="L0", model=model)
    model(torch.ones(3))
    finish(probe, debugger)
    assert [(line["name"], line["verdict"]) for line in lines(probe)] == [
        ("Module.0.Scaled.forward.0", "entered")
    ]


def test_memory_that_was_never_written(probe: Probe) -> None:
    torch.use_deterministic_algorithms(True)  # torch then fills such memory with NaN
    try:
        debugger = start(probe, 1)
        for memory in (torch.empty(4), torch.empty_like(torch.ones(4))):
            assert memory.isnan().all()
            memory[0] = 1.0
            memory + 1
        finish(probe, debugger)
    finally:
        torch.use_deterministic_algorithms(False)
    assert lines(probe) == []


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda x: F.softmax(x.masked_fill(x == x, -math.inf), -1), "Functional.softmax.0.forward"),
        (lambda x: (x - x) * -math.inf, "Tensor.__mul__.0.forward"),
        (lambda x: torch.log(x - x), "Torch.log.0.forward"),
        (lambda x: (x / (x - x)) * 2, "Tensor.__truediv__.0.forward"),
        (lambda x: torch.exp(x * 1000, out=torch.empty(3)), "Torch.exp.0.forward"),
        (lambda x: torch.exp(x * 1000, out=torch.full((3,), math.inf)), "Torch.exp.0.forward"),
        (lambda x: x.mul_(1e38).mul_(1e9), "Tensor.mul_.1.forward"),
        (lambda x: x.half().__setitem__(0, x[0] * 1e6), "Tensor.__setitem__.0.forward"),
        (lambda x: (x * 1e6).half(), "Tensor.half.0.forward"),
    ],
)  # fmt: skip
def test_producers(probe: Probe, work: Any, name: str) -> None:
    debugger = start(probe)
    work(torch.tensor([1.0, 2.0, 3.0]))
    finish(probe, debugger)
    assert named(probe, "producer")[0] == name
    assert named(probe, "entered") == []


def test_in_place_inputs_are_saved_as_they_were(probe: Probe) -> None:
    debugger = start(probe)
    x = torch.tensor([1.0, 2.0])
    y = x.mul_(3e38)
    y.mul_(10)
    assert x.data_ptr() == y.data_ptr()
    finish(probe, debugger)
    large = torch.tensor([1.0, 2.0]) * 3e38
    assert torch.equal(probe.tensor("Tensor.mul_.0.forward.input.0"), torch.tensor([1.0, 2.0]))
    assert torch.equal(probe.tensor("Tensor.mul_.0.forward.output.0"), large)
    assert torch.equal(probe.tensor("Tensor.mul_.1.forward.input.0"), large)


# --- gradients ---


@pytest.mark.spec("C092", "PT")
def test_a_gradient_overflows_in_float16(probe: Probe) -> None:
    """As with a loss scale that is too large: forward is sound."""
    debugger = start(probe)
    x = torch.full((4, 8), 100.0, dtype=torch.float16)
    weight = torch.full((2, 8), 1e-3, dtype=torch.float16, requires_grad=True)
    y = F.linear(x, weight)
    (y.sum() * 2.0**12).backward()
    finish(probe, debugger)
    assert named(probe, "producer") == ["Functional.linear.0.backward"]
    assert "y = F.linear(x, weight)" in lines(probe)[0]["called_at"]
    assert probe.tensor("Functional.linear.0.backward.output.1").isinf().all()
    assert probe.tensor("Functional.linear.0.backward.input.0").isfinite().all()


def test_the_gradient_of_a_square_root(probe: Probe) -> None:
    debugger = start(probe)
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    torch.sqrt(x).sum().backward()
    finish(probe, debugger)
    assert verdicts(probe) == {"Torch.sqrt.0.backward": "producer"}


@pytest.mark.parametrize("where", ["call", "stop", "step"])
def test_a_backward_overflow_ends_training_after_backward(probe: Probe, where: str) -> None:
    debugger = start(probe, 1)
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    torch.sqrt(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [math.inf, 0.5]  # backward itself went on
    with pytest.raises(OverflowLimitReached, match="overflow 1 times"):
        {"call": lambda: x + 1, "stop": debugger.stop, "step": debugger.step}[where]()
    assert list(probe.data()) == ["Torch.sqrt.0.backward"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_code_is_counted_once_and_not_interrupted(probe: Probe, reentrant: bool) -> None:
    debugger = start(probe, 2)
    x = torch.tensor([3e38], requires_grad=True)
    checkpoint(lambda x: x * 10, x, use_reentrant=reentrant).sum().backward()
    finish(probe, debugger)
    assert named(probe, "producer") == ["Tensor.__mul__.0.forward"]


def test_a_function_of_the_users_own_backward_may_be_the_next_call(probe: Probe) -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return torch.mul(gradient, 1)

    start(probe, 1)
    x = torch.tensor([1.0], requires_grad=True)
    with pytest.raises(OverflowLimitReached):
        torch.sqrt(Own.apply(x) - 1).sum().backward()
    assert next(iter(verdicts(probe))) == "Torch.sqrt.0.backward"


# --- the end of training, the examples of the documentation ---


@pytest.mark.spec("C108", "PT")
def test_the_printed_example(tmp_path: Path, probe: Probe) -> None:
    config = json.loads((EXAMPLES / "C108.json").read_text()) | {"dump_path": str(probe.folder)}
    (tmp_path / "printed.json").write_text(json.dumps({**config, "rm_dropout": False}))
    debugger = PrecisionDebugger(str(tmp_path / "printed.json"))
    debugger.start()
    with pytest.raises(ValueError, match=r"\[overflow 1 times\]: dump file is saved in '.*/step0/rank'\."):
        torch.tensor([3e38]) * 10
    assert list(probe.data()) == ["Tensor.__mul__.0.forward"]


@pytest.mark.spec("C091", "PT")
def test_three_overflows_in_two_steps(probe: Probe) -> None:
    debugger = start(probe, 3)
    for _ in range(2):
        (torch.tensor([3e38]) * 10) + 1
    finish(probe, debugger)
    debugger.start()
    with pytest.raises(
        OverflowLimitReached, match=r"overflow 3 times\]: dump file is saved in '.*/step1/rank"
    ):
        torch.tensor([3e38]) * 10
    assert list(verdicts(probe).values()) == ["producer", "passed on"] * 2
    assert verdicts(probe, 1) == {"Tensor.__mul__.0.forward": "producer"}


def test_the_log_says_that_values_are_looked_at(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    debugger = start(probe)
    finish(probe, debugger)
    debugger.start()
    assert [line for line in caplog.messages if "overflow_check" in line] == [
        "overflow_check looks at values, at NaN and infinities in outputs and gradients: there is no "
        "overflow register to ask here."
    ]


@pytest.mark.parametrize(
    ("saturates", "expected"), [(True, {"Tensor.__add__.1.forward": "producer"}), (False, {})]
)
def test_the_register_of_an_npu(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, saturates: bool, expected: dict[str, str]
) -> None:
    """A torch_npu whose register is set by the second call; asked only where the device saturates."""
    register = [False]
    utils = types.SimpleNamespace(
        is_support_inf_nan=lambda: not saturates,
        get_npu_overflow_flag=lambda: register[0],
        clear_npu_overflow_flag=lambda: register.__setitem__(0, False),
    )
    module: Any = types.ModuleType("torch_npu")
    module.npu = types.SimpleNamespace(utils=utils)
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    debugger = start(probe)
    x = torch.ones(2)
    x + 1
    register[0] = True
    x + 2
    x + 3
    finish(probe, debugger)
    assert verdicts(probe) == expected


# --- what is held ---


def live_bytes() -> int:
    gc.collect()
    found = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    return sum(thing.nbytes for thing in found if thing.layout is torch.strided)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_nothing_is_held_between_steps(probe: Probe, level: str) -> None:
    seed()
    model = faulty_gpt()
    debugger = probe.debugger(level, "overflow_check", section={"overflow_nums": -1})
    sizes = []
    for step in range(4):
        debugger.start(model)
        loss = gpt_loss(model, step)
        loss.backward()
        debugger.stop()
        debugger.step()
        model.zero_grad()
        del loss
        sizes.append(live_bytes())
    assert sizes[1:] == sizes[1:2] * 3


def test_nothing_is_held_within_a_step(probe: Probe) -> None:
    debugger = start(probe)
    sizes = []
    for _ in range(3):
        for factor in (1.0, 10.0):
            x = torch.full((1000,), 3e38, requires_grad=True)
            (x * factor).sum().backward()
        sizes.append(live_bytes())
    assert sizes == sizes[:1] * 3
    finish(probe, debugger)


# --- the example ---


def test_the_example_finds_its_fault(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "examples" / "overflow.py"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.splitlines()[-1] == (
        f"  training ended: [overflow 1 times]: dump file is saved in '{tmp_path / 'out/faulty/step0/rank'}'."
    )
    assert not list((tmp_path / "out/sound").rglob("overflow.csv"))
    with (tmp_path / "out/faulty/step0/rank/overflow.csv").open() as stream:
        (line,) = csv.DictReader(stream)
    assert (line["name"], line["verdict"]) == ("Torch.matmul.2.forward", "producer")
    assert "scores = torch.matmul(q * 256" in line["called_at"]
