"""free_benchmark with a toy framework: what is called again, what is told, what training sees of it."""

import csv
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msprobe.capture.debugger import Debugger
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, FreeBenchmark
from msprobe.errors import UsageError
from msprobe.log import logger
from toy import Array, Model, backward, ops
from toy_adapter import ToyAdapter
from toy_replay import ToyReplay

Make = Callable[..., Debugger]
COLUMNS = ["rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index"]

logger()


@pytest.fixture
def adapter() -> ToyAdapter:
    return ToyAdapter()


@pytest.fixture
def make(adapter: ToyAdapter, tmp_path: Path) -> Iterator[Make]:
    made: list[Debugger] = []

    def build(**keys: Any) -> Debugger:
        section = FreeBenchmark(**{"pert_mode": "bit_noise", **keys})
        config = Config(dump_path=str(tmp_path / "run"), task="free_benchmark", section=section)
        made.append(Debugger(adapter, config, Stacks(), ToyReplay()))
        return made[-1]

    yield build
    for debugger in made:
        debugger.close()


def rows(tmp_path: Path) -> list[dict[str, str]]:
    with open(tmp_path / "run" / "free_benchmark.csv", newline="") as file:
        return list(csv.DictReader(file))


def step(debugger: Debugger, work: Callable[[], Any]) -> Any:
    debugger.start()
    result = work()
    debugger.stop()
    debugger.step()
    return result


def differ(x: Array, y: Array) -> Array:
    """A subtraction in the words of the toy."""
    return ops.add(x, ops.mul(y, Array([-1.0])))


NEARLY = 65536.0, 65533.0  # flipping the last bit of the first moves their difference by 1/384


# --- the table ---


@pytest.mark.spec("C050", "PT", "MSd")
def test_what_is_stable_leaves_a_table_with_nothing_in_it(make: Make, tmp_path: Path) -> None:
    step(make(), lambda: ops.mul(Array([2.0]), Array([3.0])))
    table = tmp_path / "run" / "free_benchmark.csv"
    assert table.read_text() == ",".join(COLUMNS) + "\n"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".claims", "free_benchmark.csv"]
    assert table.stat().st_mode & 0o777 == 0o640


def test_the_call_whose_answer_moves_is_named(make: Make, adapter: ToyAdapter, tmp_path: Path) -> None:
    adapter.the_rank = 3
    debugger = make()
    step(debugger, lambda: ops.relu(Array([1.0])))
    step(debugger, lambda: differ(Array([NEARLY[0], 5.0]), Array([NEARLY[1], 2.0])))
    (row,) = rows(tmp_path)
    assert list(row) == COLUMNS
    assert float(row.pop("max_rel")) == pytest.approx(2**-7 / 3)
    assert row == {
        "rank": "3",
        "pert_mode": "bit_noise",
        "stage": "forward",
        "step": "1",
        "api_name": "Toy.add.0.forward",
        "dtype": "float32",
        "shape": "(2,)",
        "output_index": "",
    }


def test_outputs_of_a_tuple_have_their_index(make: Make, tmp_path: Path) -> None:
    step(make(pert_mode="change_value"), lambda: ops.split(Array([1.0, 2.0, 2.0, 3.0]), at=1))
    assert [(row["output_index"], row["shape"]) for row in rows(tmp_path)] == [("0", "(1,)"), ("1", "(3,)")]


def test_a_changed_sign_has_no_relative_error(make: Make, tmp_path: Path) -> None:
    step(make(pert_mode="change_value"), lambda: ops.mul(Array([1.0, -2.0]), Array([1.0, 1.0])))
    assert [row["max_rel"] for row in rows(tmp_path)] == [""]


def test_the_table_of_an_earlier_run_is_kept_elsewhere(make: Make, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "free_benchmark.csv").write_text("of yesterday\n")
    step(make(), lambda: ops.relu(Array([1.0])))
    assert rows(tmp_path) == []
    assert [old.read_text() for old in (tmp_path / "run" / "previous").rglob("*.csv")] == ["of yesterday\n"]


def test_a_disk_that_takes_nothing_stops_nobody(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").write_text("a file is in the way")
    seen = step(make(pert_mode="change_value"), lambda: ops.relu(Array([1.0, 2.0])))
    assert seen.values.tolist() == [1.0, 2.0]
    assert "could not begin" in caplog.text
    assert "training goes on" in caplog.text


# --- what training sees of it ---


def test_calls_in_place_are_made_once(make: Make, tmp_path: Path) -> None:
    x = Array([-1.0, 2.0])
    seen = step(make(pert_mode="no_change"), lambda: ops.relu_(x))
    assert seen is x
    assert (x.values.tolist(), x.version) == ([0.0, 2.0], 1)
    assert rows(tmp_path) == []


def test_communication_is_never_made_again(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = Array([2.0])
    step(make(pert_mode="change_value"), lambda: ops.double_across(x))
    assert (x.values.tolist(), x.version) == ([4.0], 1)
    assert "1 call is communication" in caplog.text


def test_an_error_of_training_is_its_own(make: Make) -> None:
    debugger = make()
    debugger.start()
    with pytest.raises(ValueError, match="cannot take shape"):
        ops.broken(Array([1.0]))
    debugger.step()


def test_an_error_of_the_second_call_is_told_once_for_each_api(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def fragile(x: Array) -> Array:
        calls.append(x)
        if len(calls) % 2 == 0:
            raise RuntimeError("not twice")
        return x

    monkeypatch.setattr(ops, "relu", fragile)
    monkeypatch.setattr(ops, "total", fragile)
    x = Array([1.0])
    seen = step(make(), lambda: [ops.relu(x), ops.relu(x), ops.total(x)])
    assert seen == [x, x, x]
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert told == [
        f"free_benchmark could not make again Toy.{name}.0.forward: not twice; training goes on."
        for name in ("relu", "total")
    ]
    noted = (tmp_path / "run" / "dump_error_info.log").read_text()
    assert noted.count("RuntimeError: not twice") == 2


def test_random_numbers_are_drawn_once_for_training_and_alike_for_the_second_call(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(x: Array) -> Array:
        return Array(x.values + np.float32(random.random()) + np.float32(np.random.rand()))

    monkeypatch.setattr(ops, "relu", noisy)

    def run() -> tuple[list[float], Any, Any]:
        random.seed(1)
        np.random.seed(1)
        seen = [float(ops.relu(Array([1.0])).values[0]) for _ in range(3)]
        return seen, random.getstate(), np.random.get_state()[1].tolist()

    plain = run()
    assert step(make(pert_mode="no_change"), run) == plain
    assert rows(tmp_path) == []


def test_the_graph_of_training_is_not_touched(make: Make) -> None:
    def gradients() -> list[Any]:
        model = Model()
        loss = model(Array([1.0, 2.0], requires_grad=True))
        backward(loss)
        return [array.gradient.tolist() for _, array in model.net.one.parameters()]

    assert step(make(), gradients) == gradients()


def test_of_nested_calls_the_outermost_counts(make: Make, tmp_path: Path) -> None:
    step(make(pert_mode="change_value"), lambda: ops.scaled_sum(Array([1.0, 2.0])))
    assert [row["api_name"] for row in rows(tmp_path)] == ["Toy.scaled_sum.0.forward"]


def test_checkpointed_code_is_checked_once(make: Make, tmp_path: Path) -> None:
    def train() -> None:
        backward(ops.total(ops.checkpoint(ops.relu, Array([1.0, 2.0], requires_grad=True))))

    step(make(pert_mode="change_value"), train)
    assert [row["api_name"] for row in rows(tmp_path)] == ["Toy.relu.0.forward"]


def test_outside_start_and_stop_nothing_is_checked(make: Make, tmp_path: Path) -> None:
    debugger = make(pert_mode="change_value")
    step(debugger, lambda: None)
    ops.relu(Array([1.0, 2.0]))
    assert rows(tmp_path) == []


def test_a_forked_child_checks_nothing(make: Make, tmp_path: Path) -> None:
    debugger = make(pert_mode="change_value")
    debugger.start()
    child = os.fork()
    if child == 0:
        ops.relu(Array([1.0, 2.0]))
        debugger.step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    debugger.step()
    assert rows(tmp_path) == []


# --- which calls ---


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ["mul.0", "add.0", "mul.1"]),
        ({"list": ("toy.mul",)}, ["mul.0", "mul.1"]),
        ({"scope": ("Toy.mul.1",)}, ["mul.1"]),
        ({"scope": ("Toy.mul.1.forward", "Toy.add.0")}, ["add.0", "mul.1"]),
    ],
)
def test_chosen_calls(make: Make, tmp_path: Path, keys: dict[str, Any], expected: list[str]) -> None:
    def work() -> None:
        x = Array([1.0, 2.0])
        ops.mul(ops.add(ops.mul(x, x), x), x)

    step(make(pert_mode="change_value", **keys), work)
    assert [row["api_name"] for row in rows(tmp_path)] == [f"Toy.{name}.forward" for name in expected]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"scope": ("Toy.mull.0",)},
            "scope names Toy.mull.0, but step 0 made no such call; the nearest that was made is Toy.mul.0.",
        ),
        (
            {"list": ("toy.mull",)},
            "list names toy.mull, but step 0 made no such call; the nearest that was made is toy.mul.",
        ),
    ],
)
def test_a_name_that_was_never_met_is_told(
    make: Make, caplog: pytest.LogCaptureFixture, keys: dict[str, Any], told: str
) -> None:
    step(make(**keys), lambda: ops.mul(ops.relu(Array([1.0])), Array([2.0])))
    assert told in [record.getMessage() for record in caplog.records]


def test_every_call_that_is_not_made_again_has_a_reason(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        ops.relu(Array([1, 2]))
        ops.relu(Array([0.0]))
        ops.relu(Array([1.0]))

    step(make(), work)
    assert (
        caplog.records[-1]
        .getMessage()
        .startswith(
            "step 0: free_benchmark made 1 call again (bit_noise): 1 stable, 0 not. "
            "Not made again: 1 call is without a floating-point tensor to perturb; "
            "1 call is without an element as large as the noise."
        )
    )


def test_a_framework_that_cannot_call_again_says_so(adapter: ToyAdapter, tmp_path: Path) -> None:
    config = Config(dump_path=str(tmp_path), task="free_benchmark", section=FreeBenchmark())
    with pytest.raises(UsageError, match="task free_benchmark cannot be done with toy"):
        Debugger(adapter, config, Stacks()).start()


# --- gradients ---


def test_gradients_are_compared_too(make: Make, tmp_path: Path) -> None:
    def train() -> None:
        x, y = Array([1.0, 2.0], requires_grad=True), Array([3.0, 4.0], requires_grad=True)
        backward(ops.total(ops.mul(x, y)))

    step(make(pert_mode="change_value", fuzz_stage="backward", list=("toy.mul",)), train)
    assert [
        (row["stage"], row["api_name"], float(row["max_rel"]), row["output_index"]) for row in rows(tmp_path)
    ] == [("backward", "Toy.mul.0.backward", 1.0, "1")]  # x changed places: the gradient of y is x


def test_a_gradient_of_a_tensor_that_comes_twice_is_a_sum(make: Make, tmp_path: Path) -> None:
    def train() -> None:
        x = Array([1.0, 2.0], requires_grad=True)
        backward(ops.total(ops.mul(x, x)))

    step(make(pert_mode="no_change", fuzz_stage="backward", list=("toy.mul",)), train)
    assert rows(tmp_path) == []


def test_without_a_graph_there_is_no_gradient_to_compare(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    from toy import tape

    def work() -> None:
        with tape.switched(False):
            ops.relu(Array([1.0]))

    step(make(fuzz_stage="backward"), work)
    assert "1 call is outside every graph" in caplog.text
