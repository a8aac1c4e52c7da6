"""The doors of MindSpore training: files, filters, save, tokens, own APIs, callbacks, seeds, comparing."""

from __future__ import annotations

import inspect
import types
import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mindspore", reason="MindSpore is not installed here")
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.train import Model
from ms_case import Net, Probe, golden_inputs, numbered, probe

from msprobe.cli.main import main
from msprobe.errors import UsageError
from msprobe.mindspore import MsprobeInitStep, MsprobeStep, PrecisionDebugger, apis
from msprobe.mindspore.common import utils

__all__ = ["probe"]


@pytest.mark.spec("M012", "MSd")
@pytest.mark.spec("M014", "MSd")
@pytest.mark.parametrize(
    "function, parameters",
    [
        (
            PrecisionDebugger,
            {"config_path": None, "task": None, "dump_path": None, "level": None, "step": None},
        ),
        (PrecisionDebugger.start, {"model": None, "token_range": None}),
    ],
)
def test_prototypes(function: Any, parameters: dict[str, Any]) -> None:
    found = inspect.signature(function).parameters.values()
    assert {parameter.name: parameter.default for parameter in found} == parameters


def test_arguments_win_over_the_file(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"level": "mix", "dump_path": "/nowhere", "step": [7]}')
    PrecisionDebugger(str(tmp_path / "config.json"), level="L1", dump_path=str(tmp_path / "dump"), step=[1])
    config = PrecisionDebugger.the.get().config
    assert (config.level, config.dump_path, config.step) == ("L1", str(tmp_path / "dump"), (1,))


@pytest.mark.spec("M053", "MSd")
@pytest.mark.spec("M054", "MSd")
@pytest.mark.spec("M055", "MSd")
@pytest.mark.spec("M056", "MSd")
@pytest.mark.spec("M057", "MSd")
def test_tensor_files(probe: Probe) -> None:
    net, x = numbered(Net()), golden_inputs()[0]
    _, gradients = probe.record(net, x, level="mix", task="tensor")
    expected = {
        "Mint.add.0.forward.input.0.npy",
        "MintFunctional.relu.0.backward.input.0.npy",
        "Tensor.__add__.0.forward.output.0.npy",
        "Primitive.conv2d.Conv2D.0.forward.input.0.npy",
        "Cell.relu.ReLU.forward.0.input.0.npy",
        "Cell.conv1.Conv2d.forward.0.parameters.weight.npy",
        "Cell.conv1.Conv2d.parameters_grad.weight.npy",
    }
    assert expected <= probe.files()
    weight = dict(zip([p.name for p in net.trainable_params()], gradients, strict=True))["conv1.weight"]
    assert np.array_equal(probe.tensor("Cell.conv1.Conv2d.parameters_grad.weight"), weight.asnumpy())
    assert np.array_equal(probe.tensor("Cell.conv1.Conv2d.forward.0.input.0"), x.asnumpy())


def described(probe: Probe, value: Tensor, **keys: Any) -> tuple[dict[str, Any], Any]:
    """The leaf of a tensor that an API was given, and its file if there is one."""
    debugger = probe.debugger("L1", **keys)
    debugger.start()
    mint.cat([value, value]) if value.shape else ops.stop_gradient(value)
    debugger.stop()
    debugger.step()
    (record,) = probe.data().values()
    leaf = record["input_args"][0]
    leaf = leaf[0] if isinstance(leaf, list) else leaf
    return leaf, np.load(
        probe.rank() / "dump_tensor_data" / leaf["data_name"]
    ) if "data_name" in leaf else None


STATISTICS = {
    "float": (np.array([1.5, -2.0], np.float32), ms.float32, "Float32", (1.5, -2.0, -0.25, 2.5)),
    "bfloat16": (np.array([1.5, -2.0], np.float32), ms.bfloat16, "BFloat16", (1.5, -2.0, -0.25, 2.5)),
    "half": (np.array([3.0, 4.0], np.float32), ms.float16, "Float16", (4.0, 3.0, 3.5, 5.0)),
    "long": (np.array([3, 4]), ms.int64, "Int64", (4, 3, 3.5, 5.0)),
    "bool": (np.array([True, False]), ms.bool_, "Bool", (True, False, None, None)),
    "empty": (np.zeros((0, 2), np.float32), ms.float32, "Float32", (None, None, None, None)),
}


@pytest.mark.spec("M060", "MSd")
@pytest.mark.spec("C007", "MSd")
@pytest.mark.parametrize("case", STATISTICS)
def test_statistics_and_files_of_each_dtype(case: str, probe: Probe) -> None:
    array, dtype, name, numbers = STATISTICS[case]
    leaf, saved = described(probe, Tensor(array).astype(dtype), task="tensor")
    assert (leaf["dtype"], leaf["shape"]) == (name, list(array.shape))
    assert tuple(leaf[key] for key in ("Max", "Min", "Mean", "Norm")) == numbers
    assert np.array_equal(saved, array)


@pytest.mark.spec("C073", "MSd")
@pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16], ids=str)
def test_md5_is_the_checksum_of_the_bytes(dtype: Any, probe: Probe) -> None:
    array = np.array([1.5, -2.0], np.float32)
    leaf, _ = described(probe, Tensor(array).astype(dtype), section={"summary_mode": "md5"})
    assert (leaf["md5"], leaf["Max"]) == (f"{zlib.crc32(array.tobytes()):08x}", 1.5)


FILTERS = {
    "api": ("L1", {"list": ["Functional.abs"]}, {"Functional.abs.0.forward", "Functional.abs.0.backward"}),
    "exact": ("L1", {"list": ["Mint.add.0.forward"]}, {"Mint.add.0.forward"}),
    "scope": (
        "L1",
        {"scope": ["Functional.abs.0.forward", "MintFunctional.relu.0.forward"]},
        {"Functional.abs.0.forward", "Mint.add.0.forward", "MintFunctional.relu.0.forward"},
    ),
    "cell": (
        "L0",
        {"list": ["fc1"]},
        {"Cell.fc1.Dense.forward.0", "Cell.fc1.Dense.parameters_grad", "Cell.fc1.Dense.backward.0"},
    ),
    "cells": (
        "L0",
        {"scope": ["Cell.fc1.Dense.forward.0", "Cell.fc2.Dense.forward.0"], "data_mode": ["forward"]},
        {"Cell.fc1.Dense.forward.0", "Cell.relu.ReLU.forward.0", "Cell.fc2.Dense.forward.0"},
    ),
    "inner": (
        "mix",
        {"list": ["Cell.relu.ReLU.forward.0"]},
        {"Cell.relu.ReLU.forward.0", "Primitive.relu.ReLU.0.forward"},
    ),
}


@pytest.mark.spec("C061", "MSd")
@pytest.mark.spec("C062", "MSd")
@pytest.mark.spec("C063", "MSd")
@pytest.mark.spec("C064", "MSd")
@pytest.mark.spec("R07", "MSd")
@pytest.mark.parametrize("case", FILTERS)
def test_filters(case: str, probe: Probe) -> None:
    level, section, expected = FILTERS[case]
    probe.record(numbered(Net()), golden_inputs()[0], level=level, section=section)
    assert set(probe.data()) == expected


SIDES = {
    "input": {"input_args", "input_kwargs", "input"},
    "output": {"output"},
}


@pytest.mark.spec("C070", "MSd")
@pytest.mark.parametrize("side", SIDES)
def test_data_mode(side: str, probe: Probe) -> None:
    probe.record(numbered(Net()), golden_inputs()[0], section={"data_mode": [side]})
    fields = {field for record in probe.data().values() for field in record}
    assert fields == SIDES[side]


@pytest.mark.spec("M009", "MSd")
@pytest.mark.spec("M026", "MSd")
def test_save(probe: Probe) -> None:
    debugger, net = probe.debugger("debug", "tensor"), nn.Dense(4, 4)

    def forward(x: Tensor) -> Tensor:
        hidden = net(x)
        debugger.save({"h": hidden, "n": 3}, "d")
        debugger.save([hidden], "quiet", save_backward=False)
        return (hidden * hidden).sum()

    x = Tensor(np.ones((2, 4), np.float32))
    ms.value_and_grad(forward, None, net.trainable_params())(x)
    debugger.step()
    data = probe.data()
    assert list(data) == ["d.0.debug", "quiet.0.debug", "d_grad.0.debug"]
    assert (data["d.0.debug"]["n"], data["d_grad.0.debug"]["n"]) == ({"type": "int", "value": 3}, None)
    saved = probe.tensor("d.0.debug.h")
    assert np.array_equal(saved, net(x).asnumpy())
    assert np.array_equal(probe.tensor("d_grad.0.debug.h"), 2 * saved)


SAVED: dict[str, tuple[Any, Any]] = {
    "int": (3, {"type": "int", "value": 3}),
    "float": (0.5, {"type": "float", "value": 0.5}),
    "str": ("text", {"type": "str", "value": "text"}),
    "list": ([1, [2.0]], [{"type": "int", "value": 1}, [{"type": "float", "value": 2.0}]]),
    "tuple": ((1, "a"), [{"type": "int", "value": 1}, {"type": "str", "value": "a"}]),
    "dict": ({"a": {"b": 1}}, {"a": {"b": {"type": "int", "value": 1}}}),
}


@pytest.mark.spec("M026", "MSd")
@pytest.mark.parametrize("case", SAVED)
def test_what_can_be_saved(case: str, probe: Probe) -> None:
    value, described = SAVED[case]
    debugger = probe.debugger("debug", "tensor")
    debugger.save(value, "it", save_backward=False)
    debugger.step()
    assert probe.data() == {"it.0.debug": described}


@pytest.mark.spec("M022", "MSd")
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_token_range(level: str, probe: Probe) -> None:
    debugger, net, x = (
        probe.debugger(level),
        nn.SequentialCell(nn.Dense(4, 4)),
        Tensor(np.ones((2, 4), np.float32)),
    )
    debugger.start(net, token_range=[1, 2])
    for _ in range(5):
        x = net(x)
    debugger.stop()
    debugger.step()
    counts = [name for name in probe.data() if "matmul" in name]
    assert counts == ["Primitive.matmul.MatMul.0.forward", "Primitive.matmul.MatMul.1.forward"]


@pytest.mark.spec("M022", "MSd")
@pytest.mark.parametrize("tokens", [[1, 2], [2, 1], [1], [-1, 2], "12"], ids=str)
def test_tokens_are_counted_by_the_calls_of_a_model(tokens: Any, probe: Probe) -> None:
    model = None if tokens == [1, 2] else nn.Dense(4, 4)
    with pytest.raises(
        UsageError, match=r"token_range counts the calls" if model is None else r"\[first, last\]"
    ):
        probe.debugger("L1").start(model, token_range=tokens)


@pytest.mark.spec("M027", "MSd")
@pytest.mark.spec("R18", "MSd")
def test_set_init_step(probe: Probe) -> None:
    debugger = probe.debugger("L1")
    debugger.set_init_step(7)
    for _ in range(2):
        debugger.start()
        ops.abs(Tensor([1.0]))
        debugger.stop()
        debugger.step()
    assert sorted(folder.name for folder in probe.folder.glob("step*")) == ["step7", "step8"]


@pytest.mark.spec("M023", "MSd")
@pytest.mark.spec("M025", "MSd")
@pytest.mark.spec("M040", "MSd")
def test_segments_and_a_backward_after_stop(probe: Probe) -> None:
    debugger = probe.debugger("L1")

    def forward(x: Tensor) -> Tensor:
        debugger.start()
        x = ops.abs(x)
        debugger.stop()
        x = ops.exp(x)
        debugger.start()
        x = ops.relu(x)
        debugger.forward_backward_dump_end()
        return x.sum()

    ms.grad(forward)(Tensor([1.0, -2.0]))
    debugger.step()
    assert sorted(probe.data()) == [
        "Functional.abs.0.backward",
        "Functional.abs.0.forward",
        "Functional.relu.0.backward",
        "Functional.relu.0.forward",
    ]


@ms.jit
def squared(x: Tensor) -> Tensor:
    return x * x


@pytest.mark.spec("M025", "MSd")
def test_the_old_name_of_stop_leaves_compiled_code_its_backward(probe: Probe) -> None:
    debugger = probe.debugger("L1")

    def forward(x: Tensor) -> Tensor:
        debugger.start()
        x = squared(x * 1.0)
        debugger.forward_backward_dump_end()
        return x.sum()

    ms.grad(forward)(Tensor([1.0, -2.0]))
    debugger.step()
    assert {"Jit.squared.0.forward", "Jit.squared.0.backward"} <= set(probe.data())
    assert probe.data()["Jit.squared.0.backward"]["output"][0]["Min"] == -4.0


@pytest.mark.spec("M028", "MSd")
@pytest.mark.spec("M029", "MSd")
def test_custom_api(probe: Probe) -> None:
    debugger, own = probe.debugger("L1"), types.ModuleType("own")
    own.double = lambda x, by=2.0: x * by
    plain = own.double
    steps = [lambda: debugger.register_custom_api(own, "double")]
    steps += [lambda: debugger.register_custom_api(own, "double", "Mine")]
    steps += [lambda: debugger.restore_custom_api(own, "double")]
    for prepare in steps:
        prepare()
        debugger.start()
        own.double(Tensor([1.0]), by=3.0)
        debugger.stop()
        debugger.step()
        assert own.double is plain
    found = [list(probe.data(step)) for step in range(3)]
    assert found == [["own.double.0.forward"], ["Mine.double.0.forward"], ["Tensor.__mul__.0.forward"]]


@pytest.mark.spec("M052", "MSd")
def test_troubles_are_told_and_stop_nothing(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    debugger = probe.debugger("L1")
    adapter = PrecisionDebugger.the.get().adapter
    describe, bad = adapter.describe, Tensor([3.0])

    def refuse(tensor: Tensor, want: Any) -> Any:
        if tensor is bad:
            raise RuntimeError("its memory is gone")
        return describe(tensor, want)

    monkeypatch.setattr(adapter, "describe", refuse)
    debugger.start()
    ops.abs(bad)
    ops.abs(Tensor([1.0]))
    debugger.stop()
    debugger.step()
    assert "its memory is gone" in probe.troubles()
    assert "Functional.abs.1.forward" in probe.data()


def dataset() -> Any:
    rows = [(np.ones(4, np.float32) * i, np.ones(2, np.float32)) for i in range(2)]
    return ms.dataset.GeneratorDataset(rows, ["data", "label"], shuffle=False).batch(1)


@pytest.mark.spec("M016", "MSd")
@pytest.mark.spec("M030", "MSd")
@pytest.mark.spec("M039", "MSd")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_model_train(level: str, probe: Probe) -> None:
    debugger, net = probe.debugger(level), nn.SequentialCell(nn.Dense(4, 2))
    if level != "L1":
        debugger.start(net)
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    trainer = Model(net, loss_fn=nn.MSELoss(), optimizer=optimizer)
    trainer.train(1, dataset(), callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)
    names = [set(probe.data(step)) for step in range(2)]
    assert names[0] and names[0] >= names[1]
    assert level == "L1" or "Cell.0.Dense.forward.0" in names[1]


@pytest.mark.spec("M030", "MSd", "MSs")
def test_callbacks_stand_where_the_samples_import_them() -> None:
    assert (utils.MsprobeStep, utils.MsprobeInitStep) == (MsprobeStep, MsprobeInitStep)
    with pytest.raises(UsageError, match="PrecisionDebugger"):
        MsprobeStep(None)  # type: ignore[arg-type]


@pytest.mark.spec("M069", "MSd")
@pytest.mark.spec("R17", "MSd")
def test_the_support_list_decides_what_is_recorded(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "support_wrap_ops.yaml"
    own.write_text("ops:\n  - abs\n  - no_such_function\n")
    places = apis.places
    monkeypatch.setattr(apis, "places", lambda: places(own))
    debugger = probe.debugger("L1")
    debugger.start()
    ops.exp(ops.abs(Tensor([1.0])))
    debugger.stop()
    debugger.step()
    assert list(probe.data()) == ["Functional.abs.0.forward"]
    assert apis.SUPPORT_LIST.parts[-4:] == ("mindspore", "dump", "hook_cell", "support_wrap_ops.yaml")


@pytest.mark.spec("K003", "MSd")
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_two_runs_are_compared(level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, factor in (("golden", 1.0), ("target", 1.01)):
        probe = Probe(tmp_path / name)
        (tmp_path / name).mkdir()
        probe.close()
        net = numbered(Net())
        net.fc1.weight.set_data(net.fc1.weight * factor)
        probe.record(net, golden_inputs()[0], level=level)
        probe.close()
    folders = [str(tmp_path / name / "dump") for name in ("target", "golden")]
    assert main(["show", folders[0]]) == 0
    assert f"mindspore, level {level}, task statistics" in capsys.readouterr().out
    assert main(["compare", *folders, "-o", str(tmp_path / "out")]) == 0
    assert "Cell.fc1.Dense" in capsys.readouterr().out
