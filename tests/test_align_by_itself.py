"""Calls are aligned without being asked for where their numbers cannot be trusted, and only there."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from made_runs import call, made, tensor
from msprobe.cli.main import main
from msprobe.compare import compare
from msprobe.name import FORWARD
from msprobe.pairing.match import Pair
from msprobe.pairing.numbers import mistrust
from msprobe.record import Header, Leaf, Record, Recording
from msprobe.verdict.comparison import Comparison
from nets import seed
from torch_fixtures import Probe, probe, record

__all__ = ["probe"]

SCRIPT = Path(__file__).with_name("set_loop.py")


# ---- two starts of one script that go over a set in another order ----


def trained(folder: Path, hash_seed: int, level: str, *fault: str) -> Path:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    words = [sys.executable, str(SCRIPT), str(folder), level, *fault]
    subprocess.run(words, env=environment, check=True, capture_output=True, timeout=120)
    return folder


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_calls_in_the_order_of_a_set_have_no_culprit(tmp_path: Path, level: str) -> None:
    target, golden = (trained(tmp_path / f"run{number}", number, level) for number in (1, 2))
    for found in compare(target, golden):
        assert found.why_aligned
        assert found.located.first is None
        pairs = [finding.pair for finding in found.findings]
        assert pairs_of_linear(pairs) == set()


def pairs_of_linear(pairs: list[Pair]) -> set[tuple[str, str]]:
    """The linear layers that are not paired by their weights."""
    found = set()
    for pair in pairs:
        name = pair.place.record.name
        if name.owner == "Functional.linear" and name.direction == FORWARD and pair.place.slot == "input.1":
            sides = [side.leaf.stats if side and side.leaf else None for side in pair[:2]]
            if sides[0] is None or sides[1] is None or abs(sides[0].norm - sides[1].norm) > 1e-3:
                found.add((str(pair.target), str(pair.golden)))
    return found


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_fault_in_calls_of_another_order_is_named(tmp_path: Path, level: str) -> None:
    target, golden = trained(tmp_path / "t", 1, level, "blue"), trained(tmp_path / "g", 2, level)
    culprit = compare(target, golden)[0].located.culprit
    assert culprit is not None
    assert culprit.place.name.startswith("Tensor.__mul__.") and culprit.place.slot == "input.1"
    if level == "mix":
        assert culprit.modules[0] == "Module.experts.blue.Expert.forward.0"


# ---- one more call ----


class More(nn.Module):
    """Two layers and a constant; one run adds a zero before."""

    def __init__(self, zeros: int) -> None:
        super().__init__()
        self.one, self.two, self.zeros = nn.Linear(8, 8), nn.Linear(8, 8), zeros

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        for _ in range(self.zeros):
            x = torch.add(x, 0.0)
        return torch.add(self.two(x), 0.5)


def recorded(folder: Path, zeros: int, level: str) -> Path:
    folder.mkdir()
    seed()
    net, x = More(zeros), torch.randn(4, 8)
    made_by = Probe(folder)
    record(made_by, lambda: net(x).sum().backward(), level, net)
    made_by.close()
    return made_by.folder


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize("level", ["L1", "mix"])
class TestOneMoreCall:
    def test_later_calls_are_paired_right(self, tmp_path: Path, level: str) -> None:
        target, golden = recorded(tmp_path / "t", 1, level), recorded(tmp_path / "g", 0, level)
        (found,) = compare(target, golden)
        assert found.located.first is None
        assert found.why_aligned == "the target calls Torch.add 2 times and the golden run 1"
        pairs = {p.target.name: p.golden and p.golden.name for p in all_pairs(found) if p.target}
        assert pairs["Torch.add.1.forward.input.0"] == "Torch.add.0.forward.input.0"

    def test_the_screen_says_so_and_how_to_forbid_it(
        self, tmp_path: Path, level: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        target, golden = recorded(tmp_path / "t", 1, level), recorded(tmp_path / "g", 0, level)
        words = ["compare", str(target), str(golden), "-o", str(tmp_path / "out")]
        summary = tmp_path / "summary.json"
        assert main([*words, "--json", str(summary), "--fail-on", "divergence"]) == 0
        why = "the target calls Torch.add 2 times and the golden run 1"
        said = f"calls were aligned automatically, because {why}; --no-align pairs them by their numbers"
        assert said in capsys.readouterr().out
        (alignment,) = (each["alignment"] for each in json.loads(summary.read_text())["recordings"])
        assert (alignment["automatic"], alignment["in_table"]) == (why, True)
        assert main([*words, "--no-align", "--fail-on", "divergence"]) == 1
        assert "aligned" not in capsys.readouterr().out

    def test_the_specified_table_pairs_by_number(
        self, tmp_path: Path, level: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        target, golden = recorded(tmp_path / "t", 1, level), recorded(tmp_path / "g", 0, level)
        request = tmp_path / "compare.json"
        paths = [str(run / "step0" / "rank" / "dump.json") for run in (target, golden)]
        request.write_text(json.dumps({"npu_path": paths[0], "bench_path": paths[1]}))
        for option in ([], ["--align"]):
            out = tmp_path / f"out{len(option)}"
            words = ["compare", "-i", str(request), "-o", str(out), "--csv", "--fail-on", "divergence"]
            assert main([*words, *option]) == 0
            assert "the table pairs calls as specified" in capsys.readouterr().out
            (table,) = out.glob("compare_result_*.csv")
            rows = list(csv.DictReader(table.open()))
            names = {(row["NPU Name"], row["Bench Name"]) for row in rows}
            assert all("N/A" in pair or pair[0] == pair[1] for pair in names)
            (row,) = (row for row in rows if row["NPU Name"] == "Torch.add.0.forward.output.0")
            assert row["Bench Name"] == row["NPU Name"] and row["Max diff"] != "0.0"


def all_pairs(found: Comparison) -> list[Pair]:
    return [finding.pair for finding in found.findings]


@pytest.mark.usefixtures("probe")
def test_two_runs_of_one_script_are_paired_by_number(tmp_path: Path) -> None:
    target, golden = recorded(tmp_path / "t", 1, "mix"), recorded(tmp_path / "g", 1, "mix")
    (found,) = compare(target, golden)
    assert found.why_aligned == "" and found.outcome().aligned is None


# ---- why numbers are not trusted ----


def run(*records: Record, **facts: object) -> Recording:
    made_of = {str(each.name): each for each in records}
    return Recording(Header("statistics", "mix", "pytorch"), made_of, "run", **facts)  # type: ignore[arg-type]


def relu(number: int, value: float, parent: str | None = None, made_by: str | None = None) -> Record:
    made_of = tensor(value, made_by=made_by)
    return call(f"Torch.relu.{number}.forward", made_of, inputs=(made_of,))._replace(parent=parent)


def tanh(number: int, value: float) -> Record:
    return call(f"Torch.tanh.{number}.forward", tensor(value), inputs=(tensor(value),))


@pytest.mark.parametrize(
    ("target", "golden", "why"),
    [
        (run(relu(0, 1), relu(1, 2)), run(relu(0, 1), relu(1, 2)), ""),
        (run(relu(0, 1), relu(1, 2)), run(relu(0, 3), relu(1, 4)), ""),
        (
            run(relu(0, 1), relu(1, 2)),
            run(relu(0, 1)),
            "the target calls Torch.relu 2 times and the golden run 1",
        ),
        (run(relu(0, 1), relu(1, 2)), run(relu(0, 1), recovered=True), ""),
        (run(relu(0, 1), relu(1, 2)), run(relu(1, 2)), ""),  # the first was not recorded
        (run(relu(0, 1), tanh(0, 1)), run(relu(0, 1)), ""),
        (
            run(relu(0, 1), tanh(0, 1)),
            run(tanh(0, 1), relu(0, 1)),
            "Torch.tanh.0.forward comes after Torch.relu.0.forward in the target and before it in the golden "
            "run",
        ),
        (
            run(relu(0, 1), relu(1, 2)),
            run(relu(0, 2.001), relu(1, 1)),
            "Torch.relu.0.forward has the inputs of Torch.relu.1.forward of the golden run",
        ),
        (run(relu(0, 1), relu(1, 1)), run(relu(0, 1), relu(1, 2)), ""),  # a fault: it has another input
        # Each is closer to its own counterpart, though to three digits the second looks like the first.
        (run(relu(0, 400.49 / 512), relu(1, 401 / 512)), run(relu(0, 400.6 / 512), relu(1, 401.6 / 512)), ""),
        (
            run(relu(0, 1, "Module.a.ReLU.forward.0")),
            run(relu(0, 1, "Module.b.ReLU.forward.0")),
            "Torch.relu.0.forward is made in Module.a.ReLU.forward.0 in the target and in "
            "Module.b.ReLU.forward.0 in the golden run",
        ),
        (
            run(relu(0, 1, "optimizer")),
            run(relu(0, 1, "Module.b.ReLU.forward.0")),
            "Torch.relu.0.forward is a call of the optimizer in the target and of the model in the golden "
            "run",
        ),
        (
            run(relu(0, 1, None, "Torch.exp.0.forward.output.0")),
            run(relu(0, 2, None, "Torch.exp.1.forward.output.0")),
            "Torch.relu.0.forward.input.0 comes from Torch.exp.0.forward.output.0 in the target and from "
            "Torch.exp.1.forward.output.0 in the golden run",
        ),
        (run(relu(0, 1, None, "Torch.exp.0.forward.output.0")), run(relu(0, 2)), ""),  # not known of both
    ],
)
def test_why_numbers_are_not_trusted(target: Recording, golden: Recording, why: str) -> None:
    assert mistrust(target, golden) == why


# ---- the optimizer and the model ----


def test_calls_of_the_optimizer_are_not_paired_with_those_of_the_model(tmp_path: Path) -> None:
    """By number Torch.a.1 would be a call of the optimizer in one run and of the model in the other."""

    def leaf(value: float) -> Leaf:
        return tensor(value, (4,))

    def in_optimizer(number: int, value: float) -> Record:
        return call(f"Torch.a.{number}.forward", leaf(value), inputs=(leaf(value),))._replace(
            parent="optimizer", has_parent=True
        )

    def in_model(number: int, value: float) -> Record:
        return in_optimizer(number, value)._replace(parent="Module.m.M.forward.0")

    header = Header("statistics", "mix", "pytorch")
    target = made(tmp_path / "t", in_model(0, 1), in_optimizer(1, 3), header=header)
    golden = made(tmp_path / "g", in_model(0, 1), in_model(1, 3), in_optimizer(2, 3), header=header)
    (found,) = compare(target, golden)
    pairs = {
        str(p.target.record.name): str(p.golden.record.name)
        for p in all_pairs(found)
        if p.target and p.golden
    }
    assert pairs == {
        "Torch.a.0.forward": "Torch.a.0.forward",
        "Torch.a.1.forward": "Torch.a.2.forward",
    }
    (specified,) = compare(target, golden, as_specified=True)
    assert [pair.unjudged for pair in all_pairs(specified)][2:4] == [
        "one is a call of the model, the other is not"
    ] * 2
