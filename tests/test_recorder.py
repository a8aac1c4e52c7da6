"""From start() to disk, on the toy framework: recorder, gradients, memo, stacks, store, debugger."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy
import toy_adapter
from described_keys import described_keys
from msprobe.adapter import Api, Want
from msprobe.capture.debugger import Debugger
from msprobe.capture.recorder import MAX_PENDING, Plan, Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.single import Single
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, Statistics, Tensor
from msprobe.errors import UsageError
from msprobe.record import Filled, Record, leaves
from msprobe.store import read, tensor_path
from msprobe.store.tensor_file import read as read_tensor
from toy import Array, ops
from toy_adapter import ToyAdapter

Make = Callable[..., Debugger]


def brief(node: Any) -> Any:
    """A part of dump.json with one number for each array (all of its elements are equal), or [max, min]."""
    if isinstance(node, list):
        return [brief(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "shape" in node:
        return node["Max"] if node["Max"] == node["Min"] else [node["Max"], node["Min"]]
    if "type" in node:
        return node["value"]
    return {key: brief(item) for key, item in node.items() if key != "is_recompute"}


@pytest.fixture
def adapter() -> ToyAdapter:
    return ToyAdapter()


@pytest.fixture
def make(adapter: ToyAdapter, tmp_path: Path) -> Iterator[Make]:
    """Makes a debugger on the toy; at the end the toy is as it was."""
    made: list[Debugger] = []
    before = dict(vars(ops))

    def make(level: str = "L1", task: str = "statistics", **keys: Any) -> Debugger:
        common = {key: keys.pop(key) for key in ("rank", "step") if key in keys}
        section = (Tensor if task == "tensor" else Statistics)(**keys)
        config = Config(dump_path=str(tmp_path / "run"), level=level, task=task, section=section, **common)
        made.append(Debugger(adapter, config, Stacks((toy.__file__, toy_adapter.__file__))))
        return made[-1]

    yield make
    for debugger in made:
        debugger.close()
    assert vars(ops) == before


@pytest.fixture
def whole(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def whole(file: str = "dump.json", step: int = 0, rank: str = "rank") -> dict[str, Any]:
        path = tmp_path / "run" / f"step{step}" / rank / file
        content: dict[str, Any] = json.loads(path.read_bytes())
        return content

    return whole


@pytest.fixture
def data(whole: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def data(step: int = 0, rank: str = "rank") -> dict[str, Any]:
        return {name: brief(fields) for name, fields in whole(step=step, rank=rank)["data"].items()}

    return data


def array(value: float, **keys: Any) -> Array:
    return Array([value, value], **keys)


Data = Callable[..., dict[str, Any]]


class Taking:
    """A sink that keeps what it is given."""

    is_open, lost, tensors = True, 0, None

    def __init__(self) -> None:
        self.taken: list[Record] = []

    @property
    def records(self) -> int:
        return len(self.taken)

    def append(self, record: Record) -> None:
        self.taken.append(record)

    def tell(self, doing: str, error: BaseException) -> None:
        raise AssertionError(doing) from error


def test_contents_come_with_the_leaves_where_a_plan_fills_them(adapter: ToyAdapter) -> None:
    """Also of a tensor that was seen before; the others come without."""
    sink = Taking()
    plan = Plan(Want(), lambda name: True, with_parents=False, fills=lambda leaf: leaf.shape == (2,))
    recorder = Recorder(adapter, sink, Scope(), Stacks(), plan)
    recorder.listening = True
    x, y = Array([1.0, 2.0]), Array([3.0])
    for value in (x, x, y):
        recorder.around(Api("Toy", "same"), lambda x: x, (value,), {})
    recorder.close()
    found = [leaf for record in sink.taken for leaf in leaves(record.fields["output"])]
    contents = [leaf.content if isinstance(leaf, Filled) else None for leaf in found]
    assert contents == [adapter.snapshot(x), adapter.snapshot(x), None]


def test_a_call_becomes_a_record(make: Make, whole: Data) -> None:
    debugger = make()
    x = Array([[1.0, -3.0]], requires_grad=True)
    debugger.start()
    with toy.tape.switched(False):
        ops.scaled_sum(x, 2.0, axis=(0, None), kind=toy.Kind("k"))
    debugger.step()
    seen = {
        "type": "toy.Array",
        "dtype": "float32",
        "shape": [1, 2],
        "Max": 1.0,
        "Min": -3.0,
        "Mean": -1.0,
        "Norm": 10**0.5,
        "requires_grad": True,
        **described_keys(np.array([[1.0, -3.0]], np.float32)),
    }
    assert whole() == {
        "task": "statistics",
        "level": "L1",
        "framework": "toy",
        "dump_data_dir": None,
        "data": {
            "Toy.scaled_sum.0.forward": {
                "input_args": [seen, {"type": "float", "value": 2.0}],
                "input_kwargs": {
                    "axis": [{"type": "int", "value": 0}, None],
                    "kind": {"type": "toy.Kind", "value": "k"},
                },
                "is_recompute": False,
                "output": [
                    {
                        **seen,
                        "Max": 4.0,
                        "Min": -12.0,
                        "Mean": -4.0,
                        "Norm": 4 * 10**0.5,
                        "requires_grad": False,
                        **described_keys(np.array([[4.0, -12.0]], np.float32)),
                    }
                ],
            }
        },
    }
    assert whole("construct.json") == {}


def test_a_container_only_the_framework_knows(make: Make, whole: Data) -> None:
    debugger = make(task="tensor")
    debugger.start()
    ops.scaled_sum(array(1.0), parcel=[toy.Parcel(array(2.0), to=3)])
    debugger.step()
    (parcel,) = whole()["data"]["Toy.scaled_sum.0.forward"]["input_kwargs"]["parcel"]
    assert (brief(parcel["content"]), parcel["to"]) == (2.0, 3)
    assert parcel["content"]["data_name"] == "Toy.scaled_sum.0.forward.kwargs.parcel.0.npy"


def test_of_nested_calls_the_outermost_counts(make: Make, data: Data) -> None:
    debugger = make()
    debugger.start()
    ops.scaled_sum(array(1.0))
    ops.add(array(1.0), array(2.0))
    debugger.step()
    assert list(data()) == ["Toy.scaled_sum.0.forward", "Toy.add.0.forward"]


def test_a_calls_own_gradients(make: Make, data: Data) -> None:
    """x is used three times; each call shows its own share, not the total."""
    debugger = make()
    x = array(3.0, requires_grad=True)
    debugger.start()
    square = ops.mul(x, x)
    toy.backward(ops.total(ops.add(square, x)))
    debugger.stop()
    debugger.step()
    assert x.gradient is not None and x.gradient.tolist() == [7.0, 7.0]
    assert data() == {
        "Toy.mul.0.forward": {"input_args": [3.0, 3.0], "input_kwargs": {}, "output": [9.0]},
        "Toy.add.0.forward": {"input_args": [9.0, 3.0], "input_kwargs": {}, "output": [12.0]},
        "Toy.total.0.forward": {"input_args": [12.0], "input_kwargs": {}, "output": [24.0]},
        "Toy.total.0.backward": {"input": [1.0], "output": [1.0]},
        "Toy.add.0.backward": {"input": [1.0], "output": [1.0, 1.0]},
        "Toy.mul.0.backward": {"input": [1.0], "output": [3.0]},
    }


def test_several_outputs(make: Make, data: Data) -> None:
    debugger = make()
    x = Array([1.0, 2.0, 2.0], requires_grad=True)
    debugger.start()
    _, two = ops.split(x, at=1)
    toy.backward(ops.total(ops.mul(two, two)))
    debugger.step()
    assert data()["Toy.split.0.forward"] == {
        "input_args": [[2.0, 1.0]],
        "input_kwargs": {"at": 1},
        "output": [1.0, 2.0],
    }
    assert data()["Toy.split.0.backward"] == {"input": [0.0, 4.0], "output": [[4.0, 0.0]]}


def test_an_in_place_call_shows_its_input_as_it_was(make: Make, data: Data) -> None:
    debugger = make()
    x = array(-2.0)
    debugger.start()
    ops.relu_(x)
    ops.add(x, x)
    debugger.step()
    assert data() == {
        "Toy.relu_.0.forward": {"input_args": [-2.0], "input_kwargs": {}, "output": [0.0]},
        "Toy.add.0.forward": {"input_args": [0.0, 0.0], "input_kwargs": {}, "output": [0.0]},
    }


def test_modules_parameters_and_parents(make: Make, data: Data, whole: Data) -> None:
    debugger = make("mix")
    model = toy.Model()
    model.net.two.never = array(5.0, requires_grad=True)
    debugger.start(model)
    toy.backward(model(Array([1.0, 1.0], requires_grad=True)))
    debugger.stop()
    debugger.step()
    seen = data()
    assert {name: fields for name, fields in seen.items() if name.startswith("Module.net.one")} == {
        "Module.net.one.Scale.forward.0": {
            "input_args": [1.0],
            "input_kwargs": {},
            "output": [[3.5, 2.5]],
            "parameters": {"weight": [3.0, 2.0], "bias": 0.5},
        },
        "Module.net.one.Scale.backward.0": {"input": [[1.0, -1.0]], "output": [[2.0, -3.0]]},
        "Module.net.one.Scale.parameters_grad": {"weight": [[1.0, -1.0]], "bias": [[1.0, -1.0]]},
    }
    assert seen["Module.net.two.Scale.parameters_grad"] == {"weight": [[3.5, 2.5]], "never": [None]}
    assert whole("construct.json") == {
        "Toy.mul.0.forward": "Module.net.one.Scale.forward.0",
        "Toy.add.0.forward": "Module.net.one.Scale.forward.0",
        "Module.net.one.Scale.forward.0": "Module.net.Pair.forward.0",
        "Toy.relu.0.forward": "Module.net.Pair.forward.0",
        "Toy.mul.1.forward": "Module.net.two.Scale.forward.0",
        "Module.net.two.Scale.forward.0": "Module.net.Pair.forward.0",
        "Module.net.Pair.forward.0": None,
        "Toy.total.0.forward": None,
        "Toy.total.0.backward": None,
        "Toy.mul.1.backward": "Module.net.two.Scale.backward.0",
        "Module.net.two.Scale.backward.0": "Module.net.Pair.backward.0",
        "Toy.relu.0.backward": "Module.net.Pair.backward.0",
        "Toy.add.0.backward": "Module.net.one.Scale.backward.0",
        "Toy.mul.0.backward": "Module.net.one.Scale.backward.0",
        "Module.net.one.Scale.backward.0": "Module.net.Pair.backward.0",
        "Module.net.Pair.backward.0": None,
    }


def test_level_l0_has_modules_only(make: Make, data: Data) -> None:
    debugger = make("L0")
    model = toy.Model()
    debugger.start([model, model.net])
    with toy.tape.switched(False):
        model(Array([1.0, 1.0]))
    debugger.step()
    names = ["0.net.one.Scale", "0.net.two.Scale", "0.net.Pair", "1.one.Scale", "1.two.Scale"]
    assert sorted(data()) == sorted(f"Module.{name}.forward.0" for name in names)


def test_an_error_passes_through_and_later_calls_are_recorded(make: Make, data: Data) -> None:
    debugger = make()
    debugger.start()
    with pytest.raises(ValueError, match="cannot take shape"):
        ops.broken(array(1.0))
    with pytest.raises(toy.StopEarly):
        ops.steering(array(1.0))
    ops.add(array(1.0), array(1.0))
    debugger.step()
    assert data() == {
        "Toy.broken.0.forward": {
            "input_args": [1.0],
            "input_kwargs": {},
            "exception": "ValueError: cannot take shape (2,)",
        },
        "Toy.add.0.forward": {"input_args": [1.0, 1.0], "input_kwargs": {}, "output": [2.0]},
    }


def test_an_error_in_a_module_leaves_no_module_open(make: Make, whole: Data) -> None:
    class Broken(toy.Module):
        def forward(self, x: Array) -> Array:
            self.inner(x)
            return ops.broken(x)

    class Root(toy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.part_inner = Broken(), None
            self.part.inner = toy.Scale(1.0)

    model = Root()
    debugger = make("mix")
    debugger.start(model)
    with pytest.raises(ValueError, match="cannot take shape"):
        model.part(array(1.0))
    ops.relu(array(1.0))
    debugger.step()
    assert whole("construct.json") == {
        "Toy.mul.0.forward": "Module.part.inner.Scale.forward.0",
        "Module.part.inner.Scale.forward.0": "Module.part.Broken.forward.0",
        "Toy.broken.0.forward": "Module.part.Broken.forward.0",
        "Module.part.Broken.forward.0": None,
        "Toy.relu.0.forward": None,
    }


def test_trouble_of_ours_never_reaches_training(
    make: Make, adapter: ToyAdapter, data: Data, tmp_path: Path
) -> None:
    adapter.refuses = lambda array: bool(array.values.max() == 13.0)
    debugger = make()
    debugger.start()
    assert ops.add(array(13.0), array(1.0)).values.tolist() == [14.0, 14.0]
    assert ops.add(array(12.0), array(1.0)).values.tolist() == [13.0, 13.0]
    ops.relu(array(1.0))
    debugger.step()
    assert data() == {"Toy.relu.0.forward": {"input_args": [1.0], "input_kwargs": {}, "output": [1.0]}}
    log = (tmp_path / "run/step0/rank/dump_error_info.log").read_text()
    assert "could not record the inputs of Toy.add.0.forward" in log
    assert "RuntimeError: this array cannot be described" in log


def test_our_own_work_is_not_on_the_tape(make: Make, adapter: ToyAdapter) -> None:
    on_tape: list[bool] = []
    adapter.refuses = lambda array: bool(on_tape.append(toy.tape.is_on))
    debugger = make("mix")
    model = toy.Model()
    debugger.start(model)
    toy.backward(model(Array([1.0, 1.0], requires_grad=True)))
    debugger.step()
    assert on_tape and not any(on_tape)


# --- each version of a tensor is looked at once ---


def test_a_tensor_is_described_once_per_version(make: Make, adapter: ToyAdapter, data: Data) -> None:
    debugger = make()
    x = array(1.0)
    debugger.start()
    ops.relu(ops.relu(ops.relu(x)))  # x and three results
    assert adapter.described == 4
    x.change(5.0)
    ops.relu(x)
    assert adapter.described == 6
    debugger.step()
    assert [fields["input_args"] for fields in data().values()] == [[1.0], [1.0], [1.0], [5.0]]


def test_what_is_described_is_not_kept_alive(make: Make) -> None:
    import gc
    import weakref

    debugger = make()
    debugger.start()
    x = array(1.0)
    watched = weakref.ref(x)
    y = ops.add(x, x)
    del x
    gc.collect()
    assert watched() is None
    assert y.values.tolist() == [2.0, 2.0]


# --- a device: statistics come later, many at once ---


def test_a_device_is_asked_once_for_many_calls(make: Make, adapter: ToyAdapter, data: Data) -> None:
    debugger = make()
    debugger.start()
    calls = 2 * MAX_PENDING + 10
    for number in range(calls):
        ops.add(array(float(number), on_device=True), array(1.0))
    assert adapter.transfers == [2 * MAX_PENDING, 2 * MAX_PENDING]  # an input and an output of each call
    debugger.stop()
    assert adapter.transfers == [2 * MAX_PENDING, 2 * MAX_PENDING, 20]
    assert list(data().items()) == [
        (
            f"Toy.add.{number}.forward",
            {"input_args": [float(number), 1.0], "input_kwargs": {}, "output": [number + 1.0]},
        )
        for number in range(calls)
    ]


def test_calls_that_do_not_wait_keep_their_place(make: Make, adapter: ToyAdapter, data: Data) -> None:
    debugger = make()
    debugger.start()
    ops.relu(array(1.0, on_device=True))
    ops.add(array(1.0), array(1.0))
    ops.relu(array(2.0, on_device=True))
    debugger.step()
    assert list(data()) == ["Toy.relu.0.forward", "Toy.add.0.forward", "Toy.relu.1.forward"]
    assert adapter.transfers == [4]


def test_a_device_shows_what_was_there_then(make: Make, data: Data) -> None:
    debugger = make()
    x = array(-1.0, on_device=True)
    debugger.start()
    ops.relu_(x)
    x.change(9.0)
    debugger.step()
    assert data()["Toy.relu_.0.forward"] == {"input_args": [-1.0], "input_kwargs": {}, "output": [0.0]}


# --- communication ---


def test_communication_shows_its_arguments_after_completion(make: Make, data: Data) -> None:
    debugger = make()
    debugger.start()
    ops.double_across(array(1.0))
    work = ops.double_across(array(2.0), wait=False)
    ops.relu(array(7.0))
    work.wait()
    debugger.step()
    assert data() == {
        "Toy.double_across.0.forward": {"input_args": [1.0], "input_kwargs": {}, "output": [2.0]},
        "Toy.relu.0.forward": {"input_args": [7.0], "input_kwargs": {}, "output": [7.0]},
        "Toy.double_across.1.forward": {
            "input_args": [2.0],
            "input_kwargs": {"wait": False},
            "output": [4.0, False],
        },
    }


# --- checkpointing and threads ---


def test_checkpointed_calls_keep_their_names(make: Make, whole: Data) -> None:
    debugger = make()
    x = array(2.0, requires_grad=True)
    debugger.start()
    ops.relu(x)
    y = ops.checkpoint(lambda z: ops.mul(ops.relu(z), z), x)
    toy.backward(ops.total(ops.relu(y)))
    debugger.step()
    records = whole()["data"]
    assert list(records) == [
        "Toy.relu.0.forward",
        "Toy.relu.1.forward",
        "Toy.mul.0.forward",
        "Toy.relu.2.forward",
        "Toy.total.0.forward",
        "Toy.total.0.backward",
        "Toy.relu.2.backward",
        "Toy.mul.0.backward",
        "Toy.relu.1.backward",
    ]
    assert [name for name, fields in records.items() if fields.get("is_recompute")] == [
        "Toy.relu.1.forward",
        "Toy.mul.0.forward",
    ]


def test_threads_count_together_and_have_parents_of_their_own(make: Make, whole: Data) -> None:
    debugger = make("mix")
    model = toy.Model()
    inside = threading.Event()
    seen = threading.Event()

    class Waiting(toy.Module):
        def forward(self, x: Array) -> Array:
            inside.set()
            assert seen.wait(10)
            return ops.relu(x)

    model.waiting = Waiting()
    debugger.start(model)
    thread = threading.Thread(target=lambda: model.waiting(array(1.0)))
    thread.start()
    assert inside.wait(10)
    ops.relu(array(2.0))
    seen.set()
    thread.join()
    debugger.step()
    assert whole("construct.json") == {
        "Toy.relu.0.forward": None,
        "Toy.relu.1.forward": "Module.waiting.Waiting.forward.0",
        "Module.waiting.Waiting.forward.0": None,
    }


# --- stacks ---


def test_equal_stacks_are_written_once(make: Make, whole: Data) -> None:
    debugger = make()
    debugger.start()
    for _ in range(2):
        ops.relu(array(1.0))
    ops.add(array(1.0), array(1.0))
    debugger.step()
    stacks = whole("stack.json")
    assert [names for names, _ in stacks.values()] == [
        ["Toy.relu.0.forward", "Toy.relu.1.forward"],
        ["Toy.add.0.forward"],
    ]
    first = stacks["0"][1][0].split("\n")
    assert first[0].startswith(f"File {__file__}, line ")
    assert first[0].endswith(", in test_equal_stacks_are_written_once, ")
    assert first[1] == " ops.relu(array(1.0))"
    source = f"{os.sep}msprobe{os.sep}capture{os.sep}"
    assert not any(source in frame for _, frames in stacks.values() for frame in frames)


# --- start, stop, step ---


def test_segments_of_a_step_and_a_backward_after_stop(make: Make, data: Data) -> None:
    debugger = make()
    x = array(1.0, requires_grad=True)
    debugger.start()
    y = ops.relu(x)
    debugger.stop()
    ops.add(x, x)
    debugger.start()
    z = ops.total(ops.relu(y))
    debugger.stop()
    assert list(data()) == ["Toy.relu.0.forward", "Toy.relu.1.forward", "Toy.total.0.forward"]
    toy.backward(z)
    debugger.step()
    assert list(data())[3:] == ["Toy.total.0.backward", "Toy.relu.1.backward", "Toy.relu.0.backward"]
    toy.backward(ops.total(ops.relu(x)))
    debugger.start()
    ops.relu(x)
    debugger.step()
    assert list(data(step=1)) == ["Toy.relu.0.forward"]


def test_a_backward_after_step_is_not_recorded(make: Make, data: Data) -> None:
    debugger = make()
    debugger.start()
    z = ops.total(array(1.0, requires_grad=True))
    debugger.step()
    toy.backward(z)
    debugger.close()
    assert list(data()) == ["Toy.total.0.forward"]


def test_without_stop_and_step_close_writes_all(make: Make, data: Data) -> None:
    debugger = make()
    for _ in range(2):
        debugger.start()
        ops.relu(array(1.0))
    debugger.close()
    assert list(data()) == ["Toy.relu.0.forward", "Toy.relu.1.forward"]


def test_only_wanted_steps_have_folders(make: Make, tmp_path: Path) -> None:
    debugger = make(step=(1, 3))
    debugger.set_init_step(0)
    for _ in range(5):
        debugger.start()
        ops.relu(array(1.0))
        debugger.stop()
        debugger.step()
    assert sorted(path.name for path in (tmp_path / "run").glob("step*")) == ["step1", "step3"]


def test_set_init_step(make: Make, tmp_path: Path) -> None:
    debugger = make()
    debugger.set_init_step(10)
    debugger.start()
    with pytest.raises(UsageError, match=r"set_init_step\(3\) came while step 10 is recorded"):
        debugger.set_init_step(3)
    debugger.step()
    debugger.start()
    debugger.step()
    assert sorted(path.name for path in (tmp_path / "run").glob("step*")) == ["step10", "step11"]
    for wrong in (-1, 1.0, True, "1"):
        with pytest.raises(UsageError, match="takes a whole number from 0 on"):
            debugger.set_init_step(wrong)  # type: ignore[arg-type]


def test_rank_folder(make: Make, adapter: ToyAdapter, data: Data) -> None:
    adapter.the_rank = 3
    debugger = make(rank=(2, 3))
    debugger.start()
    ops.relu(array(1.0))
    debugger.step()
    assert list(data(rank="rank3")) == ["Toy.relu.0.forward"]


@pytest.mark.parametrize(("rank", "called"), [(None, "rank 0 (not distributed)"), (1, "rank 1")])
def test_a_rank_that_is_not_wanted_writes_nothing_and_says_so(
    make: Make,
    adapter: ToyAdapter,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rank: int | None,
    called: str,
) -> None:
    adapter.the_rank = rank
    debugger = make(rank=(7,))
    for _ in range(2):
        debugger.start()
        ops.relu(array(1.0))
        debugger.stop()
        debugger.step()
    assert not (tmp_path / "run").exists()
    told = [line.partition("msprobe: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        f"the configuration records rank [7] and this process is {called}: nothing is recorded here."
    ]


def test_a_step_without_calls_says_so(make: Make, data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    debugger = make(list=("nothing",))
    debugger.start()
    ops.relu(array(1.0))
    debugger.step()
    debugger.start()
    debugger.step()
    assert (data(0), data(1)) == ({}, {})
    told = [line.partition("msprobe: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == [
        "list names nothing, but step 0 made no such call; the nearest that was made is Toy.relu.0.forward.",
        "step 0: nothing was recorded: 1 call is not in the list.",
        "step 1: nothing was recorded: no call was made between start() and stop() outside compiled code.",
    ]


def test_the_folder_is_where_the_program_began(
    make: Make, adapter: ToyAdapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    debugger = Debugger(adapter, Config(dump_path="here"), Stacks())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    debugger.start()
    ops.relu(array(1.0))
    debugger.close()
    assert (tmp_path / "here/step0/rank/dump.json").is_file()


@pytest.mark.parametrize(
    ("token_range", "expected"), [([0, 0], [0]), ((1, 2), [1, 2]), ([3, 9], [3]), ([4, 5], [])]
)
def test_token_range(make: Make, data: Data, token_range: Any, expected: list[int]) -> None:
    debugger = make("mix")
    model = toy.Model()
    debugger.start(model, token_range)
    for number in range(4):
        model(array(float(number)))
        ops.relu(array(100.0))
    debugger.step()
    inputs = [fields["input_args"][0] for name, fields in data().items() if "Pair.forward" in name]
    assert inputs == [float(number) for number in expected]
    assert not any(fields.get("input_args") == [100.0] for fields in data().values())


@pytest.mark.parametrize("wrong", [[1], [2, 1], [-1, 0], [0, True], "01", 3, [0.0, 1.0]])
def test_wrong_token_range(make: Make, wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"it must be \[first, last\] with 0 <= first <= last"):
        make().start(toy.Model(), wrong)


def test_token_range_needs_a_model(make: Make) -> None:
    with pytest.raises(UsageError, match="token_range counts the calls of a model, so start"):
        make().start(None, [0, 1])


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_levels_with_modules_need_a_model(make: Make, level: str) -> None:
    with pytest.raises(UsageError, match=rf"level {level} records modules, so start\(\) needs the model"):
        make(level).start()


def test_run_ut_is_no_task_of_training(adapter: ToyAdapter, tmp_path: Path) -> None:
    from msprobe.config import RunUt

    config = Config(dump_path=str(tmp_path), task="run_ut", section=RunUt())
    with pytest.raises(UsageError, match="task run_ut cannot be recorded by this release"):
        Debugger(adapter, config, Stacks())


def test_a_forked_child_records_nothing(make: Make, data: Data) -> None:
    debugger = make()
    before = vars(ops)["relu"]
    debugger.start()
    child = os.fork()
    if child == 0:
        as_before = ops.relu is before
        ops.relu(array(1.0))
        debugger.step()
        os._exit(0 if as_before else 1)
    assert os.waitpid(child, 0)[1] == 0
    ops.relu(array(2.0))
    debugger.step()
    assert data() == {"Toy.relu.0.forward": {"input_args": [2.0], "input_kwargs": {}, "output": [2.0]}}


# --- content ---


def test_task_tensor_saves_each_content_once(make: Make, tmp_path: Path) -> None:
    debugger = make(task="tensor")
    x = array(1.0)
    debugger.start()
    y = ops.add(x, array(1.0))
    x.change(8.0)
    ops.mul(x, y)
    debugger.step()
    (recording,) = read(tmp_path / "run")
    contents = {
        leaf.data_name: read_tensor(tensor_path(recording, leaf)).array.tolist()
        for record in recording.records.values()
        for leaf in [*record.fields["input_args"], *record.fields["output"]]
    }
    assert contents == {
        "Toy.add.0.forward.input.0.npy": [1.0, 1.0],
        "Toy.add.0.forward.input.1.npy": [1.0, 1.0],
        "Toy.add.0.forward.output.0.npy": [2.0, 2.0],
        "Toy.mul.0.forward.input.0.npy": [8.0, 8.0],
        "Toy.mul.0.forward.input.1.npy": [2.0, 2.0],
        "Toy.mul.0.forward.output.0.npy": [16.0, 16.0],
    }
    folder = Path(recording.folder) / "dump_tensor_data"
    files = {name: (folder / name).stat().st_ino for name in contents if name}
    assert files["Toy.add.0.forward.output.0.npy"] == files["Toy.mul.0.forward.input.1.npy"]
    assert len(set(files.values())) == 4


def test_tensor_list_saves_some(make: Make, whole: Data, tmp_path: Path) -> None:
    debugger = make(tensor_list=("relu",))
    debugger.start()
    ops.add(array(1.0), array(1.0))
    ops.relu(array(3.0))
    debugger.step()
    folder = tmp_path / "run/step0/rank/dump_tensor_data"
    assert sorted(path.name for path in folder.iterdir()) == [
        "Toy.relu.0.forward.input.0.npy",
        "Toy.relu.0.forward.output.0.npy",
    ]
    saved = {
        name: [leaf.get("data_name") for leaf in fields["output"]] for name, fields in whole()["data"].items()
    }
    assert saved == {
        "Toy.add.0.forward": [None],
        "Toy.relu.0.forward": ["Toy.relu.0.forward.output.0.npy"],
    }


@pytest.mark.parametrize(
    ("mode", "more", "method"),
    [("statistics", set(), "cs16"), ("md5", {"md5"}, "cs16"), ("sketch", set(), "cs64")],
)
def test_what_summary_modes_add(make: Make, whole: Data, mode: str, more: set[str], method: str) -> None:
    debugger = make(summary_mode=mode)
    debugger.start()
    ops.relu(array(1.0))
    debugger.step()
    leaf = whole()["data"]["Toy.relu.0.forward"]["output"][0]
    plain = {"type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad", "hash", "sketch"}
    assert set(leaf) == plain | more
    assert leaf["sketch"].startswith(f"{method}:")
    if mode == "md5":
        import zlib

        assert leaf["md5"] == f"{zlib.crc32(np.ones(2, np.float32).tobytes()):08x}"


def test_the_end_of_the_configured_steps_is_told_once(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = make(step=(0, 1))
    for _ in range(4):
        debugger.start()
        ops.relu(array(1.0))
        debugger.step()
    told = [line.partition("msprobe: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == [f"no step after step 1 is recorded; the recordings are in {tmp_path / 'run'}."]


def test_starting_twice_goes_on_as_begun(make: Make, data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    debugger = make()
    debugger.start()
    debugger.start()
    ops.relu(array(1.0))
    debugger.stop()
    ops.relu(array(1.0))
    debugger.step()
    assert list(data()) == ["Toy.relu.0.forward"]
    told = [line.partition("msprobe: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told == ["start() was called again before stop(); recording goes on as it was begun."]


def test_a_forked_child_may_make_a_debugger_of_its_own(tmp_path: Path) -> None:
    single: Single[str] = Single()
    assert single.make(Config(dump_path="a"), lambda: "parent's") == "parent's"
    child = os.fork()
    if child == 0:
        os._exit(0 if single.make(Config(dump_path="b"), lambda: "child's") == "child's" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert single.get() == "parent's"
