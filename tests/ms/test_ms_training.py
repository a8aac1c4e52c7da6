"""Recording changes nothing: loss, gradients, parameters, optimizer, randomness are the same to the bit."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
from ms_case import Probe, probe
from ms_nets import NETS, STEPS, train

__all__ = ["probe"]

WAYS = {
    "L0 statistics": ("L0", "statistics", {}),
    "L1 tensor": ("L1", "tensor", {}),
    "mix statistics": ("mix", "statistics", {}),
    "mix md5": ("mix", "statistics", {"summary_mode": "md5"}),
    "mix sketch": ("mix", "statistics", {"summary_mode": "sketch"}),
    "mix tensor": ("mix", "tensor", {}),
}


@functools.cache
def alone(name: str) -> list[Any]:
    return train(NETS[name])


@pytest.mark.parametrize("name", NETS)
def test_training_can_be_repeated(name: str) -> None:
    """Else the tests below would show nothing."""
    assert train(NETS[name]) == alone(name)


@pytest.mark.spec("M011", "MSd")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETS)
def test_training_is_the_same_to_the_bit(name: str, way: str, probe: Probe) -> None:
    level, task, section = WAYS[way]
    debugger = probe.debugger(level, task, section=section)
    assert train(NETS[name], debugger) == alone(name)
    for step in range(STEPS):
        assert probe.data(step)
        assert probe.troubles(step) == ""
