"""overflow_check on the toy framework: who is to blame, what is kept, when training ends, what is held."""

import csv
import gc
import json
import math
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy
import toy_adapter
from msprobe.capture.debugger import Debugger
from msprobe.capture.overflow_verdict import (
    ANY,
    MASKED,
    NONE,
    PASSED_ON,
    PRODUCER,
    Opinion,
    Seen,
    excuse_of_number,
    judge,
    kinds_of,
)
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, OverflowCheck
from msprobe.errors import MsprobeError, OverflowLimitReached
from msprobe.kernels import statistics_of
from msprobe.log import logger
from msprobe.name import CallName
from msprobe.record import Leaf
from msprobe.store import read, tensor_path
from msprobe.store.tensor_file import read as read_tensor
from toy import Array, Module, Scale, ops
from toy_adapter import ToyAdapter

INF = math.inf
LARGE = 3e38  # in float32, twice this is infinite

Make = Callable[..., Debugger]

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # numpy sees it, too

logger()  # pytest catches what a logger tells that is there before the test


# --- the rules ---


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ([1.0, -LARGE], set()),
        ([], set()),
        ([INF, 1.0], {"inf"}),
        ([-INF, 1.0], {"-inf"}),
        ([-INF, INF], {"inf", "-inf"}),
        ([math.nan, 1.0], {"nan"}),
        ([math.nan, -INF], {"nan", "inf"}),  # the sign is not known
    ],
)
def test_kinds_of_an_array(values: list[float], kinds: set[str]) -> None:
    array = np.array(values, np.float32)
    leaf = Leaf("toy.Array", dtype="float32", shape=array.shape, stats=statistics_of(array))
    assert kinds_of(leaf) == kinds


@pytest.mark.parametrize(
    ("value", "kinds"),
    [(1.5, set()), (10**400, set()), (True, set()), ("nan", set()), (-INF, {"-inf"}), (math.nan, {"nan"})],
)
def test_kinds_of_an_argument(value: Any, kinds: set[str]) -> None:
    assert kinds_of(Leaf(type(value).__name__, value)) == kinds


BAD = Seen(frozenset({"nan"}), NONE)
MASK = Seen(MASKED, MASKED)
FILLED = Seen(frozenset({"inf"}), frozenset({"inf"}))


@pytest.mark.parametrize(
    ("name", "inputs", "found", "opinion"),
    [
        ("Torch.matmul.0.forward", [], {"inf"}, Opinion(PRODUCER)),
        ("Torch.matmul.0.forward", [BAD], {"nan"}, Opinion(PASSED_ON)),
        ("Torch.add.0.forward", [MASK], {"-inf"}, Opinion(excused=MASKED)),
        ("Torch.add.0.forward", [MASK], {"-inf", "inf"}, Opinion(PRODUCER)),
        ("Torch.add.0.forward", [MASK, BAD], {"nan"}, Opinion(PASSED_ON)),
        ("Functional.softmax.0.forward", [MASK], {"nan"}, Opinion(PRODUCER)),
        ("Torch.minimum.0.forward", [FILLED], {"inf"}, Opinion(excused=frozenset({"inf"}))),
        ("Torch.empty.0.forward", [], {"nan", "inf"}, Opinion(excused=ANY)),
        ("Tensor.new_empty.0.forward", [], {"nan"}, Opinion(excused=ANY)),
        ("Torch.log.0.forward", [], {"-inf"}, Opinion(PRODUCER)),
        ("Module.mask.Mask.forward.0", [], {"-inf"}, Opinion(excused=MASKED)),
        ("Module.fc.Linear.forward.0", [], {"-inf", "inf"}, Opinion(PRODUCER)),
    ],
)
def test_judge(name: str, inputs: list[Seen], found: set[str], opinion: Opinion) -> None:
    assert judge(CallName.parse(name), inputs, frozenset(found)) == opinion


@pytest.mark.parametrize(
    ("name", "kinds", "excused"),
    [
        ("Tensor.masked_fill_.0.forward", {"inf"}, {"inf"}),
        ("Tensor.__setitem__.0.forward", {"inf"}, {"inf"}),
        ("Torch.full.0.forward", {"nan"}, set()),
        ("Tensor.__mul__.0.forward", {"-inf"}, {"-inf"}),
        ("Tensor.__mul__.0.forward", {"inf"}, set()),
    ],
)
def test_an_infinite_argument(name: str, kinds: set[str], excused: set[str]) -> None:
    assert excuse_of_number(CallName.parse(name), frozenset(kinds)) == excused


# --- from start() to disk ---


def masked_fill(x: Array, where: Any, value: float) -> Array:
    return Array(np.where(where, value, x.values))


def empty(count: int) -> Array:
    return Array([math.nan] * count)


def setitem(x: Array, index: int, value: float) -> None:
    x.values[index] = value
    x.version += 1


def sneak(x: Array) -> Array:
    """Changes its argument, and its name does not say so."""
    before = x.values * LARGE
    x.change(0.0)
    return Array(before)


@pytest.fixture
def adapter() -> ToyAdapter:
    return ToyAdapter()


@pytest.fixture
def make(adapter: ToyAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a debugger on the toy, which has a few more operations meanwhile."""
    further = {"masked_fill": masked_fill, "empty": empty, "__setitem__": setitem, "sneak": sneak}
    for name, function in further.items():
        monkeypatch.setattr(ops, name, function, raising=False)
    made: list[Debugger] = []

    def make(overflow_nums: int = -1, level: str = "L1", **keys: Any) -> Debugger:
        section = OverflowCheck(overflow_nums=overflow_nums)
        config = Config(
            dump_path=str(tmp_path / "run"), level=level, task="overflow_check", section=section, **keys
        )
        made.append(Debugger(adapter, config, Stacks((toy.__file__, toy_adapter.__file__))))
        return made[-1]

    yield make
    for debugger in made:
        debugger.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def folder(run: Path, step: int = 0) -> Path:
    return run / f"step{step}" / "rank"


def lines(run: Path, step: int = 0) -> list[dict[str, str]]:
    path = folder(run, step) / "overflow.csv"
    if not path.exists():
        return []
    with path.open() as stream:
        return list(csv.DictReader(stream))


def verdicts(run: Path, step: int = 0) -> dict[str, str]:
    return {line["name"].removeprefix("Toy."): line["verdict"] for line in lines(run, step)}


def recorded(run: Path, step: int = 0) -> list[str]:
    return list(json.loads((folder(run, step) / "dump.json").read_bytes())["data"])


def value(run: Path, slot: str) -> list[float]:
    data: list[float] = np.load(folder(run) / "dump_tensor_data" / f"{slot}.npy").tolist()
    return data


def array(*values: float, **keys: Any) -> Array:
    return Array(list(values), **keys)


def troubles(run: Path) -> str:
    path = folder(run) / "dump_error_info.log"
    return path.read_text() if path.exists() else ""


def test_only_what_overflows_is_recorded(make: Make, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    debugger = make()
    debugger.start()
    x = ops.add(array(LARGE, 1.0), array(0.0, 0.0))
    y = ops.mul(x, array(10.0, 1.0))
    z = ops.relu(y)
    ops.add(array(1.0), array(1.0))
    debugger.stop()
    debugger.step()
    assert verdicts(run) == {"mul.0.forward": "producer", "relu.0.forward": "passed on"}
    assert recorded(run) == ["Toy.mul.0.forward", "Toy.relu.0.forward"]
    first = lines(run)[0]
    assert (first["inputs"], first["outputs"]) == ("", "output.0: inf")
    assert first["called_at"].startswith(f"File {__file__}, line ")
    assert first["called_at"].endswith("y = ops.mul(x, array(10.0, 1.0))")
    assert lines(run)[1]["inputs"] == "input.0: inf"
    large = float(np.float32(LARGE))
    assert value(run, "Toy.mul.0.forward.input.0") == [large, 1.0]
    assert value(run, "Toy.mul.0.forward.input.1") == [10.0, 1.0]
    assert value(run, "Toy.mul.0.forward.output.0") == [INF, 1.0]
    assert sorted(os.listdir(folder(run))) == [
        "construct.json",
        "dump.json",
        "dump_tensor_data",
        "overflow.csv",
        "stack.json",
    ]
    (recording,) = read(folder(run))
    assert recording.header.task == "overflow_check"
    leaf = recording.records["Toy.mul.0.forward"].fields["output"][0]
    assert read_tensor(tensor_path(recording, leaf)).array.tolist() == z.values.tolist() == [INF, 1.0]
    assert (folder(run) / "overflow.csv").stat().st_mode & 0o777 == 0o640
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("overflow_check looks at values")
    assert said[1].startswith(
        "overflow 1: Toy.mul.0.forward gave output.0: inf, and its inputs were finite; "
    )
    assert said[2:] == [
        f"step 0: 2 of 4 records overflowed (producer: 1, passed on: 1); see {folder(run) / 'overflow.csv'}."
    ]


def test_a_clean_step_says_so(make: Make, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    debugger = make(1)
    debugger.start()
    ops.add(array(1.0), array(1.0))
    debugger.stop()
    debugger.step()
    assert (recorded(run), lines(run)) == ([], [])
    assert caplog.messages[-1] == "step 0: no overflow in 1 record."


def test_an_input_is_saved_as_it_was_before_the_call(make: Make, run: Path) -> None:
    debugger = make()
    x = array(INF, -1.0)
    x.change([math.nan, -1.0])
    debugger.start()
    ops.relu_(x)
    debugger.stop()
    assert value(run, "Toy.relu_.0.forward.input.0") == pytest.approx([math.nan, -1.0], nan_ok=True)
    assert value(run, "Toy.relu_.0.forward.output.0") == pytest.approx([math.nan, -0.0], nan_ok=True)


def test_an_input_that_was_changed_unannounced_has_no_file(make: Make, run: Path) -> None:
    debugger = make()
    debugger.start()
    ops.sneak(array(10.0))
    debugger.stop()
    (leaf,) = json.loads((folder(run) / "dump.json").read_bytes())["data"]["Toy.sneak.0.forward"][
        "input_args"
    ]
    assert (leaf["Max"], leaf.get("data_name")) == (10.0, None)
    assert value(run, "Toy.sneak.0.forward.output.0") == [INF]
    assert troubles(run) == ""


def test_what_a_call_changed_is_its_output_where_it_returns_nothing(make: Make, run: Path) -> None:
    debugger = make()
    debugger.start()
    x = array(1.0, 2.0)
    ops.__setitem__(x, 0, math.nan)
    debugger.stop()
    assert verdicts(run) == {"__setitem__.0.forward": "entered"}
    assert lines(run)[0]["inputs"] == "an argument: nan"
    assert lines(run)[0]["outputs"] == "output.0: nan"


# --- masks, and memory that was never written ---


def test_a_mask_is_nobodys_overflow(make: Make, run: Path) -> None:
    debugger = make(1)
    outside = array(-INF, 0.0)
    debugger.start()
    filled = ops.masked_fill(array(1.0, 2.0), [True, False], -INF)
    ops.add(filled, array(1.0, 1.0))
    ops.add(array(1.0, 1.0), outside)
    largest = ops.masked_fill(array(1.0), [True], INF)
    ops.add(largest, array(1.0))
    debugger.stop()
    debugger.step()
    assert lines(run) == []


def test_what_a_mask_makes_of_itself_is(make: Make, run: Path) -> None:
    debugger = make()
    debugger.start()
    masked = ops.add(array(1.0), array(-INF))
    ops.mul(masked, array(0.0))  # NaN
    ops.mul(masked, array(-1.0))  # inf
    debugger.stop()
    assert verdicts(run) == {"mul.0.forward": "producer", "mul.1.forward": "producer"}


def test_an_overflow_to_minus_infinity_is_no_mask(make: Make, run: Path) -> None:
    debugger = make()
    debugger.start()
    low = ops.mul(array(-LARGE), array(10.0))
    ops.add(low, array(1.0))
    debugger.stop()
    assert verdicts(run) == {"mul.0.forward": "producer", "add.0.forward": "passed on"}


def test_a_mask_that_was_changed_is_judged_anew(make: Make, run: Path) -> None:
    debugger = make()
    debugger.start()
    masked = ops.masked_fill(array(1.0), [True], INF)
    ops.add(masked, array(1.0))
    masked.change(INF)  # by somebody else
    ops.add(masked, array(1.0))
    debugger.stop()
    assert verdicts(run) == {"add.1.forward": "entered"}


def test_memory_that_was_never_written(make: Make, run: Path) -> None:
    debugger = make(1)
    debugger.start()
    memory = ops.empty(2)
    ops.add(memory, array(1.0, 1.0))
    debugger.stop()
    debugger.step()
    assert lines(run) == []


def test_what_comes_from_outside(make: Make, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    debugger = make()
    debugger.start()
    y = ops.add(array(math.nan), array(1.0))
    ops.add(y, array(1.0))
    debugger.stop()
    debugger.step()
    assert verdicts(run) == {"add.0.forward": "entered", "add.1.forward": "passed on"}
    assert (
        "overflow 1: Toy.add.0.forward was given input.0: nan, which no recorded call has made; called at"
        in caplog.text
    )
    assert caplog.messages[-1] == (
        f"step 0: 2 of 2 records overflowed (passed on: 1, entered: 1); see {folder(run) / 'overflow.csv'}."
    )


def test_what_comes_from_outside_counts(make: Make, run: Path) -> None:
    """What enters is counted, as what a call makes is; what passes it on is the same overflow."""
    debugger = make(2)
    debugger.start()
    y = ops.add(array(math.nan), array(1.0))
    ops.add(y, array(1.0))
    with pytest.raises(OverflowLimitReached, match=r"^\[overflow 2 times\]: dump file is saved in"):
        overflow()
    assert list(verdicts(run).values()) == ["entered", "passed on", "producer"]


def test_what_another_rank_may_have_made(make: Make, run: Path) -> None:
    debugger = make()
    debugger.start()
    x = array(LARGE)
    ops.double_across(x)
    y = array(LARGE)
    work = ops.double_across(y, wait=False)
    work.wait()
    debugger.stop()
    assert verdicts(run) == {"double_across.0.forward": "entered", "double_across.1.forward": "entered"}
    assert value(run, "Toy.double_across.0.forward.input.0") == [float(np.float32(LARGE))]


# --- gradients ---


def backward_overflow() -> Array:
    """Forward is finite; backward of the first product gives 3e39."""
    x = array(1e-38, requires_grad=True)
    result: Array = ops.total(ops.mul(ops.mul(x, array(10.0)), array(LARGE)))
    return result


def test_a_gradient_overflows(make: Make, run: Path) -> None:
    debugger = make()
    debugger.start()
    before = array(1e-38, requires_grad=True)
    x = ops.add(before, array(0.0))
    toy.backward(ops.total(ops.mul(ops.mul(x, array(10.0)), array(LARGE))))
    debugger.stop()
    assert verdicts(run) == {"mul.0.backward": "producer", "add.0.backward": "passed on"}
    assert lines(run)[0]["called_at"].endswith(
        "toy.backward(ops.total(ops.mul(ops.mul(x, array(10.0)), array(LARGE))))"
    )
    assert value(run, "Toy.mul.0.backward.input.0") == [float(np.float32(LARGE))]
    assert value(run, "Toy.mul.0.backward.output.0") == [INF]


def test_backward_of_what_was_not_sound_in_forward(make: Make, run: Path) -> None:
    debugger = make()
    debugger.start()
    x = array(1.0, requires_grad=True)
    y = ops.mul(x, array(INF))
    toy.backward(ops.total(y))
    debugger.stop()
    assert verdicts(run) == {
        "mul.0.forward": "entered",
        "total.0.forward": "passed on",
        "mul.0.backward": "passed on",
    }


def test_a_sum_of_gradients_overflows(make: Make, run: Path) -> None:
    """Each share is finite; who is given the sum has not made it."""
    debugger = make()
    debugger.start()
    x = ops.add(array(1e-38, requires_grad=True), array(0.0))
    toy.backward(ops.total(ops.add(ops.mul(x, array(LARGE)), ops.mul(x, array(LARGE)))))
    debugger.stop()
    assert verdicts(run) == {"add.0.backward": "entered"}


# --- the end of training ---


def overflow() -> Array:
    result: Array = ops.mul(array(LARGE), array(10.0))
    return result


def test_training_ends_after_the_call(make: Make, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    debugger = make(1)
    debugger.start()
    with pytest.raises(OverflowLimitReached) as raised:
        overflow()
    assert str(raised.value) == f"[overflow 1 times]: dump file is saved in '{folder(run)}'."
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, MsprobeError)
    assert recorded(run) == ["Toy.mul.0.forward"]  # complete, before anything else is called
    assert value(run, "Toy.mul.0.forward.output.0") == [INF]
    overflow()  # a script that goes on is let alone
    debugger.stop()
    debugger.step()
    debugger.start()
    overflow()
    debugger.stop()
    debugger.step()
    assert recorded(run) == ["Toy.mul.0.forward"]
    assert not folder(run, 1).exists()
    assert caplog.messages[-1] == "overflow_nums was reached after 1 overflow: nothing more is checked."


def test_the_count_goes_on_from_step_to_step(make: Make, run: Path) -> None:
    debugger = make(3)
    debugger.start()
    overflow()
    ops.relu(overflow())
    debugger.stop()
    debugger.step()
    assert verdicts(run) == {
        "mul.0.forward": "producer",
        "mul.1.forward": "producer",
        "relu.0.forward": "passed on",
    }
    debugger.start()
    with pytest.raises(OverflowLimitReached) as raised:
        overflow()
    assert str(raised.value) == f"[overflow 3 times]: dump file is saved in '{folder(run, 1)}'."


@pytest.mark.parametrize("where", ["call", "stop", "step"])
def test_a_backward_overflow_ends_training_when_backward_is_over(make: Make, run: Path, where: str) -> None:
    debugger = make(1)
    debugger.start()
    result = backward_overflow()
    toy.backward(result)
    with pytest.raises(OverflowLimitReached) as raised:
        {"call": lambda: ops.add(array(1.0), array(1.0)), "stop": debugger.stop, "step": debugger.step}[
            where
        ]()
    assert str(raised.value) == f"[overflow 1 times]: dump file is saved in '{folder(run)}'."
    assert recorded(run) == ["Toy.mul.0.backward"]
    debugger.close()
    assert recorded(run) == ["Toy.mul.0.backward"]


def test_closing_raises_nothing(make: Make, run: Path) -> None:
    debugger = make(1)
    debugger.start()
    toy.backward(backward_overflow())
    debugger.close()
    assert recorded(run) == ["Toy.mul.0.backward"]


def test_checkpointed_code_counts_once(make: Make, run: Path) -> None:
    debugger = make()
    debugger.start()
    x = array(LARGE, requires_grad=True)
    toy.backward(ops.total(ops.checkpoint(lambda x: ops.mul(x, array(10.0)), x)))
    debugger.stop()
    debugger.step()
    producers = [line["name"] for line in lines(run) if line["verdict"] == "producer"]
    assert producers == ["Toy.mul.0.forward"]
    assert len(lines(run)) == len(set(recorded(run)))
    assert value(run, "Toy.mul.0.forward.output.0") == [INF]


def test_a_call_that_raises_is_no_overflow(make: Make, run: Path) -> None:
    debugger = make(1)
    debugger.start()
    with pytest.raises(ValueError, match="cannot take shape"):
        ops.broken(array(INF))
    debugger.stop()
    debugger.step()
    assert (recorded(run), troubles(run)) == ([], "")


def test_a_device_is_asked_after_each_call(make: Make, adapter: ToyAdapter, run: Path) -> None:
    debugger = make(1)
    debugger.start()
    ops.add(array(1.0, on_device=True), array(1.0, on_device=True))
    with pytest.raises(OverflowLimitReached):
        ops.mul(array(LARGE, on_device=True), array(10.0, on_device=True))
    assert adapter.transfers[:2] == [3, 3]
    assert value(run, "Toy.mul.0.forward.output.0") == [INF]


def test_the_register_of_a_device_that_saturates(
    make: Make, adapter: ToyAdapter, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = make()
    adapter.flags = [False, False, True, False, True]
    debugger.start()
    ops.add(array(1.0), array(1.0))
    ops.mul(array(1.0), array(1.0))  # the register is set
    ops.relu(array(1.0))
    ops.relu(array(math.nan))  # and again, but it was given NaN
    debugger.stop()
    assert verdicts(run) == {"mul.0.forward": "producer", "relu.1.forward": "passed on"}
    assert caplog.messages[0] == (
        "overflow_check asks the overflow register of the device after each call, and looks at values as "
        "well."
    )
    assert "Toy.mul.0.forward gave finite numbers, while the overflow register was set" in caplog.text


# --- modules ---


class Net(Module):
    def __init__(self, first: float, second: float) -> None:
        super().__init__()
        self.first, self.second = Scale([first]), Scale([second])

    def forward(self, x: Array) -> Array:
        result: Array = self.second(self.first(x))
        return result


class Whole(Module):
    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.net = Net(*weights)

    def forward(self, x: Array) -> Array:
        result: Array = self.net(x)
        return result


def train(debugger: Debugger, model: Module, x: float = 1.0, scale: float = 1.0) -> None:
    debugger.start(model)
    y = model(array(x, requires_grad=True))
    toy.backward(y, np.array([scale], np.float32))
    debugger.stop()
    debugger.step()


def test_the_module_that_overflows_and_those_around_it(make: Make, run: Path) -> None:
    train(make(level="mix"), Whole(LARGE, 10.0), scale=0.01)
    assert {name: verdict for name, verdict in verdicts(run).items() if "forward" in name} == {
        "mul.1.forward": "producer",
        "Module.net.second.Scale.forward.0": "passed on",
        "Module.net.Net.forward.0": "passed on",
    }
    assert "producer" not in [verdict for name, verdict in verdicts(run).items() if "forward" not in name]


def test_modules_alone(make: Make, run: Path) -> None:
    train(make(level="L0"), Whole(LARGE, 10.0), scale=0.01)
    assert [name for name, verdict in verdicts(run).items() if verdict == "producer"] == [
        "Module.net.second.Scale.forward.0"
    ]


def test_training_ends_at_stop_where_only_modules_are_seen(make: Make, run: Path) -> None:
    with pytest.raises(OverflowLimitReached):
        train(make(1, level="L0"), Whole(LARGE, 10.0))
    assert recorded(run)[:2] == ["Module.net.second.Scale.forward.0", "Module.net.Net.forward.0"]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_weights_that_are_not_finite_are_nobodys_overflow(make: Make, run: Path, level: str) -> None:
    train(make(level=level), Whole(math.nan, 1.0))
    assert "producer" not in verdicts(run).values()
    assert [name for name, verdict in verdicts(run).items() if verdict == "entered"] == [
        "mul.0.forward" if level == "mix" else "Module.net.first.Scale.forward.0"
    ]


def test_a_gradient_of_a_parameter_alone_overflows(make: Make, run: Path) -> None:
    """x is large, and so is the gradient that comes in; the small weight keeps it from going on."""
    train(make(level="L0"), Whole(1e-38, 1.0), x=LARGE, scale=10.0)
    assert verdicts(run) == {"Module.net.first.Scale.parameters_grad": "producer"}
    assert value(run, "Module.net.first.Scale.parameters_grad.weight") == [INF]


class Hidden(Module):
    """Overflows in code that nobody sees, and calls a module with that."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scale([1.0])

    def forward(self, x: Array) -> Array:
        result: Array = self.inner(Array(x.values * LARGE * 10))
        return result


class Outer(Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = Hidden()

    def forward(self, x: Array) -> Array:
        result: Array = self.hidden(x)
        return result


def test_what_a_module_makes_unseen(make: Make, run: Path) -> None:
    model = Outer()
    debugger = make(level="L0")
    debugger.start(model)
    model(array(1.0))
    debugger.stop()
    assert verdicts(run) == {
        "Module.hidden.inner.Scale.forward.0": "entered",
        "Module.hidden.Hidden.forward.0": "producer",
    }


# --- what is held ---


def test_no_array_outlives_its_call(make: Make) -> None:
    debugger = make()
    debugger.start()
    references = []
    for factor in (1.0, 10.0):
        x, y = array(LARGE, requires_grad=True), array(factor)
        z = ops.mul(x, y)
        toy.backward(ops.total(z))
        references += [weakref.ref(x), weakref.ref(y), weakref.ref(z)]
    del x, y, z
    gc.collect()
    assert [reference() for reference in references] == [None] * 6
    debugger.stop()


def test_a_full_disk_stops_nothing(make: Make, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debugger = make(1)
    debugger.start()
    (folder(run) / "overflow.csv").mkdir()
    with pytest.raises(OverflowLimitReached):
        overflow()
    assert recorded(run) == ["Toy.mul.0.forward"]
    assert "Is a directory" in troubles(run)


# --- where nothing can be written ---


def test_what_overflow_csv_cannot_take_is_named(
    make: Make, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = make()
    debugger.start()
    (folder(run) / "overflow.csv").mkdir()
    ops.relu(overflow())
    toy.backward(backward_overflow())
    debugger.stop()
    debugger.step()
    assert named(caplog) == [
        "overflow 1: Toy.mul.0.forward gave output.0: inf, and its inputs were finite",
        "Toy.relu.0.forward passed on input.0: inf",
        "overflow 2: Toy.mul.1.backward gave output.0: inf, and its inputs were finite",
        "step 0: 3 of 8 records overflowed (producer: 2, passed on: 1); see "
        f"{folder(run)}/overflow.csv, which lacks 3 of them.",
    ]


@pytest.fixture
def blocked(run: Path) -> Path:
    """A file in the place of the folder of the run."""
    run.write_text("in the way")
    return run


def named(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings, without where the calls are."""
    return [
        entry.getMessage().partition("; called")[0]
        for entry in caplog.records
        if entry.levelname == "WARNING"
    ]


def test_each_call_is_named_where_nothing_can_be_written(
    make: Make, blocked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = make(2)
    debugger.start()
    ops.relu(overflow())
    ops.add(array(1.0), array(1.0))
    ops.add(array(math.nan), array(1.0))
    debugger.stop()
    debugger.step()
    assert [entry.getMessage() for entry in caplog.records if entry.levelname == "ERROR"] == [
        f"could not begin the recording in {folder(blocked)}: a file is in the way; training goes on."
    ]
    assert named(caplog) == [
        "overflow 1: Toy.mul.0.forward gave output.0: inf, and its inputs were finite",
        "Toy.relu.0.forward passed on input.0: inf",
        "Toy.add.1.forward passed on input.0: nan",
        "step 0: 3 of 4 records overflowed (producer: 1, passed on: 2); nothing of it could be written.",
    ]
    caplog.clear()
    debugger.start()
    with pytest.raises(OverflowLimitReached) as raised:
        overflow()
    assert str(raised.value) == "[overflow 2 times]: no dump file could be saved."
    overflow()
    debugger.stop()
    debugger.step()
    assert named(caplog)[0] == "overflow 2: Toy.mul.0.forward gave output.0: inf, and its inputs were finite"
    assert len(named(caplog)) == 2
    assert blocked.read_text() == "in the way"


def test_gradients_are_named_where_nothing_can_be_written(
    make: Make, blocked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = make(1)
    debugger.start()
    toy.backward(backward_overflow())
    with pytest.raises(OverflowLimitReached):
        debugger.stop()
    assert named(caplog) == ["overflow 1: Toy.mul.0.backward gave output.0: inf, and its inputs were finite"]


def test_the_log_does_not_grow_for_ever(make: Make, blocked: Path, caplog: pytest.LogCaptureFixture) -> None:
    debugger = make()
    debugger.start()
    for _ in range(150):
        overflow()
    debugger.stop()
    debugger.step()
    assert [text.partition(":")[0] for text in named(caplog)] == [
        *(f"overflow {number}" for number in range(1, 101)),
        "step 0",
    ]
    assert "150 of 150 records overflowed (producer: 150)" in named(caplog)[-1]
