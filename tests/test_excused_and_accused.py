"""Faults that were once excused, and sound runs that were once accused, on real recordings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.verdict.locate import suspects
from recorded_pair import Kernel, Run, compared, with_kernel
from torch_fixtures import probe

__all__ = ["probe"]

pytestmark = [pytest.mark.usefixtures("probe")]

each_task = pytest.mark.parametrize("task", ["tensor", "statistics"])

Step = Callable[[], Any]
Forward = Callable[[Tensor], Tensor]


def computed(forward: Forward, noise: float = 0.0, dtype: torch.dtype = torch.float32) -> Run:
    """One training step of two layers with `forward` between them; noise of the parameters on top."""

    def run() -> tuple[nn.Module, list[Step]]:
        model = nn.ModuleList([nn.Linear(8, 12), nn.Linear(12, 5)])
        x = torch.randn(4, 6, 8)
        _disturb(model, noise)
        model.to(dtype)

        def step() -> None:
            model[1](forward(model[0](x.to(dtype)))).float().square().mean().backward()

        return model, [step]

    return run


def _disturb(model: nn.Module, noise: float) -> None:
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + noise * torch.randn(parameter.shape, generator=random))


# ---- settings of calls whose results are whole numbers or truth values ----


def triangle(diagonal: int) -> Forward:
    def forward(x: Tensor) -> Tensor:
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(diagonal)
        scores = (x @ x.transpose(1, 2)).masked_fill(hidden, -1e9)
        return scores.softmax(-1) @ x

    return forward


def positions(step: int) -> Forward:
    return lambda x: x + torch.arange(0, 6).add(step).remainder(5)[:, None]


def threshold(least: int) -> Forward:
    return lambda x: x * (torch.arange(0, 12) > least)


SETTINGS = {
    "triu": (triangle, 2, 1, "Tensor.triu.0.forward.input.1"),
    "add": (positions, 2, 1, "Tensor.add.0.forward.input.1"),
    "gt": (threshold, 7, 6, "Tensor.__gt__.0.forward.input.1"),
}


@each_task
@pytest.mark.parametrize("noise", [0.0, 1e-7])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_a_call_of_whole_numbers_is_named(
    tmp_path: Path, name: str, noise: float, task: str
) -> None:
    forward, wrong, right, place = SETTINGS[name]
    found = compared(tmp_path, computed(forward(wrong), noise), computed(forward(right)), task, "L1")
    assert found.named == place
    assert f"this argument is {wrong}, in the golden run {right}" in found.words


def test_a_dimension_is_named_where_the_whole_run_is_coarser(tmp_path: Path) -> None:
    def forward(dim: int) -> Forward:
        return lambda x: (3 * x).softmax(dim) * x

    target = computed(forward(-2), dtype=torch.bfloat16)
    found = compared(tmp_path, target, computed(forward(-1)), "statistics", "L1")
    assert found.named == "Tensor.softmax.0.forward.input.1"


@each_task
def test_a_setting_whose_effect_ends_in_equal_values_is_sound(tmp_path: Path, task: str) -> None:
    """What hides a number may be any that is low enough."""

    def masked(value: float) -> Forward:
        hidden = torch.ones(6, 6).triu(1) > 0
        return lambda x: (x @ x.transpose(1, 2)).masked_fill(hidden, value).softmax(-1) @ x

    found = compared(tmp_path, computed(masked(-1e4)), computed(masked(-torch.inf)), task, "L1")
    assert found.named == ""
    assert found.diverged is False


# ---- truth values and whole numbers that come in, and decisions ----


@each_task
@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_a_mask_that_nobody_recorded_is_named(tmp_path: Path, noise: float, task: str) -> None:
    def masked(is_wrong: bool) -> Forward:
        hidden = torch.zeros(4, 6, 12, dtype=torch.bool)
        hidden[:, 4 if is_wrong else 2 :] = True
        return lambda x: x.masked_fill(hidden, 0.0)

    found = compared(tmp_path, computed(masked(True), noise), computed(masked(False)), task, "L1")
    assert found.named == "Tensor.masked_fill.0.forward.input.1"


@each_task
def test_decisions_that_rounding_cannot_turn_are_named(tmp_path: Path, task: str) -> None:
    found = compared(
        tmp_path,
        computed(lambda x: x * (x < 0.1), 1e-7),
        computed(lambda x: x * (x > 0.1)),
        task,
        "L1",
    )
    assert found.diverged is True
    assert found.named.startswith(("Tensor.__lt__.0", "Tensor.__gt__.0"))


@each_task
def test_a_threshold_that_one_number_crosses_is_sound(tmp_path: Path, task: str) -> None:
    def crossed(is_target: bool) -> Run:
        moved = 1e-7 if is_target else -1e-7

        def near(x: Tensor) -> Tensor:
            y = x.clone()
            with torch.no_grad():
                y[0, 0, 0] = 0.1
                y += moved * y.abs()
            return F.threshold(y, 0.1, 0.0)

        return computed(near)

    found = compared(tmp_path, crossed(True), crossed(False), task, "L1")
    assert "threshold" not in found.named


# ---- what comes in late ----


def trained(late: str = "", noise: float = 0.0) -> Run:
    """Two steps of a net of some depth, with an optimizer between them."""

    def run() -> tuple[nn.Module, list[Step]]:
        sizes = [8, 24, 24, 24, 24, 5]
        model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
        batches = [(torch.randn(16, 8), torch.randint(0, 5, (16,))) for _ in range(2)]
        other = torch.randn(16, 8), torch.randint(0, 5, (16,))
        _disturb(model, noise)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step(number: int) -> None:
            x, y = batches[number]
            x = other[0] if number and late == "batch" else x * 1.3 if number and late == "scaled" else x
            y = other[1] if number and late == "labels" else y
            for layer in model[:-1]:
                x = torch.tanh(3 * layer(x))  # rounding grows from layer to layer
            optimizer.zero_grad()
            F.cross_entropy(model[-1](x), y).backward()

        def first() -> None:
            step(0)

        def second() -> None:
            step(1)

        def between() -> None:
            optimizer.step()

        return model, [first, lambda: (between(), second())]

    return run


@each_task
@pytest.mark.parametrize(
    ("late", "place"),
    [
        ("batch", "Functional.linear.0.forward.input.0"),
        ("scaled", "Tensor.__mul__.0.forward.output.0"),
        ("labels", "Functional.cross_entropy.0.forward.input.1"),
    ],
)
def test_data_that_differs_in_a_later_step_is_named(tmp_path: Path, task: str, late: str, place: str) -> None:
    found = compared(tmp_path, trained(late, 1e-7), trained(), task, "L1")
    assert found.named == place
    assert found.culprit is not None and found.culprit.step == 1


@each_task
def test_an_optimizer_that_carries_rounding_on_is_sound(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, trained("", 1e-7), trained(), task, "L1")
    assert found.named == ""
    assert found.diverged is False


# ---- gradients ----


class Used(nn.Module):
    """A parameter that is first moved or cast, and may be cut off from its gradient."""

    def __init__(self, way: str, is_lost: bool) -> None:
        super().__init__()
        self.first, self.weight = nn.Linear(8, 12), nn.Parameter(torch.randn(5, 12))
        self.way, self.is_lost = way, is_lost

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.detach() if self.is_lost else self.weight
        x = torch.tanh(self.first(x))
        if self.way == "t":
            return x @ weight.t()
        if self.way == "to":
            return F.linear(x.bfloat16(), weight.to(torch.bfloat16)).float()
        return (x[..., None, :] * weight.expand(4, 6, 5, 12)).sum(-1)


@each_task
@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("way", ["t", "to", "expand"])
def test_a_gradient_lost_behind_a_call_that_moves_or_casts_is_named(
    tmp_path: Path, way: str, level: str, task: str
) -> None:
    def run(is_lost: bool) -> Run:
        def make() -> tuple[nn.Module, list[Step]]:
            model, x = nn.Sequential(Used(way, is_lost)), torch.randn(4, 6, 8)
            return model, [lambda: model(x).square().mean().backward()]

        return make

    found = compared(tmp_path, run(True), run(False), task, level)
    assert found.diverged is True
    assert "this gradient exists in the golden run only" in found.words


def carried(is_detached: bool) -> Run:
    def run() -> tuple[nn.Module, list[Step]]:
        model, x = nn.LSTM(8, 12), torch.randn(3, 4, 8)

        def step() -> None:
            first, state = model(x)
            state = tuple(each.detach() for each in state) if is_detached else state
            second, _ = model(x.flip(0), state)
            (first + second).square().mean().backward()

        return nn.Sequential(model), [step]

    return run


@each_task
def test_a_gradient_that_goes_on_in_one_run_only_is_named(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, carried(False), carried(True), task, "L1")
    assert found.named.startswith("VF.lstm.1.backward.output.")
    assert "this gradient exists in the target only" in found.words


def test_attention_over_one_key_is_sound(tmp_path: Path) -> None:
    """The gradient of the query is nothing but rounding."""

    def run(noise: float) -> Run:
        def make() -> tuple[nn.Module, list[Step]]:
            model, x = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)]), torch.randn(4, 2, 1, 8)
            _disturb(model, noise)

            def step() -> None:
                q, k, v = (layer(x) for layer in model)
                F.scaled_dot_product_attention(q, k, v).square().sum().backward()

            return model, [step]

        return make

    for task in ("tensor", "statistics"):
        found = compared(tmp_path / task, run(1e-7), run(0.0), task, "L1")
        assert found.named == "" and found.diverged is False


# ---- precision ----


class Partly(nn.Module):
    """Three layers, of which the first may compute in bfloat16."""

    def __init__(self, is_lowered: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        if is_lowered:
            self.layers[0].bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x.to(self.layers[0].weight.dtype)).float()
        return torch.tanh(self.layers[2](torch.tanh(self.layers[1](torch.tanh(x)))))


@each_task
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_part_of_a_run_in_half_precision_is_no_fact_of_the_run(
    tmp_path: Path, level: str, task: str
) -> None:
    def run(is_lowered: bool) -> Run:
        def make() -> tuple[nn.Module, list[Step]]:
            model, x = nn.Sequential(Partly(is_lowered)), torch.randn(16, 8)
            return model, [lambda: model(x).square().mean().backward()]

        return make

    found = compared(tmp_path, run(True), run(False), task, level)
    assert found.comparisons[0].precision is None
    assert "precision is lost here" in found.words


@each_task
def test_whole_numbers_counted_in_half_precision_are_named(tmp_path: Path, task: str) -> None:
    """Above 256 bfloat16 has not all of them."""

    def counted(dtype: torch.dtype) -> Forward:
        return lambda x: x + torch.arange(600, dtype=dtype).type_as(x).sin().view(50, 12)[:6]

    found = compared(tmp_path, computed(counted(torch.bfloat16)), computed(counted(torch.int64)), task, "L1")
    assert found.named.startswith(("Torch.arange.0", "Tensor.type_as.0"))


@each_task
def test_a_mask_of_numbers_beside_one_of_truth_values_loses_no_precision(tmp_path: Path, task: str) -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    def run(is_bool: bool) -> Run:
        def make() -> tuple[nn.Module, list[Step]]:
            model, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 6, 8)
            model.add_module("attention", Attention())
            kept = torch.ones(6, 6, dtype=torch.bool).tril()
            mask = kept if is_bool else torch.zeros(6, 6).masked_fill(~kept, torch.finfo(torch.float32).min)
            return model, [lambda: model[1](model[0](x), mask).square().mean().backward()]

        return make

    found = compared(tmp_path, run(False), run(True), task, "mix")
    assert "precision is lost" not in found.words
    assert found.named == ""


def test_the_lowest_number_of_a_dtype_may_be_a_tensor(tmp_path: Path) -> None:
    def forward(x: Tensor) -> Tensor:
        hidden = torch.ones(6, 6).triu(1) > 0
        lowest = torch.tensor(torch.finfo(x.dtype).min, dtype=x.dtype)
        return torch.where(hidden, lowest, x @ x.transpose(1, 2)).softmax(-1) @ x

    for task in ("tensor", "statistics"):
        target, golden = computed(forward, dtype=torch.float16), computed(forward)
        found = compared(tmp_path / task, target, golden, task, "L1")
        assert found.named == "" and found.diverged is False


# ---- shapes ----


def test_numbers_made_of_another_length_are_no_all_clear(tmp_path: Path) -> None:
    """A stale cache: one run attends to a row more, and calls are paired by what they do."""

    def attending(is_stale: bool) -> Forward:
        def forward(x: Tensor) -> Tensor:
            keys = torch.cat([x[:, :1] * 2.0, x], 1) if is_stale else x
            return F.scaled_dot_product_attention(x, keys, keys)

        return forward

    for task in ("tensor", "statistics"):
        found = compared(tmp_path / task, computed(attending(True)), computed(attending(False)), task, "L1")
        assert found.diverged in (True, "cannot tell")


# ---- kernels ----


@each_task
def test_a_mean_that_batch_norm_shifts_is_not_blamed_on_relu(tmp_path: Path, task: str) -> None:
    def run(is_shifted: bool) -> Run:
        def make() -> tuple[nn.Module, list[Step]]:
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
            model.bfloat16()
            x = torch.randn(6, 3, 12, 12).bfloat16()

            def step() -> None:
                with Kernel("native_batch_norm", lambda y: y + 0.02 * y.float().std() if is_shifted else y):
                    model(x).float().square().mean().backward()

            return model, [step]

        return make

    found = compared(tmp_path, run(True), run(False), task, "L1")
    assert found.named.startswith("Functional.batch_norm.0.forward.output")


@pytest.mark.parametrize("task", ["tensor", "sketch", "statistics"])
def test_a_zero_of_the_other_sign_is_sound_and_not_bit_equal(tmp_path: Path, task: str) -> None:
    sound = computed(F.relu)
    other = with_kernel(sound, "relu", lambda y: torch.where(y == 0, -0.0, y))
    found = compared(tmp_path, other, sound, task, "L1")
    assert found.diverged is False
    not_equal = found.comparisons[0].located.not_equal
    assert not_equal is not None and not_equal.place.name == "Functional.relu.0.forward.output.0"


def test_equal_runs_are_called_equal(tmp_path: Path) -> None:
    for task in ("tensor", "statistics"):
        found = compared(tmp_path / task, computed(torch.tanh), computed(torch.tanh), task, "mix")
        assert found.words.startswith("No divergence: ") and "and all are equal." in found.words


# ---- what one step hands to the next ----


def remembered(gain: float = 1.0, *, forgets: bool = False) -> Run:
    """A net that is not trained and begins each step with what the step before ended with, as a cache does.

    `forgets`: the third step begins with what the first ended with.
    """

    def run() -> tuple[nn.Module, list[Step]]:
        model = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
        states = [torch.zeros(4, 16)]

        @torch.no_grad()
        def step() -> None:
            before = states[1] if forgets and len(states) == 3 else states[-1]
            after: Tensor = model[1](torch.relu(model[0](before) * 3)) * gain + before
            states.append(after)

        return model, [step] * 3

    return run


@each_task
def test_what_a_step_hands_to_the_next_is_judged_where_it_was_made(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, remembered(1.02), remembered(), task, "L1")
    named = {each.place.name for each in suspects([one.located for one in found.comparisons])}
    assert named == {"Tensor.__mul__.1.forward.input.1"}


@each_task
def test_state_of_the_wrong_step_is_named(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, remembered(forgets=True), remembered(), task, "L1")
    assert found.culprit is not None
    assert (found.culprit.step, found.named) == (2, "Functional.linear.0.forward.input.0")
    made = "Tensor.__add__.0.forward.output.0"
    assert f"it is {made} of step 0, in the golden run {made} of step 1" in found.words
