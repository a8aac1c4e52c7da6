"""config.json: keys without effect, unknown keys, and the filters of statistics and tensor."""

from pathlib import Path
from typing import Any

import pytest

from config_case import MSA, MSD, MSS, PT, SCENES, mistakes, notices, section_of, spec, write
from msprobe.config import Scene, Statistics, Tensor, load
from msprobe.errors import ConfigError

ONE_OF_TASKS = '"statistics", "tensor", "overflow_check", "free_benchmark", "run_ut"'
ONE_OF_MODES = '"all", "forward", "backward", "input", "output"'
ONE_OF_SUMMARIES = '"statistics", "md5", "sketch"'
STATIC = "a MindSpore static graph"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FOR_PYTORCH = "only PyTorch has this setting"
BEHIND = "files are always written behind training"
FLOAT32 = "statistics are always accumulated in float32 or more"
NO_SUMMARIES = "kernels have no summary modes"
NO_STACKS = "kernels have neither call stacks nor modules"
NOT_STATIC = "only a MindSpore static graph has this setting"


@pytest.mark.parametrize(
    ("scene", "keys", "key", "reason"),
    [
        pytest.param(PT, {"async_dump": False}, "async_dump", BEHIND, marks=spec(("R28", "PT"))),
        pytest.param(MSD, {"async_dump": True}, "async_dump", BEHIND, marks=spec(("R28", "MSd"))),
        pytest.param(PT, {"precision": "low"}, "precision", FLOAT32, marks=spec(("R28", "PT"))),
        pytest.param(
            PT,
            {"statistics": {"precision": "low"}},
            "statistics.precision",
            FLOAT32,
            marks=spec(("R28", "PT")),
        ),
        pytest.param(
            PT,
            {"extra_info": False},
            "extra_info",
            "call stacks and the module structure are always recorded",
            marks=spec(("R28", "PT")),
        ),
        *(
            pytest.param(scene, {"level": "L0", key: value}, key, FOR_PYTORCH)
            for scene in (MSD, MSS, MSA)
            for key, value in {
                "seed": 1,
                "is_deterministic": True,
                "enable_dataloader": True,
                "rm_dropout": False,
                "acl_config": "acl.json",
            }.items()
        ),
        *(
            pytest.param(
                MSS,
                {"level": level, "statistics": {"summary_mode": mode}},
                "statistics.summary_mode",
                f"{what} no summary modes",
                marks=spec(("R04", "MSs")),
            )
            for level, what in (("L0", "a static graph has"), ("L2", "kernels have"))
            for mode in ("statistics", "md5", "sketch")
        ),
        *(
            (scene, {"level": "L2", **keys}, key, reason)
            for scene in (MSD, MSA)
            for keys, key, reason in (
                ({"statistics": {"summary_mode": "md5"}}, "statistics.summary_mode", NO_SUMMARIES),
                ({"extra_info": False}, "extra_info", NO_STACKS),
            )
        ),
        *(
            pytest.param(
                scene,
                {"level": "L2", "task": "tensor", "tensor": {"backward_input": value}},
                "tensor.backward_input",
                FOR_PYTORCH,
                marks=marks,
            )
            for scene, marks in ((MSS, spec(("R04", "MSs"))), (MSD, []))
            for value in ("", "x.pt", [""])
        ),
        *(
            pytest.param(
                PT,
                {"task": "tensor", "tensor": {"file_format": value}},
                "tensor.file_format",
                "PyTorch tensors are saved as .pt files",
                marks=spec(("R05", "PT")),
            )
            for value in ("npy", "bin")
        ),
        (
            MSS,
            {"task": "overflow_check", "level": "L2", "overflow_check": {"overflow_nums": 3}},
            "overflow_check.overflow_nums",
            "a static graph is checked to the end",
        ),
        *(
            (
                scene,
                {"task": "overflow_check", "overflow_check": {"check_mode": "aicore"}},
                "overflow_check.check_mode",
                NOT_STATIC,
            )
            for scene in (PT, MSD)
        ),
        *(
            (
                MSD,
                {"task": "free_benchmark", "free_benchmark": {key: value}},
                f"free_benchmark.{key}",
                FOR_PYTORCH,
            )
            for key, value in {"if_preheat": True, "preheat_step": 3, "max_sample": 9}.items()
        ),
    ],
)
def test_key_that_the_scene_ignores(scene: Scene, keys: dict[str, Any], key: str, reason: str) -> None:
    """One line for the log, and the same configuration as without the key."""
    path = write(**keys)
    assert notices(path, scene) == [f'"{key}" is ignored: {reason}.']
    with_key, _ = load(path, scene=scene)
    first, _, inner = key.partition(".")
    kept = {k: v for k, v in keys.items() if k != first} | (
        {first: {k: v for k, v in keys[first].items() if k != inner}} if inner else {}
    )
    assert with_key == load(write(**kept), scene=scene)[0]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param(
            {"acl_config": "acl.json"},
            ['"acl_config" has no effect at level "L1"; only level "L2" uses it.'],
            marks=spec(("C022", "PT")),
        ),
        ({"acl_config": ""}, []),
        pytest.param(
            {"task": "tensor", "tensor": {"backward_input": "x.pt"}},
            ['"tensor.backward_input" has no effect at level "L1"; only level "L2" uses it.'],
            marks=spec(("C081", "PT")),
        ),
        pytest.param(
            {
                "task": "tensor",
                "tensor": {"nfs_path": "/x", "host": "10.0.0.1", "port": 80, "tls_path": "/t"},
            },
            [
                f'"tensor.{key}" has no effect because online_run_ut is not true.'
                for key in ("nfs_path", "host", "port", "tls_path")
            ],
            marks=spec(("C085", "PT"), ("C086", "PT"), ("C087", "PT")),
        ),
        pytest.param(
            {"task": "run_ut", "run_ut": {"host": "10.0.0.1", "port": 80, "rank_list": [0]}},
            [
                f'"run_ut.{key}" has no effect because is_online is not true.'
                for key in ("host", "port", "rank_list")
            ],
            marks=spec(("C099", "PT"), ("C101", "PT"), ("C102", "PT"), ("C103", "PT"), ("C104", "PT")),
        ),
        (
            {"task": "free_benchmark", "free_benchmark": {"preheat_step": 3, "max_sample": 20}},
            ['"free_benchmark.preheat_step" has no effect because if_preheat is false.'],
        ),
        (
            {"task": "free_benchmark", "free_benchmark": {"if_preheat": True, "pert_mode": "no_change"}},
            [
                '"free_benchmark.if_preheat" has no effect because the limits of pert_mode "no_change" are '
                "fixed."
            ],
        ),
    ],
)
def test_setting_without_effect_is_told(keys: dict[str, Any], expected: list[str]) -> None:
    assert notices(write(**keys), PT) == expected


def test_sections_of_other_tasks_are_silent_but_checked() -> None:
    quiet = write(tensor={"file_format": "bin", "scope": ["one"]}, overflow_check={"check_mode": "all"})
    assert load(quiet, scene=PT) == load(write(), scene=PT)
    wrong = write(tensor={"file_format": "pt", "lst": []}, run_ut={"port": 0})
    assert mistakes(wrong, PT) == [
        '"tensor.file_format" is "pt", but it must be one of "npy", "bin".',
        '"tensor.lst" is not a known key; did you mean "list"?',
        '"run_ut.port" is 0, but it must be at least 1.',
    ]


@pytest.mark.spec("R28", "PT")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"stpe": [1]}, '"stpe" is not a known key; did you mean "step"?'),
        ({"Level": "L0"}, '"Level" is not a known key; did you mean "level"?'),
        ({"staistics": {}}, '"staistics" is not a known key; did you mean "statistics"?'),
        ({"colour": 1}, '"colour" is not a known key; remove it.'),
        ({"schema_address": "x"}, '"schema_address" is not a known key; remove it.'),
        ({"grad_probe": {}}, '"grad_probe" is not a known key; remove it.'),
        (
            {"summary_mode": "md5"},
            '"summary_mode" is not a key of this level; it belongs in "statistics".',
        ),
        (
            {"nfs_path": "/x"},
            '"nfs_path" is not a key of this level; it belongs in "tensor" or "run_ut".',
        ),
        (
            {"tensor": {"summary_mode": "md5"}},
            '"tensor.summary_mode" is not a key of this section; it belongs in "statistics".',
        ),
        (
            {"statistics": {"level": "L0"}},
            '"statistics.level" is not a key of this section; it belongs at the top level.',
        ),
        (
            {"tensor": {"backward.input": "x.pt"}},
            '"tensor["backward.input"]" is not a known key; did you mean "backward_input"?',
        ),
        (
            {"free_benchmark": {"fuz_device": "npu"}},
            '"free_benchmark.fuz_device" is not a known key; did you mean "fuzz_device"?',
        ),
    ],
)
def test_unknown_key(keys: dict[str, Any], expected: str) -> None:
    assert mistakes(write(**keys), PT) == [expected]


def test_schema_address_is_accepted() -> None:
    assert load(write(**{"$schema": "config.schema.json"}), scene=PT) == load(write(), scene=PT)


def test_all_problems_are_told_at_once_with_their_lines() -> None:
    path = write(
        """{
    "task": "tensr",
    "rank": [0, -1],
    "statistics": {
        "data_mode": ["all", "input"],
        "summary_mode": "sha"
    },
    "lvel": "L0"
}"""
    )
    with pytest.raises(ConfigError) as caught:
        load(path, scene=PT)
    tasks = f'it must be one of {ONE_OF_TASKS}; did you mean "tensor"?'
    assert str(caught.value).split("\n") == [
        "The configuration has 6 problems:",
        f'  c.json, line 2: "task" is "tensr", but {tasks}',
        '  c.json, line 3: "rank[1]" is -1, but it must lie between 0 and 1000000.',
        '  c.json, line 5: "statistics.data_mode" is ["all", "input"], but "all" must stand alone.',
        f'  c.json, line 6: "statistics.summary_mode" is "sha", but it must be one of {ONE_OF_SUMMARIES}.',
        '  c.json, line 8: "lvel" is not a known key; did you mean "level"?',
        '  c.json: "dump_path" is missing; '
        "set it to the folder for the output, or pass the argument dump_path.",
    ]


def test_rule_is_not_judged_with_a_default_where_the_value_is_wrong() -> None:
    """A wrong level must not bring a second complaint about the default level."""
    path = write(
        level="L9", task="free_benchmark", free_benchmark={"handler_type": "mend", "if_preheat": True}
    )
    assert mistakes(path, MSS) == [
        '"level" is "L9", but it must be one of "L0", "L1", "L2", "mix", "debug".',
        '"free_benchmark.handler_type" is "mend", but it must be one of "check", "fix".',
        '"task" is "free_benchmark", which a MindSpore static graph does not have.',
    ]


@pytest.mark.parametrize("scene", [PT, MSD])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    "scope",
    [
        [],
        ["MyModuleOP1", "MyModuleOP2"],
        ["Torch.relu.0.forward", "Tensor.add.3.forward"],
        ["Module.a.Linear.forward.0", "Module.b.Linear.forward.0"],
    ],
)
def test_scope_of_two_names_and_list_may_stand_together(
    scene: Scene, task: str, level: str, scope: list[str]
) -> None:
    path = write(task=task, level=level, **{task: {"scope": scope, "list": ["relu"]}})
    config, said = load(path, scene=scene)
    assert (config.section, said) == (section_of(task, scope=tuple(scope), list=("relu",)), ())


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (
            {"scope": ["a"]},
            '"{}.scope" holds 1 name, but it must hold two, the first and the last call to record.',
        ),
        (
            {"scope": ["a", "b", "c"]},
            '"{}.scope" holds 3 names, but it must hold two, the first and the last call to record.',
        ),
        ({"scope": "a"}, '"{}.scope" is "a", but it must be a list: [ ... ].'),
        ({"scope": ["a", 1]}, '"{}.scope[1]" is 1, but it must be a text in double quotes.'),
        ({"scope": ["a", ""]}, '"{}.scope[1]" is "", but it must not be empty.'),
        ({"list": "relu"}, '"{}.list" is "relu", but it must be a list: [ ... ].'),
        ({"list": [""]}, '"{}.list[0]" is "", but it must not be empty.'),
    ],
)
def test_wrong_scope_or_list(task: str, section: dict[str, Any], expected: str) -> None:
    assert mistakes(write(task=task, **{task: section}), PT) == [expected.format(task)]


@pytest.mark.parametrize("scene", [MSD, MSS, MSA])
def test_settings_of_kernels(scene: Scene) -> None:
    """MindSpore itself writes them: it has async_dump, and it writes statistics or tensors."""
    path = write(level="L2", async_dump=True, statistics={"tensor_list": ["MatMul"]})
    config, said = load(path, scene=scene)
    assert config.async_dump
    assert [line.removeprefix("c.json, line 1: ") for line in said] == [
        '"statistics.tensor_list" has no effect at level "L2": kernels are recorded with statistics or with '
        'tensors, not with both; use task "tensor" and name them in "tensor.list".'
    ]


def test_tensor_list_is_kept() -> None:
    config, said = load(write(statistics={"tensor_list": ["relu"]}), scene=PT)
    assert (config.section, said) == (Statistics(tensor_list=("relu",)), ())


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        pytest.param(environment, given, expected, marks=spec(*((row, environment) for row in rows)))
        for environment in ("PT", "MSd")
        for given, expected, rows in [
            (["all"], ("all",), ["C070"]),
            ("all", ("all",), ["R02"]),
            ("backward", ("backward",), ["R02"]),
            (["backward"], ("backward",), ["C070"]),
            (["forward", "backward"], ("forward", "backward"), ["C070"]),
            (["forward", "output"], ("forward", "output"), ["C070"]),
            (
                ["input", "output", "forward", "backward"],
                ("input", "output", "forward", "backward"),
                ["C070"],
            ),
            (["input", "input"], ("input",), []),
            ([], ("all",), []),
        ]
    ],
)
def test_data_mode(task: str, environment: str, given: str | list[str], expected: tuple[str, ...]) -> None:
    config, _ = load(write(task=task, **{task: {"data_mode": given}}), scene=SCENES[environment])
    assert config.section == section_of(task, data_mode=expected)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("environment", ["PT", "MSd"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(
            ["all", "forward"],
            'data_mode" is ["all", "forward"], but "all" must stand alone.',
            marks=spec(("C070", "PT", "MSd")),
        ),
        (
            ["fwd"],
            f'data_mode[0]" is "fwd", but it must be one of {ONE_OF_MODES}; did you mean "forward"?',
        ),
        (
            "inputs",
            f'data_mode[0]" is "inputs", but it must be one of {ONE_OF_MODES}; did you mean "input"?',
        ),
        ({"all": True}, 'data_mode" is {"all": true}, but it must be a list: [ ... ].'),
    ],
)
def test_wrong_data_mode(task: str, environment: str, given: object, expected: str) -> None:
    path = write(task=task, **{task: {"data_mode": given}})
    assert mistakes(path, SCENES[environment]) == [f'"{task}.{expected}']


@pytest.mark.parametrize(
    "task",
    [
        pytest.param("statistics", marks=spec(("C071", "MSs"))),
        pytest.param("tensor", marks=spec(("C071", "MSs"), ("C082", "MSs"))),
    ],
)
@pytest.mark.parametrize("level", ["L0", "L2"])
def test_data_mode_of_a_static_graph(task: str, level: str) -> None:
    for mode in ("all", "input", "output"):
        config, _ = load(write(task=task, level=level, **{task: {"data_mode": [mode]}}), scene=MSS)
        assert config.section == section_of(task, data_mode=(mode,))
    for mode in ("forward", "backward"):
        assert mistakes(write(task=task, level=level, **{task: {"data_mode": mode}}), MSS) == [
            f'"{task}.data_mode" is "{mode}", but {STATIC} has only "all", "input" and "output".'
        ]
    assert mistakes(write(task=task, level=level, **{task: {"data_mode": ["input", "output"]}}), MSS) == [
        f'"{task}.data_mode" holds 2 values, but {STATIC} takes one of "all", "input", "output".'
    ]


@pytest.mark.spec("C072", "PT", "MSd")
@pytest.mark.parametrize("scene", [PT, MSD])
def test_summary_mode(scene: Scene) -> None:
    for mode in ("statistics", "md5", "sketch"):
        assert load(write(statistics={"summary_mode": mode}), scene=scene)[0].section == Statistics(
            summary_mode=mode
        )
    assert mistakes(write(statistics={"summary_mode": "crc"}), scene) == [
        '"statistics.summary_mode" is "crc", but it must be one of "statistics", "md5", "sketch".'
    ]


def test_static_graph_has_no_scope() -> None:
    path = write(level="L2", statistics={"scope": ["a", "b"]})
    assert mistakes(path, MSS) == [
        '"statistics.scope" is set, but a MindSpore static graph has no scope; name what to record in '
        '"statistics.list".'
    ]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("level", "name"),
    [
        ("L2", "Default/network/conv1-Conv2d/Conv2D-op12"),
        ("L2", "name-regex(Default/.+)"),
        ("L2", "name-regex(.*fc1.*)"),
        ("L0", "Conv2D"),
        ("L0", "fc1"),
    ],
)
def test_list_of_a_static_graph(task: str, level: str, name: str) -> None:
    config, _ = load(write(task=task, level=level, **{task: {"list": [name]}}), scene=MSS)
    assert config.section == section_of(task, list=(name,))


@pytest.mark.spec("C066", "MSs")
@pytest.mark.spec("R25", "MSs")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_operator_type_is_refused_at_l2_of_a_static_graph(task: str) -> None:
    assert mistakes(write(task=task, level="L2", **{task: {"list": ["Default/a", "MatMul"]}}), MSS) == [
        f'"{task}.list[1]" is "MatMul", an operator type, which level "L2" does not support; '
        'write a full kernel name such as "Default/network/MatMul-op0" or "name-regex(...)".'
    ]


def test_wrong_regular_expression_is_refused() -> None:
    assert mistakes(write(level="L2", statistics={"list": ["name-regex(a[)"]}), MSS) == [
        '"statistics.list[0]" is "name-regex(a[)", but that is not a regular expression: '
        "unterminated character set at position 1."
    ]


@pytest.mark.spec("R25", "MSd")
def test_bin_is_refused_at_l1() -> None:
    path = write(task="tensor", level="L1", tensor={"file_format": "bin"})
    assert mistakes(path, MSD) == [
        '"tensor.file_format" is "bin", but level "L1" does not support it; use "npy".'
    ]
    assert load(path, scene=MSS, level="L2")[0].section == Tensor(file_format="bin")
