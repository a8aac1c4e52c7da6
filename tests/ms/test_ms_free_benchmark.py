"""free_benchmark in a MindSpore dynamic graph: each mode and handler, and that training stays bit-equal."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from ms_case import Probe, probe
from ms_nets import NETS, train

from msprobe.adapter import Api
from msprobe.mindspore import apis
from msprobe.mindspore.replay import MindSporeReplay
from msprobe.perturb import bit_noise
from msprobe.store.dtypes import TensorData

__all__ = ["probe"]

EXAMPLES = Path(__file__).parents[2] / "examples"
COLUMNS = ["rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index"]


def free(probe: Probe, mode: str = "bit_noise", **section: Any) -> Any:
    return probe.debugger(task="free_benchmark", section={"pert_mode": mode, **section})


def rows(probe: Probe) -> list[dict[str, str]]:
    with open(probe.folder / "free_benchmark.csv", newline="") as file:
        return list(csv.DictReader(file))


def names(probe: Probe) -> list[str]:
    return [row["api_name"] for row in rows(probe)]


def checked(probe: Probe, work: Callable[[], Any], mode: str = "bit_noise", **section: Any) -> Any:
    debugger = free(probe, mode, **section)
    debugger.start()
    result = work()
    debugger.stop()
    debugger.step()
    assert not (probe.folder / "dump_error_info.log").exists()
    return result


def tensor(*values: float, dtype: Any = ms.float32) -> Tensor:
    return Tensor(np.array(values), dtype)


# --- training stays what it is ---


@pytest.mark.spec("C043", "MSd")
@pytest.mark.parametrize("mode", ["no_change", "bit_noise"])
@pytest.mark.parametrize("net", NETS)
def test_training_is_bit_equal(net: str, mode: str, probe: Probe) -> None:
    plain = train(NETS[net], steps=2)
    assert train(NETS[net], free(probe, mode), steps=2) == plain
    assert not (probe.folder / "dump_error_info.log").exists()
    if mode == "no_change":
        assert rows(probe) == []


@pytest.mark.parametrize("mode", ["improve_precision", "add_noise", "change_value"])
@pytest.mark.parametrize("net", ["in place", "narrow"])
def test_training_is_bit_equal_in_further_modes(net: str, mode: str, probe: Probe) -> None:
    plain = train(NETS[net], steps=2)
    assert train(NETS[net], free(probe, mode), steps=2) == plain


def test_what_mindspore_cannot_draw_again_is_made_once(
    probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    checked(probe, lambda: ops.dropout(tensor(1.0, 2.0, 3.0), p=0.5), "no_change")
    assert "1 call is random" in caplog.text


def test_apis_that_draw_are_known() -> None:
    """By name, for their kernels do not say: each name of the support list is on the right side."""
    replay = MindSporeReplay()
    drawing = {
        place.api.name
        for place in apis.places()
        if place.api.prefix in ("Functional", "Tensor") and "random" in (replay.obstacle(place.api) or "")
    }
    assert {"dropout", "rand_like", "bernoulli", "multinomial", "normal", "uniform", "rrelu"} <= drawing
    assert not drawing & {"normalize", "lgamma", "digamma", "layer_norm", "poisson_nll_loss", "expand"}


@pytest.mark.parametrize(
    ("api", "again"),
    [
        (Api("Distributed", "all_reduce"), False),
        (Api("MintDistributed", "all_reduce", communicates=True), False),
        (Api("Jit", "train"), False),
        (Api("Primitive", "dropout.Dropout"), False),
        (Api("Primitive", "matmul.MatMul"), True),
        (Api("Mint", "bernoulli"), True),  # draws from a generator, which is set back
        (Api("Functional", "relu"), True),
    ],
)
def test_what_is_made_again(api: Api, again: bool) -> None:
    assert (MindSporeReplay().obstacle(api) is None) is again


# --- the modes ---


def nearly() -> tuple[Tensor, Tensor]:
    return tensor(65536.0, 8.0), tensor(65533.0, 3.0)


@pytest.mark.spec("C029", "MSd")
@pytest.mark.spec("C040", "MSd")
@pytest.mark.spec("C045", "MSd")
@pytest.mark.spec("C046", "MSd")
@pytest.mark.spec("C050", "MSd")
@pytest.mark.spec("C051", "MSd")
@pytest.mark.spec("C052", "MSd")
@pytest.mark.spec("C053", "MSd")
@pytest.mark.spec("C054", "MSd")
@pytest.mark.spec("C055", "MSd")
@pytest.mark.spec("C056", "MSd")
@pytest.mark.spec("C057", "MSd")
@pytest.mark.spec("C058", "MSd")
@pytest.mark.spec("C059", "MSd")
def test_the_call_that_loses_digits_is_named(probe: Probe) -> None:
    checked(probe, lambda: ops.div(ops.sub(*nearly()), 7.0), fuzz_level="L1", fuzz_stage="forward")
    (row,) = rows(probe)
    assert list(row) == COLUMNS
    assert float(row.pop("max_rel")) == pytest.approx(2**-7 / 3)
    assert row == {
        "rank": "0",
        "pert_mode": "bit_noise",
        "stage": "forward",
        "step": "0",
        "api_name": "Functional.sub.0.forward",
        "dtype": "Float32",
        "shape": "(2,)",
        "output_index": "",
    }


@pytest.mark.spec("C037", "MSd")
@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        (ms.float16, [("Functional.mul.0.forward", "inf", "Float16")]),  # 90000 is infinite in float16
        (ms.bfloat16, []),
    ],
)
def test_improve_precision(
    probe: Probe, caplog: pytest.LogCaptureFixture, dtype: Any, told: list[tuple[str, str, str]]
) -> None:
    def work() -> None:
        ops.mul(tensor(300.0, dtype=dtype), tensor(300.0, dtype=dtype))
        ops.mul(tensor(300.0), tensor(300.0))

    checked(probe, work, "improve_precision")
    assert [(row["api_name"], row["max_rel"], row["dtype"]) for row in rows(probe)] == told
    assert "made 1 call again" in caplog.text
    assert "1 call is without a tensor in half precision" in caplog.text


@pytest.mark.spec("C038", "MSd")
def test_add_noise(probe: Probe) -> None:
    x = tensor(*[0.01, -0.00998] * 50)
    checked(probe, lambda: [ops.sum(x), ops.mul(x, 2.0)], "add_noise")
    assert names(probe) == ["Functional.sum.0.forward"]


@pytest.mark.spec("C039", "MSd")
def test_no_change(probe: Probe) -> None:
    checked(probe, lambda: [ops.matmul(Tensor(np.eye(3, dtype=np.float32)), ops.ones((3, 3)))], "no_change")
    assert rows(probe) == []


def test_change_value(probe: Probe) -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], ms.float32)
    checked(probe, lambda: [ops.sum(x), ops.cumsum(x, 1)], "change_value")
    assert names(probe) == ["Functional.cumsum.0.forward"]


# --- which calls ---


@pytest.mark.spec("C034", "MSd")
@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([], ["Mint.mul.0", "Functional.bmm.0", "Tensor.__add__.0", "Functional.mul.0"]),
        (["mindspore.mint.mul"], ["Mint.mul.0"]),
        (["mindspore.ops.bmm", "mindspore.Tensor.__add__"], ["Functional.bmm.0", "Tensor.__add__.0"]),
        (["mindspore.ops.mul"], ["Functional.mul.0"]),
    ],
)
def test_the_list_holds_full_names(probe: Probe, listed: list[str], expected: list[str]) -> None:
    x = Tensor(np.arange(1, 9).reshape(2, 2, 2), ms.float32)
    checked(probe, lambda: [mint.mul(x, x), ops.bmm(x, x), x + x, ops.mul(x, x)], "change_value", list=listed)
    assert list(dict.fromkeys(names(probe))) == [f"{name}.forward" for name in expected]


def test_a_name_that_was_never_met_is_told(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    checked(probe, lambda: mint.mul(tensor(1.0), tensor(2.0)), list=["mindspore.mint.mull"])
    assert (
        "list names mindspore.mint.mull, but step 0 made no such call; the nearest that was made is "
        "mindspore.mint.mul." in caplog.text
    )


@pytest.mark.spec("C113", "MSd")
def test_the_printed_example(probe: Probe) -> None:
    section = {
        "list": ["mindspore.ops.add"],
        "fuzz_device": "npu",
        "pert_mode": "improve_precision",
        "handler_type": "check",
        "fuzz_level": "L1",
        "fuzz_stage": "forward",
    }
    debugger = probe.debugger(task="free_benchmark", section=section, rank=[], step=[])
    big = tensor(60000.0, dtype=ms.float16)
    debugger.start()
    ops.add(big, big)
    ops.mul(big, big)
    debugger.stop()
    debugger.step()
    assert names(probe) == ["Functional.add.0.forward"]


# --- fix ---


@pytest.mark.spec("C044", "MSd")
def test_fix_gives_the_better_answer_and_its_gradient(probe: Probe) -> None:
    random = np.random.RandomState(0)
    x = Tensor(random.rand(4, 64), ms.float16)
    weight = Parameter(Tensor(random.rand(64, 3) - 0.5, ms.float16), name="weight")

    def loss(x: Tensor) -> Tensor:
        return ops.sum(ops.cast(ops.matmul(x, weight), ms.float32))

    def wide(x: Tensor) -> Tensor:
        product = ops.matmul(ops.cast(x, ms.float32), ops.cast(weight, ms.float32))
        return ops.sum(ops.cast(ops.cast(product, ms.float16), ms.float32))

    better, of_better = ms.value_and_grad(wide, None, [weight])(x)
    seen, of_seen = checked(
        probe,
        lambda: ms.value_and_grad(loss, None, [weight])(x),
        "improve_precision",
        handler_type="fix",
        list=["mindspore.ops.matmul"],
    )
    assert seen.asnumpy() == better.asnumpy()
    assert np.array_equal(of_seen[0].asnumpy(), of_better[0].asnumpy())
    assert rows(probe) == []


# --- the answers of MindSpore ---


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "bool"])
def test_values_come_back_as_they_are(dtype: str) -> None:
    replay = MindSporeReplay()
    given = Tensor(np.array([[1.5, 0.25], [3.0, 0.0]]), getattr(ms, dtype if dtype != "bool" else "bool_"))
    data = replay.snapshot(given)
    assert data is not None
    made = replay.make(data)
    assert (replay.dtype_of(given), data.dtype, made.dtype) == (dtype, dtype, given.dtype)
    assert np.array_equal(made.asnumpy() if dtype != "bfloat16" else made.float().asnumpy(), _wide(given))


def _wide(tensor: Tensor) -> Any:
    return tensor.float().asnumpy() if tensor.dtype == ms.bfloat16 else tensor.asnumpy()


def test_the_last_bit_of_bfloat16() -> None:
    replay = MindSporeReplay()
    data = replay.snapshot(tensor(1.0, dtype=ms.bfloat16))
    assert data is not None
    noisy = bit_noise(data)
    assert isinstance(noisy, TensorData)
    assert replay.make(noisy).float().asnumpy().tolist() == [1.0 + 2**-7]


def test_a_parameter_is_copied_as_one() -> None:
    given = Parameter(tensor(1.0), name="given")
    copy = MindSporeReplay().copy(given)
    ops.assign(copy, tensor(2.0))
    assert isinstance(copy, Parameter)
    assert given.asnumpy().tolist() == [1.0]


def test_an_error_of_the_second_call_leaves_the_graph_alone(
    probe: Probe, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call is given a tensor that the function cannot take."""
    monkeypatch.setattr(MindSporeReplay, "like", lambda *_: Tensor(np.ones((5, 7), np.float32)))
    weight = Parameter(Tensor(np.eye(3), ms.float32), name="weight")
    x = Tensor(np.arange(6).reshape(2, 3) + 1, ms.float32)
    step = ms.value_and_grad(lambda x: ops.matmul(x, weight).sum(), None, [weight])
    plain = step(x)
    debugger = free(probe, list=["mindspore.ops.matmul"])
    debugger.start()
    seen = step(x)
    debugger.stop()
    debugger.step()
    assert np.array_equal(seen[1][0].asnumpy(), plain[1][0].asnumpy())
    assert "free_benchmark could not make again Functional.matmul.0.forward" in caplog.text


# --- a planted fault ---


@pytest.mark.parametrize("net", ["transformer", "conv"])
@pytest.mark.parametrize("fault", [False, True])
def test_the_example_names_the_subtraction(net: str, fault: bool, probe: Probe) -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        import unstable_mindspore
    finally:
        sys.path.remove(str(EXAMPLES))
    found = unstable_mindspore.check(net, fault, probe.folder)
    assert [(row["step"], row["api_name"]) for row in found] == (
        [("0", "Functional.sub.0.forward"), ("1", "Functional.sub.0.forward")] if fault else []
    )


def test_cells_of_a_model_are_no_calls(probe: Probe) -> None:
    """Level L1: what a cell computes is checked, by its primitives and functions, and not the cell."""
    net = nn.Dense(4, 2)
    debugger = free(probe, "change_value")
    debugger.start(net)
    net(Tensor(np.arange(8).reshape(2, 4), ms.float32))
    debugger.stop()
    debugger.step()
    assert {name.partition(".")[0] for name in names(probe)} == {"Primitive"}
