"""Two runs of one framework that do not make the same calls are paired by what their calls do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.cli.main import main
from msprobe.compare import compare, compare_recordings
from msprobe.pairing.mapping import NO_MAPPINGS, Mappings
from msprobe.pairing.match import Place
from msprobe.record import nearest_frames
from msprobe.report.answer import headline
from msprobe.report.page import write_page
from msprobe.report.summary import summary
from msprobe.verdict.comparison import Comparison
from nets import seed
from torch_fixtures import Probe, probe, record

__all__ = ["probe"]

ALIGNED = NO_MAPPINGS._replace(align=True)
BY_NUMBER = NO_MAPPINGS._replace(align=False)
WIDTH = 16

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in the calls that the fused one makes inside."""
    scores = torch.matmul(q, k.transpose(-2, -1)) * (1 / math.sqrt(q.shape[-1]))
    return torch.matmul(torch.softmax(scores, -1), v)


def scaled_wrongly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand(q * 1.02, k, v)


class Block(nn.Module):
    """Attention, and calls that one way of it makes too, so that their numbers are shifted."""

    def __init__(self, attend: Attend, eps: float) -> None:
        super().__init__()
        self.attend, self.eps = attend, eps
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.attend(self.q(x), self.k(x), self.v(x))
        y = torch.matmul(x.transpose(-2, -1), self.out(y))
        return torch.softmax(y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps), -1)


def run(probe: Probe, attend: Attend, level: str, task: str, eps: float = 1e-6) -> Path:
    seed()
    net = nn.Sequential(Block(attend, 1e-6), Block(attend, eps))
    x = torch.randn(2, WIDTH, WIDTH)
    record(probe, lambda: net(x).square().sum().backward(), level, net, task=task)
    probe.close()
    return probe.folder


def compared(tmp_path: Path, ours: dict[str, Any], level: str, task: str, mappings: Mappings) -> Comparison:
    for name in ("target", "golden"):
        (tmp_path / name).mkdir()
    target = run(Probe(tmp_path / "target"), level=level, task=task, **ours)
    golden = run(Probe(tmp_path / "golden"), fused, level, task)
    return compare(target, golden, mappings=mappings)[0]


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("level", ["L1", "mix"])
class TestAlign:
    def test_another_way_to_the_same_values_is_no_divergence(
        self, tmp_path: Path, level: str, task: str
    ) -> None:
        found = compared(tmp_path, {"attend": by_hand}, level, task, ALIGNED)
        assert found.located.first is None
        pairs = {(str(ours.record.name), str(theirs.record.name)) for ours, theirs in both(found)}
        forward = {pair for pair in pairs if "Torch.matmul" in pair[0] and "forward" in pair[0]}
        assert forward == {
            ("Torch.matmul.2.forward", "Torch.matmul.0.forward"),
            ("Torch.matmul.5.forward", "Torch.matmul.1.forward"),
        }

    def test_it_is_done_without_being_asked_for(self, tmp_path: Path, level: str, task: str) -> None:
        found = compared(tmp_path, {"attend": by_hand}, level, task, NO_MAPPINGS)
        asked = compare_recordings(found.target, found.golden, mappings=ALIGNED)
        assert [finding.pair for finding in found.findings] == [finding.pair for finding in asked.findings]
        why = "the target calls Tensor.transpose 4 times and the golden run 2"
        assert found.why_aligned.startswith(why) and asked.why_aligned == ""

    def test_by_their_numbers_other_calls_are_taken_for_the_same(
        self, tmp_path: Path, level: str, task: str
    ) -> None:
        """The premise: and the reader is told so, and how to do better."""
        found = compared(tmp_path, {"attend": by_hand}, level, task, BY_NUMBER)
        assert found.located.culprit is not None
        assert "--align pairs calls by what they do" in found.located.culprit.evidence.notes[-1]
        assert found.located.culprit.evidence.grade != "strong"

    @pytest.mark.parametrize("options", [{"as_specified": True}, {"fuzzy": True}], ids=["as_specified", "-f"])
    def test_the_specified_table_keeps_its_pairs_and_our_verdict_aligns(
        self, tmp_path: Path, level: str, task: str, options: dict[str, bool]
    ) -> None:
        aligned = compared(tmp_path, {"attend": by_hand, "eps": 1e-2}, level, task, NO_MAPPINGS)
        runs = aligned.target, aligned.golden
        specified = compare_recordings(*runs, **options)
        by_number = compare_recordings(*runs, fuzzy="fuzzy" in options, mappings=BY_NUMBER)
        assert specified.findings == by_number.findings
        assert specified.located.culprit is not None and aligned.located.culprit is not None
        assert specified.located.culprit.place == aligned.located.culprit.place
        row = specified.located.culprit.row
        assert specified.findings[row].pair.target == specified.located.culprit.place
        assert specified.verdicts[row].is_origin
        assert specified.outcome().aligned == aligned.outcome().aligned._replace(in_table=False)

    def test_a_fault_behind_what_differs_is_named(self, tmp_path: Path, level: str, task: str) -> None:
        found = compared(tmp_path, {"attend": by_hand, "eps": 1e-2}, level, task, ALIGNED)
        culprit = found.located.culprit
        assert culprit is not None
        assert culprit.place.name == "Tensor.__add__.1.forward.input.1"

    def test_a_fault_in_what_has_no_counterpart_is_traced_to_it(
        self, tmp_path: Path, level: str, task: str
    ) -> None:
        found = compared(tmp_path, {"attend": scaled_wrongly}, level, task, ALIGNED)
        culprit = found.located.culprit
        assert culprit is not None
        assert culprit.place.name == "Torch.matmul.1.forward.output.0"
        assert (
            "as Functional.linear.3.forward.input.0; what goes into these calls is equal"
            in culprit.verdict.reason
        )
        assert (
            "the golden run with `Functional.scaled_dot_product_attention.0.forward`"
            in culprit.verdict.reason
        )

    def test_two_runs_that_make_the_same_calls_are_paired_as_by_name(
        self, tmp_path: Path, level: str, task: str
    ) -> None:
        found = compared(tmp_path, {"attend": fused}, level, task, ALIGNED)
        assert len(both(found)) == len(found.findings)
        assert all(ours.name == theirs.name for ours, theirs in both(found))


def both(comparison: Comparison) -> list[tuple[Place, Place]]:
    pairs = (finding.pair for finding in comparison.findings)
    return [(p.target, p.golden) for p in pairs if p.target is not None and p.golden is not None]


def test_nothing_else_may_pair_calls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--align", "-f"]) == 2
    assert "cannot be combined with --fuzzy_match" in capsys.readouterr().err


def frame(path: str) -> str:
    return f"File {path}, line 1, in forward, \n y = f(x)"


TORCH, MODEL, HOME = (
    "/env/lib/site-packages/torch/nn/linear.py",
    "/env/dist-packages/lib/a.py",
    "/home/train.py",
)


@pytest.mark.parametrize(
    ("stack", "shown"),
    [
        ([HOME], [HOME]),
        ([TORCH, HOME, TORCH, HOME], [HOME, HOME]),
        ([TORCH, MODEL, TORCH, MODEL, MODEL, HOME], [MODEL, MODEL, HOME]),  # a model that a library has
        ([MODEL, HOME, MODEL, *[HOME] * 9], [MODEL, HOME, HOME, HOME]),
        ([HOME, HOME, "<frozen runpy>", "/usr/lib/python3.11/threading.py", HOME], [HOME] * 3),
        ([TORCH, TORCH], [TORCH, TORCH]),
        ([], []),
    ],
)
def test_the_frames_that_a_reader_sees_first(stack: list[str], shown: list[str]) -> None:
    assert nearest_frames(list(map(frame, stack))) == list(map(frame, shown))


def test_a_culprit_of_the_golden_run_is_said_to_be_its_call(tmp_path: Path) -> None:
    """The target leaves out an activation."""
    made: list[Path] = []
    for name in ("target", "golden"):
        (tmp_path / name).mkdir()
        probe = Probe(tmp_path / name)
        seed()
        net, x = nn.Linear(6, 6), torch.randn(2, 6)

        def work(net: nn.Linear = net, x: Tensor = x, is_whole: bool = name == "golden") -> None:
            hidden = torch.tanh(net(x)) if is_whole else net(x)
            torch.add(hidden, 1.0)

        record(probe, work, "L1", net, task="statistics")
        probe.close()
        made.append(probe.folder)
    for order, only in ((made, ", a call that only the golden run makes"), (made[::-1], "")):
        comparison = compare(*order, mappings=BY_NUMBER)[0]
        first = f"Culprit: Torch.tanh.0.forward (step 0){only}."
        assert headline([comparison.outcome()]) == first
        write_page(tmp_path / "page.html", comparison)
        words = re.sub("<[^>]+>", "", (tmp_path / "page.html").read_text())
        assert first in words
        assert summary([comparison.outcome()])["culprit"]["name"] == "Torch.tanh.0.forward"
