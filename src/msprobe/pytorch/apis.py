"""Which torch functions are recorded, and under which names: support_wrap_ops.yaml, looked up in torch."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import torch
import yaml

from msprobe.adapter import Api
from msprobe.capture.patch import Place, is_in_place
from msprobe.errors import ConfigError
from msprobe.name import call_owner

SUPPORT_LIST = Path(__file__).parent / "hook_module" / "support_wrap_ops.yaml"

# Where a section's functions live, and the prefix of their records. One function may stand in several places
# (torch.conv2d is F.conv2d); the first section that lists it names it.
_SECTIONS = {
    "functional": ("torch.nn.functional", "Functional"),
    "tensor": ("torch.Tensor", "Tensor"),
    "_VF": ("torch._VF", "VF"),
    "torch": ("torch", "Torch"),
    "distributed": ("torch.distributed", "Distributed"),
    "torch_npu": ("torch_npu", "NPU"),
    "npu_distributed": ("torch_npu.distributed", "Distributed"),
    "mindspeed": ("mindspeed.ops", "MindSpeed"),
}
_OVERRIDABLE = ("functional", "tensor", "_VF", "torch")
_UNSEEN = frozenset({torch.range})  # written in C, and yet no mode sees it


class Apis(NamedTuple):
    """The functions to intercept, by the way in which each can be seen."""

    overridable: dict[Any, Api]  # written in C, under torch's override protocol
    exchanged: dict[FunctionType, Api]  # written in Python
    operators: dict[str, Api]  # `__add__` and the like
    aten: dict[str, Api]  # of torch.ops.aten
    replaced: list[Place]  # any other

    def find_operator(self, function: Any) -> Api | None:
        """The API of a function of torch.ops that was met for the first time."""
        if isinstance(function, torch._ops.OpOverload):
            function = function.overloadpacket
        if isinstance(function, torch._ops.OpOverloadPacket):
            namespace, _, name = function._qualified_op_name.partition("::")
            return self.aten.get(name) if namespace == "aten" else None
        return None


def load(path: Path | None = None) -> Apis:
    """The functions of the support list that this torch, and what the script imported beside it, has."""
    packages = {where.partition(".")[0] for where, _ in _SECTIONS.values()}
    return _load(path or SUPPORT_LIST, frozenset(packages & sys.modules.keys()))


@functools.lru_cache(maxsize=4)  # asked for at every start()
def _load(path: Path, _packages: frozenset[str]) -> Apis:
    sections = read_list(path)
    overridable: dict[Any, Api] = {}
    exchanged: dict[FunctionType, Api] = {}
    operators: dict[str, Api] = {}
    replaced: list[Place] = []
    for section, (where, prefix) in _SECTIONS.items():
        holder = _holder(where)
        for name in _documented_first(holder, sections.get(section, ())) if holder is not None else ():
            owner, attribute = _resolve(holder, name)
            function = getattr(owner, attribute, None)
            api = Api(
                prefix, _called(prefix, name), is_in_place(attribute), communicates=prefix == "Distributed"
            )
            if not callable(function):
                continue
            if section == "tensor" and name.startswith("__"):
                operators[name] = api
            elif isinstance(function, FunctionType):
                exchanged.setdefault(function, api)
            elif section in _OVERRIDABLE and function not in _UNSEEN:
                overridable.setdefault(function, api)
            else:
                replaced.append(Place(owner, attribute, api))
    aten = {name: Api("Aten", name, in_place=is_in_place(name)) for name in sections.get("aten", ())}
    return Apis(overridable, exchanged, operators, aten, replaced)


@functools.lru_cache(maxsize=4)
def by_owner(path: Path = SUPPORT_LIST) -> dict[str, Callable[..., Any]]:
    """The listed functions by the owner of their records; those that need other processes are left out."""
    found = {}
    for section, names in read_list(path).items():
        where, prefix = _SECTIONS.get(section, ("torch.ops.aten", "Aten"))
        holder = torch.ops.aten if section == "aten" else _holder(where)
        for name in names if holder is not None and prefix != "Distributed" else ():
            owner, attribute = _resolve(holder, name)
            function = getattr(owner, attribute, None)
            if callable(function):
                found[call_owner(prefix, _called(prefix, name))] = function
    return found


def _documented_first(holder: Any, names: Iterable[str]) -> list[str]:
    """The names of a section, those that torch does not document last.

    Of two names for one function, such as mm and dsmm, the call does not tell which was used.
    """

    def is_undocumented(name: str) -> bool:
        owner, attribute = _resolve(holder, name)
        return not getattr(getattr(owner, attribute, None), "__doc__", None)

    return sorted(names, key=is_undocumented)


def _resolve(holder: Any, name: str) -> tuple[Any, str]:
    """Where a function stands: `linalg.norm` of torch is `norm` of torch.linalg."""
    *path, attribute = name.split(".")
    for part in path:
        holder = getattr(holder, part, None)
    return holder, attribute


def _called(prefix: str, name: str) -> str:
    return name.rpartition(".")[2] if prefix == "MindSpeed" else name


def read_list(path: Path) -> dict[str, list[str]]:
    try:
        sections = yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"the support list {path} cannot be read: {error}.") from None
    known = {*_SECTIONS, "aten"}
    if not isinstance(sections, dict) or not set(sections) <= known:
        raise ConfigError(
            f"the support list {path} must hold the sections {', '.join(sorted(known))} and no other."
        )
    for section, names in sections.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"section {section} of the support list {path} must be a list of names.")
    return sections


def _holder(where: str) -> Any:
    """The module or class of a section; None when it is not here. Device packages are not imported."""
    if where == "torch.Tensor":
        return torch.Tensor
    package = where.partition(".")[0]
    if package != "torch" and package not in sys.modules:
        return None
    try:
        return importlib.import_module(where)
    except ImportError:
        return None
