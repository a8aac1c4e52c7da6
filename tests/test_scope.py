"""scope, list and data_mode: which calls and which of their fields are recorded, what is said about it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toy
from msprobe.capture.debugger import Debugger
from msprobe.capture.scope import Scope, Sides
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, Statistics, Tensor
from msprobe.name import CallName
from toy import Array, ops
from toy_adapter import ToyAdapter

FORWARD = [
    "Toy.mul.0.forward",
    "Toy.add.0.forward",
    "Module.net.one.Scale.forward.0",
    "Toy.relu.0.forward",
    "Toy.mul.1.forward",
    "Module.net.two.Scale.forward.0",
    "Module.net.Pair.forward.0",
    "Toy.total.0.forward",
]
BACKWARD = [
    "Toy.total.0.backward",
    "Toy.mul.1.backward",
    "Module.net.two.Scale.backward.0",
    "Toy.relu.0.backward",
    "Toy.add.0.backward",
    "Toy.mul.0.backward",
    "Module.net.one.Scale.backward.0",
    "Module.net.Pair.backward.0",
    "Module.net.two.Scale.parameters_grad",
    "Module.net.one.Scale.parameters_grad",
]
EVERYTHING = FORWARD + BACKWARD
ONE_FORWARD = FORWARD[:3]
PAIR_FORWARD = FORWARD[:7]
PAIR_BACKWARD = BACKWARD[1:]


@pytest.fixture(autouse=True)
def toy_is_left_as_it_was() -> Iterator[None]:
    before = dict(vars(ops))
    yield
    assert vars(ops) == before


def recorded(folder: Path, level: str, task: str = "statistics", **keys: Any) -> dict[str, Any]:
    """The records of one step of the toy model, recorded with these settings."""
    section = (Tensor if task == "tensor" else Statistics)(**keys)
    config = Config(dump_path=str(folder / "run"), level=level, task=task, section=section)
    debugger = Debugger(ToyAdapter(), config, Stacks())
    model = toy.Model()
    debugger.start(model)
    toy.backward(model(Array([1.0, 1.0], requires_grad=True)))
    debugger.stop()
    debugger.close()
    data: dict[str, Any] = json.loads((folder / "run/step0/rank/dump.json").read_bytes())["data"]
    return data


def apis(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("Toy.")]


def modules(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("Module.")]


# --- an interval: both ends included ---


@pytest.mark.parametrize(
    ("level", "scope", "expected"),
    [
        ("L1", (), apis(EVERYTHING)),
        ("L1", ("Toy.add.0.forward", "Toy.mul.1.forward"), apis(FORWARD)[1:4]),
        ("L1", ("Toy.add.0.forward", "Toy.add.0.forward"), ["Toy.add.0.forward"]),
        ("L1", ("Toy.mul.1.forward", "Toy.mul.1.backward"), apis(FORWARD)[3:] + apis(BACKWARD)[:2]),
        ("L1", ("Toy.relu.0.backward", "Toy.add.0.backward"), apis(BACKWARD)[2:4]),
        ("L1", ("Toy.mul.1.forward", "Toy.never.0.forward"), apis(FORWARD)[3:] + apis(BACKWARD)),
        ("L1", ("Toy.never.0.forward", "Toy.mul.1.forward"), []),
        ("L0", ("Module.net.one.Scale.forward.0", "Module.net.one.Scale.forward.0"), modules(ONE_FORWARD)),
        ("L0", ("Module.net.Pair.forward.0", "Module.net.one.Scale.forward.0"), modules(PAIR_FORWARD)[::2]),
        ("L0", ("Module.net.Pair.backward.0", "Module.net.Pair.backward.0"), modules(BACKWARD)),
        ("mix", ("Module.net.one.Scale.forward.0", "Module.net.one.Scale.forward.0"), ONE_FORWARD),
        ("mix", ("Module.net.one.Scale.forward.0", "Toy.relu.0.forward"), FORWARD[:4]),
        ("mix", ("Toy.relu.0.forward", "Module.net.two.Scale.forward.0"), FORWARD[3:6]),
        ("mix", ("Module.net.two.Scale.forward.0", "Module.net.two.Scale.backward.0"),
         FORWARD[4:6] + FORWARD[7:] + BACKWARD[:3] + [BACKWARD[8]]),
        ("mix", ("Module.net.Pair.backward.0", "Toy.relu.0.backward"),
         [*BACKWARD[1:4], "Module.net.Pair.backward.0", BACKWARD[8]]),
    ],
)  # fmt: skip
def test_interval(tmp_path: Path, level: str, scope: tuple[str, ...], expected: list[str]) -> None:
    records = recorded(tmp_path, level, scope=scope)
    assert sorted(records) == sorted(expected)


@pytest.mark.parametrize(
    ("level", "last"),
    [("L1", "Toy.relu.0.forward"), ("mix", "Module.net.one.Scale.forward.0"), ("mix", "Toy.relu.0.backward")],
)
def test_the_last_call_of_an_interval_has_its_output(tmp_path: Path, level: str, last: str) -> None:
    records = recorded(tmp_path, level, scope=("Toy.mul.0.forward", last))
    assert [leaf["type"] for leaf in records[last]["output"]] == ["toy.Array"]


def test_checkpointed_calls_inside_an_interval_are_marked(tmp_path: Path) -> None:
    config = Config(
        dump_path=str(tmp_path), section=Statistics(scope=("Toy.relu.0.forward", "Toy.mul.0.forward"))
    )
    debugger = Debugger(ToyAdapter(), config, Stacks())
    x = Array([2.0, 2.0], requires_grad=True)
    debugger.start()
    ops.add(x, x)
    y = ops.checkpoint(lambda z: ops.add(ops.mul(ops.relu(z), z), z), x)
    toy.backward(ops.total(y))
    debugger.close()
    data = json.loads((tmp_path / "step0/rank/dump.json").read_bytes())["data"]
    assert {name: fields["is_recompute"] for name, fields in data.items()} == {
        "Toy.relu.0.forward": True,
        "Toy.mul.0.forward": True,
    }


# --- a list: parts of names ---


@pytest.mark.parametrize(
    ("level", "names", "expected"),
    [
        ("L1", (), apis(EVERYTHING)),
        ("L1", ("mul",), [name for name in EVERYTHING if ".mul." in name]),
        ("L1", ("mul.1", "total"), [name for name in EVERYTHING if ".mul.1." in name or ".total." in name]),
        ("L1", ("Toy.mul.1.forward", "Toy.relu.0.backward"), ["Toy.mul.1.forward", "Toy.relu.0.backward"]),
        ("L1", ("backward",), apis(BACKWARD)),
        # At L0 a name brings nothing but itself.
        ("L0", ("Pair",), ["Module.net.Pair.forward.0", "Module.net.Pair.backward.0"]),
        ("L0", ("net.one",), [name for name in EVERYTHING if "net.one" in name]),
        ("L0", ("Module.net.one.Scale.forward.0",), ["Module.net.one.Scale.forward.0"]),
        # At mix a module brings what runs inside it, in the direction that is named.
        ("mix", ("relu",), ["Toy.relu.0.forward", "Toy.relu.0.backward"]),
        ("mix", ("Module.net.Pair",), PAIR_FORWARD + PAIR_BACKWARD),
        ("mix", ("Module.net.Pair.forward.0",), PAIR_FORWARD),
        ("mix", ("Module.net.Pair.backward.0",), PAIR_BACKWARD),
        ("mix", ("net.one", "total"),
         [*ONE_FORWARD, FORWARD[7], BACKWARD[0], *BACKWARD[4:7], "Module.net.one.Scale.parameters_grad"]),
    ],
)  # fmt: skip
def test_list(tmp_path: Path, level: str, names: tuple[str, ...], expected: list[str]) -> None:
    assert sorted(recorded(tmp_path, level, list=names)) == sorted(expected)


def test_checkpointed_calls_inside_a_listed_module_are_listed_when_they_run_again(tmp_path: Path) -> None:
    class Part(toy.Module):
        def forward(self, x: Array) -> Array:
            return ops.checkpoint(lambda z: ops.mul(ops.relu(z), z), x)

    model = toy.Module()
    model.part = Part()  # type: ignore[attr-defined]
    config = Config(dump_path=str(tmp_path), level="mix", section=Statistics(list=("Part",)))
    debugger = Debugger(ToyAdapter(), config, Stacks())
    x = Array([2.0, 2.0], requires_grad=True)
    debugger.start(model)
    toy.backward(ops.total(ops.relu(model.part(x))))  # type: ignore[attr-defined]
    debugger.close()
    data = json.loads((tmp_path / "step0/rank/dump.json").read_bytes())["data"]
    assert sorted(data) == [
        "Module.part.Part.backward.0",
        "Module.part.Part.forward.0",
        "Toy.mul.0.backward",
        "Toy.mul.0.forward",
        "Toy.relu.0.backward",
        "Toy.relu.0.forward",
    ]


@pytest.mark.parametrize(
    ("scope", "names", "expected"),
    [
        (("Toy.mul.0.forward", "Toy.mul.1.forward"), ("mul",), ["Toy.mul.0.forward", "Toy.mul.1.forward"]),
        (
            ("Toy.relu.0.forward", "Toy.relu.0.backward"),
            ("mul",),
            ["Toy.mul.1.forward", "Toy.mul.1.backward"],
        ),
    ],
)
def test_scope_and_list_together(
    tmp_path: Path, scope: tuple[str, str], names: tuple[str, ...], expected: list[str]
) -> None:
    assert list(recorded(tmp_path, "L1", scope=scope, list=names)) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"scope": ("Toy.add.0.forward", "Toy.relu.0.forward")}, ["Toy.add.0.forward", "Toy.relu.0.forward"]),
        ({"list": ("Toy.add.0.backward",)}, ["Toy.add.0.backward"]),
        ({"list": ("add",)}, ["Toy.add.0.forward", "Toy.add.0.backward"]),
    ],
)
def test_task_tensor_filters_alike_and_saves_no_other_file(
    tmp_path: Path, keys: dict[str, Any], expected: list[str]
) -> None:
    records = recorded(tmp_path, "L1", "tensor", **keys)
    assert list(records) == expected
    files = sorted(path.name for path in (tmp_path / "run/step0/rank/dump_tensor_data").iterdir())
    named = sorted(
        leaf["data_name"]
        for fields in records.values()
        for key in ("input_args", "input", "output")
        for leaf in fields.get(key, ())
    )
    assert files == named


# --- data_mode: which fields ---


def fields_of(records: dict[str, Any]) -> dict[str, set[str]]:
    """The fields that records of each direction have in common; all of a direction have the same."""
    found: dict[str, set[str]] = {}
    for text, fields in records.items():
        name = CallName.parse(text)
        kind = "module" if name.is_module and name.direction == "forward" else name.direction
        shown = {"parameters"} if name.direction == "parameters_grad" else set(fields) - {"is_recompute"}
        assert found.setdefault(kind, shown) == shown
    return found


INPUT, OUTPUT = {"input_args", "input_kwargs"}, {"output"}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("data_mode", "forward", "backward"),
    [
        (("all",), INPUT | OUTPUT, {"input", "output"}),
        (("forward",), INPUT | OUTPUT, None),
        (("backward",), None, {"input", "output"}),
        (("forward", "backward"), INPUT | OUTPUT, {"input", "output"}),
        (("input",), INPUT, {"input"}),
        (("output",), OUTPUT, {"output"}),
        (("input", "output"), INPUT | OUTPUT, {"input", "output"}),
        (("forward", "input"), INPUT, None),
        (("forward", "output"), OUTPUT, None),
        (("backward", "input"), None, {"input"}),
        (("backward", "output"), None, {"output"}),
        (("forward", "backward", "input"), INPUT, {"input"}),
        (("forward", "input", "output"), INPUT | OUTPUT, None),
        (("backward", "input", "output"), None, {"input", "output"}),
        (("forward", "backward", "input", "output"), INPUT | OUTPUT, {"input", "output"}),
    ],
)
def test_data_mode(
    tmp_path: Path, task: str, data_mode: tuple[str, ...], forward: set[str] | None, backward: set[str] | None
) -> None:
    expected = {}
    if forward is not None:
        expected |= {"forward": forward, "module": forward | {"parameters"}}
    if backward is not None:
        expected |= {"backward": backward, "parameters_grad": {"parameters"}}
    assert fields_of(recorded(tmp_path, "mix", task, data_mode=data_mode)) == expected


def test_sides_of_no_word_are_all() -> None:
    sides = Sides(())
    assert (sides.forward, sides.backward, sides.input, sides.output) == (True, True, True, True)


# --- what is said ---


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, []),
        ({"scope": ("Toy.mul.0.forward", "Toy.relu.0.forward"), "list": ("relu",)}, []),
        (
            {"scope": ("Toy.mul.0.forwrd", "Toy.relu.9.forward")},
            [
                "scope names Toy.mul.0.forwrd, but step 0 made no such call; "
                "the nearest that was made is Toy.mul.0.forward.",
                "scope names Toy.relu.9.forward, but step 0 made no such call; "
                "the nearest that was made is Toy.relu.0.forward.",
                "step 0: nothing was recorded: 10 calls are outside the scope.",
            ],
        ),
        (
            {"list": ("mul", "rlu")},
            ["list names rlu, but step 0 made no such call; the nearest that was made is relu."],
        ),
        (
            {"data_mode": ("backward",), "list": ("Toy.mul.0.forward",)},
            ["step 0: nothing was recorded: 1 call is of a direction that data_mode leaves out; "
             "4 calls are not in the list."],
        ),
    ],
)  # fmt: skip
def test_names_that_were_never_met_are_told_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, Any], expected: list[str]
) -> None:
    recorded(tmp_path, "L1", **keys)
    assert [line.partition("msprobe: ")[2] for line in capsys.readouterr().err.splitlines()] == expected


def test_every_no_has_a_reason(tmp_path: Path) -> None:
    scope = Scope(("Toy.a.0.forward", "Toy.b.0.forward"), ("a.", "b."), ("forward",))
    names = [
        CallName("Toy.a", "forward", 0),
        CallName("Toy.c", "forward", 0),
        CallName("Toy.b", "forward", 0),
        CallName("Toy.b", "forward", 1),
        CallName("Toy.b", "backward", 0),
    ]
    answers = []
    for name in names:
        answers.append(scope.enter(name))
        scope.leave(name)
    assert answers == [True, False, True, False, False]
    assert scope.left_out == {"not in the list": 1, "outside the scope": 2}


def test_after_an_interval_no_backward_is_awaited() -> None:
    scope = Scope(("Toy.a.0.forward", "Toy.a.0.forward"))
    call, other = CallName("Toy.a", "forward", 0), CallName("Toy.b", "forward", 0)
    awaited = []
    for name in (other, call, other):
        scope.enter(name)
        awaited.append(scope.expects_backward(name))
        scope.leave(name)
    assert awaited == [True, True, False]


def test_one_thread_does_not_bring_the_calls_of_another(tmp_path: Path) -> None:
    import threading

    scope = Scope(patterns=("Listed",), inner=True)
    listed, call = CallName("Module.x.Listed", "forward", 0), CallName("Toy.relu", "forward", 0)
    assert scope.enter(listed)
    elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: elsewhere.append(scope.enter(call)))
    thread.start()
    thread.join()
    assert (elsewhere, scope.enter(call)) == ([False], True)
    scope.leave(listed)
    assert not scope.enter(CallName("Toy.relu", "forward", 1))


def test_an_interval_that_is_over_does_not_begin_again() -> None:
    """Checkpointed code runs again after it, in the same thread: only what was inside is inside again."""
    scope = Scope(interval=("Toy.a.0.forward", "Toy.b.0.forward"))
    a, between, b, later = (CallName(f"Toy.{x}", "forward", 0) for x in ("a", "between", "b", "later"))

    def run(*calls: CallName) -> list[bool]:
        found = []
        for call in calls:
            found.append(scope.enter(call))
            scope.leave(call)
        return found

    assert run(a, between, b, later) == [True, True, True, False]
    assert run(a, between, later) == [True, True, False]
    assert not scope.enter(CallName("Toy.later", "backward", 0))
