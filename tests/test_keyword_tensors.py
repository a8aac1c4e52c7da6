"""A tensor that one run gives by position and the other by keyword is one argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from made_runs import call, made, tensor
from msprobe.compare import compare
from msprobe.pairing.keywords import keyword_slots
from msprobe.record import Leaf, Record, plain_leaf
from recorded_pair import Run, compared
from torch_fixtures import probe

__all__ = ["probe"]

X, W, B = tensor(1, (4, 3)), tensor(2, (5, 3)), tensor(3, (5,))
OUT = tensor(9, (4, 5))
LINEAR = "Functional.linear.0"


def given(*values: Leaf | None, name: str = LINEAR, out: Leaf = OUT, **keywords: Leaf) -> Record:
    record = call(f"{name}.forward", out, inputs=values)
    return record._replace(fields={**record.fields, "input_kwargs": dict(keywords)})


def parameter(value: float, name: str, shape: tuple[int, ...] = (5,)) -> Leaf:
    return tensor(value, shape, made_by=f"parameter:{name}")


NORMAL = plain_leaf(9)
PAIRS: Mapping[str, tuple[Record, Record, dict[str, str]]] = {
    "one": (given(X, W, B), given(X, W, bias=B), {".input.2": ".input.bias"}),
    "the other way": (given(X, W, bias=B), given(X, W, B), {".input.bias": ".input.2"}),
    "after None": (given(X, NORMAL, None, B), given(X, NORMAL, bias=B), {".input.3": ".input.bias"}),
    "of another shape": (given(X, B), given(X, other=W), {".input.1": ".input.other"}),
    "by shape": (
        given(X, W, B),
        given(bias=B, input=X, weight=W),
        {".input.0": ".input.input", ".input.1": ".input.weight", ".input.2": ".input.bias"},
    ),
    "by content": (
        given(tensor(1), tensor(2)),
        given(other=tensor(2), input=tensor(1)),
        {".input.0": ".input.input", ".input.1": ".input.other"},
    ),
    "by the parameter": (
        given(X, parameter(2, "w"), parameter(3, "b")),
        given(X, bias=parameter(2.5, "b"), weight=parameter(3.5, "w")),
        {".input.1": ".input.weight", ".input.2": ".input.bias"},
    ),
    "in order": (
        given(tensor(1), tensor(2)),
        given(input=tensor(3), other=tensor(4)),
        {".input.0": ".input.input", ".input.1": ".input.other"},
    ),
    "by what the position is": (
        given(X, B, B, name="Functional.batch_norm.0"),
        given(X, running_var=B, running_mean=tensor(4, (5,)), name="Functional.batch_norm.0"),
        {".input.1": ".input.running_mean", ".input.2": ".input.running_var"},
    ),
    "not what another position is": (
        given(X, B, name="Functional.batch_norm.0"),
        given(X, weight=B, name="Functional.batch_norm.0"),
        {},
    ),
    "nothing is left": (given(X, W, B), given(X, W), {}),
    "both by keyword": (given(X, W, bias=B), given(X, W, bias=B), {}),
}


@pytest.mark.parametrize("case", PAIRS)
def test_which_arguments_are_paired(case: str) -> None:
    ours, theirs, expected = PAIRS[case]
    assert keyword_slots(ours, theirs) == expected


def test_each_tensor_of_a_list_is_paired() -> None:
    several = {"input_args": [[X, B]], "input_kwargs": {}, "output": [OUT]}
    named = {"input_args": [], "input_kwargs": {"tensors": [X, B]}, "output": [OUT]}
    record = given(name="Torch.cat.0")
    assert keyword_slots(record._replace(fields=several), record._replace(fields=named)) == {
        ".input.0.0": ".input.tensors.0",
        ".input.0.1": ".input.tensors.1",
    }


# ---- what that means for a comparison ----


def gradients(*leaves: Leaf) -> Record:
    return call(f"{LINEAR}.backward", *leaves, inputs=(OUT,))


def test_gradients_follow_their_arguments(tmp_path: Path) -> None:
    target = made(tmp_path / "t", given(X, W, B), gradients(X, W, B))
    golden = made(tmp_path / "g", given(X, bias=B, weight=W), gradients(X, B, W))
    (found,) = compare(target, golden)
    assert found.located.culprit is None
    paired = [(f.pair.target, f.pair.golden) for f in found.findings if f.pair.place.side == "output"]
    names = [(ours and ours.slot, theirs and theirs.slot) for ours, theirs in paired]
    assert names == [(f"output.{n}", f"output.{m}") for n, m in ((0, 0), (0, 0), (1, 2), (2, 1))]


@pytest.mark.parametrize(("value", "culprit"), [(3, None), (4, f"{LINEAR}.forward.input.2")])
@pytest.mark.parametrize("as_specified", [False, True])
def test_one_that_differs_is_named(
    tmp_path: Path, value: float, culprit: str | None, as_specified: bool
) -> None:
    target = made(tmp_path / "t", given(X, W, parameter(value, "b"), out=tensor(9 + value, (4, 5))))
    golden = made(tmp_path / "g", given(X, W, bias=parameter(3, "b"), out=tensor(12, (4, 5))))
    (found,) = compare(target, golden, as_specified=as_specified)
    named = found.located.culprit
    assert (named and named.place.name) == culprit
    shown = {f.pair.target.slot: f.pair.golden for f in found.findings if f.pair.target is not None}
    assert (shown["input.2"] is None) == as_specified  # the specified table pairs places by their names


class Net(nn.Module):
    def __init__(self, way: Callable[[Tensor, nn.Linear], Tensor]) -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(6, 6), way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(torch.tanh(x * 2), self.layer)


def net(way: Callable[[Tensor, nn.Linear], Tensor]) -> Run:
    def run() -> tuple[nn.Module, list[Callable[[], object]]]:
        model, x = Net(way), torch.randn(4, 6)
        return model, [lambda: model(x).square().sum().backward()]

    return run


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize(
    "ways",
    [
        (
            lambda x, of: F.linear(x, of.weight, of.bias),
            lambda x, of: F.linear(x, bias=of.bias, weight=of.weight),
        ),
        (
            lambda x, of: F.layer_norm(x, (6,), of.bias),
            lambda x, of: F.layer_norm(x, (6,), weight=of.bias),
        ),
        (
            lambda x, of: torch.matmul(x, of.weight),
            lambda x, of: torch.matmul(other=of.weight, input=x),
        ),
    ],
    ids=["linear", "layer_norm", "matmul"],
)
def test_a_real_run_is_sound(
    tmp_path: Path,
    level: str,
    is_swapped: bool,
    ways: tuple[Callable[[Tensor, nn.Linear], Tensor], Callable[[Tensor, nn.Linear], Tensor]],
) -> None:
    ours, theirs = reversed(ways) if is_swapped else ways
    found = compared(tmp_path, net(ours), net(theirs), "statistics", level)
    assert found.named == "" and found.diverged is False
