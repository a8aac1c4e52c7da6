"""Plain arguments of two different APIs are judged only where both define them alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_runs import call, made, tensor
from msprobe.compare import compare
from msprobe.name import CallName
from msprobe.pairing.arguments import mean_the_same
from msprobe.pairing.mapping import NO_MAPPINGS, ApiMapping, DataMapping, Line, Mappings
from msprobe.pairing.roles import are_defined_alike
from msprobe.record import Header, Leaf, Record, plain_leaf

MINDSPORE = Header("statistics", "L1", "mindspore")
BY_API = NO_MAPPINGS._replace(api=ApiMapping())


def name(text: str) -> CallName:
    return CallName.parse(f"{text}.0.forward")


@pytest.mark.parametrize(
    ("ours", "theirs", "same_framework", "is_alike"),
    [
        ("Tensor.transpose", "Tensor.transpose", True, True),
        ("Tensor.transpose", "Tensor.transpose", False, False),
        ("Tensor.transpose", "Tensor.permute", True, False),
        ("Torch.transpose", "Tensor.transpose", True, False),
        ("Tensor.__mul__", "Tensor.__mul__", False, True),
        ("Mint.transpose", "Torch.transpose", False, True),
        ("MintFunctional.dropout", "Functional.dropout", False, True),
        ("Functional.dropout", "Functional.dropout", False, False),
    ],
)
def test_which_apis_are_defined_alike(ours: str, theirs: str, same_framework: bool, is_alike: bool) -> None:
    assert are_defined_alike(name(ours), name(theirs), same_framework=same_framework) == is_alike


@pytest.mark.parametrize(
    ("ours", "theirs", "slots", "is_same"),
    [
        ("Functional.mul", "Torch.mul", (".input.1", ".input.1"), True),
        ("Functional.mul", "Torch.mul", (".input.1", ".input.other"), True),
        ("Tensor.__rsub__", "Torch.sub", (".input.1", ".input.1"), False),
        ("Tensor.clip", "Tensor.clamp", (".input.1", ".input.1"), True),
        ("Tensor.transpose", "Tensor.transpose", (".input.1", ".input.1"), False),
        ("Functional.softmax", "Functional.softmax", (".input.1", ".input.1"), False),  # -1 beside 3
        ("Functional.mean", "Torch.mean", (".input.keepdim", ".input.keepdim"), True),
        ("Functional.mean", "Torch.mean", (".input.keepdim", ""), False),
        ("Functional.mean", "Torch.mean", ("", ".input.1.0"), False),
        ("Functional.split", "Torch.split", (".output.0", ""), True),  # no argument
    ],
)
def test_which_arguments_mean_the_same(ours: str, theirs: str, slots: tuple[str, str], is_same: bool) -> None:
    assert mean_the_same(name(ours), name(theirs), slots) == is_same


# ---- what that means for a comparison ----


def plain(*values: object) -> tuple[Leaf | None, ...]:
    return tuple(map(plain_leaf, values))


def ported(scale: float) -> list[Record]:
    """In MindSpore `transpose` takes a permutation; the last call multiplies."""
    x = tensor(1, (2, 3, 4, 5))
    y = tensor(1, (2, 4, 3, 5))
    return [
        call("Tensor.transpose.0.forward", y, inputs=(x, *plain(0, 2, 1, 3))),
        call("Tensor.__mul__.0.forward", tensor(scale, (2, 4, 3, 5)), inputs=(y, *plain(scale))),
    ]


def original() -> list[Record]:
    x = tensor(1, (2, 3, 4, 5))
    y = tensor(1, (2, 4, 3, 5))
    return [
        call("Tensor.transpose.0.forward", y, inputs=(x, *plain(1, 2))),
        call("Tensor.__mul__.0.forward", tensor(0.5, (2, 4, 3, 5)), inputs=(y, *plain(0.5))),
    ]


def by_name() -> Mappings:
    """What -dm says where it pairs calls of one name."""
    names = ("Tensor.transpose.0.forward", "Tensor.__mul__.0.forward")
    return NO_MAPPINGS._replace(data=DataMapping("pairs.yaml", tuple(Line(n, n, 1) for n in names)))


@pytest.mark.parametrize("mappings", [BY_API, by_name(), NO_MAPPINGS], ids=["-am", "-dm", "aligned"])
@pytest.mark.parametrize(("scale", "culprit"), [(0.5, None), (0.25, "Tensor.__mul__.0.forward.input.1")])
def test_a_sound_port_is_not_accused_and_its_fault_is_named(
    tmp_path: Path, mappings: Mappings, scale: float, culprit: str | None
) -> None:
    target = made(tmp_path / "t", *ported(scale), header=MINDSPORE)
    golden = made(tmp_path / "g", *original())
    (found,) = compare(target, golden, mappings=mappings)
    named = found.located.culprit
    assert (named and named.place.name) == culprit


def test_the_table_of_a_mapping_still_shows_them_beside_each_other(tmp_path: Path) -> None:
    target = made(tmp_path / "t", *ported(0.5), header=MINDSPORE)
    golden = made(tmp_path / "g", *original())
    (found,) = compare(target, golden, mappings=BY_API)
    rows = {
        f.pair.target.name: (f.pair.golden, v.level)
        for f, v in zip(found.findings, found.verdicts, strict=True)
        if f.pair.target
    }
    place, level = rows["Tensor.transpose.0.forward.input.1"]
    assert place is not None and place.name == "Tensor.transpose.0.forward.input.1"
    assert level == "not judged"


def test_the_same_api_of_one_framework_is_judged(tmp_path: Path) -> None:
    target = made(tmp_path / "t", *ported(0.5))
    golden = made(tmp_path / "g", *original())
    (found,) = compare(target, golden)
    assert [finding.pair.unjudged for finding in found.findings] == [""] * len(found.findings)
