"""Activation checkpointing: the recording is as without it, and says what was recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from nets import Gpt, gpt_loss, seed
from torch_fixtures import Probe, probe

__all__ = ["probe"]

KINDS = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])


def record(probe: Probe, level: str, checkpointing: bool | None, stop_first: bool = False) -> dict[str, Any]:
    """One step of the transformer; the debugger is made in a folder of its own."""
    folder = Path(str(probe.folder) + f"-{checkpointing}-{stop_first}")
    folder.mkdir()
    one = Probe(folder)
    debugger = one.debugger(level)
    seed()
    model = Gpt(layers=2, checkpointing=checkpointing)
    debugger.start(model)
    loss = gpt_loss(model, 0)
    if stop_first:
        debugger.stop()
    loss.backward()
    debugger.stop()
    debugger.step()
    one.close()
    assert one.troubles() == ""
    return {"data": one.data(), "construct": one.construct()}


def without_marks(data: dict[str, Any], *more: str) -> dict[str, Any]:
    """The entries without what checkpointing may change: the mark, and which tensors require a gradient."""
    dropped = ("is_recompute", "requires_grad", "recompute", *more)
    if isinstance(data, list):
        return [without_marks(item, *more) for item in data]  # type: ignore[return-value]
    if isinstance(data, dict):
        return {key: without_marks(item, *more) for key, item in data.items() if key not in dropped}
    return data


@pytest.mark.spec("P13", "PT")
@KINDS
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("stop_first", [False, True], ids=["stop last", "stop before backward"])
def test_the_recording_is_as_without_it(probe: Probe, level: str, reentrant: bool, stop_first: bool) -> None:
    plain = record(probe, level, None, stop_first)
    seen = record(probe, level, reentrant, stop_first)
    assert without_marks(seen["data"]) == without_marks(plain["data"])
    assert seen["construct"] == plain["construct"]
    assert not any(entry.get("is_recompute") for entry in plain["data"].values())
    marked = {name for name, entry in seen["data"].items() if entry.get("is_recompute")}
    if level != "L1":
        inside = {f"Module.blocks.{i}.{part}.forward.0" for i in (0, 1) for part in INSIDE}
        assert marked >= inside
        assert not {name for name in marked if name.startswith("Module.") and ".blocks." not in name}
    if level != "L0":
        assert {
            "Functional.softmax.0.forward",
            "Functional.softmax.1.forward",
            "Functional.gelu.0.forward",
        } <= marked
        assert not {"Functional.embedding.0.forward", "Functional.cross_entropy.0.forward"} & marked
    for entry in seen["data"].values():  # the second run gave the same numbers; stop() forgets who made them
        again = entry.get("recompute", entry)
        assert without_marks(again, "from") == without_marks(entry, "from")


# Not the last layer and what holds it: torch may stop to recompute as soon as it has all that backward needs.
INSIDE = (
    "norm1.LayerNorm",
    "attention.qkv.Linear",
    "attention.drop.Dropout",
    "attention.Attention",
    "up.Linear",
)


class Nested(nn.Module):
    """Checkpointed code in checkpointed code, and a chain of checkpoints."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.chain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
        self.reentrant = reentrant

    def inner(self, x: Tensor) -> Tensor:
        return torch.sin(self.first(x))

    def outer(self, x: Tensor) -> Tensor:
        return torch.cos(self.last(self.run(self.inner, x)) + x)

    def run(self, function: Any, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return function(x)
        return checkpoint(function, x, use_reentrant=self.reentrant)

    def forward(self, x: Tensor) -> Tensor:
        x = self.run(self.outer, x)
        if self.reentrant is None:
            for layer in self.chain:
                x = layer(x)
            return x
        return checkpoint_sequential(self.chain, 2, x, use_reentrant=self.reentrant)


def record_nested(folder: Path, reentrant: bool | None) -> dict[str, Any]:
    folder.mkdir()
    one = Probe(folder)
    debugger = one.debugger("mix")
    seed()
    model = Nested(reentrant)
    debugger.start(model)
    for _ in range(2):
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    debugger.stop()
    debugger.step()
    one.close()
    return one.data()


@pytest.mark.spec("P13", "PT")
@KINDS
def test_nested_and_chained_checkpoints(tmp_path: Path, reentrant: bool) -> None:
    plain = record_nested(tmp_path / "plain", None)
    seen = record_nested(tmp_path / "seen", reentrant)
    assert without_marks(seen) == without_marks(plain)
    assert seen["Torch.sin.1.forward"]["is_recompute"] and not plain["Torch.sin.1.forward"]["is_recompute"]


@pytest.mark.spec("P13", "PT")
@KINDS
def test_a_recomputation_that_differs_is_shown_beside_the_first_run(probe: Probe, reentrant: bool) -> None:
    factors = iter([2.0, 3.0])
    debugger = probe.debugger("L1")
    debugger.start()
    x = torch.ones(3, requires_grad=True)
    keeping = {} if reentrant else {"early_stop": False}
    y = checkpoint(lambda x: torch.sin(torch.mul(x, next(factors))), x, use_reentrant=reentrant, **keeping)
    torch.sum(y).backward()
    debugger.stop()
    debugger.step()
    first = probe.data()["Torch.mul.0.forward"]
    assert first["is_recompute"] is True
    assert first["output"][0]["Max"] == 2.0
    assert first["recompute"]["output"][0]["Max"] == 3.0
    assert "Torch.mul.1.forward" not in probe.data()


@pytest.mark.spec("P13", "PT")
@KINDS
def test_an_error_during_recomputation_passes_through_and_counts_go_on(probe: Probe, reentrant: bool) -> None:
    runs = iter([None, ValueError("second run")])

    def fragile(x: Tensor) -> Tensor:
        error = next(runs)
        if error is not None:
            raise error
        return torch.sin(x)

    debugger = probe.debugger("L1")
    debugger.start()
    y = checkpoint(fragile, torch.ones(3, requires_grad=True), use_reentrant=reentrant)
    with pytest.raises(ValueError, match="second run"):
        y.sum().backward()
    torch.sin(torch.ones(2))
    debugger.stop()
    debugger.step()
    data = probe.data()
    assert [name for name in data if "sin" in name and "forward" in name] == [
        "Torch.sin.0.forward",
        "Torch.sin.1.forward",
    ]
    assert data["Torch.sin.1.forward"]["is_recompute"] is False


@KINDS
def test_a_second_run_leaves_the_files_of_the_first(probe: Probe, reentrant: bool) -> None:
    """A function that gives something else each time: record and file of the first run belong together."""
    given = iter([1.0, 2.0])

    def moody(x: Tensor) -> Tensor:
        return torch.sin(torch.mul(x, next(given)))

    x = torch.tensor([0.5, 1.0], requires_grad=True)
    debugger = probe.debugger("L1", "tensor")
    debugger.start()
    checkpoint(moody, x, use_reentrant=reentrant).sum().backward()
    debugger.stop()
    debugger.step()
    entry = probe.data()["Torch.mul.0.forward"]
    file = probe.tensor("Torch.mul.0.forward.output.0")
    assert [entry["output"][0]["Max"], file.max().item()] == [1.0, 1.0]
    assert entry["recompute"]["output"][0]["Max"] == 2.0
    assert "data_name" not in entry["recompute"]["output"][0]
