"""seed_all() where torch computes with MindSpore: its defaults are those of document 002."""

from __future__ import annotations

import inspect
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mindtorch", reason="MSAdapter is not installed here")
import mindspore.nn.probability.distribution as msd
from mindspore import mint, ops
from mindspore.common.initializer import initializer
from msa_case import F, made, ms, nn, torch

from msprobe.errors import UsageError
from msprobe.mindspore import msadapter_seeds, seed_all, seeds

ONES = torch.tensor(np.ones((2, 50, 5, 5), np.float32))


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What seed_all() does to dropout is undone."""
    undo = []
    for module in (seeds, msadapter_seeds):
        remove = module.remove_dropout
        monkeypatch.setattr(module, "remove_dropout", lambda *args, remove=remove: undo.append(remove(*args)))
    yield
    while undo:
        undo.pop()()


@pytest.mark.spec("A022", "MSA")
def test_prototype() -> None:
    found = inspect.signature(seed_all).parameters.values()
    assert [(one.name, one.default) for one in found] == [
        ("seed", 1234),
        ("mode", False),
        ("rm_dropout", True),
    ]


def drawn() -> list[Any]:
    """From every source of random numbers that the document names, and from torch."""
    weight = initializer("normal", [3], ms.float32).init_data()
    sample = msd.Normal(0.0, 1.0).sample((3,))
    permuted = torch.randperm(50)
    return [random.random(), np.random.rand(), *(t.asnumpy().tolist() for t in (weight, sample, permuted))]


@pytest.mark.spec("A023", "MSA")
def test_seed_all_fixes_every_random_state(undone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # mindtorch's operators want a device of every tensor, and MindSpore's distributions make theirs without.
    monkeypatch.setattr(ms.Tensor, "_device", torch.device("cpu"), raising=False)
    seed_all(7)
    first = drawn()
    seed_all(7)
    assert drawn() == first
    seed_all(8)
    assert [a == b for a, b in zip(drawn(), first, strict=True)] == [False] * len(first)
    seed_all()
    at_1234 = drawn()
    seed_all(1234)
    assert drawn() == at_1234


@pytest.mark.spec("A023", "MSA")
def test_hashes_of_the_processes_that_are_started(undone: None) -> None:
    code = "from datetime import datetime; print([hash(x) for x in ('text', b'bytes', datetime(2025, 1, 1))])"
    said = []
    for seed in (7, 7, 8):
        seed_all(seed)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        said.append(done.stdout)
    assert (said[0] == said[1], said[0] == said[2]) == (True, False)


@pytest.mark.spec("A024", "MSA")
@pytest.mark.parametrize("mode, expected", [(False, ("OFF", None)), (True, ("ON", "true"))])
def test_mode(mode: bool, expected: Any, undone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HCCL_DETERMINISTIC", raising=False)
    ms.set_context(deterministic="OFF")
    seed_all(mode=mode)
    assert (ms.get_context("deterministic"), os.environ.get("HCCL_DETERMINISTIC")) == expected
    ms.set_context(deterministic="OFF")


def dropped(output: Any) -> bool:
    output = output[0] if isinstance(output, tuple) else output
    return bool((output.asnumpy() != 1).any())


DROPOUTS: dict[str, Any] = {
    "ops.Dropout": lambda: ops.Dropout(keep_prob=0.5),
    "ops.Dropout2D": lambda: ops.Dropout2D(0.5),
    "torch.nn.Dropout": lambda: nn.Dropout(0.5),
    "torch.nn.functional.dropout": lambda: lambda x: F.dropout(x, 0.5, training=True),
}


@pytest.mark.spec("A025", "MSA")
@pytest.mark.spec("A022", "MSA")
@pytest.mark.parametrize("case", DROPOUTS)
def test_dropout_is_switched_off_unless_it_is_to_stay(case: str, undone: None) -> None:
    seed_all(rm_dropout=False)
    assert dropped(DROPOUTS[case]()(ONES))
    seed_all()
    assert not dropped(DROPOUTS[case]()(ONES))


@pytest.mark.spec("A025", "MSA")
def test_dropout_that_has_no_kernel_on_a_cpu(undone: None) -> None:
    assert (ops.Dropout3D(0.3).keep_prob, mint.nn.Dropout(0.5).p) == (0.3, 0.5)
    seed_all()
    assert (ops.Dropout3D(0.3).keep_prob, mint.nn.Dropout(0.5).p) == (1.0, 0.0)
    assert not dropped(mint.nn.functional.dropout(ONES, 0.5))


@pytest.mark.spec("A026", "MSA")
def test_only_dropout_that_is_made_later_is_switched_off(undone: None) -> None:
    before = ops.Dropout(keep_prob=0.5)
    seed_all()
    assert dropped(before(ONES))
    assert not dropped(ops.Dropout(keep_prob=0.5)(ONES))


@pytest.mark.parametrize("arguments", [{"seed": -1}, {"mode": 1}, {"rm_dropout": None}], ids=str)
def test_seed_all_refuses(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="seed_all"):
        seed_all(**arguments)


def test_training_does_not_see_the_change(undone: None) -> None:
    """Dropout that keeps all is the identity, also for gradients."""
    seed_all()
    x = made(3, 4)
    gradient = ms.grad(lambda x: (F.dropout(x, 0.5, training=True) * 3.0).sum())(x)
    assert gradient.asnumpy().tolist() == [[3.0] * 4] * 3
