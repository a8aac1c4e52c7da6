"""config.json: the packaged file, the printed examples, the arguments, and every common key."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import msprobe
from config_case import EXAMPLES, MSA, MSD, MSS, PT, SCENES, SECTIONS, mistakes, notices, spec, write
from msprobe.config import (
    Config,
    Framework,
    FreeBenchmark,
    OverflowCheck,
    RunUt,
    Scene,
    Section,
    Statistics,
    Tensor,
    load,
    packaged_config,
)
from msprobe.config.models import ConfigFile
from msprobe.errors import ConfigError

PACKAGE = Path(msprobe.__file__).parent
A_LIST = 'it must be a list of integers and ranges, such as [0, 2] or ["3-5"]'
NUMBERS = 'it must be an integer or an inclusive range such as "3-5"'
ONE_OF_TASKS = '"statistics", "tensor", "overflow_check", "free_benchmark", "run_ut"'


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.spec("C001", "PT")
def test_without_a_path_the_packaged_config_is_used() -> None:
    assert load(scene=PT) == (Config(dump_path="./dump_path"), ())


@pytest.mark.spec("C003", "PT", "MSd", "MSs")
def test_packaged_config_stands_at_both_printed_places() -> None:
    assert packaged_config() == PACKAGE / "config.json"
    assert (PACKAGE / "config" / "config.json").read_bytes() == packaged_config().read_bytes()


@pytest.mark.parametrize(
    ("scene", "task"),
    [(scene, task) for scene in (PT, MSD, MSA) for task in SECTIONS if scene is PT or task != "run_ut"],
)
def test_packaged_config_serves_every_task_with_its_defaults(scene: Scene, task: str) -> None:
    config, said = load(scene=scene, task=task)
    assert (config.section, said) == (SECTIONS[task], ())


def test_packaged_config_touches_no_random_state() -> None:
    assert load(scene=PT)[0].seeding is None


def test_importing_the_package_does_not_import_pydantic() -> None:
    code = "import sys, msprobe; print('pydantic' in sys.modules)"
    assert run(code) == "False\n"


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent.parent, capture_output=True, text=True, check=True
    )
    return done.stdout


def _example(row: str, environment: str, section: Section, **common: Any) -> Any:
    return pytest.param(
        row,
        SCENES[environment],
        section,
        common,
        id=f"{row}-{environment}",
        marks=pytest.mark.spec(row, environment),
    )


FIXED = {"seed": 1234, "is_deterministic": False}


@pytest.mark.spec("C004", "PT", "MSd", "MSs")
@pytest.mark.parametrize(
    ("row", "scene", "section", "common"),
    [
        _example("C105", "PT", FreeBenchmark(list=("conv2d",)), task="free_benchmark", **FIXED),
        _example("C106", "PT", Statistics(), task="statistics", **FIXED),
        _example("C107", "PT", Tensor(), task="tensor", **FIXED),
        _example("C108", "PT", OverflowCheck(), task="overflow_check", **FIXED),
        _example("C109", "PT", RunUt(), task="run_ut", **FIXED),
        _example("C110", "MSs", Statistics(), task="statistics", level="L2"),
        _example("C111", "MSs", Tensor(), task="tensor", level="L2"),
        _example("C112", "MSs", OverflowCheck(), task="overflow_check", level="L2"),
        _example("C113", "MSd", FreeBenchmark(list=("mindspore.ops.add",)), task="free_benchmark"),
        _example("C114", "MSd", Statistics(), task="statistics"),
        _example("C116", "MSd", OverflowCheck(), task="overflow_check"),
    ],
)
def test_printed_example_loads(row: str, scene: Scene, section: Section, common: dict[str, Any]) -> None:
    config, _ = load(EXAMPLES / f"{row}.json", scene=scene)
    assert config == Config(dump_path="/home/data_dump", scene=scene, section=section, **common)


@pytest.mark.spec("C115", "MSd")
def test_printed_example_with_a_trailing_comma_is_refused_with_its_place() -> None:
    path = EXAMPLES / "C115.json"
    with pytest.raises(ConfigError) as caught:
        load(path, scene=MSD)
    assert str(caught.value) == f"{path}, line 11, column 29: trailing comma before }}; remove the comma."


def test_arguments_win_over_the_file() -> None:
    path = write(task="statistics", dump_path="a", level="L1", step=[1], tensor={"list": ["relu"]})
    config, _ = load(path, scene=PT, task="tensor", dump_path=Path("b"), level="mix", step=(7, "2-3"))
    assert config == Config(
        dump_path="b", task="tensor", level="mix", step=(2, 3, 7), section=Tensor(list=("relu",))
    )


def test_arguments_that_are_none_leave_the_file_alone() -> None:
    path = write(task="tensor", dump_path="a", level="L0", step=[1])
    assert load(path, scene=PT, task=None, dump_path=None, level=None, step=None) == load(path, scene=PT)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"task": "tensors"},
            f'The argument "task" is "tensors", but it must be one of {ONE_OF_TASKS}; did you mean "tensor"?',
        ),
        (
            {"level": 1},
            'The argument "level" is 1, but it must be one of "L0", "L1", "L2", "mix", "debug".',
        ),
        (
            {"step": 3},
            f'The argument "step" is 3, but {A_LIST}.',
        ),
        ({"step": [0, -1]}, 'The argument "step[1]" is -1, but it must lie between 0 and 1000000.'),
        ({"dump_path": 5}, 'The argument "dump_path" is 5, but it must be a text in double quotes.'),
    ],
)
def test_wrong_argument_is_named_as_an_argument(arguments: dict[str, Any], expected: str) -> None:
    assert mistakes(write(), PT, **arguments) == [expected]


def test_path_of_a_wrong_type_gives_a_sentence() -> None:
    with pytest.raises(ConfigError, match="^config_path is 3, but it must be the path of a file.$"):
        load(3, scene=PT)  # type: ignore[arg-type]


WRONG_COMMON = [
    ("task", "dump", f"it must be one of {ONE_OF_TASKS}", "C005"),
    ("task", "Tensor", f'it must be one of {ONE_OF_TASKS}; did you mean "tensor"?', "C005"),
    ("task", ["tensor"], f"it must be one of {ONE_OF_TASKS}", "C005"),
    ("dump_path", 3, "it must be a text in double quotes", "C009"),
    ("dump_path", "", "it must not be empty", "C009"),
    ("rank", 0, A_LIST, "C011"),
    ("rank", "0", A_LIST, "C011"),
    ("rank", {"0": 1}, A_LIST, "C011"),
    ("step", 1.0, A_LIST, "C014"),
    ("step", True, A_LIST, "C014"),
    ("level", "L3", 'it must be one of "L0", "L1", "L2", "mix", "debug"', "C015"),
    ("level", "l0", 'it must be one of "L0", "L1", "L2", "mix", "debug"; did you mean "L0"?', "C015"),
]


@pytest.mark.parametrize(
    ("environment", "key", "value", "rule"),
    [
        pytest.param(environment, key, value, rule, marks=pytest.mark.spec(row, environment))
        for environment in SCENES
        for key, value, rule, row in WRONG_COMMON
    ],
)
def test_wrong_common_value(environment: str, key: str, value: object, rule: str) -> None:
    level = {} if key == "level" else {"level": "L0"}
    path = write(**{**level, key: value})
    end = "" if rule.endswith("?") else "."
    assert mistakes(path, SCENES[environment]) == [f'"{key}" is {json.dumps(value)}, but {rule}{end}']


@pytest.mark.parametrize(
    ("element", "rule"),
    [
        (-1, "it must lie between 0 and 1000000"),
        (1_000_001, "it must lie between 0 and 1000000"),
        (10**30, "it must lie between 0 and 1000000"),
        ("0-1000001", "it must lie between 0 and 1000000"),
        (True, NUMBERS),
        (1.0, NUMBERS),
        ("3", NUMBERS),
        ("a", NUMBERS),
        ("3-", NUMBERS),
        ("-3-5", NUMBERS),
        ("3-5-7", NUMBERS),
        ("³-5", NUMBERS),
        ("", NUMBERS),
        ([1], NUMBERS),
        (None, NUMBERS),
        ("5-3", 'a range begins with its smaller end: "3-5"'),
    ],
)
@pytest.mark.parametrize("key", ["rank", "step"])
def test_wrong_element_of_rank_or_step(key: str, element: object, rule: str) -> None:
    shown = json.dumps(element, ensure_ascii=False)
    assert mistakes(write(**{key: [0, element]}), PT) == [f'"{key}[1]" is {shown}, but {rule}.']


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ()),
        ([0], (0,)),
        ([5, 0, 2, 5], (0, 2, 5)),
        (["3-5"], (3, 4, 5)),
        ([4, " 2 - 4 ", 0, "7-7"], (0, 2, 3, 4, 7)),
        ([1_000_000], (1_000_000,)),
    ],
)
@pytest.mark.parametrize(
    ("environment", "key"),
    [
        pytest.param(environment, key, marks=pytest.mark.spec(row, environment))
        for environment in SCENES
        for key, row in (("rank", "C011"), ("step", "C014"))
    ],
)
def test_rank_and_step(environment: str, key: str, given: list[object], expected: tuple[int, ...]) -> None:
    config, said = load(write(level="L0", **{key: given}), scene=SCENES[environment])
    assert (getattr(config, key), said) == (expected, ())


@pytest.mark.spec("C005", "PT", "MSd")
@pytest.mark.spec("C015", "PT", "MSd")
@pytest.mark.parametrize("scene", [PT, MSD])
def test_defaults_of_everything(scene: Scene) -> None:
    assert load(write(), scene=scene) == (
        Config(
            dump_path="/out",
            scene=scene,
            task="statistics",
            level="L1",
            rank=(),
            step=(),
            acl_config=None,
            seed=None,
            is_deterministic=None,
            enable_dataloader=False,
            rm_dropout=True,
            section=Statistics(
                scope=(),
                list=(),
                data_mode=("all",),
                summary_mode="statistics",
                tensor_list=(),
                precision="high",
            ),
        ),
        (),
    )


@pytest.mark.spec("C004", "PT")
@pytest.mark.spec("C005", "PT")
@pytest.mark.parametrize("task", SECTIONS)
def test_task_selects_its_section(task: str) -> None:
    path = write(task=task, **{name: {} for name in SECTIONS})
    assert load(path, scene=PT)[0].section == SECTIONS[task]


@pytest.mark.spec("C009", "PT", "MSd", "MSs")
@pytest.mark.parametrize("scene", SCENES.values())
def test_dump_path_is_the_only_mandatory_key(scene: Scene) -> None:
    path = write(dump_path=None, level="L0")
    sentence = '"dump_path" is missing; set it to the folder for the output, or pass the argument dump_path.'
    assert mistakes(path, scene) == [sentence]
    assert load(path, scene=scene, dump_path="/given")[0].dump_path == "/given"


@pytest.mark.parametrize("dump_path", ["./dump_path", "/a folder/with spaces", "数据/é", "C:\\dump"])
def test_any_dump_path_that_is_a_text_is_taken_as_it_is(dump_path: str) -> None:
    assert load(write(dump_path=dump_path), scene=PT)[0].dump_path == dump_path


@pytest.mark.spec("C010", "MSs")
def test_static_graph_needs_an_absolute_dump_path() -> None:
    path = write(dump_path="./out", level="L2")
    assert mistakes(path, MSS) == [
        '"dump_path" is "./out", but a MindSpore static graph needs an absolute path.'
    ]
    assert load(path, scene=MSS, dump_path="/out")[0].dump_path == "/out"


@pytest.mark.parametrize(
    ("scene", "level"),
    [
        pytest.param(SCENES[environment], level, marks=spec(*((row, environment) for row in rows)))
        for environment, level, rows in [
            ("PT", "L0", ["C015"]),
            ("PT", "L1", ["C015"]),
            ("PT", "mix", ["C015"]),
            ("PT", "debug", ["C015", "R01"]),
            ("MSd", "L0", ["C015", "C021"]),
            ("MSd", "L1", ["C015", "C021"]),
            ("MSd", "L2", ["C015", "C021", "R06"]),
            ("MSd", "mix", ["C015", "C021"]),
            ("MSd", "debug", ["C015", "C021", "R01"]),
            ("MSs", "L0", ["C015"]),
            ("MSs", "L2", ["C015", "R06"]),
        ]
    ],
)
def test_levels_of_a_scene(scene: Scene, level: str) -> None:
    config, said = load(write(level=level), scene=scene)
    assert (config.level, said) == (level, ())


@pytest.mark.spec("C015", "MSs")
@pytest.mark.parametrize("level", ["L1", "mix", "debug"])
def test_levels_that_a_static_graph_has_not(level: str) -> None:
    assert mistakes(write(level=level), MSS) == [
        f'"level" is "{level}", but a MindSpore static graph has only "L0" or "L2".'
    ]


def test_static_graph_without_a_level_says_that_the_default_does_not_fit() -> None:
    assert mistakes(write(), MSS) == [
        '"level" is not set and defaults to "L1", but a MindSpore static graph has only "L0" or "L2".'
    ]


@pytest.mark.parametrize(
    ("keys", "seeding"),
    [
        ({}, None),
        ({"seed": 7}, (7, False)),
        ({"seed": 0}, (0, False)),
        ({"is_deterministic": True}, (1234, True)),
        ({"is_deterministic": False}, (1234, False)),
        ({"seed": 2**32 - 1, "is_deterministic": True}, (2**32 - 1, True)),
    ],
)
def test_seeding_tells_set_from_unset(keys: dict[str, Any], seeding: tuple[int, bool] | None) -> None:
    config, _ = load(write(**keys), scene=PT)
    assert config.seeding == seeding
    assert (config.seed, config.is_deterministic) == (keys.get("seed"), keys.get("is_deterministic"))


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("seed", "1234", "it must be an integer"),
        ("seed", True, "it must be an integer"),
        ("seed", 1.0, "it must be an integer"),
        ("seed", 1.5, "it must be an integer"),
        ("seed", -1, "it must be at least 0"),
        ("seed", 2**32, "it must be at most 4294967295"),
        ("is_deterministic", "true", "it must be true or false, without quotes"),
        ("is_deterministic", 1, "it must be true or false, without quotes"),
        ("enable_dataloader", "false", "it must be true or false, without quotes"),
        ("rm_dropout", 0, "it must be true or false, without quotes"),
        ("async_dump", "no", "it must be true or false, without quotes"),
        ("precision", "medium", 'it must be one of "low", "high"'),
        ("acl_config", {}, "it must be a text in double quotes"),
        ("$schema", 1, "it must be a text in double quotes"),
        ("tensor", [], "it must be an object: { ... }"),
        ("statistics", "all", "it must be an object: { ... }"),
    ],
)
def test_wrong_type(key: str, value: object, rule: str) -> None:
    assert mistakes(write(**{key: value}), PT) == [f'"{key}" is {json.dumps(value)}, but {rule}.']


@pytest.mark.parametrize(
    "keys", [{"rank": None}, {"seed": None}, {"statistics": None}, {"statistics": {"list": None}}]
)
def test_null_is_no_value(keys: dict[str, Any]) -> None:
    key = "statistics.list" if isinstance(keys.get("statistics"), dict) else next(iter(keys))
    assert mistakes(write(**keys), PT) == [f'"{key}" is null; leave the key out to get its default.']


@pytest.mark.spec("C027", "PT")
def test_enable_dataloader_is_announced_as_deprecated() -> None:
    path = write(enable_dataloader=True)
    assert load(path, scene=PT)[0].enable_dataloader is True
    assert notices(path, PT) == [
        '"enable_dataloader" is deprecated and works on a single card only; '
        "call start(), stop() and step() instead."
    ]
    assert notices(write(enable_dataloader=False), PT) == []


def test_config_is_a_frozen_value() -> None:
    config, _ = load(write(rank=[1]), scene=PT)
    again, _ = load(write(rank=["1-1"]), scene=PT)
    assert config == again
    assert config != load(write(rank=[2]), scene=PT)[0]
    with pytest.raises(ValueError, match="frozen"):
        config.task = "tensor"
    with pytest.raises(ValueError, match="frozen"):
        config.section.list = ()  # type: ignore[union-attr]


def test_section_must_be_of_the_task() -> None:
    with pytest.raises(ValueError, match="section of task tensor cannot be a Statistics"):
        Config(dump_path="x", task="tensor", section=Statistics())


def test_scene_knows_its_framework() -> None:
    assert {scene: scene.framework for scene in Scene} == {
        PT: Framework.PYTORCH,
        MSD: Framework.MINDSPORE,
        MSS: Framework.MINDSPORE,
        MSA: Framework.MINDSPORE,
    }


KEYS = [
    *ConfigFile.model_fields,
    "$schema",
    *(key for one in SECTIONS.values() for key in type(one).model_fields),
]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([*KEYS, "L2", "all", "bin", "3-5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KEYS), anything, max_size=6), st.sampled_from(Scene))
def test_any_file_is_loaded_or_refused_with_a_sentence(keys: dict[str, Any], scene: Scene) -> None:
    Path("c.json").write_text(json.dumps(keys).replace("NaN", "0").replace("Infinity", "0"), encoding="utf-8")
    try:
        config, _ = load("c.json", scene=scene)
    except ConfigError as error:
        assert str(error).endswith((".", "?"))
    else:
        assert type(config.section) is type(SECTIONS[config.task])
