"""config.json at level L2 of PyTorch: one API, its inputs, and acl_config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from config_case import EXAMPLES, PT, mistakes, notices, spec, write
from msprobe.config import AclConfig, Config, Tensor, load, load_acl_config
from msprobe.errors import ConfigError


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def kernel_config(**tensor: Any) -> dict[str, Any]:
    plain = {"scope": ["Tensor.__mul__.10.forward"]}
    return {"task": "tensor", "level": "L2", "acl_config": "acl_config.json", "tensor": {**plain, **tensor}}


@pytest.fixture
def acl() -> Path:
    """The printed acl_config.json in the current folder, with the folder it names."""
    Path("dump/output").mkdir(parents=True)
    path = Path("acl_config.json")
    path.write_bytes((EXAMPLES / "C120.json").read_bytes())
    return path


@pytest.mark.parametrize(
    "row",
    [pytest.param("C118", marks=spec(("C118", "PT"))), pytest.param("C119", marks=spec(("C119", "PT")))],
)
def test_printed_kernel_example_loads(acl: Path, row: str) -> None:
    Path("Tensor.__mul__.10.backward.input.0.pt").touch()
    expected = {
        "C118": Tensor(scope=("Tensor.__mul__.10.forward",)),
        "C119": Tensor(
            scope=("Tensor.__mul__.10.backward",), backward_input=("Tensor.__mul__.10.backward.input.0.pt",)
        ),
    }
    path = str(EXAMPLES / f"{row}.json")
    config, said = load(path, scene=PT)
    assert config == Config(
        dump_path="/home/data_dump",
        task="tensor",
        level="L2",
        rank=(0,),
        step=(0,),
        is_deterministic=False,
        acl_config=str(acl),
        section=expected[row],
    )
    assert said == (
        f'{path}, line 13: "tensor.file_format" is ignored: PyTorch tensors are saved as .pt files.',
    )


@pytest.mark.spec("C078", "PT")
def test_the_one_api_may_stand_in_list_as_well(acl: Path) -> None:
    in_list = load(write(**kernel_config(scope=[], list=["Tensor.permute.1.forward"])), scene=PT)
    in_scope = load(write(**kernel_config(scope=["Tensor.permute.1.forward"])), scene=PT)
    assert in_list == in_scope
    assert in_scope[0].section == Tensor(scope=("Tensor.permute.1.forward",))


ONE_API = 'but level "L2" records exactly one API; name it in "tensor.scope" and leave "tensor.list" empty.'
FULL_NAME = 'but level "L2" needs the full name of one API, such as "Tensor.__mul__.10.forward".'


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ({"scope": []}, [f'"tensor.scope" holds 0 names, {ONE_API}']),
        pytest.param(
            {"scope": ["Torch.add.0.forward", "Torch.mul.0.forward"]},
            [f'"tensor.scope" holds 2 names, {ONE_API}'],
            marks=spec(("C118", "PT")),
        ),
        pytest.param(
            {"list": ["Torch.add.0.forward"]},
            [f'"tensor.scope" holds 2 names, {ONE_API}'],
            marks=spec(("C118", "PT")),
        ),
        ({"scope": [], "list": ["a", "b"]}, [f'"tensor.list" holds 2 names, {ONE_API}']),
        ({"scope": ["relu"]}, [f'"tensor.scope[0]" is "relu", {FULL_NAME}']),
        (
            {"scope": ["Module.fc.Linear.forward.0"]},
            [f'"tensor.scope[0]" is "Module.fc.Linear.forward.0", {FULL_NAME}'],
        ),
        pytest.param(
            {"scope": ["Torch.add.0.backward"], "backward_input": [""]},
            [
                '"tensor.backward_input" is missing, but Torch.add.0.backward is a backward API; record it '
                'once with task "tensor" at level "L1", then name its input files here, such as '
                '"Torch.add.0.backward.input.0.pt".'
            ],
            marks=spec(("C119", "PT"), ("C079", "PT"), ("C081", "PT")),
        ),
        pytest.param(
            {"scope": [], "list": ["Torch.add.0.backward"], "backward_input": ["", "gone.pt", "x.npy"]},
            [
                '"tensor.backward_input" names "gone.pt", but there is no such file.',
                '"tensor.backward_input" names "x.npy", but a backward input must be a .pt file.',
            ],
            marks=spec(("C079", "PT"), ("C081", "PT")),
        ),
    ],
)
def test_kernel_dump_records_exactly_one_api(acl: Path, tensor: dict[str, Any], expected: list[str]) -> None:
    assert mistakes(write(**kernel_config(**tensor)), PT) == expected


@pytest.mark.spec("C081", "PT")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a.pt", ("a.pt",)),
        (["a.pt"], ("a.pt",)),
        (["a.pt", "b.pt"], ("a.pt", "b.pt")),
        (["", "a.pt"], ("a.pt",)),
    ],
)
def test_backward_input_is_a_text_or_a_list(
    acl: Path, given: str | list[str], expected: tuple[str, ...]
) -> None:
    Path("a.pt").touch()
    Path("b.pt").touch()
    path = write(**kernel_config(scope=["Torch.add.0.backward"], backward_input=given))
    assert load(path, scene=PT)[0].section == Tensor(scope=("Torch.add.0.backward",), backward_input=expected)


@pytest.mark.spec("C081", "PT")
@pytest.mark.parametrize("given", ["", [""], []])
def test_empty_backward_input_means_none(given: str | list[str]) -> None:
    assert load(write(task="tensor", tensor={"backward_input": given}), scene=PT) == load(
        write(task="tensor"), scene=PT
    )


def test_backward_input_of_a_forward_api_has_no_effect(acl: Path) -> None:
    assert notices(write(**kernel_config(backward_input="x.pt")), PT) == [
        '"tensor.backward_input" has no effect because the API is a forward one.'
    ]


@pytest.mark.spec("C022", "PT")
@pytest.mark.spec("R06", "PT")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, 'is missing, but level "L2" needs it; set it to the path of acl_config.json'),
        ({"acl_config": ""}, 'is missing, but level "L2" needs it; set it to the path of acl_config.json'),
        ({"acl_config": "gone.json"}, 'is "gone.json", but there is no such file; create it first'),
        ({"acl_config": "acl_config.cfg"}, 'is "acl_config.cfg", but it must be a .json file'),
    ],
)
def test_kernel_dump_needs_acl_config(value: dict[str, str], expected: str) -> None:
    Path("acl_config.cfg").touch()
    keys = {key: given for key, given in kernel_config().items() if key != "acl_config"}
    assert mistakes(write(**keys, **value), PT) == [f'"acl_config" {expected}.']


@pytest.mark.parametrize("task", ["statistics", "overflow_check", "run_ut"])
def test_kernel_dump_needs_task_tensor(acl: Path, task: str) -> None:
    assert mistakes(write(task=task, level="L2", acl_config=str(acl)), PT) == [
        f'"task" is "{task}", but level "L2" needs task "tensor" in PyTorch.'
    ]


def test_problems_of_acl_config_join_those_of_the_config(acl: Path) -> None:
    acl.write_text('{"dump": {"dump_path": "gone", "dump_mode": "both"}}', encoding="utf-8")
    assert mistakes(write(**kernel_config(scope=["relu"])), PT) == [
        f'"tensor.scope[0]" is "relu", {FULL_NAME}',
        'acl_config.json, line 1: "dump.dump_mode" is "both", '
        'but it must be one of "output", "input", "all".',
    ]
    acl.write_text("{,}", encoding="utf-8")
    assert mistakes(write(**kernel_config()), PT) == [
        "acl_config.json, line 1, column 2: a comma stands where a key is expected; remove it."
    ]


def test_kernel_dump_that_is_switched_off_is_told(acl: Path) -> None:
    acl.write_text('{"dump": {"dump_path": "."}}', encoding="utf-8")
    assert notices(write(**kernel_config()), PT) == [
        'acl_config.json: "dump.dump_op_switch" is "off", so no kernel data will be dumped; set it to "on".'
    ]


@pytest.mark.spec("C120", "PT")
def test_printed_acl_config_loads(acl: Path) -> None:
    assert load_acl_config(acl) == AclConfig(
        dump_list=(), dump_path="./dump/output", dump_mode="all", dump_op_switch="on"
    )


@pytest.mark.spec("C121", "PT")
@pytest.mark.spec("C123", "PT")
@pytest.mark.spec("C124", "PT")
def test_defaults_of_acl_config(acl: Path) -> None:
    acl.write_text('{"dump": {"dump_path": "."}, "profiler": {}}', encoding="utf-8")
    assert load_acl_config(acl) == AclConfig(
        dump_list=(), dump_path=".", dump_mode="output", dump_op_switch="off"
    )


@pytest.mark.parametrize(
    ("dump", "expected"),
    [
        pytest.param(
            {"dump_list": ["x"]}, 'dump_list" is ["x"], but it must stay empty.', marks=spec(("C121", "PT"))
        ),
        pytest.param(
            {"dump_path": "gone"},
            'dump_path" is "gone", but there is no such folder; create it first.',
            marks=spec(("C122", "PT")),
        ),
        pytest.param({"dump_path": 1}, 'dump_path" is 1, but it must be a text in double quotes.'),
        pytest.param(
            {"dump_mode": "outputs"},
            'dump_mode" is "outputs", but it must be one of "output", "input", "all"; did you mean "output"?',
            marks=spec(("C123", "PT")),
        ),
        pytest.param(
            {"dump_op_switch": True},
            'dump_op_switch" is true, but it must be one of "off", "on".',
            marks=spec(("C124", "PT")),
        ),
        pytest.param({"dump_mod": "all"}, 'dump_mod" is not a known key; did you mean "dump_mode"?'),
        pytest.param({"level": "L2"}, 'level" is not a known key; remove it.'),
    ],
)
def test_wrong_acl_config(acl: Path, dump: dict[str, Any], expected: str) -> None:
    acl.write_text(json.dumps({"dump": {"dump_path": ".", **dump}}), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_acl_config(acl)
    assert str(caught.value) == f'acl_config.json, line 1: "dump.{expected}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", 'acl_config.json: "dump" must be an object with the settings of the dump.'),
        (
            '{"dmp": {}}',
            'acl_config.json: "dump" must be an object with the settings of the dump, '
            'perhaps what stands here as "dmp".',
        ),
        (
            '{"dump": []}',
            'acl_config.json, line 1: "dump" must be an object with the settings of the dump.',
        ),
        ('{"dump": {}}', 'acl_config.json: "dump.dump_path" is missing.'),
    ],
)
def test_acl_config_without_its_parts(acl: Path, text: str, expected: str) -> None:
    acl.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_acl_config(acl)
    assert str(caught.value) == expected


@pytest.mark.spec("C122", "PT")
def test_acl_dump_path_may_be_absolute_or_relative(acl: Path, tmp_path: Path) -> None:
    for folder in ("dump", str(tmp_path / "dump")):
        acl.write_text(json.dumps({"dump": {"dump_path": folder}}), encoding="utf-8")
        assert load_acl_config(acl).dump_path == folder


def test_keys_that_only_cann_knows_are_left_to_cann(acl: Path) -> None:
    acl.write_text('{"dump": {"dump_path": ".", "dump_data": "stats", "dump_step": "0-3"}}', encoding="utf-8")
    assert load_acl_config(acl) == AclConfig(dump_path=".")
