"""Recording changes nothing: loss, gradients, parameters and all randomness are the same to the bit."""

from __future__ import annotations

import functools

import pytest

from nets import NETS, Outcome, train
from torch_fixtures import Probe, probe

__all__ = ["probe"]

SUMMARIES = {
    "statistics": ("statistics", {"summary_mode": "statistics"}),
    "md5": ("statistics", {"summary_mode": "md5"}),
    "sketch": ("statistics", {"summary_mode": "sketch"}),
    "tensor": ("tensor", {}),
}


@functools.cache
def plain(name: str) -> Outcome:
    return train(NETS[name])


@pytest.mark.spec("P14", "PT")
@pytest.mark.parametrize("summary", SUMMARIES)
@pytest.mark.parametrize("level", ["L0", "L1", "mix", "debug"])
@pytest.mark.parametrize("name", NETS)
def test_training_is_the_same_to_the_bit(probe: Probe, name: str, level: str, summary: str) -> None:
    task, section = SUMMARIES[summary]
    debugger = probe.debugger(level, task, section=section)
    assert train(NETS[name], debugger, save=level == "debug") == plain(name)
    assert probe.troubles(0) == probe.troubles(1) == ""
    assert probe.data(0) and probe.data(1)
