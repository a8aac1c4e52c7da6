"""docs/tutorial_mindspore.md, word for word: its commands work, and give what it prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
pytest.importorskip("torch", reason="PyTorch is not installed here")

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial_mindspore.md").read_text("utf-8")
BLOCK = re.compile(r"^```(bash|text|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what the tutorial uses, and its two commands, which are this Python and this msprobe."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "bin").mkdir()
    for name, words in (("python", ""), ("msprobe", "-m msprobe")):
        command = tmp_path / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        command.chmod(0o755)
    return tmp_path


def run(words: str, folder: Path) -> list[str]:
    commands = os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", "")])
    modules = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        ["bash", "-e", "-c", words],
        cwd=folder,
        env={**os.environ, "PATH": commands, "PYTHONPATH": modules},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.replace(f"{folder}/", "").splitlines()


def left_over(printed: list[str], given: list[str]) -> list[str]:
    """The printed lines that were not given, in this order; `...` stands for any, or for the end of one."""
    waiting = iter(given)
    return [line for line in printed if line != "..." and not any(_is_shown(line, each) for each in waiting)]


def _is_shown(printed: str, given: str) -> bool:
    return given.startswith(printed[:-3]) if printed.endswith("...") else given == printed


def test_the_tutorial_works_word_for_word(folder: Path) -> None:
    given: list[str] = []
    kinds = []
    for kind, text in BLOCK.findall(TUTORIAL):
        kinds.append(kind)
        if kind == "bash":
            given = run(text, folder)
        elif kind == "text":
            assert left_over(text.splitlines(), given) == []
        else:
            assert left_over(text.splitlines(), (folder / "pairs.yaml").read_text().splitlines()) == []
    assert kinds == ["bash", "text"] * 4 + ["yaml"]


def test_a_line_that_is_not_given_is_missed() -> None:
    assert left_over(["a", "...", "c"], ["a", "b", "c"]) == []
    assert left_over(["c", "a"], ["a", "b", "c"]) == ["a"]
    assert left_over(["ab...", "b..."], ["abc", "c"]) == ["b..."]


def test_the_files_it_links_to_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)", TUTORIAL)
    assert len(links) >= 3
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
