"""Changes of parameters: faults of an optimizer are named in words, and sound ones are not accused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from truth.kernel_faults import EITHER_WAY, EXACT, kernels

from msprobe.compare import compare
from msprobe.report.answer import answer
from msprobe.report.summary import junit
from msprobe.store.recordings import find, read_one
from msprobe.verdict.locate import Divergence, diverged, overall, suspects
from torch_fixtures import Probe

Optimizer = Callable[[nn.Module], Any]
STEPS = 3


class Net(nn.Module):
    """Has a bias of keys among others, whose gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(40, 32), nn.LayerNorm(32)
        self.qkv, self.out, self.head = nn.Linear(32, 96), nn.Linear(32, 32), nn.Linear(32, 40)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        q, k, v = self.qkv(self.norm(x)).split(32, -1)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 32**0.5, -1)
        return self.head(x + self.out(weights @ v))


class WithoutCorrection(torch.optim.Optimizer):
    """Adam as it is without bias correction."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            gradient, state = parameter.grad, self.state[parameter]
            first = state.setdefault("first", torch.zeros_like(parameter))
            second = state.setdefault("second", torch.zeros_like(parameter))
            first.mul_(0.9).add_(gradient, alpha=0.1)
            second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            parameter.addcdiv_(first, second.sqrt().add_(1e-8), value=-1e-3)


class Clipped:
    """SGD behind a clipping of gradients."""

    def __init__(self, model: nn.Module, norm: float) -> None:
        self._model, self._norm = model, norm
        self._inner = torch.optim.SGD(model.parameters(), 0.05)

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self._model.parameters(), self._norm)
        self._inner.step()


class Skipping:
    """AdamW that leaves out its second step."""

    def __init__(self, model: nn.Module) -> None:
        self._inner, self._steps = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01), 0

    def step(self) -> None:
        self._steps += 1
        if self._steps != 2:
            self._inner.step()


def adamw(rate: float = 1e-3, decay: float = 0.01, **more: Any) -> Optimizer:
    return lambda model: torch.optim.AdamW(model.parameters(), rate, weight_decay=decay, **more)


def sgd(rate: float = 0.05, **more: Any) -> Optimizer:
    return lambda model: torch.optim.SGD(model.parameters(), rate, **more)


def without(name: str) -> Optimizer:
    """AdamW that was not given the parameters of one module."""

    def made(model: nn.Module) -> Any:
        given = [value for own, value in model.named_parameters() if not own.startswith(name)]
        return torch.optim.AdamW(given, 1e-3, weight_decay=0.01)

    return made


def record(
    folder: Path,
    optimizer: Optimizer,
    *,
    rounding: str = EXACT,
    level: str = "mix",
    task: str = "statistics",
    section: dict[str, Any] | None = None,
    net: Callable[[], nn.Module] = Net,
    steps: int = STEPS,
) -> Path:
    """Record some steps of training, with the steps of the optimizer outside of the recording."""
    folder.mkdir()
    probe = Probe(folder)
    torch.manual_seed(0)
    model = net()
    learning = optimizer(model)
    try:
        debugger = probe.debugger(level, task, section=section or {})
        for _ in range(steps):
            given, wanted = torch.randint(0, 40, (2, 4, 12))
            model.zero_grad()
            debugger.start(model)
            with kernels(rounding):
                F.cross_entropy(model(given).flatten(0, 1), wanted.flatten()).backward()
            debugger.stop()
            debugger.step()
            learning.step()
    finally:
        probe.close()
    return probe.folder


def culprit(target: Path, golden: Path) -> Divergence | None:
    return overall([one.located for one in compare(target, golden)])


GOLDEN: dict[str, Optimizer] = {
    "adamw": adamw(),
    "decayed": adamw(decay=0.1),
    "sgd": sgd(),
    "momentum": sgd(momentum=0.9),
    "clipped": lambda model: Clipped(model, 0.2),
    "adam": adamw(decay=0.0),
}
# The fault, the sound optimizer beside it, the step whose change shows it, and what is said.
FAULTS: dict[str, tuple[Optimizer, str, int, str]] = {
    "rate": (adamw(2e-3), "adamw", 0, "embed.weight in step 0 is 2 times golden's: the learning rate"),
    "rate 1 %": (adamw(1.01e-3), "adamw", 0, "is 1.01 times golden's: the learning rate"),
    "sgd rate": (sgd(0.0505), "sgd", 0, "is 1.01 times golden's: the learning rate"),
    "no decay": (adamw(decay=0.0), "decayed", 0, "0.0001 times the parameter itself: the weight decay"),
    "small decay": (adamw(decay=0.0), "adamw", 0, "1e-05 times the parameter itself: the weight decay"),
    "l2": (
        lambda model: torch.optim.Adam(model.parameters(), 1e-3, weight_decay=0.1),
        "decayed",
        0,
        "the optimizer",
    ),
    "beta1": (adamw(betas=(0.95, 0.999)), "adamw", 1, "in which earlier gradients count: a beta"),
    "beta2": (adamw(betas=(0.9, 0.99)), "adamw", 1, "in which earlier gradients count: a beta"),
    "eps": (adamw(eps=1e-3), "adamw", 0, "explains no such difference; compare its settings"),
    "correction": (lambda model: WithoutCorrection(model.parameters()), "adam", 0, "bias correction of Adam"),
    "frozen": (without("out"), "adamw", 0, "out.weight did not change in step 0"),
    "clipping": (sgd(), "clipped", 0, "a factor that the gradients were scaled by"),
    "skipped": (Skipping, "adamw", 1, "the optimizer made no step"),
    "momentum": (sgd(momentum=0.8), "momentum", 1, "-0.1 times the change before: the momentum"),
}


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The recordings of sound optimizers, each made once."""
    folder = tmp_path_factory.mktemp("golden")
    return lambda name: (
        folder / name / "dump" if (folder / name).exists() else record(folder / name, GOLDEN[name])
    )


IN_NOISE = ("rate 1 %", "small decay", "beta2", "frozen", "momentum")  # every kernel rounds otherwise, too


@pytest.mark.parametrize(
    ("fault", "rounding"), [*((f, EXACT) for f in FAULTS), *((f, EITHER_WAY) for f in IN_NOISE)]
)
def test_a_fault_of_an_optimizer_is_named_by_what_the_numbers_show(
    tmp_path: Path, golden: Callable[[str], Path], fault: str, rounding: str
) -> None:
    optimizer, beside, step, words = FAULTS[fault]
    target = record(tmp_path / "target", optimizer, rounding=rounding, steps=step + 2)
    found = culprit(target, golden(beside))
    assert found is not None
    assert found.step == step + 1
    assert words in found.verdict.reason
    name = "out" if fault == "frozen" else "embed"
    assert found.place.leaf is not None and found.place.leaf.made_by == f"parameter:{name}.weight"


@pytest.mark.parametrize("rounding", [EXACT, EITHER_WAY])
@pytest.mark.parametrize(
    "optimizer",
    [adamw(foreach=False), adamw(foreach=True), adamw(fused=True)],
    ids=["plain", "each", "fused"],
)
def test_adam_may_turn_rounding_into_whole_steps(
    tmp_path: Path, golden: Callable[[str], Path], optimizer: Optimizer, rounding: str
) -> None:
    """A third of the bias of queries, keys and values goes its own way, and nobody is to blame."""
    target = record(tmp_path / "target", optimizer, rounding=rounding)
    located = [one.located for one in compare(target, golden("adamw"))]
    assert suspects(located) == [] and diverged(located) is False


def test_what_earlier_steps_explain_fails_no_test_of_junit(tmp_path: Path) -> None:
    """A parameter of bfloat16 comes in different, because the step before had other gradients."""
    coarse = record(tmp_path / "t", adamw(1e-2), net=lambda: Net().bfloat16(), rounding=EITHER_WAY)
    found = compare(coarse, record(tmp_path / "g", adamw(1e-2)))
    assert any(one.located.origins for one in found)
    assert diverged([one.located for one in found]) is False
    tests = b"".join(junit([one.outcome(with_cases=True) for one in found]))
    assert b"<failure" not in tests
    assert b"earlier steps explain this: " in tests


MODES = [
    ("mix", "tensor", {}),
    ("mix", "statistics", {"summary_mode": "sketch"}),
    ("mix", "statistics", {"summary_mode": "md5"}),
    ("L0", "statistics", {}),
    ("L1", "statistics", {}),
]


@pytest.mark.parametrize(("level", "task", "section"), MODES, ids=["tensor", "sketch", "md5", "L0", "L1"])
def test_changes_are_judged_in_every_mode(
    tmp_path: Path, level: str, task: str, section: dict[str, Any]
) -> None:
    kind: dict[str, Any] = {"level": level, "task": task, "section": section, "steps": 2}
    golden = record(tmp_path / "golden", adamw(), **kind)
    sound = record(tmp_path / "sound", adamw(), rounding=EITHER_WAY, **kind)
    faulty = record(tmp_path / "faulty", adamw(1.01e-3), rounding=EITHER_WAY, **kind)
    assert culprit(sound, golden) is None
    found = culprit(faulty, golden)
    assert found is not None and found.step == 1
    assert "embed.weight in step 0 is 1.01 times golden's: the learning rate" in found.verdict.reason
    assert "embedding" in str(found.place.record.name).lower()


def test_rounding_of_bfloat16_parameters_is_no_all_clear(tmp_path: Path) -> None:
    """The stored parameter is rounded to 1/256 of itself, so that a change of 1/1000 cannot be judged."""
    runs = [
        record(tmp_path / name, adamw(rate), net=lambda: Net().to(torch.bfloat16))
        for name, rate in (("target", 1.2e-3), ("golden", 1e-3))
    ]
    found = compare(*runs)
    assert not any(verdict.is_change for one in found for verdict in one.verdicts)
    assert diverged([one.located for one in found]) == "cannot tell"


def test_steps_that_do_not_follow_each_other_are_not_judged(
    tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    target = record(tmp_path / "target", adamw(2e-3))
    (target / "step1").rename(tmp_path / "step1")
    assert not any(v.is_change for one in compare(target, golden("adamw")) for v in one.verdicts)


def test_parameters_and_their_gradients_have_sketches_in_plain_statistics(
    golden: Callable[[str], Path],
) -> None:
    records = read_one(find(golden("adamw"))[0].path).records
    linear = records["Functional.linear.0.forward"].fields
    brief, full = 64, 256  # bytes
    assert [len(leaf.sketch) for leaf in linear["input_args"]] == [brief, full, full]
    assert len(linear["output"][0].sketch) == brief
    own = records["Module.qkv.Linear.forward.0"].fields["parameters"]
    assert {name: len(leaf.sketch) for name, leaf in own.items()} == {"weight": full, "bias": full}
    gradients = records["Module.qkv.Linear.parameters_grad"].fields.values()
    assert [len(leaf.sketch) for (leaf,) in gradients] == [full, full]


class WithState(nn.Module):
    """Has running statistics."""

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(40, 16), nn.BatchNorm1d(12, momentum=momentum)
        self.head = nn.Linear(16, 40)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(words)))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_another_momentum_of_batch_norm_is_named(tmp_path: Path, momentum: float, level: str) -> None:
    golden = record(tmp_path / "golden", adamw(), net=lambda: WithState(0.1), level=level, steps=2)
    target = record(
        tmp_path / "target",
        adamw(),
        net=lambda: WithState(momentum),
        level=level,
        steps=2,
        rounding=EITHER_WAY,
    )
    found = culprit(target, golden)
    assert found is not None
    assert "norm" in str(found.place.record.name).lower()


def test_an_optimizer_that_rounding_hides_is_said_to_be_hidden(tmp_path: Path) -> None:
    """The steps of Adam are smaller than the rounding of weights of bfloat16, whatever the learning rate."""
    golden = record(tmp_path / "golden", adamw())
    coarse = record(tmp_path / "coarse", adamw(), net=lambda: Net().bfloat16())
    said = ["\n".join(answer([c.outcome() for c in compare(run, golden)])) for run in (coarse, golden)]
    assert "too small beside the rounding of what is stored" in said[0]
    assert "the changes of" not in said[1]
