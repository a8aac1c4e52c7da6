"""The answer in words, on screen and on the page: what is said, and what is never said."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from made_runs import call, made, made_steps, tensor
from msprobe.cli.main import main
from msprobe.compare import compare
from msprobe.record import Leaf, Record
from msprobe.report.answer import answer
from msprobe.report.page import write_page
from msprobe.report.summary import summary
from msprobe.verdict.comparison import Comparison
from msprobe.verdict.coverage import supported
from msprobe.verdict.levels import CANNOT_TELL, NOT_JUDGED, ORIGINATED, SAME, Verdict

LITTLE, MUCH = 1 + 2e-7, 1.5


def compared(tmp_path: Path, target: list[Record], golden: list[Record]) -> Comparison:
    (found,) = compare(made(tmp_path / "t", *target), made(tmp_path / "g", *golden))
    return found


def said(comparison: Comparison) -> str:
    return "\n".join(answer([comparison.outcome()]))


def on_page(tmp_path: Path, comparison: Comparison) -> str:
    """The words of the page's answer, without markup."""
    path = tmp_path / "page.html"
    write_page(path, comparison)
    section = re.search(r'<section class="answer".*?</section>', path.read_text(), re.DOTALL)
    assert section is not None
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", section[0]))


def chain(*values: float) -> list[Record]:
    """Calls that each get 1 and return these."""
    return [
        call(f"Torch.op{n}.0.forward", tensor(value), inputs=(tensor(1),)) for n, value in enumerate(values)
    ]


def test_suspects_after_the_culprit_are_listed_with_their_scores(tmp_path: Path) -> None:
    comparison = compared(tmp_path, chain(1, MUCH, 2, 3, 4, 5), chain(1, 1, 1, 1, 1, 1))
    screen, page = said(comparison), on_page(tmp_path, comparison)
    assert screen.startswith("Culprit: Torch.op1.0.forward (step 0).\n")
    first, *others = (origin.verdict.score for origin in comparison.located.origins)
    assert f"  score {first:.3g}: above 1 it is more than rounding and its inputs explain" in screen
    listed = screen.partition("  other suspects:\n")[2].splitlines()
    for number, (line, score) in enumerate(zip(listed, others[:3], strict=False), 2):
        assert line.startswith(f"    Torch.op{number}.0.forward.output.0 (step 0): off by")
        assert line.endswith(f"(score {score:.3g})")
    assert listed[3] == "    and 1 more"
    assert "Other suspects Torch.op2.0.forward.output.0 : off by 0.5 of its size" in page
    assert "Torch.op5.0.forward.output.0" in page
    found = summary([comparison.outcome()])
    assert [each["name"] for each in found["suspects"]] == [f"Torch.op{n}.0.forward" for n in range(1, 6)]


def test_one_suspect_has_no_others(tmp_path: Path) -> None:
    comparison = compared(tmp_path, chain(1, MUCH), chain(1, 1))
    assert "suspects" not in said(comparison) + on_page(tmp_path, comparison)


def test_the_first_value_that_is_not_bit_equal_is_part_of_every_answer(tmp_path: Path) -> None:
    comparison = compared(tmp_path, chain(1, LITTLE, MUCH), chain(1, 1, 1))
    assert "first value that is not bit-equal: Torch.op1.0.forward.output.0" in said(comparison)
    words = on_page(tmp_path, comparison)
    assert "First value that is not bit-equal: Torch.op1.0.forward.output.0" in words
    assert "Culprit: Torch.op2.0.forward" in words
    found = summary([comparison.outcome()])
    assert found["first_not_equal"]["name"] == "Torch.op1.0.forward"
    equal = compared(tmp_path / "equal", chain(1, 1), chain(1, 1))
    assert "bit-equal" not in said(equal) + on_page(tmp_path, equal)


def test_a_run_in_a_coarser_dtype_is_a_fact_and_no_culprit(tmp_path: Path) -> None:
    def run(dtype: str) -> list[Record]:
        value = tensor(1, dtype=dtype)
        return [call(f"Torch.op{n}.0.forward", value, inputs=(value,)) for n in range(3)]

    comparison = compared(tmp_path, run("torch.bfloat16"), run("torch.float32"))
    fact = "he target computes in bfloat16, the golden run in float32"
    assert f"\n  t{fact}" in said(comparison) and said(comparison).startswith("No divergence: ")
    assert f"T{fact}." in on_page(tmp_path, comparison)
    found = summary([comparison.outcome()])
    assert (found["diverged"], found["culprit"]) == (False, None)
    assert found["precision"] == {"target": "bfloat16", "golden": "float32", "where": "everywhere"}


def unclear(value: float, length: int) -> list[Record]:
    """Another shape whose maker is unknown, behind rounding."""
    chosen = tensor(1, (length, 4))
    return [*chain(value), call("Torch.expert.0.forward", chosen, inputs=(chosen,))]


def test_what_cannot_be_told_is_no_all_clear(tmp_path: Path) -> None:
    paths = made(tmp_path / "t", *unclear(LITTLE, 3)), made(tmp_path / "g", *unclear(1, 4))
    (comparison,) = compare(*paths)
    screen, words = said(comparison), on_page(tmp_path, comparison)
    assert screen.startswith("It cannot be told whether the runs diverge: 4 values were compared")
    assert "  first uncertain value: Torch.expert.0.forward.input.0 (step 0): its shape is" in screen
    assert words.startswith(" Cannot tell It cannot be told whether the runs diverge: ")
    assert "cannot tell 1 what was recorded does not say why" in words
    assert summary([comparison.outcome()])["diverged"] == "cannot tell"
    command = ["compare", *map(str, paths), "-o", str(tmp_path / "out")]
    assert (main(command), main([*command, "--fail-on", "divergence"])) == (0, 1)


def test_what_cannot_be_told_before_a_suspect_is_no_evidence(tmp_path: Path) -> None:
    last = "Torch.last.0.forward"
    target = [*unclear(LITTLE, 3), call(last, tensor(MUCH), inputs=(tensor(1),))]
    golden = [*unclear(1, 4), call(last, tensor(1), inputs=(tensor(1),))]
    culprit = compared(tmp_path, target, golden).located.culprit
    assert culprit is not None and str(culprit.place.record.name) == last
    found = culprit.evidence
    assert dict(found.unchecked) == {"it cannot be told whether it differs by more than rounding": 1}
    assert (found.checked, found.grade) == (4, "weak")  # one of five


class TestSupported:
    """Verdicts that rest on no compared value."""

    WRONG = Verdict(ORIGINATED, "its shape is [2]", math.inf)
    SOUND = Verdict(SAME, "", 0.0)

    @pytest.mark.parametrize("is_doubtful", [True, False])
    def test_nothing_was_compared(self, tmp_path: Path, is_doubtful: bool) -> None:
        alone = compared(tmp_path, chain(1), [call("Torch.other.0.forward", tensor(1))]).findings
        unknown = Verdict(NOT_JUDGED, "the golden run has no such call")
        verdicts = [unknown, self.WRONG, *[unknown] * (len(alone) - 2)]
        found = supported(alone, verdicts, is_doubtful=is_doubtful)
        assert {verdict.level for verdict in found} == {NOT_JUDGED}
        assert found[1].reason == "no value is known on both sides"

    @pytest.mark.parametrize("is_doubtful", [True, False])
    def test_nothing_was_compared_before(self, tmp_path: Path, is_doubtful: bool) -> None:
        """Only where calls are paired by numbers that do not fit is such a suspect doubtful."""
        first_call, last_call = (call(f"Torch.{name}.0.forward", tensor(1)) for name in ("a", "z"))
        findings = compared(tmp_path, [first_call, *chain(1), last_call], chain(1)).findings
        lone = [finding.pair.golden is None for finding in findings]
        verdicts = [self.WRONG if each else self.SOUND for each in lone]
        levels = [verdict.level for verdict in supported(findings, verdicts, is_doubtful=is_doubtful)]
        first = CANNOT_TELL if is_doubtful else ORIGINATED
        assert levels == [first, SAME, SAME, ORIGINATED]


def steps(gradient: float, weight: float) -> list[list[Record]]:
    """A gradient in the first step, and the weight that an optimizer made with it in the second."""
    ways = call("Functional.linear.0.forward", tensor(1), inputs=(tensor(2), tensor(1)))
    back = call("Functional.linear.0.backward", tensor(1), tensor(gradient), inputs=(tensor(1),))
    later = call("Functional.linear.0.forward", tensor(weight), inputs=(tensor(2), tensor(weight)))
    return [[ways, back], [later]]


EXPLAINED = "No divergence: 9 values were compared, and rounding and earlier steps explain every difference."
NAMED = "First divergence: Functional.linear.0.forward (step 1): its input.1 differs when it comes in."


@pytest.mark.parametrize(("gradient", "answered"), [(LITTLE, EXPLAINED), (1, NAMED)])
def test_what_earlier_steps_explain_is_said_so(tmp_path: Path, gradient: float, answered: str) -> None:
    paths = made_steps(tmp_path / "t", *steps(gradient, 1.01)), made_steps(tmp_path / "g", *steps(1, 1))
    first, *_ = answer([each.outcome() for each in compare(*paths)])
    assert first == answered


def plain(value: Any) -> Leaf:
    return Leaf(type(value).__name__, value=value)


@pytest.mark.parametrize(
    ("name", "inputs", "golden", "is_given"),
    [
        ("Functional.dropout.0.forward", (plain(0.1), plain(True)), 3, True),
        ("Functional.dropout.0.forward", (plain(0.0), plain(True)), 3, False),
        ("Functional.dropout.0.forward", (plain(0.1), plain(False)), 3, False),
        ("Module.net.Dropout.forward.0", (), 3, True),
        ("Module.net.Dropout.forward.0", (), 1, False),  # the golden run returns its input unchanged
        ("Torch.randn.0.forward", (), 3, True),
        ("Functional.relu.0.forward", (), 3, False),
    ],
)
def test_seeds_are_a_hint_only_where_numbers_were_drawn(
    tmp_path: Path, name: str, inputs: tuple[Leaf, ...], golden: float, is_given: bool
) -> None:
    given = (tensor(1), *inputs)
    comparison = compared(
        tmp_path, [call(name, tensor(2), inputs=given)], [call(name, tensor(golden), inputs=given)]
    )
    culprit = comparison.located.culprit
    assert culprit is not None and ("same seeds" in culprit.hint) is is_given
    assert ("same seeds" in said(comparison)) is is_given
