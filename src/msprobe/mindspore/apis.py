"""Which functions of MindSpore are recorded, and under which names: support_wrap_ops.yaml, looked up."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from mindspore import Tensor

from msprobe import yaml_file
from msprobe.adapter import Api
from msprobe.capture.patch import Place, is_in_place
from msprobe.name import CallName, call_owner
from msprobe.yaml_file import Items, Object, Text, YamlFile

SUPPORT_LIST = Path(__file__).parent / "dump" / "hook_cell" / "support_wrap_ops.yaml"

# Where the functions of a section stand, and the prefix of their records.
_SECTIONS = {
    "ops": ("mindspore.ops", "Functional"),
    "tensor": ("mindspore.Tensor", "Tensor"),
    "mint": ("mindspore.mint", "Mint"),
    "mint.nn.functional": ("mindspore.mint.nn.functional", "MintFunctional"),
    "mint.distributed": ("mindspore.mint.distributed", "MintDistributed"),
    "comm_func": ("mindspore.communication.comm_func", "Distributed"),
}
_INTO_ARGUMENTS = "MintDistributed"  # what these give is written into tensors they are given


@functools.lru_cache(maxsize=4)  # asked for at every start()
def places(path: Path = SUPPORT_LIST) -> tuple[Place, ...]:
    """The functions of the support list that this MindSpore has."""
    found = []
    for section, names in read_list(path, _SECTIONS).items():
        where, prefix = _SECTIONS[section]
        holder = _holder(where)
        for name in names:
            if callable(getattr(holder, name, None)):
                api = Api(prefix, name, is_in_place(name), communicates=prefix == _INTO_ARGUMENTS)
                found.append(Place(holder, name, api))
    return tuple(found)


@functools.lru_cache(maxsize=1)
def by_owner() -> dict[str, Callable[..., Any]]:
    """The listed functions by the owner of their records."""
    return {
        call_owner(api.prefix, api.name): getattr(holder, attribute) for holder, attribute, api in places()
    }


def full_name(name: CallName) -> str:
    """What MindSpore calls the function of a record: mindspore.mint.div of Mint.div.0.forward."""
    where = {prefix: where for where, prefix in _SECTIONS.values()}.get(name.prefix)
    return name.owner if where is None else f"{where}.{name.api}"


def _holder(where: str) -> Any:
    """The module or class of a section; None where this build has no communication."""
    if where == "mindspore.Tensor":
        return Tensor
    try:
        return importlib.import_module(where)
    except ImportError:
        return None


def read_list(path: Path, known: Collection[str]) -> dict[str, list[str]]:
    """The names of each section of a support list."""
    file = yaml_file.read(str(path))
    if not isinstance(file.root, Object):
        file.fail(file.root.line, f"the sections {', '.join(known)} must stand here, each with its names")
    sections = {}
    for section, member in file.root.members.items():
        if section not in known:
            file.fail(member.line, f"there is no section {section!r}; known are {', '.join(known)}")
        sections[section] = _names(file, section, member.value)
    return sections


def _names(file: YamlFile, section: str, node: yaml_file.Node) -> list[str]:
    names = []
    for item in node.items if isinstance(node, Items) else (node,):
        if not isinstance(item, Text):
            file.fail(item.line, f"section {section!r} must be a list of names")
        names.append(item.text)
    return names
