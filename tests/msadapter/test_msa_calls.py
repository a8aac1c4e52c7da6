"""What is recorded where torch computes with MindSpore: calls, modules, parameters, gradients."""

from __future__ import annotations

import sys
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mindtorch", reason="MSAdapter is not installed here")
from mindspore import ops
from msa_case import F, Net, Probe, Wide, arrays, made, mindtorch, ms, nn, numbered, probe, torch, training

from msprobe.mindspore import adapter, msadapter_apis

__all__ = ["probe"]

X = made(2, 3, 8)


@ms.jit
def compiled(x: Any) -> Any:
    return ops.abs(x) + 1


class CompiledModule(nn.Module):
    @ms.jit
    def forward(self, x: Any) -> Any:
        return ops.abs(x) * 2


# What is called, and the one record of it: what it calls itself is a part of it.
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "operator": (lambda: X + 1.0, "Tensor.__add__.0.forward"),
    "method": (lambda: X.permute(0, 2, 1), "Tensor.permute.0.forward"),
    "torch": (lambda: torch.abs(X), "Torch.abs.0.forward"),
    "functional": (lambda: F.gelu(X), "Functional.gelu.0.forward"),
    "by a layer": (lambda: nn.GELU()(X), "Functional.gelu.0.forward"),
    "what torch stands for": (lambda: mindtorch.nn.functional.gelu(X), "Functional.gelu.0.forward"),
    "jit": (lambda: compiled(X), "Jit.compiled.0.forward"),
    "jit of a module": (lambda: CompiledModule()(X), "Jit.CompiledModule.0.forward"),
}


@pytest.mark.spec("A030", "MSA")
@pytest.mark.spec("A038", "MSA")
@pytest.mark.parametrize("case", CALLS)
def test_names_of_calls(case: str, probe: Probe) -> None:
    call, name = CALLS[case]
    assert list(probe.around(call, task="tensor")) == [name]
    files = probe.files()
    assert f"{name}.output.0.npy" in files
    assert {file.rsplit(".", 3)[0] for file in files} == {name}


@pytest.mark.spec("A038", "MSA")
def test_functions_of_torch_npu(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    npu: Any = types.ModuleType("torch_npu")  # there is none without the hardware
    npu.npu_fast_gelu = lambda x: F.gelu(x)
    monkeypatch.setitem(sys.modules, "torch_npu", npu)
    assert list(probe.around(lambda: npu.npu_fast_gelu(X))) == ["NPU.npu_fast_gelu.0.forward"]


@pytest.mark.spec("A030", "MSA")
def test_the_index_goes_on_inside_a_list(probe: Probe) -> None:
    probe.around(lambda: torch.cat([X, X], dim=0), task="tensor")
    name = "Torch.cat.0.forward"
    assert probe.files() == {f"{name}.{slot}.npy" for slot in ("input.0.0", "input.0.1", "output.0")}


@pytest.mark.spec("A031", "MSA")
@pytest.mark.spec("A032", "MSA")
@pytest.mark.spec("A033", "MSA")
@pytest.mark.spec("A038", "MSA")
def test_files_of_modules(probe: Probe) -> None:
    net, x = numbered(Net()), made(10, 8)
    _, of_input, *of_parameters = probe.record(net, x, level="L0", task="tensor")
    inputs = {"linear1": x.asnumpy(), "linear2": net.linear1(x).asnumpy()}
    expected = {}
    for name, module in net.named_children():
        start = f"Module.{name}.Linear"
        expected[f"{start}.forward.0.input.0"] = inputs[name]
        expected[f"{start}.forward.0.output.0"] = module(torch.tensor(inputs[name])).asnumpy()
        for key, parameter in module.named_parameters():
            expected[f"{start}.forward.0.parameters.{key}"] = parameter.asnumpy()
            expected[f"{start}.parameters_grad.{key}"] = of_parameters.pop(0)
    expected["Module.linear1.Linear.backward.0.output.0"] = of_input
    others = {
        f"Module.{end}" for end in ("linear1.Linear.backward.0.input.0", "linear2.Linear.backward.0.input.0")
    }
    others.add("Module.linear2.Linear.backward.0.output.0")
    assert probe.files() == {f"{name}.npy" for name in {*expected, *others}}
    assert [name for name, array in expected.items() if not np.array_equal(probe.tensor(name), array)] == []


LISTS = {"list": list, "tuple": tuple}


@pytest.mark.spec("A010", "MSA")
@pytest.mark.spec("A034", "MSA")
@pytest.mark.parametrize("kind", LISTS)
def test_several_models(kind: str, probe: Probe) -> None:
    net = numbered(Wide())
    probe.record(net, X, level="L0", task="tensor", model=LISTS[kind]([net.tail, net]))
    forwards = {name.removesuffix(".forward.0") for name in probe.data() if name.endswith(".forward.0")}
    assert forwards == {
        *(f"Module.0.{name}" for name in ("0.Linear", "1.ReLU", "2.Linear")),
        *(f"Module.1.tail.{name}" for name in ("0.Linear", "1.ReLU", "2.Linear", "Sequential")),
        *(f"Module.1.{name}" for name in ("norm.LayerNorm", "up.Linear", "act.GELU", "down.Linear")),
    }
    assert {
        "Module.0.0.Linear.forward.0.input.0.npy",
        "Module.0.0.Linear.parameters_grad.bias.npy",
    } <= probe.files()


@pytest.mark.spec("A012", "MSA")
@pytest.mark.parametrize("given", [True, False])
def test_primitives_are_apis_of_a_model_that_is_given(given: bool, probe: Probe) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.product = nn.Linear(8, 8), ops.MatMul()

        def forward(self, x: Any) -> Any:
            return self.product(self.linear(x), self.linear.weight)

    net, debugger = Mixed(), probe.debugger("L1")
    debugger.start(net if given else None)
    ms.grad(lambda x: net(x))(made(2, 8))
    debugger.stop()
    debugger.step()
    primitives = {"Primitive.product.MatMul.0.forward", "Primitive.product.MatMul.0.backward"}
    others = {"Functional.linear.0.forward", "Functional.linear.0.backward"}
    assert set(probe.data()) == (others | primitives if given else others)


def test_each_call_has_its_own_gradients(probe: Probe) -> None:
    """The same tensor goes into three calls; each is shown its own share, and the shares make the whole."""
    a, b = made(3, 4), made(3, 4, seed=1)

    def forward(a: Any, b: Any) -> Any:
        return (a * b + torch.mul(a, a) + F.relu(a)).sum()

    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    whole, _ = arrays(ms.grad(forward, (0, 1))(a, b))
    debugger.stop()
    debugger.step()
    a, b = a.asnumpy(), b.asnumpy()
    expected = {
        "Tensor.__mul__.0.backward.output.0": b,
        "Tensor.__mul__.0.backward.output.1": a,
        "Torch.mul.0.backward.output.0": a,
        "Torch.mul.0.backward.output.1": a,
        "Functional.relu.0.backward.output.0": (a > 0).astype(np.float32),
    }
    assert {name: probe.tensor(name).tolist() for name in expected} == {
        name: array.tolist() for name, array in expected.items()
    }
    np.testing.assert_allclose(whole, b + 2 * a + (a > 0), rtol=1e-6)


def test_a_release_that_does_not_show_its_graph(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As MindSpore 2.7.0: a call's share of the gradient of an input cannot be known, and none is made up."""
    monkeypatch.setattr(adapter, "SHOWS_NODES", False)
    net = numbered(Wide())
    alone = arrays(training(net)(X))
    seen = probe.record(net, X, X, level="mix")
    assert [array.tobytes() for array in seen] == [array.tobytes() for array in alone]
    data = probe.data(1)
    backwards = [record for name, record in data.items() if "backward" in name]
    forwards = [name for name in data if "forward" in name]
    assert len(backwards) == len(forwards)
    assert all(leaf is not None for record in backwards for leaf in record["input"])
    assert all(leaf is None for record in backwards for leaf in record["output"])
    of_gelu, of_linear = (
        data[f"{name}.backward"]["input"][0] for name in ("Functional.gelu.0", "Functional.linear.0")
    )
    assert of_gelu["shape"] == of_linear["shape"] == [2, 3, 16]
    assert data["Module.up.Linear.parameters_grad"]["weight"][0]["Max"] == alone[4].max()
    assert "does not show its graph of backward" in capsys.readouterr().err


def test_every_call_of_a_net_has_a_backward(probe: Probe) -> None:
    net = numbered(Wide())
    probe.record(net, X, level="mix")
    forwards = {name for name in probe.data() if "forward" in name}
    backwards = {name.replace("backward", "forward") for name in probe.data() if "backward" in name}
    assert (forwards - backwards, backwards - forwards) == (set(), set())
    assert probe.troubles() == ""
    shared = probe.data()["Module.tail.2.Linear.parameters_grad"]  # called twice, and has one whole gradient
    assert "Module.tail.2.Linear.forward.1" in forwards
    of_weight = dict(zip(dict(net.named_parameters()), arrays(training(net)(X))[2:], strict=True))[
        "tail.2.weight"
    ]
    assert (shared["weight"][0]["Max"], shared["weight"][0]["Min"]) == (of_weight.max(), of_weight.min())


DTYPES = {
    "float": (np.array([1.5, -2.0], np.float32), "float32", "Float32", (1.5, -2.0, -0.25, 2.5)),
    "half": (np.array([3.0, 4.0], np.float16), "float16", "Float16", (4.0, 3.0, 3.5, 5.0)),
    "bfloat16": (np.array([1.5, -2.0], np.float32), "bfloat16", "BFloat16", (1.5, -2.0, -0.25, 2.5)),
    "long": (np.array([3, 4]), "int64", "Int64", (4, 3, 3.5, 5.0)),
    "bool": (np.array([True, False]), "bool", "Bool", (True, False, None, None)),
}


@pytest.mark.spec("A035", "MSA")
@pytest.mark.parametrize("case", DTYPES)
def test_statistics_and_checksums_of_each_dtype(case: str, probe: Probe) -> None:
    array, dtype, name, numbers = DTYPES[case]
    x = torch.tensor(array).to(getattr(torch, dtype))
    (record,) = probe.around(lambda: x.reshape(2, 1), section={"summary_mode": "md5"}).values()
    keys = ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "md5")
    leaf = record["input_args"][0]
    assert leaf.keys() - keys <= {"hash", "sketch"}
    assert {key: leaf[key] for key in keys} == dict(
        zip(
            keys, ("mindspore.Tensor", name, [2], *numbers, f"{zlib.crc32(array.tobytes()):08x}"), strict=True
        )
    )


@pytest.mark.spec("A036", "MSA")
def test_there_is_no_hierarchy_at_level_L1(probe: Probe) -> None:
    probe.record(numbered(Net()), made(2, 8), level="L1")
    assert probe.construct() == {}


@pytest.mark.spec("A003", "MSA")
def test_calls_in_place(probe: Probe) -> None:
    """They are recorded with what they were given and what they made of it, and backward stays what it is."""

    def forward(x: Any) -> Any:
        y = x * 2.0
        y += 1.0
        y[0] = 5.0
        y.copy_(y * 3.0)
        return F.relu(y, inplace=True).sum()

    x = torch.tensor(np.array([1.0, -2.0, 4.0], np.float32))
    step = ms.value_and_grad(forward, 0)
    alone, debugger = arrays(step(x)), probe.debugger("L1", "tensor")
    debugger.start()
    seen = arrays(step(x))
    debugger.stop()
    debugger.step()
    assert [array.tolist() for array in seen] == [array.tolist() for array in alone]
    values = {
        name: [probe.tensor(f"{name}.0.forward.{slot}.0").tolist() for slot in ("input", "output")]
        for name in ("Tensor.__iadd__", "Tensor.__setitem__", "Functional.relu")
    }
    assert values == {
        "Tensor.__iadd__": [[2.0, -4.0, 8.0], [3.0, -3.0, 9.0]],
        "Tensor.__setitem__": [[3.0, -3.0, 9.0], [5.0, -3.0, 9.0]],
        "Functional.relu": [[15.0, -9.0, 27.0], [15.0, 0.0, 27.0]],
    }
    assert probe.troubles() == ""


def edited(monkeypatch: pytest.MonkeyPatch, path: Path, edit: Callable[[str], str]) -> None:
    """As if the user had edited the list of this installation."""
    path.write_text(edit(msadapter_apis.SUPPORT_LIST.read_text()))
    places = msadapter_apis.places
    monkeypatch.setattr(msadapter_apis, "places", lambda torch: places(torch, path))


EDITS: dict[str, tuple[Callable[[str], str], list[str]]] = {
    "as it is": (str, ["Functional.relu.0.forward", "Torch.abs.0.forward"]),
    "removed": (lambda text: text.replace("\n  - relu\n", "\n"), ["Torch.abs.0.forward"]),
    "added": (
        lambda text: text.replace("functional:", "functional:\n  - own_function\n  - not_there_at_all"),
        ["Functional.own_function.0.forward", "Functional.relu.0.forward", "Torch.abs.0.forward"],
    ),
}


@pytest.mark.spec("A004", "MSA")
@pytest.mark.spec("A005", "MSA")
@pytest.mark.spec("R17", "MSA")
@pytest.mark.parametrize("case", EDITS)
def test_the_support_list(case: str, probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    edit, names = EDITS[case]
    native = mindtorch.nn.functional.relu
    monkeypatch.setattr(mindtorch.nn.functional, "own_function", lambda x: x, raising=False)
    edited(monkeypatch, tmp_path / "support_wrap_ops.yaml", edit)
    is_native = []

    def calls() -> None:
        is_native.append(F.relu is native)
        torch.abs(F.relu(F.own_function(X)))

    assert sorted(probe.around(calls)) == names
    assert is_native == [case == "removed"]
    assert msadapter_apis.SUPPORT_LIST.parts[-4:] == (
        "msprobe",
        "pytorch",
        "hook_module",
        "support_wrap_ops.yaml",
    )
