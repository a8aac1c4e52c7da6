"""Sound runs that compute in another form have no culprit, faulty ones do, and too little says nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from truth.kernel_faults import EITHER_WAY, kernels

from msprobe.cli.main import main
from msprobe.pairing.mapping import Mappings
from recorded_pair import TASKS, Run, compared, recorded
from torch_fixtures import probe

__all__ = ["probe"]

pytestmark = [pytest.mark.usefixtures("probe")]

each_task = pytest.mark.parametrize("task", TASKS)
SIZE = 16
Form = Callable[[Tensor, Tensor], Tensor]


class Scores(nn.Module):
    """Attention whose scores are computed in a form of their own."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.form(self.q(x), self.k(x)), -1)
        return x + self.out(torch.matmul(weights, self.v(x)))


def attending(form: Form, dtype: torch.dtype = torch.float32) -> Run:
    def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model = nn.Sequential(Scores(form), nn.LayerNorm(SIZE), Scores(form)).to(dtype)
        x = torch.randn(3, 8, SIZE, dtype=dtype)
        return model, [lambda: model(x).square().mean().backward()]

    return run


def rounding_otherwise(run: Run) -> Run:
    """The same run with kernels that round otherwise."""

    def made() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model, steps = run()

        def step() -> None:
            with kernels(EITHER_WAY):
                steps[0]()

        return model, [step]

    return made


def after(q: Tensor, k: Tensor) -> Tensor:
    return torch.matmul(q, k.transpose(-2, -1)) / 4.0


def before(q: Tensor, k: Tensor) -> Tensor:
    return torch.matmul(q / 4.0, k.transpose(-2, -1))


def of_keys(q: Tensor, k: Tensor) -> Tensor:
    return torch.matmul(q, (k / 4.0).transpose(-2, -1))


def halves(q: Tensor, k: Tensor) -> Tensor:
    parts = torch.matmul(0.5 * q, k.transpose(-2, -1)) + torch.matmul(0.5 * q, k.transpose(-2, -1))
    return parts * 0.25


@each_task
@pytest.mark.parametrize("form", [before, of_keys, halves])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_form_of_the_same_is_sound(tmp_path: Path, task: str, form: Form, dtype: torch.dtype) -> None:
    found = compared(tmp_path, attending(form, dtype), attending(after, dtype), task, "mix")
    assert found.named == ""
    assert found.diverged is False


@each_task
@pytest.mark.parametrize("share", [0.5, 0.05, 0.001])
def test_a_fault_in_another_form_is_found(tmp_path: Path, task: str, share: float) -> None:
    def wrong(q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q / 4.0 * (1 + share), k.transpose(-2, -1))

    found = compared(tmp_path, attending(wrong), attending(after), task, "mix")
    assert found.diverged is True
    assert found.named.startswith(("Tensor.__truediv__", "Tensor.__mul__", "Torch.matmul", "Torch.softmax"))


def test_a_fault_that_only_gradients_show_is_found(tmp_path: Path) -> None:
    """The scale of what a norm is given has no effect forward; its gradient does if a part is detached."""

    def scaled(is_detached: bool) -> Run:
        def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
            model, x = nn.ModuleList([nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)]), torch.randn(6, SIZE)

            def step() -> None:
                hidden = model[0](x)
                hidden = hidden + 2 * hidden.detach() if is_detached else hidden
                normed = F.layer_norm(hidden, (SIZE,), eps=1e-12)
                model[1](torch.tanh(normed)).square().mean().backward()

            return model, [step]

        return run

    found = compared(tmp_path, scaled(True), scaled(False), "tensor", "L1")
    assert found.diverged is True


class Attention(nn.Module):
    """Attention whose three weights lie in one parameter, or each in its own."""

    def __init__(self, is_merged: bool, order: str) -> None:
        super().__init__()
        weight = torch.randn(3 * SIZE, SIZE) * 0.2
        self.order = order
        if is_merged:
            self.qkv = nn.Parameter(weight)
        else:
            self.q, self.k, self.v = (nn.Parameter(part.clone()) for part in weight.chunk(3))

    def forward(self, x: Tensor) -> Tensor:
        parts = (
            F.linear(x, self.qkv).chunk(3, -1)
            if hasattr(self, "qkv")
            else [F.linear(x, each) for each in (self.q, self.k, self.v)]
        )
        q, k, v = (parts["qkv".index(letter)] for letter in self.order)
        return x + torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / 4.0, -1), v)


def merging(is_merged: bool, order: str = "qkv") -> Run:
    def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model = nn.Sequential(*(Attention(is_merged, order) for _ in range(2)), nn.Linear(SIZE, 4))
        x = torch.randn(3, 8, SIZE)
        return model, [lambda: model(x).square().mean().backward()]

    return run


@each_task
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_weights_in_other_pieces_are_sound(tmp_path: Path, task: str, level: str) -> None:
    found = compared(tmp_path, merging(True), merging(False), task, level)
    assert found.named == ""
    assert found.diverged is False


@each_task
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_pieces_that_are_taken_in_another_order_are_found(tmp_path: Path, task: str, level: str) -> None:
    found = compared(tmp_path, merging(True, "kvq"), merging(False), task, level)
    assert found.diverged is True


class Residual(nn.Module):
    """A block that runs once, or twice for the mean of what it gives."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        found = [x + self.down(F.gelu(self.up(x))) for _ in range(self.times)]
        return found[0] if self.times == 1 else (found[0] + found[1]) / 2


def repeating(times: int, share: float = 1.0) -> Run:
    def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model = nn.Sequential(*(Residual(times) for _ in range(3)), nn.Linear(SIZE, 4))
        x = torch.randn(6, SIZE)

        def step() -> None:
            hidden = model[1](model[0](x))
            hidden = share * hidden + (1 - share) * hidden.detach() if times > 1 else hidden
            model[3](model[2](hidden)).square().mean().backward()

        return model, [step]

    return run


@each_task
def test_a_block_that_runs_twice_for_its_mean_is_sound(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, repeating(2), repeating(1), task, "mix")
    assert found.named == ""
    assert found.diverged is False


@each_task
def test_a_part_of_a_gradient_that_gets_lost_on_the_way_is_no_other_form(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, repeating(2, 0.9), repeating(1), task, "mix")
    assert found.diverged is True


def first_word(is_fused: bool) -> Run:
    """The first word attends to itself alone, so that the gradients of queries and keys are zero."""

    def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model = nn.ModuleDict({name: nn.Linear(SIZE, SIZE) for name in "qkvo"})
        x = torch.randn(3, 8, SIZE)

        def step() -> None:
            q, k, v = (model[name](x).view(3, 8, 2, 8).transpose(1, 2) for name in "qkv")
            if is_fused:
                seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                mask = torch.full((8, 8), float("-inf")).triu(1)
                seen = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5 + mask, -1) @ v
            model["o"](seen.transpose(1, 2).reshape(3, 8, SIZE))[:, 0].square().mean().backward()

        return model, [step]

    return run


@each_task
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_of_zeros_come_zeros(tmp_path: Path, task: str, level: str) -> None:
    found = compared(tmp_path, first_word(True), first_word(False), task, level)
    assert found.named == ""
    assert found.diverged is False


# ---- what was not recorded: a cast, an index ----


class Router(nn.Module):
    """Half of the words go through one expert, by a weight that is always used in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, SIZE) * 0.02)
        self.experts = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(2))
        self.mix, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.mix(x))
        chosen = F.linear(x.type(torch.float32), self.weight.type(torch.float32)).argmax(-1)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (words,) = torch.where(chosen == number)
            found = found.index_add(0, words, expert(x[words]))
        return self.head(x + found)


def routed(dtype: torch.dtype) -> Run:
    def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model, x = nn.Sequential(Router()), torch.randn(1500, SIZE)
        model, x = model.to(dtype), x.to(dtype)
        return model, [lambda: model(x).square().mean().backward()]

    return run


@each_task
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_words_that_a_router_sends_elsewhere_accuse_nobody(
    tmp_path: Path, task: str, dtype: torch.dtype
) -> None:
    target = rounding_otherwise(routed(torch.bfloat16))
    found = compared(tmp_path, target, routed(dtype), task, "mix")
    assert found.named == ""
    assert found.diverged in (False, "cannot tell")
    taken = [p for each in found.comparisons for p in each.pairs if "Linear.forward" in p.place.call]
    shapes = [[place.leaf.shape for place in p[:2] if place is not None and place.leaf] for p in taken]
    assert any(len(set(pair)) > 1 for pair in shapes)  # some words do go elsewhere


@each_task
def test_a_weight_that_a_cast_made_finer_is_rounded_all_the_same(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, routed(torch.bfloat16), routed(torch.float32), task, "mix")
    assert "weight" not in found.named


# ---- too little is no all-clear ----


def accumulating(parts: int, factor: float = 1.0) -> Run:
    """One batch in so many parts, whose gradients add up."""

    def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 4))
        x, y = torch.randn(8, SIZE), torch.randint(0, 4, (8,))

        def step() -> None:
            for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
                hidden = model[1](model[0](a)) * factor
                (F.cross_entropy(model[2](hidden), b) / parts).backward()

        return model, [step]

    return run


@each_task
@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_batch_in_parts_gives_no_all_clear(tmp_path: Path, task: str, factor: float) -> None:
    found = compared(tmp_path, accumulating(2, factor), accumulating(1), task, "L1")
    assert found.diverged in (True, "cannot tell")
    if factor == 1:
        assert found.named == ""
        assert "cannot be told whether the runs diverge" in found.words


def test_where_nothing_could_be_judged_the_summary_says_so(tmp_path: Path) -> None:
    runs = [recorded(tmp_path / level, attending(after), "statistics", level) for level in ("L0", "L1")]
    summary = tmp_path / "summary.json"
    status = main(["compare", *map(str, runs), "-o", str(tmp_path / "out"), "--json", str(summary)])
    assert status == 2
    assert json.loads(summary.read_text(encoding="utf-8"))["diverged"] == "cannot tell"


# ---- the same answer in one process and in several ----


def with_momentum(momentum: float) -> Run:
    def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model, batches = nn.Linear(SIZE, 4), iter(torch.randn(4, 6, SIZE))
        holder = nn.ModuleList([model])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, fused=True)

        def step() -> None:
            optimizer.zero_grad()
            (model(next(batches)) - 1).square().mean().backward()
            optimizer.step()

        return holder, [step] * 4

    return run


def test_the_answer_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    target, golden = (
        recorded(tmp_path / str(momentum), with_momentum(momentum), "tensor", "mix")
        for momentum in (0.9, 0.0)
    )
    said = []
    for jobs in ("1", "2", "4"):
        summary = tmp_path / f"{jobs}.json"
        command = ["compare", str(target), str(golden), "-o", str(tmp_path / jobs), "-j", jobs]
        assert main([*command, "--json", str(summary)]) == 0
        said.append(json.loads(summary.read_text(encoding="utf-8"))["suspects"])
    assert said[0] == said[1] == said[2]
    assert "the momentum" in said[0][0]["reason"]


# ---- what is not bit-equal ----


@each_task
def test_the_first_value_that_is_not_bit_equal_may_be_whole_numbers_that_changed_places(
    tmp_path: Path, task: str
) -> None:
    def looking_up(order: int) -> Run:
        def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
            model, words = nn.ModuleList([nn.Embedding(64, 8)]), torch.randperm(64)
            return model, [lambda: model[0](words.roll(order)).square().sum().backward()]

        return run

    found = compared(tmp_path, looking_up(1), looking_up(2), task, "mix")
    located = found.comparisons[0].located
    assert located.not_equal is not None
    assert located.not_equal.place.name == "Tensor.roll.0.forward.output.0"


# ---- what coarser numbers hide ----


def normed(eps: float, dtype: torch.dtype, *, is_weighted: bool = True) -> Run:
    def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
        model = nn.ModuleList([nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE), nn.Linear(SIZE, 4)]).to(dtype)
        x = torch.randn(12, SIZE).to(dtype)

        def step() -> None:
            norm = model[1]
            weight = norm.weight if is_weighted else None
            hidden = F.layer_norm(model[0](x), (SIZE,), weight, norm.bias, eps)
            model[2](hidden).square().mean().backward()

        return model, [step]

    return run


@each_task
def test_a_setting_is_named_though_rounding_hides_what_it_does(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, normed(1e-4, torch.bfloat16), normed(1e-6, torch.float32), task, "mix")
    assert found.named == "Functional.layer_norm.0.forward.input.4"
    assert "this argument is 0.0001, in the golden run 1e-06" in found.words


@each_task
def test_a_hidden_setting_is_named_where_calls_are_aligned(tmp_path: Path, task: str) -> None:
    """No other form excuses it: what the call made agrees by itself."""
    target, golden = normed(1e-4, torch.bfloat16), normed(1e-6, torch.float32)
    found = compared(tmp_path, target, golden, task, "L1", mappings=Mappings(align=True))
    assert found.named == "Functional.layer_norm.0.forward.input.4"


@each_task
def test_a_weight_of_ones_that_one_run_does_not_give_is_named(tmp_path: Path, task: str) -> None:
    target = normed(1e-6, torch.bfloat16, is_weighted=False)
    found = compared(tmp_path, target, normed(1e-6, torch.float32), task, "mix")
    assert found.named == "Functional.layer_norm.0.forward.input.2"


@each_task
def test_a_weight_that_is_scaled_on_its_way_is_found_in_bfloat16(tmp_path: Path, task: str) -> None:
    def scaled(factor: float, dtype: torch.dtype) -> Run:
        def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
            model = nn.ModuleList([nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 64)]).to(dtype)
            x = torch.randn(32, SIZE).to(dtype)

            def step() -> None:
                layer = model[1]
                weight = layer.weight * factor if factor != 1 else layer.weight
                F.linear(torch.tanh(model[0](x)), weight).square().mean().backward()

            return model, [step]

        return run

    found = compared(tmp_path, scaled(1.05, torch.bfloat16), scaled(1.0, torch.float32), task, "mix")
    assert found.named.startswith(("Tensor.__mul__.0.forward", "Functional.linear.1.forward"))


def test_a_value_that_a_coarser_dtype_holds_has_lost_nothing(tmp_path: Path) -> None:
    def narrowed(is_narrow: bool) -> Run:
        def run() -> tuple[nn.Module, list[Callable[[], Any]]]:
            model = nn.ModuleList([nn.Linear(SIZE, SIZE).bfloat16(), nn.Linear(SIZE, 4).bfloat16()])
            x = torch.randn(32, SIZE, dtype=torch.bfloat16)

            def step() -> None:
                hidden = model[0](x)
                normed = F.layer_norm(hidden if is_narrow else hidden.float(), (SIZE,))
                model[1](normed.bfloat16()).square().mean().backward()

            return model, [step]

        return run

    found = compared(tmp_path, narrowed(True), narrowed(False), "tensor", "mix")
    assert "off by 0" not in found.words.replace("off by 0.", "")
    if found.culprit is not None:
        assert found.named == "Functional.layer_norm.0.forward.output.0"
