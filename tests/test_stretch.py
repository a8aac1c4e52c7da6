"""Calls that only one run makes, or both in another way, are one step: what goes in, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from made_runs import call, tensor
from msprobe import store
from msprobe.graph import Graph, Maker
from msprobe.name import BACKWARD
from msprobe.pairing.align import align
from msprobe.pairing.match import SAME_NAMES, Pair, Rename, match
from msprobe.pairing.stretch import Stretch, stretches
from msprobe.record import Header, Leaf, Record, Recording
from nets import seed
from torch_fixtures import Probe, probe, record

__all__ = ["probe"]

WIDTH = 8


def found(target: Recording, golden: Recording, rename: Rename = SAME_NAMES) -> list[Stretch]:
    pairs = match(target, golden, rename=rename)
    return stretches(pairs, target, golden, (Graph(target), Graph(golden)))


def names(pairs: tuple[Pair, ...]) -> set[tuple[str, str]]:
    return {(pair.target.name, pair.golden.name) for pair in pairs if pair.target and pair.golden}


# ---- real runs ----


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * WIDTH**-0.5, -1), v)


class Net(nn.Module):
    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], cast: bool) -> None:
        super().__init__()
        self.attend, self.cast = attend, cast
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.attend(self.q(x), self.k(x), self.v(x))
        if self.cast:
            x = x.bfloat16().float()
        return self.out(x)


def recorded(folder: Path, level: str, attend: Callable[..., Tensor], cast: bool = False) -> Recording:
    folder.mkdir()
    seed()
    net, x = Net(attend, cast), torch.randn(2, 4, WIDTH)
    made = Probe(folder)
    record(made, lambda: net(x).square().sum().backward(), level, net)
    made.close()
    (recording,) = store.read(made.folder)
    return recording


def linears(*numbers: int) -> set[tuple[str, str]]:
    return {(f"Functional.linear.{n}.forward.output.0",) * 2 for n in numbers}


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_attention_in_one_call_or_in_several_is_one_step(tmp_path: Path, level: str) -> None:
    target, golden = recorded(tmp_path / "t", level, by_hand), recorded(tmp_path / "g", level, fused)
    forward, *backward = found(target, golden, align(target, golden))
    assert forward.target_calls == (
        "Tensor.transpose.0.forward",
        "Torch.matmul.0.forward",
        "Tensor.__mul__.0.forward",
        "Torch.softmax.0.forward",
        "Torch.matmul.1.forward",
    )
    assert forward.golden_calls == ("Functional.scaled_dot_product_attention.0.forward",)
    assert names(forward.before) == linears(0, 1, 2)
    assert ("Functional.linear.3.forward.input.0",) * 2 in names(forward.behind)
    assert forward.is_closed
    calls = {name for each in backward for name in (*each.target_calls, *each.golden_calls)}
    assert "Functional.scaled_dot_product_attention.0.backward" in calls
    assert all(name.endswith(BACKWARD) for name in calls)


@pytest.mark.usefixtures("probe")
def test_casts_that_only_one_run_has_are_a_step(tmp_path: Path) -> None:
    target, golden = recorded(tmp_path / "t", "L1", fused, cast=True), recorded(tmp_path / "g", "L1", fused)
    forward = found(target, golden)[0]
    assert forward.target_calls == ("Tensor.bfloat16.0.forward", "Tensor.float.0.forward")
    assert forward.golden_calls == ()
    attention = ("Functional.scaled_dot_product_attention.0.forward.output.0",) * 2
    assert names(forward.before) == {attention}
    assert names(forward.behind) == {("Functional.linear.3.forward.input.0",) * 2}
    assert forward.is_closed


@pytest.mark.usefixtures("probe")
def test_two_runs_that_make_the_same_calls_have_none(tmp_path: Path) -> None:
    target, golden = recorded(tmp_path / "t", "mix", fused), recorded(tmp_path / "g", "mix", fused)
    assert found(target, golden) == []


# ---- runs made by hand ----


def given(value: float, maker: str | None) -> Leaf:
    return tensor(value, made_by=maker)


def step(api: str, *inputs: Leaf, output: float = 10.0) -> Record:
    return call(f"Torch.{api}.0.forward", tensor(output), inputs=inputs)


def run(*records: Record) -> Recording:
    return Recording(Header("statistics", "L1", "pytorch"), {str(each.name): each for each in records}, "run")


def of(api: str) -> str:
    return f"Torch.{api}.0.forward.output.0"


def test_what_goes_into_one_run_only_is_told() -> None:
    target = run(
        step("a", given(1, None)),
        step("b", given(2, None)),
        step("x", given(3, of("a")), given(4, of("b"))),
        step("end", given(5, of("x"))),
    )
    golden = run(
        step("a", given(1, None)),
        step("b", given(2, None)),
        step("y", given(3, of("a")), given(6, "parameter:w"), given(7, None)),
        step("end", given(5, of("y"))),
    )
    (stretch,) = found(target, golden)
    assert (stretch.target_calls, stretch.golden_calls) == (("Torch.x.0.forward",), ("Torch.y.0.forward",))
    assert names(stretch.before) == {(of("a"), of("a"))}
    assert not stretch.is_closed
    assert [place.name for place in stretch.one_sided] == [
        "Torch.x.0.forward.input.1",
        "Torch.y.0.forward.input.1",
        "Torch.y.0.forward.input.2",
    ]


def test_parameters_are_paired_by_their_names() -> None:
    target, golden = (
        run(
            step("a", given(1, None)),
            step(api, given(1, of("a")), given(2, "parameter:w")),
            step("end", given(3, of(api))),
        )
        for api in ("x", "y")
    )
    (stretch,) = found(target, golden)
    assert names(stretch.before) == {
        (of("a"), of("a")),
        ("Torch.x.0.forward.input.1", "Torch.y.0.forward.input.1"),
    }
    assert stretch.is_closed


def parts(api: str, *values: tuple[float, tuple[int, ...]]) -> Recording:
    """A run that takes parts of one parameter, each of a value and a shape, in calls of its own."""
    slices = [
        step(f"{api}{n}", given(1, of("a")), tensor(value, shape, made_by="~parameter:w"), output=20 + n)
        for n, (value, shape) in enumerate(values)
    ]
    joined = [given(20 + n, of(f"{api}{n}")) for n in range(len(values))]
    return run(
        step("a", given(1, None)), *slices, step(f"{api}all", *joined), step("end", given(9, of(f"{api}all")))
    )


PART, WHOLE = (2, 3), (6, 3)


def pair_of(n: int, m: int) -> tuple[str, str]:
    return f"Torch.x{n}.0.forward.input.1", f"Torch.y{m}.0.forward.input.1"


@pytest.mark.parametrize(
    ("ours", "theirs", "paired", "unpaired"),
    [
        ([(2, PART), (3, PART)], [(3, PART), (2, PART)], {pair_of(0, 1), pair_of(1, 0)}, 0),
        ([(2, PART), (3, PART)], [(3.001, PART), (2.001, PART)], {pair_of(0, 1), pair_of(1, 0)}, 0),
        ([(2, PART), (3, PART)], [(4, WHOLE), (4, WHOLE)], set(), 3),  # nobody knows whose part they are
        ([(2, PART), (3, PART)], [(3, PART), (5, PART)], {pair_of(1, 0)}, 2),
        ([(2, PART), (2, PART)], [(3, PART), (3, PART)], {pair_of(1, 1)}, 0),  # one part in each run
    ],
)
def test_parts_of_a_parameter_are_paired_by_their_values(
    ours: list[tuple[float, tuple[int, ...]]],
    theirs: list[tuple[float, tuple[int, ...]]],
    paired: set[tuple[str, str]],
    unpaired: int,
) -> None:
    (stretch,) = found(parts("x", *ours), parts("y", *theirs))
    assert {pair for pair in names(stretch.before) if pair[0] != of("a")} == paired
    assert len(stretch.one_sided) == unpaired


def test_what_has_a_call_in_common_is_one_stretch_and_what_has_not_is_two() -> None:
    def made(api: str) -> Recording:
        return run(
            step("a", given(1, None)),
            step(f"{api}1", given(1, of("a"))),
            step(f"{api}2", given(2, of(f"{api}1"))),
            step("b", given(3, of(f"{api}1"))),
            step("c", given(4, of(f"{api}2"))),
            step(f"{api}3", given(5, of("c"))),
            step("d", given(6, of(f"{api}3"))),
        )

    first, second = found(made("x"), made("y"))
    assert first.target_calls == ("Torch.x1.0.forward", "Torch.x2.0.forward")
    assert names(first.behind) == {(f"Torch.{api}.0.forward.input.0",) * 2 for api in ("b", "c")}
    assert second.target_calls == ("Torch.x3.0.forward",)
    assert names(second.before) == {(of("c"), of("c"))}


def test_a_call_that_gives_out_what_went_in_is_no_stretch() -> None:
    target = run(
        step("a", given(1, None)),
        step("to", given(2, "parameter:w"), output=2),
        step("end", given(1, of("a")), given(2, of("to"))),
    )
    golden = run(step("a", given(1, None)), step("end", given(1, of("a")), given(2, "parameter:w")))
    assert found(target, golden) == []
    assert Graph(target).state("Torch.end.0.forward", "input.1") == Maker("parameter", "w")
    assert Graph(target).state("Torch.end.0.forward", "input.0") is None
