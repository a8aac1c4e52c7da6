"""Writing a small config.json, loading it, and looking at what was said about it."""

import json
from pathlib import Path
from typing import Any

import pytest

from msprobe.config import FreeBenchmark, OverflowCheck, RunUt, Scene, Section, Statistics, Tensor, load
from msprobe.errors import ConfigError

EXAMPLES = Path(__file__).parent / "config_examples"

PT, MSD, MSS, MSA = Scene.PYTORCH, Scene.MINDSPORE_DYNAMIC, Scene.MINDSPORE_STATIC, Scene.MSADAPTER
SCENES = {"PT": PT, "MSd": MSD, "MSs": MSS}

# Every section with every default written out, as the specification gives them.
SECTIONS: dict[str, Section] = {
    "statistics": Statistics(
        scope=(), list=(), data_mode=("all",), summary_mode="statistics", tensor_list=()
    ),
    "tensor": Tensor(
        scope=(),
        list=(),
        data_mode=("all",),
        backward_input=(),
        file_format="npy",
        online_run_ut=False,
        nfs_path="",
        host="",
        port=None,
        tls_path="",
    ),
    "overflow_check": OverflowCheck(overflow_nums=1, check_mode="all"),
    "free_benchmark": FreeBenchmark(
        scope=(),
        list=(),
        fuzz_device="npu",
        pert_mode="improve_precision",
        handler_type="check",
        fuzz_level="L1",
        fuzz_stage="forward",
        if_preheat=False,
        preheat_step=15,
        max_sample=20,
    ),
    "run_ut": RunUt(
        white_list=(),
        black_list=(),
        error_data_path="./",
        is_online=False,
        nfs_path="",
        host="",
        port=None,
        rank_list=(0,),
        tls_path="",
    ),
}


def write(text: str | None = None, /, **keys: Any) -> str:
    """Writes c.json into the current folder, on one line; it has a dump_path unless that is given as None."""
    keys = {"dump_path": "/out", **keys}
    if keys["dump_path"] is None:
        del keys["dump_path"]
    Path("c.json").write_text(text or json.dumps(keys), encoding="utf-8")
    return "c.json"


def section_of(task: str, **keys: Any) -> Section:
    """The section of a task with its defaults and these keys."""
    return type(SECTIONS[task])(**keys)


def mistakes(path: str, scene: Scene, **arguments: Any) -> list[str]:
    """The sentences of the error, without the name of c.json and its only line."""
    with pytest.raises(ConfigError) as caught:
        load(path, scene=scene, **arguments)
    head, *rest = str(caught.value).split("\n  ")
    if rest:
        assert head == f"The configuration has {len(rest)} problems:"
    return [line.removeprefix("c.json, line 1: ").removeprefix("c.json: ") for line in rest or [head]]


def notices(path: str, scene: Scene) -> list[str]:
    return [line.removeprefix("c.json, line 1: ") for line in load(path, scene=scene)[1]]


def spec(*marks: tuple[str, ...]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.spec(*mark) for mark in marks]
