"""Level L0 in a static graph: cells as the graph runs them, told by taps that leave every bit as it is."""

from __future__ import annotations

import json
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from graph_case import (
    Attention,
    Flowing,
    Network,
    Residual,
    Transformer,
    bits,
    random,
    static,
    visible,
)
from mindspore import Tensor, nn, ops
from mindspore.train import Model
from ms_case import Probe, numbered, probe, training

from msprobe.cli.main import main
from msprobe.errors import ConfigError, UsageError
from msprobe.mindspore import MsprobeInitStep, MsprobeStep, PrecisionDebugger

__all__ = ["probe", "static"]

TWICE = [random(2, 4), random(2, 4) * 2]


def numbers(value: Any) -> list[Any]:
    """The statistics of all tensors of a record, in order."""
    if isinstance(value, dict) and "Max" in value:
        return [value[key] for key in ("Max", "Min", "Mean", "Norm")]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [number for item in items for number in numbers(item)]


def without_shapes(value: Any) -> Any:
    """A record without its numbers; what a backward takes has another name in a static graph."""
    if isinstance(value, dict):
        names = {"input": "input_args"}
        kept = {names.get(key, key): item for key, item in value.items() if key not in _NUMBERS}
        return {key: without_shapes(item) for key, item in kept.items() if key != "input_kwargs" or item}
    return [without_shapes(item) for item in value] if isinstance(value, list) else value


_NUMBERS = ("Max", "Min", "Mean", "Norm", "hash", "sketch", "from")


def fresh(folder: Path) -> Probe:
    folder.mkdir()
    made = Probe(folder)
    made.close()
    return made


def in_mode(mode: int, folder: Path, **keys: Any) -> Probe:
    """Two steps of the same training, recorded in one mode."""
    ms.set_context(mode=mode)
    made = fresh(folder)
    made.record(numbered(Network()), *TWICE, level="L0", **keys)
    made.close()
    return made


@pytest.mark.spec("M001", "MSs")
@pytest.mark.spec("M044", "MSs")
@pytest.mark.spec("C006", "MSs")
def test_it_is_recorded_as_in_a_dynamic_graph(static: Probe, tmp_path: Path) -> None:
    dynamic = in_mode(ms.PYNATIVE_MODE, tmp_path / "dynamic")
    graph = in_mode(ms.GRAPH_MODE, tmp_path / "graph")
    for step in (0, 1):
        assert {file.name for file in graph.rank(step).iterdir()} == {
            "dump.json",
            "stack.json",
            "construct.json",
        }
        ours, theirs = graph.data(step), dynamic.data(step)
        assert ours.keys() == theirs.keys()
        assert graph.construct(step) == dynamic.construct(step)
        for name in ours:
            assert without_shapes(ours[name]) == without_shapes(theirs[name]), name
            assert numbers(ours[name]) == pytest.approx(numbers(theirs[name]), rel=1e-4, abs=1e-6), name
        head = {key: value for key, value in graph.head(step).items() if key != "data"}
        assert head == {"task": "statistics", "level": "L0", "framework": "mindspore", "dump_data_dir": None}
        assert graph.troubles(step) == dynamic.troubles(step) == ""
    names = [name for name in graph.data() if ".forward." in name]
    assert json.loads((graph.rank() / "stack.json").read_text()) == {"0": [names, []]}


@pytest.mark.spec("C008", "MSs")
def test_tensors_are_complete_and_have_no_statistics(static: Probe, tmp_path: Path) -> None:
    dynamic = in_mode(ms.PYNATIVE_MODE, tmp_path / "dynamic", task="tensor")
    graph = in_mode(ms.GRAPH_MODE, tmp_path / "graph", task="tensor")
    assert graph.files() == dynamic.files() != set()
    for file in graph.files():
        name = file.removesuffix(".npy")
        assert np.allclose(graph.tensor(name), dynamic.tensor(name), rtol=1e-4, atol=1e-6), name
    assert set(numbers(graph.data())) == {None}
    assert set(numbers(dynamic.data())) != {None}


def train(kind: type[nn.Cell], debugger: Any, steps: int = 3) -> list[Any]:
    """Losses, and all that training changed."""
    ms.set_seed(7)
    net = numbered(kind())
    net.set_train()
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    step.set_train()
    results = []
    for number in range(steps):
        if debugger is not None:
            debugger.start(net)
        x = random(2, 16) * (number + 1) if isinstance(net, Residual) else random(2, 4) * (number + 1)
        target = Tensor(np.ones((2, 3) if isinstance(net, Residual) else (2, 4, 4), np.float32))
        results.append(step(x, target if isinstance(net, (Residual, Transformer)) else target[:, 0]))
        if debugger is not None:
            debugger.step()
    return bits([*results, *net.get_parameters(), *optimizer.get_parameters()])


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("kind", [Network, Transformer, Residual, Flowing])
def test_training_is_equal_to_the_last_bit(kind: type[nn.Cell], task: str, static: Probe) -> None:
    alone = train(kind, None)
    assert train(kind, static.debugger("L0", task)) == alone
    for step in range(3):
        ways = {name.split(".")[-2] for name in static.data(step) if "parameters_grad" not in name}
        assert ways == {"forward", "backward"}
        assert static.troubles(step) == ""


def test_a_loop_of_the_graph_calls_its_cells_again(static: Probe) -> None:
    static.record(numbered(Flowing()), random(2, 4), level="L0", task="tensor")
    calls = [name for name in static.data() if name.startswith("Cell.fc.Dense.forward")]
    assert len(calls) in (3, 4)
    for before, after in pairwise(calls):
        given = static.tensor(f"{after}.input.0")
        assert np.array_equal(np.tanh(static.tensor(f"{before}.output.0")), given) or np.allclose(
            np.tanh(static.tensor(f"{before}.output.0")), given, atol=1e-6
        )


class Twins(nn.Cell):
    """Calls a cell twice, with nothing that says which call comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.block = nn.Dense(4, 4), nn.SequentialCell(nn.Dense(4, 4), nn.Tanh())

    def construct(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.block(x) * self.block(x + 1)


def test_calls_that_run_side_by_side_are_not_mixed_up(static: Probe) -> None:
    net = numbered(Twins())
    static.record(net, random(2, 4), level="L0", task="tensor")
    weight, bias = net.block[0].weight.asnumpy(), net.block[0].bias.asnumpy()
    for call in (0, 1):
        given, gave = (
            static.tensor(f"Cell.block.0.Dense.forward.{call}.{end}.0") for end in ("input", "output")
        )
        assert np.allclose(given @ weight.T + bias, gave, atol=1e-6)
        back, on = (
            static.tensor(f"Cell.block.0.Dense.backward.{call}.{end}.0") for end in ("input", "output")
        )
        assert np.allclose(back @ weight, on, atol=1e-6)
    parents = static.construct()
    found = {parents[f"Cell.block.0.Dense.forward.{call}"] for call in (0, 1)}
    assert found == {f"Cell.block.SequentialCell.forward.{call}" for call in (0, 1)}
    total = static.tensor("Cell.block.0.Dense.parameters_grad.weight")
    halves = [
        static.tensor(f"Cell.block.0.Dense.backward.{call}.input.0").T
        @ static.tensor(f"Cell.block.0.Dense.forward.{call}.input.0")
        for call in (0, 1)
    ]
    assert np.allclose(sum(halves), total, atol=1e-5)


class Odd(nn.Cell):
    def construct(self, pair: Any, named: Any, mask: Any = None, *, factor: int = 1) -> Any:
        x, (above, low) = pair
        return {"double": x * 2, "rest": (above, [low, x])}, named["q"] * factor, 3, None


class Nesting(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.odd = nn.Dense(4, 4), Odd()

    def construct(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        pair = (x, (x > 0, x.sum().astype(ms.bfloat16)))
        found, other, _, _ = self.odd(pair, {"q": x + 1, "text": "as is"}, mask=x.astype(ms.int32), factor=4)
        above, (low, same) = found["rest"]
        return (found["double"] + other + same) * above.astype(ms.float32) + low.astype(ms.float32)


def kinds(value: Any) -> Any:
    """The shape of a record: dtypes in the places of tensors, values in their own."""
    if isinstance(value, dict) and "type" in value:
        return (value["dtype"], value["shape"]) if "shape" in value else value.get("value")
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    return [kinds(item) for item in value] if isinstance(value, list) else value


def test_whatever_a_cell_takes_and_gives(static: Probe) -> None:
    net = numbered(Nesting())
    alone = bits(training(numbered(Nesting()))(random(2, 4)))
    assert bits(static.record(net, random(2, 4), level="L0")) == alone
    whole, scalar, mask = ("Float32", [2, 4]), ("BFloat16", []), ("Bool", [2, 4])
    assert kinds(static.data()["Cell.odd.Odd.forward.0"]) == {
        "input_args": [[whole, [mask, scalar]], {"q": whole, "text": "as is"}],
        "input_kwargs": {"mask": ("Int32", [2, 4]), "factor": 4},
        "output": [{"double": whole, "rest": [mask, [scalar, whole]]}, whole, 3, None],
        "parameters": {},
    }
    low = static.data()["Cell.odd.Odd.forward.0"]["input_args"][0][1][1]
    assert low["Max"] == low["Min"] == low["Mean"] == low["Norm"] != 0
    assert kinds(static.data()["Cell.odd.Odd.backward.0"]) == {
        "input_args": [whole, None, scalar, whole, whole],
        "input_kwargs": {},
        "output": [whole, None, scalar, whole, None],
    }


class Sized(nn.Cell):
    def construct(self, x: Tensor, empty: Tensor) -> Any:
        return x * 2, empty


class Sizes(nn.Cell):
    """Has an empty tensor, and one whose size is known only when the graph runs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.sized, self.act = nn.Dense(4, 4), Sized(), nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        x, _ = self.sized(self.fc(x), x[:0])
        return x + self.act(ops.masked_select(x, x > 0)).sum()


def test_tensors_that_cannot_be_shown(static: Probe) -> None:
    alone = bits(training(numbered(Sizes()))(random(2, 4)))
    assert bits(static.record(numbered(Sizes()), random(2, 4), level="L0", task="tensor")) == alone
    data = static.data()
    empty = data["Cell.sized.Sized.forward.0"]["input_args"][1]
    assert (empty["dtype"], empty["shape"]) == ("Float32", [0, 4])
    assert static.tensor("Cell.sized.Sized.forward.0.input.1").shape == (0, 4)
    assert data["Cell.act.ReLU.forward.0"]["input_args"] == [{"type": "mindspore.Tensor", "dtype": "Float32"}]
    assert static.troubles() == ""


def differentiated(net: nn.Cell) -> Any:
    return ms.grad(net)(random(2, 4))


class Used(nn.Cell):
    """Uses what it gives."""

    def construct(self, x: Tensor) -> Any:
        y = x * 2
        return y, y * 3


class Using(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.used = nn.Dense(4, 4), Used()

    def construct(self, x: Tensor) -> Tensor:
        y, z = self.used(self.fc(x))
        return y + z


def test_the_gradient_of_an_output_is_that_of_whoever_was_given_it(static: Probe, tmp_path: Path) -> None:
    """A dynamic graph has one tensor for what a cell gives and what it uses of that."""
    shares = {}
    for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
        ms.set_context(mode=mode)
        made = fresh(tmp_path / str(mode))
        made.record(numbered(Using()), random(2, 4), level="L0", task="tensor")
        made.close()
        name = "Cell.used.Used.backward.0"
        shares[mode] = [made.tensor(f"{name}.{end}") for end in ("input.0", "input.1", "output.0")]
    given, other, taken = shares[ms.GRAPH_MODE]
    assert np.array_equal(given, other)
    assert np.allclose(shares[ms.PYNATIVE_MODE], [given + 3 * other, other, taken], rtol=1e-5)


def test_gradients_alone_show_the_outputs_too(static: Probe) -> None:
    alone = bits(differentiated(numbered(Network())))
    debugger, net = static.debugger("L0"), numbered(Network())
    debugger.start(net)
    assert bits(differentiated(net)) == alone
    debugger.step()
    data = static.data()
    assert "output" in data["Cell.tail.1.Tanh.forward.0"]
    assert kinds(data["Cell.block.Block.backward.0"]["output"]) == [("Float32", [2, 4])]


def test_without_a_backward_there_is_none(static: Probe) -> None:
    alone = bits(numbered(Network())(random(2, 4)))
    debugger, net = static.debugger("L0"), numbered(Network())
    debugger.start(net)
    assert bits(net(random(2, 4))) == alone
    debugger.step()
    assert all(".forward." in name or name.endswith(".parameters_grad") for name in static.data())
    assert static.data()["Cell.shared.Dense.parameters_grad"] == {"weight": [None], "bias": [None]}


@pytest.mark.spec("C069", "MSs")
@pytest.mark.parametrize(
    ("mode", "forward", "backward"),
    [
        ("input", ["input_args", "input_kwargs", "parameters"], ["input_args", "input_kwargs"]),
        ("output", ["output", "parameters"], ["output"]),
    ],
)
def test_data_mode(mode: str, forward: list[str], backward: list[str], static: Probe) -> None:
    static.record(numbered(Network()), random(2, 4), level="L0", section={"data_mode": [mode]})
    assert list(static.data()["Cell.shared.Dense.forward.0"]) == forward
    assert list(static.data()["Cell.shared.Dense.backward.0"]) == backward


@pytest.mark.spec("M035", "MSs")
@pytest.mark.spec("M024", "MSs")
@pytest.mark.spec("M027", "MSs")
@pytest.mark.spec("C014", "MSs")
@pytest.mark.spec("R09", "MSs")
def test_steps_that_are_chosen(static: Probe) -> None:
    """The graph is compiled in a step that is not recorded."""
    debugger, net = static.debugger("L0", step=[8, 9]), numbered(Network())
    debugger.set_init_step(7)
    step = training(net)
    for number in range(7, 11):
        debugger.start(net)
        step(random(2, 4) * number)
        debugger.step()
    assert sorted(folder.name for folder in static.folder.glob("step*")) == ["step8", "step9"]
    for number in (8, 9):
        given = static.data(number)["Cell.block.Block.forward.0"]["input_args"][0]
        assert given["Max"] == pytest.approx(float((random(2, 4) * number).max()), rel=1e-6)


class Spy:
    """Counts the tensors that are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = 0
        adapter = PrecisionDebugger.the.get().adapter
        describe = adapter.describe

        def counted(*args: Any) -> Any:
            self.seen += 1
            return describe(*args)

        monkeypatch.setattr(adapter, "describe", counted)


def test_what_was_compiled_shows_nothing_after_the_step(
    static: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugger, net = static.debugger("L0"), numbered(Network())
    before = dict(vars(net.block.fc))
    step = training(net)
    debugger.start(net)
    first = bits(step(random(2, 4)))
    debugger.stop()
    spy = Spy(monkeypatch)
    assert bits(step(random(2, 4))) == first  # the same graph, with its taps
    debugger.step()
    assert bits(step(random(2, 4))) == first
    assert spy.seen == 0
    assert vars(net.block.fc).keys() == before.keys()
    assert not any(parameter.hooks() for parameter in net.get_parameters())
    debugger.start(net)
    assert bits(step(random(2, 4))) == first
    debugger.step()
    assert spy.seen > 0
    assert static.data(0) == static.data(1)


def test_a_graph_from_before_start_cannot_be_seen(static: Probe, caplog: pytest.LogCaptureFixture) -> None:
    net = numbered(Network())
    step = training(net)
    step(random(2, 4))
    debugger = static.debugger("L0")
    with caplog.at_level(logging.INFO, "msprobe"):
        debugger.start(net)
        step(random(2, 4))
        debugger.step()
    assert static.data() == {}
    assert "call start(model) before the first step" in caplog.text


class Stubborn(nn.Cell):
    """Cannot be compiled as anything but what it is."""

    def construct(self, x: Tensor) -> Tensor:
        return x * 3

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> Any:
        return (dout * 2,)


class WithStubborn(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.inner = nn.Dense(4, 4), Stubborn()

    def construct(self, x: Tensor) -> Tensor:
        return self.inner(self.fc(x))


def test_a_cell_with_its_own_backward(static: Probe) -> None:
    alone = bits(training(numbered(WithStubborn()))(random(2, 4)))
    assert bits(static.record(numbered(WithStubborn()), random(2, 4), level="L0")) == alone
    assert "Cell.inner.Stubborn.forward.0" in static.data()


class Recomputing(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.inner = nn.Dense(4, 4), Attention()
        self.inner.recompute()

    def construct(self, x: Tensor) -> Tensor:
        return self.inner(self.fc(x))


def test_what_is_computed_again_is_left_alone(static: Probe, caplog: pytest.LogCaptureFixture) -> None:
    alone = bits(training(numbered(Recomputing()))(random(2, 4)))
    assert bits(static.record(numbered(Recomputing()), random(2, 4), level="L0")) == alone
    assert {name.split(".")[1] for name in static.data()} == {"fc"}
    assert "inner" in caplog.text


def test_a_graph_that_takes_no_taps_is_compiled_without(
    static: Probe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone = bits(training(numbered(Network()))(random(2, 4)))
    debugger, net = static.debugger("L0"), numbered(Network())
    taps = PrecisionDebugger.the.get().adapter._arrivals.taps
    monkeypatch.setattr(taps, "enters", taps.leaves)  # one input too few
    debugger.start(net)
    assert bits(training(net)(random(2, 4))) == alone
    debugger.step()
    assert static.data() == {}
    assert "could not be compiled with the taps" in caplog.text


def test_an_error_of_training_stays_its_own(static: Probe) -> None:
    debugger, net = static.debugger("L0"), numbered(Network())
    debugger.start(net)
    with pytest.raises((RuntimeError, ValueError, TypeError)) as error:
        training(net)(random(2, 5))
    assert "taps" not in str(error.value)
    training(net)(random(2, 4))
    debugger.step()
    assert "Cell.shared.Dense.forward.1" in static.data()


@pytest.mark.spec("M003", "MSs")
@pytest.mark.parametrize(("version", "is_old"), [("2.6.0", True), ("2.7.0", False), ("2.10.1rc1", False)])
def test_old_releases_are_refused(
    version: str, is_old: bool, static: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ms, "__version__", version)
    if is_old:
        with pytest.raises(UsageError, match="needs MindSpore 2.7.0 or later, and this is 2.6.0"):
            static.debugger("L0")
    else:
        static.debugger("L0")


@pytest.mark.spec("M034", "MSs")
def test_settings_of_tensor_dump_have_no_effect(
    static: Probe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Level L0 shows cells by taps of its own, which write nothing by themselves."""
    for name in ("MS_DUMP_SLICE_SIZE", "MS_DUMP_WAIT_TIME"):
        monkeypatch.setenv(name, "1")
    with caplog.at_level(logging.INFO, "msprobe"):
        debugger, net = static.debugger("L0"), numbered(Network())
    for name in ("MS_DUMP_SLICE_SIZE", "MS_DUMP_WAIT_TIME"):
        assert f"{name} has no effect" in caplog.text
    debugger.start(net)
    training(net)(random(2, 4))
    debugger.step()
    assert "Cell.shared.Dense.backward.1" in static.data()


def test_taps_run_where_python_is(
    static: Probe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No more than that is shown here: they ask for the CPU, whatever the rest of the graph runs on."""
    true = ms.get_context
    monkeypatch.setattr(ms, "get_context", lambda key: "Ascend" if key == "device_target" else true(key))
    debugger = static.debugger("L0")
    monkeypatch.undo()
    assert "the graph runs on Ascend, and the taps that show its cells on the CPU" in capsys.readouterr().err
    taps = PrecisionDebugger.the.get().adapter._arrivals.taps
    operators = [*taps.enters, *taps.leaves, taps.of_input.show, taps.of_output.show, taps.of_parameter]
    assert {operator.primitive_target for operator in operators} == {"CPU"}
    net = numbered(Network())
    debugger.start(net)
    training(net)(random(2, 4))
    debugger.step()
    assert "Cell.shared.Dense.backward.1" in static.data()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        pytest.param({"level": "L1"}, 'has only "L0" or "L2"', marks=pytest.mark.spec("M001", "MSs")),
        ({"level": "mix"}, 'has only "L0" or "L2"'),
        ({"level": "debug"}, 'has only "L0" or "L2"'),
        pytest.param({"dump_path": "out"}, "needs an absolute path", marks=pytest.mark.spec("C010", "MSs")),
        ({"section": {"scope": ["a", "b"]}}, "has no scope"),
        ({"section": {"list": ["fc"]}}, "names kernels"),
        ({"section": {"data_mode": ["forward"]}}, 'only "all", "input" and "output"'),
    ],
    ids=str,
)
def test_what_a_static_graph_does_not_have(keys: dict[str, Any], reason: str, static: Probe) -> None:
    with pytest.raises((UsageError, ConfigError), match=reason):
        static.debugger(**{"level": "L0", **keys})


@pytest.mark.spec("R04", "MSs")
def test_summary_mode_is_ignored(static: Probe, caplog: pytest.LogCaptureFixture) -> None:
    static.record(numbered(Network()), random(2, 4), level="L0", section={"summary_mode": "md5"})
    assert "summary_mode" in caplog.text
    assert "md5" not in json.dumps(static.data())


@pytest.mark.spec("M014", "MSs")
@pytest.mark.spec("M017", "MSs")
@pytest.mark.spec("R24", "MSs")
@pytest.mark.parametrize("model", [None, 3, [], [Network]], ids=str)
def test_a_model_is_needed(model: Any, static: Probe) -> None:
    debugger = static.debugger("L0")
    with pytest.raises(UsageError, match="model"):
        debugger.start(model)


CHOICES = {
    "part": (lambda net: net.tail, {"0.Dense", "1.Tanh"}),
    "list": (lambda net: [net.tail, net.block], {"0.0.Dense", "0.1.Tanh", "1.fc.Dense", "1.norm.LayerNorm"}),
    "twice": (
        lambda net: (net.tail, net.tail),
        {f"{i}.{name}" for i in "01" for name in ("0.Dense", "1.Tanh")},
    ),
}


@pytest.mark.spec("M017", "MSs")
@pytest.mark.spec("M021", "MSs")
@pytest.mark.parametrize("choice", CHOICES)
def test_the_given_cell_is_not_recorded_and_its_children_are(choice: str, static: Probe) -> None:
    chosen, names = CHOICES[choice]
    net = numbered(Network())
    static.record(net, random(2, 4), level="L0", model=chosen(net))
    for way in ("forward", "backward"):
        found = {name.removeprefix("Cell.").split(f".{way}")[0] for name in static.data() if way in name}
        assert found == names


@pytest.mark.spec("M012", "MSs")
@pytest.mark.spec("M013", "MSs")
@pytest.mark.spec("C001", "MSs")
def test_arguments_of_the_debugger(static: Probe, tmp_path: Path) -> None:
    debugger = PrecisionDebugger(
        config_path=None, task="tensor", dump_path=str(static.folder), level="L0", step=[1]
    )
    net = numbered(Network())
    step = training(net)
    for _ in range(2):
        debugger.start(net)
        step(random(2, 4))
        debugger.step()
    assert [folder.name for folder in static.folder.glob("step*")] == ["step1"]
    assert static.head(1)["task"] == "tensor"


def dataset(steps: int = 2) -> Any:
    rows = [(np.ones(4, np.float32) * (i + 1), np.ones(4, np.float32)) for i in range(steps)]
    return ms.dataset.GeneratorDataset(rows, ["data", "label"], shuffle=False).batch(1)


def fit(debugger: Any, net: nn.Cell, *callbacks: Any, steps: int = 2, **keys: Any) -> list[Any]:
    optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
    trainer = Model(net, loss_fn=nn.MSELoss(), optimizer=optimizer)
    trainer.train(1, dataset(steps), callbacks=list(callbacks), **keys)
    return bits(list(net.get_parameters()))


@pytest.mark.spec("M030", "MSs")
@pytest.mark.spec("M036", "MSs")
def test_model_train(static: Probe) -> None:
    alone = fit(None, numbered(Network()))
    debugger, net = static.debugger("L0"), numbered(Network())
    debugger.start(net)
    assert fit(debugger, net, MsprobeStep(debugger)) == alone
    assert sorted(folder.name for folder in static.folder.glob("step*")) == ["step0", "step1"]
    for step in (0, 1):
        given = static.data(step)["Cell.block.Block.forward.0"]["input_args"][0]
        assert (given["Max"], given["Min"]) == (step + 1, step + 1)
        assert "Cell.shared.Dense.backward.1" in static.data(step)


@pytest.mark.spec("M031", "MSs")
def test_steps_are_counted_from_where_training_resumes(
    static: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(ms._c_expression, "_set_init_iter", told.append)
    debugger, net = static.debugger("L0"), numbered(Network())

    class Start(ms.train.Callback):  # type: ignore[misc]
        """start() comes when the first step is known."""

        def on_train_begin(self, run_context: Any) -> None:
            debugger.start(net)

    class Resume(ms.train.Callback):  # type: ignore[misc]
        """What Model does when it goes on after a failure."""

        def on_train_begin(self, run_context: Any) -> None:
            run_context.original_args().cur_step_num = 40

    fit(debugger, net, Resume(), MsprobeInitStep(), Start(), MsprobeStep(debugger), steps=1)
    assert told == [40]
    assert [folder.name for folder in static.folder.glob("step*")] == ["step40"]


@pytest.mark.spec("K001", "MSs")
@pytest.mark.spec("K021", "MSs")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_two_static_graphs_are_compared(
    task: str, static: Probe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for name, factor in (("golden", 1.0), ("target", 1.01)):
        made = found[name] = fresh(tmp_path / name)
        net = numbered(Network())
        net.shared.weight.set_data(net.shared.weight * factor)
        made.record(net, random(2, 4), level="L0", task=task)
        made.close()
    config = tmp_path / "compare.json"
    paths = {"npu_path": "target", "bench_path": "golden"}
    files = {key: str(found[name].rank() / "dump.json") for key, name in paths.items()}
    stack = {"stack_path": str(found["target"].rank() / "stack.json"), "is_print_compare_log": True}
    config.write_text(json.dumps({**files, **stack}))
    out = tmp_path / "out"
    assert main(["-f", "mindspore", "compare", "-i", str(config), "-o", str(out), "-s"]) == 0
    assert "Cell.shared.Dense" in capsys.readouterr().out
    assert len(list(out.glob("compare_result_*.xlsx"))) == 1


class Sample(nn.Cell):
    """Has the cells of the printed tree."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.relu, self.fc = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Dense(32, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.conv1(x)).reshape((x.shape[0], -1)))


def batches() -> Any:
    random = np.random.RandomState(0)
    for _ in range(2):
        yield Tensor(random.randn(2, 1, 4, 4).astype(np.float32)), Tensor(np.array([0, 2], np.int32))


def without_model_api() -> None:
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")  # edit: the device

    from msprobe.mindspore import PrecisionDebugger

    debugger = PrecisionDebugger(config_path="./config.json")
    model = Sample()  # edit: a network and data, which the print leaves out
    data_loader = batches()
    for data, label in data_loader:
        debugger.start(model)
        grad_net = ms.grad(model)(data)
        del grad_net, label
        debugger.step()


def with_model_api() -> None:
    import mindspore as ms
    from mindspore.train import Model

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")  # edit: the device

    from msprobe.mindspore import PrecisionDebugger
    from msprobe.mindspore.common.utils import MsprobeStep

    debugger = PrecisionDebugger(config_path="./config.json")
    model = Sample()  # edit: a network, data, a loss and an optimizer, which the print leaves out
    loss_fn, optimizer = nn.CrossEntropyLoss(), nn.SGD(model.trainable_params(), 0.1)
    rows = [pair for data, label in batches() for pair in zip(data.asnumpy(), label.asnumpy(), strict=True)]
    train_dataset = ms.dataset.GeneratorDataset(rows, ["data", "label"], shuffle=False).batch(2)
    debugger.start(model)
    trainer = Model(model, loss_fn=loss_fn, optimizer=optimizer, metrics={"accuracy"})
    trainer.train(1, train_dataset, callbacks=[MsprobeStep(debugger)])


CELL = "Cell.conv1.Conv2d"
PRINTED = {
    "Cell.relu.ReLU.forward.0.input.0.npy",
    f"{CELL}.forward.0.parameters.weight.npy",
    f"{CELL}.parameters_grad.weight.npy",
}


@pytest.mark.parametrize(
    ("sample", "files"),
    [
        # Gradients by the data alone: parameters have none.
        pytest.param(
            without_model_api,
            PRINTED - {f"{CELL}.parameters_grad.weight.npy"},
            marks=pytest.mark.spec("M035", "MSs"),
        ),
        pytest.param(with_model_api, PRINTED, marks=pytest.mark.spec("M036", "MSs")),
    ],
)
@pytest.mark.spec("M044", "MSs")
def test_samples(
    sample: Any, files: set[str], static: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"task": "tensor", "level": "L0", "dump_path": str(static.folder), "tensor": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sample()
    for step in (0, 1):
        found = {file.name for file in static.rank(step).iterdir()}
        assert found == {"dump_tensor_data", "dump.json", "stack.json", "construct.json"}
        assert files <= static.files(step)
        assert f"{CELL}.backward.0.input.0.npy" in static.files(step)
    assert visible(static.folder) == ["step0", "step1"]
