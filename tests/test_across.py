"""A transformer and a ResNet, recorded in both frameworks by this tool, are aligned without a mapping."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from across_case import CULPRITS, Runs, aligned, compared, levels_of, packed
from across_record import LEVELS, NETS, Wanted
from msprobe.cli.main import main
from msprobe.record import Recording

__all__ = ["packed"]

VARIANTS = [("transformer", word) for word in ("same", "eps", "gelu", "other")]
VARIANTS += [("resnet", word) for word in ("same", "eps", "other")]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("net", "variant"), VARIANTS)
def test_all_that_belongs_together_is_found(packed: Runs, net: str, level: str, variant: str) -> None:
    """Also if the runs part at their first layer (`other`): then only weights and ways tell calls apart."""
    wanted = Wanted(net, level, variant=variant)
    result = aligned(*packed.pair(wanted), wanted)
    assert result.wrong == {}
    assert result.lost == {}
    assert result.share == 1.0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("net", NETS)
def test_it_is_found_whichever_framework_comes_first(packed: Runs, net: str, level: str) -> None:
    target, golden = packed.pair(Wanted(net, level))
    there, back = (pairs_of(*sides) for sides in ((target, golden), (golden, target)))
    assert {b: a for a, b in back.items()} == there


def pairs_of(target: Recording, golden: Recording) -> dict[str, str]:
    pairs = [finding.pair for finding in compared(target, golden).findings]
    return {
        p.target.name: p.golden.name
        for p in pairs
        if p.target is not None
        and p.golden is not None
        and p.target.leaf is not None
        and p.target.leaf.is_tensor
    }


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("net", NETS)
def test_the_same_net_agrees_in_all_that_is_paired(packed: Runs, net: str, level: str) -> None:
    comparison = compared(*packed.pair(Wanted(net, level)))
    assert {"rounding"} <= levels_of(comparison) <= {"same", "rounding", "passed on"}
    assert comparison.located.culprit is None


@pytest.mark.parametrize(("case", "culprit"), CULPRITS.items(), ids=map("-".join, CULPRITS))
def test_an_injected_difference_is_named(packed: Runs, case: tuple[str, str, str], culprit: str) -> None:
    net, level, variant = case
    located = compared(*packed.pair(Wanted(net, level, variant=variant))).located
    assert located.culprit is not None and located.culprit.place.name == culprit
    slots = {
        origin.place.slot for origin in located.origins
    }  # of further calls with the same difference, too
    assert slots == {located.culprit.place.slot}


def test_tensors_are_compared_across_frameworks(packed: Runs) -> None:
    wanted = Wanted("transformer", "mix", "tensor", "perturbed")
    comparison = compared(*packed.pair(wanted))
    assert comparison.mode == "tensor"
    assert comparison.located.culprit is not None
    name = "Primitive.layer_norm.LayerNorm.0.forward.input.1"
    assert comparison.located.culprit.place.name == name


# ---- several calls against one ----


def test_what_has_no_place_in_the_one_call_says_so(packed: Runs) -> None:
    """The product before the bias is added; and backward, its gradient."""
    findings = compared(*packed.pair(Wanted("resnet", "L1"))).findings
    reasons = {f.pair.target.name: f.pair.reason for f in findings if f.pair.target is not None}
    forward, backward = "Functional.linear.0.forward", "Functional.linear.0.backward"
    assert {name: reasons[name] for name in reasons if name.startswith("Primitive.matmul.MatMul.0")} == {
        "Primitive.matmul.MatMul.0.forward.input.0": "",
        "Primitive.matmul.MatMul.0.forward.input.1": "",
        "Primitive.matmul.MatMul.0.forward.output.0": f"the golden run does this within {forward}",
        "Primitive.matmul.MatMul.0.backward.input.0": f"the golden run does this within {backward}",
        "Primitive.matmul.MatMul.0.backward.output.0": "",
        "Primitive.matmul.MatMul.0.backward.output.1": "",
    }


def test_a_difference_made_within_the_one_call_is_named_where_it_comes_out(packed: Runs) -> None:
    """What went into any of the several counts for all: an error that came in is not taken for their own."""
    comparison = compared(*packed.pair(Wanted("transformer", "L1", variant="eps")))
    rows = zip(comparison.findings, comparison.verdicts, strict=True)
    levels = {finding.pair.place.name: verdict.level for finding, verdict in rows}
    assert levels["Primitive.bias_add.BiasAdd.4.forward.input.1"] == "same"
    assert levels["Primitive.reshape.Reshape.9.forward.input.0"] == "passed on"
    assert levels["Primitive.reshape.Reshape.10.forward.output.0"] == "passed on"


# ---- what is told of it ----


def command(packed: Runs, folder: Path, wanted: Wanted, *words: str) -> int:
    target = packed.path("mindspore", wanted)
    golden = packed.path("pytorch", wanted._replace(variant="same"))
    return main(["compare", str(target), str(golden), "-o", str(folder / "out"), *words])


def test_the_summary_tells_each_pair_and_how_sure_it_is(packed: Runs, tmp_path: Path) -> None:
    wanted = Wanted("resnet", "mix", variant="other")
    assert command(packed, tmp_path, wanted, "--json", str(tmp_path / "summary.json")) == 0
    (recording,) = json.loads((tmp_path / "summary.json").read_text())["recordings"]
    alignment = recording["alignment"]
    pairs = {pair["target"]: pair for pair in alignment.pop("pairs")}
    counts = {"calls": 162, "paired": len(pairs), "doubtful": 0}
    assert alignment == {**counts, "automatic": None, "in_table": True}
    assert pairs["Cell.stem.Conv2d.forward.0"] == {
        "target": "Cell.stem.Conv2d.forward.0",
        "golden": "Module.conv1.Conv2d.forward.0",
        "confidence": 0.99,
        "reason": "they have the same parameters",
    }
    several = pairs["Primitive.bias_add.BiasAdd.0.forward"]
    assert (several["golden"], several["confidence"]) == ("Functional.conv2d.0.forward", 0.95)
    assert (
        pairs["Cell.stage2.0.shortcut.SequentialCell.forward.0"]["reason"]
        == "what is in them belongs together"
    )


def test_a_comparison_within_a_framework_has_no_alignment(packed: Runs, tmp_path: Path) -> None:
    paths = [str(packed.path("mindspore", Wanted("resnet", "L0", variant=word))) for word in ("eps", "same")]
    out, summary = str(tmp_path / "out"), tmp_path / "summary.json"
    assert main(["compare", *paths, "-o", out, "--json", str(summary)]) == 0
    (recording,) = json.loads(summary.read_text())["recordings"]
    assert recording["alignment"] is None


def test_the_screen_tells_how_many_and_which_are_doubtful(
    packed: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msprobe.verdict.comparison.DOUBTFUL", 0.9)
    monkeypatch.setattr("msprobe.report.answer.DOUBTFUL", 0.9)
    assert command(packed, tmp_path, Wanted("resnet", "L0", variant="other")) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if "aligned without a mapping" in line)
    assert lines[at] == (
        "  aligned without a mapping: 67 of the target's 79 calls, 2 of them with less than 90 % confidence; "
        "--save_mapping FILE writes the pairs"
    )
    name = (
        "Cell.stage2.0.shortcut.SequentialCell.forward.0 with Module.layer2.0.downsample.Sequential.forward.0"
    )
    assert lines[at + 1] == f"    85 % sure: {name}: what is in them belongs together"


def page_of(folder: Path) -> tuple[str, dict[str, Any]]:
    """The page, and the facts that its script gets."""
    (path,) = (folder / "out").glob("compare_result_*.html")
    text = path.read_text(encoding="utf-8")
    found = re.search(r'id="facts">([^<]*)<', text)
    assert found is not None
    return text, json.loads(zlib.decompress(base64.b64decode(found[1])))


def test_the_page_tells_it_too(packed: Runs, tmp_path: Path) -> None:
    assert command(packed, tmp_path, Wanted("resnet", "L1")) == 0
    text, facts = page_of(tmp_path)
    assert re.search(r'<p class="aside">Aligned without a mapping: [0-9]+ of the target', text)
    why = facts["alignment"]["why"]
    assert "one does in several calls what the other does in one, with the same weights" in why["words"]
    assert facts["alignment"]["share"]["count"] == len(why["codes"]) == len(facts["level"])


def test_a_page_without_an_alignment_says_nothing_of_it(packed: Runs, tmp_path: Path) -> None:
    paths = [str(packed.path("mindspore", Wanted("resnet", "L0", variant=word))) for word in ("eps", "same")]
    assert main(["compare", *paths, "-o", str(tmp_path / "out")]) == 0
    text, facts = page_of(tmp_path)
    assert facts["alignment"] is None and "Aligned without" not in text


# ---- the mapping that can be saved, edited and given back ----


def table_of(folder: Path) -> list[tuple[Any, ...]]:
    (path,) = (folder / "out").glob("compare_result_*.xlsx")
    sheet = openpyxl.load_workbook(path).active
    assert sheet is not None
    header, *rows = sheet.iter_rows(values_only=True)
    shown = [
        number for number, title in enumerate(header) if not str(title).startswith(("Alignment", "Err_"))
    ]
    return [tuple(row[number] for number in shown) for row in rows]


@pytest.mark.parametrize(
    "wanted", [Wanted("transformer", "mix", "tensor", "perturbed"), Wanted("resnet", "L1")]
)
def test_a_saved_mapping_gives_the_same_table_again(packed: Runs, tmp_path: Path, wanted: Wanted) -> None:
    """Names, numbers, verdicts; all but how sure a pair is, and the words for what has no counterpart."""
    saved = tmp_path / "pairs.yaml"
    assert command(packed, tmp_path / "first", wanted, "--save_mapping", str(saved)) == 0
    assert command(packed, tmp_path / "again", wanted, "-dm", str(saved)) == 0
    assert told(table_of(tmp_path / "again")) == told(table_of(tmp_path / "first"))


def told(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without the reason of what was not judged, which names the mapping."""
    return [row[:-1] if "not judged" in row else row for row in rows]


def test_an_edited_mapping_is_obeyed(packed: Runs, tmp_path: Path) -> None:
    wanted, saved = Wanted("resnet", "L1"), tmp_path / "pairs.yaml"
    assert command(packed, tmp_path / "first", wanted, "--save_mapping", str(saved)) == 0
    text = saved.read_text()
    line = "Functional.mean.0.forward: Torch.mean.0.forward\n"
    assert line in text
    more = "Functional.mean.0.forward.output.0: Torch.mean.0.forward.output.0\n"
    saved.write_text(text.replace(line, "Functional.mean.0.forward: N/A\n" + more))
    assert command(packed, tmp_path / "again", wanted, "-dm", str(saved)) == 0
    before, after = ({row[0]: row[1] for row in table_of(tmp_path / folder)} for folder in ("first", "again"))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"Functional.mean.0.forward.input.{slot}" for slot in ("0", "1.0", "1.1")}
