"""Over many recorded steps of MindSpore training nothing grows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
sys.path.insert(0, str(Path(__file__).parent.parent / "ms"))
from graph_case import static
from ms_case import Probe, probe
from ms_nets import NETS
from ms_soak import follow

__all__ = ["probe", "static"]


STEPS, LOOK_EVERY = 160, 40


@pytest.mark.prove
@pytest.mark.parametrize("name", ["golden", "nested", "recompute"])
@pytest.mark.parametrize(("level", "task"), [("mix", "statistics"), ("L1", "tensor")])
def test_nothing_grows_over_120_steps(level: str, task: str, name: str, probe: Probe) -> None:
    """More than without recording, that is: MindSpore itself keeps something of each recomputed step."""
    alone = follow(NETS[name], STEPS, LOOK_EVERY)
    recorded = follow(NETS[name], STEPS, LOOK_EVERY, probe, level=level, task=task)
    assert recorded.new_tensors == alone.new_tensors
    assert recorded.growth < alone.growth + (5 << 20), (recorded.memory, alone.memory)


@pytest.mark.prove
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_nothing_grows_in_a_static_graph(task: str, static: Probe) -> None:
    alone = follow(NETS["nested"], STEPS, LOOK_EVERY)
    recorded = follow(NETS["nested"], STEPS, LOOK_EVERY, static, level="L0", task=task)
    assert recorded.new_tensors == alone.new_tensors
    assert recorded.growth < alone.growth + (5 << 20), (recorded.memory, alone.memory)
