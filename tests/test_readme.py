"""The README's example, copied word for word, works; and every file it links to exists.

tests/ms runs the one for MindSpore.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.spec("C001", "PT")
def test_example_works_word_for_word(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (config,), (script, _) = blocks("json"), blocks("python")
    install, commands, comparison = blocks("bash")
    assert install == "pip install .\n"
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "train.py").write_text(script)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path}

    def run(words: str) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "step 2: loss" in run(commands)
    for step in range(3):
        files = {file.name for file in (tmp_path / "recording" / f"step{step}" / "rank").iterdir()}
        assert files == {"dump.json", "stack.json", "construct.json"}
    dump = (tmp_path / "recording" / "step2" / "rank" / "dump.json").read_text()
    assert '"Functional.cross_entropy.0.backward"' in dump
    assert '"Module.1.ReLU.backward.0"' in dump
    answer, *support = run(comparison).partition("First divergence: ")[2].splitlines()
    assert answer == "Functional.linear.0.forward (step 1): its input.1 differs when it comes in."
    assert "the change of 0.weight in step 0 is 2 times golden's: the learning rate" in support[0]
    assert any("train.py, line 13" in line for line in support)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
