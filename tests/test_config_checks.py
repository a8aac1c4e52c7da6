"""config.json of the tasks that check: overflow_check, free_benchmark, run_ut, and the online pre-check."""

import json
from pathlib import Path
from typing import Any

import pytest

from config_case import MSA, MSD, MSS, PT, SCENES, mistakes, notices, spec, write
from msprobe.config import FreeBenchmark, OverflowCheck, RunUt, Scene, Tensor, load


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.spec("C084", "PT")
@pytest.mark.spec("C085", "PT")
@pytest.mark.spec("C086", "PT")
@pytest.mark.spec("C087", "PT")
@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"nfs_path": "shared"}, []),
        ({"host": "192.168.1.2", "port": 65535}, []),
        ({"host": "127.0.0.1", "port": 1, "tls_path": "shared"}, []),
        (
            {"nfs_path": "shared", "host": "127.0.0.1", "port": 1},
            [f'"tensor.{key}" has no effect because nfs_path is set.' for key in ("host", "port")],
        ),
    ],
)
def test_online_training_side(section: dict[str, Any], expected: list[str]) -> None:
    Path("shared").mkdir()
    path = write(task="tensor", tensor={"online_run_ut": True, **section})
    assert load(path, scene=PT)[0].section == Tensor(online_run_ut=True, **section)
    assert notices(path, PT) == expected


@pytest.mark.parametrize(
    ("task", "switch"),
    [
        pytest.param("tensor", "online_run_ut", marks=spec(*((f"C08{n}", "PT") for n in (5, 6, 7)))),
        pytest.param("run_ut", "is_online", marks=spec(*((f"C10{n}", "PT") for n in (0, 1, 2)))),
    ],
)
@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, '{on}" is true, but "{task}.host" and "{task}.port" are not set; {hint}'),
        ({"host": "10.0.0.1"}, '{on}" is true, but "{task}.port" is not set; {hint}'),
        ({"port": 8000}, '{on}" is true, but "{task}.host" is not set; {hint}'),
        ({"nfs_path": "gone"}, '"{task}.nfs_path" is "gone", but there is no such folder.'),
        (
            {"host": "10.0.0.1", "port": 1, "tls_path": "gone"},
            '"{task}.tls_path" is "gone", but there is no such folder.',
        ),
        (
            {"host": "localhost", "port": 1},
            '"{task}.host" is "localhost", but it must be an IPv4 address such as "192.168.1.10".',
        ),
        (
            {"host": "10.0.0.256", "port": 1},
            '"{task}.host" is "10.0.0.256", but it must be an IPv4 address such as "192.168.1.10".',
        ),
        ({"host": "10.0.0.1", "port": 0}, '"{task}.port" is 0, but it must be at least 1.'),
        ({"host": "10.0.0.1", "port": 65536}, '"{task}.port" is 65536, but it must be at most 65535.'),
        ({"host": "10.0.0.1", "port": "80"}, '"{task}.port" is "80", but it must be an integer.'),
        ({"host": "10.0.0.1", "port": True}, '"{task}.port" is true, but it must be an integer.'),
    ],
)
def test_wrong_exchange(task: str, switch: str, section: dict[str, Any], expected: str) -> None:
    hint = f'set "{task}.nfs_path", or "{task}.host" and "{task}.port".'
    sentence = expected.format(on=f'"{task}.{switch}', task=task, hint=hint)
    assert mistakes(write(task=task, **{task: {switch: True, **section}}), PT) == [sentence]


@pytest.mark.spec("C084", "PT")
def test_online_training_side_wants_true_or_false() -> None:
    assert mistakes(write(task="tensor", tensor={"online_run_ut": "true"}), PT) == [
        '"tensor.online_run_ut" is "true", but it must be true or false, without quotes.'
    ]


@pytest.mark.spec("C088", "PT")
@pytest.mark.spec("C104", "PT")
def test_settings_of_the_training_side_do_not_reach_the_checking_side() -> None:
    training = {"online_run_ut": True, "host": "10.0.0.1", "port": 8000}
    checking = {"is_online": True, "host": "127.0.0.1", "port": 9000, "rank_list": [1, "3-4"]}
    config, said = load(write(task="run_ut", tensor=training, run_ut=checking), scene=PT)
    assert (config.section, said) == (
        RunUt(is_online=True, host="127.0.0.1", port=9000, rank_list=(1, 3, 4)),
        (),
    )


def test_online_training_side_is_for_pytorch_at_l1() -> None:
    on = {"online_run_ut": True, "host": "10.0.0.1", "port": 8000}
    assert mistakes(write(task="tensor", tensor=on), MSD) == [
        '"tensor.online_run_ut" is true, but a MindSpore dynamic graph has no online pre-check; '
        "only PyTorch has it."
    ]
    assert mistakes(write(task="tensor", level="mix", tensor=on), PT) == [
        '"level" is "mix", but "tensor.online_run_ut" needs level "L1".'
    ]


def test_rank_list_names_at_least_one_rank() -> None:
    assert mistakes(write(task="run_ut", run_ut={"rank_list": []}), PT) == [
        '"run_ut.rank_list" is [], but it must name at least one rank.'
    ]


@pytest.mark.spec("C094", "PT")
@pytest.mark.parametrize(
    ("scene", "words"),
    [(MSD, "a MindSpore dynamic graph"), (MSS, "a MindSpore static graph"), (MSA, "MSAdapter")],
)
def test_run_ut_is_for_pytorch_only(scene: Scene, words: str) -> None:
    path = write(task="run_ut", level="L0")
    assert mistakes(path, scene) == [f'"task" is "run_ut", which only PyTorch has, not {words}.']
    assert load(path, scene=PT)[0].section == RunUt()


def test_run_ut_lists_and_error_data_path() -> None:
    Path("errors").mkdir()
    given = {"white_list": ["conv1d", "conv2d"], "black_list": ["conv2d"], "error_data_path": "errors"}
    assert load(write(task="run_ut", run_ut=given), scene=PT)[0].section == RunUt(
        white_list=("conv1d", "conv2d"), black_list=("conv2d",), error_data_path="errors"
    )
    assert mistakes(write(task="run_ut", run_ut={"error_data_path": "gone", "white_list": "relu"}), PT) == [
        '"run_ut.white_list" is "relu", but it must be a list: [ ... ].',
        '"run_ut.error_data_path" is "gone", but there is no such folder; create it first.',
    ]


@pytest.mark.parametrize("scene", [PT, MSD])
def test_overflow_nums(scene: Scene) -> None:
    for count in (1, 3, -1):
        path = write(task="overflow_check", overflow_check={"overflow_nums": count})
        assert load(path, scene=scene)[0].section == OverflowCheck(overflow_nums=count)
    for count in (0, -2):
        path = write(task="overflow_check", overflow_check={"overflow_nums": count})
        assert mistakes(path, scene) == [
            f'"overflow_check.overflow_nums" is {count}, but it must be at least 1, '
            "or -1 to check until training ends."
        ]
    for wrong in (True, "1", 1.5):
        path = write(task="overflow_check", overflow_check={"overflow_nums": wrong})
        assert mistakes(path, scene) == [
            f'"overflow_check.overflow_nums" is {json.dumps(wrong)}, but it must be an integer.'
        ]


def test_check_mode() -> None:
    for mode in ("all", "aicore", "atomic"):
        path = write(task="overflow_check", level="L2", overflow_check={"check_mode": mode})
        assert load(path, scene=MSS)[0].section == OverflowCheck(check_mode=mode)
    path = write(task="overflow_check", level="L2", overflow_check={"check_mode": "atomc"})
    assert mistakes(path, MSS) == [
        '"overflow_check.check_mode" is "atomc", but it must be one of "all", "aicore", "atomic"; '
        'did you mean "atomic"?'
    ]


def test_overflow_check_needs_a_level_that_sees_calls() -> None:
    assert mistakes(write(task="overflow_check", level="L0"), MSS) == [
        '"level" is "L0", but task "overflow_check" needs level "L2" in a MindSpore static graph.'
    ]
    assert mistakes(write(task="overflow_check", level="debug"), PT) == [
        '"task" is "overflow_check", but level "debug" has only "statistics" and "tensor".'
    ]


@pytest.mark.spec("C028", "PT", "MSd")
@pytest.mark.parametrize("level", ["L0", "mix", "debug"])
def test_free_benchmark_needs_level_l1(level: str) -> None:
    path = write(task="free_benchmark", level=level)
    for scene in (PT, MSD):
        assert mistakes(path, scene) == [f'"level" is "{level}", but task "free_benchmark" needs level "L1".']
        assert load(path, scene=scene, level="L1")[0].section == FreeBenchmark()


@pytest.mark.spec("C028", "MSd")
def test_free_benchmark_is_not_for_a_static_graph() -> None:
    assert mistakes(write(task="free_benchmark", level="L2"), MSS) == [
        '"task" is "free_benchmark", which a MindSpore static graph does not have.'
    ]


FREE = {
    "scope and list": pytest.param(
        PT,
        {"scope": ["Torch.matmul.0"], "list": ["relu"]},
        ['"free_benchmark.scope" and "free_benchmark.list" are both set; set only one of them.'],
        marks=spec(("C032", "PT")),
    ),
    "scope": (MSD, {"scope": ["x"]}, ['scope" is set, but {} has no scope here; use "free_benchmark.list".']),
    "cpu without to_cpu": pytest.param(
        PT,
        {"fuzz_device": "cpu"},
        [
            'fuzz_device" is "cpu" while "free_benchmark.pert_mode" is "improve_precision"; '
            'fuzz_device "cpu" and pert_mode "to_cpu" go together.'
        ],
        marks=spec(("C035", "PT")),
    ),
    "to_cpu without cpu": (
        PT,
        {"pert_mode": "to_cpu"},
        [
            'fuzz_device" is "npu" while "free_benchmark.pert_mode" is "to_cpu"; fuzz_device "cpu" and '
            'pert_mode "to_cpu" go together.'
        ],
    ),
    "cpu": pytest.param(
        MSD,
        {"fuzz_device": "cpu", "pert_mode": "to_cpu"},
        [
            f'{key}" is "{value}", which only PyTorch has, not {{}}.'
            for key, value in (("fuzz_device", "cpu"), ("pert_mode", "to_cpu"))
        ],
        marks=spec(("C035", "MSd"), ("C036", "MSd")),
    ),
    "backward": pytest.param(
        MSD,
        {"fuzz_stage": "backward"},
        ['fuzz_stage" is "backward", which only PyTorch has, not {}.'],
        marks=spec(("C046", "MSd")),
    ),
    "device": pytest.param(
        PT,
        {"fuzz_device": "gpu"},
        ['fuzz_device" is "gpu", but it must be one of "npu", "cpu"; did you mean "npu"?'],
        marks=spec(("C035", "PT")),
    ),
    "mode": pytest.param(
        PT,
        {"pert_mode": "noise"},
        [
            'pert_mode" is "noise", but it must be one of "improve_precision", "add_noise", "no_change", '
            '"bit_noise", "change_value", "to_cpu"; did you mean "bit_noise"?'
        ],
        marks=spec(("C036", "PT")),
    ),
    "handler": (
        PT,
        {"handler_type": "repair"},
        ['handler_type" is "repair", but it must be one of "check", "fix".'],
    ),
    "fuzz_level": pytest.param(
        PT,
        {"fuzz_level": "L2"},
        ['fuzz_level" is "L2", but it must be "L1".'],
        marks=spec(("C045", "PT")),
    ),
    "stage": pytest.param(
        PT,
        {"fuzz_stage": "both"},
        ['fuzz_stage" is "both", but it must be one of "forward", "backward".'],
        marks=spec(("C046", "PT")),
    ),
    "preheat as a text": (
        PT,
        {"if_preheat": "true"},
        ['if_preheat" is "true", but it must be true or false, without quotes.'],
    ),
    "preheat_step": (PT, {"preheat_step": 0}, ['preheat_step" is 0, but it must be at least 1.']),
    "max_sample": (PT, {"max_sample": "20"}, ['max_sample" is "20", but it must be an integer.']),
    "fix with everything it cannot": (
        PT,
        {"handler_type": "fix", "if_preheat": True, "fuzz_stage": "backward", "pert_mode": "add_noise"},
        [
            'if_preheat" is true, but handler_type "fix" has no preheat.',
            'fuzz_stage" is "backward", but handler_type "fix" works on forward only.',
            'pert_mode" is "add_noise", but handler_type "fix" needs "improve_precision" or "to_cpu".',
        ],
    ),
    "fix": (
        MSD,
        {"handler_type": "fix", "pert_mode": "change_value"},
        ['pert_mode" is "change_value", but handler_type "fix" needs "improve_precision".'],
    ),
}


@pytest.mark.parametrize(("scene", "section", "expected"), FREE.values(), ids=FREE)
def test_wrong_free_benchmark(scene: Scene, section: dict[str, Any], expected: list[str]) -> None:
    sentences = [one.format(scene.value) for one in expected]
    whole = [one if one.startswith('"') else f'"free_benchmark.{one}' for one in sentences]
    assert mistakes(write(task="free_benchmark", free_benchmark=section), scene) == whole


@pytest.mark.parametrize(
    ("scene", "section"),
    [
        *(
            pytest.param(SCENES[environment], {"pert_mode": mode}, marks=spec(("C036", environment)))
            for environment in ("PT", "MSd")
            for mode in ("improve_precision", "add_noise", "no_change", "bit_noise", "change_value")
        ),
        pytest.param(
            PT,
            {"fuzz_device": "cpu", "pert_mode": "to_cpu"},
            marks=spec(("C035", "PT"), ("C036", "PT")),
        ),
        pytest.param(MSD, {"fuzz_device": "npu"}, marks=spec(("C035", "MSd"))),
        pytest.param(PT, {"fuzz_stage": "backward"}, marks=spec(("C046", "PT"))),
        pytest.param(MSD, {"fuzz_level": "L1"}, marks=spec(("C045", "MSd"))),
        (PT, {"if_preheat": True, "preheat_step": 3, "max_sample": 2}),
        (PT, {"handler_type": "fix", "fuzz_device": "cpu", "pert_mode": "to_cpu"}),
        (PT, {"scope": ["Torch.matmul.0", "Tensor.pow.4", "Torch.add.1"]}),
        (MSD, {"list": ["mindspore.mint.div", "mindspore.Tensor.__add__"]}),
    ],
)
def test_free_benchmark(scene: Scene, section: dict[str, Any]) -> None:
    config, said = load(write(task="free_benchmark", free_benchmark=section), scene=scene)
    assert (config.section, said) == (FreeBenchmark(**section), ())
