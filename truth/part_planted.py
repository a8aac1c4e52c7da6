"""Part `planted`: faults in models of transformers and timm, in float32 and in bfloat16 beside float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from truth.architectures import ARCHITECTURES, batch_of, loss_of, model_of
from truth.cases import ALL_MODES, MIX, Pair, Run, Suite, Training
from truth.part_sound import prepare, unavailable
from truth.plants import PLANTS, Plant, culprit_of

__all__ = ["prepare", "suite", "unavailable"]
SOURCES = ("architectures.py", "cases.py", "part_planted.py", "plants.py", "recording.py")
SAME, HALF = "planted faults, same dtype", "planted faults, float32 beside bfloat16"


def train(name: str, plant: Plant | None, dtype: torch.dtype, change: str | None = None) -> Training:
    """A model with a fault, and its step; a second step evaluates, as far as batch norm goes."""
    model, batch = model_of(name), batch_of(name)
    if plant is not None:
        with torch.no_grad():
            plant.change(model.get_submodule(plant.module))
    model = model.to(dtype)

    def step(number: int) -> None:
        if number:
            model.eval()
        loss = _loss(name, model, batch, change)
        loss.backward()

    return model, step


def _loss(name: str, model: nn.Module, batch: dict[str, Any], change: str | None) -> torch.Tensor:
    if change == "labels":
        batch = {**batch, "labels": batch["labels"].roll(1, -1)}
    if change == "reduction":
        logits = model(batch["pixel_values"].to(next(model.parameters()).dtype))
        return nn.functional.cross_entropy(logits.float(), batch["labels"], reduction="sum")
    return loss_of(name, model, batch)


# What goes wrong outside of the model: the calls follow from the loss of each family. The labels are rolled
# by a call that is recorded too, so that it may be named as well as the first one that is given its result.
OUTSIDE = {
    "labels": {
        "llama": r"(Functional\.(pad|cross_entropy)|Tensor\.roll)\.0\.forward|Tensor\.to\.13\.forward",
        "gpt2": r"(Functional\.(pad|cross_entropy)|Tensor\.roll)\.0\.forward|Tensor\.to\.1\.forward",
        "bert": r"(Functional\.cross_entropy|Tensor\.roll)\.0\.forward",
        "vit": r"(Functional\.cross_entropy\.0|Tensor\.(to\.1|roll\.0))\.forward",
        "resnet": r"(Functional\.cross_entropy\.0|Tensor\.(to\.1|roll\.0))\.forward",
        "timm_vit": r"(Functional\.cross_entropy|Tensor\.roll)\.0\.forward",
    },
    "reduction": {
        "timm_vit": r"Functional\.cross_entropy\.0\.forward",
        "timm_resnet": r"Functional\.cross_entropy\.0\.forward",
    },
}


def suite() -> Suite:
    made = Suite({}, [], SOURCES)
    for plant in PLANTS:
        culprit = culprit_of(plant)
        _add(made, plant.architecture, plant.name, culprit, plant.steps, plant.in_half, plant)
    for change, culprits in OUTSIDE.items():
        for name, culprit in culprits.items():
            _add(made, name, change, culprit, 1, True, None, change)
    return made


def _add(
    made: Suite,
    name: str,
    fault: str,
    culprit: str,
    steps: int,
    in_half: bool,
    plant: Plant | None,
    change: str | None = None,
) -> None:
    assert name in ARCHITECTURES
    golden = _run(made, name, f"sound{'' if steps == 1 else steps}", torch.float32, None, steps)
    for bench, dtype in ((SAME, torch.float32), (HALF, torch.bfloat16))[: 1 + in_half]:
        target = _run(made, name, fault, dtype, plant, steps, change)
        modes = ALL_MODES if dtype == torch.float32 else MIX
        made.pairs.append(Pair(bench, target, target, golden, culprit, modes=modes))


def _run(
    made: Suite,
    name: str,
    fault: str,
    dtype: torch.dtype,
    plant: Plant | None,
    steps: int,
    change: str | None = None,
) -> str:
    label = f"{name}.{fault}.{str(dtype).removeprefix('torch.')}"
    return made.add(Run(label, partial(train, name, plant, dtype, change), steps, python="models"))
