"""compare --replay: recordings with wrong kernels, other arguments, random calls; and what is missing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from truth.kernel_faults import EITHER_WAY, EXACT, TOWARD_ZERO, Fault, kernels, one_element, scaled

from cross_case import Crossed, crossed
from made_runs import call, made, tensor
from msprobe import store
from msprobe.cli.main import main
from msprobe.compare import compare
from msprobe.name import BACKWARD, FORWARD, CallName
from msprobe.precheck import suspects as replaying
from msprobe.precheck.calls import Call, Lists, reason_to_skip
from msprobe.precheck.exact_call import Setups, Suspect, replay_suspect
from msprobe.precheck.suspects import Worker, replay_suspects
from msprobe.precheck.work import Setup
from msprobe.pytorch.worker import CheckedTorch
from msprobe.record import Recording
from msprobe.report.answer import answer
from msprobe.report.page import write_page
from msprobe.report.summary import summary
from msprobe.verdict.comparison import Comparison
from msprobe.verdict.locate import with_replay
from msprobe.verdict.loss import loss_of
from msprobe.verdict.replay_evidence import NOT_REPLAYABLE, PROVEN, REFUTED, ReplayEvidence
from torch_fixtures import Probe

__all__ = ["crossed"]

NUMBERS = 24


class Net(nn.Module):
    """Each kind of call once: a product, a norm, a curve, a softmax in float32, a loss."""

    def __init__(self, eps: float = 1e-5, p: float = 0.0) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(NUMBERS, 2 * NUMBERS), nn.LayerNorm(2 * NUMBERS, eps)
        self.down, self.p = nn.Linear(2 * NUMBERS, 10), p

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm(self.up(x)))
        x = F.dropout(x, self.p) if self.p else x
        shares = F.softmax(self.down(x), -1, dtype=torch.float32)
        return shares.log()


class Variation(NamedTuple):
    """One run: what in it is not as in the golden run."""

    fault: Fault | None = None
    dtype: torch.dtype = torch.float32
    rounding: str = EXACT
    level: str = "mix"
    eps: float = 1e-5
    p: float = 0.0


GOLDEN = Variation()


def recorded(folder: Path, variation: Variation, task: str = "tensor") -> Path:
    """The folder of one recorded step."""
    probe = Probe(folder)
    folder.mkdir(parents=True, exist_ok=True)
    probe.close()
    torch.manual_seed(3)
    net = Net(variation.eps, variation.p).to(variation.dtype)
    x, y = torch.randn(32, NUMBERS).to(variation.dtype), torch.arange(32) % 10
    debugger = probe.debugger(variation.level, task, model=net)
    debugger.start(net)
    with kernels(variation.rounding, variation.fault):
        F.nll_loss(net(x), y).backward()
    debugger.stop()
    debugger.step()
    assert probe.troubles() == ""
    probe.close()
    return probe.rank()


Runs = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Recordings by their variation, each made once."""
    made_runs: dict[tuple[Variation, str], Path] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(task: str = "tensor", **facts: Any) -> Path:
        variation = Variation(**facts)
        key = variation, task
        if key not in made_runs:
            made_runs[key] = recorded(tmp_path_factory.mktemp("run"), variation, task)
        return made_runs[key]

    yield run
    torch.set_num_threads(threads)


GELU = Fault("gelu", 0, scaled(1.05))
HALF = torch.bfloat16


def call_of(recording: Recording, name: str) -> Call:
    """Both directions of a call."""
    parsed = CallName.parse(name)
    records = recording.records
    forward, backward = (records.get(str(parsed.facing(side))) for side in (FORWARD, BACKWARD))
    assert forward is not None
    return Call(forward.name, forward, backward)


def asked(target: Path, golden: Path, name: str, **facts: Any) -> ReplayEvidence:
    """What the replay says of a call, whether it is suspected or not; in this process."""
    recordings = [store.read_one(path) for path in (target, golden)]
    ours, theirs = (call_of(recording, name) for recording in recordings)
    suspect = Suspect(ours, theirs, CallName.parse(name).direction, **facts)
    setups = Setups(*(Setup(recording, "cpu") for recording in recordings))
    return replay_suspect(suspect, setups, CheckedTorch())


# ---- proven ----


FAULTS = [
    ("Functional.gelu.0.forward", "scale error", GELU, torch.float32),
    ("Functional.linear.0.forward", "single numbers", Fault("addmm", 0, one_element), torch.float32),
    ("Functional.gelu.0.backward", "scale error", Fault("gelu_backward", 0, scaled(1.001)), torch.float32),
    ("Functional.layer_norm.0.backward", "scale error",
     Fault("native_layer_norm_backward", 0, scaled(1.02)), torch.float32),
    ("Functional.softmax.0.forward", "scale error", Fault("_softmax", 0, scaled(1.001)), torch.float32),
    ("Functional.linear.0.forward", "scale error", Fault("addmm", 0, scaled(1.01)), HALF),
    ("Functional.gelu.0.backward", "scale error", Fault("gelu_backward", 0, scaled(1.02)), HALF),
]  # fmt: skip


@pytest.mark.parametrize(("name", "measure", "fault", "dtype"), FAULTS)
@pytest.mark.parametrize("level", ["mix", "L1"])
def test_a_wrong_kernel_is_proven(
    runs: Runs, name: str, measure: str, fault: Fault, dtype: torch.dtype, level: str
) -> None:
    target, golden = runs(fault=fault, dtype=dtype, level=level), runs(dtype=dtype, level=level)
    (comparison,) = compare(target, golden)
    culprit = comparison.located.culprit
    assert culprit is not None and str(culprit.place.record.name) == name
    found = asked(target, golden, name)
    assert (found.outcome, found.at_fault, found.measure) == (PROVEN, "target", measure), found
    assert found.target_error is not None and found.golden_error is not None
    assert found.target_error > 2 > found.golden_error or measure == "single numbers"


def test_a_wrong_golden_run_is_named_as_such(runs: Runs) -> None:
    found = asked(runs(), runs(fault=GELU), "Functional.gelu.0.forward")
    assert (found.outcome, found.at_fault) == (PROVEN, "golden")
    assert "the golden run's output.0 is off" in found.reason
    assert found.golden_error is not None and found.target_error is not None
    assert found.golden_error > 1e5 and found.target_error < 2


def test_a_wrong_kernel_is_proven_among_kernels_that_round_otherwise(runs: Runs) -> None:
    target = runs(fault=GELU, dtype=HALF, rounding=EITHER_WAY)
    found = asked(target, runs(dtype=HALF), "Functional.gelu.0.forward")
    assert (found.outcome, found.at_fault, found.measure) == (PROVEN, "target", "scale error")


def test_a_gradient_of_a_wrong_result_is_not_proven(tmp_path: Path) -> None:
    """tanh computes its gradient from its result: the kernel of the gradient is right."""

    def run(folder: Path, fault: Fault | None) -> Path:
        probe = Probe(folder)
        folder.mkdir()
        probe.close()
        x = torch.linspace(-2, 2, 64, requires_grad=True)
        debugger = probe.debugger("L1", "tensor")
        debugger.start()
        with kernels(EXACT, fault):
            torch.tanh(x).sum().backward()
        debugger.stop()
        debugger.step()
        probe.close()
        return probe.rank()

    target, golden = run(tmp_path / "t", Fault("tanh", 0, scaled(1.05))), run(tmp_path / "g", None)
    assert asked(target, golden, "Torch.tanh.0.forward").outcome == PROVEN
    found = asked(target, golden, "Torch.tanh.0.backward")
    assert found.outcome == NOT_REPLAYABLE and found.reason.startswith("Its forward call is wrong")
    wrong = run(tmp_path / "b", Fault("tanh_backward", 0, scaled(1.05)))
    assert asked(wrong, golden, "Torch.tanh.0.backward").outcome == PROVEN


def mixed(folder: Path, *, is_mixed: bool, rounding: str = EXACT) -> Path:
    """Two products, the second below autocast or not."""
    probe = Probe(folder)
    folder.mkdir()
    probe.close()
    torch.manual_seed(5)
    x, one, other = torch.randn(16, 24), *(torch.randn(24, 24, requires_grad=True) for _ in range(2))
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    with kernels(rounding):
        x = F.gelu(F.linear(x, one))
        with torch.autocast("cpu", HALF, enabled=is_mixed):
            x = F.linear(x, other)
        x.float().square().mean().backward()
    debugger.stop()
    debugger.step()
    probe.close()
    return probe.rank()


def test_a_call_that_alone_loses_precision_is_proven(tmp_path: Path) -> None:
    target, golden = mixed(tmp_path / "t", is_mixed=True), mixed(tmp_path / "g", is_mixed=False)
    (comparison,) = compare(target, golden)
    culprit = comparison.located.culprit
    assert culprit is not None and culprit.verdict.reason.startswith("precision is lost here")
    suspect = replaying._Calls(comparison).suspect(culprit)
    assert isinstance(suspect, Suspect) and not suspect.own_units
    found = asked(target, golden, "Functional.linear.1.forward", own_units=False)
    assert (found.outcome, found.at_fault) == (PROVEN, "target")
    assert "roundings of float32, the golden run's" in found.reason


def test_mixed_precision_in_both_runs_is_held_against_its_own_dtype(tmp_path: Path) -> None:
    runs = [
        mixed(tmp_path / name, is_mixed=True, rounding=rounding)
        for name, rounding in (("t", TOWARD_ZERO), ("g", EXACT))
    ]
    (comparison,) = compare(*runs)
    ours, theirs = (
        call_of(recording, "Functional.linear.1.forward")
        for recording in (comparison.target, comparison.golden)
    )
    assert not replaying._loses_precision(ours, theirs)
    for side in (FORWARD, BACKWARD):
        assert asked(*runs, f"Functional.linear.1.{side}").outcome == REFUTED


def test_a_dtype_argument_of_the_call_is_overridden(runs: Runs) -> None:
    """softmax(dtype=float32) of bfloat16: an error of 1e-6 shows only beside a reference in float64."""
    fault = Fault("_softmax", 0, scaled(1 + 2**-20))
    target, golden = runs(fault=fault, dtype=HALF), runs(dtype=HALF)
    found = asked(target, golden, "Functional.softmax.0.forward")
    assert found.golden_error is not None and found.golden_error < 1
    assert found.target_error is not None and 12 < found.target_error < 20
    assert "roundings of float32" in found.reason


# ---- refuted ----


@pytest.mark.parametrize("rounding", [EITHER_WAY, TOWARD_ZERO])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_no_sound_call_is_proven(runs: Runs, dtype: torch.dtype, rounding: str) -> None:
    target, golden = runs(dtype=dtype, rounding=rounding), runs(dtype=dtype)
    recording = store.read_one(target)
    calls = [
        name
        for name, record in recording.records.items()
        if not record.name.is_module
        and record.name.direction in (FORWARD, BACKWARD)
        and reason_to_skip(call_of(recording, name), Lists()) is None
    ]
    outcomes = {name: asked(target, golden, name).outcome for name in calls}
    assert len(outcomes) >= 14
    assert PROVEN not in outcomes.values()
    assert sum(outcome == REFUTED for outcome in outcomes.values()) >= len(outcomes) - 1, outcomes


def test_what_its_inputs_bring_is_not_its_own(runs: Runs) -> None:
    """The call behind a wrong one differs by 5 %, and is right."""
    found = asked(runs(fault=GELU), runs(), "Functional.linear.1.forward")
    assert found.outcome == REFUTED and not found.at_fault
    assert found.reason.endswith("What differs is rounding, or comes with its inputs.")


# ---- arguments that differ ----


def test_a_changed_eps_is_proven_by_the_golden_arguments(runs: Runs) -> None:
    target, golden = runs(eps=1e-3), runs()
    (comparison,) = compare(target, golden)
    culprit = comparison.located.culprit
    assert culprit is not None
    assert (str(culprit.place.record.name), culprit.place.slot) == (
        "Functional.layer_norm.0.forward", "input.4"
    )  # fmt: skip
    found = asked(target, golden, "Functional.layer_norm.0.forward", replaced="input.4")
    assert (found.outcome, found.at_fault) == (PROVEN, "target")
    assert found.reason.startswith(
        "With the golden run's arguments its inputs give the golden run's output.0"
    )
    assert found.target_error is not None and found.golden_error is not None
    assert found.target_error > 1000 and found.golden_error < 2
    assert found.loss_share is not None and found.loss_share != 0


def test_arguments_that_differ_are_never_refuted(runs: Runs) -> None:
    """Its own error is rounding in both runs, but another eps in its forward call is no agreement."""
    found = asked(runs(eps=1e-3), runs(), "Functional.layer_norm.0.backward")
    assert found.outcome == NOT_REPLAYABLE
    assert "its arguments do not agree: those of its forward call differ" in found.reason


def attention(folder: Path, **keywords: Any) -> Path:
    probe = Probe(folder)
    folder.mkdir()
    probe.close()
    torch.manual_seed(4)
    q, k, v = torch.randn(3, 2, 2, 6, 8).unbind()
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    F.scaled_dot_product_attention(q, k, v, **keywords)
    debugger.stop()
    debugger.step()
    probe.close()
    return probe.rank()


def test_a_mask_that_one_run_gives_is_proven(tmp_path: Path) -> None:
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    target, golden = attention(tmp_path / "t"), attention(tmp_path / "g", attn_mask=mask)
    name = "Functional.scaled_dot_product_attention.0.forward"
    found = asked(target, golden, name, replaced="input.attn_mask")
    assert (found.outcome, found.at_fault) == (PROVEN, "target"), found.reason
    other = attention(tmp_path / "o", attn_mask=mask.T)
    found = asked(other, golden, name, replaced="input.attn_mask")
    assert (found.outcome, found.at_fault) == (PROVEN, "target"), found.reason


def test_an_argument_that_explains_too_little_is_not_proven(runs: Runs, tmp_path: Path) -> None:
    """Besides another scale the values differ, so that the difference does not vanish."""
    target, golden = attention(tmp_path / "t", scale=0.31), attention(tmp_path / "g", scale=0.3)
    other = torch.load(
        golden / "dump_tensor_data" / "Functional.scaled_dot_product_attention.0.forward.input.2.pt"
    )
    path = target / "dump_tensor_data" / "Functional.scaled_dot_product_attention.0.forward.input.2.pt"
    torch.save(2 * other, path)
    output = target / "dump_tensor_data" / "Functional.scaled_dot_product_attention.0.forward.output.0.pt"
    torch.save(2 * torch.load(output), output)
    found = asked(target, golden, "Functional.scaled_dot_product_attention.0.forward", replaced="input.scale")
    assert found.outcome == NOT_REPLAYABLE
    assert "with the golden run's arguments its result still differs" in found.reason


# ---- not replayable ----


@pytest.mark.parametrize("name", ["Functional.dropout.0.forward", "Functional.dropout.0.backward"])
def test_random_calls_are_not_replayable(runs: Runs, name: str) -> None:
    target, golden = runs(p=0.3), runs(p=0.2)
    found = asked(target, golden, name)
    assert found == ReplayEvidence(NOT_REPLAYABLE, "It draws random numbers.")


def test_a_result_with_a_dtype_of_its_own_is_not_replayable(tmp_path: Path) -> None:
    def run(folder: Path) -> Path:
        probe = Probe(folder)
        folder.mkdir()
        probe.close()
        debugger = probe.debugger("L1", "tensor")
        debugger.start()
        torch.linspace(0, 1, 8).half()
        torch.linspace(0, 1, 8).to(torch.float16)
        debugger.stop()
        debugger.step()
        probe.close()
        return probe.rank()

    target, golden = run(tmp_path / "t"), run(tmp_path / "g")
    found = asked(target, golden, "Tensor.half.0.forward")
    assert found.outcome == NOT_REPLAYABLE and "has a dtype of its own" in found.reason
    assert asked(target, golden, "Tensor.to.0.forward").outcome == REFUTED


def test_contents_that_are_gone_make_a_call_not_replayable(runs: Runs, tmp_path: Path) -> None:
    target = recorded(tmp_path / "t", GOLDEN)
    (target / "dump_tensor_data" / "Functional.gelu.0.forward.input.0.pt").unlink()
    found = asked(target, runs(), "Functional.gelu.0.forward")
    assert found == ReplayEvidence(NOT_REPLAYABLE, "The contents of its tensors were not recorded.")
    found = asked(runs(), target, "Functional.gelu.0.forward")
    assert found.reason == "The golden run's call: The contents of its tensors were not recorded."


# ---- the loss ----


def test_the_share_of_the_loss_is_that_of_the_difference(runs: Runs) -> None:
    target, golden = runs(fault=Fault("gelu", 0, scaled(1.001))), runs()
    found = asked(target, golden, "Functional.gelu.0.forward")
    losses = [loss_of(store.read_one(path)) for path in (target, golden)]
    assert all(loss is not None and loss.name == "Functional.nll_loss.0.forward" for loss in losses)
    ours, theirs = (loss.value for loss in losses if loss is not None)
    assert found.loss_share == pytest.approx(ours - theirs, rel=0.05) and ours != theirs
    assert asked(target, golden, "Functional.gelu.0.backward").loss_share is None


def test_the_loss_of_two_backward_passes_is_not_known(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    probe.close()
    w = torch.ones(3, requires_grad=True)
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    first = torch.sum(w)
    (first + 1).backward()  # handed on with a gradient of 1: only the last counts
    debugger.stop()
    debugger.step()
    found = loss_of(store.read_one(probe.rank()))
    assert found is not None and (found.name, found.value) == ("Tensor.__add__.0.forward", 4.0)
    debugger.start()
    torch.sum(w).backward()
    torch.mean(w).backward()
    debugger.stop()
    debugger.step()
    probe.close()
    assert loss_of(store.read_one(probe.rank(1))) is None


# ---- the command ----


def command(target: Path, golden: Path, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    status = main(
        ["compare", str(target), str(golden), "-o", str(out), "--json", str(out / "s.json"), *options]
    )
    found: dict[str, Any] = json.loads((out / "s.json").read_text())
    return status, found


def test_the_command_shows_the_evidence(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--replay", "--fail-on", "divergence")
    status, found = command(runs(fault=GELU), runs(), tmp_path, *options)
    assert status == 1
    replay = found["culprit"]["replay"]
    assert (replay["outcome"], replay["at_fault"], replay["slot"]) == (PROVEN, "target", "output.0")
    assert replay["loss_share"] == pytest.approx(replay["loss_difference"], rel=0.2)
    assert found["suspects"][0]["replay"] == replay
    assert found["replay"] == {"proven": 1, "refuted": 0, "not_replayable": 0, "missing": None}
    assert found["recordings"][0]["replay"] == found["replay"]
    screen = capsys.readouterr().out
    assert (
        "  replay: proven: Called again in float64 on its own inputs, its output.0 is off: a scale" in screen
    )
    assert re.search(r"  its share of the loss difference: \S+ of \S+\n", screen)
    page = next(tmp_path.glob("*.html")).read_text()
    assert "<p>Replay: proven: Called again in float64 on its own inputs, its output.0 is off" in page


def test_without_the_option_nothing_is_said_of_it(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = command(runs(fault=GELU), runs(), tmp_path)
    assert found["culprit"]["replay"] is None and found["replay"] is None
    assert "replay:" not in capsys.readouterr().out


def missing(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: Path, golden: Path) -> str:
    """The one sentence on screen, which is that of the summary; the comparison itself is as without."""
    _, without = command(target, golden, tmp_path / "without")
    capsys.readouterr()
    status, found = command(target, golden, tmp_path / "with", "--replay")
    assert status == 0 and found["culprit"] == without["culprit"] is not None
    sentence: str = found["replay"]["missing"]
    assert capsys.readouterr().out.count(f"  replay: {sentence}\n") == 1
    return sentence


def test_recordings_without_tensors_are_told(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, full = runs("statistics"), runs(fault=GELU)
    rest = (
        "recorded without tensors, and the suspects are called again on their recorded inputs; record with "
        "task tensor."
    )
    assert missing(tmp_path, capsys, full, bare) == f"The golden run was {rest}"
    other = runs("statistics", fault=GELU)
    assert missing(tmp_path / "both", capsys, other, bare) == f"Both runs were {rest}"


def test_a_python_without_torch_is_told(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying.importlib.util, "find_spec", lambda _name: None)
    said = missing(tmp_path, capsys, runs(fault=GELU), runs())
    assert said == "PyTorch is not installed in this Python, and it is needed to call the suspects again."


def test_a_worker_that_cannot_start_is_told(runs: Runs) -> None:
    (comparison,) = compare(runs(fault=GELU), runs())
    found = replay_suspects(comparison, Worker([sys.executable, "-c", "raise SystemExit('no torch here')"]))
    assert found.replay is not None and found.located == comparison.located
    assert found.replay.missing.startswith(
        "The suspects were not called again: A worker process could not start."
    )


def test_no_suspect_needs_no_worker(runs: Runs) -> None:
    (comparison,) = compare(runs(), runs())
    found = replay_suspects(comparison, Worker(["no such program"]))
    assert found.replay is not None and not any(found.replay)


def test_kernels_have_no_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "compare.json"
    path.write_text(json.dumps({"npu_path": str(tmp_path), "bench_path": str(tmp_path), "rank_id": []}))
    assert main(["compare", "-i", str(path), "-o", str(tmp_path), "--replay"]) == 2
    assert "leave out --replay." in capsys.readouterr().err


# ---- the answer ----


def chain(*values: float) -> Any:
    return [
        call(f"Torch.op{n}.0.forward", tensor(value), inputs=(tensor(1),)) for n, value in enumerate(values)
    ]


def judged(tmp_path: Path, *outcomes: ReplayEvidence) -> Comparison:
    """A comparison with as many suspects as outcomes, in this order of execution."""
    faulty = [1.5] * len(outcomes)
    (comparison,) = compare(
        made(tmp_path / "t", *chain(*faulty)), made(tmp_path / "g", *chain(*[1] * len(faulty)))
    )
    assert len(comparison.located.origins) == len(outcomes)
    return comparison._replace(located=with_replay(comparison.located, dict(enumerate(outcomes))))


YES, NO = ReplayEvidence(PROVEN, "It is off."), ReplayEvidence(REFUTED, "It is right.")
OPEN = ReplayEvidence(NOT_REPLAYABLE, "It draws random numbers.")


def page_words(tmp_path: Path, comparison: Comparison) -> str:
    write_page(tmp_path / "page.html", comparison)
    section = re.search(
        r'<section class="answer".*?</section>', (tmp_path / "page.html").read_text(), re.DOTALL
    )
    assert section is not None
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", section[0]))


def test_proven_suspects_come_first_and_refuted_ones_last(tmp_path: Path) -> None:
    comparison = judged(tmp_path, NO, OPEN, YES, OPEN)
    found = summary([comparison.outcome()])
    order = [f"Torch.op{number}.0.forward" for number in (2, 1, 3, 0)]
    assert [each["name"] for each in found["suspects"]] == order
    assert [each["name"] for each in found["recordings"][0]["suspects"]] == order
    assert found["culprit"]["name"] == order[0]
    assert found["first_divergence"]["name"] == "Torch.op0.0.forward"
    screen = "\n".join(answer([comparison.outcome()]))
    assert screen.startswith("Culprit: Torch.op2.0.forward (step 0).")
    assert "\n  replay: proven: It is off.\n" in screen
    assert "\n  other suspects (proven ones first, refuted ones last):\n" in screen
    assert "\n      replay: refuted: It is right.\n" in screen
    words = page_words(tmp_path, comparison)
    assert "Culprit: Torch.op2.0.forward" in words and "replay: refuted: It is right." in words
    assert "Other suspects (proven ones first, refuted ones last)" in words


def test_a_refuted_culprit_is_not_named_first(tmp_path: Path) -> None:
    screen = "\n".join(answer([judged(tmp_path, NO, OPEN).outcome()]))
    assert screen.startswith("Culprit: Torch.op1.0.forward (step 0).")


def test_if_all_are_refuted_no_call_is_named_and_it_is_no_all_clear(tmp_path: Path) -> None:
    comparison = judged(tmp_path, NO, NO)
    screen, found = "\n".join(answer([comparison.outcome()])), summary([comparison.outcome()])
    assert screen.startswith("No suspect is at fault by itself: 2 suspects were called again in float64")
    assert "\n  suspects (proven ones first, refuted ones last):\n    Torch.op0.0.forward.output.0" in screen
    assert found["culprit"] is None and found["diverged"] is True and len(found["suspects"]) == 2
    words = page_words(tmp_path, comparison)
    assert words.startswith(" Refuted by replay No suspect is at fault by itself")


# ---- MindSpore ----


def test_calls_of_mindspore_are_refused_with_a_sentence(
    crossed: Crossed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = missing(tmp_path, capsys, crossed.run("msn_L1_tensor"), crossed.run("ms_L1_tensor"))
    assert said == "Only calls of PyTorch can be made again, and neither run was recorded with it."


def test_beside_mindspore_only_the_golden_call_is_made_again(crossed: Crossed, tmp_path: Path) -> None:
    _, found = command(crossed.run("ms_mix_tensor"), crossed.run("pt_mix_tensor"), tmp_path, "--replay")
    replay = found["culprit"]["replay"]
    assert found["culprit"]["golden_name"] == "Functional.layer_norm.0.forward"
    assert (replay["outcome"], replay["target_error"], replay["at_fault"]) == (NOT_REPLAYABLE, None, None)
    assert replay["reason"].startswith("The target was not recorded with PyTorch, so that only the golden")
    assert 0 < replay["golden_error"] < 2
