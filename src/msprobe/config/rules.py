"""What a task, a level and a scene allow together; each combination that cannot work, with the reason."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from msprobe.config.models import ConfigFile, FreeBenchmark, RunUt, Scene, Statistics, Tensor
from msprobe.errors import RecordingError
from msprobe.json_file import KeyPath, Remark
from msprobe.name import BACKWARD, FORWARD, CallName
from msprobe.plural import counted

MINDSPORE = frozenset({Scene.MINDSPORE_DYNAMIC, Scene.MINDSPORE_STATIC, Scene.MSADAPTER})
STATIC = frozenset({Scene.MINDSPORE_STATIC})

LEVELS: Mapping[Scene, tuple[str, ...]] = MappingProxyType(
    {
        Scene.PYTORCH: ("L0", "L1", "L2", "mix", "debug"),
        Scene.MINDSPORE_DYNAMIC: ("L0", "L1", "L2", "mix", "debug"),
        Scene.MINDSPORE_STATIC: ("L0", "L2"),
        Scene.MSADAPTER: ("L0", "L1", "L2", "mix", "debug"),
    }
)
_FIX_MODES: Mapping[Scene, tuple[str, ...]] = MappingProxyType(
    {
        Scene.PYTORCH: ("improve_precision", "to_cpu"),
        Scene.MINDSPORE_DYNAMIC: ("improve_precision",),
        Scene.MSADAPTER: ("improve_precision",),
    }
)


def remark(text: str, *keys: KeyPath) -> Remark:
    return Remark(text, keys)


def problems(file: ConfigFile, scene: Scene) -> Iterator[Remark]:
    """Why this configuration cannot work in this scene."""
    yield from _dump_path(file, scene)
    yield from _level(file, scene)
    yield from _task(file, scene)
    for found in _section(file, scene):
        yield Remark(found.text, (*found.keys, ("task",), ("level",)))


def _section(file: ConfigFile, scene: Scene) -> Iterator[Remark]:
    section = file.section
    if isinstance(section, (Statistics, Tensor)):
        yield from _scope(file, section, scene)
        yield from _static_filters(file, section, scene)
    if isinstance(section, Tensor):
        yield from _file_format(file, section, scene)
        yield from _online_training(file, section, scene)
        yield from _exchange(section, "tensor", "online_run_ut", section.online_run_ut)
    if isinstance(section, RunUt):
        yield from _error_data_path(section)
        yield from _exchange(section, "run_ut", "is_online", section.is_online)
    if isinstance(section, FreeBenchmark) and scene not in STATIC:
        yield from _free_benchmark(section, scene)
    if scene is Scene.PYTORCH and file.level == "L2":
        yield from _kernel_dump(file)


def _dump_path(file: ConfigFile, scene: Scene) -> Iterator[Remark]:
    if file.dump_path is None:
        what = "set it to the folder for the output, or pass the argument dump_path"
        if file.task == "run_ut":
            what = "every configuration has it, also one of run_ut, whose tables go to -o instead: set it"
        yield remark(f"is missing; {what}", ("dump_path",))
    elif scene in STATIC and not Path(file.dump_path).is_absolute():
        yield remark(f'is "{file.dump_path}", but {scene.value} needs an absolute path', ("dump_path",))


def _level(file: ConfigFile, scene: Scene) -> Iterator[Remark]:
    if file.level not in LEVELS[scene]:
        allowed = " or ".join(f'"{level}"' for level in LEVELS[scene])
        state = "is" if "level" in file.model_fields_set else "is not set and defaults to"
        yield remark(f'{state} "{file.level}", but {scene.value} has only {allowed}', ("level",))


def _task(file: ConfigFile, scene: Scene) -> Iterator[Remark]:
    task, level = file.task, file.level
    if task == "run_ut" and scene in MINDSPORE:
        yield remark(f'is "run_ut", which only PyTorch has, not {scene.value}', ("task",))
    if task == "free_benchmark" and scene in STATIC:
        yield remark(f'is "free_benchmark", which {scene.value} does not have', ("task",))
    elif task == "free_benchmark" and level != "L1":
        yield remark(f'is "{level}", but task "free_benchmark" needs level "L1"', ("level",), ("task",))
    if task == "overflow_check" and scene in STATIC and level == "L0":
        yield remark(
            f'is "L0", but task "overflow_check" needs level "L2" in {scene.value}', ("level",), ("task",)
        )
    if task == "overflow_check" and level == "debug":
        yield remark(
            'is "overflow_check", but level "debug" has only "statistics" and "tensor"', ("task",), ("level",)
        )
    if task != "tensor" and level == "L2" and scene is Scene.PYTORCH:
        yield remark(f'is "{task}", but level "L2" needs task "tensor" in PyTorch', ("task",), ("level",))


def _scope(file: ConfigFile, section: Statistics | Tensor, scene: Scene) -> Iterator[Remark]:
    key = (file.task, "scope")
    if section.scope and scene in STATIC:
        yield remark(
            f'is set, but {scene.value} has no scope; name what to record in "{file.task}.list"', key
        )
    elif scene is Scene.PYTORCH and file.level == "L2":
        return
    elif len(section.scope) not in (0, 2):
        yield remark(
            f"holds {counted(len(section.scope), 'name')}, but it must hold two, the first and the last "
            "call to record",
            key,
        )


def _static_filters(file: ConfigFile, section: Statistics | Tensor, scene: Scene) -> Iterator[Remark]:
    if scene not in STATIC:
        return
    key = (file.task, "data_mode")
    if len(section.data_mode) > 1:
        yield remark(
            f'holds {len(section.data_mode)} values, but {scene.value} takes one of "all", "input", "output"',
            key,
        )
    elif section.data_mode[0] in ("forward", "backward"):
        yield remark(
            f'is "{section.data_mode[0]}", but {scene.value} has only "all", "input" and "output"', key
        )
    for index, name in enumerate(section.list):
        yield from _kernel_name(file, name, (file.task, "list", index))


def _kernel_name(file: ConfigFile, name: str, key: KeyPath) -> Iterator[Remark]:
    pattern = re.fullmatch(r"name-regex\((.*)\)", name)
    if pattern:
        try:
            re.compile(pattern[1])
        except re.error as error:
            yield remark(f'is "{name}", but that is not a regular expression: {error}', key)
    elif file.level == "L2" and "/" not in name:
        yield remark(
            f'is "{name}", an operator type, which level "L2" does not support; write a full kernel name '
            'such as "Default/network/MatMul-op0" or "name-regex(...)"',
            key,
        )


def _file_format(file: ConfigFile, section: Tensor, scene: Scene) -> Iterator[Remark]:
    if section.file_format == "bin" and file.level == "L1" and scene in MINDSPORE:
        yield remark('is "bin", but level "L1" does not support it; use "npy"', ("tensor", "file_format"))


def _exchange(section: Tensor | RunUt, task: str, switch: str, on: bool) -> Iterator[Remark]:
    if not on:
        return
    if section.nfs_path:
        if not Path(section.nfs_path).is_dir():
            yield remark(f'is "{section.nfs_path}", but there is no such folder', (task, "nfs_path"))
        return
    missing = [key for key, value in (("host", section.host), ("port", section.port)) if not value]
    if missing:
        names = " and ".join(f'"{task}.{key}"' for key in missing)
        verb = "is" if len(missing) == 1 else "are"
        yield remark(
            f'is true, but {names} {verb} not set; set "{task}.nfs_path", or "{task}.host" and "{task}.port"',
            (task, switch),
            (task, "host"),
            (task, "port"),
            (task, "nfs_path"),
        )
    if section.tls_path and not Path(section.tls_path).is_dir():
        yield remark(f'is "{section.tls_path}", but there is no such folder', (task, "tls_path"))


def _online_training(file: ConfigFile, section: Tensor, scene: Scene) -> Iterator[Remark]:
    key = ("tensor", "online_run_ut")
    if section.online_run_ut and scene in MINDSPORE:
        yield remark(f"is true, but {scene.value} has no online pre-check; only PyTorch has it", key)
    elif section.online_run_ut and file.level != "L1":
        yield remark(f'is "{file.level}", but "tensor.online_run_ut" needs level "L1"', ("level",), key)


def _error_data_path(section: RunUt) -> Iterator[Remark]:
    if not Path(section.error_data_path).is_dir():
        yield remark(
            f'is "{section.error_data_path}", but there is no such folder; create it first',
            ("run_ut", "error_data_path"),
        )


def _free_benchmark(section: FreeBenchmark, scene: Scene) -> Iterator[Remark]:
    if section.scope and section.list:
        yield remark(
            'and "free_benchmark.list" are both set; set only one of them',
            ("free_benchmark", "scope"),
            ("free_benchmark", "list"),
        )
    if scene in MINDSPORE:
        yield from _free_benchmark_mindspore(section, scene)
    elif (section.fuzz_device == "cpu") != (section.pert_mode == "to_cpu"):
        yield remark(
            f'is "{section.fuzz_device}" while "free_benchmark.pert_mode" is "{section.pert_mode}"; '
            'fuzz_device "cpu" and pert_mode "to_cpu" go together',
            ("free_benchmark", "fuzz_device"),
            ("free_benchmark", "pert_mode"),
        )
    if section.handler_type == "fix":
        yield from _free_benchmark_fix(section, scene)


def _free_benchmark_mindspore(section: FreeBenchmark, scene: Scene) -> Iterator[Remark]:
    if section.scope:
        yield remark(
            f'is set, but {scene.value} has no scope here; use "free_benchmark.list"',
            ("free_benchmark", "scope"),
        )
    refused = {"fuzz_device": "cpu", "pert_mode": "to_cpu", "fuzz_stage": "backward"}
    for key, value in refused.items():
        if getattr(section, key) == value:
            yield remark(f'is "{value}", which only PyTorch has, not {scene.value}', ("free_benchmark", key))


def _free_benchmark_fix(section: FreeBenchmark, scene: Scene) -> Iterator[Remark]:
    fix = ("free_benchmark", "handler_type")
    if section.if_preheat:
        yield remark('is true, but handler_type "fix" has no preheat', ("free_benchmark", "if_preheat"), fix)
    if section.fuzz_stage == "backward":
        yield remark(
            'is "backward", but handler_type "fix" works on forward only',
            ("free_benchmark", "fuzz_stage"),
            fix,
        )
    if section.pert_mode not in _FIX_MODES[scene]:
        allowed = " or ".join(f'"{mode}"' for mode in _FIX_MODES[scene])
        yield remark(
            f'is "{section.pert_mode}", but handler_type "fix" needs {allowed}',
            ("free_benchmark", "pert_mode"),
            fix,
        )


def _kernel_dump(file: ConfigFile) -> Iterator[Remark]:
    if not file.acl_config:
        yield remark(
            'is missing, but level "L2" needs it; set it to the path of acl_config.json', ("acl_config",)
        )
    elif not file.acl_config.endswith(".json"):
        yield remark(f'is "{file.acl_config}", but it must be a .json file', ("acl_config",))
    elif not Path(file.acl_config).is_file():
        yield remark(f'is "{file.acl_config}", but there is no such file; create it first', ("acl_config",))
    if not isinstance(file.section, Tensor):
        return
    names = kernel_apis(file.section)
    key = ("tensor", "scope" if file.section.scope or not file.section.list else "list")
    if len(names) != 1:
        yield remark(
            f'holds {counted(len(names), "name")}, but level "L2" records exactly one API; name it in '
            '"tensor.scope" and leave "tensor.list" empty',
            key,
        )
    elif not (direction := api_direction(names[0])):
        yield remark(
            f'is "{names[0]}", but level "L2" needs the full name of one API, such as '
            '"Tensor.__mul__.10.forward"',
            (*key, 0),
        )
    elif direction == BACKWARD:
        yield from _backward_input(file.section.backward_input, names[0])


def api_direction(name: str) -> str:
    """forward or backward for the full name of an API, else nothing."""
    try:
        parsed = CallName.parse(name)
    except RecordingError:
        return ""
    return parsed.direction if parsed.direction in (FORWARD, BACKWARD) and not parsed.is_module else ""


def kernel_apis(section: Tensor) -> tuple[str, ...]:
    """The APIs of a kernel dump: the specification prints them in scope, and in one place in list."""
    return section.scope + section.list


def _backward_input(paths: tuple[str, ...], api: str) -> Iterator[Remark]:
    key = ("tensor", "backward_input")
    if not paths:
        yield remark(
            f'is missing, but {api} is a backward API; record it once with task "tensor" at level "L1", then '
            f'name its input files here, such as "{api}.input.0.pt"',
            key,
            ("tensor", "scope"),
        )
    for path in paths:
        if not path.endswith(".pt"):
            yield remark(f'names "{path}", but a backward input must be a .pt file', key)
        elif not Path(path).is_file():
            yield remark(f'names "{path}", but there is no such file', key)
