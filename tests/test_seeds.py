"""seed_all, the seeds of the configuration, and dropout."""

import contextlib
import json
import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from msprobe.errors import UsageError  # noqa: E402
from msprobe.pytorch import PrecisionDebugger, seed_all  # noqa: E402
from msprobe.pytorch import debugger as bound  # noqa: E402
from msprobe.pytorch.seeds import remove_dropout  # noqa: E402

VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "HCCL_DETERMINISTIC")
Make = Callable[..., PrecisionDebugger]


@pytest.fixture(autouse=True)
def all_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Random states and switches are those of the process again afterwards."""
    for name in VARIABLES:  # noted, so that it is put back
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cudnn = torch.backends.cudnn
    switches = cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = switches
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    def make(**keys: Any) -> PrecisionDebugger:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"dump_path": str(tmp_path / "run"), **keys}))
        return PrecisionDebugger(str(path))

    yield make
    with contextlib.suppress(UsageError):  # none was made
        bound._the.get().close()
    bound._the.clear()


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [line.partition("msprobe: ")[2] for line in lines if "msprobe: " in line]


# --- the eleven effects ---


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """A torch_npu that notes the seeds it is given."""
    given: list[tuple[str, int]] = []
    module: Any = types.ModuleType("torch_npu")
    module.npu = types.SimpleNamespace(
        manual_seed=lambda seed: given.append(("manual_seed", seed)),
        manual_seed_all=lambda seed: given.append(("manual_seed_all", seed)),
    )
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return given


@pytest.mark.spec("C127", "PT")
@pytest.mark.parametrize("seed", [None, 0, 7, 2**32 - 1])
def test_seed_all(npu: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, seed: int | None) -> None:
    cuda: list[tuple[str, int]] = []  # a build without CUDA takes its seeds and does nothing visible
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda number: cuda.append(("manual_seed", number)))
    monkeypatch.setattr(
        torch.cuda, "manual_seed_all", lambda number: cuda.append(("manual_seed_all", number))
    )
    cudnn = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = True, True, False
    seed_all() if seed is None else seed_all(seed)
    number = 1234 if seed is None else seed
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    expected = np.random.RandomState(number).rand()
    generator = torch.Generator().manual_seed(number)
    assert drawn == (random.Random(number).random(), expected, torch.rand(1, generator=generator).item())
    assert os.environ["PYTHONHASHSEED"] == str(number)
    assert [call for call in cuda if call[0] == "manual_seed"] == [("manual_seed", number)]
    assert ("manual_seed_all", number) in cuda
    assert npu == [("manual_seed", number), ("manual_seed_all", number)]
    assert (cudnn.enable, cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (False, False, False, True)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.spec("C024", "PT")
def test_mode_asks_for_deterministic_algorithms() -> None:
    seed_all(1, mode=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["HCCL_DETERMINISTIC"] == "True"


def test_without_torch_npu_the_rest_is_seeded() -> None:
    assert "torch_npu" not in sys.modules
    seed_all(3)
    assert torch.initial_seed() == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seed": -1}, "seed_all takes a whole number from 0 to 2**32 - 1 as seed, not -1."),
        ({"seed": 2**32}, "seed_all takes a whole number from 0 to 2**32 - 1 as seed, not 4294967296."),
        ({"seed": True}, "seed_all takes a whole number from 0 to 2**32 - 1 as seed, not True."),
        ({"seed": "1"}, "seed_all takes a whole number from 0 to 2**32 - 1 as seed, not '1'."),
        ({"mode": 1}, "mode of seed_all is 1; it must be True or False."),
        ({"rm_dropout": "no"}, "rm_dropout of seed_all is 'no'; it must be True or False."),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], sentence: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(UsageError) as caught:
        seed_all(**arguments)
    assert str(caught.value) == sentence
    assert torch.equal(torch.get_rng_state(), state)


# --- by the configuration ---


@pytest.mark.spec("R26", "PT")
@pytest.mark.spec("C023", "PT")
@pytest.mark.spec("C024", "PT")
@pytest.mark.parametrize(
    ("keys", "seed", "deterministic"),
    [
        ({}, None, False),
        ({"seed": 5}, 5, False),
        ({"is_deterministic": False}, 1234, False),
        ({"is_deterministic": True}, 1234, True),
        ({"is_deterministic": True, "seed": 7}, 7, True),
    ],
)
def test_the_configuration_seeds_once(
    make: Make, keys: dict[str, Any], seed: int | None, deterministic: bool
) -> None:
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    make(rm_dropout=False, **keys)
    after = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    assert torch.initial_seed() == (99 if seed is None else seed)
    assert [str(one) == str(other) for one, other in zip(before, after, strict=True)] == [seed is None] * 3
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    torch.rand(1)
    drawn = torch.get_rng_state()
    make(rm_dropout=False, **keys)  # made again: nothing is seeded a second time
    assert torch.equal(torch.get_rng_state(), drawn)


# --- dropout ---


DROPOUTS = ("dropout", "dropout2d", "dropout3d")
LAYERS = (nn.Dropout, nn.Dropout2d, nn.Dropout3d)


def dropped() -> list[bool]:
    """For each function, each layer and a call by names: does it drop?"""
    plane, space = torch.ones(2, 8, 8, 8), torch.ones(2, 8, 8, 8, 8)
    inputs = (plane, plane, space)
    results = [(getattr(F, name)(x, 0.9), x) for name, x in zip(DROPOUTS, inputs, strict=True)]
    results += [(layer(0.9)(x), x) for layer, x in zip(LAYERS, inputs, strict=True)]
    results += [(F.dropout(input=plane, p=0.9, training=True), plane)]
    return [not torch.equal(result, x) for result, x in results]


@pytest.mark.spec("C129", "PT")
@pytest.mark.spec("R30", "PT")
def test_dropout_is_switched_off_with_one_line(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    held = [getattr(F, name) for name in DROPOUTS]
    assert dropped() == [True] * 7  # the import alone changes nothing
    debugger = make()
    assert dropped() == [False] * 7
    debugger.start()
    assert dropped() == [False] * 7
    debugger.stop()
    assert dropped() == [False] * 7
    assert [getattr(F, name) for name in DROPOUTS] == held
    assert told(capsys) == [
        'dropout is switched off (p = 0) so that two runs can be compared; "rm_dropout": false keeps it.'
    ]
    bound._the.get().close()
    assert dropped() == [True] * 7


@pytest.mark.spec("R30", "PT")
def test_rm_dropout_false_keeps_it(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    debugger = make(rm_dropout=False)
    debugger.start()
    assert dropped() == [True] * 7
    debugger.stop()
    assert told(capsys) == []


def test_removing_twice_and_putting_back_once(capsys: pytest.CaptureFixture[str]) -> None:
    undo = remove_dropout()
    seed_all(rm_dropout=True)
    assert dropped() == [False] * 7
    assert len(told(capsys)) == 1
    undo()
    undo()
    assert dropped() == [True] * 7


def test_dropout_in_evaluation_and_in_place() -> None:
    undo = remove_dropout()
    x = torch.ones(4)
    assert F.dropout(x, 0.5, training=False).tolist() == [1.0] * 4
    assert F.dropout(x, 0.5, inplace=True).data_ptr() == x.data_ptr()
    undo()
