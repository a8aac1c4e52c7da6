"""Calls that only one run makes are one step: sound if it gives the same, the culprit if it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recorded_pair import TASKS, Run, compared
from torch_fixtures import probe

__all__ = ["probe"]

pytestmark = [pytest.mark.usefixtures("probe")]

each_task = pytest.mark.parametrize("task", TASKS)
each_level = pytest.mark.parametrize("level", ["L1", "mix"])


class Norm(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.weight = how, nn.Parameter(1 + 0.1 * torch.randn(16))
        self.bias = nn.Parameter(0.1 * torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "layer":
            return F.layer_norm(x, (16,), self.weight, self.bias, 1e-5)
        if self.how == "layer by hand":
            x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
            return x * self.weight + self.bias
        if self.how == "rms":
            return F.rms_norm(x, (16,), self.weight, 1e-6)
        if self.how == "rms by hand":
            wide = x.float()
            return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return x


def rotated(x: Tensor, in_half: bool) -> Tensor:
    length, width = x.shape[-2:]
    angles = torch.arange(length)[:, None] * (10000 ** (-torch.arange(0, width, 2) / width))[None]
    cos, sin = (torch.cat([each, each], -1).to(x.dtype) for each in (angles.cos(), angles.sin()))
    dtype = x.dtype
    if in_half:
        x, cos, sin = x.bfloat16(), cos.bfloat16(), sin.bfloat16()
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).to(dtype)


class Net(nn.Module):
    """A block of a transformer that can be computed in several ways, right and wrong ones."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = {
            "norm": "layer",
            "gelu": "fused",
            "attention": "fused",
            "mask": True,
            "scale": True,
            **ways,
        }
        self.norm1, self.norm2 = Norm(self.ways["norm"]), Norm(self.ways["norm"])
        self.q, self.k, self.v, self.out, self.head = (nn.Linear(16, n) for n in (16, 16, 16, 16, 5))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attend(self.norm1(x))
        x = y if self.ways.get("no residual") else x + y
        return self.head(x + self.down(self.activate(self.lift(self.norm2(x)))))

    def attend(self, x: Tensor) -> Tensor:
        shape = x.shape[0], x.shape[1], 2, 8
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = rotated(q, self.ways.get("half rotation", False)), rotated(k, False)
        if self.ways["attention"] == "fused":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.ways["mask"])
        else:
            scores = torch.matmul(q, k.transpose(-1, -2))
            if self.ways["scale"]:
                scores = scores * 8**-0.5
            if self.ways["mask"]:
                lowest = torch.full(scores.shape[-2:], torch.finfo(scores.dtype).min, dtype=scores.dtype)
                scores = scores + torch.triu(lowest, 1)
            if self.ways.get("wide softmax"):
                y = torch.matmul(torch.softmax(scores.float(), -1).to(v.dtype), v)
            else:
                y = torch.matmul(torch.softmax(scores, -1), v)
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def lift(self, x: Tensor) -> Tensor:
        if not self.ways.get("half product"):
            return self.up(x)
        return (
            torch.addmm(*(each.bfloat16() for each in (self.up.bias, x.flatten(0, 1), self.up.weight.t())))
            .float()
            .view(*x.shape[:2], 32)
        )

    def activate(self, x: Tensor) -> Tensor:
        if self.ways["gelu"] == "fused":
            return F.gelu(x)
        if self.ways["gelu"] == "by tanh":
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


Optimizer = Callable[[Any], torch.optim.Optimizer]


def net(
    dtype: torch.dtype = torch.float32,
    optimizer: Optimizer | None = None,
    autocast: bool = False,
    **ways: Any,
) -> Run:
    def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model, x, y = Net(**ways), torch.randn(4, 8, 16), torch.randint(0, 5, (32,))
        model, x = model.to(dtype), x.to(dtype)
        made = optimizer(model.parameters()) if optimizer is not None else None

        def step() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(x).flatten(0, 1).float(), y)
            loss.backward()
            if made is not None:
                made.step()
                made.zero_grad()

        return model, [step] * (2 if made is not None else 1)

    return run


SOUND = {
    "attention": ({"attention": "by hand"}, {}),
    "layer norm": ({"norm": "layer by hand"}, {"norm": "layer"}),
    "rms norm": ({"norm": "rms by hand"}, {"norm": "rms"}),
    "gelu": ({"gelu": "by hand"}, {}),
    "all": ({"attention": "by hand", "norm": "layer by hand", "gelu": "by hand"}, {}),
}


@each_task
@each_level
@pytest.mark.parametrize("ways", SOUND)
@pytest.mark.parametrize("is_swapped", [False, True], ids=["target", "golden"])
def test_another_way_to_the_same_value_is_sound(
    tmp_path: Path, task: str, level: str, ways: str, is_swapped: bool
) -> None:
    ours, theirs = reversed(SOUND[ways]) if is_swapped else SOUND[ways]
    found = compared(tmp_path, net(**ours), net(**theirs), task, level)
    assert found.named == "" and found.diverged is False


@each_task
@pytest.mark.parametrize("ways", SOUND)
@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("bfloat16", "float32")], ids=str)
def test_the_same_is_so_in_less_precision(
    tmp_path: Path, task: str, ways: str, dtypes: tuple[str, str]
) -> None:
    ours, theirs = SOUND[ways]
    runs = (net(getattr(torch, d), **way) for d, way in zip(dtypes, (ours, theirs), strict=True))
    found = compared(tmp_path, *runs, task, "L1")
    assert found.named == "" and found.diverged is False


@each_level
@pytest.mark.parametrize("is_swapped", [False, True], ids=["target", "golden"])
def test_casts_of_autocast_are_sound(tmp_path: Path, level: str, is_swapped: bool) -> None:
    runs = [net(autocast=True), net()]
    found = compared(tmp_path, *(reversed(runs) if is_swapped else runs), "statistics", level)
    assert found.named == "" and found.diverged is False


@each_level
@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_other_calls_of_an_optimizer_are_sound(tmp_path: Path, level: str, way: str) -> None:
    runs = (
        net(optimizer=lambda p, keys=keys: torch.optim.AdamW(p, **keys))
        for keys in ({way: True}, {"foreach": False})
    )
    found = compared(tmp_path, *runs, "tensor", level)
    assert found.named == "" and found.diverged is False
    pairs = [finding.pair for each in found.comparisons for finding in each.findings]
    both = [(pair.target.record, pair.golden.record) for pair in pairs if pair.target and pair.golden]
    assert all((ours.parent == "optimizer") == (theirs.parent == "optimizer") for ours, theirs in both)


FAULTS = {
    "no scale beside fused": (
        {"attention": "by hand", "scale": False}, {}, "Torch.matmul.1.forward.output.0"
    ),
    "no scale": (
        {"attention": "by hand", "scale": False},
        {"attention": "by hand"},
        "Tensor.__mul__.6.forward.output.0",
    ),
    "no mask beside fused": ({"attention": "by hand", "mask": False}, {}, "Torch.matmul.1.forward.output.0"),
    "no mask in fused": (
        {"mask": False},
        {"attention": "by hand"},
        "Functional.scaled_dot_product_attention.0.forward.output.0",
    ),
    "no mask": (
        {"attention": "by hand", "mask": False}, {"attention": "by hand"}, "Tensor.__add__.2.forward.output.0"
    ),
    "no residual": ({"no residual": True}, {}, "Tensor.__add__.2.forward.output.0"),
    "no layer norm": ({"norm": "none"}, {"norm": "layer"}, "Functional.layer_norm.0.forward.output.0"),
    "no rms norm": ({"norm": "none"}, {"norm": "rms by hand"}, "Tensor.__mul__.1.forward.output.0"),
    "another gelu": ({"gelu": "by tanh"}, {}, "Tensor.__mul__.6.forward.output.0"),
}  # fmt: skip


@each_task
@each_level
@pytest.mark.parametrize("fault", FAULTS)
def test_calls_that_give_something_else_are_the_culprit(
    tmp_path: Path, task: str, level: str, fault: str
) -> None:
    ours, theirs, culprit = FAULTS[fault]
    found = compared(tmp_path, net(**ours), net(**theirs), task, level)
    assert found.named == culprit
    assert "what goes into these calls is equal" in found.words


def test_the_answer_says_which_calls_each_run_makes(tmp_path: Path) -> None:
    ours, theirs, _ = FAULTS["no mask beside fused"]
    words = compared(tmp_path / "1", net(**ours), net(**theirs), "statistics", "L1").words
    assert (
        "the target computes this with `Tensor.transpose.3.forward`, `Torch.matmul.0.forward`, "
        "`Tensor.__mul__.6.forward`, `Torch.softmax.0.forward`, `Torch.matmul.1.forward`, the golden run "
        "with `Functional.scaled_dot_product_attention.0.forward`"
    ) in words
    ours, theirs, _ = FAULTS["no residual"]
    words = compared(tmp_path / "2", net(**ours), net(**theirs), "statistics", "L1").words
    assert (
        "the golden run computes this with `Tensor.__add__.2.forward`, the target with no such call" in words
    )


@each_task
@each_level
def test_a_rotation_in_half_precision_is_named(tmp_path: Path, task: str, level: str) -> None:
    found = compared(tmp_path, net(**{"half rotation": True}), net(), task, level)
    assert found.named == "Tensor.chunk.0.forward.input.0"
    assert "precision is lost here: bfloat16 where the golden run has float32" in found.words


@each_task
@each_level
def test_a_softmax_without_its_float_is_named(tmp_path: Path, task: str, level: str) -> None:
    golden = net(torch.bfloat16, attention="by hand", **{"wide softmax": True})
    found = compared(tmp_path, net(torch.bfloat16, attention="by hand"), golden, task, level)
    assert found.named == "Torch.softmax.0.forward.output.0"
    assert "precision is lost here: bfloat16 where the golden run has float32" in found.words


@each_task
@each_level
def test_a_product_in_half_precision_beside_another_call_is_named(
    tmp_path: Path, task: str, level: str
) -> None:
    found = compared(tmp_path, net(**{"half product": True}), net(), task, level)
    assert found.culprit is not None
    assert "precision is lost here: bfloat16" in found.words


@each_task
def test_errors_pass_through_calls_without_a_counterpart(tmp_path: Path, task: str) -> None:
    """A parameter that differs is named where it goes into them, and they are not."""

    def wrong() -> Any:
        model, steps = net(attention="by hand", norm="layer by hand")()
        with torch.no_grad():
            model.norm1.weight.mul_(1.05)
        return model, steps

    found = compared(tmp_path, wrong, net(), task, "L1")
    assert found.culprit is not None
    assert "it is the parameter norm1.weight" in found.culprit.verdict.reason
    origins = [each.place.name for one in found.comparisons for each in one.located.origins]
    assert not any("softmax" in name or "matmul" in name for name in origins)


class Projection(nn.Module):
    """Attention with one weight for queries, keys and values, which is used as a whole or in slices."""

    def __init__(self, factor: float | None) -> None:
        super().__init__()
        self.weight, self.out, self.factor = nn.Linear(16, 48), nn.Linear(16, 4), factor

    def forward(self, x: Tensor) -> Tensor:
        if self.factor is None:
            q, k, v = self.weight(x).chunk(3, -1)
            return self.out(F.scaled_dot_product_attention(q[None], k[None], v[None])[0])
        parts = [slice(start, start + 16) for start in (0, 16, 32)]
        q, k, v = (F.linear(x, self.weight.weight[part], self.weight.bias[part]) for part in parts)
        return self.out(torch.softmax(q @ k.transpose(-1, -2) / 4 * self.factor, -1) @ v)


@each_task
@each_level
def test_parts_of_a_weight_are_not_compared_with_the_whole(tmp_path: Path, task: str, level: str) -> None:
    def run(factor: float | None) -> Run:
        def made() -> tuple[nn.Module, list[Callable[[], Any]]]:
            model, x = Projection(factor), torch.randn(2, 9, 16)
            return model, [lambda: model(x).square().mean().backward()]

        return made

    found = compared(tmp_path / "fault", run(1.1), run(None), task, level)
    assert found.named.startswith("Tensor.__matmul__.1.forward")
    found = compared(tmp_path / "sound", run(1.0), run(None), task, level)
    assert found.named == ""
