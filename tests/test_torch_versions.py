"""A tensor is described once for each of its states: never twice for one, never once for two."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn

from msprobe.pytorch import debugger as door
from msprobe.pytorch.versions import Versions
from torch_fixtures import Probe, probe

__all__ = ["probe"]


def fused(x: Tensor) -> None:
    parameter = nn.Parameter(torch.empty(0))
    parameter.data = x
    parameter.grad = torch.ones_like(x)
    torch.optim.SGD([parameter], lr=1.0, fused=True).step()


def reduce(x: Tensor) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        torch.distributed.all_reduce(x)
        x.data.add_(1)  # with one process nothing else changes it
    finally:
        torch.distributed.destroy_process_group()


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda x: x.add_(1),
    "operator": lambda x: x.__iadd__(1),
    "item": lambda x: x.__setitem__(0, 5.0),
    "detached": lambda x: x.detach().mul_(3),
    "view": lambda x: x.view(-1)[1:].zero_(),
    ".data": lambda x: x.data.mul_(3),
    ".data set": lambda x: setattr(x, "data", torch.zeros(3)),
    "numpy": lambda x: np.add(x.numpy(), 1, out=x.numpy()),
    "out=": lambda x: torch.add(x, 1, out=x),
    "copy_": lambda x: x.copy_(torch.zeros(3)),
    "fused": fused,
    "collective": reduce,
}


@pytest.mark.parametrize("level", ["L0", "L1"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(probe: Probe, name: str, level: str) -> None:
    model = nn.Sequential(nn.Identity())
    x = torch.ones(3)
    debugger = probe.debugger(level, "tensor")
    debugger.start(model)
    torch.sin(model(x))
    CHANGES[name](x)
    after = x.clone()
    torch.sin(model(x))
    debugger.stop()
    debugger.step()
    record = "Torch.sin.{}.forward" if level == "L1" else "Module.0.Identity.forward.{}"
    first, second = (probe.tensor(f"{record.format(count)}.input.0") for count in (0, 1))
    assert (first == 1).all()
    assert torch.equal(second, after)
    assert not torch.equal(first, second)
    seen = probe.data()[record.format(1)]["input_args"][0]
    assert [seen["Max"], seen["Min"]] == [after.max().item(), after.min().item()]


def test_running_statistics_are_seen_as_they_change(probe: Probe) -> None:
    mean, variance = torch.zeros(3), torch.ones(3)
    debugger = probe.debugger("L1")
    debugger.start()
    for _ in range(2):
        F.batch_norm(torch.ones(4, 3) * 8, mean, variance, training=True, momentum=0.5)
    debugger.stop()
    debugger.step()
    seen = [
        probe.data()[f"Functional.batch_norm.{count}.forward"]["input_args"][1]["Max"] for count in (0, 1)
    ]
    assert seen == [0.0, 4.0]


def test_an_alias_from_before_is_seen_through(probe: Probe) -> None:
    """Flat buffers hold the memory of parameters long before start()."""
    flat = torch.ones(6)
    parameter = nn.Parameter(flat[:3])
    parameter.data = flat[:3]
    debugger = probe.debugger("L1")
    debugger.start()
    torch.sin(parameter)
    flat.mul_(2)
    torch.sin(parameter)
    debugger.stop()
    debugger.step()
    assert probe.data()["Torch.sin.1.forward"]["input_args"][0]["Max"] == 2.0


def test_what_did_not_change_has_the_version_it_had() -> None:
    versions = Versions()
    x = torch.randn(4, 4)
    before = versions.of(x)
    torch.sin(x)
    assert versions.of(x) == before != None  # noqa: E711
    assert versions.of(x.requires_grad_()) != before


@pytest.mark.parametrize("name", ["sparse", "meta", "inference", "subclass"])
def test_nothing_is_said_of_what_cannot_be_known(name: str) -> None:
    class Sub(Tensor):
        pass

    with torch.inference_mode():
        inference = torch.ones(2)
    made = {
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.ones(2, device="meta"),
        "inference": inference,
        "subclass": torch.ones(2).as_subclass(Sub),
    }
    versions = Versions()
    for tensor in made.values():
        versions.escaped(tensor)
    assert versions.of(made[name]) is None


def test_what_got_out_is_asked_anew() -> None:
    versions = Versions()
    x = torch.ones(3)
    assert versions.of(x) is not None
    versions.escaped(x.view(-1))
    assert versions.of(x) is None
    versions.forget()
    assert versions.of(x) is not None


@pytest.mark.parametrize("name", ["whole", "view", "transposed view", "last"])
def test_freed_memory_is_not_looked_at(probe: Probe, name: str) -> None:
    """Sharded parameters are freed between their uses; the address of a view is then its offset."""
    whole = torch.ones(4, 5)
    made = {"whole": whole, "view": whole[2:], "transposed view": whole.t()[1:], "last": whole.view(-1)[19]}
    tensor = made[name]
    whole.untyped_storage().resize_(0)
    assert Versions().of(tensor) is None
    debugger = probe.debugger("L1")
    debugger.start()
    torch.reshape(tensor, tensor.shape)
    debugger.stop()
    debugger.step()
    assert probe.data()["Torch.reshape.0.forward"]["input_args"][0]["Max"] is None


OUTSIDE: dict[str, Callable[[np.ndarray], Tensor]] = {
    "as it is": torch.from_numpy,
    "permuted": lambda memory: torch.from_numpy(memory).permute(2, 0, 1),
    "view": lambda memory: torch.from_numpy(memory)[1:],
    "frombuffer": lambda memory: torch.frombuffer(memory, dtype=torch.float32),
    "dlpack": torch.from_dlpack,
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_memory_from_outside_is_looked_at_each_time(probe: Probe, name: str) -> None:
    """A loader fills one buffer again and again, and a single number may be all that differs."""
    memory = np.ones((64, 64, 3), np.float32)
    x = OUTSIDE[name](memory)
    debugger = probe.debugger("L1")
    debugger.start()
    torch.sin(x)
    memory[41, 37, 1] = 7
    torch.sin(x)
    debugger.stop()
    debugger.step()
    seen = [probe.data()[f"Torch.sin.{count}.forward"]["input_args"][0]["Max"] for count in (0, 1)]
    assert seen == [1.0, 7.0]


@pytest.mark.parametrize("make", [Tensor.t, lambda x: x[:, 1:], lambda x: x[::2], lambda x: x[1:].t()[::3]])
def test_a_tensor_with_gaps_is_looked_at_to_its_end(make: Callable[[Tensor], Tensor]) -> None:
    whole = torch.ones(5, 4)
    alias = whole.data  # counts its own changes
    x = make(whole)
    versions = Versions()
    before = versions.of(x)
    assert versions.of(x) == before
    make(alias)[-1, -1] = 5
    assert versions.of(x) != before


REFILLS: dict[str, Callable[[Tensor, Tensor], object]] = {
    ".data": lambda x, other: setattr(x, "data", other[3:]),
    "set_": lambda x, other: x.set_(other),
    "set_ to a storage": lambda x, other: x.set_(other.untyped_storage()),
}


@pytest.mark.parametrize("level", ["L0", "L1"])
@pytest.mark.parametrize("name", REFILLS)
def test_a_tensor_that_gets_other_memory_shares_it(probe: Probe, name: str, level: str) -> None:
    """A flat buffer takes the parameters in; neither the old memory nor the new is theirs alone."""
    x, other = torch.ones(3), torch.ones(6)
    old, new = x[:], other[:]
    debugger = probe.debugger(level)
    debugger.start(nn.Sequential(nn.Identity()))
    version_of = door._the.get().adapter.version_of
    with torch._C.DisableTorchFunction():
        before = [version_of(tensor) is None for tensor in (x, old, new)]
    REFILLS[name](x, other)
    with torch._C.DisableTorchFunction():
        after = [version_of(tensor) is None for tensor in (x, old, new)]
    debugger.stop()
    assert (before, after) == ([False] * 3, [True] * 3)
