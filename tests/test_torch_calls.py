"""Which calls are seen, in all the ways that torch is used, and that each of these ways goes on to work."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, matmul, nn
from torch.nn.functional import gelu, linear, relu
from torch.overrides import TorchFunctionMode

from msprobe.pytorch import intercept
from nets import raw, seed
from torch_fixtures import Probe, names, probe, record

__all__ = ["probe"]


# --- names ---


@pytest.mark.spec("P16", "PT")
def test_functions_bound_before_start_are_seen_under_their_names(probe: Probe) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    record(probe, lambda: linear(gelu(relu(matmul(x, x))), x).sum().backward())
    both = ("Torch.matmul.0", "Functional.relu.0", "Functional.gelu.0", "Functional.linear.0", "Tensor.sum.0")
    assert names(probe) == [*(f"{name}.forward" for name in both), "Torch.ones_like.0.forward"]
    assert names(probe, "backward") == [f"{name}.backward" for name in reversed(both)]


@pytest.mark.spec("P16", "PT")
def test_functions_stay_the_objects_they_are(probe: Probe) -> None:
    held = {
        name: (getattr(F, name), inspect.signature(getattr(F, name)))
        for name in ("relu", "softmax", "layer_norm")
    }
    operator = torch.matmul

    def look() -> None:
        assert (torch.matmul is operator) and (relu is F.relu) and (gelu is F.gelu)
        for name, (function, signature) in held.items():
            assert function is getattr(F, name)
            assert inspect.signature(function) == signature
            assert f"def {name}(" in inspect.getsource(function)

    record(probe, look)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "__add__": lambda x, y: x + y,
    "__radd__": lambda x, y: 2 + x,
    "__sub__": lambda x, y: x - 1,
    "__rsub__": lambda x, y: 1 - x,
    "__mul__": lambda x, y: x * y,
    "__rmul__": lambda x, y: 2.5 * x,
    "__truediv__": lambda x, y: x / y,
    "__matmul__": lambda x, y: x @ y,
    "__pow__": lambda x, y: x**2,
    "__rpow__": lambda x, y: 2**x,
    "__floordiv__": lambda x, y: x // y,
    "__mod__": lambda x, y: x % y,
    "__gt__": lambda x, y: x > y,
    "__le__": lambda x, y: x <= 0,
    "__eq__": lambda x, y: x == y,
    "__ne__": lambda x, y: x != y,
    "__bool__": lambda x, y: bool(x.new_ones(())),
}


@pytest.mark.spec("P08", "PT")
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_recorded_once_under_its_own_name(probe: Probe, name: str) -> None:
    x, y = torch.rand(2, 2) + 1, torch.rand(2, 2) + 1
    result = record(probe, lambda: OPERATORS[name](x, y))
    assert raw(torch.as_tensor(result)) == raw(torch.as_tensor(OPERATORS[name](x, y)))
    assert names(probe) == [f"Tensor.{name}.0.forward"]


@pytest.mark.parametrize(
    "redispatch", [intercept._redispatch, intercept._doing_its_work], ids=["torch's", "ours"]
)
def test_a_function_that_is_not_listed_is_looked_into(
    probe: Probe, redispatch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intercept, "_redispatch", redispatch)

    def work() -> Tensor:
        seed()
        x = nn.Linear(3, 3).weight  # torch.nn.init has functions of this kind too
        torch.sin(torch.svd_lowrank(x, q=2)[1]).sum().backward()
        assert x.grad is not None
        return x.grad

    wanted, got = work(), record(probe, work)
    assert raw(got) == raw(wanted)
    assert {"Torch.matmul.0.forward", "Torch.sin.0.forward"} <= set(names(probe))
    assert {"Torch.matmul.0.backward", "Torch.sin.0.backward"} <= set(names(probe, "backward"))


def test_only_the_outermost_of_nested_calls_is_recorded(probe: Probe) -> None:
    record(probe, lambda: F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1])))
    assert names(probe) == ["Functional.cross_entropy.0.forward"]


@pytest.mark.spec("P08", "PT")
def test_arguments_are_recorded_as_they_were_passed(probe: Probe) -> None:
    x, w, b = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)
    record(probe, lambda: (F.linear(x, bias=b, weight=w), F.softmax(x, -1), F.softmax(input=x, dim=-1)))
    shapes = {
        name: (
            [item["shape"] if "shape" in item else item["value"] for item in entry["input_args"]],
            {key: item.get("shape", item.get("value")) for key, item in entry["input_kwargs"].items()},
        )
        for name, entry in probe.data().items()
    }
    assert shapes == {
        "Functional.linear.0.forward": ([[2, 3]], {"bias": [4], "weight": [4, 3]}),
        "Functional.softmax.0.forward": ([[2, 3], -1], {}),
        "Functional.softmax.1.forward": ([], {"input": [2, 3], "dim": -1}),
    }


# --- modes, subclasses, transforms ---


class Doubling(TorchFunctionMode):
    """Doubles what softmax gives, and looks at its input first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.softmax, torch.Tensor.add):
            args[0].sum()
            return func(*args, **(kwargs or {})) * 2
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("entered", ["before", "after", "across"])
def test_a_mode_of_the_user_goes_on_to_work(probe: Probe, entered: str) -> None:
    x = torch.rand(2, 3)
    with Doubling():
        wanted = F.softmax(x, dim=-1), x + 1
    debugger = probe.debugger("L1")
    mode = Doubling()
    if entered == "after":
        debugger.start()
    mode.__enter__()
    if entered != "after":
        debugger.start()
    got = F.softmax(x, dim=-1), x + 1
    if entered == "across":
        mode.__exit__(None, None, None)
        torch.exp(x)
        debugger.stop()
    else:
        torch.exp(x)
        debugger.stop()
        mode.__exit__(None, None, None)
    assert torch._C._len_torch_function_stack() == 0
    debugger.step()
    assert [raw(tensor) for tensor in got] == [raw(tensor) for tensor in wanted]
    assert {"Functional.softmax.0.forward", "Tensor.__add__.0.forward", "Torch.exp.0.forward"} <= set(
        names(probe)
    )


class Labelled(Tensor):
    """A tensor that remembers which functions it went through."""

    seen: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls):
            result.seen = [*getattr(args[0], "seen", []), getattr(func, "__name__", "?")]
        return result


def test_a_tensor_class_of_the_user_goes_on_to_work(probe: Probe) -> None:
    def work() -> Labelled:
        x: Any = torch.ones(2, 3).as_subclass(Labelled)
        result: Labelled = F.softmax(torch.exp(x) * 2, dim=-1)
        return result

    wanted, got = work(), record(probe, work)
    assert (raw(got.as_subclass(Tensor)), got.seen) == (raw(wanted.as_subclass(Tensor)), wanted.seen)
    assert type(got) is Labelled
    assert set(names(probe)) >= {
        "Torch.exp.0.forward",
        "Tensor.__mul__.0.forward",
        "Functional.softmax.0.forward",
    }
    assert probe.data()["Functional.softmax.0.forward"]["output"][0]["Max"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("inside", [False, True], ids=["set before", "set while recording"])
def test_the_default_device_holds(probe: Probe, inside: bool) -> None:
    debugger = probe.debugger("L1")
    try:
        if inside:
            debugger.start()
        torch.set_default_device("meta")
        if not inside:
            debugger.start()
        made = torch.nn.functional.relu(torch.ones(2))
        with torch.device("cpu"):
            other = torch.exp(torch.ones(2))
        debugger.stop()
        assert torch.ones(1).is_meta
    finally:
        torch.set_default_device(None)
    assert (made.is_meta, other.is_meta, torch.ones(1).is_meta) == (True, False, False)
    assert torch._C._len_torch_function_stack() == 0
    debugger.step()
    assert probe.data()["Functional.relu.0.forward"]["output"][0]["Max"] is None


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "grad": lambda: torch.func.grad(lambda x: F.softmax(torch.sin(x) * x, dim=-1).square().sum())(
        torch.arange(3.0)
    ),
    "vmap": lambda: torch.func.vmap(lambda x: F.layer_norm(torch.sin(x), (3,)) @ x)(
        torch.arange(6.0).view(2, 3)
    ),
    "vmap of grad": lambda: torch.func.vmap(torch.func.grad(lambda x: (x.exp() * x).sum()))(torch.ones(2, 3)),
    "jvp": lambda: torch.func.jvp(lambda x: torch.sin(x) + x, (torch.ones(3),), (torch.ones(3),))[1],
    "hessian": lambda: torch.func.hessian(lambda x: x.pow(3).sum())(torch.arange(3.0)),
    "functional_call": lambda: torch.func.functional_call(
        nn.Linear(3, 1), {"weight": torch.ones(1, 3), "bias": torch.zeros(1)}, (torch.arange(3.0),)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms_go_on_to_work(probe: Probe, name: str) -> None:
    wanted = TRANSFORMS[name]()
    got = record(probe, TRANSFORMS[name], "mix", nn.Sequential(nn.Linear(1, 1)))
    assert raw(got) == raw(wanted)
    assert names(probe)


def scaled(x: Tensor, by: float) -> Tensor:
    return F.relu(F.layer_norm(x, [3])) * by


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.layer(x), dim=-1)


@pytest.mark.parametrize("made", ["before", "while recording"])
def test_scripted_and_traced_code_goes_on_to_work(probe: Probe, made: str) -> None:
    x = torch.rand(2, 3)
    model = Scripted()

    def make() -> tuple[Any, Any, Any]:
        torch.jit._state._clear_class_state()
        return torch.jit.script(scaled), torch.jit.script(model), torch.jit.trace(model, x)

    wanted = scaled(x, 2.0), model(x), model(x)
    parts = make() if made == "before" else None

    def work() -> tuple[Tensor, ...]:
        function, scripted, traced = parts or make()
        return function(x, 2.0), scripted(x), traced(x)

    got = record(probe, work, "mix", nn.Sequential(model))
    assert [raw(tensor) for tensor in got] == [raw(tensor) for tensor in wanted]
    if made != "before":
        assert [node.kind() for node in torch.jit.trace(model, x).graph.nodes()] == [
            node.kind() for node in make()[2].graph.nodes()
        ]


def attention(**keys: Any) -> Callable[[], Any]:
    def work() -> Any:
        x = torch.rand(2, 5, 16, generator=torch.Generator().manual_seed(1))
        seed()
        module = nn.MultiheadAttention(16, 4, batch_first=True).eval()
        with torch.no_grad():
            return module(x, x, x, **keys)[0], module

    return work


def encoder(make: Callable[[nn.Module], nn.Module], **keys: Any) -> Callable[[], Any]:
    def work() -> Any:
        x = torch.rand(2, 5, 16, generator=torch.Generator().manual_seed(1))
        seed()
        module = make(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)).eval()
        with torch.no_grad():
            return module(x, **keys), module

    return work


PADDED = torch.tensor([[False, False, False, True, True], [False] * 5])
FAST: dict[str, Callable[[], Any]] = {
    "attention": attention(),
    "attention without weights": attention(need_weights=False),
    "attention, padded": attention(key_padding_mask=PADDED, need_weights=False),
    "layer": encoder(lambda layer: layer),
    "layer, padded": encoder(lambda layer: layer, src_key_padding_mask=PADDED),
    "encoder": encoder(lambda layer: nn.TransformerEncoder(layer, 2)),
    "encoder, padded": encoder(lambda layer: nn.TransformerEncoder(layer, 2), src_key_padding_mask=PADDED),
}


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("name", FAST)
def test_attention_goes_the_way_it_would(probe: Probe, name: str, level: str) -> None:
    """torch has kernels of its own for attention in evaluation, and leaves them when a mode is on."""
    wanted = FAST[name]()[0]
    model = nn.Sequential(nn.Linear(1, 1))
    got = record(probe, lambda: torch.sin(FAST[name]()[0]), level, model)
    assert raw(got) == raw(torch.sin(wanted))
    if level != "L0":
        assert "Torch.sin.0.forward" in names(probe)
        assert "Functional.softmax.0.forward" not in names(probe)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_layer_of_attention_is_recorded_as_a_module(probe: Probe, level: str) -> None:
    result, module = FAST["layer, padded"]()
    model = nn.Sequential(module).eval()
    x = torch.rand(2, 5, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        record(probe, lambda: module(x, src_key_padding_mask=PADDED), level, model, task="tensor")
    recorded = probe.tensor("Module.0.TransformerEncoderLayer.forward.0.output.0")
    assert raw(recorded) == raw(result)


def test_a_mode_of_the_user_still_turns_attention_to_its_calls(probe: Probe) -> None:
    def work() -> Tensor:
        with Doubling():
            result: Tensor = FAST["layer"]()[0]
        return result

    wanted = work()
    assert raw(record(probe, work)) == raw(wanted) != raw(FAST["layer"]()[0])


def test_attention_can_be_scripted_while_recording(probe: Probe) -> None:
    result, module = FAST["layer"]()
    x = torch.rand(2, 5, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got = record(probe, lambda: torch.jit.script(module)(x))
    assert raw(got) == raw(result)
