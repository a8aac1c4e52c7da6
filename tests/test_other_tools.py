"""Recordings of mindstudio-probe beside ours: the same script is the same, and a fault in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from compare_case import NEW, OLD, Golden, Goldens, goldens
from incumbent import OURS, Order, record
from made_runs import call, made, tensor
from msprobe import store
from msprobe.compare import compare, compare_recordings
from msprobe.name import CallName
from msprobe.pairing.match import ELSEWHERE
from msprobe.pairing.other_tools import are_of_last_steps, gradient_slots
from msprobe.record import Leaf, Record
from msprobe.verdict.locate import diverged

__all__ = ["goldens"]

ORDERS = [
    Order("golden", level, mode)
    for level, mode in (("L1", "statistics"), ("L0", "tensor"), ("mix", "md5"), ("L0", "statistics"))
]
PAIRS = [(OLD, ORDERS[0]), (OLD, ORDERS[3]), *((NEW, order) for order in ORDERS[:3])]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    record(folder, OURS, ORDERS)
    return folder


def name_of(release: str, order: Order) -> Golden:
    return Golden(release, f"{order.level}_{order.mode}")


@pytest.mark.parametrize(
    ("release", "order"), PAIRS, ids=lambda value: value if isinstance(value, str) else value.level
)
def test_the_same_script_has_no_divergence(goldens: Goldens, root: Path, release: str, order: Order) -> None:
    _, bench = goldens.runs(name_of(release, order))
    (ours,) = store.read(order.folder(root, OURS) / "step0")
    (theirs,) = store.read(bench)
    for target, golden in ((ours, theirs), (theirs, ours)):
        found = compare_recordings(target, golden)
        assert found.why_aligned == ""
        assert found.located.first is None, found.located.first
        assert diverged([found.located]) is False  # whichever run is the target
        specified = compare_recordings(target, golden, as_specified=True)
        assert specified.located.first is None
        names = {
            (p.target.name, p.golden.name)
            for p in (f.pair for f in specified.findings)
            if p.target and p.golden
        }
        assert all(
            a.replace("parameters_grad.0", "parameters_grad")
            == b.replace("parameters_grad.0", "parameters_grad")
            for a, b in names
        )


def test_a_weight_that_is_another_is_named(goldens: Goldens, root: Path) -> None:
    """The premise of all-clears: one weight of 26.2.0's target is another."""
    npu, _ = goldens.runs(name_of(NEW, ORDERS[0]))
    (found,) = compare(npu, ORDERS[0].folder(root, OURS) / "step0")
    assert found.located.culprit is not None
    assert found.located.culprit.place.name == "Functional.linear.6.forward.input.1"


def test_gradients_of_26_2_0_are_paired_by_their_shapes(goldens: Goldens, root: Path) -> None:
    _, bench = goldens.runs(name_of(NEW, ORDERS[0]))
    (found,) = compare(ORDERS[0].folder(root, OURS) / "step0", bench)
    pairs = {p.target.name: p for p in (f.pair for f in found.findings) if p.target}
    of = "Functional.linear.8.backward.output."
    golden = [pairs[f"{of}{number}"].golden for number in range(3)]
    assert [place and place.name for place in golden] == [
        f"{of}1",
        None,
        f"{of}0",
    ]  # the weight's is transposed
    assert pairs[f"{of}1"].unjudged
    assert pairs["Functional.cross_entropy.0.backward.output.0"].golden is None
    assert pairs["Functional.batch_norm.0.backward.output.3"].golden is not None


def backward(api: str, *outputs: Leaf | None) -> Record:
    return Record(CallName.parse(f"{api}.0.backward"), {"input": [tensor(1)], "output": list(outputs)})


A, B = (2, 3), (3,)


@pytest.mark.parametrize(
    ("ours", "theirs", "slots"),
    [
        ([tensor(1, A), tensor(2, B)], [tensor(2, B), tensor(1, A)], [1, 0]),
        ([tensor(1, A), tensor(2, A)], [tensor(1, A), tensor(2, A)], [0, 1]),
        ([None, tensor(1, A)], [tensor(1, A)], [None, 0]),
        ([tensor(1, A)], [tensor(1, A), None], [0]),
        ([tensor(1, A), tensor(2, B)], [tensor(1, A)], [None, None]),  # of an inner step
        ([tensor(1, A)], [tensor(1, (6,))], [None]),
    ],
)
def test_which_gradient_is_which(
    ours: list[Leaf | None], theirs: list[Leaf | None], slots: list[int | None]
) -> None:
    found = gradient_slots(backward("Torch.f", *ours), backward("Torch.f", *theirs))
    assert found == {
        f".output.{number}": ELSEWHERE if slot is None else f".output.{slot}"
        for number, slot in enumerate(slots)
    }


def test_which_recordings_are_of_last_steps(goldens: Goldens, root: Path) -> None:
    _, bench = goldens.runs(name_of(NEW, ORDERS[0]))
    assert are_of_last_steps(store.read(bench)[0])
    assert not are_of_last_steps(store.read(ORDERS[0].folder(root, OURS) / "step0")[0])


def gradients(name: str, value: float) -> Record:
    return Record(CallName.parse(f"Module.m.Linear.{name}"), {"weight": [tensor(value)]})


@pytest.mark.parametrize(("later", "is_judged"), [([], True), ([gradients("parameters_grad.1", 5)], False)])
def test_gradients_that_were_accumulated_are_not_compared_with_those_of_one_pass(
    tmp_path: Path, later: list[Record], is_judged: bool
) -> None:
    forward = call("Torch.f.0.forward", tensor(1, A), inputs=(tensor(1, A),))
    ours = made(tmp_path / "t", forward, backward("Torch.f", tensor(1, A)), gradients("parameters_grad", 3))
    theirs = made(
        tmp_path / "g",
        forward,
        backward("Torch.f", tensor(1, A), None),  # as 26.2.0 writes it
        gradients("parameters_grad.0", 3),
        *later,
    )
    (found,) = compare(ours, theirs)
    assert found.located.first is None
    (pair,) = (f.pair for f in found.findings if f.pair.target and "parameters_grad" in f.pair.target.name)
    assert (pair.golden is not None and not pair.unjudged) == is_judged


# ---- inputs of modules ----

RELU = "Module.act.ReLU.forward.0"


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize(
    ("own", "other", "culprit"),
    [
        ((5, 3), (3, 3), None),  # it works in place
        ((3, 3), (3, 3), None),  # it changes nothing
        ((5, 3), (4, 2), f"{RELU}.input.0"),  # other values go in
        ((5, 3), (4, 4), f"{RELU}.output.0"),
        ((3, 3), (4, 4), f"{RELU}.input.0"),  # it changes nothing in either run
        ((3, 5), (3, 3), f"{RELU}.output.0"),  # in one of them
    ],
)
def test_inputs_that_were_recorded_after_a_change_in_place_are_not_judged(
    tmp_path: Path,
    own: tuple[float, float],
    other: tuple[float, float],
    culprit: str | None,
    is_swapped: bool,
) -> None:
    def run(folder: str, values: tuple[float, float], maker: str | None) -> Path:
        before = call("Module.m.Linear.forward.0", tensor(7, A), inputs=(tensor(6, A),))
        into = tensor(values[0], A, made_by=maker)
        return made(tmp_path / folder, before, call(RELU, tensor(values[1], A), inputs=(into,)))

    sides = run("ours", own, "parameter:x"), run("theirs", other, None)
    (found,) = compare(*(sides[::-1] if is_swapped else sides))
    assert (found.located.culprit and found.located.culprit.place.name) == culprit
