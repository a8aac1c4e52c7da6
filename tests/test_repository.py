"""Hygiene of the repository: paths, sizes, docstrings, vocabulary, and how little `import msprobe` loads."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
MODULES = sorted(SRC.rglob("*.py"))
MODULE_IDS = [str(path.relative_to(SRC)) for path in MODULES]

FILE_LIMIT = 600
FUNCTION_LIMIT = 60

# Words that say nothing about what a thing is.
EMPTY_WORDS = {"util", "common", "helper", "manager", "processor", "handler", "service", "factory", "base"}
EMPTY_WORDS |= {"const", "info"}
# Printed in the specification: an import path, and keys and file names that functions are named after.
DOORS = {"msprobe/mindspore/common/__init__.py", "msprobe/mindspore/common/utils.py"}
FIXED_PHRASES = ("handler_type", "extra_info", "api_info", "error_info")

TEXT_FILES = {
    ".py",
    ".js",
    ".css",
    ".md",
    ".toml",
    ".json",
    ".yaml",
    ".tsv",
    ".sh",
    ".c",
    ".h",
    ".html",
    ".in",
    "",
}
FOLDERS = (".ci", "bench", "docs", "examples", "src", "tests", "tools", "truth")
# The documents print paths such as /home/data_dump; tests and docs quote them.
QUOTING = ("docs", "tests")
HOME = re.compile(r"(?<![\w.])/(?:home|Users)/\w")
MACHINE = re.compile(r"(?<![\w.])/(?:root|work)/")


def test_there_is_source() -> None:
    """The tables below must not be empty by accident."""
    assert "msprobe/errors.py" in MODULE_IDS


# --- paths of one machine -------------------------------------------------------------------------


def texts() -> Iterator[Path]:
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    for path in sorted([*ROOT.iterdir(), *inside]):
        where = path.relative_to(ROOT).parts
        generated = "__pycache__" in where or any(part.endswith(".egg-info") for part in where)
        generated = generated or where == (".git",)  # of a worktree: a file that says where its repository is
        if (
            path.is_file()
            and path.suffix in TEXT_FILES
            and not generated
            and where[:2] != ("tests", "golden")
        ):
            yield path


def machine_paths(text: str, *, quoting: bool) -> list[str]:
    patterns = [MACHINE] if quoting else [MACHINE, HOME]
    return [
        f"line {number}: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), 1)
        if any(pattern.search(line) for pattern in patterns)
    ]


def test_no_path_of_one_machine() -> None:
    found = {
        str(where): lines
        for path in texts()
        if (where := path.relative_to(ROOT))
        and (lines := machine_paths(path.read_text(encoding="utf-8"), quoting=where.parts[0] in QUOTING))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("line", "in_source", "in_tests"),
    [
        ("path = '{0}home/someone/x'", True, False),
        ("open('{0}root/.config')", True, True),
        ("see {0}work/main", True, True),
        ("a{0}work{0}b, frame{0}work", False, False),
        ("'{0}home'", False, False),
        ("{0}usr/bin/env", False, False),
    ],
)
def test_path_of_one_machine_is_recognised(line: str, in_source: bool, in_tests: bool) -> None:
    text = line.format("/")
    assert (bool(machine_paths(text, quoting=False)), bool(machine_paths(text, quoting=True))) == (
        in_source,
        in_tests,
    )


# --- the shape of a module ------------------------------------------------------------------------


@pytest.mark.parametrize("path", MODULES, ids=MODULE_IDS)
def test_module_shape(path: Path) -> None:
    assert shape_faults(path.read_text(encoding="utf-8")) == []


def shape_faults(source: str) -> list[str]:
    tree = ast.parse(source)
    faults = []
    if ast.get_docstring(tree) is None:
        faults.append("the first statement is no docstring")
    if len(source.splitlines()) > FILE_LIMIT:
        faults.append(f"the file has {len(source.splitlines())} lines, more than {FILE_LIMIT}")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LIMIT:
                faults.append(
                    f"{node.name} in line {node.lineno} has {length} lines, more than {FUNCTION_LIMIT}"
                )
    return faults


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ('"""One thing."""\n', []),
        ("x = 1\n", ["the first statement is no docstring"]),
        ('import os\n"""Too late."""\n', ["the first statement is no docstring"]),
        ('"""D."""\n' + "\n" * 600, ["the file has 601 lines, more than 600"]),
        ('"""D."""\ndef f():\n' + "    x = 1\n" * 59, []),
        ('"""D."""\ndef f():\n' + "    x = 1\n" * 60, ["f in line 2 has 61 lines, more than 60"]),
    ],
)
def test_shape_faults_are_found(source: str, faults: list[str]) -> None:
    assert shape_faults(source) == faults


# --- vocabulary -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MODULES, ids=MODULE_IDS)
def test_names_say_what_a_thing_is(path: Path) -> None:
    where = str(path.relative_to(SRC))
    in_path = (
        [] if where in DOORS else [part for part in Path(where).with_suffix("").parts if empty_words(part)]
    )
    in_code = [name for name in defined(path.read_text(encoding="utf-8")) if empty_words(name)]
    assert in_path + in_code == []


def defined(source: str) -> list[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def empty_words(name: str) -> set[str]:
    """The words of snake_case and CamelCase names that are in the list, in singular or plural."""
    for phrase in FIXED_PHRASES:
        name = name.replace(phrase, "")
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {word.lower().removesuffix("s") for word in words} & EMPTY_WORDS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("utils", {"util"}),
        ("read_helpers", {"helper"}),
        ("DumpManager", {"manager"}),
        ("HTTPHandler", {"handler"}),
        ("_BaseTask", {"base"}),
        ("check_handler_type", set()),
        ("information", set()),
        ("constant", set()),
        ("database", set()),
        ("CallName", set()),
    ],
)
def test_empty_words_are_found(name: str, words: set[str]) -> None:
    assert empty_words(name) == words


# --- what an import costs -------------------------------------------------------------------------


def test_import_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import msprobe; "
        "print(*sorted({m.partition('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["msprobe"]
