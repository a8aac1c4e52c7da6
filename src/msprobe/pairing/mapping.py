"""What the four mappings say: how the golden run calls things."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import NamedTuple

from msprobe.errors import UsageError
from msprobe.name import CallName, call_owner, outer
from msprobe.pairing.match import SAME_NAMES, Rename


class Line(NamedTuple):
    """One line of a mapping file: a name of the target, and that of the golden run."""

    target: str
    golden: str
    number: int


class ApiLine(NamedTuple):
    """An API of each side, and which positions belong together; None: each with the one of its number."""

    target: str
    golden: str
    number: int
    inputs: tuple[tuple[int, int], ...] | None = None
    outputs: tuple[tuple[int, int], ...] | None = None


class ApiMapping(NamedTuple):
    """`-am`; without a file only what is built in."""

    file: str = ""
    lines: tuple[ApiLine, ...] = ()


class CellMapping(NamedTuple):
    """`-cm`: modules, by path and class, or by path alone with all that is in them; or without a file."""

    file: str = ""
    lines: tuple[Line, ...] = ()


class DataMapping(NamedTuple):
    """`-dm`: single calls and places by their full names; NOWHERE has no counterpart."""

    file: str
    lines: tuple[Line, ...]


class LayerMapping(NamedTuple):
    """`-lm`: what is inside a layer of a class, by class; `layers` holds the numbers of layers."""

    file: str
    layers: tuple[tuple[str, tuple[Line, ...]], ...]


class Mappings(NamedTuple):
    """Those that were given."""

    api: ApiMapping | None = None
    cell: CellMapping | None = None
    data: DataMapping | None = None
    layer: LayerMapping | None = None
    align: bool | None = None  # by what calls do: always, never, or (None) if their numbers mislead

    @property
    def by_names(self) -> bool:
        """Whether no mapping was given, so that the names of calls are all that pairs them."""
        return self[:4] == (None,) * 4

    @property
    def names_nothing(self) -> bool:
        """Whether -am or -cm were given, and only without a file: no call or module is named."""
        given = [each for each in (self.api, self.cell) if each is not None]
        is_general = not any(each.lines for each in given)
        return bool(given) and is_general and self.data is None and self.layer is None


NO_MAPPINGS = Mappings()


def renaming(mappings: Mappings, framework: str) -> Rename:
    """What the mappings mean for two recordings of one framework; some mean something only across two."""
    both = f"but both recordings are of {framework}"
    if mappings.api is not None:
        raise UsageError(
            f"-am pairs the APIs of MindSpore with those of PyTorch, {both}; leave it out, or pair single "
            "calls with -dm FILE."
        )
    if mappings.layer is not None:
        raise UsageError(
            f"-lm pairs the layers of a MindSpore model with those of a PyTorch model, {both}; leave it out, "
            "or pair renamed modules with -cm FILE."
        )
    if mappings.cell is not None and not mappings.cell.file:
        raise UsageError(
            f"-cm without a file pairs the cells of MindSpore with the modules of PyTorch, {both}; give it a "
            "file with the modules that are called differently, one `target: golden` on each line."
        )
    if mappings.cell is None and mappings.data is None:
        return SAME_NAMES
    names = {line.target: line.golden for line in mappings.data.lines} if mappings.data is not None else {}
    return Rename(_owner(mappings.cell or CellMapping()), MappingProxyType(names))


def _owner(mapping: CellMapping) -> Callable[[CallName], str | None]:
    renamed = module_names(mapping)

    def owner(name: CallName) -> str | None:
        other = renamed(name.api) if name.is_module else None
        return None if other is None else call_owner(name.prefix, other)

    return owner


def module_names(mapping: CellMapping) -> Callable[[str], str | None]:
    """What the golden run calls a module, given by path and class; None where no line speaks of it."""
    cells = {line.target: line.golden for line in mapping.lines}

    @functools.cache
    def renamed(module: str) -> str | None:
        known = next((path for path in paths(module) if path in cells), None)
        return None if known is None else cells[known] + module[len(known) :]

    return renamed


def paths(module: str) -> Iterator[str]:
    """A module by path and class, and each path that it lies at or below, the longest first."""
    while module:
        yield module
        module = outer(module)
