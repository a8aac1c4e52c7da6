"""The layers of the source: a unit imports only lower units, and each framework stays in its folder.

What both frameworks need stands below them: the two folders have no six lines alike.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"

# Lowest line first. Units on one line do not know each other; a unit may import itself.
LAYERS = (
    ("msprobe",),  # the package itself: its version and nothing else
    ("plural", "screen", "given"),
    ("errors", "log", "garbage"),
    ("name", "kernels", "json_file", "yaml_file"),
    ("record",),
    ("dtypes",),
    ("graph", "operators"),
    ("config", "store"),
    ("adapter", "perturb"),
    ("pairing", "metrics"),
    ("replay", "analyse"),
    ("verdict",),
    ("capture",),
    ("report", "mapping_file"),
    ("compare", "precheck"),
    ("online",),
    ("pytorch", "mindspore"),
    ("cli",),
    ("ptdbg_ascend", "__main__"),
)
# Each framework has one folder that may know it.
FRAMEWORKS = {"torch": "pytorch", "torch_npu": "pytorch", "mindspore": "mindspore"}

LINE = {unit: line for line, units in enumerate(LAYERS) for unit in units}


def violations(src: Path) -> list[str]:
    """Each forbidden import below src, and each module that no line names, as `file:line: sentence`."""
    found = []
    for path in sorted(src.rglob("*.py")):
        where = path.relative_to(src)
        unit = _unit(_module_of(where))
        if unit not in LINE:
            found.append(f"{where}:1: '{unit}' stands on no line of LAYERS; give it one.")
            continue
        for line, imported in _imports(path, where):
            complaint = _complaint(unit, imported)
            if complaint:
                found.append(f"{where}:{line}: {complaint}")
    return found


def _complaint(unit: str, imported: str) -> str | None:
    root = imported.partition(".")[0]
    if root in FRAMEWORKS and unit != FRAMEWORKS[root]:
        return f"{unit} imports {root}, which only {FRAMEWORKS[root]} may."
    if root not in ("msprobe", "ptdbg_ascend"):
        return None
    target = _unit(imported)
    if target == unit:
        return None
    if target not in LINE:
        return f"{unit} imports '{target}', which stands on no line of LAYERS; give it one."
    if LINE[target] < LINE[unit]:
        return None
    relation = "on the same line" if LINE[target] == LINE[unit] else "above it"
    return f"{unit} imports {target}, which is {relation}."


def _unit(module: str) -> str:
    """msprobe.store.layout -> store; the package itself and other packages are named by their root."""
    package, _, rest = module.partition(".")
    first = rest.partition(".")[0]
    if package != "msprobe" or not first:
        return package
    return _owner(first) or first


def _owner(module: str) -> str | None:
    """The unit that a module belongs to: config_file is part of config, _kernels of kernels."""
    if module in LINE:
        return module
    return next((unit for unit in LINE if f"{module.lstrip('_')}_".startswith(f"{unit}_")), None)


def _module_of(where: Path) -> str:
    parts = where.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, where: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports: at the top, inside a function, for types only, or by a literal name."""
    package = where.parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(where))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((node.lineno, name) for name in _from(path, where, module, node.names))
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__") and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


def _from(path: Path, where: Path, module: str, names: list[ast.alias]) -> Iterator[str]:
    """`from msprobe import store` names a unit; `from msprobe import __version__` the package itself."""
    if module != "msprobe":
        yield module
        return
    root = path.parents[len(where.parts) - 1] / "msprobe"
    for alias in names:
        exists = (root / f"{alias.name}.py").exists() or (root / alias.name).is_dir()
        yield f"msprobe.{alias.name}" if exists or _owner(alias.name) else "msprobe"


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_source_keeps_the_layers() -> None:
    assert violations(SRC) == []


def test_checker_sees_the_source() -> None:
    """An empty list must not come from looking at nothing."""
    imported = {
        _unit(module)
        for path in SRC.rglob("*.py")
        for _, module in _imports(path, path.relative_to(SRC))
        if module.startswith("msprobe")
    }
    assert {"errors", "name", "record"} <= imported


BAD = [
    ("msprobe/record.py", "from msprobe.store import read", "1: record imports store, which is above it."),
    (
        "msprobe/store/layout.py",
        "import msprobe.config",
        "1: store imports config, which is on the same line.",
    ),
    (
        "msprobe/store/layout.py",
        "from msprobe import capture",
        "1: store imports capture, which is above it.",
    ),
    ("msprobe/store/layout.py", "from ..capture import x", "1: store imports capture, which is above it."),
    ("msprobe/store/layout.py", "from .. import compare", "1: store imports compare, which is above it."),
    ("msprobe/name.py", "def f():\n    from .cli import main", "2: name imports cli, which is above it."),
    (
        "msprobe/errors.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from msprobe.log import logger",
        "3: errors imports log, which is on the same line.",
    ),
    (
        "msprobe/config_file.py",
        "import importlib\nx = importlib.import_module('msprobe.cli')",
        "2: config imports cli, which is above it.",
    ),
    ("msprobe/kernels.py", "import torch.nn as nn", "1: kernels imports torch, which only pytorch may."),
    ("msprobe/capture/tasks.py", "import torch_npu", "1: capture imports torch_npu, which only pytorch may."),
    ("msprobe/mindspore/cells.py", "import torch", "1: mindspore imports torch, which only pytorch may."),
    (
        "msprobe/pytorch/adapter.py",
        "from mindspore import nn",
        "1: pytorch imports mindspore, which only mindspore may.",
    ),
    (
        "msprobe/pytorch/adapter.py",
        "from msprobe.mindspore import x",
        "1: pytorch imports mindspore, which is on the same line.",
    ),
    ("msprobe/cli/main.py", "import ptdbg_ascend", "1: cli imports ptdbg_ascend, which is above it."),
    (
        "msprobe/store/formats.py",
        "def known():\n    from ptdbg_ascend import old_files",
        "2: store imports ptdbg_ascend, which is above it.",
    ),
    ("ptdbg_ascend/session.py", "import torch", "1: ptdbg_ascend imports torch, which only pytorch may."),
    (
        "msprobe/__init__.py",
        "from .errors import MsprobeError",
        "1: msprobe imports errors, which is above it.",
    ),
    ("msprobe/configure.py", "", "1: 'configure' stands on no line of LAYERS; give it one."),
    ("msprobe/novelty.py", "", "1: 'novelty' stands on no line of LAYERS; give it one."),
    (
        "msprobe/cli/main.py",
        "import msprobe.gone",
        "1: cli imports 'gone', which stands on no line of LAYERS; give it one.",
    ),
    ("elsewhere/x.py", "", "1: 'elsewhere' stands on no line of LAYERS; give it one."),
]


@pytest.mark.parametrize(
    ("file", "source", "complaint"), BAD, ids=[f"{f}-{i}" for i, (f, _, _) in enumerate(BAD)]
)
def test_violation_is_found(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    _write(tmp_path, file, source)
    assert violations(tmp_path) == [f"{file}:{complaint}"]


GOOD = [
    ("msprobe/record.py", "from msprobe.name import CallName\nfrom msprobe import __version__, errors"),
    ("msprobe/store/layout.py", "from . import journal\nfrom .tensors import put\nfrom ..record import Leaf"),
    (
        "msprobe/kernels.py",
        "try:\n    from msprobe import _kernels\nexcept ImportError:\n    _kernels = None",
    ),
    ("msprobe/config/loading.py", "from msprobe.config.models import Scene\nimport msprobe.json_file"),
    ("msprobe/pytorch/adapter.py", "import torch\nfrom msprobe.capture import patch"),
    ("msprobe/mindspore/common/utils.py", "import mindspore\nfrom msprobe.mindspore import MsprobeStep"),
    ("ptdbg_ascend/session.py", "from msprobe.pytorch import PrecisionDebugger\nfrom . import pkl_store"),
    ("msprobe/errors.py", "import importlib\nimportlib.import_module(name)\nimport torchless"),
]


@pytest.mark.parametrize(("file", "source"), GOOD, ids=[file for file, _ in GOOD])
def test_allowed_import_passes(tmp_path: Path, file: str, source: str) -> None:
    _write(tmp_path, file, source)
    assert violations(tmp_path) == []


def _write(root: Path, file: str, source: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


ALIKE = 6
# A line that was copied and had its words changed is alike still.
SAME_WORDS = {
    "mindspore": "torch",
    "ms": "torch",
    "cell": "module",
    "cells": "modules",
    "construct": "forward",
}


def copies(one: Path, other: Path) -> list[str]:
    """Where a run of lines stands that both folders have, blank lines and indentation aside."""
    runs = {run: place for place, run in _runs(other)}
    return [f"{place} is alike {runs[run]}" for place, run in _runs(one) if run in runs]


def _runs(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for path in sorted(folder.rglob("*.py")):
        lines = [
            (number, _in_same_words(line))
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if line.strip()
        ]
        for start in range(len(lines) - ALIKE + 1):
            run = lines[start : start + ALIKE]
            yield f"{folder.name}/{path.relative_to(folder)}:{run[0][0]}", tuple(line for _, line in run)


def _in_same_words(line: str) -> str:
    words = re.sub(r"[a-z]+", lambda word: SAME_WORDS.get(word[0], word[0]), line.strip().lower())
    return re.sub(r"\s+", " ", words)


def test_nothing_is_written_for_each_framework_anew() -> None:
    assert copies(SRC / "msprobe" / "mindspore", SRC / "msprobe" / "pytorch") == []


def test_lines_alike_are_found(tmp_path: Path) -> None:
    body = "def walk({0}s):\n\n    for {0} in {0}s:\n        seen = look({0})\n        if seen:\n{1}"
    _write(
        tmp_path, "one/a.py", "x = 1\n" + body.format("cell", "            note(seen)\n            break\n")
    )
    _write(tmp_path, "two/b/c.py", body.format("module", "          note(seen)\n          break\n"))
    assert copies(tmp_path / "one", tmp_path / "two") == ["one/a.py:2 is alike two/b/c.py:1"]
    _write(tmp_path, "two/b/c.py", body.format("module", "          note(seen)\n"))
    assert copies(tmp_path / "one", tmp_path / "two") == []
