"""Answers that were once wrong, on real recordings: what one run alone has, shapes, decisions, numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.cli.main import main
from msprobe.pairing.mapping import NO_MAPPINGS
from recorded_pair import TASKS, Run, compared, recorded, with_kernel
from torch_fixtures import probe

__all__ = ["probe"]

pytestmark = [pytest.mark.usefixtures("probe")]

each_task = pytest.mark.parametrize("task", TASKS)
each_level = pytest.mark.parametrize("level", ["L0", "L1", "mix"])
each_call_level = pytest.mark.parametrize("level", ["L1", "mix"])  # where calls of APIs are recorded

Step = Callable[[], Any]


# ---- gradients that one run lacks ----


class Tied(nn.Module):
    """One weight as the embedding and as the last layer."""

    def __init__(self, is_lost: bool) -> None:
        super().__init__()
        self.embedding, self.hidden, self.is_lost = nn.Embedding(16, 8), nn.Linear(8, 8), is_lost

    def forward(self, x: Tensor) -> Tensor:
        weight = self.embedding.weight
        return F.linear(self.hidden(self.embedding(x)), weight.detach() if self.is_lost else weight)


def tied(is_lost: bool) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x, y = Tied(is_lost), torch.randint(0, 16, (4, 6)), torch.randint(0, 16, (24,))
        return model, [lambda: F.cross_entropy(model(x).flatten(0, 1), y).backward()]

    return run


@each_task
@each_level
def test_a_lost_gradient_of_a_tied_embedding_is_named(tmp_path: Path, task: str, level: str) -> None:
    found = compared(tmp_path, tied(True), tied(False), task, level)
    place = "Module.embedding.Embedding.parameters_grad.weight"
    assert found.named == (place if level == "L0" else "Functional.linear.1.backward.output.1")
    if level != "L0":
        assert "this gradient exists in the golden run only" in found.words


class Two(nn.Module):
    def __init__(self, change: str) -> None:
        super().__init__()
        self.a, self.b, self.change = nn.Linear(4, 4), nn.Linear(4, 4), change
        if change in ("frozen", "weight frozen"):
            (self.a if change == "frozen" else self.a.weight).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x)
        return self.b(torch.tanh(hidden.detach() if self.change == "detached" else hidden))


def two(change: str) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x = Two(change), torch.randn(3, 4)
        return model, [lambda: model(x).square().sum().backward()]

    return run


@each_level
@pytest.mark.parametrize("change", ["detached", "frozen", "weight frozen"])
@pytest.mark.parametrize("is_swapped", [False, True], ids=["lost", "added"])
def test_a_parameter_that_has_a_gradient_in_one_run_only_is_named(
    tmp_path: Path, level: str, change: str, is_swapped: bool
) -> None:
    runs = (two(""), two(change)) if is_swapped else (two(change), two(""))
    found = compared(tmp_path, *runs, "statistics", level)
    if level == "L0" and change == "weight frozen":
        assert found.named == "Module.a.Linear.parameters_grad.weight"
    elif level == "L0":
        assert found.named == "Module.b.Linear.backward.0.output.0"
    elif change == "weight frozen":
        assert found.named == "Functional.linear.0.backward.output.1"
    else:
        assert found.named == "Functional.linear.1.backward.output.0"
    assert "all are equal" not in found.words


def with_data_gradient(is_wanted: bool) -> Run:
    """The gradient of the data, as reentrant checkpointing asks for it: nothing uses it."""

    def run() -> tuple[nn.Module, list[Step]]:
        model, x = Two("frozen"), torch.randn(3, 4, requires_grad=is_wanted)
        return model, [lambda: model(x).square().sum().backward()]

    return run


@each_level
def test_a_gradient_that_no_parameter_needs_is_no_fault(tmp_path: Path, level: str) -> None:
    found = compared(tmp_path, with_data_gradient(True), with_data_gradient(False), "statistics", level)
    assert found.diverged is False
    assert "all are equal" not in found.words
    assert "all tensors that both runs have are equal" in found.words


# ---- arguments that come from another call ----


def wired(second: str, rows: int) -> Run:
    """A sum of two layers' results; `second`: which of them is added to the first."""

    def run() -> tuple[nn.Module, list[Step]]:
        model = nn.ModuleDict({"a": nn.Linear(8, 16), "b": nn.Linear(8, 16), "c": nn.Linear(16, 4)})
        x, y = torch.randn(6, 8), torch.randn(rows, 8)

        def step() -> None:
            made = {"a": model["a"](x), "b": model["b"](y)}
            model["c"](torch.tanh(made["a"] + made[second])).square().sum().backward()

        return model, [step]

    return run


@each_task
@each_call_level
@pytest.mark.parametrize("rows", [6, 1], ids=["one shape", "another shape"])
def test_an_argument_that_another_call_made_is_named(
    tmp_path: Path, task: str, level: str, rows: int
) -> None:
    found = compared(tmp_path, wired("a", rows), wired("b", rows), task, level)
    assert found.named == "Tensor.__add__.0.forward.input.1"
    assert "comes from Functional.linear.0.forward, in the golden run from Functional.linear.1" in found.words
    assert "--align pairs" not in found.words


# ---- shapes ----


def cut(length: int, noise: float) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 16)]), torch.randn(6, 8)
        with torch.no_grad():
            model[0].weight[0, 0] *= 1 + noise

        def step() -> None:
            torch.exp(model[1](torch.tanh(model[0](x)))[:, :length]).sum().backward()

        return model, [step]

    return run


@each_task
@each_call_level
@pytest.mark.parametrize("noise", [0.0, 3e-7])
def test_a_changed_shape_is_not_excused_by_noise(tmp_path: Path, task: str, level: str, noise: float) -> None:
    found = compared(tmp_path, cut(8, noise), cut(12, 0.0), task, level)
    assert found.named == "Torch.exp.0.forward.input.0"
    assert "its shape is [6, 8], in the golden run [6, 12]" in found.words


class Routed(nn.Module):
    """Sends each row to two of four experts; in less precision some rows go elsewhere."""

    def __init__(self, by_rows: bool) -> None:
        super().__init__()
        self.router, self.head, self.by_rows = nn.Linear(16, 4), nn.Linear(16, 3), by_rows
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share = F.softmax(self.router(x).float(), -1)
        weights, chosen = torch.topk(share, 2, -1)
        y = torch.zeros_like(x)
        if self.by_rows:
            for number, expert in enumerate(self.experts):
                rows, which = torch.where(chosen == number)
                y.index_add_(0, rows, expert(x[rows]) * weights[rows, which, None].to(x.dtype))
        else:
            mask = F.one_hot(chosen, 4).sum(-2).bool()
            weights = torch.where(mask, share, torch.zeros_like(share)).to(x.dtype)
            for number, expert in enumerate(self.experts):
                y = y + expert(x) * weights[:, number : number + 1]
        return self.head(x + y)


def routed(dtype: torch.dtype, by_rows: bool) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x = Routed(by_rows), torch.randn(512, 16)
        y = torch.randint(0, 3, (512,))
        x = x.to(dtype)
        model.to(dtype)
        return model, [lambda: F.cross_entropy(model(x).float(), y).backward()]

    return run


@each_task
@each_level
@pytest.mark.parametrize("by_rows", [False, True], ids=["mask", "rows"])
def test_a_router_that_decides_otherwise_in_bfloat16_is_sound(
    tmp_path: Path, task: str, level: str, by_rows: bool
) -> None:
    found = compared(tmp_path, routed(torch.bfloat16, by_rows), routed(torch.float32, by_rows), task, level)
    assert found.named == ""
    assert found.diverged is False
    if level == "L1":  # the premise: the two runs choose other experts
        pairs = [finding.pair for each in found.comparisons for finding in each.findings]
        (topk,) = (pair for pair in pairs if pair.place.name == "Torch.topk.0.forward.output.1")
        assert topk.target and topk.golden and topk.target.leaf and topk.golden.leaf
        assert topk.target.leaf.hash != topk.golden.leaf.hash


# ---- arguments ----


def classified(loss: Callable[[Tensor, Tensor], Tensor]) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
        x, y = torch.randn(12, 8), torch.randint(0, 5, (12,))
        return model, [lambda: loss(model(x), y).backward()]

    return run


SUM = classified(lambda x, y: F.cross_entropy(x, y, reduction="sum"))
MEAN = classified(lambda x, y: F.cross_entropy(x, y, reduction="mean"))
DEFAULT = classified(F.cross_entropy)


@each_task
@each_call_level
@pytest.mark.parametrize("runs", [(SUM, DEFAULT), (DEFAULT, SUM)], ids=["target", "golden"])
def test_a_reduction_that_one_run_gives_is_named(
    tmp_path: Path, task: str, level: str, runs: tuple[Run, Run]
) -> None:
    found = compared(tmp_path, *runs, task, level)
    assert found.named == "Functional.cross_entropy.0.forward.input.reduction"
    assert "gives 'sum' for this argument" in found.words
    assert "its inputs are" not in found.words


@each_call_level
def test_an_argument_that_only_spells_out_the_default_is_no_fault(tmp_path: Path, level: str) -> None:
    found = compared(tmp_path, MEAN, DEFAULT, "statistics", level)
    assert found.diverged is False
    assert "all are equal" not in found.words


def test_a_setting_without_effect_excuses_no_backward_call(tmp_path: Path) -> None:
    wrong = with_kernel(MEAN, "_log_softmax_backward_data", lambda gradient: gradient * 1.1)
    found = compared(tmp_path, wrong, DEFAULT, "statistics", "L1")
    assert found.named == "Functional.cross_entropy.0.backward.output.0"


def multiplied(by: Any) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x = nn.Linear(8, 8), torch.randn(6, 8)
        return model, [lambda: torch.mul(model(x), by).sum().backward()]

    return run


@each_task
@each_call_level
def test_a_plain_number_beside_a_tensor_is_judged(tmp_path: Path, task: str, level: str) -> None:
    number, tensor, same = multiplied(36), multiplied(torch.tensor(26)), multiplied(torch.tensor(36))
    found = compared(tmp_path / "1", number, tensor, task, level)
    assert found.named == "Torch.mul.0.forward.input.1"
    assert "this argument is 36, in the golden run a tensor of 26" in found.words
    found = compared(tmp_path / "2", tensor, number, task, level)
    assert found.named == "Torch.mul.0.forward.input.1"
    assert "this argument is a tensor of 26, in the golden run 36" in found.words
    assert compared(tmp_path / "3", same, number, task, level).diverged is False


def masked(dtype: torch.dtype, fill: Callable[[torch.dtype], float]) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8, 8)
        mask = torch.tril(torch.ones(8, 8)).bool()
        x = x.to(dtype)
        model.to(dtype)

        def step() -> None:
            scores = model(x).masked_fill(~mask, fill(dtype))
            scores = scores + torch.where(mask, 0.0, fill(dtype)).to(dtype)
            (torch.softmax(scores, -1) @ x).square().mean().backward()

        return model, [step]

    return run


def lowest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min


@each_task
@each_level
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_lowest_number_of_another_dtype_is_sound(
    tmp_path: Path, task: str, level: str, dtype: torch.dtype
) -> None:
    found = compared(tmp_path, masked(dtype, lowest), masked(torch.float32, lowest), task, level)
    assert found.named == "" and found.diverged is False


@each_task
@each_call_level
def test_a_mask_of_another_number_is_named(tmp_path: Path, task: str, level: str) -> None:
    wrong = masked(torch.bfloat16, lambda _: -1.0)
    found = compared(tmp_path, wrong, masked(torch.float32, lowest), task, level)
    assert found.named == "Tensor.masked_fill.0.forward.input.2"


# ---- attention ----


class Attention(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        shape = x.shape[0], x.shape[1], 2, 8
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.how == "eager":
            scores = torch.matmul(q, k.transpose(2, 3)) * 8**-0.5 + mask
            y = torch.matmul(F.softmax(scores, -1, dtype=torch.float32).to(q.dtype), v)
        else:
            given = mask if self.how == "mask" else None
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=given, is_causal=self.how == "causal")
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Attending(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.norm, self.attention, self.head = (
            how,
            nn.LayerNorm(16),
            Attention(how),
            nn.Linear(16, 5),
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(x + self.attention(self.norm(x), mask))


def attending(how: str, steps: int = 0) -> Run:
    """One backward pass, or steps of an optimizer under a scaler that unscales and clips."""

    def run() -> tuple[nn.Module, list[Step]]:
        model, x, y = Attending(how), torch.randn(3, 6, 16), torch.randint(0, 5, (18,))
        mask = torch.triu(torch.full((6, 6), torch.finfo(torch.float32).min), 1)[None, None]
        optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", 1024.0)

        def loss() -> Tensor:
            return F.cross_entropy(model(x, mask).flatten(0, 1), y)

        def step() -> None:
            scaler.scale(loss()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        return model, [step] * steps or [lambda: loss().backward()]

    return run


@each_task
@each_level
@pytest.mark.parametrize("runs", [("eager", "causal"), ("causal", "eager"), ("mask", "causal")], ids=str)
def test_a_mask_that_one_run_has_no_need_of_is_sound(
    tmp_path: Path, task: str, level: str, runs: tuple[str, str]
) -> None:
    found = compared(tmp_path, attending(runs[0]), attending(runs[1]), task, level)
    assert found.named == "" and found.diverged is False


@each_task
@each_call_level
def test_a_mask_that_is_missing_is_named(tmp_path: Path, task: str, level: str) -> None:
    found = compared(tmp_path, attending("no mask"), attending("mask"), task, level)
    assert found.named == "Functional.scaled_dot_product_attention.0.forward.input.attn_mask"
    assert "a tensor is given in the golden run only" in found.words
    assert "its inputs are" not in found.words


@each_task
@each_level
def test_gradients_of_key_biases_are_zero_but_for_rounding(tmp_path: Path, task: str, level: str) -> None:
    """Softmax does not see what all keys have in common; unscaling and clipping keep that noise."""
    found = compared(tmp_path, attending("causal", steps=2), attending("eager", steps=2), task, level)
    assert found.named == "" and found.diverged is False


# ---- decisions ----


def activated() -> tuple[nn.Module, list[Step]]:
    model, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8)), torch.randn(128, 64)
    with torch.no_grad():
        model[0].bias[5] -= model[0](x)[3, 5] - 1e-8
    return model, [lambda: model(x).square().mean().backward()]


def a_little_lower(value: Tensor) -> Tensor:
    """One unit in the last place lower; what lay at zero is below it then."""
    return torch.nextafter(value, torch.tensor(-torch.inf)) - 2e-8 if value.shape == (128, 96) else value


@each_task
@each_level
def test_one_relu_that_falls_the_other_way_is_sound(tmp_path: Path, task: str, level: str) -> None:
    target = with_kernel(activated, "addmm", a_little_lower)
    found = compared(tmp_path, target, activated, task, level)
    assert found.named == "" and found.diverged is False
    if task == "tensor" and level == "L1":  # the premise: one of 12 288 gradients is let through in one run
        step = next((tmp_path / "t" / "dump").iterdir()) / "rank" / "dump_tensor_data"
        names = [tmp_path / run / step.relative_to(tmp_path / "t") for run in ("t", "g")]
        gradients = [torch.load(each / "Functional.relu.0.backward.output.0.pt") for each in names]
        assert ((gradients[0] == 0) != (gradients[1] == 0)).sum() == 1


# ---- signs ----


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.loss = nn.Linear(8, 5), nn.CrossEntropyLoss()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.body(x), y)


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.weight = nn.Linear(8, 16), nn.Parameter(torch.randn(5, 16))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.linear_cross_entropy(self.body(x), self.weight, y)


def with_loss(kind: type[nn.Module]) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x, y = kind(), torch.randn(12, 8), torch.randint(0, 5, (12,))
        return model, [lambda: model(x, y).backward()]

    return run


@each_task
@pytest.mark.parametrize(
    ("kind", "level", "culprit"),
    [
        (WithLoss, "L0", "Module.loss.CrossEntropyLoss.backward.0.output.0"),
        (WithLoss, "L1", "Functional.cross_entropy.0.backward.output.0"),
        (WithLoss, "mix", "Functional.cross_entropy.0.backward.output.0"),
        (Fused, "L0", "Module.body.Linear.backward.0.input.0"),  # the next that is recorded
        (Fused, "L1", "Functional.linear_cross_entropy.0.backward.output.0"),
        (Fused, "mix", "Functional.linear_cross_entropy.0.backward.output.0"),
    ],
)
def test_a_wrong_sign_of_the_gradient_of_a_loss_is_named(
    tmp_path: Path, task: str, kind: type[nn.Module], level: str, culprit: str
) -> None:
    if kind is Fused and not hasattr(F, "linear_cross_entropy"):
        pytest.skip("this release of torch has no linear_cross_entropy")
    wrong = with_kernel(with_loss(kind), "nll_loss_backward", torch.neg)
    assert compared(tmp_path, wrong, with_loss(kind), task, level).named == culprit


# ---- hints ----


class Dropping(nn.Module):
    def __init__(self, share: float, training: bool) -> None:
        super().__init__()
        self.body, self.drop = nn.Linear(8, 8), nn.Dropout(share)
        self.train(training)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.body(x))


def dropped(share: float, training: bool, seed: int = 1) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x = Dropping(share, training), torch.randn(6, 8)
        torch.manual_seed(seed)
        return model, [lambda: model(x).sum().backward()]

    return run


@each_level
@pytest.mark.parametrize(
    ("target", "golden", "is_said"),
    [
        (dropped(0.5, True, seed=2), dropped(0.5, True), True),
        (dropped(0.5, True), dropped(0.0, True), False),
        (dropped(0.0, True), dropped(0.5, True), False),
        (dropped(0.5, True), dropped(0.5, False), False),
    ],
    ids=["drawn", "golden p = 0", "target p = 0", "golden not training"],
)
def test_seeds_are_a_hint_only_where_both_runs_draw(
    tmp_path: Path, level: str, target: Run, golden: Run, is_said: bool
) -> None:
    found = compared(tmp_path, target, golden, "statistics", level)
    assert found.named.startswith("Module.drop" if level == "L0" else "Functional.dropout.0.forward.")
    assert ("give both runs the same seeds" in found.words) is is_said


# ---- exit status ----


def silent() -> tuple[nn.Module, list[Step]]:
    return nn.Linear(4, 4), [lambda: None]


@pytest.mark.parametrize("options", [[], ["--fail-on", "divergence"]], ids=["plain", "--fail-on"])
def test_comparing_nothing_is_an_error(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [recorded(tmp_path / name, silent, "statistics", "L1") for name in ("t", "g")]
    assert main(["compare", *map(str, folders), "-o", str(tmp_path / "out"), *options]) == 2
    assert "Nothing was compared" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--fail-on", "divergence"]], ids=["plain", "--fail-on"])
def test_nothing_that_could_be_judged_is_an_error(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = recorded(tmp_path / "t", two(""), "statistics", "L0")
    golden = recorded(tmp_path / "g", two(""), "statistics", "L1")
    assert main(["compare", str(target), str(golden), "-o", str(tmp_path / "out"), *options]) == 2
    assert "Nothing could be judged" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("golden", "status"), [(two(""), 0), (two("detached"), 1)], ids=["same", "other"])
def test_equal_and_different_hashes_count_as_judged(tmp_path: Path, golden: Run, status: int) -> None:
    folders = []
    for name, run in (("t", two("")), ("g", golden)):
        folders.append(recorded(tmp_path / name, run, "md5", "L1"))
    words = ["compare", *map(str, folders), "-o", str(tmp_path / "out")]
    assert main([*words, "--fail-on", "divergence"]) == status
    assert main(words) == 0


# ---- pairs by number that cross ----


def crossing(order: str) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}), torch.randn(4, 8)

        def step() -> None:
            parts = {name: torch.tanh(model[name](x)) for name in order}
            (parts["a"] * parts["b"].sigmoid()).sum().backward()

        return model, [step]

    return run


@each_call_level
def test_pairs_by_number_that_cross_are_no_strong_evidence(tmp_path: Path, level: str) -> None:
    by_number = NO_MAPPINGS._replace(align=False)
    runs = crossing("ab"), crossing("ba")
    found = compared(tmp_path / "1", *runs, "tensor", level, mappings=by_number)
    assert found.culprit is not None and found.culprit.evidence.grade != "strong"
    aligned = compared(tmp_path / "2", *runs, "tensor", level)
    assert aligned.named == "" and aligned.diverged is False
