"""What the four mappings say: how the golden run calls things; and which of their names no recording has."""

from __future__ import annotations

import difflib
import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from msprobe.analyse.match import NOWHERE, SAME_NAMES, Rename, places
from msprobe.errors import UsageError
from msprobe.name import CallName, call_owner, outer
from msprobe.record import Record, Recording

Side = Literal["target", "golden"]

_MOST_HINTS = 10  # names for which the nearest one is looked for
_MOST_SENTENCES = 20
_MOST_NEAR = 20  # names that look alike at their ends, of which the nearest is chosen
_WHOSE = MappingProxyType({"target": "target", "golden": "golden run"})


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
        known = next((path for path in _paths(module) if path in cells), None)
        return None if known is None else cells[known] + module[len(known) :]

    return renamed


def _paths(module: str) -> Iterator[str]:
    """A module by path and class, and each path that it lies at or below, the longest first."""
    while module:
        yield module
        module = outer(module)


# ---- names that no recording has ----


class Stray(NamedTuple):
    """A name of a mapping file that a recording does not have; `hint` says what may be meant."""

    file: str
    line: int
    side: Side
    name: str
    hint: str = ""

    @property
    def sentence(self) -> str:
        hint = self.hint or "so the line pairs nothing"
        return f"{self.file}, line {self.line}: the {_WHOSE[self.side]} has no '{self.name}'; {hint}."


def strays(mappings: Mappings, target: Recording, golden: Recording) -> list[Stray]:
    """The names of -am, -cm and -dm that these recordings do not have; other ranks or steps may have them."""
    found: list[Stray] = []
    if mappings.api is not None:
        found += _strays(mappings.api, _Apis(target), _Apis(golden))
    if mappings.cell is not None:
        found += _strays(mappings.cell, _Modules(target), _Modules(golden))
    if mappings.data is not None:
        found += _strays(mappings.data, _Names(target), _Names(golden))
    return found


def sentences(found: Sequence[Sequence[Stray]]) -> list[str]:
    """What a user must be told: the names that none of the recordings has. One item for each pair of them."""
    if not found:
        return []
    lacking = [{stray[:4] for stray in each} for each in found]
    common = set.intersection(*lacking)
    hinted = {stray[:4]: stray for each in reversed(found) for stray in each if stray.hint}
    told = [hinted.get(stray[:4], stray).sentence for stray in found[0] if stray[:4] in common]
    more = len(told) - _MOST_SENTENCES
    if more > 0:
        told[_MOST_SENTENCES:] = [f"{more} more names of the mapping files are in no recording."]
    return told


class _Apis:
    """The APIs of a recording."""

    def __init__(self, recording: Recording) -> None:
        names = (record.name for record in recording.records.values())
        self._known = frozenset(name.owner for name in names if not name.is_module)

    def has(self, name: str) -> bool:
        return name in self._known

    def near(self, name: str) -> Iterable[str]:
        return _alike(name, self._known)


class _Modules:
    """The modules of a recording, by path and class, and the paths above them."""

    def __init__(self, recording: Recording) -> None:
        names = (record.name for record in recording.records.values())
        modules = {name.api for name in names if name.is_module}
        self._known = frozenset(path for module in modules for path in _paths(module))

    def has(self, name: str) -> bool:
        return name in self._known

    def near(self, name: str) -> Iterable[str]:
        return _alike(name, self._known)


class _Names:
    """The calls and places of a recording."""

    def __init__(self, recording: Recording) -> None:
        self._records = recording.records
        self._known = frozenset(name for record in self._records.values() for name in _names(record))

    def has(self, name: str) -> bool:
        return name in self._known

    def near(self, name: str) -> Iterable[str]:
        return [each for key in _alike(name, self._records) for each in _names(self._records[key])]


def _names(record: Record) -> Iterator[str]:
    yield str(record.name)
    yield from (place.name for place in places(record))


_Known = _Apis | _Modules | _Names


def _strays(mapping: ApiMapping | CellMapping | DataMapping, target: _Known, golden: _Known) -> list[Stray]:
    found: list[Stray] = []
    for line in mapping.lines:
        if not target.has(line.target):
            hint = _hint(line.target, target, golden) if len(found) < _MOST_HINTS else ""
            found.append(Stray(mapping.file, line.number, "target", line.target, hint))
        if line.golden != NOWHERE and not golden.has(line.golden):
            hint = _hint(line.golden, golden, target) if len(found) < _MOST_HINTS else ""
            found.append(Stray(mapping.file, line.number, "golden", line.golden, hint))
    return found


def _hint(name: str, own: _Known, other: _Known) -> str:
    if other.has(name):
        return "the other run has it: the target's name stands before the colon, the golden run's behind it"
    near = difflib.get_close_matches(name, list(own.near(name)), 1)
    return f"the nearest name is '{near[0]}'" if near else ""


def _alike(name: str, known: Iterable[str]) -> list[str]:
    """Those that begin and end most like a name: cheap enough to ask all of them."""

    def ends(other: str) -> int:
        return _alike_from_start(name, other) + _alike_from_start(name[::-1], other[::-1])

    return heapq.nlargest(_MOST_NEAR, sorted(known), key=ends)


def _alike_from_start(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
