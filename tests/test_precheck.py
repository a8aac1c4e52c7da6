"""Recorded calls made again and judged, in this process: inputs, sides, gradients, reasons to skip."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import nets
from msprobe.errors import MsprobeError
from msprobe.kernels import Statistics
from msprobe.name import CallName
from msprobe.precheck.arguments import generated, rebuild
from msprobe.precheck.calls import Call, Lists, Skip, Skipped, calls_of, reason_to_skip, without_repeats
from msprobe.precheck.check import read_recording, status_of
from msprobe.precheck.judging import Answer
from msprobe.precheck.protocol import call_line, read_answer, serve
from msprobe.precheck.work import AUTO, RECORDED, REPLAYED, SENT, Setup, backward_side, check, skipped
from msprobe.pytorch.worker import CheckedTorch
from msprobe.record import Header, Leaf, Recording
from torch_fixtures import Probe, probe, record

__all__ = ["probe"]


def checked(probe: Probe, outputs: str = AUTO) -> dict[str, Answer]:
    """Each call of the recording; each goes through the lines that a worker reads and writes."""
    recording = read_recording(probe.rank())
    replay = CheckedTorch()
    replay.restore_randomness(randomness())
    setup = Setup(recording, "cpu", outputs)
    found = {}
    for call in calls_of(recording):
        reason = reason_to_skip(call, Lists())
        found[call.text] = skipped(call, reason) if reason else check(call, setup, replay)
    return found


def randomness() -> Any:
    torch.manual_seed(1)
    return CheckedTorch().randomness()


def statuses(found: dict[str, Answer]) -> dict[str, tuple[str, str]]:
    return {name: (answer.summed.forward, answer.summed.backward) for name, answer in found.items()}


def parameter(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).requires_grad_()


# ---- every kind of argument ----

X = torch.arange(24.0).reshape(2, 3, 4) / 7
KINDS: dict[str, Callable[[], Any]] = {
    "Torch.cat": lambda: torch.cat([X, X + 1], dim=-1),
    "Torch.sum": lambda: torch.sum(X, (0, 2), keepdim=True, dtype=torch.float64),
    "Tensor.to": lambda: X.to(torch.bfloat16),
    "Torch.ones_like": lambda: torch.ones_like(X, dtype=torch.int32, device="cpu"),
    "Tensor.reshape": lambda: X.reshape(torch.Size([4, 6])),
    "Tensor.clamp": lambda: X.clamp(None, 2.5),
    "Torch.einsum": lambda: torch.einsum("abc,abd->cd", X, X),
    "Torch.clone": lambda: torch.clone(X, memory_format=torch.contiguous_format),
    "Torch.where": lambda: torch.where(X > 1, X, 0.0),
    "Tensor.masked_fill": lambda: X.masked_fill(X > 1, float("-inf")),
    "Torch.max": lambda: torch.max(X, 1),
    "Functional.pad": lambda: F.pad(X, (1, 0), value=2.0),
    "Torch.polar": lambda: torch.polar(X, X),
    "Torch.mul": lambda: torch.mul(X, 2 - 3j),
    "Tensor.add_": lambda: X.clone().add_(X, alpha=2),
    "Tensor.__setitem__": lambda: X.clone().__setitem__((0, slice(1, None)), 3.0),
    "Tensor.numpy": lambda: X.numpy(),
    "Functional.one_hot": lambda: F.one_hot(torch.tensor([0, 2]), 4),
}


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("owner", KINDS)
def test_kinds_of_arguments(probe: Probe, owner: str, task: str) -> None:
    record(probe, KINDS[owner], task=task)
    found = checked(probe)[f"{owner}.0"]
    assert found.summed == (f"{owner}.0", "pass", "", "", "pass", "", "")


# ---- generated inputs ----


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("float32", -2.5, 7.0),
        ("float16", 0.5, 0.5),
        ("int64", -3, 4),
        ("uint8", 250, 255),
        ("bool", False, True),
    ],
)
def test_generated_numbers(dtype: str, low: float, high: float) -> None:
    """Within the recorded range, its ends at both ends, and the same in every run."""
    leaf = Leaf(
        "torch.Tensor", dtype=f"torch.{dtype}", shape=(5, 40), stats=Statistics(high, low, None, None)
    )
    array = generated(leaf, "Torch.add.0.forward.input.0")
    assert (array.shape, array.dtype.name) == ((5, 40), dtype)
    assert (array.flat[0], array.flat[-1], array.min(), array.max()) == (low, high, low, high)
    np.testing.assert_array_equal(array, generated(leaf, "Torch.add.0.forward.input.0"))
    if low != high:
        assert (array != generated(leaf, "Torch.add.1.forward.input.0")).any()


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        (Statistics(float("inf"), 0.0, None, None), Skip.NOT_FINITE),
        (Statistics(1.0, float("nan"), None, None), Skip.NOT_FINITE),
        (Statistics(None, None, None, None), Skip.NO_STATISTICS),
        (None, Skip.NO_STATISTICS),
    ],
)
def test_no_numbers_to_generate(stats: Statistics | None, reason: Skip) -> None:
    with pytest.raises(Skipped) as told:
        generated(Leaf("torch.Tensor", dtype="torch.float32", shape=(3,), stats=stats), "x")
    assert told.value.reason is reason


def test_nothing_to_generate_of_an_empty_tensor() -> None:
    assert generated(Leaf("torch.Tensor", dtype="torch.float32", shape=(0, 3)), "x").shape == (0, 3)


# ---- whole networks ----


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("name", ["gpt", "conv", "reentrant", "bf16"])
def test_a_sound_network_has_no_error(probe: Probe, name: str, task: str) -> None:
    nets.train(nets.NETS[name], probe.debugger(task=task), steps=1)
    found = checked(probe)
    assert {name for name, answer in found.items() if status_of(answer.summed) == "error"} == set()
    reasons = {answer.summed.message for answer in found.values() if status_of(answer.summed) == "SKIP"}
    assert all(message.startswith(Skip.NOT_FINITE.value) for message in reasons)
    if task == "tensor":
        assert reasons == set()
    both = [sides for sides in statuses(found).values() if sides[1]]
    assert len(both) > 10 and "SKIP" not in {side for sides in both for side in sides} - (
        {"SKIP"} if reasons else set()
    )


def linear_and_relu() -> None:
    F.relu(F.linear(parameter(4, 8), parameter(6, 8))).sum().backward(torch.ones(()))


@pytest.mark.parametrize(
    ("outputs", "factor", "forward"),
    [(AUTO, 1.01, "error"), (RECORDED, 1.01, "error"), (REPLAYED, 1.01, "pass"), (AUTO, 1.0, "pass")],
)
def test_recorded_outputs_are_what_is_checked(
    probe: Probe, outputs: str, factor: float, forward: str
) -> None:
    """As recorded on a device whose Linear is wrong by 1 %, and checked on a machine with a right one."""
    record(probe, linear_and_relu, task="tensor")
    scale(probe, "Functional.linear.0.forward.output.0", factor)
    found = statuses(checked(probe, outputs))
    assert found["Functional.linear.0"] == (forward, "pass")
    assert found["Functional.relu.0"] == ("pass", "pass")


@pytest.mark.parametrize(
    ("task", "work", "forward", "reason"),
    [
        ("tensor", linear_and_relu, "pass", ""),
        ("statistics", linear_and_relu, "SKIP", Skip.NOT_SENT.value),
        ("tensor", lambda: X.clone().__setitem__(0, 3.0), "SKIP", Skip.NOT_SENT.value),
    ],
)
def test_nothing_is_made_up_for_what_was_not_sent(
    probe: Probe, task: str, work: Callable[[], Any], forward: str, reason: str
) -> None:
    record(probe, work, task=task)
    owners = ("Functional.linear", "Tensor.__")
    (answer,) = (each for name, each in checked(probe, SENT).items() if name.startswith(owners))
    assert (answer.summed.forward, answer.summed.message) == (forward, reason)


def test_an_array_is_made_up_in_any_case() -> None:
    """Only its statistics are recorded, so recorded outputs say nothing about a call that has one."""
    array = Leaf("numpy.ndarray", dtype="int64", shape=(3,), stats=Statistics(2, 0, None, None))
    fields = {"input_args": [array, Leaf("int", 1)], "input_kwargs": {}}
    recording = Recording(Header("tensor", "L1", "pytorch"), {}, "")
    name = CallName("Torch.roll", "forward", 0)
    assert not rebuild(recording, name, fields).recorded
    assert rebuild(recording, name, {"input_args": [Leaf("int", 1)]}).recorded


def test_gradients_alone(probe: Probe) -> None:
    record(probe, linear_and_relu, task="tensor")
    scale(probe, "Functional.linear.0.forward.output.0", 1.01)
    found = backward_side(checked(probe)["Functional.linear.0"])
    assert found.summed == ("Functional.linear.0", "", "pass", "", "", "pass", "")
    assert [result.place for result in found.results] == [
        "Functional.linear.0.backward.output.0",
        "Functional.linear.0.backward.output.1",
    ]
    call = calls_of(read_recording(probe.rank()))[0]
    summed = backward_side(skipped(call, "It hung.")).summed
    assert summed == (call.text, "", "SKIP", "It hung.", "", "SKIP", "")


def test_recorded_gradients_are_checked(probe: Probe) -> None:
    record(probe, linear_and_relu, task="tensor")
    scale(probe, "Functional.linear.0.backward.output.1", 1.01)
    answer = checked(probe)["Functional.linear.0"]
    assert (answer.summed.forward, answer.summed.backward) == ("pass", "error")
    assert [result.place for result in answer.results if result.status == "error"] == [
        "Functional.linear.0.backward.output.1"
    ]


def scale(probe: Probe, name: str, factor: float) -> None:
    path = probe.rank() / "dump_tensor_data" / f"{name}.pt"
    wrong = probe.tensor(name) * factor
    path.unlink()  # one file may stand under several names
    torch.save(wrong, path)


def test_forward_alone_gets_made_up_gradients(probe: Probe) -> None:
    record(probe, linear_and_relu, section={"data_mode": ["forward"]})
    found = statuses(checked(probe))
    assert found["Functional.linear.0"] == ("pass", "pass")


def test_a_call_outside_the_backward_pass_has_no_backward(probe: Probe) -> None:
    def work() -> None:
        F.linear(parameter(4, 8), parameter(6, 8))
        F.relu(parameter(4)).sum().backward()

    record(probe, work)
    found = statuses(checked(probe))
    assert (found["Functional.linear.0"], found["Functional.relu.0"]) == (("pass", ""), ("pass", "pass"))


def test_cancellation_is_no_error(probe: Probe) -> None:
    """The mean of what was centred is noise: its cosine says nothing."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(5)) * 100
    x = x - x.mean(0)
    record(probe, lambda: torch.sum(x, 0), task="tensor")
    result = checked(probe)["Torch.sum.0"].results[0]
    assert result.status == "pass"
    assert result.accuracy is not None and not result.accuracy.thousandth > 0.9
    assert "rounding decides it" in result.message


# ---- what is not judged ----


@pytest.mark.parametrize(
    ("name", "work", "reason"),
    [
        ("Torch.bernoulli", lambda: torch.bernoulli(torch.full((9,), 0.5)), Skip.RANDOM),
        ("Torch.empty_like", lambda: torch.empty_like(X), Skip.UNINITIALISED),
    ],
)
def test_reasons(probe: Probe, name: str, work: Callable[[], Any], reason: Skip) -> None:
    record(probe, work, task="tensor")
    answer = checked(probe)[f"{name}.0"]
    assert (answer.summed.forward, answer.summed.message) == ("SKIP", reason.value)


def test_a_failed_call_says_how(probe: Probe) -> None:
    def work() -> None:
        with pytest.raises(RuntimeError):
            torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
        torch.matmul(torch.ones(2, 3), torch.ones(3, 2))

    record(probe, work)
    found = checked(probe)
    assert found["Torch.matmul.0"].summed.message.startswith(
        f"{Skip.FAILED_WHEN_RECORDED.value} RuntimeError"
    )
    assert found["Torch.matmul.1"].summed.forward == "pass"


def test_dropout_is_judged_by_its_share_of_zeros(probe: Probe) -> None:
    record(probe, lambda: F.dropout(torch.ones(1000), 0.5), task="tensor")
    assert checked(probe)["Functional.dropout.0"].results[0].message.startswith("A dropout")
    dropped = probe.rank() / "dump_tensor_data" / "Functional.dropout.0.forward.output.0.pt"
    dropped.unlink()
    torch.save(torch.ones(1000), dropped)
    assert checked(probe)["Functional.dropout.0"].summed.forward == "error"


def test_a_damaged_tensor_file_costs_its_calls(probe: Probe) -> None:
    record(probe, linear_and_relu, task="tensor")
    path = probe.rank() / "dump_tensor_data" / "Functional.linear.0.forward.input.0.pt"
    path.unlink()
    path.write_bytes(b"PK\3\4 and no more")
    found = checked(probe)
    assert found["Functional.linear.0"].summed.message.startswith(Skip.UNREADABLE.value)
    assert found["Functional.relu.0"].summed.forward == "pass"


def test_a_record_cannot_name_what_is_no_api(probe: Probe) -> None:
    record(probe, lambda: torch.abs(X))
    dump = probe.rank() / "dump.json"
    text = dump.read_text().replace("Torch.abs.0.forward", "Torch.load.0.forward")
    dump.write_text(text)
    assert checked(probe)["Torch.load.0"].summed.message == Skip.UNKNOWN.value


def test_an_argument_that_was_lost(probe: Probe) -> None:
    """Release 8.3.3 writes {} for a dtype that stands among the positional arguments."""
    record(probe, lambda: X.to(torch.float16))
    dump = probe.rank() / "dump.json"
    whole = json.loads(dump.read_text())
    whole["data"]["Tensor.to.0.forward"]["input_args"][1] = {}
    dump.write_text(json.dumps(whole))
    assert checked(probe)["Tensor.to.0"].summed.message.startswith(Skip.LOST_ARGUMENT.value)


# ---- which calls ----


@pytest.mark.spec("C095", "PT")
@pytest.mark.spec("C096", "PT")
@pytest.mark.spec("C097", "PT")
@pytest.mark.parametrize(
    ("white", "black", "checked"),
    [
        ((), (), {"linear", "relu", "sum"}),
        (("linear", "relu"), (), {"linear", "relu"}),
        ((), ("relu",), {"linear", "sum"}),
        (("linear",), ("relu",), {"linear"}),
        (("linear", "relu"), ("relu", "sum"), {"linear"}),
    ],
)
def test_white_and_black_lists(
    probe: Probe, white: tuple[str, ...], black: tuple[str, ...], checked: set[str]
) -> None:
    record(probe, linear_and_relu)
    lists = Lists(white, black)
    lists.must_be_known(CheckedTorch().apis())
    calls = calls_of(read_recording(probe.rank()))
    told = {call.name.api: reason_to_skip(call, lists) for call in calls}
    assert {api for api, reason in told.items() if reason is None} == checked
    assert {api: reason for api, reason in told.items() if reason is not None} == {
        api: f"API {api} in black list or not in white list. SKIP."
        for api in {"linear", "relu", "sum"} - checked
    }


@pytest.mark.spec("C095", "PT")
@pytest.mark.parametrize(
    "lists", [Lists(("conv2d", "conv9d")), Lists((), ("conv9d",))], ids=["white", "black"]
)
def test_unknown_names_are_refused(lists: Lists) -> None:
    with pytest.raises(MsprobeError, match=r"Invalid api in (white|black)_list: \['conv9d'\]"):
        lists.must_be_known(CheckedTorch().apis())


def test_repeats_are_those_that_differ_in_values_alone(probe: Probe) -> None:
    def work() -> None:
        for scale in (1.0, 2.0):
            torch.abs(X * scale)
        torch.abs(X[0])
        torch.sum(X, 0)
        torch.sum(X, 1)

    record(probe, work)
    calls = [call.text for call in without_repeats(calls_of(read_recording(probe.rank())))]
    assert [name for name in calls if "abs" in name or "sum" in name] == [
        *("Torch.abs.0", "Torch.abs.2"),
        *("Torch.sum.0", "Torch.sum.1"),
    ]


def test_a_recording_without_calls_of_apis(probe: Probe) -> None:
    with pytest.raises(MsprobeError, match="record at level L1 or mix"):
        calls_of(Recording(read_recording_header(), {}, "here"))


def read_recording_header() -> Any:
    from msprobe.record import Header

    return Header("statistics", "L0", "pytorch")


# ---- lines ----


def test_what_a_worker_is_told_and_tells(probe: Probe, tmp_path: Path) -> None:
    """A call and its answer go through lines of JSON unchanged."""
    import io

    from msprobe.precheck.protocol import CHECK, Order, order_line, read_ready

    record(probe, linear_and_relu, task="tensor")
    recording = read_recording(probe.rank())
    calls: list[Call] = calls_of(recording)
    order = Order(CHECK, recording.folder, 0, REPLAYED, None, 1)
    answers = io.StringIO()
    serve([order_line(order), *map(call_line, calls)], answers, CheckedTorch(), torch.set_num_threads)
    first, *lines = answers.getvalue().splitlines()
    assert read_ready(first).device == "cpu" and "linear" in read_ready(first).apis
    expected = checked(probe, REPLAYED)
    assert [read_answer(line) for line in lines] == [expected[call.text] for call in calls]
