"""What MindSpore is told about the kernels to record, and what is refused before it is told anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config_case import EXAMPLES
from msprobe.config import Config, OverflowCheck, Scene, Statistics, Tensor, load
from msprobe.errors import ConfigError, HardwareError, MsprobeError, UsageError
from msprobe.mindspore.kernel_config import DumpSettings, Machine, check, dump_settings

CPU = Machine("CPU", "O0", (2, 10, 0))
ASCEND = Machine("Ascend", "O0", (2, 10, 0))
OLD_O2 = Machine("Ascend", "O2", (2, 4, 10))

COMMON = {
    "dump_mode": 0,
    "path": "/data/dump",
    "net_name": "Net",
    "iteration": "0-4000000000",  # release 8.3.3 has "all", which leaves no step out that nobody wants
    "saved_data": "tensor",
    "input_output": 0,
    "kernels": [],
    "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
}
E2E = {"enable": True, "trans_flag": True}
CATEGORIES = ["max", "min", "avg", "l2norm"]


def static(task: str, section: Any, **keys: Any) -> Config:
    plain: dict[str, Any] = {"dump_path": "/data/dump", "scene": Scene.MINDSPORE_STATIC, "level": "L2"}
    return Config(**{**plain, "task": task, "section": section, **keys})


def kernel_by_kernel(**keys: Any) -> DumpSettings:
    common = {**COMMON, "statistic_category": [], **keys}
    return DumpSettings(
        "kernel_kbyk_dump.json", {"common_dump_settings": common, "e2e_dump_settings": E2E}, False
    )


@pytest.mark.spec("M050", "MSs")
@pytest.mark.parametrize(
    ("config", "machine", "expected"),
    [
        (static("tensor", Tensor()), CPU, kernel_by_kernel()),
        (static("tensor", Tensor()), ASCEND, kernel_by_kernel()),
        (static("tensor", Tensor()), CPU._replace(jit_level="O2"), kernel_by_kernel()),
        (static("statistics", Statistics()), CPU, kernel_by_kernel()._replace(statistics=True)),
        pytest.param(
            static("tensor", Tensor(), step=(0, 2)),
            CPU,
            kernel_by_kernel(iteration="0|2"),
            marks=pytest.mark.spec("C014", "MSs"),
        ),
        pytest.param(
            static("tensor", Tensor(), rank=(1, 3)),
            ASCEND,
            kernel_by_kernel(support_device=[1, 3]),
            marks=pytest.mark.spec("C011", "MSs"),
        ),
        pytest.param(
            static("tensor", Tensor(data_mode=("input",))),
            CPU,
            kernel_by_kernel(input_output=1),
            marks=[pytest.mark.spec("C069", "MSs"), pytest.mark.spec("C082", "MSs")],
        ),
        (static("tensor", Tensor(data_mode=("output",))), CPU, kernel_by_kernel(input_output=2)),
        pytest.param(
            static("tensor", Tensor(list=("Default/fc/MatMul-op0", "name-regex(Default/.+)"))),
            CPU,
            kernel_by_kernel(dump_mode=1, kernels=["Default/fc/MatMul-op0", "name-regex(Default/.+)"]),
            marks=pytest.mark.spec("C080", "MSs"),
        ),
    ],
)
def test_settings_of_a_dump_kernel_by_kernel(
    config: Config, machine: Machine, expected: DumpSettings
) -> None:
    check(config)
    assert dump_settings(config, machine) == expected


def test_a_relative_folder_is_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    settings = dump_settings(dynamic("tensor", Tensor(), dump_path="../there"), CPU)
    assert settings == kernel_by_kernel(path=str(tmp_path / "there"))


def test_ascend_makes_the_statistics_itself() -> None:
    common = {**COMMON, "saved_data": "statistic", "statistic_category": CATEGORIES}
    e2e = {**E2E, "stat_calc_mode": "host", "device_stat_precision_mode": "high"}
    content = {"common_dump_settings": common, "e2e_dump_settings": e2e}
    expected = DumpSettings("kernel_kbyk_dump.json", content, statistics=False)
    assert dump_settings(static("statistics", Statistics()), ASCEND) == expected


def test_ascend_can_write_behind_training() -> None:
    config = static("tensor", Tensor(), async_dump=True)
    settings = [dump_settings(config, machine).content["e2e_dump_settings"] for machine in (ASCEND, CPU)]
    assert settings == [{"enable": False, "trans_flag": True}, E2E]


@pytest.mark.spec("M050", "MSs")
@pytest.mark.spec("C083", "MSs")
@pytest.mark.parametrize("file_format", ["npy", "bin"])
def test_a_graph_that_is_compiled_as_a_whole_has_a_file_of_its_own(file_format: Any) -> None:
    config = static("tensor", Tensor(file_format=file_format))
    content = {"common_dump_settings": {**COMMON, "op_debug_mode": 0, "file_format": file_format}}
    assert dump_settings(config, OLD_O2) == DumpSettings("kernel_graph_dump.json", content, statistics=False)


@pytest.mark.spec("C067", "MSs")
@pytest.mark.parametrize(
    ("given", "written"),
    [
        (r"name-regex(.*fc\d/MatMul-op\d+)", "name-regex(.*fc[0-9]/MatMul-op[0-9]+)"),
        (r"name-regex(a\.b\w*[\d_]\()", "name-regex(a[.]b[A-Za-z0-9_]*[0-9_][(])"),
        ("name-regex(plain[a-z]+|other)", "name-regex(plain[a-z]+|other)"),
    ],
)
def test_an_expression_reaches_mindspore_without_backslashes(given: str, written: str) -> None:
    """MindSpore doubles a backslash as it reads it, so that the expression would match nothing."""
    settings = dump_settings(static("tensor", Tensor(list=(given,))), CPU)
    assert settings.content["common_dump_settings"]["kernels"] == [written]


def dynamic(task: str, section: Any, **keys: Any) -> Config:
    return static(task, section, scene=Scene.MINDSPORE_DYNAMIC, **keys)


REFUSED = [
    pytest.param(
        static("tensor", Tensor()),
        ASCEND._replace(jit_level="O2"),
        HardwareError,
        "with jit_level O2 the kernels on Ascend are recorded through adump, which is not in this build: "
        "nothing is recorded; use jit_level O0 or O1.",
        marks=[
            pytest.mark.spec("M002", "MSs"),
            pytest.mark.spec("M045", "MSs"),
            pytest.mark.spec("M049", "MSs"),
        ],
    ),
    pytest.param(
        static("tensor", Tensor(file_format="bin")),
        CPU,
        HardwareError,
        '"file_format" is "bin", which MindSpore writes only on Ascend with jit_level O2: nothing is '
        'recorded; use "npy".',
        marks=pytest.mark.spec("C083", "MSs"),
    ),
    (
        static("tensor", Tensor(), dump_path="/data/run.1"),
        CPU,
        ConfigError,
        '"dump_path" is "/data/run.1", but at level L2 MindSpore takes only letters, digits, "-", "_" and '
        '"/" in it; choose another folder.',
    ),
    (
        static("tensor", Tensor(list=(r"name-regex(\bMatMul)",))),
        CPU,
        ConfigError,
        r'"list" holds an expression with \b, which MindSpore cannot take; write a set of characters such as '
        "[a-z] instead.",
    ),
    (
        static("tensor", Tensor(list=("name-regex((?i)matmul)",))),
        CPU,
        ConfigError,
        '"list" holds an expression with (?i, which MindSpore cannot take.',
    ),
    *(
        pytest.param(
            static("overflow_check", OverflowCheck()),
            ASCEND._replace(jit_level=level),
            ConfigError,
            f"task overflow_check needs jit_level O2 in a static graph, and it is {level}: nothing is "
            'checked; call mindspore.set_context(jit_config={"jit_level": "O2"}).',
            marks=pytest.mark.spec("C090", "MSs"),
        )
        for level in ("O0", "O1")
    ),
    (
        dynamic("overflow_check", OverflowCheck()),
        CPU,
        UsageError,
        "task overflow_check at level L2 is for static graphs, and this is a MindSpore dynamic graph: "
        "nothing is checked; use level L1.",
    ),
    *(
        pytest.param(
            dynamic("tensor", Tensor(list=(f"Tensor.__mul__.0.{way}",))),
            CPU,
            HardwareError,
            f"the kernels of the API Tensor.__mul__.0.{way} can only be recorded on Ascend, with adump: "
            'nothing is recorded; leave "list" empty to record what mindspore.jit compiles.',
            marks=pytest.mark.spec(row, "MSd"),
        )
        for way, row in (("forward", "C078"), ("backward", "C079"))
    ),
    (
        dynamic("tensor", Tensor(list=("MatMul",))),
        CPU,
        ConfigError,
        '"list" holds "MatMul", an operator type, which level L2 does not support; write a full kernel name '
        'such as "Default/network/MatMul-op0" or "name-regex(...)".',
    ),
    (
        dynamic("tensor", Tensor(list=("name-regex(()",))),
        CPU,
        ConfigError,
        '"list" holds "name-regex(()", but that is not a regular expression: missing ), unterminated '
        "subpattern at position 0.",
    ),
    (
        dynamic("tensor", Tensor(scope=("a", "b"))),
        CPU,
        ConfigError,
        '"scope" is set, but kernels have no scope; name them in "list".',
    ),
    (
        dynamic("statistics", Statistics(data_mode=("forward",))),
        CPU,
        ConfigError,
        '"data_mode" is [\'forward\'], but level L2 takes one of "all", "input", "output".',
    ),
]


@pytest.mark.parametrize(("config", "machine", "kind", "sentence"), REFUSED)
def test_what_cannot_be_recorded_is_one_sentence(
    config: Config, machine: Machine, kind: type[MsprobeError], sentence: str
) -> None:
    with pytest.raises(kind) as told:
        check(config)
        dump_settings(config, machine)
    assert str(told.value) == sentence


@pytest.mark.spec("C093", "MSs")
@pytest.mark.parametrize(("mode", "number"), [("aicore", 1), ("atomic", 2), ("all", 3)])
@pytest.mark.parametrize("machine", [CPU, OLD_O2, ASCEND._replace(jit_level="O2")])
def test_overflows_of_a_static_graph(mode: Any, number: int, machine: Machine) -> None:
    config = static("overflow_check", OverflowCheck(check_mode=mode))
    check(config)
    asked = {**COMMON, "saved_data": "full", "op_debug_mode": number, "file_format": "npy"}
    assert dump_settings(config, machine) == DumpSettings(
        "kernel_graph_overflow_check.json", {"common_dump_settings": asked}, statistics=False
    )


@pytest.mark.parametrize(
    "row",
    [
        pytest.param("C110", marks=[pytest.mark.spec("C110", "MSs"), pytest.mark.spec("R04", "MSs")]),
        pytest.param("C111", marks=[pytest.mark.spec("C111", "MSs"), pytest.mark.spec("R04", "MSs")]),
    ],
)
def test_printed_examples(row: str) -> None:
    config, said = load(EXAMPLES / f"{row}.json", scene=Scene.MINDSPORE_STATIC)
    check(config)
    path = {"path": "/home/data_dump"}
    expected = kernel_by_kernel(**path)._replace(statistics=row == "C110")
    assert dump_settings(config, CPU) == expected
    assert [sentence.partition(": ")[2].split(" is ignored")[0] for sentence in said] == [
        '"statistics.summary_mode"' if row == "C110" else '"tensor.backward_input"'
    ]
