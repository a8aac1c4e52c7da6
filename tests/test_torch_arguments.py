"""Arguments that are no tensors keep their meaning; what has none is null."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from described_keys import described_keys
from msprobe.pytorch.describe import describe_other
from torch_fixtures import Probe, probe

__all__ = ["probe"]

OTHERS = {
    "int": (3, {"type": "int", "value": 3}),
    "float": (-math.inf, {"type": "float", "value": -math.inf}),
    "complex": (2 - 3j, {"type": "complex", "value": "(2-3j)"}),
    "bool": (True, {"type": "bool", "value": True}),
    "str": ("bc,bc->b", {"type": "str", "value": "bc,bc->b"}),
    "None": (None, None),
    "slice": (slice(None, 0, 2), {"type": "slice", "value": [None, 0, 2]}),
    "Ellipsis": (..., {"type": "ellipsis", "value": "..."}),
    "Size": (torch.Size([2, 3]), {"type": "torch.Size", "value": [2, 3]}),
    "dtype": (torch.int32, {"type": "torch.dtype", "value": "torch.int32"}),
    "device": (torch.device("cpu"), {"type": "torch.device", "value": "cpu"}),
    "memory_format": (torch.channels_last, {"type": "torch.memory_format", "format": "channels_last"}),
    "numpy scalar": (np.float32(3), {"type": "float32", "value": 3.0}),
    "numpy bool": (np.bool_(True), {"type": "bool", "value": True}),
    "numpy array": (
        np.arange(4, dtype=np.int16),
        {
            "type": "numpy.ndarray",
            "dtype": "int16",
            "shape": [4],
            "Max": 3,
            "Min": 0,
            "Mean": 1.5,
            "Norm": 14**0.5,
            **described_keys(np.arange(4, dtype=np.int16)),
        },
    ),
    "numpy words": (
        np.array(["a", "b"]),
        {
            "type": "numpy.ndarray",
            "dtype": "str32",
            "shape": [2],
            "Max": None,
            "Min": None,
            "Mean": None,
            "Norm": None,
        },
    ),
    "generator": (torch.Generator(), None),
    "layout": (torch.strided, None),
    "function": (math.sin, None),
    "object": (random.Random(1), None),
    "module": (nn.ReLU(), None),
    "tuple": ((1, (2.0, None)), [{"type": "int", "value": 1}, [{"type": "float", "value": 2.0}, None]]),
    "dict": ({"a": 1, 2: None}, {"a": {"type": "int", "value": 1}, "2": None}),
    "set": ({1}, None),
}


@pytest.mark.spec("P08", "PT")
@pytest.mark.parametrize("name", OTHERS)
def test_arguments_that_are_no_tensors(probe: Probe, name: str) -> None:
    """By position and by keyword, in a module that does nothing with them."""

    class Takes(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return args[0]

    value, wanted = OTHERS[name]
    model = nn.ModuleList([Takes()])
    debugger = probe.debugger("L0")
    debugger.start(model)
    model[0](value, named=value)
    debugger.stop()
    debugger.step()
    entry = probe.data()["Module.0.Takes.forward.0"]
    assert (entry["input_args"], entry["input_kwargs"]) == ([wanted], {"named": wanted})
    if name != "Size":  # of which torch makes a tuple of outputs
        assert entry["output"] == (wanted if isinstance(wanted, list) else [wanted])
    assert probe.troubles() == ""


def test_torch_values_among_the_arguments_of_functions(probe: Probe) -> None:
    x = torch.ones(2, 2)
    debugger = probe.debugger("L1")
    debugger.start()
    x.to(torch.float64, memory_format=torch.preserve_format)
    torch.ones_like(x, dtype=torch.int8, device="cpu")
    torch.reshape(x, torch.Size([4]))
    debugger.stop()
    debugger.step()
    data = probe.data()
    assert data["Tensor.to.0.forward"]["input_args"][1] == {"type": "torch.dtype", "value": "torch.float64"}
    assert data["Torch.ones_like.0.forward"]["input_kwargs"] == {
        "dtype": {"type": "torch.dtype", "value": "torch.int8"},
        "device": {"type": "str", "value": "cpu"},
    }
    assert data["Torch.reshape.0.forward"]["input_args"][1] == {"type": "torch.Size", "value": [4]}
    assert describe_other(object()) is None
