"""save(): variables and their gradients at level debug, on the toy framework."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toy
from msprobe.capture.debugger import Debugger
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, Statistics, Tensor
from msprobe.store.tensor_file import read as read_tensor
from test_recorder import array, brief
from toy import ops
from toy_adapter import ToyAdapter


class Session:
    """A debugger at level debug, and what it wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.adapter = ToyAdapter()
        self.debugger = self.made("debug")

    def made(self, level: str, task: str = "statistics", **keys: Any) -> Debugger:
        config = Config(
            dump_path=str(self.folder),
            level=level,
            task=task,
            section=Tensor() if task == "tensor" else Statistics(),
            **keys,
        )
        return Debugger(self.adapter, config, Stacks())

    def whole(self, step: int = 0) -> dict[str, Any]:
        whole: dict[str, Any] = json.loads((self.folder / f"step{step}/rank/debug.json").read_bytes())
        return whole

    def data(self, step: int = 0) -> dict[str, Any]:
        return {name: brief(tree) for name, tree in self.whole(step)["data"].items()}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(tmp_path / "run")
    yield session
    session.debugger.close()


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition("msprobe: ")[2] for line in capsys.readouterr().err.splitlines()]


def test_a_variable_and_its_gradient_have_one_shape(session: Session) -> None:
    x, y, plain = array(3.0, requires_grad=True), array(2.0, requires_grad=True), array(1.0)
    product = ops.mul(x, y)
    variable = {"a": [product, 3, "s", True, None], "x": x, "deep": ({"plain": plain}, 1.5)}
    session.debugger.save(variable, "var")
    toy.backward(ops.total(product))
    session.debugger.step()
    assert session.whole() | {"data": {}} == {
        "task": "statistics",
        "level": "debug",
        "framework": "toy",
        "dump_data_dir": None,
        "data": {},
    }
    assert session.data() == {
        "var.0.debug": {"a": [6.0, 3, "s", True, None], "x": 3.0, "deep": [{"plain": 1.0}, 1.5]},
        "var_grad.0.debug": {
            "a": [None, None, None, None, None],
            "x": 2.0,
            "deep": [{"plain": None}, None],
        },
    }
    assert sorted(path.name for path in (session.folder / "step0/rank").iterdir()) == ["debug.json"]


def test_counts_per_name_and_step(session: Session) -> None:
    for value in (1, 2):
        session.debugger.save(value, "n")
    session.debugger.save(3, "m", save_backward=False)
    session.debugger.step()
    session.debugger.save(4, "n", save_backward=False)
    session.debugger.step()
    assert session.data(0) == {
        "n.0.debug": 1,
        "n.1.debug": 2,
        "m.0.debug": 3,
        "n_grad.0.debug": None,
        "n_grad.1.debug": None,
    }
    assert session.data(1) == {"n.0.debug": 4}


def test_a_second_backward_is_the_one_that_stays(session: Session) -> None:
    x = array(1.0, requires_grad=True)
    session.debugger.save(x, "x")
    toy.backward(ops.total(x))
    toy.backward(ops.total(ops.mul(x, array(5.0))))
    session.debugger.step()
    assert session.data()["x_grad.0.debug"] == 5.0


def test_after_step_no_hook_is_left(session: Session) -> None:
    x = array(1.0, requires_grad=True)
    session.debugger.save([x, x], "x")
    assert len(x.on_gradient) == 2
    session.debugger.step()
    assert x.on_gradient == []


def test_a_variable_is_saved_as_it_is_now(session: Session) -> None:
    x = array(1.0, on_device=True)
    session.debugger.save(x, "x", save_backward=False)
    x.change(9.0)
    session.debugger.save(x, "x", save_backward=False)
    session.debugger.stop()
    assert session.data() == {"x.0.debug": 1.0, "x.1.debug": 9.0}
    assert session.adapter.transfers == [2]


def test_files(tmp_path: Path) -> None:
    session = Session(tmp_path / "other")
    debugger = session.made("debug", "tensor")
    x = array(3.0, requires_grad=True)
    debugger.save({"l": [x]}, "var")
    debugger.save(x, "a/b", save_backward=False)
    toy.backward(ops.total(x))
    debugger.close()
    folder = session.folder / "step0/rank/dump_tensor_data"
    files = {path.name: read_tensor(path).array.tolist() for path in folder.iterdir()}
    (strange,) = [name for name in files if name.startswith("a_b.0.debug.")]
    assert files == {
        "var.0.debug.l.0.npy": [3.0, 3.0],
        "var_grad.0.debug.l.0.npy": [1.0, 1.0],
        strange: [3.0, 3.0],
    }


SUPPORTED = "it takes a tensor, int, float, str, bool, None, or a list, tuple or dict of these. Not saved."
DEEP: list[Any] = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    ("variable", "name", "backward", "expected"),
    [
        ({1, 2}, "v", True, f"save('v') was given a value of type set; {SUPPORTED}"),
        ([1, [object()]], "v", True, f"save('v') was given a value of type object; {SUPPORTED}"),
        (
            {"a": {1: 2}},
            "v",
            True,
            f"save('v') was given a dict with the key 1, which is not a str; {SUPPORTED}",
        ),
        (DEEP, "v", True, f"save('v') was given something nested more than 400 deep; {SUPPORTED}"),
        (1, 7, True, "save() needs a name of type str, not 7. Not saved."),
        (1, "", True, "save() needs a name of type str, not ''. Not saved."),
        (1, "v", "yes", "save_backward of save('v') must be True or False, not 'yes'. Not saved."),
    ],
)
def test_what_cannot_be_saved_is_a_warning(
    session: Session,
    capsys: pytest.CaptureFixture[str],
    variable: Any,
    name: Any,
    backward: Any,
    expected: str,
) -> None:
    session.debugger.save(variable, name, backward)
    session.debugger.save(1, "good", save_backward=False)
    session.debugger.step()
    assert told(capsys) == [expected]
    assert session.data() == {"good.0.debug": 1}


def test_at_other_levels_save_says_that_it_does_nothing(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = session.made("L1")
    debugger.save(1, "v")
    debugger.save(2, "v")
    debugger.close()
    assert told(capsys) == ["save() has no effect at level L1; it records at level debug."]
    assert not session.folder.exists()


def test_start_and_stop_say_that_they_do_nothing(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.debugger.start()
    ops.relu(array(1.0))
    session.debugger.save(1, "v", save_backward=False)
    session.debugger.stop()
    session.debugger.step()
    assert told(capsys) == ["level debug records what save() is given; start() and stop() have no effect."]
    assert session.data() == {"v.0.debug": 1}


def test_steps_and_ranks_filter_saves_too(tmp_path: Path) -> None:
    session = Session(tmp_path / "other")
    debugger = session.made("debug", step=(1,))
    for number in range(3):
        debugger.save(number, "n", save_backward=False)
        debugger.step()
    debugger.close()
    assert session.data(1) == {"n.0.debug": 1}
    assert sorted(path.name for path in session.folder.glob("step*")) == ["step1"]
