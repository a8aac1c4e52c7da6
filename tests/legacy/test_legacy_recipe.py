"""The scenario chapter of the old guide, followed on a CPU: on one card, and on two with compare_distributed.

Its paths are corrected, and in the place of kernel data the suspect is dumped again by list and by range.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import legacy_train
import pytest
from legacy_case import names, table

from msprobe.cli.main import main

SUSPECT = "Torch_roll_0_forward"
TESTS = Path(__file__).parent


def paths(tag: str, name: str = "") -> dict[str, Any]:
    """What the guide's compare.py holds."""
    found: dict[str, Any] = {"is_print_compare_log": True}
    for word, device in (("npu", "npu"), ("bench", "gpu")):
        rank = f"{device}/{tag}_v2.3/rank0/{name}{device}_dump"
        found |= {f"{word}_pkl_path": f"{rank}.pkl", f"{word}_dump_data_dir": rank}
    return found


def bad(folder: str) -> list[str]:
    return [row["NPU Name"] for row in table(Path(folder)) if row["Accuracy Reached or Not"] == "No"]


@pytest.mark.spec("L002", "LEG")
@pytest.mark.spec("L054", "LEG")
@pytest.mark.spec("L090", "LEG")
@pytest.mark.spec("L095", "LEG")
@pytest.mark.spec("R10", "LEG")
def test_one_card(old: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("npu", "gpu"):  # 1. dump the whole net
        legacy_train.train(f"./{device}/{device}_dump.pkl", "all", device, mode="api_stack")
    os.mkdir("output")  # 2. compare it
    old.compare(paths("all", "api_stack_"), "./output")
    found = bad("output")  # 3. find the API
    assert found[0] == f"{SUSPECT}_output"
    (advice,) = Path("output").glob("advisor_*.txt")
    assert f"Suspect Nodes: {SUSPECT}_output" in advice.read_text()
    capsys.readouterr()
    old.parse("./npu/all_v2.3/rank0/api_stack_npu_dump.pkl", SUSPECT)  # 4. where it was called
    told = capsys.readouterr().out
    assert f"[{SUSPECT}_output][dtype: torch.float32][shape: [8, 16]]" in told
    assert "x = torch.roll(x, self.shift, 1)" in told
    backward = "Torch_roll_0_backward"
    orders: dict[str, dict[str, Any]] = {  # 5. dump it again, alone and with what is around it
        "by_list": {"mode": "list", "scope": [SUSPECT, backward], "filter_switch": "OFF"},
        "by_range": {"mode": "range", "scope": ["Functional_batch_norm_0_forward", "Torch_tanh_0_forward"]},
    }
    expected = {
        "by_list": {SUSPECT, backward},
        "by_range": {"Functional_batch_norm_0_forward", SUSPECT, "Torch_tanh_0_forward"},
    }
    for tag, switch in orders.items():
        for device in ("npu", "gpu"):
            legacy_train.train(f"./{device}/{device}_dump.pkl", tag, device, **switch)
        os.mkdir(tag)
        old.compare(paths(tag), f"./{tag}")  # 6. compare again
        dumped = {name.rpartition("_")[0] for name in names(Path(f"npu/{tag}_v2.3/rank0/npu_dump.pkl"))}
        assert {name.removesuffix("_stack") for name in dumped} == expected[tag]
        again = bad(tag)
        assert again[0] == f"{SUSPECT}_output"
        assert not [name for name in again if "batch_norm" in name]
    assert "Torch_roll_0_forward_input.1" in names(Path("npu/by_list_v2.3/rank0/npu_dump.pkl"))


@pytest.mark.spec("L002", "LEG")
@pytest.mark.spec("L029", "LEG")
@pytest.mark.spec("L037", "LEG")
@pytest.mark.spec("L070", "LEG")
@pytest.mark.spec("L078", "LEG")
@pytest.mark.spec("L097", "LEG")
def test_two_cards(old: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", str(TESTS / "legacy_train.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen(
            [*command, str(rank), str(port), str(tmp_path)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in started:
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
    os.mkdir("output")
    old.compare_distributed("npu_dump/dump_conv2d_v2.3", "gpu_dump/dump_conv2d_v2.3", "./output")
    assert len(list(Path("output").glob("advisor_*.txt"))) == 2
    for rank in (0, 1):
        rows = table(Path("output"), f"compare_result_rank{rank}-rank{rank}_*.csv")
        found = [row["NPU Name"] for row in rows if row["Accuracy Reached or Not"] == "No"]
        assert found[0] == f"{SUSPECT}_output"
        assert {row["Bench Name"] == row["NPU Name"] for row in rows} == {True}
    assert main(["compare", "npu_dump/dump_conv2d_v2.3", "gpu_dump/dump_conv2d_v2.3", "-o", "new"]) == 0
    assert "Torch.roll.0.forward" in capsys.readouterr().out
    assert len(list(Path("new").glob("compare_result_rank*.html"))) == 2
    inputs = []
    for rank in (0, 1):
        rows = table(Path("output"), f"compare_result_rank{rank}-*.csv")
        inputs += [row["NPU max"] for row in rows if row["NPU Name"] == "Functional_linear_0_forward_input.0"]
    assert float(inputs[1]) == pytest.approx(float(inputs[0]) + 1)
