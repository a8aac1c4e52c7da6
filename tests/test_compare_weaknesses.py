"""What the existing tool does wrong while it compares, by the numbers of known weaknesses; ours does not."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest

from compare_case import NEW, OLD, OLDEST, Call, Golden, Goldens, goldens, recorded
from msprobe.cli.main import main
from msprobe.compare import compare
from msprobe.verdict.comparison import Comparison
from msprobe.verdict.levels import Verdict
from msprobe.verdict.locate import overall

__all__ = ["goldens"]

MODES = ("statistics", "md5", "tensor")
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def compared(tmp_path: Path, target: list[Call], golden: list[Call], mode: str, **options: Any) -> Comparison:
    ours = recorded(tmp_path / "target", *target, mode=mode)
    theirs = recorded(tmp_path / "golden", *golden, mode=mode)
    (comparison,) = compare(ours, theirs, **options)
    return comparison


def verdict(comparison: Comparison, name: str) -> Verdict:
    (found,) = (
        verdict
        for finding, verdict in zip(comparison.findings, comparison.verdicts, strict=True)
        if finding.pair.place.name == name
    )
    return found


def levels(comparison: Comparison) -> list[str]:
    return [verdict.level for verdict in comparison.verdicts]


def results(comparison: Comparison) -> list[str]:
    return [finding.result for finding in comparison.findings]


# --- 6: the first divergence ---

# A weight of blocks.1.ff1 is another; what the release names, and where the weight is first seen.
API, MODULE = "Functional.linear.6.forward.input.1", "Module.blocks.1.ff1.Linear.forward.0.parameters.weight"
PERTURBED = [
    (Golden(OLDEST, "L0_statistics"), "Module.conv.0.Conv1d.parameters_grad.bias", MODULE),
    (Golden(OLDEST, "L1_md5"), API, API),
    (Golden(OLDEST, "L1_tensor"), "Tensor.__getitem__.0.forward.output.0", API),
    (Golden(OLD, "L0_md5"), "Module.emb.Embedding.parameters_grad.weight", MODULE),
    (Golden(OLD, "L0_statistics"), "Module.conv.0.Conv1d.parameters_grad.bias", MODULE),
    (Golden(OLD, "L1_md5"), API, API),
    (Golden(OLD, "L1_statistics"), "Functional.batch_norm.0.forward.output.0", API),
    (Golden(OLD, "L1_tensor"), "Tensor.__add__.6.backward.output.1", API),
    (Golden(OLD, "mix_statistics"), "Module.conv.0.Conv1d.parameters_grad.bias", API),
    (Golden(NEW, "L0_tensor"), None, MODULE),
    (Golden(NEW, "L1_statistics"), "Functional.cross_entropy.0.forward.output.0", API),
    (Golden(NEW, "L1_tensor"), "Tensor.__add__.6.backward.output.0", API),
    (Golden(NEW, "mix_md5"), API, API),
]


def named_by_the_release(goldens: Goldens, golden: Golden) -> str | None:
    """The suspect of its advice; of 26.2.0, which gives none, the first row that is not a pass."""
    if golden.release != NEW:
        return goldens.advice(golden).splitlines()[1].removeprefix("Suspect Nodes: ")
    return next((row["NPU Name"] for row in goldens.table(golden) if row["Result"] != "pass"), None)


@pytest.mark.parametrize(
    ("golden", "theirs", "ours"), PERTURBED, ids=[str(golden) for golden, *_ in PERTURBED]
)
def test_6_the_perturbed_weight_is_named(
    goldens: Goldens, golden: Golden, theirs: str | None, ours: str
) -> None:
    assert named_by_the_release(goldens, golden) == theirs
    located = goldens.compared(golden).located
    assert located.culprit is not None and located.first is not None
    assert (located.culprit.place.name, located.culprit.verdict.level) == (ours, "entered")
    assert located.first.place.name == ours


@pytest.mark.parametrize(
    "golden", [Golden(OLD, "ddp_mix_statistics", 1), Golden(NEW, "ddp_mix_tensor", 1)], ids=str
)
def test_6_the_perturbed_weight_of_one_rank_is_named(goldens: Goldens, golden: Golden) -> None:
    """Of rank 1 Linear.2 has another weight; 8.3.3 names a parameters_grad of Linear.0, 26.2.0 names pow."""
    found = [comparison.located for comparison in goldens.all_ranks(golden)]
    culprit = overall(found)
    assert culprit is not None
    assert (culprit.rank, culprit.place.name) == (1, "Functional.linear.1.forward.input.1")
    assert found[0].culprit is None


@pytest.mark.parametrize(
    ("release", "mode"),
    [(OLD, "tensor"), (OLD, "statistics"), (OLD, "md5"), (NEW, "tensor"), (NEW, "statistics")],
)
def test_6_rounding_of_another_machine_is_no_culprit(goldens: Goldens, release: str, mode: str) -> None:
    """The same net twice; conv1d rounds otherwise on the second machine, and a gradient is nearly zero."""
    here, _ = goldens.runs(Golden(release, f"unmatched_{mode}"))
    _, there = goldens.runs(Golden(release, f"L1_{mode}"))
    (comparison,) = compare(here, there)
    assert "rounding" in levels(comparison)
    assert [(origin.place.name, origin.verdict) for origin in comparison.located.origins] == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("release", [OLD, NEW])
def test_6_a_call_that_the_golden_run_lacks_is_named(goldens: Goldens, release: str, mode: str) -> None:
    """The golden run has no torch.sigmoid, and the next call that was recorded gets another input."""
    culprit = goldens.compared(Golden(release, f"unmatched_{mode}")).located.culprit
    assert culprit is not None and culprit.place.name == "Torch.sigmoid.0.forward.output.0"
    assert "the target computes this with `Torch.sigmoid.0.forward`" in culprit.verdict.reason
    assert culprit.evidence.unchecked == {"the golden run has no such call": 1}


@pytest.mark.parametrize("mode", MODES)
def test_6_a_mean_near_zero_is_no_alarm(tmp_path: Path, mode: str) -> None:
    """8.3.3 suspects a normalised tensor because its mean, 1e-8 of its size, is another by rounding."""
    values = np.array([[1.0, -1.0, 2.0, -2.0, 3.0, -3.0]], np.float32)
    moved = values.copy()
    moved[0, 0] = np.nextafter(values[0, 0], np.float32(2))
    comparison = compared(
        tmp_path,
        [Call("Functional.batch_norm.0.forward", [X], [moved])],
        [Call("Functional.batch_norm.0.forward", [X], [values])],
        mode,
    )
    assert levels(comparison) == ["same", "rounding"]
    assert (comparison.located.first, comparison.located.culprit) == (None, None)


# --- 7: calls that only one run has ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("side", ["target", "golden"])
def test_7_what_only_one_run_has_is_shown_and_no_pass(tmp_path: Path, mode: str, side: str) -> None:
    calls = [Call("Torch.a.0.forward", [X], [X]), Call("Torch.extra.0.forward", [X], [X])]
    longer, shorter = (calls, calls[:1]) if side == "target" else (calls[:1], calls)
    comparison = compared(tmp_path, longer, shorter, mode)
    extra = [f for f in comparison.findings if f.pair.place.name.startswith("Torch.extra")]
    whose = "golden run" if side == "target" else "target"
    assert [(f.result, f.message) for f in extra] == [("Unmatched", f"the {whose} has no such call.")] * 2
    assert levels(comparison) == ["same", "same", "not judged", "not judged"]


# --- 8: NaN, scalars, tensors of one number ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["target", "golden"])
def test_8_nan_or_infinity_against_a_number_is_a_difference(
    tmp_path: Path, mode: str, value: float, side: str
) -> None:
    broken = X.copy()
    broken[1, 2] = value
    ours, theirs = (broken, X) if side == "target" else (X, broken)
    comparison = compared(
        tmp_path,
        [Call("Torch.log.0.forward", [X], [ours])],
        [Call("Torch.log.0.forward", [X], [theirs])],
        mode,
    )
    assert levels(comparison) == ["same", "originated"]
    culprit = comparison.located.culprit
    assert culprit is not None and culprit.place.name == "Torch.log.0.forward.output.0"
    made = comparison.located.not_finite
    assert (made is not None) == (side == "target" and np.isnan(value))


@pytest.mark.parametrize("mode", MODES)
def test_8_nan_at_the_same_places_is_none(tmp_path: Path, mode: str) -> None:
    broken = X.copy()
    broken[1, 2] = np.nan
    calls = [Call("Torch.log.0.forward", [X], [broken])]
    comparison = compared(tmp_path, calls, calls, mode)
    assert levels(comparison) == ["same", "same"]
    assert comparison.located.culprit is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ours", "theirs"), [(0.2, 0.1), (0.1, 0.2), (3, 2), (True, False), ("mean", "sum"), (2j, 3j)]
)
def test_8_another_argument_is_a_difference(tmp_path: Path, mode: str, ours: Any, theirs: Any) -> None:
    comparison = compared(
        tmp_path,
        [Call("Functional.dropout.0.forward", [X, ours], [2 * X])],
        [Call("Functional.dropout.0.forward", [X, theirs], [X])],
        mode,
    )
    culprit = comparison.located.culprit
    assert culprit is not None
    assert culprit.place.name == "Functional.dropout.0.forward.input.1"
    assert culprit.verdict.level == "entered"


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("mode", MODES)
def test_8_one_number_is_judged(tmp_path: Path, mode: str, shape: tuple[int, ...]) -> None:
    """The loss; 8.3.3 says None of it, however far it is off."""
    ours, theirs = (np.full(shape, value, np.float32) for value in (1.5, 1.0))
    comparison = compared(
        tmp_path,
        [Call("Functional.cross_entropy.0.forward", [X], [ours])],
        [Call("Functional.cross_entropy.0.forward", [X], [theirs])],
        mode,
    )
    assert levels(comparison) == ["same", "originated"]
    error = comparison.verdicts[1].error
    assert error == pytest.approx(1 / 3)
    if mode == "tensor":
        assert comparison.findings[1].result == "None"


@pytest.mark.parametrize(
    "golden", [Golden(OLD, "L1_tensor"), Golden(NEW, "L1_tensor"), Golden(OLD, "L1_statistics")], ids=str
)
def test_8_the_loss_of_a_real_run_is_judged(goldens: Goldens, golden: Golden) -> None:
    found = verdict(goldens.compared(golden), "Functional.cross_entropy.0.forward.output.0")
    assert found.level == "passed on"
    assert found.error == pytest.approx(4.1195e-05, rel=1e-3)


# --- 9: an attention mask ---


@pytest.mark.parametrize(
    "golden", [golden for golden, *_ in PERTURBED if golden.name.startswith(("L1", "mix"))], ids=str
)
def test_9_a_mask_of_minus_infinity_is_no_difference(goldens: Goldens, golden: Golden) -> None:
    comparison = goldens.compared(golden)
    for block in (0, 1):
        masked = f"Tensor.masked_fill.{block}.forward"
        names = [f"{masked}.input.2", f"{masked}.output.0", f"Functional.softmax.{block}.forward.input.0"]
        assert [verdict(comparison, name).level for name in names] == ["same"] * 3
    assert comparison.located.not_finite is None


# --- 10: fuzzy match of statistics ---


@pytest.mark.parametrize(
    "golden",
    [Golden(OLD, "L1_statistics"), Golden(NEW, "L1_statistics"), Golden(OLD, "mix_statistics")],
    ids=str,
)
def test_10_fuzzy_match_of_statistics(goldens: Goldens, golden: Golden) -> None:
    """8.3.3 and 26.2.0 end with a ValueError of pandas."""
    (fuzzy,) = compare(*goldens.runs(golden), fuzzy=True)
    exact = goldens.compared(golden)
    assert [f.pair.place.name for f in fuzzy.findings] == [f.pair.place.name for f in exact.findings]
    assert results(fuzzy) == results(exact)
    assert fuzzy.verdicts == exact.verdicts


@pytest.mark.parametrize("mode", MODES)
def test_10_fuzzy_match_where_the_counts_differ(tmp_path: Path, mode: str) -> None:
    comparison = compared(
        tmp_path,
        [Call("Torch.a.0.forward", [X[:2]], [X[:2]]), Call("Torch.a.1.forward", [X], [2 * X])],
        [Call("Torch.a.0.forward", [X], [X])],
        mode,
        fuzzy=True,
    )
    name = "Torch.a.1.forward.output.0"
    (finding,) = (f for f in comparison.findings if f.pair.place.name == name)
    assert finding.pair.golden is not None and finding.pair.golden.name == "Torch.a.0.forward.output.0"
    assert "Fuzzy matching data, the comparison accuracy may be affected." in finding.message
    assert verdict(comparison, name).level == "originated"


# --- 12: texts that a spreadsheet would compute ---

SIGNS = ["-", "=", "+", "@", "%"]


@pytest.mark.parametrize("kind", ["xlsx", "csv"])
@pytest.mark.parametrize("sign", SIGNS)
def test_12_names_and_texts_may_begin_with_any_sign(tmp_path: Path, sign: str, kind: str) -> None:
    text = f"{sign}cmd|'/C calc'!A0"
    name = f"{sign}mine.f.0.forward"
    calls = [Call(name, [X, text], [X])]
    runs = [str(recorded(tmp_path / side, *calls)) for side in ("target", "golden")]
    out = tmp_path / "out"
    assert main(["compare", *runs, "-o", str(out), *(["--csv"] if kind == "csv" else [])]) == 0
    (result,) = out.glob(f"compare_result_*.{kind}")
    if kind == "csv":
        with result.open(newline="") as stream:
            shown = list(csv.DictReader(stream))
        guard = "" if sign == "%" else "'"
        assert shown[0]["NPU Name"] == f"{guard}{name}.input.0"
        assert shown[1]["NPU max"] == f"{guard}{text}"
        return
    sheet = openpyxl.load_workbook(result).active
    assert sheet is not None
    header, *body = sheet.iter_rows()
    column = [cell.value for cell in header].index("NPU max")
    cells = [body[0][0], body[1][column]]
    assert [(cell.value, cell.data_type) for cell in cells] == [(f"{name}.input.0", "s"), (text, "s")]


# --- 15, 16: what may be given, and what is said ---

STEPS_OF = {OLD: ("step0", "rank"), NEW: ("step0", "proc*")}


@pytest.mark.parametrize("depth", [0, 1, 2, 3], ids=["run", "step", "rank", "file"])
@pytest.mark.parametrize("release", [OLD, NEW])
def test_15_16_any_folder_of_a_run_is_accepted(goldens: Goldens, release: str, depth: int) -> None:
    """8.3.3 ends without a text, 26.2.0 with `Expected exactly one`."""
    golden = Golden(release, "L1_statistics")
    paths = []
    for run in goldens.runs(golden):
        (path,) = run.glob("/".join([*STEPS_OF[release], "dump.json"][:depth])) if depth else [run]
        paths.append(path)
    (comparison,) = compare(*paths)
    assert comparison.located == goldens.compared(golden).located
    assert results(comparison) == results(goldens.compared(golden))


def test_15_16_folders_of_different_depth_are_accepted(goldens: Goldens) -> None:
    old, new = Golden(OLD, "L1_statistics"), Golden(NEW, "L1_statistics")
    (target, _), (_, golden) = goldens.runs(old), goldens.runs(new)
    (comparison,) = compare(target / "step0", golden)
    culprit = comparison.located.culprit
    assert culprit is not None and culprit.place.name == API


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_16_no_rank_in_common_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ranks in (("target", (0, 1)), ("golden", (2, 3))):
        for rank in ranks:
            recorded(tmp_path / name, Call("Torch.a.0.forward", [X], [X]), rank=rank)
    words = ["compare", str(tmp_path / "target"), str(tmp_path / "golden"), "-o", str(tmp_path / "out")]
    code, out, err = said(words, capsys)
    assert (code, out) == (2, "")
    assert err == (
        "msprobe: The two runs have no step and rank in common: the target has step 0 rank 0, step 0 rank 1, "
        "the golden run has step 0 rank 2, step 0 rank 3. Give two folders of one rank, or two dump.json "
        "files, to compare these.\n"
    )


def test_16_ranks_are_matched_by_number_not_by_order(tmp_path: Path) -> None:
    for name, ranks in (("target", (0, 1, 2)), ("golden", (1, 2))):
        for rank in ranks:
            recorded(tmp_path / name, Call("Torch.a.0.forward", [X], [X + rank]), rank=rank)
    comparisons = compare(tmp_path / "target", tmp_path / "golden")
    assert [(c.target.rank, c.golden.rank, levels(c)) for c in comparisons] == [
        (1, 1, ["same", "same"]),
        (2, 2, ["same", "same"]),
    ]


def test_15_16_nothing_is_said_but_the_result(
    goldens: Goldens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No banner, no error about an environment that comparing does not need."""
    words = ["compare", *map(str, goldens.runs(Golden(NEW, "L1_statistics"))), "-o", str(tmp_path / "out")]
    code, out, err = said(words, capsys)
    assert (code, err) == (0, "")
    assert not re.search(r"CANN|\[ERROR\]|run as root", out)
    assert "Functional.linear.6.forward" in out


# --- beyond the list: checksums see what statistics cannot ---


def test_equal_statistics_do_not_hide_another_checksum(tmp_path: Path) -> None:
    """The numbers are permuted: max, min, mean and norm are the same, and how far apart is not known."""
    numbers = np.array([1, 2, 3, 4], np.float32)
    comparison = compared(
        tmp_path,
        [Call("Torch.f.0.forward", [X], [numbers[::-1].copy()])],
        [Call("Torch.f.0.forward", [X], [numbers])],
        "md5",
    )
    assert results(comparison) == ["pass", "Different"]
    assert comparison.verdicts[1].level != "same"


@pytest.mark.parametrize("mode", MODES)
def test_whole_numbers_that_are_equal_as_floats_differ(tmp_path: Path, mode: str) -> None:
    large = np.full((2, 3), 2**60)
    comparison = compared(
        tmp_path,
        [Call("Torch.mul.0.forward", [large], [large + 1])],
        [Call("Torch.mul.0.forward", [large], [large + 2])],
        mode,
    )
    assert levels(comparison) == ["same", "originated"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_numbers_whose_squares_no_float_holds_are_judged_as_others(
    tmp_path: Path, mode: str, scale: float
) -> None:
    x = scale * X.astype(np.float64)
    calls = [[Call("Torch.mul.0.forward", [x], [share * x])] for share in (1 + 2**-52, 1 + 2**-40, 1)]
    little = compared(tmp_path / "little", calls[0], calls[2], mode)
    much = compared(tmp_path / "much", calls[1], calls[2], mode)
    assert (levels(little), levels(much)) == (["same", "rounding"], ["same", "originated"])
    assert verdict(much, "Torch.mul.0.forward.output.0").reason.startswith("off by 9.1e-13 of its size")
