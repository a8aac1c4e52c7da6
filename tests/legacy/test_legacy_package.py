"""The package itself: its names, what importing it does and does not, its one warning, its page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from legacy_case import table

import ptdbg_ascend

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
PAGE = ROOT / "docs/legacy.md"
PUBLIC = {
    *("seed_all", "set_dump_path", "register_hook", "acc_cmp_dump", "overflow_check", "set_dump_switch"),
    *("set_overflow_check_switch", "set_backward_input", "compare", "compare_distributed", "parse"),
}


def run(code: str, *options: str) -> str:
    """What a process of its own prints."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, *options, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.spec("L001", "LEG")
def test_public_names() -> None:
    assert set(ptdbg_ascend.__all__) == PUBLIC
    assert ptdbg_ascend.__version__ == "2.3"
    scope: dict[str, Any] = {}
    exec("from ptdbg_ascend import *", scope)
    assert {name for name in scope if not name.startswith("__")} == PUBLIC
    assert all(callable(scope[name]) for name in PUBLIC)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(ptdbg_ascend, "nothing")  # noqa: B009


@pytest.mark.spec("L001", "LEG")
def test_importing_changes_nothing_and_warns_once() -> None:
    """No random state, no environment, no torch; and one warning, which names what to use instead."""
    code = """
import os, random, sys, warnings
state, environment = random.getstate(), dict(os.environ)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import ptdbg_ascend
    assert not caught
    exec("from ptdbg_ascend import *")
    from ptdbg_ascend import compare, parse
    ptdbg_ascend.seed_all
assert (random.getstate(), dict(os.environ)) == (state, environment)
assert not [name for name in ("torch", "torch_npu") if name in sys.modules]
(warning,) = caught
print(warning.category.__name__, warning.filename, warning.message)
import ptdbg_ascend.comparing, ptdbg_ascend.session
assert ptdbg_ascend.compare is compare and callable(ptdbg_ascend.parse)
"""
    told = run(code)
    assert told.startswith("DeprecationWarning <string> ptdbg_ascend is the old way into msprobe")
    assert "msprobe.pytorch.PrecisionDebugger" in told and "docs/legacy.md" in told


def test_a_script_sees_the_warning(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("from ptdbg_ascend import *\n")
    told = run(f"import runpy; runpy.run_path({str(tmp_path / 'old.py')!r}, run_name='__main__')")
    assert "old.py:1: DeprecationWarning: ptdbg_ascend is the old way into msprobe" in told


def test_reading_does_not_warn(golden: Path) -> None:
    """`msprobe show` finds the format of old dumps by itself."""
    path = str(golden / "m_list/t_v2.3")
    assert "task tensor" in run(f"from msprobe.cli.main import main; main(['show', {path!r}])", "-W", "error")


def test_comparing_needs_no_torch(golden: Path, tmp_path: Path) -> None:
    path = str(golden / "m_list/t_v2.3")
    code = f"""
import sys
sys.modules["torch"] = None
from ptdbg_ascend import *
compare_distributed({path!r}, {path!r}, {str(tmp_path)!r})
parse({path!r} + "/rank0/d.pkl", "Tensor_permute_0_forward_input")
"""
    assert "[Tensor_permute_0_forward_input.0][dtype: torch.float32]" in run(code, "-W", "ignore")
    assert len(list(tmp_path.glob("compare_result_rank0-rank0_*.csv"))) == 1


def test_it_is_a_translation_and_no_third_tree() -> None:
    """Nothing below msprobe knows it, save the line of its entry point; and it is small."""
    sources = [path.read_text("utf-8") for path in (SRC / "msprobe").rglob("*.py")]
    assert not [text for text in sources if "ptdbg_ascend" in text]
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in (SRC / "ptdbg_ascend").rglob("*.py"))
    assert lines < 640


@pytest.mark.spec("L005", "LEG")
@pytest.mark.spec("L023", "LEG")
def test_the_page_names_every_old_call() -> None:
    page = PAGE.read_text("utf-8")
    assert {name for name in PUBLIC if re.search(rf"\b{name}\b", page)} == PUBLIC
    assert "shuffle" in page and "dropout" in page


def test_examples_of_the_page_run(tmp_path: Path) -> None:
    """Each Python block of docs/legacy.md, in one folder and in their order."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    for number, block in enumerate(blocks):
        (tmp_path / f"block{number}.py").write_text(block)
        environment = {**os.environ, "PYTHONPATH": str(SRC)}
        for words in (["npu"], ["gpu"]) if "sys.argv" in block else ([],):
            done = subprocess.run(
                [sys.executable, "-W", "ignore", f"block{number}.py", *words],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, block + done.stderr
    assert {row["Accuracy Reached or Not"] for row in table(tmp_path / "output")} == {"Yes"}
