"""Our own verdict of one call, by what went in and what came out, and the culprit of whole runs."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from made_runs import call, made, tensor
from msprobe.analyse.comparison import Comparison
from msprobe.compare import compare
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Header, Leaf, Record

LITTLE, MUCH = 1 + 2e-7, 1.01  # of float32: within rounding, and not


def compared(tmp_path: Path, target: list[Record], golden: list[Record], **keys: Any) -> Comparison:
    (found,) = compare(made(tmp_path / "t", *target, **keys), made(tmp_path / "g", *golden, **keys))
    return found


def levels(comparison: Comparison) -> list[str]:
    return [verdict.level for verdict in comparison.verdicts]


def one(tmp_path: Path, ours: Leaf | None, theirs: Leaf | None, **inputs: Any) -> list[str]:
    """The verdicts of a call: of its inputs, then of its output."""
    before, after = inputs.get("target", (tensor(1),)), inputs.get("golden", (tensor(1),))
    name = inputs.get("name", "Torch.op.0.forward")
    target, golden = call(name, ours, inputs=before), call(name, theirs, inputs=after)
    return levels(compared(tmp_path, [target], [golden]))


@pytest.mark.parametrize(
    ("value", "dtype", "level"),
    [
        (1, "torch.float32", "same"),
        (LITTLE, "torch.float32", "rounding"),
        (MUCH, "torch.float32", "originated"),
        (MUCH, "torch.bfloat16", "rounding"),
        (1.5, "torch.bfloat16", "originated"),
        (1 + 1e-9, "torch.float64", "originated"),
        (math.nan, "torch.float32", "originated"),
        (math.inf, "torch.float32", "originated"),
        (-1, "torch.float32", "originated"),
        (2, "torch.int64", "originated"),
    ],
)
def test_what_came_out_of_equal_inputs(tmp_path: Path, value: float, dtype: str, level: str) -> None:
    ours, theirs = tensor(value, dtype=dtype), tensor(1, dtype=dtype)
    inputs = (tensor(1, dtype=dtype),)
    assert one(tmp_path, ours, theirs, target=inputs, golden=inputs) == ["same", level]


def test_equal_nans_are_no_difference(tmp_path: Path) -> None:
    nans = tensor(math.nan)
    assert one(tmp_path, nans, nans) == ["same", "same"]


def test_the_mask_of_an_attention_is_no_difference(tmp_path: Path) -> None:
    masked = tensor(1)._replace(stats=Statistics(1.0, -math.inf, -math.inf, math.inf))
    comparison = compared(tmp_path, [call("Tensor.masked_fill.0.forward", masked)],
                          [call("Tensor.masked_fill.0.forward", masked)])  # fmt: skip
    assert levels(comparison) == ["same"]
    assert comparison.located.not_finite is None


def test_a_difference_that_came_in_is_passed_on(tmp_path: Path) -> None:
    first = [call("Torch.a.0.forward", tensor(v), inputs=(tensor(1),)) for v in (MUCH, 1)]
    then = [call("Torch.b.0.forward", tensor(3 * v), inputs=(tensor(v),)) for v in (MUCH, 1)]
    comparison = compared(tmp_path, [first[0], then[0]], [first[1], then[1]])
    assert levels(comparison) == ["same", "originated", "passed on", "passed on"]
    assert comparison.located.culprit is not None
    assert str(comparison.located.culprit.place.record.name) == "Torch.a.0.forward"


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        (tensor(MUCH), tensor(1), "already when it comes in"),
        (Leaf("float", 0.2), Leaf("float", 0.1), "this argument is 0.2, in the golden run 0.1"),
        (Leaf("str", "mean"), Leaf("str", "sum"), "this argument is 'mean', in the golden run 'sum'"),
        (None, Leaf("int", 1), "this argument is None, in the golden run 1"),
    ],
)
def test_an_input_that_nothing_before_explains(
    tmp_path: Path, ours: Leaf | None, theirs: Leaf | None, reason: str
) -> None:
    target = call("Torch.op.0.forward", tensor(MUCH), inputs=(ours,))
    golden = call("Torch.op.0.forward", tensor(1), inputs=(theirs,))
    comparison = compared(tmp_path, [target], [golden])
    assert levels(comparison) == ["entered", "passed on"]
    assert reason in comparison.verdicts[0].reason


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Leaf("torch.device", "npu:0"), Leaf("torch.device", "cuda:0")),
        (Leaf("torch.dtype", "torch.bfloat16"), Leaf("torch.dtype", "torch.float32")),
    ],
)
def test_where_and_in_which_precision_may_differ(tmp_path: Path, ours: Leaf, theirs: Leaf) -> None:
    assert one(tmp_path, tensor(1), tensor(1), target=(ours,), golden=(theirs,)) == ["same", "same"]


def test_an_input_without_effect_is_no_culprit(tmp_path: Path) -> None:
    """What a call overwrites may have been anything."""
    found = one(
        tmp_path,
        tensor(0),
        tensor(0),
        target=(tensor(7),),
        golden=(tensor(1),),
        name="Tensor.zero_.0.forward",
    )
    assert found == ["passed on", "same"]


def test_memory_that_nobody_wrote_is_not_judged(tmp_path: Path) -> None:
    assert one(tmp_path, tensor(7), tensor(1), name="Torch.empty.0.forward") == ["not judged"] * 2


def test_values_that_nearly_cancel_are_measured_by_what_they_were_made_from(tmp_path: Path) -> None:
    tiny = [tensor(value) for value in (1e-8, 5e-8)]
    big = (tensor(1), tensor(1))
    assert one(tmp_path, tiny[0], tiny[1], target=big, golden=big) == ["same", "same", "rounding"]


def test_a_module_is_not_blamed_for_a_call_in_it(tmp_path: Path) -> None:
    def run(value: float) -> list[Record]:
        inner = call("Functional.linear.0.forward", tensor(value), inputs=(tensor(1),))
        name = "Module.net.Linear.forward.0"
        outer = call(name, tensor(value), inputs=(tensor(1),))
        return [inner._replace(parent=name, has_parent=True), outer._replace(has_parent=True)]

    comparison = compared(tmp_path, run(MUCH), run(1), header=Header("statistics", "mix", "pytorch"))
    assert levels(comparison) == ["same", "originated", "same", "passed on"]
    assert "made inside by Functional.linear.0.forward" in comparison.verdicts[3].reason
    culprit = comparison.located.culprit
    assert culprit is not None and culprit.modules == ("Module.net.Linear.forward.0",)
    assert comparison.located.origins == (culprit,)


def backward(name: str, gradient: float, result: float) -> Record:
    fields = {"input": [tensor(gradient)], "output": [tensor(result)]}
    return Record(CallName.parse(name), fields)


def test_backward_depends_on_what_ran_forward(tmp_path: Path) -> None:
    def run(forward: float, back: float) -> list[Record]:
        there = call("Functional.gelu.0.forward", tensor(1), inputs=(tensor(forward),))
        return [there, backward("Functional.gelu.0.backward", 1, back)]

    comparison = compared(tmp_path, run(1, MUCH), run(1, 1))
    assert levels(comparison) == ["same", "same", "same", "originated"]
    comparison = compared(tmp_path / "2", run(MUCH, MUCH), run(1, 1))
    assert levels(comparison)[-1] == "passed on"


def test_gradients_of_parameters_come_after_the_pass_wherever_they_are_written(tmp_path: Path) -> None:
    """Release 8.3.3 writes them where the module ran forward."""

    def run(value: float) -> list[Record]:
        gradient = Record(CallName.parse("Module.a.Linear.parameters_grad"), {"weight": [tensor(value)]})
        later = call("Module.b.Linear.forward.0", tensor(value), inputs=(tensor(1),))
        return [gradient, later, backward("Module.a.Linear.backward.0", value, value)]

    located = compared(tmp_path, run(MUCH), run(1)).located
    assert located.culprit is not None
    assert str(located.culprit.place.record.name) == "Module.b.Linear.forward.0"
    assert [str(o.place.record.name) for o in located.origins] == ["Module.b.Linear.forward.0"]


def test_nan_in_both_runs_is_told_with_its_producer(tmp_path: Path) -> None:
    run = [
        call("Torch.log.0.forward", tensor(math.nan), inputs=(tensor(1),)),
        call("Torch.add.0.forward", tensor(math.nan), inputs=(tensor(math.nan),)),
    ]
    located = compared(tmp_path, run, run).located
    assert located.culprit is None
    assert located.not_finite is not None
    assert str(located.not_finite.place.record.name) == "Torch.log.0.forward"


def test_slow_growth_has_a_first_divergence_and_no_culprit(tmp_path: Path) -> None:
    def run(errors: list[float]) -> list[Record]:
        ends = [0.0, *errors]
        return [
            call(f"Torch.op{n}.0.forward", tensor(1 + after), inputs=(tensor(1 + before),))
            for n, (before, after) in enumerate(pairwise(ends))
        ]

    located = compared(tmp_path, run([3e-7, 9e-6, 2e-4, 5e-3]), run([0.0] * 4)).located
    assert located.culprit is None
    assert located.first is not None
    assert str(located.first.place.record.name) == "Torch.op1.0.forward"


def test_what_was_not_checked_is_part_of_the_evidence(tmp_path: Path) -> None:
    target = [call("Torch.only.0.forward", tensor(1)), call("Torch.a.0.forward", tensor(MUCH))]
    golden = [call("Torch.a.0.forward", tensor(1))]
    culprit = compared(tmp_path, target, golden).located.culprit
    assert culprit is not None
    assert culprit.evidence.grade == "weak"
    assert culprit.evidence.unchecked == {"the golden run has no such call": 1}
    assert culprit.evidence.checked == 0
