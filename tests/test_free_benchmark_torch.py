"""free_benchmark with PyTorch: each mode, stage and handler, and that training stays bit-equal."""

from __future__ import annotations

import csv
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.log import logger
from nets import NETS, train
from torch_fixtures import Probe, probe

__all__ = ["probe"]

EXAMPLES = Path(__file__).parent.parent / "examples"
COLUMNS = ["rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index"]
MODES = ("improve_precision", "add_noise", "no_change", "bit_noise", "change_value", "to_cpu")

logger()  # pytest catches what a logger tells that is there before the test


def free(probe: Probe, mode: str = "bit_noise", **section: Any) -> Any:
    device = "cpu" if mode == "to_cpu" else "npu"
    return probe.debugger(
        task="free_benchmark", section={"pert_mode": mode, "fuzz_device": device, **section}
    )


def rows(probe: Probe) -> list[dict[str, str]]:
    with open(probe.folder / "free_benchmark.csv", newline="") as file:
        return list(csv.DictReader(file))


def checked(probe: Probe, work: Callable[[], Any], mode: str = "bit_noise", **section: Any) -> Any:
    debugger = free(probe, mode, **section)
    debugger.start()
    result = work()
    debugger.stop()
    debugger.step()
    assert not (probe.folder / "dump_error_info.log").exists()
    return result


def names(probe: Probe) -> list[str]:
    return [row["api_name"] for row in rows(probe)]


# --- training stays what it is ---


@pytest.mark.spec("C043", "PT")
@pytest.mark.parametrize("stage", ["forward", "backward"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("net", ["gpt", "conv", "lstm", "non_reentrant", "reentrant", "bf16"])
def test_training_is_bit_equal(net: str, mode: str, stage: str, probe: Probe) -> None:
    plain = train(NETS[net])
    assert train(NETS[net], free(probe, mode, fuzz_stage=stage)) == plain
    assert not (probe.folder / "dump_error_info.log").exists()
    if mode == "no_change":
        assert rows(probe) == []


@pytest.mark.parametrize("net", ["custom", "shared", "nested", "fp16"])
@pytest.mark.parametrize("mode", ["no_change", "bit_noise"])
def test_training_of_further_nets_is_bit_equal(net: str, mode: str, probe: Probe) -> None:
    plain = train(NETS[net])
    assert train(NETS[net], free(probe, mode)) == plain
    if mode == "no_change":
        assert rows(probe) == []


def test_in_place_operators_and_out_arguments(probe: Probe) -> None:
    def work() -> list[Any]:
        torch.manual_seed(3)
        x, out = torch.rand(4, 4), torch.zeros(4, 4)
        x.add_(1).mul_(x)
        x += 2
        x[0] = 5.0
        torch.add(x, 1.0, out=out)
        F.relu(x, inplace=True)
        F.dropout(x, 0.5, True, True)
        running = torch.zeros(4), torch.ones(4)
        F.batch_norm(x, *running, training=True)
        torch._foreach_add_([x, out], 1.0)
        return [x, out, *running, torch.rand(3), x._version, out._version]

    plain = work()
    seen = checked(probe, work, "no_change")
    assert [str(one) for one in seen] == [str(one) for one in plain]
    assert rows(probe) == []


def test_generators_draw_for_training_only(probe: Probe) -> None:
    def work() -> list[Any]:
        own = torch.Generator().manual_seed(1)
        x = torch.zeros(5)
        x.normal_(generator=own)
        return [x, torch.bernoulli(x.abs().clamp(max=1.0), generator=own), torch.randn(2, generator=own)]

    plain = work()
    assert [one.tolist() for one in checked(probe, work, "no_change")] == [one.tolist() for one in plain]
    assert rows(probe) == []


def test_communication_is_never_made_again(tmp_path: Path) -> None:
    """In a process of its own, because a group is for good."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "import torch.distributed as dist\n"
        "from msprobe.pytorch import PrecisionDebugger\n"
        "where = 'file://' + sys.argv[1] + '/group'\n"
        "dist.init_process_group('gloo', init_method=where, rank=0, world_size=1)\n"
        "debugger = PrecisionDebugger(sys.argv[1] + '/config.json')\n"
        "debugger.start()\n"
        "x = torch.tensor([1.0, 2.0, 3.0])\n"
        "dist.all_reduce(x)\n"
        "y = x * 2\n"
        "debugger.stop()\n"
        "debugger.step()\n"
        "print(x.tolist())\n"
    )
    section = {"pert_mode": "change_value"}
    config = {"task": "free_benchmark", "dump_path": str(tmp_path / "run"), "free_benchmark": section}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[1.0, 2.0, 3.0]\n"
    assert "1 call is communication" in done.stderr
    with open(tmp_path / "run" / "free_benchmark.csv", newline="") as file:
        assert [(row["rank"], row["api_name"]) for row in csv.DictReader(file)] == [
            ("0", "Tensor.__mul__.0.forward")
        ]


# --- the modes ---


def nearly(scale: float = 1.0) -> tuple[Tensor, Tensor]:
    return torch.tensor([65536.0, 8.0]) * scale, torch.tensor([65533.0, 3.0]) * scale


@pytest.mark.spec("C029", "PT")
@pytest.mark.spec("C040", "PT")
@pytest.mark.spec("C050", "PT")
@pytest.mark.spec("C051", "PT")
@pytest.mark.spec("C052", "PT")
@pytest.mark.spec("C053", "PT")
@pytest.mark.spec("C054", "PT")
@pytest.mark.spec("C055", "PT")
@pytest.mark.spec("C056", "PT")
@pytest.mark.spec("C057", "PT")
@pytest.mark.spec("C058", "PT")
@pytest.mark.spec("C059", "PT")
@pytest.mark.spec("C045", "PT")
def test_the_call_that_loses_digits_is_named(probe: Probe) -> None:
    def work() -> Tensor:
        x, y = nearly()
        return torch.div(torch.sub(x, y), 7.0)

    checked(probe, work, "bit_noise", fuzz_level="L1")
    (row,) = rows(probe)
    assert list(row) == COLUMNS
    assert float(row.pop("max_rel")) == pytest.approx(2**-7 / 3)
    assert row == {
        "rank": "0",
        "pert_mode": "bit_noise",
        "stage": "forward",
        "step": "0",
        "api_name": "Torch.sub.0.forward",
        "dtype": "torch.float32",
        "shape": "(2,)",
        "output_index": "",
    }


@pytest.mark.spec("C059", "PT")
def test_the_first_of_several_outputs_has_index_0(probe: Probe) -> None:
    def work() -> None:
        torch.split(torch.tensor([1.0, 5.0, 5.0, 7.0]), 2)
        torch.max(torch.tensor([[1.0, 2.0], [0.5, 7.0]]), dim=0)

    checked(probe, work, "change_value", list=["split", "max"])
    assert [(row["api_name"], row["shape"], row["output_index"]) for row in rows(probe)] == [
        ("Torch.split.0.forward", "(2,)", "0"),
        ("Torch.split.0.forward", "(2,)", "1"),
        ("Torch.max.0.forward", "(2,)", "0"),  # and which index it was says nothing
    ]


@pytest.mark.spec("C037", "PT")
def test_improve_precision(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        terms = torch.full((100,), 1.001, dtype=torch.float16)
        terms[0] = 2048.0
        torch.prod(terms[1:].reshape(3, 33), dim=0)
        torch.sub(torch.tensor([1.0]), torch.tensor([0.5]))  # nothing to raise
        torch.dot(terms, terms)

    checked(probe, work, "improve_precision", list=["dot", "sub"])
    assert [(row["api_name"], row["dtype"]) for row in rows(probe)] == [
        ("Torch.dot.0.forward", "torch.float16")
    ]
    assert "1 call is without a tensor in half precision" in caplog.text


@pytest.mark.spec("C037", "PT")
def test_improve_precision_goes_beyond_mixed_precision(probe: Probe) -> None:
    """Where autocast lowers the inputs of a call, the second call runs as they are."""
    seen: list[torch.dtype] = []
    plain = F.linear

    def work() -> None:
        x = torch.ones(1, 2, dtype=torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16):
            seen.append(F.linear(x, torch.tensor([[1.003, -1.0]])).dtype)

    checked(probe, work, "improve_precision", list=["linear"])
    assert seen == [torch.bfloat16]
    assert F.linear is plain
    assert [row["dtype"] for row in rows(probe)] == ["torch.bfloat16"]


@pytest.mark.spec("C038", "PT")
def test_add_noise(probe: Probe) -> None:
    x = torch.tensor([0.01, -0.00998] * 50)  # of which noise of 1e-8 each moves the sum, 0.001, by 1e-6
    checked(probe, lambda: [torch.sum(x), torch.mul(x, 2.0)], "add_noise")
    (row,) = rows(probe)
    assert row["api_name"] == "Torch.sum.0.forward"
    assert float(row["max_rel"]) == pytest.approx(1e-3, rel=0.1)


@pytest.mark.spec("C039", "PT")
def test_no_change_finds_what_is_not_deterministic(probe: Probe) -> None:
    import types

    calls: list[int] = []
    module = types.ModuleType("mine")

    def unsure(x: Tensor) -> Tensor:
        calls.append(1)
        return x * len(calls)

    module.unsure = unsure  # type: ignore[attr-defined]
    debugger = free(probe, "no_change")
    debugger.register_custom_api(module, "unsure")
    debugger.start()
    module.unsure(torch.ones(2))  # type: ignore[attr-defined]
    debugger.stop()
    debugger.step()
    debugger.restore_custom_api(module, "unsure")
    assert [(row["api_name"], row["max_rel"]) for row in rows(probe)] == [("mine.unsure.0.forward", "1.0")]


@pytest.mark.spec("C041", "PT")
def test_change_value(probe: Probe) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    checked(probe, lambda: [torch.sum(x), torch.cumsum(x, 1)], "change_value")
    assert names(probe) == ["Torch.cumsum.0.forward"]  # a sum does not mind


@pytest.mark.spec("C042", "PT")
@pytest.mark.spec("C035", "PT")
def test_to_cpu_runs_half_precision_in_float32(probe: Probe) -> None:
    terms = torch.full((100,), 1.001, dtype=torch.float16)
    terms[0] = 2048.0
    wide = torch.rand(4)
    checked(probe, lambda: [torch.dot(terms, terms), torch.dot(wide, wide)], "to_cpu")
    assert [(row["api_name"], row["dtype"]) for row in rows(probe)] == [
        ("Torch.dot.0.forward", "torch.float16")
    ]


# --- which calls ---


MULS, RELUS = ["Torch.mul.0", "Torch.mul.1"], ["Torch.relu.0", "Functional.relu.0"]


def several() -> None:
    x = torch.tensor([1.0, 2.0])
    torch.relu(torch.mul(x, torch.mul(x, x)))
    F.relu(x)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        pytest.param({}, [*MULS, *RELUS], marks=pytest.mark.spec("C031", "PT")),
        pytest.param({"list": ["relu"]}, RELUS, marks=pytest.mark.spec("C033", "PT")),
        pytest.param({"scope": ["Torch.mul.1"]}, ["Torch.mul.1"], marks=pytest.mark.spec("C030", "PT")),
        pytest.param(
            {"scope": ["Torch.mul.0.forward", "Functional.relu.0"]},
            ["Torch.mul.0", "Functional.relu.0"],
            marks=pytest.mark.spec("C030", "PT"),
        ),
    ],
)
def test_scope_and_list(probe: Probe, section: dict[str, Any], expected: list[str]) -> None:
    checked(probe, several, "change_value", **section)
    assert names(probe) == [f"{name}.forward" for name in expected]


@pytest.mark.spec("C105", "PT")
def test_the_printed_example(probe: Probe) -> None:
    section = {
        "scope": [],
        "list": ["conv2d"],
        "fuzz_device": "npu",
        "pert_mode": "improve_precision",
        "handler_type": "check",
        "fuzz_level": "L1",
        "fuzz_stage": "forward",
        "if_preheat": False,
        "preheat_step": 15,
        "max_sample": 20,
    }
    debugger = probe.debugger(task="free_benchmark", section=section, rank=[], step=[])
    image = torch.full((1, 8, 4, 4), 100.0, dtype=torch.float16)
    debugger.start()
    F.conv2d(image, torch.full((2, 8, 3, 3), 100.0, dtype=torch.float16))  # is infinite in float16
    F.relu(image)
    debugger.stop()
    debugger.step()
    assert [(row["api_name"], row["max_rel"]) for row in rows(probe)] == [
        ("Functional.conv2d.0.forward", "inf")
    ]


# --- fix ---


@pytest.mark.spec("C044", "PT")
@pytest.mark.parametrize("mode", ["improve_precision", "to_cpu"])
def test_fix_gives_the_better_answer_and_its_gradient(probe: Probe, mode: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 64, dtype=torch.bfloat16, requires_grad=True)
    w = (torch.rand(64, 3, dtype=torch.bfloat16) - 0.5).requires_grad_()
    given = torch.rand(4, 3, dtype=torch.bfloat16)

    def work() -> Tensor:
        output = torch.matmul(x, w)
        output.backward(given)
        return output

    output = checked(probe, work, mode, handler_type="fix", list=["matmul"])
    with torch.enable_grad():
        wide_x, wide_w = x.detach().float().requires_grad_(), w.detach().float().requires_grad_()
        better = torch.matmul(wide_x, wide_w).to(torch.bfloat16)
        better.backward(given)
    assert torch.equal(output, better)
    assert wide_x.grad is not None
    assert wide_w.grad is not None
    assert torch.equal(x.grad, wide_x.grad.to(torch.bfloat16))
    assert torch.equal(w.grad, wide_w.grad.to(torch.bfloat16))
    assert rows(probe) == []


@pytest.mark.spec("C044", "PT")
def test_fix_keeps_the_kind_of_the_output_and_leaves_in_place_calls(
    probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.rand(4, 6, dtype=torch.float16)

    def work() -> list[Any]:
        y = x.clone()
        same = y.add_(1)
        return [torch.max(x, dim=1), torch.split(x, 2), same is y]

    biggest, parts, is_same = checked(probe, work, "improve_precision", handler_type="fix")
    assert isinstance(biggest, torch.return_types.max)
    assert torch.equal(biggest.values, x.max(dim=1).values)
    assert [part.dtype for part in (biggest.values, biggest.indices, *parts)] == [
        torch.float16,
        torch.int64,
        torch.float16,
        torch.float16,
    ]
    assert is_same
    assert "1 call is in place" in caplog.text


@pytest.mark.spec("C044", "PT")
def test_fix_draws_the_same_random_numbers_also_when_checkpointed(probe: Probe) -> None:
    """What is raised changes nothing here, so that the whole training must come out as it was."""
    plain = train(NETS["non_reentrant"])
    assert train(NETS["non_reentrant"], free(probe, "to_cpu", handler_type="fix")) == plain


# --- gradients ---


@pytest.mark.spec("C046", "PT")
def test_backward(probe: Probe) -> None:
    def work() -> None:
        x = torch.tensor([3.0, 4.0], requires_grad=True)
        y = torch.tensor([5.0, 7.0], requires_grad=True)
        torch.mul(x, y).sum().backward()

    checked(probe, work, "change_value", fuzz_stage="backward", list=["mul"])
    assert [
        (row["stage"], row["api_name"], float(row["max_rel"]), row["shape"], row["output_index"])
        for row in rows(probe)
    ] == [("backward", "Torch.mul.0.backward", pytest.approx(1 / 3), "(2,)", "1")]


@pytest.mark.spec("C046", "PT")
def test_backward_that_loses_digits(probe: Probe) -> None:
    def loss(x: Tensor) -> Tensor:
        return torch.sin(x).sum()  # the gradient of a large angle hangs on its last bits

    def work() -> None:
        loss(torch.tensor([30000.1], requires_grad=True)).backward()
        loss(torch.tensor([0.1], requires_grad=True)).backward()

    checked(probe, work, "bit_noise", fuzz_stage="backward")
    assert names(probe) == ["Torch.sin.0.backward"]


# --- preheating ---


@pytest.mark.spec("C047", "PT")
@pytest.mark.spec("C048", "PT")
@pytest.mark.spec("C049", "PT")
def test_preheating_widens_what_is_normal(probe: Probe) -> None:
    """The difference moves by 1/384, and the host agrees with it: only a move like no other is told."""
    section = {"if_preheat": True, "preheat_step": 3, "max_sample": 1, "list": ["sub"]}
    debugger = free(probe, "bit_noise", **section)
    told = []
    for step in range(5):
        x, y = nearly()
        if step == 4:
            x[0] = y[0] + 2**-7
        debugger.start()
        torch.sub(x, y)
        debugger.stop()
        debugger.step()
        told.append(len(rows(probe)))
    # Step 0 counts; 1 and 2 halve the limit 2.05 twice, which leaves 1.26; 4 moves by a half.
    assert told == [0, 0, 0, 0, 1]
    assert rows(probe)[0]["step"] == "4"


@pytest.mark.spec("C047", "PT")
def test_without_preheating_the_same_is_told_at_once(probe: Probe) -> None:
    checked(probe, lambda: torch.sub(*nearly()), "bit_noise", list=["sub"])
    assert names(probe) == ["Torch.sub.0.forward"]


@pytest.mark.parametrize(("preheat", "told"), [(False, ["0", "1", "2"]), (True, [])])
def test_preheating_goes_with_gradients(probe: Probe, preheat: bool, told: list[str]) -> None:
    section = {"if_preheat": preheat, "preheat_step": 3, "fuzz_stage": "backward", "list": ["sin"]}
    debugger = free(probe, "bit_noise", **section)
    for _ in range(3):
        debugger.start()
        torch.sin(torch.tensor([30000.1, 2.0], requires_grad=True)).sum().backward()
        debugger.stop()
        debugger.step()
    assert [row["step"] for row in rows(probe)] == told


# --- a planted fault ---


@pytest.mark.parametrize("net", ["transformer", "conv"])
@pytest.mark.parametrize("fault", [False, True])
def test_the_example_names_the_subtraction(net: str, fault: bool, probe: Probe) -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        import unstable_torch
    finally:
        sys.path.remove(str(EXAMPLES))
    found = unstable_torch.check(net, fault, probe.folder)
    assert [(row["step"], row["api_name"]) for row in found] == (
        [("0", "Tensor.__sub__.0.forward"), ("1", "Tensor.__sub__.0.forward")] if fault else []
    )


def test_each_api_is_told_once_in_the_log(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    checked(probe, lambda: [torch.sub(*nearly()) for _ in range(3)], "bit_noise")
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == [
        "Torch.sub.0.forward is not stable under bit_noise: its largest relative error is 0.0026; beyond "
        "the limit of the specified rule: 1 of 2 elements of a torch.float32 of shape (2,)."
    ]
    assert len(rows(probe)) == 3


# --- what is named, and what cannot be told ---


class Fault(TorchDispatchMode):
    """A kernel of a device that is wrong by a factor in half precision."""

    def __init__(self, kernel: str, factor: float) -> None:
        super().__init__()
        self._kernel, self._factor = kernel, factor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func.__name__.partition(".")[0] != self._kernel or args[0].dtype is torch.float32:
            return output
        if isinstance(output, tuple):
            return (output[0] * self._factor, *output[1:])
        return output * self._factor


def half_net(dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(3)
    x, up, down = (torch.randn(*shape, generator=random) for shape in ((32, 48), (96, 48), (48, 96)))
    x, up, down = (value.to(dtype).requires_grad_() for value in (x, up / 7, down / 10))
    hidden = F.gelu(F.linear(F.layer_norm(x, (48,)), up))
    weights = F.softmax(F.linear(hidden, down), -1)
    return F.cross_entropy(weights, torch.arange(32) % 48)


def named(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [message.partition(" ")[0] for message in told if " is not stable under " in message]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("kernel", "call"),
    [
        ("gelu", "Functional.gelu.0.forward"),
        ("mm", "Functional.linear.0.forward"),
        ("native_layer_norm", "Functional.layer_norm.0.forward"),
        ("_softmax", "Functional.softmax.0.forward"),
        ("gelu_backward", "Functional.gelu.0.backward"),
        ("_softmax_backward_data", "Functional.softmax.0.backward"),
        ("", ""),
    ],
)
def test_a_kernel_wrong_by_two_percent_is_named_and_no_sound_one(
    probe: Probe, caplog: pytest.LogCaptureFixture, kernel: str, call: str, dtype: torch.dtype
) -> None:
    stage = "backward" if "backward" in kernel else "forward"
    apis = ["Functional.gelu", "linear", "layer_norm", "Functional.softmax", "cross_entropy"]
    with Fault(kernel, 1.02):
        checked(probe, lambda: half_net(dtype).backward(), "improve_precision", fuzz_stage=stage, list=apis)
    assert named(caplog) == ([call] if call else [])


@pytest.mark.parametrize("stage", ["forward", "backward"])
@pytest.mark.parametrize("mode", ["bit_noise", "add_noise"])
def test_noise_in_bfloat16_names_no_sound_call_and_says_what_it_cannot_tell(
    probe: Probe, caplog: pytest.LogCaptureFixture, mode: str, stage: str
) -> None:
    caplog.set_level(logging.INFO)
    checked(probe, lambda: half_net(torch.bfloat16).backward(), mode, fuzz_stage=stage)
    assert named(caplog) == []
    (summary,) = [text for text in caplog.messages if text.startswith("step 0: free_benchmark made")]
    assert ", 0 not" in summary
    if mode == "bit_noise":
        assert "the change of the input is as large as rounding in bfloat16" in summary
        assert "rounding in bfloat16; use improve_precision instead." in summary
    if stage == "forward":
        assert rows(probe)  # the specified rule has rows of sound calls


def test_noise_that_changes_nothing_cannot_tell(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    checked(probe, lambda: torch.exp(torch.tensor([3.0, 5.0])), "add_noise", list=["exp"])
    reason = "the noise is smaller than the last bit of float32, so that it changes nothing"
    assert f"{reason}; use bit_noise instead." in caplog.text  # improve_precision checks nothing in float32


def test_places_that_are_exchanged_accuse_no_sound_call(
    probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    """What most calls give depends on where the numbers stand, as in a product of matrices."""
    caplog.set_level(logging.INFO)
    mask = torch.tensor([[0.0, -torch.inf], [1.0, 2.0]])

    def work() -> None:
        half_net(torch.float32).backward()
        torch.unique_consecutive(torch.exp(mask))
        torch.nonzero(mask)

    checked(probe, work, "change_value")
    assert named(caplog) == []
    (summary,) = [text for text in caplog.messages if text.startswith("step 0: free_benchmark made")]
    assert ", 0 not" in summary and "may depend on where single numbers stand" in summary


@pytest.mark.parametrize("call", ["sum", "mean", "norm"])
def test_a_reduction_that_minds_the_order_is_named(
    probe: Probe, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """A kernel that leaves out the last number of a tensor."""

    class Short(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(args[0][:-1], *args[1:], **(kwargs or {})) if args[0].ndim else func(*args)

    x = torch.linspace(1.0, 2.0, 64)
    with Short():
        checked(probe, lambda: getattr(torch, call)(x), "change_value", list=[call])
    assert named(caplog) == [f"Torch.{call}.0.forward"]


def test_a_reduction_that_does_not_is_stable(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    x = torch.linspace(1.0, 2.0, 64)
    checked(probe, lambda: [torch.sum(x), torch.mean(x), torch.norm(x), torch.amax(x)], "change_value")
    assert "made 4 calls again (change_value): 4 stable, 0 not." in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_digits_that_are_lost_as_a_whole_are_named_in_each_dtype(
    probe: Probe, caplog: pytest.LogCaptureFixture, dtype: torch.dtype
) -> None:
    x = torch.linspace(100.0, 200.0, 64).to(dtype)
    checked(
        probe,
        lambda: torch.sub(x, x - x.abs().max() * torch.finfo(dtype).eps),
        "bit_noise",
        list=["Torch.sub"],
    )
    assert named(caplog) == ["Torch.sub.0.forward"]
