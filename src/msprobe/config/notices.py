"""Settings that are accepted and yet do nothing, or not for long: one line of the log for each."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msprobe.config.models import ConfigFile, FreeBenchmark, RunUt, Scene, Statistics, Tensor
from msprobe.config.rules import MINDSPORE, STATIC, api_direction, kernel_apis, remark
from msprobe.json_file import Json, KeyPath, Remark
from msprobe.name import FORWARD

_NOT_STATIC = frozenset(Scene) - STATIC
_EVERYWHERE = frozenset(Scene)

_FOR_PYTORCH = "only PyTorch has this setting"
_IGNORED: Mapping[KeyPath, tuple[frozenset[Scene], str]] = MappingProxyType(
    {
        ("seed",): (MINDSPORE, _FOR_PYTORCH),
        ("is_deterministic",): (MINDSPORE, _FOR_PYTORCH),
        ("enable_dataloader",): (MINDSPORE, _FOR_PYTORCH),
        ("rm_dropout",): (MINDSPORE, _FOR_PYTORCH),
        ("acl_config",): (MINDSPORE, _FOR_PYTORCH),
        ("async_dump",): (_EVERYWHERE, "files are always written behind training"),
        ("precision",): (_EVERYWHERE, "statistics are always accumulated in float32 or more"),
        ("extra_info",): (_EVERYWHERE, "call stacks and the module structure are always recorded"),
        ("statistics", "precision"): (_EVERYWHERE, "statistics are always accumulated in float32 or more"),
        ("statistics", "summary_mode"): (STATIC, "a static graph has no summary modes"),
        ("tensor", "backward_input"): (MINDSPORE, _FOR_PYTORCH),
        ("tensor", "file_format"): (frozenset({Scene.PYTORCH}), "PyTorch tensors are saved as .pt files"),
        ("overflow_check", "overflow_nums"): (STATIC, "a static graph is checked to the end"),
        ("overflow_check", "check_mode"): (_NOT_STATIC, "only a MindSpore static graph has this setting"),
        ("free_benchmark", "if_preheat"): (MINDSPORE, _FOR_PYTORCH),
        ("free_benchmark", "preheat_step"): (MINDSPORE, _FOR_PYTORCH),
        ("free_benchmark", "max_sample"): (MINDSPORE, _FOR_PYTORCH),
    }
)
# MindSpore itself writes its kernels: what we say of our own recordings does not hold for them.
_KERNELS: Mapping[KeyPath, str] = MappingProxyType(
    {
        ("extra_info",): "kernels have neither call stacks nor modules",
        ("statistics", "summary_mode"): "kernels have no summary modes",
    }
)


def ignored(given: Mapping[str, Json], task: str, scene: Scene) -> dict[KeyPath, str]:
    """The keys in use that this scene does not know, each with the reason."""
    section = given.get(task)
    present: set[KeyPath] = {(key,) for key in given}
    present |= {(task, key) for key in section} if isinstance(section, dict) else set()
    reasons = {key: reason for key, (scenes, reason) in _IGNORED.items() if scene in scenes}
    if scene in MINDSPORE and given.get("level") == "L2":
        reasons |= _KERNELS
        del reasons[("async_dump",)]  # which they have
    return {key: reason for key, reason in reasons.items() if key in present}


def idle(file: ConfigFile) -> Iterator[Remark]:
    """Settings that are valid here and yet do nothing, or will not for long."""
    section = file.section
    if file.enable_dataloader:
        yield remark(
            "is deprecated and works on a single card only; call start(), stop() and step() instead",
            ("enable_dataloader",),
        )
    if file.acl_config and file.level != "L2":
        yield remark(f'has no effect at level "{file.level}"; only level "L2" uses it', ("acl_config",))
    if isinstance(section, Statistics) and section.tensor_list and file.level == "L2":
        yield remark(
            'has no effect at level "L2": kernels are recorded with statistics or with tensors, not with '
            'both; use task "tensor" and name them in "tensor.list"',
            ("statistics", "tensor_list"),
        )
    if isinstance(section, Tensor):
        yield from _idle_backward_input(file, section)
        yield from _idle_exchange(section, "tensor", "online_run_ut", section.online_run_ut)
    if isinstance(section, RunUt):
        yield from _idle_exchange(section, "run_ut", "is_online", section.is_online)
    if isinstance(section, FreeBenchmark) and not section.if_preheat:
        defaults = FreeBenchmark()
        for key in ("preheat_step", "max_sample"):
            if getattr(section, key) != getattr(defaults, key):
                yield remark("has no effect because if_preheat is false", ("free_benchmark", key))
    elif isinstance(section, FreeBenchmark) and section.pert_mode in ("no_change", "to_cpu"):
        yield remark(
            f'has no effect because the limits of pert_mode "{section.pert_mode}" are fixed',
            ("free_benchmark", "if_preheat"),
        )


def _idle_backward_input(file: ConfigFile, section: Tensor) -> Iterator[Remark]:
    if section.backward_input and file.level != "L2":
        yield remark(
            f'has no effect at level "{file.level}"; only level "L2" uses it', ("tensor", "backward_input")
        )
    elif section.backward_input and api_direction(kernel_apis(section)[0]) == FORWARD:
        yield remark("has no effect because the API is a forward one", ("tensor", "backward_input"))


def _idle_exchange(section: Tensor | RunUt, task: str, switch: str, on: bool) -> Iterator[Remark]:
    addresses = [key for key in ("host", "port", "tls_path") if getattr(section, key)]
    if on and section.nfs_path:
        for key in addresses:
            yield remark("has no effect because nfs_path is set", (task, key))
    if on:
        return
    paths = ["nfs_path"] if section.nfs_path else []
    ranks = ["rank_list"] if "rank_list" in section.model_fields_set else []
    for key in (*paths, *addresses, *ranks):
        yield remark(f"has no effect because {switch} is not true", (task, key))
