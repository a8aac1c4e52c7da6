"""The graph of a recording: who made which value, as it was noted, and inferred where it was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from msprobe import kernels
from msprobe.capture.debugger import Debugger
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, Statistics
from msprobe.graph import Graph, Maker
from msprobe.name import CallName
from msprobe.record import Header, Leaf, Record, Recording
from msprobe.store.recordings import read_one
from toy import Array, Model, backward, ops
from toy_adapter import ToyAdapter


def leaf(value: float, maker: str | None = None, *, norm: float | None = None, **keys: Any) -> Leaf:
    """A tensor of two numbers whose mean is `value`."""
    stats = kernels.Statistics(value + 1, value - 1, value, value + 2 if norm is None else norm)
    return Leaf("torch.Tensor", None, "torch.float32", (2,), stats, made_by=maker, **keys)


def recording(records: dict[str, dict[str, Any]], parents: dict[str, str] | None = None) -> Recording:
    """A recording with these fields, in this order."""
    made = {
        name: Record(CallName.parse(name), fields, parent=(parents or {}).get(name))
        for name, fields in records.items()
    }
    return Recording(Header("statistics", "mix", "pytorch"), made, "")


def forward(*inputs: Leaf | None, output: Leaf | None, **keywords: Any) -> dict[str, Any]:
    return {"input_args": list(inputs), "input_kwargs": keywords, "output": [output]}


ONE, TWO, THREE = (f"Torch.{name}.0.forward" for name in ("one", "two", "three"))


@pytest.mark.parametrize(
    ("text", "maker"),
    [
        (f"{ONE}.output.0", Maker("call", ONE, "output.0")),
        (f"~{ONE}.output.0", Maker("call", ONE, "output.0", is_exact=False)),
        (f"~{ONE}.input.mask", Maker("call", ONE, "input.mask", is_exact=False)),
        ("parameter:blocks.0.q.weight", Maker("parameter", "blocks.0.q.weight")),
        ("~parameter:blocks.0.q.weight", Maker("parameter", "blocks.0.q.weight", is_exact=False)),
        ("buffer:b1.running_mean", Maker("buffer", "b1.running_mean")),
        ("gradient:a.bias", Maker("gradient", "a.bias")),
        ("Torch.unrecorded.0.forward.output.0", None),
        ("nonsense", None),
    ],
)
def test_a_maker_is_read_as_it_is_written(text: str, maker: Maker | None) -> None:
    graph = Graph(recording({ONE: forward(output=leaf(1.0)), TWO: forward(leaf(1.0, text), output=None)}))
    assert graph.makers(TWO, "input.0") == (() if maker is None else (maker,))
    assert graph.makers(TWO, "input.1") == graph.makers("Torch.four.0.forward", "input.0") == ()


def test_users_are_the_inputs_that_an_output_went_into() -> None:
    made = leaf(1.0, f"{ONE}.output.0")
    graph = Graph(
        recording(
            {
                ONE: forward(output=leaf(1.0)),
                TWO: forward(leaf(5.0), made, output=leaf(2.0)),
                THREE: forward(output=leaf(3.0), mask={"of": [made]}),
            }
        )
    )
    assert graph.users(ONE, "output.0") == ((TWO, "input.1"), (THREE, "input.mask.of.0"))
    assert graph.users(TWO, "output.0") == ()
    assert graph.makers(THREE, "input.mask.of.0") == (Maker("call", ONE, "output.0"),)


def test_a_module_gives_out_what_was_made_in_it() -> None:
    module = "Module.a.Linear.forward.0"
    made = leaf(1.0, f"{ONE}.output.0")
    records = {
        ONE: forward(leaf(7.0), output=leaf(1.0)),
        module: forward(leaf(7.0), output=made),
        TWO: forward(made, output=leaf(2.0)),
    }
    graph = Graph(recording(records, {ONE: module}))
    assert graph.makers(module, "output.0") == (Maker("call", ONE, "output.0"),)
    assert graph.users(module, "output.0") == ((TWO, "input.0"),)
    assert graph.shown_before(TWO, "input.0") == [(module, "output.0"), (ONE, "output.0")]


def test_a_value_that_is_not_what_its_maker_gave_out_was_changed() -> None:
    same, other = leaf(1.0, f"{ONE}.output.0"), leaf(1.5, f"{ONE}.output.0")
    graph = Graph(recording({ONE: forward(output=leaf(1.0)), TWO: forward(same, other, output=None)}))
    assert [graph.changed(TWO, f"input.{number}") for number in (0, 1)] == [False, True]


def test_a_hash_tells_more_than_statistics() -> None:
    made = leaf(1.0, hash="aa")
    inputs = [leaf(1.0, f"{ONE}.output.0", hash=text) for text in ("aa", "bb")]
    graph = Graph(recording({ONE: forward(output=made), TWO: forward(*inputs, output=None)}))
    assert [graph.changed(TWO, f"input.{number}") for number in (0, 1)] == [False, True]


def test_gradients_are_sums_of_what_the_users_gave_back() -> None:
    made = leaf(1.0, f"{ONE}.output.0")
    back = {name: name.replace("forward", "backward") for name in (ONE, TWO, THREE)}
    records: dict[str, dict[str, Any]] = {
        ONE: forward(leaf(9.0), output=leaf(1.0)),
        TWO: forward(leaf(8.0), made, output=leaf(2.0)),
        THREE: forward(made, output=leaf(3.0)),
        back[THREE]: {"input": [leaf(0.1)], "output": [leaf(0.25)]},
        back[TWO]: {"input": [leaf(0.2)], "output": [leaf(0.75), leaf(0.5)]},
        back[ONE]: {"input": [leaf(0.75, norm=2.5)], "output": [leaf(4.0)]},
    }
    graph = Graph(recording(records))
    assert graph.makers(back[ONE], "input.0") == (
        Maker("call", back[TWO], "output.1", is_exact=False),
        Maker("call", back[THREE], "output.0", is_exact=False),
    )
    records[back[ONE]]["input"] = [leaf(0.8, norm=2.5)]  # something else was added as well
    assert Graph(recording(records)).makers(back[ONE], "input.0") == ()


def test_what_names_no_maker_is_inferred_from_the_values() -> None:
    module = "Module.a.Linear.forward.0"
    records = {
        ONE: forward(leaf(7.0), output=leaf(1.0)),
        module: forward(leaf(7.0), output=leaf(1.0)),
        TWO: forward(leaf(1.0), leaf(2.0), output=leaf(2.0)),
        THREE: forward(leaf(1.0), leaf(2.0), output=leaf(1.0)),
    }
    graph = Graph(recording(records, {ONE: module}))
    one = (Maker("call", ONE, "output.0", is_exact=False),)
    assert not graph.is_recorded
    assert graph.makers(TWO, "input.0") == graph.makers(THREE, "input.0") == one
    assert graph.makers(module, "output.0") == one
    assert graph.makers(TWO, "input.1") == graph.makers(ONE, "input.0") == ()
    assert graph.makers(THREE, "input.1") == (Maker("call", TWO, "output.0", is_exact=False),)
    assert graph.users(ONE, "output.0") == graph.users(module, "output.0")
    assert graph.users(ONE, "output.0") == ((TWO, "input.0"), (THREE, "input.0"))


def test_parameters_have_names() -> None:
    module = "Module.blocks.0.q.Linear.forward.0"
    gradients = "Module.blocks.0.q.Linear.parameters_grad"
    fields = {**forward(output=leaf(2.0)), "parameters": {"weight": leaf(5.0, "parameter:tied.weight")}}
    graph = Graph(recording({module: fields, gradients: {"weight": [leaf(1.0)], "bias": [leaf(2.0)]}}))
    assert graph.parameter(module, "parameters.weight") == "tied.weight"
    assert graph.parameter(gradients, "weight") == "tied.weight"
    assert graph.parameter(gradients, "bias") == "blocks.0.q.bias"
    assert graph.parameter(module, "output.0") is None
    fields = {**forward(output=leaf(2.0)), "parameters": {"weight": leaf(5.0)}}
    graph = Graph(recording({module: fields, TWO: forward(leaf(5.0), leaf(6.0), output=None)}))
    assert graph.parameter(module, "parameters.weight") == "blocks.0.q.weight"
    assert [graph.parameter(TWO, f"input.{n}") for n in (0, 1)] == ["blocks.0.q.weight", None]


def test_order_is_that_of_execution() -> None:
    late = "Module.a.Linear.parameters_grad"
    back = "Module.a.Linear.backward.0"
    graph = Graph(recording({late: {"weight": [leaf(1.0)]}, ONE: forward(output=None), back: {"input": []}}))
    assert graph.order() == [ONE, back, late]


def test_the_toy_says_who_made_its_arrays(tmp_path: Path) -> None:
    """Without torch: a model, its backward, and a change in place."""
    model, x = Model(), Array([1.0, -2.0])
    config = Config(dump_path=str(tmp_path / "out"), level="mix", task="statistics", section=Statistics())
    debugger = Debugger(ToyAdapter(), config, Stacks())
    debugger.start(model)
    result = model(x)
    backward(result)
    y = ops.relu_(ops.add(x, x))
    ops.mul(y, y)
    debugger.stop()
    debugger.step()
    debugger.close()
    graph = Graph(read_one(tmp_path / "out/step0/rank/dump.json"))
    assert graph.makers("Toy.add.0.forward", "input.0") == (Maker("call", "Toy.mul.0.forward", "output.0"),)
    assert graph.makers("Toy.add.0.forward", "input.1") == (Maker("parameter", "net.one.bias"),)
    assert graph.makers("Module.net.one.Scale.forward.0", "output.0") == (
        Maker("call", "Toy.add.0.forward", "output.0"),
    )
    assert graph.makers("Toy.relu.0.forward", "input.0") == (Maker("call", "Toy.add.0.forward", "output.0"),)
    assert graph.makers("Toy.mul.2.forward", "input.1") == (Maker("call", "Toy.relu_.0.forward", "output.0"),)
    back = graph.makers("Toy.add.0.backward", "input.0")
    assert [(maker.name, maker.slot) for maker in back] == [("Toy.relu.0.backward", "output.0")]
    assert not any(graph.changed(key, slot) for key in graph.order() for slot in ("input.0", "input.1"))
