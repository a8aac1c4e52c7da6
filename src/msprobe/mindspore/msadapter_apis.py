"""Which functions of MSAdapter's torch are recorded: PyTorch's support list, looked up where they stand."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any, NamedTuple

from mindspore import Tensor

from msprobe.adapter import Api
from msprobe.capture.patch import Place, is_in_place
from msprobe.mindspore.apis import read_list

SUPPORT_LIST = Path(__file__).parents[1] / "pytorch" / "hook_module" / "support_wrap_ops.yaml"


class _Section(NamedTuple):
    """The prefix of the records of its functions, and where these stand."""

    prefix: str
    holder: str


_SECTIONS = {
    "functional": _Section("Functional", "torch.nn.functional"),
    "tensor": _Section("Tensor", "torch.Tensor"),
    "torch": _Section("Torch", "torch"),
    "_VF": _Section("VF", "torch._VF"),
    "distributed": _Section("Distributed", "torch.distributed"),
    "aten": _Section("Aten", "torch.ops.aten"),
    "torch_npu": _Section("NPU", "torch_npu"),
    "npu_distributed": _Section("Distributed", "torch_npu.distributed"),
    "mindspeed": _Section("MindSpeed", "mindspeed.ops"),
}


def places(torch: Any, path: Path = SUPPORT_LIST) -> tuple[Place, ...]:
    """The functions of the support list that the script, or what it imported, can call."""
    tops = {"torch", _package(torch), "torch_npu", "mindspeed"}
    return _places(torch, path, frozenset(name for name in sys.modules if name.partition(".")[0] in tops))


@functools.lru_cache(maxsize=2)  # asked for at every start()
def _places(torch: Any, path: Path, _imported: frozenset[str]) -> tuple[Place, ...]:
    found = []
    for section, names in read_list(path, _SECTIONS).items():
        prefix, where = _SECTIONS[section]
        for name in names:
            *inner, attribute = name.split(".")
            called = attribute if prefix == "MindSpeed" else name
            api = Api(prefix, called, is_in_place(attribute), communicates=prefix == "Distributed")
            standing = holders(torch, ".".join((where, *inner)), attribute)
            found += [Place(holder, attribute, api) for holder in standing]
    return tuple(found)


def holders(torch: Any, where: str, name: str) -> list[Any]:
    """Where a script, or a layer, may find the function of that name: in the class, or in one or two modules.

    torch's own module comes first. It may only show the contents of another, and remember what it showed, so
    that both must be changed, and it before the other.
    """
    if where == "torch.Tensor":
        return [Tensor] if callable(getattr(Tensor, name, None)) else []
    top, dot, inner = where.partition(".")
    known = [where, f"{_package(torch)}{dot}{inner}"] if top == "torch" else [where]
    modules = [sys.modules[place] for place in dict.fromkeys(known) if place in sys.modules]
    return modules if any(_is_function(vars(module).get(name)) for module in modules) else []


def _package(torch: Any) -> str:
    """Where everything stands, which need not be torch itself."""
    name: str = torch.nn.Module.__module__
    return name.partition(".")[0]


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)
