"""Mapping files: what may stand in them, what they pair, and what is said of a name that was not recorded."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare_case import Call, recorded
from msprobe.cli.main import main
from msprobe.errors import ConfigError, UsageError
from msprobe.mapping_file import (
    read_api_mapping,
    read_cell_mapping,
    read_data_mapping,
    read_layer_mapping,
    read_mappings,
)
from msprobe.name import CallName
from msprobe.pairing.mapping import (
    ApiLine,
    ApiMapping,
    CellMapping,
    DataMapping,
    LayerMapping,
    Line,
    Mappings,
    renaming,
)
from msprobe.pairing.match import match
from msprobe.pairing.strays import sentences, strays
from msprobe.record import Header, Leaf, Record, Recording

READERS: dict[str, Callable[[str], Any]] = {
    "api": read_api_mapping,
    "cell": read_cell_mapping,
    "data": read_data_mapping,
    "layer": read_layer_mapping,
}


def leaf(*shape: int) -> Leaf:
    return Leaf("torch.Tensor", dtype="torch.float32", shape=shape)


def record(name: str, inputs: int = 1, outputs: int = 1, shape: tuple[int, ...] = (2,)) -> Record:
    parsed = CallName.parse(name)
    if parsed.direction == "parameters_grad":
        return Record(parsed, {"weight": [leaf(*shape)]})
    if parsed.direction == "debug":
        return Record(parsed, {"value": leaf(*shape)})
    fields = {"input_args": [leaf(*shape)] * inputs, "output": [leaf(*shape)] * outputs}
    return Record(parsed, fields)


def recording(*records: Record | str) -> Recording:
    made = [record(each) if isinstance(each, str) else each for each in records]
    header = Header("statistics", "mix", "pytorch")
    return Recording(header, {str(each.name): each for each in made}, "somewhere")


def cells(**lines: str) -> Mappings:
    return Mappings(
        cell=CellMapping("cells.yaml", numbered({k.replace("_", "."): v for k, v in lines.items()}))
    )


def data(lines: dict[str, str]) -> Mappings:
    return Mappings(data=DataMapping("data.yaml", numbered(lines)))


def numbered(lines: dict[str, str]) -> tuple[Line, ...]:
    return tuple(Line(target, golden, number) for number, (target, golden) in enumerate(lines.items(), 1))


def rows(
    target: Recording, golden: Recording, mappings: Mappings, *, fuzzy: bool = False
) -> list[tuple[str | None, str | None, str]]:
    pairs = match(target, golden, fuzzy=fuzzy, rename=renaming(mappings, "pytorch"))
    return [(p.target and p.target.name, p.golden and p.golden.name, p.reason) for p in pairs]


# --- renamed modules -------------------------------------------------------------------------------------

TAKEN = "the mapping pairs the golden run's {} of this name with another one"


@pytest.mark.parametrize(
    "mappings",
    [
        cells(enc_l1_Linear="encoder.layer1.Linear"),
        cells(enc_l1="encoder.layer1"),
        cells(enc="nothing", enc_l1="encoder.layer1"),
    ],
    ids=["path and class", "path", "longest path"],
)
def test_a_renamed_module_pairs_with_all_its_records(mappings: Mappings) -> None:
    sides = ("forward.0", "backward.0", "parameters_grad")
    target = recording("Torch.add.0.forward", *(f"Module.enc.l1.Linear.{side}" for side in sides))
    golden = recording("Torch.add.0.forward", *(f"Module.encoder.layer1.Linear.{side}" for side in sides))
    places = (
        "forward.0.input.0",
        "forward.0.output.0",
        "backward.0.input.0",
        "backward.0.output.0",
        "parameters_grad.weight",
    )
    assert rows(target, golden, mappings) == [
        *(
            (f"Torch.add.0.forward.{slot}.0", f"Torch.add.0.forward.{slot}.0", "")
            for slot in ("input", "output")
        ),
        *((f"Module.enc.l1.Linear.{place}", f"Module.encoder.layer1.Linear.{place}", "") for place in places),
    ]


def test_a_path_brings_along_all_that_lies_below_it() -> None:
    target = recording(
        "Module.enc.l1.Linear.forward.0", "Module.enc.l2.Conv.forward.0", "Module.enc.Encoder.forward.0"
    )
    golden = recording(
        "Module.encoder.l1.Linear.forward.0", "Module.stem.Conv.forward.0", "Module.encoder.Encoder.forward.0"
    )
    mappings = cells(enc="encoder", enc_l2_Conv="stem.Conv")
    found = rows(target, golden, mappings)
    assert [golden for _, golden, _ in found] == [
        f"Module.{name}.forward.0.{slot}.0"
        for name in ("encoder.l1.Linear", "stem.Conv", "encoder.Encoder")
        for slot in ("input", "output")
    ]
    assert {reason for *_, reason in found} == {""}


@pytest.mark.spec("K045", "CLI")
def test_the_namesake_does_not_get_what_a_line_gives_to_another() -> None:
    target = recording(*(f"Module.conv{number}.Conv2d.forward.0" for number in (1, 2, 3)))
    golden = recording(*(f"Module.conv{number}.Conv2d.forward.0" for number in (2, 3)))
    found = rows(target, golden, cells(conv1_Conv2d="conv3.Conv2d"))
    assert [row for row in found if "output" in str(row)] == [
        ("Module.conv1.Conv2d.forward.0.output.0", "Module.conv3.Conv2d.forward.0.output.0", ""),
        ("Module.conv2.Conv2d.forward.0.output.0", "Module.conv2.Conv2d.forward.0.output.0", ""),
        ("Module.conv3.Conv2d.forward.0.output.0", None, TAKEN.format("call")),
    ]


def test_two_modules_may_change_places_or_share_one() -> None:
    two = recording("Module.a.Linear.forward.0", "Module.b.Linear.forward.0")
    swapped = rows(two, two, cells(a="b", b="a"))
    assert [row[:2] for row in swapped[1::2]] == [
        ("Module.a.Linear.forward.0.output.0", "Module.b.Linear.forward.0.output.0"),
        ("Module.b.Linear.forward.0.output.0", "Module.a.Linear.forward.0.output.0"),
    ]
    shared = rows(two, recording("Module.c.Linear.forward.0"), cells(a="c", b="c"))
    assert [row[1] for row in shared[1::2]] == ["Module.c.Linear.forward.0.output.0"] * 2


def test_a_renamed_module_that_the_golden_run_lacks_is_shown_from_both_sides() -> None:
    found = rows(recording("Module.a.Linear.forward.0"), recording("Module.c.Linear.forward.0"), cells(a="b"))
    reason = "the golden run has no Module.b.Linear.forward.0, which the mapping names"
    assert found[::2] == [
        (None, "Module.c.Linear.forward.0.input.0", "the target has no such call"),
        ("Module.a.Linear.forward.0.input.0", None, reason),
    ]


def test_only_modules_are_renamed_by_a_cell_mapping() -> None:
    both = recording("Torch.a.0.forward")
    assert rows(both, both, cells(a="b"))[0] == ("Torch.a.0.forward.input.0",) * 2 + ("",)


def test_fuzzy_goes_by_the_renamed_modules() -> None:
    target = recording(record("Module.enc.Linear.forward.0", shape=(7,)), "Module.enc.Linear.forward.1")
    golden = recording("Module.encoder.Linear.forward.0")
    pairs = match(target, golden, fuzzy=True, rename=renaming(cells(enc="encoder"), "pytorch"))
    assert [(p.golden and p.golden.name, p.reason, p.fuzzy) for p in pairs[1::2]] == [
        (None, "the golden run has no Module.encoder.Linear.forward.0, which the mapping names", False),
        ("Module.encoder.Linear.forward.0.output.0", "", True),
    ]


def test_a_renamed_module_alone_is_not_a_fuzzy_match() -> None:
    target, golden = recording("Module.enc.Linear.forward.0"), recording("Module.encoder.Linear.forward.0")
    pairs = match(target, golden, fuzzy=True, rename=renaming(cells(enc="encoder"), "pytorch"))
    assert [(p.reason, p.fuzzy) for p in pairs] == [("", False)] * 2


# --- single calls and places -------------------------------------------------------------------------------


def test_a_place_pairs_with_a_place_of_any_call() -> None:
    target = recording(record("Functional.attention.4.forward", inputs=2), "Torch.a.0.forward")
    golden = recording(record("NPU.fusion.4.forward", inputs=2), "Torch.a.0.forward")
    found = rows(
        target,
        golden,
        data(
            {
                "Functional.attention.4.forward.input.1": "NPU.fusion.4.forward.input.0",
                "Torch.a.0.forward.input.0": "N/A",
            }
        ),
    )
    assert found == [
        (None, "NPU.fusion.4.forward.input.1", "the target has no such call"),
        (None, "NPU.fusion.4.forward.output.0", "the target has no such call"),
        ("Functional.attention.4.forward.input.0", None, "the golden run has no such call"),
        ("Functional.attention.4.forward.input.1", "NPU.fusion.4.forward.input.0", ""),
        ("Functional.attention.4.forward.output.0", None, "the golden run has no such call"),
        ("Torch.a.0.forward.input.0", None, "the mapping says that it has no counterpart"),
        ("Torch.a.0.forward.output.0", "Torch.a.0.forward.output.0", ""),
        (None, "Torch.a.0.forward.input.0", "this call has no such place in the target"),
    ]


def test_a_call_pairs_with_a_call() -> None:
    target = recording("Torch.a.0.forward", "Torch.a.1.forward")
    golden = recording("Torch.a.0.forward", "Torch.a.1.forward", "Torch.b.7.forward")
    found = rows(target, golden, data({"Torch.a.0.forward": "Torch.a.1.forward", "Torch.a.1.forward": "N/A"}))
    assert found[::2] == [
        (None, "Torch.a.0.forward.input.0", "the target has no such call"),
        ("Torch.a.0.forward.input.0", "Torch.a.1.forward.input.0", ""),
        (None, "Torch.b.7.forward.input.0", "the target has no such call"),
        ("Torch.a.1.forward.input.0", None, "the mapping says that it has no counterpart"),
    ]


def test_a_call_whose_namesake_is_given_away_has_none() -> None:
    target, golden = recording("Torch.a.0.forward", "Torch.b.0.forward"), recording("Torch.b.0.forward")
    for fuzzy in (False, True):
        found = rows(target, golden, data({"Torch.a.0.forward": "Torch.b.0.forward"}), fuzzy=fuzzy)
        assert found[1::2] == [
            ("Torch.a.0.forward.output.0", "Torch.b.0.forward.output.0", ""),
            ("Torch.b.0.forward.output.0", None, TAKEN.format("call")),
        ]


def test_places_of_one_call_may_change_places() -> None:
    both = recording(record("Torch.a.0.forward", inputs=3))
    name = "Torch.a.0.forward.input.{}".format
    found = rows(both, both, data({name(0): name(1), name(1): name(0)}))
    assert [row[1] for row in found] == [name(1), name(0), name(2), "Torch.a.0.forward.output.0"]
    found = rows(both, both, data({name(0): name(1)}))
    assert found == [
        (name(0), name(1), ""),
        (name(1), None, TAKEN.format("place")),
        (name(2), name(2), ""),
        ("Torch.a.0.forward.output.0",) * 2 + ("",),
        (None, name(0), "this call has no such place in the target"),
    ]


def test_a_saved_variable_pairs_with_a_place() -> None:
    found = rows(
        recording("loss.0.debug"),
        recording("Torch.a.0.forward"),
        data({"loss.0.debug": "Torch.a.0.forward.output.0"}),
    )
    assert found[-1] == ("loss.0.debug", "Torch.a.0.forward.output.0", "")


def test_a_line_of_data_goes_before_a_line_of_cells() -> None:
    target = recording("Module.a.Linear.forward.0")
    golden = recording("Module.b.Linear.forward.0", "Module.c.Linear.forward.0")
    names = {"Module.a.Linear.forward.0": "Module.c.Linear.forward.0"}
    both = Mappings(cell=cells(a="b").cell, data=data(names).data)
    assert [row[1] for row in rows(target, golden, both) if row[0]] == [
        "Module.c.Linear.forward.0.input.0",
        "Module.c.Linear.forward.0.output.0",
    ]


def test_a_line_that_the_target_lacks_takes_nothing_away() -> None:
    both = recording("Torch.a.0.forward")
    place = "Torch.a.0.forward.input.0"
    assert rows(
        both, both, data({"Torch.x.0.forward.input.0": place, "Torch.x.0.forward": "Torch.a.0.forward"})
    ) == [
        (place, place, ""),
        ("Torch.a.0.forward.output.0", "Torch.a.0.forward.output.0", ""),
    ]


@pytest.mark.parametrize(
    ("mappings", "sentence"),
    [
        (Mappings(api=ApiMapping()), "-am pairs the APIs of MindSpore with those of PyTorch, but both"),
        (Mappings(layer=LayerMapping("x.yaml", ())), "-lm pairs the layers of a MindSpore model with those"),
        (Mappings(cell=CellMapping()), "-cm without a file pairs the cells of MindSpore with the modules"),
    ],
)
def test_what_means_something_across_frameworks_only_is_refused_within_one(
    mappings: Mappings, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        renaming(mappings, "pytorch")


# --- names that were not recorded ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mappings", "expected"),
    [
        (cells(enc_l1_Linear="encoder.l1.Linear"), []),
        (cells(enc="encoder"), []),
        (
            cells(enc_11_Linear="encoder.l1.Linear"),
            ["cells.yaml, line 1: the target has no 'enc.11.Linear'; the nearest name is 'enc.l1.Linear'."],
        ),
        (
            cells(enc_l1_Linear="encodr.l1"),
            ["cells.yaml, line 1: the golden run has no 'encodr.l1'; the nearest name is 'encoder.l1'."],
        ),
        (
            cells(encoder="enc"),
            [
                f"cells.yaml, line 1: the {whose} has no '{name}'; the other run has it: the target's name "
                "stands before the colon, the golden run's behind it."
                for whose, name in (("target", "encoder"), ("golden run", "enc"))
            ],
        ),
        (
            cells(enc="encoder", zzz="encoder"),
            ["cells.yaml, line 2: the target has no 'zzz'; so the line pairs nothing."],
        ),
        (data({"Torch.a.0.forward.input.0": "N/A", "Torch.a.0.forward": "Torch.a.0.forward"}), []),
        (
            data({"Torch.a.0.forward.input.1": "Torch.a.1.forward.input.0"}),
            [
                "data.yaml, line 1: the target has no 'Torch.a.0.forward.input.1'; the nearest name is "
                "'Torch.a.0.forward.input.0'.",
                "data.yaml, line 1: the golden run has no 'Torch.a.1.forward.input.0'; the nearest name is "
                "'Torch.a.0.forward.input.0'.",
            ],
        ),
    ],
)
def test_a_name_that_was_not_recorded_is_told(mappings: Mappings, expected: list[str]) -> None:
    target = recording("Torch.a.0.forward", "Module.enc.l1.Linear.forward.0")
    golden = recording("Torch.a.0.forward", "Module.encoder.l1.Linear.forward.0")
    assert sentences([strays(mappings, target, golden)]) == expected


def test_only_what_every_rank_lacks_is_told() -> None:
    first, second = recording("Module.a.Linear.forward.0"), recording("Module.b.Linear.forward.0")
    mappings = cells(a="a", b="b", c="a")
    found = [strays(mappings, each, each) for each in (first, second)]
    assert sentences(found) == ["cells.yaml, line 3: the target has no 'c'; so the line pairs nothing."]
    assert sentences([]) == []


def test_of_very_many_names_the_first_are_told() -> None:
    one = recording("Module.a.Linear.forward.0")
    told = sentences([strays(data({f"X.{n}.0.forward": "N/A" for n in range(30)}), one, one)])
    assert len(told) == 21
    assert told[-1] == "No recording has 10 more names of the mapping files."


# --- files -----------------------------------------------------------------------------------------------


API = """ms_api: Functional.abs
pt_api: Torch.abs
ms_args:
- 0
- 2
pt_args: [0, 1]
ms_outputs:
- 0
pt_outputs:
- 0
# a remark
"""
LAYERS = """ParallelAttention:                 # a layer
  qkv_proj: query_key_value
  out_proj: dense

Cell:
  network_with_loss: module

layers:
  '5': '0'
  6: 1
"""


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        pytest.param(
            "api",
            API,
            (ApiLine("Functional.abs", "Torch.abs", 1, ((0, 0), (2, 1)), ((0, 0),)),),
            marks=[pytest.mark.spec("K038", "CLI"), pytest.mark.spec("K044", "CLI")],
        ),
        pytest.param(
            "api",
            "- {ms_api: Mint.mul, pt_api: Torch.mul}\n"
            "- ms_api: Functional.softmax\n  pt_api: Functional.softmax\n"
            "  ms_output: [0]\n  pt_output: [0]\n",
            (
                ApiLine("Mint.mul", "Torch.mul", 1),
                ApiLine("Functional.softmax", "Functional.softmax", 2, None, ((0, 0),)),
            ),
            marks=pytest.mark.spec("K044", "CLI"),
        ),
        (
            "cell",
            "fc2.Dense: fc2.Linear\n\nconv1.Conv2d: conv3.Conv2d  # moved\non: no\n1e3: 0x1F\n",
            (
                Line("fc2.Dense", "fc2.Linear", 1),
                Line("conv1.Conv2d", "conv3.Conv2d", 3),
                Line("on", "no", 4),
                Line("1e3", "0x1F", 5),
            ),
        ),
        pytest.param(
            "data",
            "# API\n"
            "Functional.flash_attention_score.4.forward.input.0: NPU.npu_fusion_attention.4.forward.input.0\n"
            "Cell.relu.ReLU.forward.0.input.0.npy: Module.embedding.Embedding.forward.0.input.0.pt\n"
            "Torch.a.0.forward: Torch.b.0.forward\n"
            "loss.0.debug: Torch.b.0.forward.output.0\nx.0.debug: N/A\n",
            (
                Line(
                    "Functional.flash_attention_score.4.forward.input.0",
                    "NPU.npu_fusion_attention.4.forward.input.0",
                    2,
                ),
                Line("Cell.relu.ReLU.forward.0.input.0", "Module.embedding.Embedding.forward.0.input.0", 3),
                Line("Torch.a.0.forward", "Torch.b.0.forward", 4),
                Line("loss.0.debug", "Torch.b.0.forward.output.0", 5),
                Line("x.0.debug", "N/A", 6),
            ),
            marks=pytest.mark.spec("K049", "CLI"),
        ),
        (
            "layer",
            LAYERS,
            (
                ("ParallelAttention", (Line("qkv_proj", "query_key_value", 2), Line("out_proj", "dense", 3))),
                ("Cell", (Line("network_with_loss", "module", 6),)),
                ("layers", (Line("5", "0", 9), Line("6", "1", 10))),
            ),
        ),
    ],
)
def test_a_file_is_read(tmp_path: Path, kind: str, text: str, expected: Any) -> None:
    path = str(written(tmp_path, text))
    assert READERS[kind](path) == (path, expected)
    assert read_mappings(**{kind: path}) == Mappings(**{kind: READERS[kind](path)})


def written(folder: Path, text: str | bytes, name: str = "any_name.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


PLACE = "Torch.a.0.forward.input.0"
ABS = "ms_api: A.abs\npt_api: T.abs\n"
NO_LIST = "line 3: 'ms_args' must be a list of positions"
BAD = [
    ("cell", "", "line 1: the file is empty."),
    ("cell", "# nothing\n", "line 1: the file is empty."),
    ("cell", "{}", "line 1: nothing is mapped here."),
    ("cell", "a.B\n", "line 1: 'a.B' stands where `key: value` is expected."),
    ("cell", "- a: b\n", "line 1: a list stands where `key: value` is expected."),
    ("cell", "a:b\n", "line 1: a space is missing behind the colon."),
    ("cell", "x: y\na:b\nz: w\n", "line 2: a space is missing behind the colon."),
    ("cell", "a：b\n", "line 1: the character '：' is not the colon of YAML; type ':' and a space."),
    (
        "cell",
        "x: y\na：b\nz: w\n",
        "line 2: the character '：' is not the colon of YAML; type ':' and a space.",
    ),
    ("cell", "x: y\n\ta: b\n", "line 2: a tab stands at the beginning of the line; YAML indents by spaces."),
    ("cell", "a: b: c\n", "line 1: this is not YAML: mapping values are not allowed"),
    ("cell", "a: [b\n", "this is not YAML: "),
    ("cell", "a:\nb: c\n", "line 1: nothing stands behind 'a:'."),
    ("cell", "a: ''\n", "line 1: nothing stands behind 'a:'."),
    ("cell", "a: b\na: c\n", "line 2: 'a' stands here a second time (first in line 1)."),
    ("cell", "a:\n- b\n", "line 1: behind 'a:' must stand one name."),
    ("cell", "? [a]\n: b\n", "line 1: the key before a colon must be one text."),
    ("cell", "a: b\n---\nc: d\n", "line 2: a second document begins here; only one can stand in a file."),
    ("cell", "a: !!python/object/apply:os.system [ls]\n", "line 1: tags (!) are not read;"),
    ("cell", "a: &x b\nc: *x\n", "line 1: anchors and aliases (& and *) are not read;"),
    ("cell", "a: *x\n", "line 1: anchors and aliases (& and *) are not read;"),
    ("cell", "a: b\n\x00: c\n", "line 2: the character '\\x00' cannot stand in YAML."),
    ("cell", b"a: b\n\xff: c\n", "line 2: this is not UTF-8 text; save the file in UTF-8."),
    ("cell", '"a\\nb": c\n', "line 1: 'a\\nb' is not a name."),
    ("cell", "a: N/A\n", "line 1: 'N/A' is not a name."),
    (
        "cell",
        "Module.a.B: c.D\n",
        "line 1: 'Module.a.B' is more than path and class of a module; give these alone",
    ),
    ("cell", "a.B.forward.0: c.D\n", "line 1: 'a.B.forward.0' is more than path and class of a module;"),
    ("cell", "a.B: c.D.backward.0.input.0\n", "line 1: 'c.D.backward.0.input.0' is more than path and class"),
    ("data", "a.B: c.D\n", "line 1: 'a.B' is no call or place of one; give the full name, such as"),
    ("data", f"N/A: {PLACE}\n", "line 1: N/A can stand behind the colon only."),
    (
        "data",
        f"{PLACE}: Torch.a.0.forward\n",
        "one is a call, the other a place of one; give two calls, or two",
    ),
    (
        "data",
        f"{PLACE}: N/A\n{PLACE}.pt: N/A\n",
        f"line 2: '{PLACE}' is mapped a second time (first in line 1).",
    ),
    ("layer", "Layer: x\n", "line 1: 'x' stands where `key: value` is expected."),
    ("layer", "Layer:\n  a:\n    b: c\n", "line 2: behind 'a:' must stand one name."),
    ("layer", "layers:\n  '5': first\n", "line 2: 'first' is not the number of a layer."),
    (
        "api",
        "ms_api: Functional.abs\n",
        "line 1: 'pt_api' is missing; it names an API, such as Functional.abs.",
    ),
    (
        "api",
        API + "ms_arg: [0]\n",
        "line 12: 'ms_arg' is not a key of an api mapping; it has ms_api, pt_api, ms_args",
    ),
    (
        "api",
        API + "ms_output: [0]\n",
        "line 12: 'ms_output' says the same as 'ms_outputs' in line 7; keep one of them.",
    ),
    ("api", "ms_api: abs\npt_api: Torch.abs\n", "line 1: 'ms_api' is 'abs'; it must be an API"),
    ("api", "ms_api: A.a.0.forward\npt_api: T.a\n", "line 1: 'ms_api' is 'A.a.0.forward'; it must be an API"),
    ("api", "ms_api: [A.a]\npt_api: T.a\n", "line 1: 'ms_api' is a list or an object; it must be an API"),
    (
        "api",
        "- ms_api: A.a\n  pt_api: T.a\n- ms_api: A.a\n  pt_api: T.b\n",
        "line 3: 'A.a' is mapped a second time",
    ),
    ("api", ABS + "ms_args: [0]\n", "line 1: 'pt_args' is missing; 'ms_args' and 'pt_args'"),
    pytest.param(
        "api",
        ABS + "ms_args: [0, 1]\npt_args: [0]\n",
        "'ms_args' has 2 positions, 'pt_args' has 1; they must be as many.",
        marks=pytest.mark.spec("K041", "CLI"),
    ),
    pytest.param(
        "api",
        ABS + "ms_outputs: []\npt_outputs: [0]\n",
        "'ms_outputs' has 0 positions, 'pt_outputs' has 1; they must be as many.",
        marks=pytest.mark.spec("K041", "CLI"),
    ),
    pytest.param(
        "api",
        ABS + "ms_args: [1, 1]\npt_args: [0, 1]\n",
        "line 3: 'ms_args' holds the position 1 twice.",
        marks=pytest.mark.spec("K042", "CLI"),
    ),
    ("api", ABS + "ms_args: [-1]\npt_args: [0]\n", NO_LIST),
    ("api", ABS + "ms_args: 0\npt_args: 0\n", NO_LIST),
    ("api", ABS + "ms_args: [[0]]\npt_args: [0]\n", NO_LIST),
]


@pytest.mark.parametrize(("kind", "text", "sentence"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, kind: str, text: str | bytes, sentence: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        READERS[kind](str(path))
    assert str(caught.value).startswith(f"{path}, line ")
    assert sentence in str(caught.value)


HOSTILE = {
    "nested lists": "a: " + "[" * 100_000,
    "nested objects": "{a: " * 100_000,
    "nested keys": "? " * 100_000,
    "nested dashes": "- " * 100_000 + "a",
    "aliases of aliases": "a: &a [x, x]\n" + "".join(f"k{n}: &b{n} [*a, *a, *a]\n" for n in range(1000)),
    "merged keys": "a: &a {x: y}\nb: {<<: *a}\n",
    "one long name": "a: " + "x" * 3_000_000 + ": y",
    "one long line of colons": ": " * 100_000,
    "an object of Python": "!!python/object/new:os.system ['touch made']\n",
    "directives": "%YAML 9.9\n%TAG ! tag:x,2000:\n---\n!a b: c\n",
    "not text": bytes(range(256)) * 100,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("kind", READERS)
def test_a_hostile_file_gives_one_sentence(tmp_path: Path, kind: str, text: str | bytes) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        READERS[kind](str(path))
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < len(str(path)) + 400


def test_files_with_random_damage_are_read_or_refused(tmp_path: Path) -> None:
    chance = random.Random(7)
    signs = ":- \n\t#'\"[]{}&*!|>%@`,?a0.：\x00\u2028"
    good = {
        "api": API,
        "cell": "fc2.Dense: fc2.Linear\na.B: c.D\n",
        "data": f"{PLACE}: {PLACE}\n",
        "layer": LAYERS,
    }
    refused = 0
    for _ in range(400):
        kind = chance.choice(sorted(good))
        text = list(good[kind])
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(text))
            text[place : place + chance.randint(0, 2)] = chance.choices(signs, k=chance.randint(0, 2))
        try:
            READERS[kind](str(written(tmp_path, "".join(text))))
        except ConfigError as error:
            refused += 1
            assert str(error).endswith((".", "?"))
    assert 0 < refused < 400


def test_what_is_not_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    written(tmp_path, b"#" * 20_000_001, "large.yaml")
    for name, sentence in (
        ("folder.yaml", "is a folder; give the path of a YAML file."),
        ("pipe.yaml", "is not a file; give the path of a YAML file."),
        ("gone.yaml", "does not exist; check the path."),
        ("large.yaml", "is larger than 20000000 bytes; remove what is not needed."),
        ("nul\0.yaml", "is no path of a file: embedded null byte."),
    ):
        with pytest.raises(ConfigError) as caught:
            read_cell_mapping(str(tmp_path / name))
        assert str(caught.value).endswith(sentence)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        pytest.param(
            {"data": ""},
            "-dm needs a file, as in -dm mapping.yaml.",
            marks=pytest.mark.spec("K018", "CLI"),
        ),
        pytest.param(
            {"layer": ""},
            "-lm needs a file, as in -lm mapping.yaml.",
            marks=pytest.mark.spec("K019", "CLI"),
        ),
        (
            {"cell": "./npu_dump"},
            "-cm ./npu_dump: the name of a mapping file ends in .yaml; an option without a file",
        ),
    ],
)
def test_an_option_without_its_file_is_told(option: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_mappings(**option)


def test_no_option_is_no_mapping() -> None:
    assert read_mappings() == Mappings()
    assert read_mappings(api="", cell="") == Mappings(api=ApiMapping(), cell=CellMapping())


# --- the command -----------------------------------------------------------------------------------------


def said_and_written(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> tuple[str, list[tuple[str, str]]]:
    """What comparing two runs says on stderr, and both names of each row of its table."""
    ones = np.ones((2, 3), np.float32)
    calls = (Call("Torch.add.0.forward", [ones], [ones]), Call("Torch.mul.0.forward", [ones], [ones]))
    target = recorded(folder / "target", Call("Module.enc.l1.Linear.forward.0", [ones], [2 * ones]), *calls)
    golden = recorded(
        folder / "golden", Call("Module.encoder.layer1.Linear.forward.0", [ones], [ones]), *calls
    )
    out = folder / "out"
    assert main(["compare", str(target), str(golden), "-o", str(out), "--csv", "-c", *words]) == code
    names = []
    for table in out.glob("compare_result*.csv"):
        with table.open(newline="", encoding="utf-8-sig") as stream:
            names += [(row["NPU Name"], row["Bench Name"]) for row in csv.DictReader(stream)]
    return capsys.readouterr().err, names


@pytest.mark.spec("K018", "CLI")
@pytest.mark.parametrize("option", ["-dm", "--data_mapping"])
def test_the_command_pairs_the_places_of_a_data_mapping(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    ours, theirs = "Module.enc.l1.Linear.forward.0", "Module.encoder.layer1.Linear.forward.0"
    file = written(tmp_path, f"{ours}.output.0: {theirs}.output.0\n{ours}.input.1: {theirs}.input.0\n")
    said, names = said_and_written(tmp_path, capsys, option, str(file))
    assert (f"{ours}.output.0", f"{theirs}.output.0") in names
    assert (f"{ours}.input.0", "N/A") in names and ("N/A", f"{theirs}.input.0") in names
    assert ("Torch.mul.0.forward.input.0",) * 2 in names
    assert f"line 2: the target has no '{ours}.input.1'; the nearest name is '{ours}.input.0'." in said


@pytest.mark.parametrize("option", ["-cm", "--cell_mapping"])
def test_the_command_pairs_the_modules_of_a_cell_mapping(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    file = written(tmp_path, "enc.l1.Linear: encoder.layer1.Linear\n")
    said, names = said_and_written(tmp_path, capsys, option, str(file))
    ours, theirs = "Module.enc.l1.Linear.forward.0", "Module.encoder.layer1.Linear.forward.0"
    assert names[:2] == [(f"{ours}.{slot}.0", f"{theirs}.{slot}.0") for slot in ("input", "output")]
    assert all(pair[0] == pair[1] for pair in names[2:])
    assert said == ""


@pytest.mark.parametrize(
    ("words", "text", "sentence"),
    [
        (
            ["-am"],
            "",
            "msprobe: -am pairs the APIs of MindSpore with those of PyTorch, but both recordings are of",
        ),
        (["-am", "FILE"], API, "msprobe: -am pairs the APIs of MindSpore with those of PyTorch"),
        (["--api_mapping", "FILE"], "a: b", "line 1: 'a' is not a key of an api mapping;"),
        (["-cm"], "", "msprobe: -cm without a file pairs the cells of MindSpore with the modules of PyTorch"),
        (
            ["-lm", "FILE"],
            LAYERS,
            "msprobe: -lm pairs the layers of a MindSpore model with those of a PyTorch model",
        ),
        (["--layer_mapping", "FILE"], "a", "line 1: 'a' stands where `key: value` is expected."),
        (["-dm", "FILE"], "a: b", "line 1: 'a' is no call or place of one;"),
    ],
)
def test_the_command_says_in_one_sentence_what_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str, sentence: str
) -> None:
    file = str(written(tmp_path, text))
    said, names = said_and_written(
        tmp_path, capsys, *(file if word == "FILE" else word for word in words), code=2
    )
    assert sentence in said and len(said.splitlines()) == 1
    assert names == []
