"""torch.compile: compiled code gives the same, is compiled no more often, and is recorded at its boundary."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

from msprobe.pytorch import compiled, modules
from nets import raw, seed
from torch_fixtures import Probe, probe

__all__ = ["probe"]


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.norm(F.relu(self.layer(x)))) * torch.einsum("ij->i", x).unsqueeze(1)


class Net(nn.Module):
    """Plain code around code that may be compiled, in one way or another."""

    def __init__(self, way: str, backend: str) -> None:
        super().__init__()
        self.first, self.part, self.last = nn.Linear(6, 6), Part(), nn.Linear(6, 3)
        self.way, self.backend = way, backend
        self.run: Any = {
            "submodule": lambda: torch.compile(self.part, backend=backend),
            "function": lambda: torch.compile(lambda x: F.softmax(self.part(x), dim=-1), backend=backend),
            "broken": lambda: torch.compile(self.with_break, backend=backend),
        }.get(way, lambda: self.part)()
        if way == "in place":
            self.part.compile(backend=backend)
        if way == "submodule":
            self.part = self.run

    def with_break(self, x: Tensor) -> Tensor:
        x = self.part(x)
        torch._dynamo.graph_break()
        return F.softmax(self.part.norm(x), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.run(F.relu(self.first(x))))


WAYS = ("submodule", "function", "in place", "broken", "whole")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    compiled._tell.cache_clear()
    modules._tell_compiled.cache_clear()
    yield
    torch._dynamo.reset()


def run(way: str, backend: str, debugger: Any = None, warm: bool = False) -> tuple[list[Any], dict[str, Any]]:
    """Three steps; what they gave, and how often was compiled."""
    torch._dynamo.reset()
    counters.clear()
    seed()
    model = Net(way, backend)
    called: Callable[[Tensor], Tensor] = torch.compile(model, backend=backend) if way == "whole" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if warm:
        called(torch.ones(4, 6)).sum().backward()
        optimizer.zero_grad()
    results: list[Any] = []
    for step in range(3):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        if debugger is not None:
            debugger.start(called)
        loss = F.cross_entropy(called(x), torch.tensor([0, 1, 2, 0]))
        loss.backward()
        if debugger is not None:
            debugger.stop()
        results += [raw(loss), *(raw(p.grad) for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.step()
    return results, {key: dict(counters[key]) for key in ("stats", "graph_break", "frames")}


@pytest.mark.parametrize("warm", [True, False], ids=["compiled before", "compiled while recording"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("way", WAYS)
def test_compiled_code_is_left_alone(probe: Probe, way: str, level: str, backend: str, warm: bool) -> None:
    wanted = run(way, backend, warm=warm)
    got = run(way, backend, probe.debugger(level), warm)
    assert got == wanted
    assert probe.troubles() == ""
    names = list(probe.data(2))
    assert not [name for name in names if name.startswith(("Aten.", "Functional.layer_norm", "Torch.einsum"))]
    outside = {
        "L0": ["Module.last.Linear.forward.0"],
        "L1": ["Functional.linear.1.forward", "Functional.cross_entropy.0.forward"],
        "mix": [
            "Module.last.Linear.forward.0",
            "Module.last.Linear.backward.0",
            "Functional.linear.1.forward",
        ],
    }
    if way != "whole":
        assert set(outside[level]) <= set(names)
        assert not [name for name in names if ".part.layer." in name]
    elif level != "L0":
        assert "Functional.cross_entropy.0.forward" in names


@pytest.mark.parametrize("way", ["submodule", "in place"])
def test_a_compiled_module_is_recorded_at_its_boundary(
    probe: Probe, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "msprobe"):
        logging.getLogger("msprobe").addHandler(caplog.handler)
        run(way, "aot_eager", probe.debugger("mix", "tensor"))
        logging.getLogger("msprobe").removeHandler(caplog.handler)
    entry = probe.data(1)["Module.part.Part.forward.0"]
    assert entry["input_args"][0]["shape"] == entry["output"][0]["shape"] == [4, 6]
    backward = probe.data(1)["Module.part.Part.backward.0"]
    assert [leaf["shape"] for leaf in backward["output"]] == [[4, 6]]
    assert torch.equal(
        probe.tensor("Module.part.Part.backward.0.input.0", 1),
        probe.tensor("Module.last.Linear.backward.0.output.0", 1),
    )
    told = [record.getMessage() for record in caplog.records if "compiled" in record.getMessage()]
    assert len(told) == len(set(told)) > 0
    if way == "submodule":
        assert "compiled modules are recorded at their boundary only: Module.part.Part." in told


def test_a_compiler_first_used_while_recording(probe: Probe) -> None:
    """`torch.compile` itself is called between start() and stop(), at every step."""

    def work(debugger: Any = None) -> list[Any]:
        torch._dynamo.reset()
        seed()
        part = Part()
        results: list[Any] = []
        for _ in range(2):
            if debugger is not None:
                debugger.start()
            run_part = torch.compile(part, backend="eager")
            results.append(raw(run_part(torch.ones(2, 6))))
            if debugger is not None:
                debugger.stop()
                debugger.step()
        return results

    assert work(probe.debugger("L1")) == work()
    assert not [name for name in probe.data(1) if "layer_norm" in name]


def test_code_that_is_kept_from_the_compiler_goes_on_to_work(probe: Probe) -> None:
    @torch._dynamo.disable
    def aside(x: Tensor) -> Tensor:
        return F.layer_norm(torch.exp(x), (6,))

    called = torch.compile(lambda x: aside(torch.sin(x)) + 1, backend="eager")
    wanted = raw(called(torch.ones(2, 6)))
    debugger = probe.debugger("L1")
    debugger.start()
    got = called(torch.ones(2, 6))
    torch.exp(torch.ones(2))
    debugger.stop()
    debugger.step()
    assert raw(got) == wanted
    assert list(probe.data()) == ["Torch.exp.0.forward"]


def test_compiled_code_inside_a_recorded_function(probe: Probe) -> None:
    distance = torch.compile(lambda a, b: torch.sin(a - b).sum(-1), backend="eager")
    x = torch.ones(2, 6)
    debugger = probe.debugger("L1")
    debugger.start()
    F.triplet_margin_with_distance_loss(x, x, x, distance_function=distance)
    assert torch._C._len_torch_function_stack() == 1
    torch.exp(x)
    debugger.stop()
    debugger.step()
    assert torch._C._len_torch_function_stack() == 0
    assert list(probe.data()) == [
        "Functional.triplet_margin_with_distance_loss.0.forward",
        "Torch.exp.0.forward",
    ]


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("where", ["here", "in another thread"])
def test_stop_inside_compiled_code(probe: Probe, level: str, where: str) -> None:
    """The next step is recorded as if it had come outside."""
    debugger = probe.debugger(level)
    model = nn.Sequential(nn.Linear(6, 6))

    @torch._dynamo.disable
    def stop() -> None:
        debugger.stop()

    def work(x: Tensor) -> Tensor:
        x = torch.sin(x)
        stop()
        return torch.cos(x)

    called = torch.compile(work, backend="eager")
    x = torch.ones(2, 6)
    debugger.start(model)
    if where == "here":
        called(x)
    else:
        thread = threading.Thread(target=called, args=(x,))
        thread.start()
        thread.join()
    for _ in range(2):
        debugger.start(model)
        F.softmax(F.relu(model(x)), -1)
        called(x)
        F.gelu(x)
        debugger.stop()
    debugger.step()
    functional = [name for name in probe.data() if name.startswith("Functional.")]
    assert functional == [
        f"Functional.{name}.{count}.forward" for count in (0, 1) for name in ("linear", "relu", "softmax")
    ]
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.prove
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_inductor(probe: Probe, level: str) -> None:
    assert run("submodule", "inductor", probe.debugger(level)) == run("submodule", "inductor")
