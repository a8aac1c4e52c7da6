"""The names of mapping files that no recording has, each with what may have been meant."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from msprobe.pairing.layers import Lost, lost_layers
from msprobe.pairing.mapping import ApiMapping, CellMapping, DataMapping, LayerMapping, Mappings, paths
from msprobe.pairing.match import NOWHERE, places
from msprobe.plural import counted
from msprobe.record import Record, Recording

Side = Literal["target", "golden"]

_MOST_HINTS = 10  # names for which the nearest one is looked for
_MOST_SENTENCES = 20
_MOST_NEAR = 20  # names that look alike at their ends, of which the nearest is chosen
_WHOSE = MappingProxyType({"target": "target", "golden": "golden run"})


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
    """The names that these recordings do not have; other ranks or steps may have them."""
    found: list[Stray] = []
    if mappings.api is not None:
        found += _strays(mappings.api, _Apis(target), _Apis(golden))
    if mappings.cell is not None:
        found += _strays(mappings.cell, _Modules(target), _Modules(golden))
    if mappings.data is not None:
        found += _strays(mappings.data, _Names(target), _Names(golden))
    if mappings.layer is not None:
        found += (_of_layer(mappings.layer, lost) for lost in lost_layers(mappings.layer, target, golden))
    return found


def _of_layer(mapping: LayerMapping, lost: Lost) -> Stray:
    layer, line = lost.layer, lost.line
    if lost.is_layer:
        hint = "no layer of it is of this class or name, so the lines below pair nothing"
        return Stray(mapping.file, line.number, "target", layer, hint)
    if lost.is_target:
        hint = f"at least not in a layer '{layer}', so the line pairs nothing"
        return Stray(mapping.file, line.number, "target", line.target, hint)
    hint = f"at least not where the target has '{line.target}' in a layer '{layer}'"
    return Stray(mapping.file, line.number, "golden", line.golden, hint)


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
        told[_MOST_SENTENCES:] = [f"No recording has {counted(more, 'more name')} of the mapping files."]
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
        self._known = frozenset(path for module in modules for path in paths(module))

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
