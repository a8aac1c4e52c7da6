"""run_ut's verdict: what rounding explains passes, and what it does not explain fails."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.cli.main import main
from msprobe.metrics.errors import PairError, measure_error
from msprobe.metrics.rounding import PRECISIONS, Evidence, element_bound, judge_rounding
from msprobe.precheck.calls import Lists, calls_of, reason_to_skip
from msprobe.precheck.check import read_recording
from msprobe.precheck.shared_errors import scale_beside
from msprobe.precheck.work import Answer, Setup, check
from msprobe.pytorch.worker import CheckedTorch
from torch_fixtures import Probe, probe, record

__all__ = ["probe"]

RANDOM = np.random.default_rng(3)


# ---- by numbers alone ----


def error_of(result: np.ndarray, reference: np.ndarray, dtype: str = "float32") -> PairError:
    rms = float(np.sqrt((reference**2).mean()))
    return measure_error(
        result, reference, bound=element_bound(dtype, rms), overflow=PRECISIONS[dtype].largest
    )


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    return torch.from_numpy(values).to(getattr(torch, dtype)).double().numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.02, "error"), (0.98, "error")])
def test_scaled_numbers(dtype: str, factor: float, verdict: str) -> None:
    exact = RANDOM.normal(size=(40, 30))
    judged = judge_rounding(error_of(rounded(exact * factor, dtype), exact, dtype), dtype, 1)
    assert judged.verdict == verdict
    if verdict == "error":
        word = "large" if factor > 1 else "small"
        assert f"2 % too {word} as a whole; rounding in {dtype} explains at most" in judged.reason


@pytest.mark.parametrize(("size", "verdict"), [(0.005, "error"), (0.003, "pass")])
def test_half_a_percent_in_bfloat16_is_a_fault_and_the_unit_is_not(size: float, verdict: str) -> None:
    exact = RANDOM.normal(size=(64, 256))
    judged = judge_rounding(
        error_of(rounded(exact * (1 + size), "bfloat16"), exact, "bfloat16"), "bfloat16", 1
    )
    assert judged.verdict == verdict


def test_numbers_rounded_toward_zero_are_sound() -> None:
    exact = RANDOM.normal(size=(64, 256)).astype(np.float32)
    cut = (exact.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert (
        judge_rounding(error_of(cut, exact.astype(np.float64), "bfloat16"), "bfloat16", 1).verdict == "pass"
    )


def test_one_number_of_many() -> None:
    """It adds nothing to the norm that rounding in bfloat16 does not, but is off by more than it can be."""
    exact = RANDOM.normal(size=(1000, 100))
    result = rounded(exact, "bfloat16")
    result[17, 3] += 0.3
    judged = judge_rounding(error_of(result, exact, "bfloat16"), "bfloat16", 1)
    assert judged.verdict == "error"
    assert judged.reason.startswith(
        "One number is off by more than rounding in bfloat16 explains, most at [17, 3]"
    )


def test_nan_and_zeros() -> None:
    zeros = np.zeros(20)
    assert judge_rounding(error_of(zeros, zeros), "float32", 1).verdict == "pass"
    judged = judge_rounding(error_of(zeros + 1, zeros), "float32", 1)
    assert (judged.verdict, judged.tolerance) == ("error", None)
    judged = judge_rounding(error_of(np.array([1.0, np.nan]), np.array([1.0, 2.0])), "float32", 1)
    assert judged.reason == "One number is NaN or infinite on one side only, or not the same."


def test_subnormal_numbers_have_steps() -> None:
    """1e-6 in float16 is a multiple of 6e-8."""
    exact = np.full((30, 30), 1e-6)
    result = rounded(exact, "float16")
    assert abs(result[0, 0] / 1e-6 - 1) > 0.005
    assert judge_rounding(error_of(result, exact, "float16"), "float16", 1).verdict == "pass"


def test_evidence_excuses_what_it_shows_and_no_more() -> None:
    exact = RANDOM.normal(size=100)
    noise = RANDOM.normal(size=100)
    off = error_of(exact + 3e-6 * noise, exact)
    assert judge_rounding(off, "float32", 400).verdict == "error"
    alike = error_of(exact - 2e-6 * noise, exact)
    assert judge_rounding(off, "float32", 400, Evidence(sample=alike)).verdict == "pass"
    better = error_of(exact - 1e-7 * noise, exact)
    assert judge_rounding(off, "float32", 400, Evidence(sample=better)).verdict == "error"
    worse = error_of(exact + 0.5 * noise, exact)  # the CPU has the same fault: no excuse
    assert judge_rounding(worse, "float32", 400, Evidence(sample=worse)).verdict == "error"
    judged = judge_rounding(worse, "float32", 400, Evidence(worse, worse, 2.0**-24))
    assert judged.verdict == "cannot tell"
    assert judged.reason.endswith("so that rounding decides it.")


def test_without_a_sample_a_sum_may_be_kept_in_the_dtype_itself() -> None:
    """As the gradient of layer_norm's weight is on the CPU, where its kernels themselves are checked."""
    grown = torch.zeros(64, dtype=torch.bfloat16)
    terms = torch.from_numpy(RANDOM.normal(size=(1024, 64))).bfloat16()
    for term in terms:
        grown += term
    exact = terms.double().sum(0).numpy()
    error = error_of(grown.double().numpy(), exact, "bfloat16")
    assert judge_rounding(error, "bfloat16", 1024).verdict == "error"
    assert judge_rounding(error, "bfloat16", 1024, Evidence()).verdict != "error"
    wrong = error_of(2 * exact, exact, "bfloat16")
    assert judge_rounding(wrong, "bfloat16", 1024, Evidence()).verdict == "error"


def sums_kept_in_bfloat16(noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """48 exact numbers, the same with errors of 1 %, and with errors of which a part is the same."""
    random = np.random.default_rng(seed)
    exact = random.normal(size=48)
    shared, own = 0.01 * random.normal(size=(2, 48))
    kept = math.sqrt(1 - noise * noise)
    return (
        exact,
        rounded(exact + shared, "bfloat16"),
        rounded(exact + kept * shared + noise * own, "bfloat16"),
    )


@pytest.mark.parametrize("seed", range(20))
def test_errors_that_the_cpu_makes_too_hide_no_factor(seed: int) -> None:
    exact, sample, result = sums_kept_in_bfloat16(0.0, seed)
    sound, scaled = (
        scale_beside(sample, side, exact) for side in (result, rounded(1.02 * result, "bfloat16"))
    )
    assert sound is not None
    assert sound.value == pytest.approx(0, abs=1e-9)
    assert scaled is not None
    assert scaled.value == pytest.approx(0.02, abs=0.002)
    assert abs(scaled.value) > max(PRECISIONS["bfloat16"].unit, 12 * scaled.deviation)


@pytest.mark.parametrize("noise", [0.5, 0.9, 1.0])
def test_errors_that_are_not_shared_are_not_taken_out(noise: float) -> None:
    """A device that adds up in another order; one that does not round there at all has no part in them."""
    for seed in range(100):
        exact, sample, result = sums_kept_in_bfloat16(noise, seed)
        found = scale_beside(sample, result, exact)
        assert found is None or abs(found.value) <= max(PRECISIONS["bfloat16"].unit, 12 * found.deviation)
        assert noise < 1 or found is None
        assert scale_beside(sample, rounded(exact, "bfloat16"), exact) is None


def test_without_errors_of_the_cpu_nothing_is_shared() -> None:
    exact, _, result = sums_kept_in_bfloat16(0.0, 0)
    assert scale_beside(exact, result, exact) is None
    assert scale_beside(1.01 * exact, result, exact) is None  # no telling the factor from the share
    assert scale_beside(result, result, np.zeros(48)) is None
    assert scale_beside(result[:7], result[:7], exact[:7]) is None
    assert scale_beside(result[:40], result, exact) is None
    assert scale_beside(result + 0j, result + 0j, exact + 0j) is None


def test_numbers_that_are_not_finite_are_left_out_of_shared_errors() -> None:
    exact, sample, result = sums_kept_in_bfloat16(0.0, 1)
    result = 1.02 * result
    without = scale_beside(sample[1:], result[1:], exact[1:])
    for side in (exact, sample, result):
        kept = side[0]
        side[0] = math.inf
        found = scale_beside(sample, result, exact)
        side[0] = kept
        assert found is not None
        assert without is not None
        assert found.value == pytest.approx(without.value)


# ---- whole nets ----


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 48)
        self.norms = nn.ModuleList([nn.LayerNorm(48), nn.RMSNorm(48)])
        self.qkv, self.out = nn.Linear(48, 144), nn.Linear(48, 48)
        self.up, self.down, self.head = nn.Linear(48, 96), nn.Linear(96, 48), nn.Linear(48, 50, bias=False)

    def loss(self) -> Tensor:
        ids = torch.randint(0, 50, (4, 17), generator=torch.Generator().manual_seed(3))
        x = self.words(ids[:, :-1])
        parts = self.qkv(self.norms[0](x)).reshape(4, 16, 3, 4, 12).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        scores = q @ k.transpose(-1, -2) / 12**0.5
        mask = torch.triu(torch.ones(16, 16, dtype=torch.bool), 1)
        weights = F.softmax(scores.masked_fill(mask, torch.finfo(x.dtype).min), -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(4, 16, 48))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return F.cross_entropy(self.head(x).reshape(-1, 50), ids[:, 1:].reshape(-1))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second, self.group = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32)
        self.point, self.head = nn.Conv2d(32, 32, 1), nn.Linear(32, 10)

    def loss(self) -> Tensor:
        random = torch.Generator().manual_seed(3)
        x = torch.randn(4, 3, 16, 16, generator=random).to(self.first.weight.dtype)
        x = F.relu(self.norm(self.first(x)))
        x = F.leaky_relu(self.group(self.second(x)))
        x = torch.sigmoid(self.point(x)) * x
        x = F.max_pool2d(x, 2).flatten(2).mean(-1)
        return F.cross_entropy(self.head(x), torch.randint(0, 10, (4,), generator=random))


def judged(folder: Path) -> dict[str, Answer]:
    recording = read_recording(folder)
    replay, setup = CheckedTorch(), Setup(recording, "cpu")
    return {
        call.text: check(call, setup, replay)
        for call in calls_of(recording)
        if reason_to_skip(call, Lists()) is None
    }


def verdicts(found: dict[str, Answer]) -> dict[str, str]:
    return {
        result.place: result.judged.verdict if result.judged is not None else "SKIP"
        for answer in found.values()
        for result in answer.results
        if result.accuracy is not None and result.accuracy.is_float
    }


def scale(folder: Path, place: str, factor: float) -> bool:
    """As a device would have recorded it that computes this wrong."""
    path = folder / "dump_tensor_data" / f"{place}.pt"
    wrong = (torch.load(path).double() * factor).to(torch.load(path).dtype)
    path.unlink()  # one file may stand under several names
    torch.save(wrong, path)
    return bool(wrong.any())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("net", [Transformer, ConvNet])
def test_every_tensor_scaled_by_two_percent_is_reported(
    probe: Probe, net: Callable[[], nn.Module], dtype: str
) -> None:
    torch.manual_seed(4)
    model = net().to(getattr(torch, dtype))
    debugger = probe.debugger(task="tensor")
    debugger.start(model)
    model.loss().backward()
    debugger.stop()
    debugger.step()
    sound = verdicts(judged(probe.rank()))
    assert [place for place, verdict in sound.items() if verdict not in ("pass", "cannot tell")] == []
    told = [place for place, verdict in sound.items() if verdict == "cannot tell"]
    assert len(told) < 0.05 * len(sound)
    faulty = {place for place in sound if scale(probe.rank(), place, 1.02)}
    found = verdicts(judged(probe.rank()))
    missed = [place for place in faulty if found[place] != "error"]
    assert len(missed) <= 0.05 * len(faulty), missed
    assert {place.split(".")[3] for place in faulty} == {"forward", "backward"}


@pytest.mark.parametrize("factor", [1.02, 0.98])
def test_scaled_gradients_of_layer_norm_are_reported_in_bfloat16(probe: Probe, factor: float) -> None:
    """The CPU adds them up in bfloat16, so that 48 sums over 56 rows are off by about 1 % each."""
    torch.manual_seed(5)
    net = nn.Sequential(*(nn.LayerNorm(48) for _ in range(6))).bfloat16()
    x, weights = torch.randn(2, 4, 14, 48).bfloat16()
    record(probe, lambda: (net(x) * weights).sum().backward(), task="tensor")
    sound = verdicts(judged(probe.rank()))
    gradients = [place for place in sound if place.endswith(("backward.output.1", "backward.output.2"))]
    assert len(gradients) == 12
    assert set(sound.values()) == {"pass"}
    for place in gradients:
        assert scale(probe.rank(), place, factor)
    found = judged(probe.rank())
    assert [place for place in gradients if verdicts(found)[place] != "error"] == []
    reasons = [
        result.judged.reason
        for answer in found.values()
        for result in answer.results
        if result.judged is not None
    ]
    size = "large" if factor > 1 else "small"
    assert any(each.startswith("Beside the same call on the CPU: It is 2") for each in reasons)
    assert any(f"too {size} as a whole; rounding in bfloat16 explains at most" in each for each in reasons)


def test_a_wrong_gradient_of_gelu_fails_the_command(
    probe: Probe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.5 times too large, and below 0.001, which the specified rule passes."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    record(probe, lambda: F.gelu(x).mean().backward(), task="tensor")
    words = ["-f", "pytorch", "run_ut", "-api_info", str(probe.rank()), "-o", str(tmp_path)]
    assert main(words) == 0
    scale(probe.rank(), "Functional.gelu.0.backward.output.0", 1.5)
    capsys.readouterr()
    assert main(words) == 1
    told = capsys.readouterr().out
    assert "error: Functional.gelu.0.backward.output.0: It is 50 % too large as a whole; rounding in" in told
    assert "The specified rule differs" in told and "does not fail them: Functional.gelu.0." in told
    table = max(tmp_path.glob("accuracy_checking_result_*.csv"))
    rows = {row["API name"]: row for row in csv.DictReader(table.open(encoding="utf-8-sig"))}
    gelu = rows["Functional.gelu.0"]
    assert (gelu["Backward Test Success"], gelu["Backward Verdict"]) == ("pass", "error")


# ---- dropout ----


def dropped(name: str = "dropout") -> tuple[Callable[[], None], Tensor]:
    x = torch.randn(8, 32, 4, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def work() -> None:
        torch.manual_seed(5)
        getattr(F, name)(x, 0.25).sum().backward()

    return work, x


@pytest.mark.parametrize("name", ["dropout", "dropout2d"])
def test_a_dropout_is_judged_by_what_it_keeps(probe: Probe, name: str) -> None:
    record(probe, dropped(name)[0], task="tensor")
    call, folder = f"Functional.{name}.0", probe.rank()
    sound = judged(folder)[call].summed
    assert (sound.forward_verdict, sound.backward_verdict, sound.reason) == ("pass", "pass", "")
    scale(folder, f"{call}.forward.output.0", 1.5)
    scale(folder, f"{call}.backward.output.0", 1.02)
    wrong = judged(folder)[call].summed
    assert (wrong.forward_verdict, wrong.backward_verdict) == ("error", "error")
    assert "50 % too large" in wrong.reason and "2 % too large" in wrong.reason


def test_a_dropout_is_judged_by_how_much_it_drops(probe: Probe) -> None:
    work, x = dropped()
    record(probe, work, task="tensor")
    path = probe.rank() / "dump_tensor_data" / "Functional.dropout.0.forward.output.0.pt"
    path.unlink()
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) > 0.4
    torch.save(x.detach() / 0.75 * kept, path)
    answer = judged(probe.rank())["Functional.dropout.0"]
    assert answer.summed.forward_verdict == "error"
    assert "% of the numbers, and p is 0.25." in answer.summed.reason


def test_a_dropout_that_was_switched_off_passes(probe: Probe) -> None:
    record(probe, dropped()[0], task="tensor", rm_dropout=True)
    assert judged(probe.rank())["Functional.dropout.0"].summed.forward_verdict == "pass"


# ---- what a recording holds ----


def test_a_tensor_that_is_given_twice_has_one_gradient(probe: Probe) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
    record(probe, lambda: torch.mul(x, x).sum().backward(), task="tensor")
    answer = judged(probe.rank())["Torch.mul.0"]
    assert (answer.summed.forward_verdict, answer.summed.backward_verdict) == ("pass", "pass")


def test_an_eps_that_follows_from_the_dtype_is_the_same_in_the_reference(probe: Probe) -> None:
    x = (torch.randn(8, 16, generator=torch.Generator().manual_seed(1)) * 1e-3).requires_grad_()
    record(probe, lambda: F.rms_norm(x, (16,)).sum().backward(), task="tensor")
    answer = judged(probe.rank())["Functional.rms_norm.0"]
    assert (answer.summed.forward_verdict, answer.summed.backward_verdict) == ("pass", "pass")


# ---- api_precision_compare ----


def test_a_convolution_in_bfloat16_passes_beside_itself(probe: Probe, tmp_path: Path) -> None:
    """Its standard asks for a relative error below 0.001, and bfloat16 rounds to 0.004."""
    random = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(*shape, generator=random).bfloat16() for shape in ((2, 4, 8, 8), (8, 4, 3, 3)))
    record(probe, lambda: F.conv2d(x, weight), task="tensor")
    assert main(["-f", "pytorch", "run_ut", "-api_info", str(probe.rank()), "-o", str(tmp_path)]) == 0
    (details,) = tmp_path.glob("accuracy_checking_details_*.csv")
    words = ["-f", "pytorch", "api_precision_compare", "-npu", str(details), "-gpu", str(details)]
    assert main([*words, "-o", str(tmp_path)]) == 0
    (table,) = tmp_path.glob("api_precision_compare_details_*.csv")
    (row,) = csv.DictReader(table.open(encoding="utf-8-sig"))
    assert (row["比对结果"], row["Verdict"]) == ("error", "pass")
