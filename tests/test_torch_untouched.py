"""After stop() torch is what it was, and nothing is held: no hook, no mode, no tensor, no memory."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
import torch.nn.functional as F
import torch.utils.checkpoint
import torch.utils.data.dataloader
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe.errors import UsageError
from nets import NETS, Gpt, gpt_loss, seed
from torch_fixtures import Probe, probe

__all__ = ["probe"]

HOLDERS: tuple[Any, ...] = (
    torch, F, torch.functional, torch.Tensor, torch._C.TensorBase, torch._tensor, torch._VF, nn.Module,
    torch.linalg, torch.distributed, torch.distributed.Work, torch.distributed.ProcessGroup, torch.autograd,
    torch.utils.checkpoint, torch.utils.checkpoint.CheckpointFunction, torch.optim.Optimizer, torch.ops.aten,
    torch.utils.data.dataloader._BaseDataLoaderIter, torch.overrides,
)  # fmt: skip


def torch_as_it_is() -> dict[tuple[str, str], tuple[Any, ...]]:
    """Every attribute of torch that could be exchanged, and of the functions among them what they run."""
    seen = {}
    for holder in HOLDERS:
        for name, value in list(vars(holder).items()):
            if name != "reduce_op":  # deprecated; warns when it is looked at
                seen[str(holder), name] = (value, *_inside(value))
    return seen


def _inside(value: Any) -> tuple[Any, ...]:
    function = getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType):
        return ()
    return function.__code__, function.__defaults__, function.__closure__, dict(function.__dict__)


def assert_same(before: dict[Any, tuple[Any, ...]], after: dict[Any, tuple[Any, ...]]) -> None:
    assert before.keys() == after.keys()
    for key, values in before.items():
        assert all(a is b or a == b for a, b in zip(values, after[key], strict=True)), key


def hooks_of(model: nn.Module) -> list[Any]:
    names = [name for name in vars(model) if name.endswith("_hooks")]
    found = [vars(module)[name] for module in model.modules() for name in names if name in vars(module)]
    return [hooks for hooks in [*found, *(p._backward_hooks for p in model.parameters())] if hooks]


def modes() -> int:
    return torch._C._len_torch_function_stack()


class Broken(nn.Module):
    """Fails deep inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(F.relu(self.layer(x)))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_after_stop_torch_is_untouched(probe: Probe, level: str) -> None:
    debugger = probe.debugger(level)
    model = Gpt()
    gpt_loss(model, 0).backward()
    before = torch_as_it_is()
    for step in range(2):
        debugger.start(model)
        assert level == "L0" or modes() == 1
        gpt_loss(model, step).backward()
        debugger.stop()
        assert_same(before, torch_as_it_is())
        assert (modes(), hooks_of(model)) == (0, [])
        debugger.step()
    assert_same(before, torch_as_it_is())


@pytest.mark.parametrize("end", ["step", "close"])
def test_a_forgotten_stop_is_made_up_for(probe: Probe, end: str) -> None:
    debugger = probe.debugger("mix")
    model = Gpt()
    before = torch_as_it_is()
    debugger.start(model)
    gpt_loss(model, 0)
    debugger.step() if end == "step" else probe.close()
    assert_same(before, torch_as_it_is())
    assert (modes(), hooks_of(model)) == (0, [])


@pytest.mark.spec("P15", "PT")
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_an_exception_in_the_model_leaves_nothing_behind(probe: Probe, level: str) -> None:
    debugger = probe.debugger(level)
    model = Broken()
    before = torch_as_it_is()
    debugger.start(model)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(torch.ones(2, 4))
    model.layer(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    assert_same(before, torch_as_it_is())
    assert modes() == 0
    debugger.step()
    assert hooks_of(model) == []  # until then the gradients of the broken pass may still come
    later = "Functional.linear.3.backward" if level == "L1" else "Module.layer.Linear.backward.1"
    assert later in probe.data()


def test_while_off_nothing_is_installed(probe: Probe) -> None:
    before = torch_as_it_is()
    debugger = probe.debugger("mix", step=[1])
    model = Gpt()
    assert_same(before, torch_as_it_is())
    debugger.start(model)
    assert_same(before, torch_as_it_is())
    assert (modes(), hooks_of(model)) == (0, [])
    debugger.stop()
    debugger.step()
    assert not probe.folder.exists()


def test_other_threads_are_left_as_they_were(probe: Probe) -> None:
    """One thread is there before start(), the other comes later; neither keeps the mode."""
    debugger = probe.debugger("mix")
    model = Gpt()
    counted: dict[str, list[int]] = {}
    started, go = threading.Event(), threading.Event()

    def work(name: str) -> None:
        started.set()
        go.wait()
        counted[name] = [modes()]
        gpt_loss(model, 0).backward()
        counted[name].append(modes())

    early = threading.Thread(target=work, args=("early",))
    early.start()
    started.wait()
    debugger.start(model)
    late = threading.Thread(target=work, args=("late",))
    late.start()
    go.set()
    early.join()
    late.join()
    debugger.stop()
    assert counted == {"early": [0, 0], "late": [0, 0]}
    debugger.step()
    assert {name for name in probe.data() if name.startswith("Functional.softmax")} == {
        f"Functional.softmax.{count}.{direction}" for count in (0, 1) for direction in ("forward", "backward")
    }


def test_a_checkpoint_recomputed_in_another_thread_is_seen(probe: Probe) -> None:
    """On a device backward runs in a thread of its own, while recording goes on here."""
    checkpoint(torch.sin, torch.ones(1, requires_grad=True), use_reentrant=False).backward()  # imports more
    before = torch_as_it_is()
    debugger = probe.debugger("L1")
    debugger.start()
    x = torch.ones(4, requires_grad=True)

    def work() -> None:
        checkpoint(lambda t: (F.relu(t) * 2).sum(), x, use_reentrant=False).backward()

    in_thread(work)
    F.relu(x)
    debugger.stop()
    assert_same(before, torch_as_it_is())
    debugger.step()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 4
    assert "Functional.relu.0.forward" in probe.data()
    assert probe.troubles() == ""


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_checkpoints_recomputed_in_threads_that_overlap(probe: Probe, level: str, restarted: bool) -> None:
    """The one that began first ends first, after stop() and perhaps after the next start()."""
    checkpoint(torch.sin, torch.ones(1, requires_grad=True), use_reentrant=False).backward()  # imports more
    before = torch_as_it_is()
    debugger = probe.debugger(level)
    model = nn.Sequential(nn.Linear(4, 4))
    inside = {name: threading.Event() for name in ("first", "second")}
    go_on = {name: threading.Event() for name in inside}

    def part(name: str, x: torch.Tensor) -> torch.Tensor:
        if is_again[name]:
            inside[name].set()
            go_on[name].wait()
        return torch.sin(F.relu(model(x)) * 2)

    is_again = dict.fromkeys(inside, False)
    debugger.start(model)
    losses = {
        name: checkpoint(part, name, torch.ones(4, requires_grad=True), use_reentrant=False).sum()
        for name in inside
    }
    debugger.stop()
    is_again = dict.fromkeys(inside, True)
    threads = {name: threading.Thread(target=loss.backward) for name, loss in losses.items()}
    for name, thread in threads.items():
        thread.start()
        inside[name].wait()
    if restarted:
        debugger.start(model)
    for name, thread in threads.items():
        go_on[name].set()
        thread.join()
    debugger.stop()
    assert_same(before, torch_as_it_is())
    debugger.step()
    assert probe.troubles() == ""
    again = "Functional.relu" if level == "L1" else "Module.0.Linear"
    seen = {name: entry for name, entry in probe.data().items() if name.startswith(again)}
    assert [entry["is_recompute"] for name, entry in seen.items() if "forward" in name] == [True, True]


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("where", ["backward", "autograd.grad", "a function", "another thread"])
def test_stop_may_come_from_anywhere(probe: Probe, where: str) -> None:
    before = torch_as_it_is()
    debugger = probe.debugger("L1")
    x = torch.ones(2, requires_grad=True)
    debugger.start()
    y = torch.sin(x)
    if where == "another thread":
        in_thread(debugger.stop)
        F.softmax(y, -1)  # the first function of torch's that can let go of the mode
    elif where == "a function":
        F.triplet_margin_with_distance_loss(y, y, y, distance_function=lambda a, b: debugger.stop() or a - b)
    else:
        y.register_hook(lambda _gradient: debugger.stop())
        y.sum().backward() if where == "backward" else torch.autograd.grad(y.sum(), x)
    assert modes() == 0
    assert_same(before, torch_as_it_is())
    debugger.start()
    F.relu(x)
    assert modes() == 1
    debugger.stop()
    assert modes() == 0
    assert_same(before, torch_as_it_is())
    debugger.step()
    assert "Functional.softmax.0.forward" not in probe.data()
    assert "Functional.relu.0.forward" in probe.data()


class Closing:
    """A module of functions that can be closed to changes."""

    closed = False

    def __setattr__(self, name: str, value: Any) -> None:
        if self.closed:
            raise TypeError("closed")
        super().__setattr__(name, value)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_start_that_fails_leaves_torch_as_it_was(probe: Probe, level: str) -> None:
    before = torch_as_it_is()
    debugger = probe.debugger(level)
    mine: Any = Closing()
    mine.work = functools.partial(torch.add, 1)
    debugger.register_custom_api(mine, "work", "Mine")
    mine.__dict__["closed"] = True
    with pytest.raises(TypeError, match="closed"):
        debugger.start(nn.Sequential(nn.Linear(1, 1)))
    assert_same(before, torch_as_it_is())
    assert modes() == 0
    mine.__dict__["closed"] = False
    debugger.start(nn.Sequential(nn.Linear(1, 1)))
    mine.work(torch.ones(1))
    debugger.stop()
    assert_same(before, torch_as_it_is())
    debugger.step()
    assert "Mine.work.0.forward" in probe.data()


def test_what_cannot_be_replaced_is_not_registered(probe: Probe) -> None:
    debugger = probe.debugger("L1")
    with pytest.raises(UsageError, match="'dot' of .*ndarray.* cannot be replaced"):
        debugger.register_custom_api(np.ndarray, "dot")
    debugger.start()
    torch.sin(torch.ones(1))
    debugger.stop()
    debugger.step()
    assert list(probe.data()) == ["Torch.sin.0.forward"]


def test_hooks_of_gradients_that_never_come_end_with_the_step(probe: Probe) -> None:
    debugger = probe.debugger("L0")
    model = Gpt()
    debugger.start(model)
    gpt_loss(model, 0)
    debugger.stop()
    debugger.step()
    assert hooks_of(model) == []


def test_at_exit_without_stop_torch_is_whole_and_the_recording_complete(tmp_path: Path) -> None:
    script = f"""
        import atexit, json, sys
        import torch, torch.nn.functional as F
        code = F.relu.__code__
        def last():
            assert F.relu.__code__ is code and torch._C._len_torch_function_stack() == 0
            assert torch.Tensor.__add__ is torch._C.TensorBase.__add__
            data = json.load(open(r"{tmp_path}/dump/step0/rank/dump.json"))["data"]
            print("names", *data)
        atexit.register(last)
        from msprobe.pytorch import PrecisionDebugger
        debugger = PrecisionDebugger(dump_path=r"{tmp_path}/dump", level="L1")
        debugger.start()
        F.relu(torch.ones(2) + 1)
        sys.exit(3)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert "names Tensor.__add__.0.forward Functional.relu.0.forward\n" in ended.stdout, ended.stderr
    assert ended.returncode == 3


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def follow(probe: Probe, level: str, task: str, steps: int, look_every: int) -> tuple[list[int], list[int]]:
    """How many tensors live, and how much memory is held, from time to time while a model is trained."""
    debugger = probe.debugger(level, task)
    seed()
    model = NETS["gpt"].build()
    optimizer = torch.optim.AdamW(model.parameters())
    tensors, memory = [], []
    for step in range(steps + 1):
        debugger.start(model)
        gpt_loss(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
        if step and step % look_every == 0:
            tensors.append(live_tensors())
            memory.append(resident())
        for file in (probe.folder / f"step{step}").rglob("*.pt"):
            file.unlink()
    return tensors, memory


@pytest.mark.parametrize(("level", "task"), [("mix", "statistics"), ("L1", "tensor")])
def test_no_tensor_outlives_its_step(probe: Probe, level: str, task: str) -> None:
    tensors, _ = follow(probe, level, task, steps=9, look_every=3)
    assert len(set(tensors)) == 1, tensors


@pytest.mark.prove
@pytest.mark.parametrize(("level", "task"), [("mix", "statistics"), ("L1", "tensor")])
def test_nothing_grows_over_150_steps(probe: Probe, level: str, task: str) -> None:
    """In a process of its own: what tests before it left must neither hide growth nor look like it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        tensors, memory = fresh.submit(follow, probe, level, task, steps=250, look_every=50).result()
    assert len(set(tensors)) == 1, tensors
    _, *settled = memory  # threads that write files take their share of the heap in the first steps
    assert max(settled) - settled[0] < 1 << 20, memory


def test_a_call_holds_its_tensors_no_longer_than_the_model_does(probe: Probe) -> None:
    """What a call was given and gave dies when the script lets go of it, in the middle of the recording."""
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    before = live_tensors()
    for make in PASSING:
        make()
        assert live_tensors() == before, make
    debugger.stop()


PASSING: tuple[Callable[[], object], ...] = (
    lambda: torch.matmul(torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)),
    lambda: F.relu(torch.ones(4, requires_grad=True), inplace=False).sum().backward(),
    lambda: torch.ones(4).add_(torch.ones(4, requires_grad=True)),
    lambda: torch.cat([torch.ones(2), torch.ones(3)]),
)
