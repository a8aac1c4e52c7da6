"""MindSpore against MindSpore and against PyTorch: what 8.3.3 pairs is paired too, with the same numbers."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import openpyxl
import pytest

from cross_case import Crossed, crossed
from msprobe import store
from msprobe.cli.main import main
from msprobe.compare import compare, compare_recordings
from msprobe.errors import ConfigError, UsageError
from msprobe.mapping_file import built_in_apis, read_data_mapping, read_layer_mapping, read_mappings
from msprobe.name import CallName
from msprobe.pairing.across import across
from msprobe.pairing.layers import paired_by_layer
from msprobe.pairing.mapping import ApiMapping, Mappings
from msprobe.pairing.match import Pair, match
from msprobe.pairing.strays import sentences, strays
from msprobe.record import Header, Leaf, Record, Recording
from msprobe.report.columns import ALIGNMENT, table
from msprobe.report.table import Cell
from msprobe.verdict.comparison import Comparison

__all__ = ["crossed"]


class Case(NamedTuple):
    """Two runs and the mapping files; and how many rows 8.3.3 and we have a counterpart for."""

    result: str
    target: str
    golden: str
    mappings: dict[str, str]
    theirs: int
    ours: int
    fuzzy: bool = False

    def __str__(self) -> str:
        return self.result


DATA, LAYER = "data_mapping", "layer_mapping"
L0 = ("ms_L0_tensor", "pt_L0_tensor")
L0_STATISTICS = ("ms_L0_statistics_statistics", "pt_L0_statistics_statistics")
L1 = ("ms_L1_tensor", "pt_L1_tensor")
L1_SAME = ("ms_L1_tensor", "ms_L1_tensor")
MIX = ("ms_mix_tensor", "pt_mix_tensor")
STATISTICS = ("ms_mix_statistics_statistics", "pt_mix_statistics_statistics")
CASES = [
    Case("am_L1_tensor", *L1, {"api": ""}, 53, 55),
    Case("am_L1_stat", "ms_L1_statistics_statistics", "pt_L1_statistics_statistics", {"api": ""}, 53, 55),
    Case("am_L1_md5", "ms_L1_statistics_md5", "pt_L1_statistics_md5", {"api": ""}, 53, 55),
    Case("amr_L1_tensor", *L1, {"api": "api_mapping_real"}, 53, 55),
    Case("amcm", *MIX, {"api": "", "cell": ""}, 53, 83),
    Case("cm_L0_tensor", *L0, {"cell": ""}, 20, 28),
    Case("cm_L0_stat", *L0_STATISTICS, {"cell": ""}, 20, 28),
    Case("dm_mix_tensor", *MIX, {"data": DATA}, 30, 32),
    Case("dm_mix_stat", *STATISTICS, {"data": DATA}, 30, 32),
    Case("lm_L0_tensor", *L0, {"layer": LAYER}, 75, 83),
    Case("lmt_mix_stat", *STATISTICS, {"layer": "layer_mapping_top"}, 128, 138),
    Case("lmn_mix_tensor", *MIX, {}, 70, 199),  # -lm without a file; ours wants one, or no mapping at all
    Case("none_L1_tensor", *L1, {}, 27, 116),
    Case("self_mix_tensor", "msn_mix_tensor", "ms_mix_tensor", {}, 289, 289),
    Case("self_mix_stat", "msn_mix_statistics_statistics", "ms_mix_statistics_statistics", {}, 289, 289),
    Case("conly", *L1_SAME, {}, 205, 205),
    Case("fuzzy_self", *L1_SAME, {}, 205, 205, fuzzy=True),
]
# The use case and the recipe of each mapping; that of cells wants a list, which the command below gives.
OF_MAPPING = {"api": ("K004", "K024"), "data": ("K006", "K026"), "layer": ("K007", "K027")}


def marked(case: Case) -> Any:
    """A case with the rows that it shows."""
    found = []
    for option in case.mappings.keys() & OF_MAPPING.keys():
        use, recipe = OF_MAPPING[option]
        found += [pytest.mark.spec(use, "MSd", "PT"), pytest.mark.spec(recipe, "CLI")]
    if case.golden.startswith("ms_"):
        found.append(pytest.mark.spec("K020", "CLI"))
    return pytest.param(case, marks=found, id=case.result)


NOBODY = ("N/A", "")
# Where MindSpore does not say whether a tensor needs a gradient, 8.3.3 calls that inconsistent.
DTYPE = "<class 'mindspore.dtype'>"  # which 8.3.3 shows as a text
INCONSISTENT = "Requires_grad inconsistent. "
ON_PURPOSE = ("Requires_grad Consistent", "Err_message", "Bench Name")


def compared(crossed: Crossed, case: Case) -> Comparison:
    files = {option: name and crossed.mapping(name) for option, name in case.mappings.items()}
    runs = crossed.run(case.target), crossed.run(case.golden)
    (found,) = compare(*runs, mappings=read_mappings(**files), fuzzy=case.fuzzy)
    return found


def shown(comparison: Comparison) -> dict[str, dict[str, Cell]]:
    """The rows of the target's places, by their names."""
    whole = table(comparison, with_stack=False)
    rows = (dict(zip(whole.columns, row, strict=True)) for row in whole.rows)
    return {str(row["NPU Name"]): row for row in rows if row["NPU Name"] not in NOBODY}


def paired(comparison: Comparison) -> dict[str, str]:
    pairs = (finding.pair for finding in comparison.findings)
    return {p.target.name: p.golden.name for p in pairs if p.target is not None and p.golden is not None}


def agree(ours: Cell, theirs: str, header: str) -> bool:
    """Numbers as far as 8.3.3 has digits: it divides numbers of 16 digits, and tensors in float32."""
    try:
        a, b = float(str(ours).rstrip("%")), float(theirs.rstrip("%"))
    except ValueError:
        return str(ours) == theirs
    digits = 1e-6 if header.endswith("RelativeErr") else 1e-9
    return a == b or (a != a and b != b) or math.isclose(a, b, rel_tol=digits, abs_tol=1e-12)


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_every_pair_of_8_3_3_is_ours_with_the_same_numbers(crossed: Crossed, case: Case) -> None:
    comparison = compared(crossed, case)
    ours, theirs = shown(comparison), crossed.table(case.result)
    assert list(ours) == [row["NPU Name"] for row in theirs]
    matched = [row for row in theirs if row["Bench Name"] not in NOBODY]
    assert [
        row["NPU Name"] for row in matched if ours[row["NPU Name"]]["Bench Name"] != row["Bench Name"]
    ] == []
    wrong = [
        (row["NPU Name"], header, ours[row["NPU Name"]][header], cell)
        for row in matched
        for header, cell in row.items()
        if header in ours[row["NPU Name"]]
        and header not in ON_PURPOSE
        and not agree(ours[row["NPU Name"]][header], cell, header)
        and ours[row["NPU Name"]][header] != DTYPE
    ]
    assert wrong == []
    assert [row["NPU Name"] for row in matched if unsaid(ours[row["NPU Name"]], row)] == []
    assert (len(matched), len(paired(comparison))) == (case.theirs, case.ours)


def unsaid(ours: dict[str, Cell], theirs: dict[str, str]) -> set[str]:
    """What 8.3.3 says of a pair and we do not; it says some of it several times, we what colours mean too."""
    sentences = theirs.get("Err_message", "").replace(INCONSISTENT, "").split(". ")
    return {sentence for sentence in sentences if sentence.strip() not in str(ours.get("Err_message", ""))}


@pytest.mark.parametrize("case", [case for case in CASES if case.theirs < case.ours], ids=str)
def test_what_nobody_pairs_differs_in_how_that_is_said(crossed: Crossed, case: Case) -> None:
    ours = shown(compared(crossed, case))
    alone = [row for row in crossed.table(case.result) if ours[row["NPU Name"]]["Bench Name"] in NOBODY]
    result = "Result" if "Result" in alone[0] else "Accuracy Reached or Not"
    said = {
        (header, str(ours[row["NPU Name"]][header]), cell)
        for row in alone
        for header, cell in row.items()
        if header in ours[row["NPU Name"]]
        and header != "Err_message"
        and not agree(ours[row["NPU Name"]][header], cell, header)
    }
    assert said - {("NPU Dtype", DTYPE, "<class 'str'>")} <= {
        (result, "Unmatched", "None"),
        (result, "Unmatched", "N/A"),
        ("Requires_grad Consistent", "False", "True"),
    }
    assert all(ours[row["NPU Name"]].get("Err_message", "why") for row in alone)
    assert all(row.get("Err_message", "No bench").startswith("No bench") for row in alone)


# 1.1.1 has the rows of parameters in none of its tables, and with -dm only those that the file names.
OLDER = [case for case in CASES if case.result not in ("lmn_mix_tensor", "kernel_all")]
ROWS_OF_1_1_1 = {"amcm": 47, "dm_mix_tensor": 4, "dm_mix_stat": 4, "lm_L0_tensor": 51, "lmt_mix_stat": 104}
ROWS_OF_1_1_1 |= {"none_L1_tensor": 3, "self_mix_tensor": 257, "self_mix_stat": 257}


DOCUMENTED = {
    "`-am`, L1": "am_L1_tensor",
    "`-am -cm`, mix": "amcm",
    "`-cm`, L0": "cm_L0_tensor",
    "`-dm`, mix": "dm_mix_tensor",
    "`-lm`, L0": "lm_L0_tensor",
    "`-lm`, mix": "lmt_mix_stat",
    "no mapping, L1": "none_L1_tensor",
}


@pytest.mark.parametrize("label", DOCUMENTED)
def test_the_counts_in_the_documentation(crossed: Crossed, label: str) -> None:
    """The tests above hold them true."""
    page = (Path(__file__).parent.parent / "docs" / "compare.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {label} |")]
    (case,) = [case for case in CASES if case.result == DOCUMENTED[label]]
    rows = len(crossed.table(case.result))
    expected = [ROWS_OF_1_1_1.get(case.result, case.theirs), case.theirs, f"{case.ours} of {rows}"]
    assert [cell.strip() for cell in line.split("|")[2:5]] == [str(count) for count in expected]


@pytest.mark.parametrize("case", OLDER, ids=str)
def test_every_pair_of_1_1_1_is_ours(crossed: Crossed, case: Case) -> None:
    ours = paired(compared(crossed, case))
    rows = crossed.table(case.result, release="1.1.1")
    theirs = {row["NPU Name"]: row["Bench Name"] for row in rows if row["Bench Name"] not in NOBODY}
    assert len(theirs) == ROWS_OF_1_1_1.get(case.result, case.theirs)
    assert theirs.items() <= ours.items()


@pytest.mark.parametrize(
    ("case", "crossing"),
    [
        (Case("am_L1_tensor", *L1, {"api": ""}, 53, 55), 16),
        (
            Case(
                "am_L1_stat",
                "ms_L1_statistics_statistics",
                "pt_L1_statistics_statistics",
                {"api": ""},
                53,
                55,
            ),
            16,
        ),
        (Case("amr_L1_tensor", *L1, {"api": "api_mapping_real"}, 53, 55), 16),
        (Case("cm_L0_tensor", *L0, {"cell": ""}, 20, 28), 0),
        (Case("dm_mix_tensor", *MIX, {"data": DATA}, 30, 32), 10),
        (Case("lm_mix_stat", *STATISTICS, {"layer": LAYER}, 128, 138), 16),
        (Case("md5", "msn_mix_statistics_md5", "ms_mix_statistics_md5", {}, 289, 289), 0),
        (Case("self", "msn_L1_tensor", "ms_L1_tensor", {}, 205, 205), 0),
    ],
    ids=str,
)
def test_every_pair_of_26_2_0_is_ours_but_those_it_crosses(
    crossed: Crossed, case: Case, crossing: int
) -> None:
    """Across frameworks it counts backward calls in the order in which they ran: from the last on."""
    comparison = compared(crossed, case)
    ours, rows = paired(comparison), crossed.table(case.result, release="26.2.0")
    theirs = {row["NPU Name"]: row["Bench Name"] for row in rows if row["Bench Name"] not in NOBODY}
    different = {name: other for name, other in theirs.items() if ours[name] != other}
    assert (len(theirs), len(ours), len(different)) == (case.theirs, case.ours, crossing)
    assert all(".backward." in name for name in different)
    agrees = {
        f.pair.place.name: v.level for f, v in zip(comparison.findings, comparison.verdicts, strict=True)
    }
    if case.golden.startswith("pt"):  # the nets are the same but for the epsilon of a norm
        assert {agrees[name] for name in different} <= {"same", "rounding", "passed on"}


@pytest.mark.parametrize("kind", ["mix_statistics_statistics", "mix_statistics_md5", "L1_tensor"])
def test_fuzzy_match_changes_nothing_where_names_are_equal(crossed: Crossed, kind: str) -> None:
    """With statistics 8.3.3 and 26.2.0 find no counterpart for any row then."""
    runs = crossed.run(f"msn_{kind}"), crossed.run(f"ms_{kind}")
    (exact,), (fuzzy,) = compare(*runs), compare(*runs, fuzzy=True)
    assert table(fuzzy, with_stack=False) == table(exact, with_stack=False)
    assert len(paired(fuzzy)) == len(fuzzy.findings)


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_runs_of_two_versions_are_compared(crossed: Crossed, level: str) -> None:
    """The older one does not count the gradients of parameters; all rows have a counterpart, and agree."""
    (found, _) = compare(crossed.run(f"versions/8.3.3_{level}"), crossed.run(f"versions/26.2.0_{level}"))
    reasons = {finding.pair.reason for finding in found.findings}
    assert reasons == {""}
    assert {verdict.level for verdict in found.verdicts} <= {"same", "rounding"}


# ---- the command ----


def request(folder: Path, target: Path, golden: Path) -> str:
    places = [next(run.rglob("dump.json")) for run in (target, golden)]
    path = folder / "compare.json"
    keys = {"npu_path": str(places[0]), "bench_path": str(places[1]), "is_print_compare_log": False}
    path.write_text(json.dumps({**keys, "stack_path": str(places[0].with_name("stack.json"))}))
    return str(path)


def command(crossed: Crossed, folder: Path, level: str, *words: str) -> int:
    file = request(folder, crossed.run(f"ms_{level}"), crossed.run(f"pt_{level}"))
    return main(["-f", "mindspore", "compare", "-i", file, "-o", str(folder / "out"), "-s", *words])


def names_in(folder: Path) -> dict[str, str]:
    (result,) = (folder / "out").glob("compare_result_[0-9]*.xlsx")
    sheet = openpyxl.load_workbook(result).active
    assert sheet is not None
    rows = list(sheet.iter_rows(values_only=True, max_col=2))[1:]
    return {str(ours): str(theirs) for ours, theirs in rows if "N/A" not in (ours, theirs)}


@pytest.mark.parametrize(
    "level",
    [
        pytest.param("L0", marks=[pytest.mark.spec("K003", "MSd"), pytest.mark.spec("K023", "MSd")]),
        pytest.param("L1", marks=[pytest.mark.spec("K001", "MSs"), pytest.mark.spec("K021", "MSs")]),
    ],
)
def test_the_recipe_for_two_versions(crossed: Crossed, tmp_path: Path, level: str) -> None:
    """A compare.json, -s, and a table in which every place has its counterpart."""
    runs = [crossed.run(f"versions/{version}_{level}") / "step0" for version in ("8.3.3", "26.2.0")]
    file = request(tmp_path, *runs)
    assert main(["-f", "mindspore", "compare", "-i", file, "-o", str(tmp_path / "out"), "-s"]) == 0
    (result,) = (tmp_path / "out").glob("compare_result_[0-9]*.xlsx")
    sheet = openpyxl.load_workbook(result).active
    assert sheet is not None
    header, *rows = sheet.iter_rows(values_only=True)
    table = [dict(zip(header, row, strict=True)) for row in rows]
    assert len(table) > 30 and {row["Result"] for row in table} <= {"", None}
    first = next(row for row in table if row["NPU_Stack_Info"] != "N/A")
    assert "in construct" in str(first["NPU_Stack_Info"])


@pytest.mark.spec("K008", "CLI")
@pytest.mark.spec("K031", "CLI")
@pytest.mark.spec("K032", "CLI")
@pytest.mark.parametrize(
    ("level", "words", "pair"),
    [
        pytest.param(
            "L1_tensor",
            [option],
            ("Mint.mul.1.forward.output.0", "Torch.mul.1.forward.output.0"),
            marks=pytest.mark.spec("K016", "CLI"),
        )
        for option in ("-am", "--api_mapping")
    ]
    + [
        pytest.param(
            "L1_tensor",
            ["-am", f"FILE:{name}"],
            ("Functional.abs.0.forward.input.0", "Torch.abs.0.forward.input.0"),
            marks=[pytest.mark.spec(row, "CLI") for row in ("K016", "K038", "K039", "K044")],
        )
        for name in ("api_mapping_single", "api_mapping", "api_mapping_real")
    ]
    + [
        pytest.param(
            "L0_tensor",
            [option],
            ("Cell.relu.ReLU.forward.0.output.0", "Module.relu.ReLU.forward.0.output.0"),
            marks=[pytest.mark.spec("K017", "CLI"), pytest.mark.spec("K025", "CLI")],
        )
        for option in ("-cm", "--cell_mapping")
    ]
    + [
        pytest.param(
            "L0_tensor",
            ["-cm", "FILE:cell_mapping"],
            ("Cell.embed.Dense.forward.0.output.0", "Module.embed.Linear.forward.0.output.0"),
            marks=[
                *(pytest.mark.spec(row, "CLI") for row in ("K017", "K025", "K045", "K046")),
                pytest.mark.spec("K005", "MSd", "PT"),
            ],
        ),
        pytest.param(
            "mix_tensor",
            ["-dm", "FILE:data_mapping"],
            ("Cell.embed.Dense.parameters_grad.weight", "Module.embed.Linear.parameters_grad.weight"),
            marks=[pytest.mark.spec(row, "CLI") for row in ("K026", "K047", "K048", "K049")],
        ),
        pytest.param(
            "mix_tensor",
            ["--layer_mapping", "FILE:layer_mapping"],
            (
                "Cell.layers.0.attention.qkv_proj.Dense.forward.0.output.0",
                "Module.layers.0.self_attention.query_key_value.Linear.forward.0.output.0",
            ),
            marks=[pytest.mark.spec(row, "CLI") for row in ("K019", "K027", "K050", "K052")],
        ),
        pytest.param(
            "mix_statistics_statistics",
            ["-lm", "FILE:layer_mapping_top"],
            (
                "Cell.layers.0.norm.LayerNorm.forward.0.output.0",
                "Module.layers.1.norm.LayerNorm.forward.0.output.0",
            ),
            marks=[pytest.mark.spec(row, "CLI") for row in ("K019", "K051")],
        ),
    ],
)
def test_the_command_pairs_what_its_mapping_says(
    crossed: Crossed, tmp_path: Path, level: str, words: list[str], pair: tuple[str, str]
) -> None:
    given = [crossed.mapping(word[5:]) if word.startswith("FILE:") else word for word in words]
    assert command(crossed, tmp_path, level, *given) == 0
    assert names_in(tmp_path)[pair[0]] == pair[1]


def test_a_layer_mapping_leaves_a_data_mapping_that_pairs_the_same(crossed: Crossed, tmp_path: Path) -> None:
    level = "mix_statistics_statistics"
    assert command(crossed, tmp_path, level, "-lm", crossed.mapping("layer_mapping")) == 0
    (written,) = (tmp_path / "out").glob("data_mapping_[0-9]*.yaml")
    again = tmp_path / "again"
    again.mkdir()
    assert command(crossed, again, level, "-dm", str(written)) == 0
    assert names_in(again) == names_in(tmp_path)


def test_without_a_mapping_the_report_tells_how_sure_each_pair_is(
    crossed: Crossed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pairs can be saved, and given back as a mapping."""
    saved = tmp_path / "pairs.yaml"
    assert command(crossed, tmp_path, "mix_tensor", "--save_mapping", str(saved)) == 0
    said = capsys.readouterr().out
    assert "aligned without a mapping: " in said and f"wrote {saved}: which place was compared" in said
    again = tmp_path / "again"
    again.mkdir()
    assert command(crossed, again, "mix_tensor", "-dm", str(saved)) == 0
    assert names_in(again) == names_in(tmp_path)
    assert "aligned without a mapping" not in capsys.readouterr().out
    assert "# 99 % sure: they have the same parameters" in saved.read_text()


def test_the_table_of_an_alignment_has_two_more_columns(crossed: Crossed) -> None:
    comparison = compared(crossed, Case("", *MIX, {}, 0, 0))
    rows = shown(comparison)
    assert tuple(next(iter(rows.values())))[-2:] == ALIGNMENT
    embed, to = rows["Cell.embed.Dense.forward.0.output.0"], rows["Tensor.to.0.forward.input.0"]
    assert tuple(embed[header] for header in ALIGNMENT) == (0.99, "they have the same parameters")
    assert tuple(to[header] for header in ALIGNMENT) == (None, None)
    assert to["Err_message"] == "no call of the golden run looks like it."
    assert ALIGNMENT[0] not in next(iter(shown(compared(crossed, CASES[0])).values()))


def test_real_differences_are_named_without_a_mapping(crossed: Crossed) -> None:
    """A layer norm of MindSpore adds 1e-7, one of PyTorch 1e-5; and 2.0 became 2.01 in the target."""
    comparison = compared(crossed, Case("", "msn_mix_tensor", "pt_mix_tensor", {}, 0, 0))
    culprit = comparison.located.culprit
    assert (
        culprit is not None and str(culprit.place.record.name) == "Primitive.layer_norm.LayerNorm.0.forward"
    )
    made = {
        finding.pair.place.name
        for finding, verdict in zip(comparison.findings, comparison.verdicts, strict=True)
        if verdict.is_origin
    }
    assert made == {
        "Primitive.layer_norm.LayerNorm.0.forward.output.0",
        "Mint.mul.0.forward.input.1",
        "Mint.mul.1.forward.input.1",
    }


@pytest.mark.spec("K026", "CLI")
def test_a_data_mapping_completes_what_the_others_miss(crossed: Crossed, tmp_path: Path) -> None:
    """LayerNorm of a primitive is no API that a table knows; single places go before all the rest."""
    lines = {
        "Primitive.layer_norm.LayerNorm.0.forward.input.1": "Functional.layer_norm.0.forward.input.2",
        "Functional.abs.0.forward.input.0": "N/A",
    }
    path = tmp_path / "data.yaml"
    path.write_text("".join(f"{target}: {golden}\n" for target, golden in lines.items()))
    mappings = read_mappings(api="", cell=crossed.mapping("cell_mapping"), data=str(path))
    (found,) = compare(crossed.run(MIX[0]), crossed.run(MIX[1]), mappings=mappings)
    pairs = paired(found)
    assert (
        pairs.items()
        >= {
            "Primitive.layer_norm.LayerNorm.0.forward.input.1": "Functional.layer_norm.0.forward.input.2",
            "Functional.abs.0.forward.output.0": "Torch.abs.0.forward.output.0",
            "Cell.embed.Dense.forward.0.input.0": "Module.embed.Linear.forward.0.input.0",
        }.items()
    )
    assert "Functional.abs.0.forward.input.0" not in pairs


@pytest.mark.spec("K049", "CLI")
def test_keywords_are_named_as_in_their_files(tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    path.write_text("Cell.a.B.forward.0.kwargs.mask.npy: Module.a.B.forward.0.input.mask\n")
    (line,) = read_data_mapping(str(path)).lines
    assert (line.target, line.golden) == (
        "Cell.a.B.forward.0.input.mask",
        "Module.a.B.forward.0.input.mask",
    )


def test_an_adapter_that_names_calls_as_pytorch_does_needs_no_mapping(crossed: Crossed) -> None:
    (golden,) = store.read(crossed.run("pt_mix_statistics_statistics"))
    target = dataclasses.replace(golden, header=golden.header._replace(framework="mindtorch"))
    comparison = compare_recordings(target, golden)
    assert {verdict.level for verdict in comparison.verdicts} <= {"same", "not judged"}
    assert {finding.pair.certainty for finding in comparison.findings} == {None}


# ---- layers ----


def model(prefix: str, *modules: str, apis: tuple[tuple[str, str], ...] = ()) -> Recording:
    """A recording of modules, and of APIs with the module that each was called in."""
    framework = "mindspore" if prefix == "Cell" else "pytorch"
    leaf = Leaf("Tensor", dtype="Float32", shape=(2,))
    fields = {"input_args": [leaf], "output": [leaf]}
    records = [
        Record(CallName.parse(f"{prefix}.{name}.{side}.0"), fields, has_parent=True)
        for name in modules
        for side in ("forward", "backward")
    ]
    for api, around in apis:
        parent = f"{prefix}.{around}.forward.0" if around else None
        records.append(Record(CallName.parse(f"{api}.forward"), fields, parent=parent, has_parent=True))
    return Recording(Header("statistics", "mix", framework), {str(r.name): r for r in records}, prefix)


def layered(text: str, folder: Path, target: Recording, golden: Recording) -> dict[str, str]:
    path = folder / "layers.yaml"
    path.write_text(text)
    return paired_by_layer(read_layer_mapping(str(path)), target, golden)


@pytest.mark.spec("K050", "CLI")
@pytest.mark.spec("K051", "CLI")
@pytest.mark.spec("K052", "CLI")
@pytest.mark.parametrize(
    ("text", "ours", "theirs"),
    [
        ("Cell:\n  network_with_loss: module\n", "network_with_loss.Net", "module.Net"),
        ("TopLayer:\n  a.b.c: x\n", "a.b.c.d.Net", "x.d.Net"),
        ("TopLayer:\n  a: x.y\n", "a.b.Net", "x.y.b.Net"),
        ("layers:\n  '5': '0'\n", "layers.5.fc.Dense", "layers.0.fc.Linear"),
        ("Block:\n  fc: linear(a Linear)\n", "blk.fc.Dense", "blk.linear.Linear"),
        ("Other:\n  fc: linear\n", "blk.fc.Dense", "blk.fc.Linear"),
    ],
)
def test_layers_are_called_as_the_file_says(tmp_path: Path, text: str, ours: str, theirs: str) -> None:
    target, golden = model("Cell", ours, "blk.Block"), model("Module", theirs, "blk.Block")
    found = layered(text, tmp_path, target, golden)
    assert {a: b for a, b in found.items() if "blk.Block" not in a} == {
        f"Cell.{ours}.{side}.0": f"Module.{theirs}.{side}.0" for side in ("forward", "backward")
    }


def test_apis_are_paired_in_their_layers_whatever_their_prefix(tmp_path: Path) -> None:
    target = model("Cell", "a.Net", apis=(("Mint.mul.0", "a.Net"), ("Mint.mul.1", ""), ("Mint.add.0", "")))
    golden = model("Module", "x.Net", apis=(("Torch.mul.0", ""), ("Torch.mul.1", "x.Net")))
    found = layered("TopLayer:\n  a: x\n", tmp_path, target, golden)
    assert {a: b for a, b in found.items() if a.startswith("Mint")} == {
        "Mint.mul.0.forward": "Torch.mul.1.forward",
        "Mint.mul.1.forward": "Torch.mul.0.forward",
    }


def test_layers_of_a_pipeline_stage_are_numbered_afresh(tmp_path: Path) -> None:
    target = model("Cell", "net.ParallelTransformer", "net.layers.4.Layer", "net.layers.5.Layer")
    golden = model("Module", "net.ParallelTransformer", "net.layers.0.Layer", "net.layers.1.Layer")
    found = layered("Layer:\n  a: b\n", tmp_path, target, golden)
    assert found["Cell.net.layers.5.Layer.forward.0"] == "Module.net.layers.1.Layer.forward.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TopLayer:\n  a: x\nNet:\n  fc: linear\n", []),
        (
            "TopLayer:\n  b: x\nNet:\n  fc: linear\n  fd: linear\n",
            [
                "2: the target has no 'b'; at least not in a layer 'TopLayer', so the line pairs nothing.",
                "4: the golden run has no 'linear'; at least not where the target has 'fc' in a layer 'Net'.",
                "5: the target has no 'fd'; at least not in a layer 'Net', so the line pairs nothing.",
            ],
        ),
        (
            "Cell:\n  a: y\nBlock:\n  fc: linear\n  fd: linear\n",
            [
                "2: the golden run has no 'y'; at least not where the target has 'a' in a layer 'Cell'.",
                "4: the target has no 'Block'; no layer of it is of this class or name, so the lines below "
                "pair nothing.",
            ],
        ),
    ],
)
def test_lines_of_a_layer_mapping_that_pair_nothing_are_told(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    target, golden = model("Cell", "a.Net", "a.fc.Dense"), model("Module", "x.Net", "x.linear.Linear")
    path = tmp_path / "layers.yaml"
    path.write_text(text)
    mappings = Mappings(layer=read_layer_mapping(str(path)))
    assert sentences([strays(mappings, target, golden)]) == [f"{path}, line {told}" for told in expected]


def test_the_command_tells_names_of_every_mapping_that_no_recording_has(
    crossed: Crossed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "-am": ("api", "ms_api: Mint.nothing\npt_api: Torch.mul\n", "the target has no 'Mint.nothing'"),
        "-cm": ("cell", "embed.Dense: embed.Linaer\n", "the nearest name is 'embed.Linear'"),
        "-dm": ("data", "Mint.mul.9.forward: N/A\n", "the target has no 'Mint.mul.9.forward'"),
        "-lm": ("layer", "Attn:\n  qkv: dense\n", "the target has no 'qkv'; at least not in a layer 'Attn'"),
    }
    words = []
    for option, (name, text, _) in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        words += [option, str(tmp_path / f"{name}.yaml")]
    assert command(crossed, tmp_path, "mix_statistics_statistics", *words) == 0
    said = capsys.readouterr()
    for name, _, sentence in files.values():
        (told,) = (line for line in (said.out + said.err).splitlines() if f"{name}.yaml, line" in line)
        assert "WARNING" in told and sentence in told


# ---- what cannot be used ----


@pytest.mark.parametrize("option", [{"api": ""}, {"cell": ""}, {"layer": "layer_mapping"}])
def test_the_run_of_mindspore_comes_first(crossed: Crossed, option: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="is for a target of MindSpore and a golden run of PyTorch, but "):
        compared(crossed, Case("", "pt_mix_tensor", "ms_mix_tensor", option, 0, 0))


def test_runs_are_aligned_whichever_comes_first(crossed: Crossed) -> None:
    there = paired(compared(crossed, Case("", *MIX, {}, 0, 0)))
    back = paired(compared(crossed, Case("", MIX[1], MIX[0], {}, 0, 0)))
    assert {b: a for a, b in back.items()} == there


def test_a_layer_mapping_needs_the_model(crossed: Crossed) -> None:
    with pytest.raises(UsageError, match="-lm needs recordings of level L0 or mix, .* has level L1"):
        compared(crossed, Case("", *L1, {"layer": LAYER}, 0, 0))


@pytest.mark.spec("K042", "CLI")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "ms_api: Functional.abs\npt_api: Torch.abs\nms_args: [1]\npt_args: [0]\n",
            "line 1: 'ms_args' holds the position 1, but the calls of Functional.abs have 1;",
        ),
        (
            "- ms_api: Mint.mul\n  pt_api: Torch.mul\n  ms_outputs: [0]\n  pt_outputs: [3]\n",
            "line 1: 'pt_outputs' holds the position 3, but the calls of Torch.mul have 1;",
        ),
    ],
)
def test_a_position_that_no_call_has_is_told(
    crossed: Crossed, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "api.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        compare(crossed.run(L1[0]), crossed.run(L1[1]), mappings=read_mappings(api=str(path)))


@pytest.mark.spec("K040", "CLI")
@pytest.mark.spec("K024", "CLI")
def test_positions_are_paired_as_the_file_says_and_others_are_left_out(
    crossed: Crossed, tmp_path: Path
) -> None:
    """Own entries go first; what they do not name goes by the built-in table."""
    path = tmp_path / "api.yaml"
    path.write_text("ms_api: Tensor.__add__\npt_api: Tensor.__add__\nms_args: [1]\npt_args: [0]\n")
    (found,) = compare(crossed.run(L1[0]), crossed.run(L1[1]), mappings=read_mappings(api=str(path)))
    pairs = {a: b for a, b in paired(found).items() if a.startswith("Tensor.__add__.0")}
    assert pairs == {
        "Tensor.__add__.0.forward.input.1": "Tensor.__add__.0.forward.input.0",
        "Tensor.__add__.0.forward.output.0": "Tensor.__add__.0.forward.output.0",
        "Tensor.__add__.0.backward.input.0": "Tensor.__add__.0.backward.input.0",
        "Tensor.__add__.0.backward.output.1": "Tensor.__add__.0.backward.output.0",
    }
    assert paired(found)["Functional.abs.0.forward.input.0"] == "Torch.abs.0.forward.input.0"


def test_apis_that_are_one_in_pytorch_are_counted_together() -> None:
    """ops.abs and mint.abs count for themselves; where calls are missing, their own numbers count."""
    golden = model("Module", apis=tuple((f"Torch.abs.{n}", "") for n in range(3)))
    api = Mappings(api=ApiMapping())
    for calls, expected in (
        (("Mint.abs.0", "Functional.abs.0", "Mint.abs.1"), (0, 1, 2)),
        (("Mint.abs.1", "Functional.abs.0"), (1, 0)),
    ):
        target = model("Cell", apis=tuple((name, "") for name in calls))
        pairs = match(target, golden, rename=across(api, target, golden, built_in_apis()))
        found = [p.golden.name for p in pairs if p.target and p.golden and p.target.side == "output"]
        assert found == [f"Torch.abs.{n}.forward.output.0" for n in expected]


@pytest.mark.spec("K043", "CLI")
def test_the_built_in_table_pairs_apis_by_what_they_do() -> None:
    known = built_in_apis()
    assert {
        "Functional.abs": ("Torch.abs",),
        "Functional.dense": ("Functional.linear",),
        "Functional.equal": ("Torch.eq",),
        "Functional.softmax": ("Functional.softmax", "Torch.softmax"),
        "Functional.gather_elements": ("Torch.gather",),
        "Tensor.asnumpy": ("Tensor.numpy",),
    }.items() <= known.items()
    prefixes = {name.partition(".")[0] for names in known.values() for name in names}
    assert prefixes == {"Torch", "Functional", "Tensor", "NPU"}


def certain(pair: Pair) -> float:
    return pair.certainty.share if pair.certainty is not None else 0.0


def test_every_aligned_pair_of_the_real_run_is_fairly_sure(crossed: Crossed) -> None:
    comparison = compared(crossed, Case("", *MIX, {}, 0, 0))
    pairs = [finding.pair for finding in comparison.findings if finding.pair.certainty is not None]
    assert min(map(certain, pairs)) >= 0.9
