"""Our own verdict of one call, by what went in and what came out, and the culprit of whole runs."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from made_runs import call, made, made_steps, tensor
from msprobe.compare import compare
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.record import Header, Leaf, Record
from msprobe.verdict.comparison import Comparison
from msprobe.verdict.locate import diverged, overall

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


@pytest.mark.parametrize(
    ("ours", "theirs", "level"),
    [
        ((5, 0), (5, 0), "same"),
        ((5, 0), (1, 0), "originated"),
        ((1, 2), (1, 0), "originated"),
        ((0, 0), (5, 0), "same"),  # the file of a release that does not count them
    ],
)
def test_more_nans_in_one_run_are_a_difference(
    tmp_path: Path, ours: tuple[int, int], theirs: tuple[int, int], level: str
) -> None:
    nan = tensor(math.nan)
    leaves = (nan._replace(stats=Statistics(*(math.nan,) * 4, *counts)) for counts in (ours, theirs))
    assert one(tmp_path, *leaves) == ["same", level]


def test_tensors_whose_values_nobody_saw_are_not_called_equal(tmp_path: Path) -> None:
    """As those on the device meta, inside vmap, or of a communication that was still under way."""
    unseen = tensor(1)._replace(stats=Statistics(None, None, None, None))
    empty = unseen._replace(shape=(0, 3))
    target = call("Torch.op.0.forward", unseen, unseen, empty)
    golden = call("Torch.op.0.forward", unseen, tensor(1), empty)
    assert levels(compared(tmp_path, [target], [golden])) == ["not judged", "not judged", "same"]


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
        (tensor(MUCH), tensor(1), "off by 0.0099 of its size when it comes in"),
        (Leaf("float", 0.2), Leaf("float", 0.1), "this argument is 0.2, in the golden run 0.1"),
        (Leaf("str", "mean"), Leaf("str", "sum"), "this argument is 'mean', in the golden run 'sum'"),
        (None, Leaf("int", 1), "this argument is None, in the golden run 1"),
        (tensor(1, (6, 4)), tensor(1, (6, 8)), "its shape is [6, 4], in the golden run [6, 8]"),
        (None, tensor(1), "a tensor is given in the golden run only"),
        (tensor(1), None, "a tensor is given in the target only"),
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
    culprit = comparison.located.culprit
    assert culprit is not None and ("--align" in culprit.hint) == reason.startswith("its shape")


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
    for name, level in (("Torch.sub.0.forward", "rounding"), ("Torch.div.0.forward", "originated")):
        folder = tmp_path / level  # only what adds can cancel
        assert one(folder, tiny[0], tiny[1], target=big, golden=big, name=name) == ["same", "same", level]


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


@pytest.mark.parametrize("is_late", [False, True], ids=["when it began", "when it ended"])
def test_a_backward_call_is_judged_before_what_got_its_gradients(tmp_path: Path, is_late: bool) -> None:
    """That of an LSTM is written when the gradients of all its weights have come."""

    def run(made: float) -> list[Record]:
        forward = [
            call(f"Functional.{api}.0.forward", tensor(1), inputs=(tensor(1),)) for api in ("embed", "lstm")
        ]
        back = [
            backward("Functional.lstm.0.backward", 1, made),
            backward("Functional.embed.0.backward", made, made),
        ]
        return forward + (back[::-1] if is_late else back)

    comparison = compared(tmp_path, run(1.5), run(1))
    assert comparison.located.culprit is not None
    assert comparison.located.culprit.place.name == "Functional.lstm.0.backward.output.0"


def test_classes_and_indices_are_no_factors_of_a_gradient(tmp_path: Path) -> None:
    """What looks up rows 30,000 would else be excused for 30,000 times of what rounding explains."""

    def run(back: float) -> list[Record]:
        given = (tensor(30_000, dtype="torch.int64"), tensor(1))
        there = call("Functional.embedding.0.forward", tensor(1), inputs=given)
        return [there, backward("Functional.embedding.0.backward", 1, back)]

    assert levels(compared(tmp_path, run(1.01), run(1)))[-1] == "originated"


@pytest.mark.parametrize(
    ("api", "reduction"),
    [("cross_entropy", "mean"), ("cross_entropy", "sum"), ("mse_loss", None), ("mean", None), ("gelu", None)],
)
def test_the_share_of_a_mean_is_small_and_cancels_nothing(
    tmp_path: Path, api: str, reduction: str | None
) -> None:
    """The gradient of a loss over many tokens was excused also where its sign was wrong."""
    shape = (1000, 50)

    def run(back: float) -> list[Record]:
        given = (tensor(1, shape), *([Leaf("str", value=reduction)] if reduction else ()))
        fields = {"input": [tensor(1, ())], "output": [tensor(back, shape)]}
        there = call(f"Functional.{api}.0.forward", tensor(1, ()), inputs=given)
        return [there, Record(CallName.parse(f"Functional.{api}.0.backward"), fields)]

    assert levels(compared(tmp_path, run(2e-5), run(1e-5)))[-1] == "originated"


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


def test_slow_growth_that_inputs_explain_is_no_divergence(tmp_path: Path) -> None:
    def run(errors: list[float]) -> list[Record]:
        ends = [0.0, *errors]
        return [
            call(f"Torch.op{n}.0.forward", tensor(1 + after), inputs=(tensor(1 + before),))
            for n, (before, after) in enumerate(pairwise(ends))
        ]

    located = compared(tmp_path, run([3e-7, 2e-6, 2e-5, 2e-4]), run([0.0] * 4)).located
    assert located.first is None and located.culprit is None
    assert located.has_grown
    assert located.not_equal is not None
    assert str(located.not_equal.place.record.name) == "Torch.op0.0.forward"
    assert diverged([located]) is False


def test_what_was_not_checked_is_part_of_the_evidence(tmp_path: Path) -> None:
    target = [call("Torch.only.0.forward", tensor(1)), call("Torch.a.0.forward", tensor(MUCH))]
    golden = [call("Torch.a.0.forward", tensor(1))]
    culprit = compared(tmp_path, target, golden).located.culprit
    assert culprit is not None
    assert culprit.evidence.grade == "weak"
    assert culprit.evidence.unchecked == {"the golden run has no such call": 1}
    assert culprit.evidence.checked == 0


# --- what a reader of an answer must be able to rely on -----------------------------------------------------


def why(comparison: Comparison) -> list[str]:
    return [verdict.reason for verdict in comparison.verdicts]


@pytest.mark.parametrize("width", [4, 4096])
def test_long_sums_of_little_precision_excuse_no_more_than_short_ones(tmp_path: Path, width: int) -> None:
    """All hardware adds products of bfloat16 in float32, and rounds the sum once."""

    def wide(value: float) -> Leaf:
        stats = Statistics(value, -value, 0.0, value * math.sqrt(2 * width))
        return tensor(1, (2, width), "torch.bfloat16")._replace(stats=stats)

    for value, level in ((1.003, "rounding"), (1.02, "originated")):
        found = one(tmp_path / str(value), wide(value), wide(1), target=(wide(1),), golden=(wide(1),))
        assert found == ["same", level]


def test_what_comes_in_was_rounded_to_its_own_dtype(tmp_path: Path) -> None:
    """A parameter in float32 is not excused by the bfloat16 that autocast computes in."""
    low = tensor(1, dtype="torch.bfloat16")
    found = one(
        tmp_path,
        low,
        tensor(1.2, dtype="torch.bfloat16"),
        target=(low, tensor(MUCH)),
        golden=(low, tensor(1)),
    )
    assert found == ["same", "entered", "passed on"]


def test_a_module_rounds_as_the_coarsest_call_in_it(tmp_path: Path) -> None:
    def run(value: float) -> list[Record]:
        name = "Module.net.Block.forward.0"
        low = call("Functional.linear.0.forward", tensor(value, dtype="torch.bfloat16"), inputs=(tensor(1),))
        return [low._replace(parent=name, has_parent=True), call(name, tensor(value), inputs=(tensor(1),))]

    header = Header("statistics", "mix", "pytorch")
    assert levels(compared(tmp_path, run(MUCH), run(1), header=header)) == [
        "same",
        "rounding",
        "same",
        "rounding",
    ]


@pytest.mark.parametrize(
    ("api", "level", "answer"), [("nonzero", "passed on", False), ("narrow", "originated", True)]
)
def test_another_shape_is_explained_by_an_operator_that_shapes_by_value(
    tmp_path: Path, api: str, level: str, answer: bool
) -> None:
    """As where a router sends a token elsewhere because its scores differ by rounding."""

    def run(value: float, length: int) -> list[Record]:
        score = call("Torch.score.0.forward", tensor(value), inputs=(tensor(1),))
        chosen = tensor(1, (length, 4))._replace(made_by=f"Torch.{api}.0.forward.output.0")
        selected = call(f"Torch.{api}.0.forward", tensor(1, (length, 4)), inputs=(tensor(value),))
        return [score, selected, call("Torch.expert.0.forward", chosen, inputs=(chosen,))]

    comparison = compared(tmp_path, run(LITTLE, 3), run(1, 4))
    assert levels(comparison) == ["same", "rounding", "rounding", level, "passed on", "passed on"]
    assert diverged([comparison.located]) is answer


def test_another_shape_whose_maker_is_unknown_is_no_all_clear(tmp_path: Path) -> None:
    def run(value: float, length: int) -> list[Record]:
        score = call("Torch.score.0.forward", tensor(value), inputs=(tensor(1),))
        chosen = tensor(1, (length, 4))
        return [score, call("Torch.expert.0.forward", chosen, inputs=(chosen,))]

    comparison = compared(tmp_path, run(LITTLE, 3), run(1, 4))
    assert levels(comparison) == ["same", "rounding", "cannot tell", "passed on"]
    assert diverged([comparison.located]) == "cannot tell"


def test_inputs_that_were_not_compared_are_not_called_equal(tmp_path: Path) -> None:
    unlike = Leaf("torch.Tensor", dtype="torch.int64", shape=(2, 3), stats=Statistics(1, 0, 0.5, 1.0))
    target = call("Torch.op.0.forward", tensor(MUCH), inputs=(tensor(1), unlike))
    golden = call("Torch.op.0.forward", tensor(1), inputs=(tensor(1), tensor(1)))
    comparison = compared(tmp_path, [target], [golden])
    assert levels(comparison) == ["same", "not judged", "originated"]
    assert "those of its inputs that could be compared are equal" in why(comparison)[2]
    target, golden = (call("Torch.op.0.forward", tensor(v), inputs=(tensor(1),)) for v in (MUCH, 1))
    found = why(compared(tmp_path / "2", [target], [golden]))
    assert "its inputs are equal in max, min, mean and norm" in found[1]


def test_truth_values_that_statistics_cannot_tell_apart_excuse_no_argument(tmp_path: Path) -> None:
    """tril(1) and tril(0): the same any and all, and another mask."""
    mask = Leaf("torch.Tensor", dtype="torch.bool", shape=(4, 4), stats=Statistics(True, False, None, None))
    target, golden = (
        call("Tensor.tril.0.forward", mask, inputs=(mask, Leaf("int", diagonal))) for diagonal in (1, 0)
    )
    comparison = compared(tmp_path, [target], [golden])
    assert levels(comparison) == ["same", "entered", "same"]


def test_batch_norm_keeps_what_its_output_does_not_show(tmp_path: Path) -> None:
    target, golden = (
        call("Functional.batch_norm.0.forward", tensor(1), inputs=(tensor(1), Leaf("float", momentum)))
        for momentum in (0.5, 0.1)
    )
    assert levels(compared(tmp_path, [target], [golden])) == ["same", "entered", "same"]


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("Torch.ones_like", "entered"),
        ("Tensor.__mul__", "entered"),
        ("Tensor.fill_", "passed on"),
        ("Tensor.__setitem__", "passed on"),
    ],
)
def test_nan_on_one_side_alone_is_a_divergence_also_where_it_has_no_effect(
    tmp_path: Path, name: str, level: str
) -> None:
    """Unless the call overwrites what it was given, which may have been memory that nobody wrote."""
    target, golden = (call(f"{name}.0.forward", tensor(1), inputs=(tensor(v),)) for v in (math.nan, 1))
    assert levels(compared(tmp_path, [target], [golden])) == [level, "same"]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_no_call_is_said_to_make_nan_of_finite_numbers_that_had_others(tmp_path: Path, value: float) -> None:
    """Of infinities, of a NaN before it, or of what its forward was given."""
    spoilt = [
        call("Torch.a.0.forward", tensor(1), inputs=(tensor(value),)),
        backward("Torch.a.0.backward", 1, math.nan),
    ]
    assert compared(tmp_path, spoilt, spoilt).located.not_finite is None


def test_a_plain_number_is_set_and_not_computed(tmp_path: Path) -> None:
    """However much has drifted before: a weight decay of 0.997 for 0.9997."""

    def run(value: float, factor: float) -> list[Record]:
        noise = call("Torch.noise.0.forward", tensor(value), inputs=(tensor(value),))
        return [
            noise,
            call("Tensor.mul_.0.forward", tensor(value), inputs=(tensor(1), Leaf("float", factor))),
        ]

    comparison = compared(tmp_path, run(1.5, 0.997), run(1, 0.9997))
    assert levels(comparison) == ["entered", "passed on", "same", "entered", "passed on"]


def test_a_parameter_that_differs_after_a_step_that_parted_is_no_news(tmp_path: Path) -> None:
    """The optimizer has taken in what the step before made of it."""

    def run(folder: Path, errors: list[float], weight: float) -> Path:
        ends = [0.0, *errors]
        slow = [
            call(f"Torch.op{n}.0.forward", tensor(1 + after), inputs=(tensor(1 + before),))
            for n, (before, after) in enumerate(pairwise(ends))
        ]
        parameter = tensor(weight)._replace(requires_grad=True)
        then = [call("Torch.linear.0.forward", tensor(weight), inputs=(parameter,))]
        return made_steps(folder, slow, then)

    grown = run(tmp_path / "t", [3e-7, 9e-6, 2e-4], MUCH)
    found = compare(grown, run(tmp_path / "g", [0.0] * 3, 1))
    assert [c.located.culprit is not None for c in found] == [False, True]
    assert overall([c.located for c in found]) is None
    sound = compare(run(tmp_path / "t2", [0.0] * 3, MUCH), tmp_path / "g")
    assert overall([c.located for c in sound]) is not None


def test_a_divisor_near_zero_makes_much_of_little(tmp_path: Path) -> None:
    """addcdiv_ of Adam: a gradient that is zero but for rounding, divided by its own size."""

    def run(value: float, result: float, least: float) -> list[Record]:
        noise = call("Torch.grad.0.forward", tensor(value), inputs=(tensor(1),))
        divisor = tensor(1)._replace(stats=Statistics(1.0, least, 0.5, 2.0))
        inputs = (tensor(1), tensor(value), divisor)
        return [noise, call("Tensor.addcdiv_.0.forward", tensor(result), inputs=inputs)]

    assert levels(compared(tmp_path, run(LITTLE, MUCH, 1e-8), run(1, 1, 1e-8)))[-1] == "passed on"
    assert levels(compared(tmp_path / "2", run(LITTLE, MUCH, 0.5), run(1, 1, 0.5)))[-1] == "originated"


def test_a_shape_that_differs_explains_what_only_the_golden_run_gave_back(tmp_path: Path) -> None:
    """A gradient of the golden run alone belongs to the call of the target that goes back, too."""
    weight, bias = tensor(1.0, (4, 8), made_by="parameter:w"), tensor(1.0, (4, 8), made_by="parameter:b")
    forward = call("Torch.foo.0.forward", tensor(2.0, (4, 8)), inputs=(weight, bias))
    runs = {
        "target": ([tensor(3.0, (4, 8))], [tensor(5.0, (4, 8))]),
        "golden": ([tensor(3.0, (8, 4)), None], [tensor(5.0, (4, 8)), tensor(6.0, (4, 8))]),
    }
    for name, (came, gave) in runs.items():
        fields = {"input": came, "output": gave}
        made(tmp_path / name, forward, Record(CallName.parse("Torch.foo.0.backward"), fields))
    (found,) = compare(tmp_path / "target", tmp_path / "golden")
    verdicts = {f.pair.place.name: v for f, v in zip(found.findings, found.verdicts, strict=True)}
    verdict = verdicts["Torch.foo.0.backward.output.1"]
    assert (verdict.level, verdict.reason) == ("passed on", "off by 0 of its size, as input.0 is another")
