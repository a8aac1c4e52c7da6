"""The dump settings of MindSpore itself, made of ours: what is asked for, and what a machine cannot give."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from msprobe.config import Config, OverflowCheck, Scene, Statistics, Tensor
from msprobe.config.rules import api_direction
from msprobe.errors import ConfigError, HardwareError, UsageError

NET = "Net"
ELSEWHERE = 2**32 - 1  # the number of a step that no settings name: what runs in it is not recorded
_EVERY_STEP = "0-4000000000"  # "all" would take ELSEWHERE as well
_SIDES = {"all": 0, "input": 1, "output": 2}
_OVERFLOWS = {"aicore": 1, "atomic": 2, "all": 3}  # what MindSpore calls op_debug_mode
_DEVICES = 8
_CATEGORIES = ["max", "min", "avg", "l2norm"]
_NEEDS_ADUMP = (2, 5, 0)  # newer than this, jit_level O2 is recorded through adump alone
_PATH = re.compile(r"/[A-Za-z0-9_/-]*")
_REGEX = re.compile(r"name-regex\((.*)\)")
_NOT_IN_CPP = re.compile(r"\(\?[^:=!]")
_PART = re.compile(r"\\?.")
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}


class Machine(NamedTuple):
    """What decides, besides the configuration, how kernels can be recorded."""

    device: str  # CPU or Ascend
    jit_level: str  # O0, O1 or O2
    version: tuple[int, ...]  # of MindSpore


class DumpSettings(NamedTuple):
    """A file that MindSpore reads; `statistics`: it writes tensors, and their statistics are ours to make."""

    file: str
    content: dict[str, Any]
    statistics: bool


def folder_of(config: Config) -> Path:
    """MindSpore takes an absolute path, and no dots in it."""
    return Path(os.path.abspath(config.dump_path))


def dump_settings(config: Config, machine: Machine) -> DumpSettings:
    """What this machine can give of a configuration that `check` has passed."""
    path = folder_of(config)
    _check_machine(config, machine, path)
    if isinstance(config.section, OverflowCheck):
        return _overflow_settings(config, config.section, machine, str(path))
    on_cpu = machine.device == "CPU"
    tensors = isinstance(config.section, Tensor)
    asked = _asked(config, str(path), "tensor" if tensors or on_cpu else "statistic")
    if machine.jit_level == "O2" and not on_cpu:
        asked |= {"op_debug_mode": 0, "file_format": getattr(config.section, "file_format", "npy")}
        return DumpSettings("kernel_graph_dump.json", {"common_dump_settings": asked}, statistics=False)
    asked["statistic_category"] = [] if tensors or on_cpu else _CATEGORIES
    # What is not enabled MindSpore writes behind training; on CPU it makes no difference.
    e2e: dict[str, Any] = {"enable": on_cpu or not config.async_dump, "trans_flag": True}
    if not tensors and not on_cpu:
        e2e |= {"stat_calc_mode": "host", "device_stat_precision_mode": "high"}
    content = {"common_dump_settings": asked, "e2e_dump_settings": e2e}
    return DumpSettings("kernel_kbyk_dump.json", content, statistics=on_cpu and not tensors)


def _overflow_settings(config: Config, section: OverflowCheck, machine: Machine, path: str) -> DumpSettings:
    if machine.device == "Ascend" and machine.jit_level != "O2":
        raise ConfigError(
            f"task overflow_check needs jit_level O2 in a static graph, and it is {machine.jit_level}: "
            'nothing is checked; call mindspore.set_context(jit_config={"jit_level": "O2"}).'
        )
    asked = _asked(config, path, "full")
    asked |= {"op_debug_mode": _OVERFLOWS[section.check_mode], "file_format": "npy"}
    return DumpSettings("kernel_graph_overflow_check.json", {"common_dump_settings": asked}, statistics=False)


def refuse_overflow(device: str, file: Path) -> None:
    """`file` holds what an Ascend would have been told."""
    raise HardwareError(
        "task overflow_check in a static graph needs the overflow registers of Ascend, and this is "
        f"{device}: nothing is checked; {file} holds the settings that MindSpore would be given there."
    )


def _asked(config: Config, path: str, saved_data: str) -> dict[str, Any]:
    section = config.section
    kernels = [_as_mindspore_reads(name) for name in getattr(section, "list", ())]
    return {
        "dump_mode": 1 if kernels else 0,
        "path": path,
        "net_name": NET,
        "iteration": "|".join(map(str, config.step)) or _EVERY_STEP,
        "saved_data": saved_data,
        "input_output": _SIDES[getattr(section, "data_mode", ("all",))[0]],
        "kernels": kernels,
        "support_device": list(config.rank) or list(range(_DEVICES)),
    }


def _as_mindspore_reads(name: str) -> str:
    """MindSpore doubles each backslash of an expression as it reads it: what has one must do without."""
    pattern = _REGEX.fullmatch(name)
    if pattern is None:
        return name
    if other := _NOT_IN_CPP.search(pattern[1]):
        raise ConfigError(f'"list" holds an expression with {other[0]}, which MindSpore cannot take.')
    parts, in_set = [], False
    for part in _PART.findall(pattern[1]):
        plain = _without_backslash(part) if len(part) > 1 else part
        in_set = part == "[" or (in_set and part != "]")
        parts.append(f"[{plain}]" if len(part) > 1 and not in_set else plain)
    return f"name-regex({''.join(parts)})"


def _without_backslash(escaped: str) -> str:
    """What stands for it in a set of characters."""
    sign = escaped[1]
    if sign not in _CLASSES and (sign.isalnum() or sign in "^]\\-"):
        raise ConfigError(
            f'"list" holds an expression with {escaped}, which MindSpore cannot take; write a set of '
            "characters such as [a-z] instead."
        )
    return _CLASSES.get(sign, sign)


# ---- what cannot be recorded ----


def check(config: Config) -> None:
    """What no machine can record at this level."""
    section = config.section
    if isinstance(section, OverflowCheck):
        if config.scene is not Scene.MINDSPORE_STATIC:
            raise UsageError(
                f"task overflow_check at level L2 is for static graphs, and this is {config.scene.value}: "
                "nothing is checked; use level L1."
            )
        return
    if not isinstance(section, (Statistics, Tensor)):
        raise UsageError(f"task {config.task} has no kernels; use task statistics or tensor at level L2.")
    if config.scene is not Scene.MINDSPORE_STATIC:
        _check_like_static(section)


def _check_like_static(section: Statistics | Tensor) -> None:
    """The kernels of a compiled part are those of a static graph, and so is what may be asked of them."""
    if section.scope:
        raise ConfigError('"scope" is set, but kernels have no scope; name them in "list".')
    if len(section.data_mode) > 1 or section.data_mode[0] not in _SIDES:
        raise ConfigError(
            f'"data_mode" is {list(section.data_mode)}, but level L2 takes one of "all", "input", "output".'
        )
    for name in section.list:
        _check_kernel_name(name)


def _check_kernel_name(name: str) -> None:
    pattern = _REGEX.fullmatch(name)
    if api_direction(name):
        raise HardwareError(
            f"the kernels of the API {name} can only be recorded on Ascend, with adump: nothing is recorded; "
            'leave "list" empty to record what mindspore.jit compiles.'
        )
    if pattern is None and "/" not in name:
        raise ConfigError(
            f'"list" holds "{name}", an operator type, which level L2 does not support; write a full kernel '
            'name such as "Default/network/MatMul-op0" or "name-regex(...)".'
        )
    try:
        re.compile(pattern[1] if pattern is not None else "")
    except re.error as error:
        raise ConfigError(f'"list" holds "{name}", but that is not a regular expression: {error}.') from None


def _check_machine(config: Config, machine: Machine, path: Path) -> None:
    if not _PATH.fullmatch(str(path)):
        raise ConfigError(
            f'"dump_path" is "{path}", but at level L2 MindSpore takes only letters, digits, "-", "_" and '
            '"/" in it; choose another folder.'
        )
    compiled_whole = machine.device != "CPU" and machine.jit_level == "O2"
    if isinstance(config.section, OverflowCheck):
        return
    if compiled_whole and machine.version > _NEEDS_ADUMP:
        raise HardwareError(
            "with jit_level O2 the kernels on Ascend are recorded through adump, which is not in this build: "
            "nothing is recorded; use jit_level O0 or O1."
        )
    if getattr(config.section, "file_format", "npy") == "bin" and not compiled_whole:
        raise HardwareError(
            '"file_format" is "bin", which MindSpore writes only on Ascend with jit_level O2: nothing is '
            'recorded; use "npy".'
        )
