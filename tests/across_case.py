"""Recordings of the same nets in both frameworks, and their alignment beside the hand-written list.

The functions are for the packed recordings (tests/test_across.py) and for fresh ones (tests/ms) alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import across_pairs
from across_record import ARCHIVE, Wanted
from msprobe import store
from msprobe.compare import compare_recordings
from msprobe.pairing.align import align
from msprobe.pairing.match import match
from msprobe.record import Recording
from msprobe.verdict.comparison import Comparison
from unpacked import unpacked

# What must be named if the net differs there, by level; `entered` and `originated` places.
CULPRITS = {
    ("transformer", "L0", "eps"): "Cell.encoder.0.norm2.LayerNorm.forward.0.output.0",
    ("transformer", "L1", "eps"): "Primitive.layer_norm.LayerNorm.1.forward.output.0",
    ("transformer", "mix", "eps"): "Primitive.layer_norm.LayerNorm.1.forward.output.0",
    ("transformer", "L0", "gelu"): "Cell.encoder.0.ffn.act.GELU.forward.0.output.0",
    ("transformer", "L1", "gelu"): "Functional.gelu.0.forward.input.approximate",
    ("transformer", "mix", "gelu"): "Functional.gelu.0.forward.input.approximate",
    ("resnet", "L0", "eps"): "Cell.stem_bn.BatchNorm2d.forward.0.output.0",
    ("resnet", "L1", "eps"): "Primitive.bn_train.BatchNorm.0.forward.output.0",
    ("resnet", "mix", "eps"): "Primitive.bn_train.BatchNorm.0.forward.output.0",
}


class Runs(NamedTuple):
    """Recordings below a folder."""

    folder: Path

    def path(self, framework: str, wanted: Wanted) -> Path:
        return self.folder / framework / wanted.name

    def read(self, framework: str, wanted: Wanted) -> Recording:
        (recording,) = store.read(self.path(framework, wanted))
        return recording

    def pair(self, wanted: Wanted) -> tuple[Recording, Recording]:
        """A run of MindSpore, and that of PyTorch, which has no variants."""
        return self.read("mindspore", wanted), self.read("pytorch", wanted._replace(variant="same"))


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(unpacked(ARCHIVE, tmp_path_factory))


class Result(NamedTuple):
    """An alignment beside the list: the share of the list that was found, and what is not in it."""

    share: float
    lost: dict[str, str]
    wrong: dict[str, str]


def aligned(target: Recording, golden: Recording, wanted: Wanted) -> Result:
    """Every call, every parameter with its gradient, and every place of several calls that one belongs to."""
    names = align(target, golden).names
    pairs = match(target, golden, rename=align(target, golden))
    found = {a: b for a, b in names.items() if a in target.records}
    found |= {
        p.target.name: p.golden.name
        for p in pairs
        if p.target is not None
        and p.golden is not None
        and (p.target.name in names or ".parameters" in p.target.name)
    }
    expected = across_pairs.calls(wanted.net, wanted.level)
    if wanted.level != "L1":
        expected |= across_pairs.parameters(wanted.net)
        if any(
            record.fields.get("buffers") for record in golden.records.values()
        ):  # not in packed recordings
            expected |= across_pairs.running_statistics(wanted.net)
    if wanted.level != "L0":
        expected |= across_pairs.several_places(wanted.net)
    lost = {a: b for a, b in expected.items() if found.get(a) != b}
    wrong = {a: b for a, b in found.items() if expected.get(a) != b}
    return Result(1 - len(lost) / len(expected), lost, wrong)


def compared(target: Recording, golden: Recording) -> Comparison:
    return compare_recordings(target, golden)


def levels_of(comparison: Comparison) -> set[str]:
    """The verdicts of what was paired."""
    rows = zip(comparison.findings, comparison.verdicts, strict=True)
    return {verdict.level for finding, verdict in rows if not finding.pair.reason}
