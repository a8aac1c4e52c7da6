"""The README's example for MindSpore, copied word for word, works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")

import msprobe
from test_readme import blocks


@pytest.mark.spec("C001", "MSd")
def test_example_works_word_for_word(tmp_path: Path) -> None:
    (config,), (_, script) = blocks("json"), blocks("python")
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "train.py").write_text(script)
    modules = {"PYTHONPATH": str(Path(msprobe.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, **modules},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["step 0", "step 1", "step 2"]
    for step in range(3):
        rank = tmp_path / "recording" / f"step{step}" / "rank"
        assert {file.name for file in rank.iterdir()} == {"dump.json", "stack.json", "construct.json"}
    found = json.loads((rank / "dump.json").read_text())["data"]
    assert {
        "Cell.1.ReLU.backward.0",
        "Cell.2.Dense.parameters_grad",
        "Primitive.matmul.MatMul.1.forward",
    } <= set(found)
