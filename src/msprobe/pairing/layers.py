"""`-lm`: two models are walked down from the top, and layers are called as the file says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msprobe.errors import RecordingError, UsageError
from msprobe.name import BACKWARD, FORWARD, CallName
from msprobe.pairing.mapping import LayerMapping, Line
from msprobe.record import Record, Recording

_TOP = "TopLayer"
_TOP_TOO = "Cell"
_NUMBERED_AFRESH = ("ParallelTransformer", "layers")  # of each stage of a pipeline

Path = tuple[str, ...]
Rules = Mapping[str, Mapping[str, str]]


class _Scope(NamedTuple):
    """Where a call stands in its model."""

    path: Path  # of a module; of an API that of the module around it, and its own name
    is_module: bool
    direction: str


def paired_by_layer(mapping: LayerMapping, target: Recording, golden: Recording) -> dict[str, str]:
    """The golden call of each call of the target that has one."""
    for recording in (target, golden):
        if not any(record.has_parent for record in recording.records.values()):
            raise UsageError(
                f"-lm needs recordings of level L0 or mix, which know the model; {recording.folder} has "
                f"level {recording.header.level}."
            )
    rules = _rules(mapping)
    ours, theirs = _Model(target), _Model(golden)
    found: dict[str, str] = {}
    for scope, keys in ours.calls.items():
        there = theirs.calls.get(scope._replace(path=_renamed(scope.path, ours.classes, rules)), ())
        found.update(zip(keys, there, strict=False))
    return found


class Lost(NamedTuple):
    """A line that one of the runs has nothing for."""

    layer: str
    line: Line
    is_target: bool  # False: the golden run
    is_layer: bool = False  # the whole layer is missing


def lost_layers(mapping: LayerMapping, target: Recording, golden: Recording) -> Iterator[Lost]:
    """The lines that pair nothing, and why."""
    rules = _rules(mapping)
    ours, theirs = _Model(target), _Model(golden)
    here, there = ours.paths(), theirs.paths()
    for layer, lines in mapping.layers:
        around = [path for path in here if layer in _names(path, ours.classes)]
        if not around:
            yield Lost(layer, lines[0], is_target=True, is_layer=True)
            continue
        for line in lines:
            child = tuple(line.target.split("."))
            found = [path + child for path in around if path + child in here]
            if not found:
                yield Lost(layer, line, is_target=True)
            elif not any(_renamed(path, ours.classes, rules) in there for path in found):
                yield Lost(layer, line, is_target=False)


def _names(path: Path, classes: Mapping[Path, str]) -> tuple[str, ...]:
    """What a file may call a layer."""
    return (path[-1], classes.get(path, "")) if path else (_TOP, _TOP_TOO)


class _Model:
    """The calls of a recording by their scopes, and the class of each module by its path."""

    def __init__(self, recording: Recording) -> None:
        self._records = recording.records
        names = [record.name for record in recording.records.values()]
        classes = {name.path: name.kind for name in names if name.is_module}
        self._numbers = _layer_numbers(classes)
        self.classes = {self._numbered(path): kind for path, kind in classes.items()}
        self.calls: dict[_Scope, list[str]] = defaultdict(list)
        for key, record in recording.records.items():
            self.calls[self._scope(record)].append(key)

    def paths(self) -> set[Path]:
        """Those of all modules and APIs, and all above them."""
        whole = {scope.path for scope in self.calls}
        return {path[:depth] for path in whole for depth in range(len(path) + 1)}

    def _scope(self, record: Record) -> _Scope:
        name = record.name
        if name.is_module:
            return _Scope(self._numbered(name.path), True, name.direction)
        if name.direction == BACKWARD:  # it stands where its forward call stood
            record = self._records.get(str(name.facing(FORWARD)), record)
        return _Scope((*self._numbered(_path(record.parent)), name.api), False, name.direction)

    def _numbered(self, path: Path) -> Path:
        for above, numbers in self._numbers.items():
            depth = len(above)
            if path[:depth] == above and len(path) > depth and path[depth] in numbers:
                path = (*above, numbers[path[depth]], *path[depth + 1 :])
        return path


def _layer_numbers(classes: Mapping[Path, str]) -> dict[Path, dict[str, str]]:
    """For each list of layers that is numbered afresh: the new number of each."""
    kind, child = _NUMBERED_AFRESH
    lists = [(*path, child) for path, known in classes.items() if known == kind]
    return {
        path: {number: str(new) for new, number in enumerate(sorted(_numbers(path, classes), key=int))}
        for path in lists
    }


def _numbers(path: Path, classes: Mapping[Path, str]) -> set[str]:
    depth = len(path)
    below = {each[depth] for each in classes if len(each) > depth and each[:depth] == path}
    return {part for part in below if part.isdigit()}


def _path(parent: str | None) -> Path:
    if parent is None:
        return ()
    try:
        return CallName.parse(parent).path
    except RecordingError:
        return ()


def _rules(mapping: LayerMapping) -> Rules:
    rules: dict[str, dict[str, str]] = defaultdict(dict)
    for layer, lines in mapping.layers:
        for line in lines:
            golden = line.golden.partition("(")[0]  # some files say what it is in brackets
            rules[_TOP if layer == _TOP_TOO else layer][line.target] = golden
    return rules


def _renamed(path: Path, classes: Mapping[Path, str], rules: Rules) -> Path:
    """How the golden model calls a path: at each layer what its class or its name has in the file."""
    found: list[str] = []
    place = 0
    while place < len(path):
        known = _rules_at(path[:place], classes, rules)
        for end in range(len(path), place, -1):
            other = known.get(".".join(path[place:end]))
            if other is not None:
                found += other.split(".")
                place = end
                break
        else:
            found.append(path[place])
            place += 1
    return tuple(found)


def _rules_at(path: Path, classes: Mapping[Path, str], rules: Rules) -> Mapping[str, str]:
    if not path:
        return rules.get(_TOP, {})
    return {**rules.get(path[-1], {}), **rules.get(classes.get(path, ""), {})}
