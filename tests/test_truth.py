"""A dozen pairs of `make truth`: wrong kernels are named, sound pairs are not accused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FAULTS = (
    "transformer.float32.up_slight.exact",
    "transformer.float32.heads_swapped.exact",
    "transformer.float32.gelu_back_slight.exact",
    "transformer.bfloat16.gelu_5%.exact",
    "transformer.bfloat16.norm_back_2%.exact",
    "transformer.bfloat16.gelu_5%.either_way",
    "conv.float32.norm_shifted.exact",
    "conv.bfloat16.silu_5%.toward_zero",
    "transformer.bfloat16.norm_back_2%.either_way",
    "transformer.bfloat16.loss_2%.either_way",
    "conv.bfloat16.norm_back_sign.either_way",
)
SOUND = (
    "transformer.bfloat16.sound.either_way",
    "conv.float32.sound.toward_zero",
    "conv.float16.sound.either_way",
    "gru.bfloat16.sound.toward_zero",
    "gru.autocast.sound.either_way",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    work = tmp_path_factory.mktemp("truth")
    only = "^(" + "|".join(FAULTS + SOUND).replace(".", r"\.") + ")$"
    command = [sys.executable, "-m", "truth", "--part", "kernels", "--only", only, "--work", str(work)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, "--modes", "tensor,statistics", "--jobs", "1"],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (work / "truth.json").exists(), done.stdout + done.stderr
    found = json.loads((work / "truth.json").read_text(encoding="utf-8"))["outcomes"]
    return {(one["pair"], one["mode"]): one for one in found}


@pytest.mark.parametrize("mode", ["tensor", "statistics"])
@pytest.mark.parametrize("pair", FAULTS)
def test_the_wrong_kernel_is_named(outcomes: Any, pair: str, mode: str) -> None:
    one = outcomes[pair, mode]
    assert (one["outcome"], one["diverged"], one["status"]) == ("first", True, 1), one["words"]


@pytest.mark.parametrize("mode", ["tensor", "statistics"])
@pytest.mark.parametrize("pair", SOUND)
def test_a_sound_pair_is_not_accused(outcomes: Any, pair: str, mode: str) -> None:
    one = outcomes[pair, mode]
    assert (one["outcome"], one["diverged"], one["status"]) == ("sound", False, 0), one["words"]
