"""seed_all(): every random state that the specification names, deterministic kernels, dropout that is off."""

from __future__ import annotations

import inspect
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import mindspore.nn.probability.distribution as distributions
import numpy as np
from mindspore import Tensor, mint, nn, ops
from ms_case import Probe, probe

from msprobe.adapter import Undo
from msprobe.errors import UsageError
from msprobe.mindspore import seed_all, seeds

__all__ = ["probe"]


@pytest.mark.spec("M032", "MSd", "MSs")
def test_prototype() -> None:
    """One function, whatever the mode."""
    found = inspect.signature(seed_all).parameters.values()
    expected = {"seed": 1234, "mode": False, "rm_dropout": False}
    assert {parameter.name: parameter.default for parameter in found} == expected


def drawn() -> dict[str, Any]:
    """Something of each source of randomness."""
    weight = ms.common.initializer.initializer("normal", [3], ms.float32).init_data()
    normal = distributions.Normal(0.0, 1.0, dtype=ms.float32)
    return {
        "random": random.random(),
        "numpy": np.random.rand(),
        "initializer": weight.asnumpy().tolist(),
        "weights": nn.Dense(3, 2).weight.asnumpy().tolist(),
        "distribution": normal.sample((3,)).asnumpy().tolist(),
        "generator": ops.rand(2).asnumpy().tolist(),
        "dropout": nn.Dropout(p=0.5).set_train()(Tensor(np.ones(64, np.float32))).asnumpy().tolist(),
    }


@pytest.mark.spec("M033", "MSd")
def test_the_seed_fixes_every_random_state() -> None:
    seed_all(7)
    first, second = drawn(), drawn()
    seed_all(7)
    assert drawn() == first
    seed_all(8)
    other = drawn()
    assert {name for name in first if first[name] in (second[name], other[name])} == set()


@pytest.mark.spec("M033", "MSd")
def test_the_seed_fixes_hashes_of_processes_that_follow() -> None:
    show = [
        sys.executable,
        "-c",
        "import datetime; print(hash('a'), hash(b'a'), hash(datetime.date(2020, 1, 1)))",
    ]

    def hashes() -> str:
        return subprocess.run(show, capture_output=True, text=True, check=True).stdout

    seed_all(7)
    assert os.environ["PYTHONHASHSEED"] == "7"
    first = hashes()
    assert hashes() == first
    seed_all()
    assert (os.environ["PYTHONHASHSEED"], hashes() != first) == ("1234", True)


@pytest.fixture
def calm() -> Iterator[None]:
    """Whatever mode a test leaves, the next one finds none."""
    environment = os.environ.pop("HCCL_DETERMINISTIC", None)
    yield
    os.environ.pop("HCCL_DETERMINISTIC", None)
    if environment is not None:
        os.environ["HCCL_DETERMINISTIC"] = environment
    ms.set_context(deterministic="OFF")


@pytest.mark.spec("M033", "MSd", "MSs")
@pytest.mark.usefixtures("calm")
def test_mode_asks_for_deterministic_kernels_and_reductions() -> None:
    def state() -> tuple[str, str | None]:
        return ms.get_context("deterministic"), os.environ.get("HCCL_DETERMINISTIC")

    before = state()
    seed_all(1, mode=False)
    assert state() == before == ("OFF", None)
    seed_all(1, mode=True)
    assert state() == ("ON", "true")


@pytest.mark.parametrize(
    "arguments", [{"seed": -1}, {"seed": "1"}, {"mode": 1}, {"rm_dropout": None}], ids=str
)
def test_wrong_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="seed_all"):
        seed_all(**arguments)


X = Tensor(np.ones((2, 50, 2, 5, 5), np.float32))
DROPOUTS = {
    "ops.Dropout": lambda: ops.Dropout(keep_prob=0.5),
    "ops.Dropout, by place": lambda: ops.Dropout(0.5, 1, 2),
    "ops.Dropout2D": lambda: lambda x: ops.Dropout2D(0.5)(x[:, :, 0]),
    "ops.Dropout3D": lambda: ops.Dropout3D(0.5),
    "nn.Dropout": lambda: nn.Dropout(p=0.5).set_train(),
    "mint.nn.Dropout": lambda: mint.nn.Dropout(0.5).set_train(),
    "mint.nn.functional.dropout": lambda: lambda x: mint.nn.functional.dropout(x, p=0.5),
}
ASCEND_ONLY = ("mint.nn.Dropout", "mint.nn.functional.dropout")


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dropout is on again after the test; a training script would end there."""
    remove, undo = seeds.remove_dropout, list[Undo]()
    monkeypatch.setattr(seeds, "remove_dropout", lambda: undo.append(remove()))
    yield
    while undo:
        undo.pop()()


def drops(dropout: Any) -> bool:
    output = dropout(X)
    output = output[0] if isinstance(output, tuple) else output
    return not bool((output.asnumpy() == 1).all())


@pytest.mark.spec("M033", "MSd")
@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize("name", DROPOUTS)
def test_rm_dropout(name: str) -> None:
    make = DROPOUTS[name]
    early = make()
    if name in ASCEND_ONLY:
        with pytest.raises(RuntimeError, match="unregistered|Unsupported"):
            drops(early)
    else:
        assert drops(early)
    seed_all(rm_dropout=True)
    assert not drops(make())
    if name not in (*ASCEND_ONLY, "ops.Dropout2D"):
        assert drops(early)  # it was made before, as the specification says


@pytest.mark.spec("M033", "MSd")
@pytest.mark.usefixtures("undone")
def test_without_rm_dropout_it_drops() -> None:
    seed_all(rm_dropout=False)
    assert [name for name, make in DROPOUTS.items() if name not in ASCEND_ONLY and not drops(make())] == []


# ---- static graph ----


@pytest.fixture
def graph_mode() -> Iterator[None]:
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=mode)


class Drawing(nn.Cell):
    """Draws while it is made and in the graph that it is compiled to."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Dense(5, 3), nn.Dropout(p=0.5)
        self.normal = distributions.Normal(0.0, 1.0, dtype=ms.float32)

    def construct(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.fc(x), self.drop(x), self.normal.sample((3,)), ops.rand(2)


@pytest.mark.spec("M033", "MSs")
@pytest.mark.usefixtures("graph_mode")
def test_the_seed_fixes_what_a_graph_draws() -> None:
    def drawn() -> list[Any]:
        return [output.asnumpy().tolist() for output in Drawing().set_train()(X[0, :, 0, 0])]

    seed_all(7)
    first, second = drawn(), drawn()
    seed_all(7)
    assert drawn() == first
    seed_all(8)
    other = drawn()
    assert [one for one, *others in zip(first, second, other, strict=True) if one in others] == []


class Dropping(nn.Cell):
    """Every dropout that the specification names, in one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = ops.Dropout(keep_prob=0.5), ops.Dropout2D(0.5), ops.Dropout3D(0.5)
        self.cell, self.mint = nn.Dropout(p=0.5), mint.nn.Dropout(0.5)

    def construct(self, x: Tensor) -> tuple[Tensor, ...]:
        primitives = self.one(x)[0], self.two(x[:, :, 0])[0], self.three(x)[0]
        return *primitives, self.cell(x), self.mint(x), mint.nn.functional.dropout(x, p=0.5)


@pytest.mark.spec("M033", "MSs")
@pytest.mark.usefixtures("graph_mode", "undone")
def test_rm_dropout_in_a_graph() -> None:
    with pytest.raises(RuntimeError, match="DropoutExt"):  # those of mint are for Ascend
        Dropping().set_train()(X)
    seed_all(rm_dropout=True)
    assert [drops(lambda _, output=output: output) for output in Dropping().set_train()(X)] == [False] * 6


@pytest.mark.usefixtures("undone")
def test_a_removed_dropout_is_recorded_as_what_it_is(probe: Probe) -> None:
    seed_all(rm_dropout=True)
    debugger = probe.debugger("L1")
    debugger.start()
    mint.nn.functional.dropout(Tensor([1.0, 2.0]), p=0.5)
    debugger.stop()
    debugger.step()
    record = probe.data()["MintFunctional.dropout.0.forward"]
    assert record["input_args"] == record["output"]
