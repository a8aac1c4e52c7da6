"""The four mapping files of `compare`: what may stand in each, and the sentence where something else does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, get_args

from msprobe.errors import ConfigError, RecordingError
from msprobe.name import DEBUG, FORWARD, CallName, Direction
from msprobe.pairing import mapping
from msprobe.pairing.mapping import (
    ApiLine,
    ApiMapping,
    CellMapping,
    DataMapping,
    LayerMapping,
    Line,
    Mappings,
)
from msprobe.pairing.match import NOWHERE
from msprobe.plural import counted
from msprobe.yaml_file import Items, Member, Node, Object, Text, YamlFile, cut, read, why_no_object

WITHOUT_FILE = ""  # an option that was given, but without a file

_SUFFIXES = (".yaml", ".yml")
_BUILT_IN = "ms_to_pt_api.yaml"
_LAYER_NUMBERS = "layers"
_POSITION = re.compile("[0-9]{1,4}")
_DIRECTION = re.compile(rf"\.(?:{'|'.join(get_args(Direction))})(?:\.|$)")
_MODULE_CALL = re.compile(
    r"\.(?:forward|backward)\.[0-9]+(?:$|\.(?:input|output|parameters)\b)|\.parameters_grad\b"
)
_TENSOR_FILE = re.compile(r"\.(?:npy|pt)$")  # data names are copied from dump.json, where they are files
_KEYWORD_FILE = re.compile(
    r"(?<=\.forward)(\.[0-9]+)?\.kwargs(?=\.)"
)  # which MindSpore puts in another place
_API_KEYS = ("ms_api", "pt_api", "ms_args", "pt_args", "ms_outputs", "pt_outputs")
# Release 8.3.3 checks the one spelling and reads the other, so files with either are about.
_OTHER_SPELLING = MappingProxyType({"ms_output": "ms_outputs", "pt_output": "pt_outputs"})

Check: TypeAlias = Callable[[str], str]  # what is wrong with a name, or nothing


def read_mappings(
    *, api: str | None = None, cell: str | None = None, data: str | None = None, layer: str | None = None
) -> Mappings:
    """The mapping files that a command names; None is an option that was not given."""
    for option, path in (("-am", api), ("-cm", cell), ("-dm", data), ("-lm", layer)):
        if path == WITHOUT_FILE and option in ("-dm", "-lm"):
            raise ConfigError(f"{option} needs a file, as in {option} mapping.yaml.")
        if path and not path.lower().endswith(_SUFFIXES):
            raise ConfigError(
                f"{option} {path}: the name of a mapping file ends in .yaml; an option without a file stands "
                "behind the paths of the recordings."
            )
    return Mappings(
        api=None if api is None else read_api_mapping(api) if api else ApiMapping(),
        cell=None if cell is None else read_cell_mapping(cell) if cell else CellMapping(),
        data=None if data is None else read_data_mapping(data),
        layer=None if layer is None else read_layer_mapping(layer),
    )


def read_cell_mapping(path: str) -> CellMapping:
    file = read(path)
    return CellMapping(path, tuple(_lines(file, file.root, _wrong_module)))


def read_data_mapping(path: str) -> DataMapping:
    file = read(path)
    found: dict[str, Line] = {}
    for line in _lines(file, file.root, _wrong_data_name):
        target, golden = (_place(name) for name in (line.target, line.golden))
        if target in found:
            file.fail(line.number, _twice(target, found[target].number))
        if golden != NOWHERE and {_is_call(target), _is_call(golden)} == {True, False}:
            file.fail(
                line.number,
                f"of '{cut(target)}' and '{cut(golden)}' one is a call, the other a place of one; give two "
                "calls, or two places such as Torch.matmul.0.forward.input.0",
            )
        found[target] = Line(target, golden, line.number)
    return DataMapping(path, tuple(found.values()))


def _place(data_name: str) -> str:
    return _KEYWORD_FILE.sub(r"\1.input", _TENSOR_FILE.sub("", data_name))


def read_layer_mapping(path: str) -> LayerMapping:
    file = read(path)
    layers = []
    for name, member in _object(file, file.root).members.items():
        check = _wrong_number if name == _LAYER_NUMBERS else _wrong_name
        layers.append((name, tuple(_lines(file, member.value, check))))
    return LayerMapping(path, tuple(layers))


def read_api_mapping(path: str) -> ApiMapping:
    """One object, as it is documented, or a list of them, as release 8.3.3 wants it."""
    file = read(path)
    found: dict[str, ApiLine] = {}
    for node in file.root.items if isinstance(file.root, Items) else (file.root,):
        line = _api(file, _object(file, node))
        if line.target in found:
            file.fail(line.number, _twice(line.target, found[line.target].number))
        found[line.target] = line
    return ApiMapping(path, tuple(found.values()))


def built_in_apis() -> Mapping[str, tuple[str, ...]]:
    """Which APIs of PyTorch do what one of MindSpore does; the likeliest first."""
    file = read(str(Path(mapping.__file__).with_name(_BUILT_IN)))
    found = {}
    for target, member in _object(file, file.root).members.items():
        items = member.value.items if isinstance(member.value, Items) else (member.value,)
        found[target] = tuple(item.text for item in items if isinstance(item, Text))
    return found


# ---- lines `target: golden` ----


def _twice(name: str, first: int) -> str:
    return f"'{cut(name)}' is mapped a second time (first in line {first})"


def _object(file: YamlFile, node: Node) -> Object:
    if not isinstance(node, Object):
        file.fail(node.line, why_no_object(node))
    if not node.members:
        file.fail(node.line, "nothing is mapped here")
    return node


def _lines(file: YamlFile, node: Node, wrong: Check) -> Iterator[Line]:
    for target, member in _object(file, node).members.items():
        if not isinstance(member.value, Text):
            file.fail(member.line, f"behind '{cut(target)}:' must stand one name")
        golden = member.value.text
        if target == NOWHERE:
            file.fail(member.line, f"{NOWHERE} can stand behind the colon only")
        for name in (target, golden):
            mistake = wrong(name)
            if mistake:
                file.fail(member.line, f"'{cut(name)}' {mistake}")
        yield Line(target, golden, member.line)


def _wrong_name(name: str) -> str:
    return "is not a name" if name == NOWHERE or not name.isprintable() or name.strip() != name else ""


def _wrong_module(name: str) -> str:
    if CallName(name, FORWARD, 0).is_module or _MODULE_CALL.search(name):
        return "is more than path and class of a module; give these alone, such as fc2.Linear"
    return _wrong_name(name)


def _wrong_data_name(name: str) -> str:
    if name == NOWHERE:
        return ""
    if not _DIRECTION.search(name):
        return "is no call or place of one; give the full name, such as Module.fc2.Linear.forward.0.input.0"
    return _wrong_name(name)


def _wrong_number(name: str) -> str:
    return "" if _POSITION.fullmatch(name) else "is not the number of a layer"


def _is_call(name: str) -> bool | None:
    """None: a saved variable, which is both a call and its only place."""
    try:
        return None if CallName.parse(name).direction == DEBUG else True
    except RecordingError:
        return False


# ---- objects of the api mapping ----


def _api(file: YamlFile, node: Object) -> ApiLine:
    members: dict[str, Member] = {}
    for key, member in node.members.items():
        word = _OTHER_SPELLING.get(key, key)
        if word not in _API_KEYS:
            known = ", ".join(_API_KEYS)
            file.fail(member.line, f"'{cut(key)}' is not a key of an api mapping; it has {known}")
        if word in members:
            first = members[word].line
            file.fail(member.line, f"'{key}' says the same as '{word}' in line {first}; keep one of them")
        members[word] = member
    names = []
    for key in ("ms_api", "pt_api"):
        if key not in members:
            file.fail(node.line, f"'{key}' is missing; it names an API, such as Functional.abs")
        value = members[key].value
        if not isinstance(value, Text) or _wrong_api(value.text):
            shown = f"'{cut(value.text)}'" if isinstance(value, Text) else "a list or an object"
            file.fail(members[key].line, f"'{key}' is {shown}; it must be an API, such as Functional.abs")
        names.append(value.text)
    positions = {
        key: _positions(file, key, member.value, member.line)
        for key, member in members.items()
        if key not in ("ms_api", "pt_api")
    }
    sides = [_side(file, node, positions, word) for word in ("args", "outputs")]
    return ApiLine(names[0], names[1], members["ms_api"].line, *sides)


def _wrong_api(name: str) -> bool:
    call = CallName(name, FORWARD, 0)
    return not call.prefix or not call.api or bool(_wrong_name(name) or _DIRECTION.search(name))


def _positions(file: YamlFile, key: str, node: Node, line: int) -> list[int]:
    items = node.items if isinstance(node, Items) else (node,)
    found = [int(item.text) for item in items if isinstance(item, Text) and _POSITION.fullmatch(item.text)]
    if len(found) < len(items) or not isinstance(node, Items):
        file.fail(line, f"'{key}' must be a list of positions, each a number from 0 on")
    twice = next((number for number, count in Counter(found).items() if count > 1), None)
    if twice is not None:
        file.fail(line, f"'{key}' holds the position {twice} twice")
    return found


def _side(
    file: YamlFile, node: Object, positions: dict[str, list[int]], word: str
) -> tuple[tuple[int, int], ...] | None:
    ours, theirs = positions.get(f"ms_{word}"), positions.get(f"pt_{word}")
    if ours is None and theirs is None:
        return None
    if ours is None or theirs is None:
        key = f"ms_{word}" if ours is None else f"pt_{word}"
        file.fail(node.line, f"'{key}' is missing; 'ms_{word}' and 'pt_{word}' belong together")
    if len(ours) != len(theirs):
        file.fail(
            node.line,
            f"'ms_{word}' has {counted(len(ours), 'position')}, 'pt_{word}' has {len(theirs)}; "
            "they must be as many",
        )
    return tuple(zip(ours, theirs, strict=True))
