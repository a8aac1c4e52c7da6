"""Every kind of training is recorded as it is: precision, threads, workers, errors, hooks, optimizers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.data import DataLoader, Dataset

from msprobe.compare import compare
from nets import NETS, Custom, Gpt, Nested, Shared, gpt_loss, raw, row_loss, seed, train
from torch_fixtures import Probe, names, probe, record

__all__ = ["probe"]


@pytest.mark.spec("P14", "PT")
def test_autocast_is_recorded_in_the_precision_that_was_used(probe: Probe) -> None:
    train(NETS["bf16"], probe.debugger("mix"), steps=1)
    data = probe.data()
    assert data["Functional.linear.0.forward"]["output"][0]["dtype"] == "torch.bfloat16"
    assert data["Module.head.Linear.forward.0"]["output"][0]["dtype"] == "torch.bfloat16"
    assert data["Module.head.Linear.forward.0"]["parameters"]["weight"]["dtype"] == "torch.float32"
    assert data["Module.head.Linear.backward.0"]["input"][0]["dtype"] == "torch.bfloat16"
    assert data["Module.head.Linear.parameters_grad"]["weight"][0]["dtype"] == "torch.float32"


@pytest.mark.spec("P14", "PT")
def test_a_function_with_a_backward_of_its_own(probe: Probe) -> None:
    model = Custom()
    record(probe, lambda: row_loss(model, 0).backward(), "L0", model, task="tensor")
    x = probe.tensor("Module.first.Linear.forward.0.output.0")
    sign = x.sign().abs()
    arrived = probe.tensor("Module.last.Linear.backward.0.output.0") * sign
    wanted = 2.0 * arrived / (1 + x.abs()).square()
    torch.testing.assert_close(probe.tensor("Module.first.Linear.backward.0.input.0"), wanted)


@pytest.mark.spec("P14", "PT")
def test_a_module_called_often_and_known_by_two_names(probe: Probe) -> None:
    model = Shared()
    record(probe, lambda: row_loss(model, 0).backward(), "L0", model)
    assert [name for name in names(probe) if "layer" in name or "again" in name] == [
        f"Module.layer.Linear.forward.{count}" for count in range(3)
    ]
    assert [name for name in names(probe, "backward") if "layer" in name] == [
        f"Module.layer.Linear.backward.{count}" for count in (2, 1, 0)
    ]
    gradient = probe.data()["Module.layer.Linear.parameters_grad"]["weight"]
    assert gradient == probe.data()["Module.tied.Linear.parameters_grad"]["weight"]


@pytest.mark.spec("P14", "PT")
@pytest.mark.parametrize("way", [torch.no_grad, torch.inference_mode])
def test_without_gradients_only_forward_is_recorded(probe: Probe, way: Callable[[], Any]) -> None:
    model = Gpt()

    def work() -> Tensor:
        with way():
            return gpt_loss(model, 0)

    loss = record(probe, work, "mix", model)
    assert names(probe, "backward") == names(probe, "parameters_grad") == []
    entry = probe.data()["Functional.cross_entropy.0.forward"]
    assert entry["output"][0]["Max"] == loss.item()
    assert entry["output"][0]["requires_grad"] is False
    assert "Module.head.Linear.forward.0" in probe.data()


def test_a_model_traced_with_open_sizes_leaves_a_recording_that_can_be_compared(probe: Probe) -> None:
    def work() -> Any:
        return make_fx(torch.relu, tracing_mode="symbolic")(torch.ones(5, 3))

    record(probe, work)
    entry = probe.data()["Torch.relu.0.forward"]["output"][0]
    assert (entry["shape"], entry["Max"]) == ([-1, -1], None)
    (found,) = compare(probe.folder, probe.folder)
    places = [finding.pair.place.name for finding in found.findings]
    assert found.verdicts[places.index("Torch.relu.0.forward.output.0")].level == "not judged"


def test_a_nested_tensor_without_values_has_the_shape_of_its_values(probe: Probe) -> None:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).to("meta")
    record(probe, lambda: torch.relu(nested))
    entry = probe.data()["Torch.relu.0.forward"]["output"][0]
    assert (entry["shape"], entry["Max"]) == ([6, 3], None)


def test_inference_tensors_are_read_anew_each_time(probe: Probe) -> None:
    """Their versions are not counted, so a change could not be noticed otherwise."""

    def work() -> None:
        with torch.inference_mode():
            x = torch.zeros(3)
            torch.exp(x)
            x.add_(1)
            torch.exp(x)

    record(probe, work)
    assert probe.data()["Torch.exp.1.forward"]["input_args"][0]["Max"] == 1.0


class Rows(Dataset[Tensor]):
    """Computes in the workers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return F.relu(torch.full((3,), float(index)) * 2)


@pytest.mark.parametrize("start_first", [True, False])
def test_workers_of_a_data_loader_record_nothing(probe: Probe, start_first: bool) -> None:
    debugger = probe.debugger("L1")
    loader = DataLoader(Rows(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    if start_first:
        debugger.start()
    batches = []
    for batch in loader:
        if not start_first:
            debugger.start()
        batches.append(torch.exp(batch))
    debugger.stop()
    debugger.step()
    assert torch.equal(torch.cat(batches), torch.exp(torch.arange(4.0).view(4, 1) * 2).expand(4, 3))
    assert [name for name in names(probe) if "exp" in name] == ["Torch.exp.0.forward", "Torch.exp.1.forward"]
    assert not [name for name in names(probe) if "relu" in name or "full" in name or "__mul__" in name]
    assert probe.troubles() == ""


def test_a_model_called_from_another_thread(probe: Probe) -> None:
    model = Gpt()
    losses: list[Tensor] = []

    def work() -> None:
        seed()
        losses.append(gpt_loss(model, 0))
        losses[0].backward()

    def in_thread() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    seed()
    wanted = gpt_loss(model, 0)
    record(probe, in_thread, "mix", model)
    assert raw(losses[0]) == raw(wanted)
    assert {"Module.head.Linear.forward.0", "Functional.linear.0.forward", "Torch.matmul.0.forward"} <= set(
        names(probe)
    )
    assert {"Module.head.Linear.backward.0", "Torch.matmul.0.backward"} <= set(names(probe, "backward"))


def test_threads_that_call_one_module_with_hooks_at_the_same_time(probe: Probe) -> None:
    """The hook by which we look behind those of the module stands on the module, where all threads see it."""
    model = nn.Sequential(nn.Identity())
    together = threading.Barrier(2, timeout=10)

    def wait(*_: Any) -> None:
        together.wait()

    model[0].register_forward_pre_hook(wait)
    given = [1.0, 2.0]
    got: list[float] = []

    def called(value: float) -> None:
        for _ in range(20):
            got.append(model(torch.full((2,), value)).max().item())

    def in_threads() -> None:
        threads = [threading.Thread(target=called, args=(value,)) for value in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    record(probe, in_threads, "L0", model)
    assert sorted(got) == [1.0] * 20 + [2.0] * 20
    seen = [(entry["input_args"][0]["Max"], entry["output"][0]["Max"]) for entry in probe.data().values()]
    assert sorted(seen) == [(1.0, 1.0)] * 20 + [(2.0, 2.0)] * 20
    assert len(model[0]._forward_pre_hooks) == 1


# --- exceptions ---


@pytest.mark.spec("P15", "PT")
def test_an_exception_is_the_same_object_and_later_calls_are_recorded(probe: Probe) -> None:
    class Stop(BaseException):
        pass

    stop = Stop()

    class Raising(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise stop

    x = torch.ones(2)

    def work() -> None:
        with pytest.raises(RuntimeError, match="size of tensor"):
            torch.add(x, torch.ones(3))
        try:
            with Raising():
                F.softmax(x, dim=-1)
        except Stop as error:
            assert error is stop
        torch.add(x, 1)

    record(probe, work)
    data = probe.data()
    assert list(data) == ["Torch.add.0.forward", "Functional.softmax.0.forward", "Torch.add.1.forward"]
    assert data["Torch.add.0.forward"]["exception"].startswith("RuntimeError: The size of tensor a (2)")
    assert [item["shape"] for item in data["Torch.add.0.forward"]["input_args"]] == [[2], [3]]
    assert data["Functional.softmax.0.forward"]["exception"] == "Stop: "
    assert "exception" not in data["Torch.add.1.forward"]


class Careful(nn.Module):
    """Catches what its child raises, and goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.bad, self.good = nn.Sequential(nn.Linear(3, 3)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.bad(x)
        except RuntimeError:
            return self.good(x)


@pytest.mark.spec("P15", "PT")
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_failing_module_is_recorded_and_leaves_its_parents_in_order(probe: Probe, level: str) -> None:
    model = nn.Sequential(Careful(), nn.Linear(4, 2))
    record(probe, lambda: model(torch.ones(2, 4)).sum().backward(), level, model)
    data = probe.data()
    assert "mat1 and mat2 shapes" in data["Module.0.bad.0.Linear.forward.0"]["exception"]
    assert "mat1 and mat2 shapes" in data["Module.0.bad.Sequential.forward.0"]["exception"]
    assert "exception" not in data["Module.0.Careful.forward.0"]
    parents = probe.construct()
    assert parents["Module.0.good.Linear.forward.0"] == "Module.0.Careful.forward.0"
    assert parents["Module.0.bad.0.Linear.forward.0"] == "Module.0.bad.Sequential.forward.0"
    assert parents["Module.0.Careful.forward.0"] is parents["Module.1.Linear.forward.0"] is None
    assert {"Module.0.good.Linear.backward.0", "Module.0.Careful.backward.0"} <= set(data)


# --- what the user hangs on modules and tensors ---


def test_hooks_of_the_user_see_what_they_saw(probe: Probe) -> None:
    def run(debugger: Any = None) -> list[Any]:
        seed()
        model = Nested()
        seen: list[Any] = []
        model.head.register_forward_pre_hook(lambda _m, args: seen.append(raw(args[0])))
        model.head.register_forward_hook(lambda _m, _a, output: seen.append(raw(output)) or output * 2)
        model.head.register_full_backward_hook(lambda _m, gi, go: seen.append((raw(gi[0]), raw(go[0]))))
        model.join.register_forward_pre_hook(
            lambda _m, args, kwargs: seen.append(sorted(kwargs)) or (args, kwargs), with_kwargs=True
        )
        model.split.layer.weight.register_hook(lambda gradient: seen.append(raw(gradient)))
        if debugger is not None:
            debugger.start(model)
        loss = row_loss(model, 0)
        loss.register_hook(lambda gradient: seen.append(raw(gradient)))
        loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        return seen

    assert run(probe.debugger("mix")) == run()
    data = probe.data()
    assert {"Module.head.Linear.backward.0", "Module.join.Join.backward.0"} <= set(data)


def test_a_hook_before_a_module_changes_what_it_is_recorded_with(probe: Probe) -> None:
    """As when parameters or inputs are fetched from elsewhere just in time."""
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 0 + 5,))
    record(probe, lambda: model(torch.ones(1, 2)), "L0", model)
    entry = probe.data()["Module.0.Linear.forward.0"]
    assert entry["input_args"][0]["Max"] == 5.0
    assert len(model[0]._forward_pre_hooks) == 1


def test_tensors_by_keyword_and_in_containers_have_gradients(probe: Probe) -> None:
    model = Nested()
    record(probe, lambda: row_loss(model, 0).backward(), "L0", model)
    data = probe.data()
    entry = data["Module.join.Join.forward.0"]
    assert [list(entry["input_args"][0]), list(entry["input_kwargs"])] == [
        ["hidden", "named"],
        ["pair", "extras"],
    ]
    assert list(entry["input_kwargs"]["pair"]) == ["low", "high"]
    shapes = [leaf and leaf["shape"] for leaf in data["Module.join.Join.backward.0"]["output"]]
    assert shapes == [[5, 6], [], [5, 3], [5, 3]]
    assert [leaf and leaf["shape"] for leaf in data["Module.split.Split.backward.0"]["input"]] == [
        [5, 6],
        [],
        [5, 3],
        [5, 3],
    ]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "AdamW foreach", "AdamW fused", "Adagrad", "LBFGS"])
def test_optimizers_do_what_they_did(probe: Probe, optimizer: str) -> None:
    kind, _, way = optimizer.partition(" ")

    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = getattr(torch.optim, kind)(
            parameters, lr=lr, **({way: True} if way else {})
        )
        return made

    if kind == "LBFGS":
        assert _lbfgs(probe.debugger("L1")) == _lbfgs(None)
        return
    debugger = probe.debugger("mix")
    assert train(NETS["shared"], debugger, make_optimizer=make) == train(NETS["shared"], make_optimizer=make)
    parents = probe.construct()
    assert [name for name, parent in parents.items() if parent == "clip_grad"]


def _lbfgs(debugger: Any) -> list[bytes | None]:
    seed()
    model = Shared()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = row_loss(model, 0)
        loss.backward()
        return loss

    if debugger is not None:
        debugger.start(model)
    optimizer.step(closure)
    if debugger is not None:
        debugger.stop()
        debugger.step()
    return [raw(p) for p in model.parameters()]


# --- stacks and parents ---


@pytest.mark.spec("P09", "PT")
def test_a_stack_is_the_users_and_only_the_users(probe: Probe) -> None:
    model = Gpt()
    record(probe, lambda: gpt_loss(model, 0).backward(), "mix", model)
    stack = probe.stack()
    assert set(stack) == {name for name in probe.data() if "forward" in name}
    frames = stack["Functional.gelu.0.forward"]
    assert [frame.partition(", in ")[2].split(",")[0] for frame in frames[:3]] == [
        "forward",
        "_call_impl",
        "_wrapped_call_impl",
    ]
    assert frames[0].endswith("return x + self.down(F.gelu(self.up(self.norm2(x))))")
    assert not [
        frame for frames in stack.values() for frame in frames if "msprobe/" in frame.partition(",")[0]
    ]


@pytest.mark.spec("P09", "PT")
def test_each_call_knows_the_module_it_ran_in(probe: Probe) -> None:
    model = Gpt()
    record(probe, lambda: gpt_loss(model, 0).backward(), "mix", model)
    parents = probe.construct()
    attention = "Module.blocks.0.attention.Attention"
    assert parents["Functional.softmax.0.forward"] == f"{attention}.forward.0"
    assert parents["Functional.softmax.0.backward"] == f"{attention}.backward.0"
    assert parents[f"{attention}.forward.0"] == "Module.blocks.0.Block.forward.0"
    assert parents["Module.blocks.0.Block.forward.0"] is None
    assert parents["Functional.cross_entropy.0.forward"] is None
    assert {name for name in probe.data() if "parameters_grad" not in name} == set(parents)


def test_numbers_from_numpy_go_through(probe: Probe) -> None:
    x = torch.ones(3)
    wanted = raw(torch.mul(x, np.float32(2)))
    assert raw(record(probe, lambda: torch.mul(x, np.float32(2)))) == wanted
    assert probe.data()["Torch.mul.0.forward"]["input_args"][1] == {"type": "float32", "value": 2.0}


# --- modes of the user, which see every operation of torch, but none of ours ---


class Watching(TorchDispatchMode):
    """Notes each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def strided_loss(x: Tensor) -> Tensor:
    """Of tensors that cannot be read where they lie: strided, single, complex, changed in part, sparse."""
    part = torch.sin(x.t()[::2])
    h = torch.cos(part[:, ::2])
    h[:1].mul_(2)
    wave = torch.mul(torch.complex(h, h), torch.tensor(1j)).conj()
    table = F.embedding(torch.tensor([0, 1]), h, sparse=True)
    return torch.add(torch.abs(wave).sum(), table.sum()) + torch.einsum("ij,ij,ij->", part, part, part)


@pytest.mark.parametrize("task", ["statistics", "tensor", "md5"])
def test_a_dispatch_mode_of_the_user_sees_what_it_saw(probe: Probe, task: str) -> None:
    def run() -> list[str]:
        x = torch.arange(24.0).view(4, 6).requires_grad_()
        with Watching() as watching:
            strided_loss(x).backward()
        return watching.seen

    wanted = run()
    section = {"summary_mode": "md5"} if task == "md5" else {}
    assert record(probe, run, task="statistics" if task == "md5" else task, section=section) == wanted
    assert "Torch.sin.0.backward" in probe.data()


def saving_clones(_context: Any, func: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    wanted = func is torch.ops.aten.clone.default
    return CheckpointPolicy.MUST_SAVE if wanted else CheckpointPolicy.PREFER_RECOMPUTE


def clones(x: Tensor) -> Tensor:
    return torch.mul(torch.sin(x), x.contiguous()).sum() + torch.cos(x)[::2].contiguous().sum()


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("seen", [False, True], ids=["new", "seen before"])
def test_selective_checkpoints_compute_what_they_computed(probe: Probe, task: str, seen: bool) -> None:
    """Each operation is found again by its count: one of ours between them would give a wrong tensor."""

    def run(debugger: Any = None) -> list[bytes | None]:
        seed()
        x = torch.randn(6, 6, requires_grad=True)
        if debugger is not None:
            debugger.start()
        part = x.t()[::2, ::2]
        if seen:
            torch.neg(part)
        loss = checkpoint(
            clones,
            part,
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts(saving_clones),
        )
        if debugger is not None:
            debugger.stop()
        loss.backward()
        if debugger is not None:
            debugger.step()
        return [raw(loss), raw(x.grad)]

    assert run(probe.debugger("L1", task)) == run()
    assert probe.troubles() == ""
    assert {"Torch.sin.0.forward", "Torch.sin.0.backward"} <= set(probe.data())
