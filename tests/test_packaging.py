"""The distribution: what a wheel holds and says, and that it builds without a C compiler."""

import ast
import configparser
import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path

import pytest

import msprobe

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
BUILT_FROM = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
FRAMEWORKS = {"torch", "torch_npu", "mindspore"}
# Import names that are not the name of the distribution they come with.
DISTRIBUTION = {"yaml": "pyyaml", "pydantic_core": "pydantic"}
NOT_SHIPPED = {".pyc", ".c", ".h", ".so"}

BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"

Build = Callable[[dict[str, str]], zipfile.ZipFile]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a wheel from a clean copy of the tree, with more environment variables if wanted."""

    def build_wheel(environment: dict[str, str]) -> zipfile.ZipFile:
        tree = tmp_path_factory.mktemp("tree")
        for name in BUILT_FROM:
            shutil.copy(ROOT / name, tree)
        shutil.copytree(SRC, tree / "src", ignore=shutil.ignore_patterns("*.egg-info", "*.so", "__pycache__"))
        result = subprocess.run(
            [sys.executable, "-c", BUILD, str(tree)],
            cwd=tree,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout
        return zipfile.ZipFile(next(tree.glob("*.whl")))

    return build_wheel


@pytest.fixture(scope="module")
def wheel(build: Build) -> zipfile.ZipFile:
    return build({})


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


@pytest.mark.spec("C002", "ALL")
@pytest.mark.spec("R27", "PT")
def test_names_and_version(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("mindstudio-probe", msprobe.__version__)
    assert (metadata["Requires-Python"], metadata["License-Expression"]) == (">=3.10", "Apache-2.0")


@pytest.mark.spec("C002", "ALL")
@pytest.mark.spec("R27", "PT")
def test_metadata_requires_what_the_source_imports(metadata: Message) -> None:
    """Nothing is missing or there in vain, the extras of users included; a framework is the user's own."""
    needed = [line for line in metadata.get_all("Requires-Dist", []) if 'extra == "test"' not in line]
    imported = {root for path in SRC.rglob("*.py") for root in run_time_imports(path)}
    foreign = imported - sys.stdlib_module_names - {"msprobe", "ptdbg_ascend"} - FRAMEWORKS
    assert {re.split(r"[^\w-]", line)[0] for line in needed} == {
        DISTRIBUTION.get(root, root) for root in foreign
    }


def run_time_imports(path: Path) -> Iterator[str]:
    """The top-level packages that a file imports, but for those that only a type checker sees."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]
        nodes.extend(ast.iter_child_nodes(node))


def shipped(wheel: zipfile.ZipFile) -> set[str]:
    names = (name for name in wheel.namelist() if ".dist-info/" not in name)
    return {name for name in names if Path(name).suffix not in NOT_SHIPPED}


@pytest.mark.spec("C002", "ALL")
def test_wheel_holds_the_packages_and_their_data(wheel: zipfile.ZipFile) -> None:
    """Everything below src is shipped but the C sources; nothing else is."""
    wanted = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*")
        if path.is_file() and path.suffix not in NOT_SHIPPED and ".egg-info" not in str(path)
    }
    assert shipped(wheel) == wanted


@pytest.mark.spec("C003", "ALL")
@pytest.mark.parametrize("name", ["msprobe/config.json", "msprobe/config/config.json"])
def test_default_config_stands_at_both_printed_places(wheel: zipfile.ZipFile, name: str) -> None:
    assert name in wheel.namelist()


def test_licence_goes_along(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if name.endswith("/LICENSE")]
    assert [wheel.read(name) for name in names] == [(ROOT / "LICENSE").read_bytes()]


def test_command_is_installed(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    entry_points = configparser.ConfigParser()
    entry_points.read_string(wheel.read(name).decode())
    assert dict(entry_points["console_scripts"]) == {"msprobe": "msprobe.cli.main:main"}


def compiled(wheel: zipfile.ZipFile) -> bool:
    return any(Path(name).match("msprobe/_kernels*.so") for name in wheel.namelist())


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler on this machine")
def test_kernels_are_compiled(wheel: zipfile.ZipFile) -> None:
    assert compiled(wheel)


def test_compiler_is_optional(build: Build, wheel: zipfile.ZipFile) -> None:
    without = build({"CC": "no-such-compiler"})
    assert not compiled(without)
    assert shipped(without) == shipped(wheel)
