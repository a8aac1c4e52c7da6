"""Part `sound`: models of transformers and timm beside themselves, varied in ways that are no fault.

No pair may have a culprit, nor be said to diverge.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from truth import kernel_faults as k
from truth.architectures import ARCHITECTURES, Architecture, batch_of, loss_of, model_of, packages
from truth.cases import MIX, Pair, Run, Suite, Training
from truth.jobs import ROOT, python_of

SOURCES = ("architectures.py", "cases.py", "kernel_faults.py", "part_sound.py", "recording.py")
OTHER_ATEN = (("ATEN_CPU_CAPABILITY", "default"),)
OTHER_ONEDNN = (("ONEDNN_MAX_CPU_ISA", "AVX2"),)
BENCH = "architectures, sound"


class Variation(NamedTuple):
    """How a run differs from the plain one in float32."""

    name: str
    dtype: str = "float32"
    rounding: str = k.EXACT
    attention: str | None = None
    channels_last: bool = False
    checkpointing: bool = False
    optimizer: str | None = None  # AdamW over two steps: plain, foreach or fused
    threads: int = 1
    variables: tuple[tuple[str, str], ...] = ()
    ranks: int = 1


PLAIN = Variation("float32")
HALF = Variation("bfloat16", dtype="bfloat16")
LEARNING = Variation("adamw", optimizer="plain")
PARALLEL = Variation("ddp", ranks=2)
# Each varied run with the golden run beside it.
VARIATIONS = (
    (HALF, PLAIN),
    (Variation("float64", dtype="float64"), PLAIN),
    (Variation("autocast", dtype="autocast"), PLAIN),
    (Variation("eager", attention="eager"), PLAIN),
    (Variation("other_aten", variables=OTHER_ATEN), PLAIN),
    (Variation("other_onednn", variables=OTHER_ONEDNN), PLAIN),
    (Variation("channels_last", channels_last=True), PLAIN),
    (Variation("checkpointing", checkpointing=True), PLAIN),
    (Variation("adamw_foreach", optimizer="foreach"), LEARNING),
    (Variation("adamw_fused", optimizer="fused"), LEARNING),
    (Variation("threads", threads=2), PLAIN),
    (Variation("ddp_again", ranks=2), PARALLEL),
    (Variation("either_way", rounding=k.EITHER_WAY), PLAIN),
    (Variation("toward_zero", rounding=k.TOWARD_ZERO), PLAIN),
    (Variation("bfloat16_either_way", dtype="bfloat16", rounding=k.EITHER_WAY), HALF),
    (Variation("bfloat16_toward_zero", dtype="bfloat16", rounding=k.TOWARD_ZERO), HALF),
    (Variation("bfloat16_other_onednn", dtype="bfloat16", variables=OTHER_ONEDNN), HALF),
)


def applies(how: Variation, to: Architecture, name: str) -> bool:
    """Whether a model can be varied so; some variations are tried with some models only, for time's sake."""
    if how.attention is not None:
        return to.has_attention_choice
    if how.channels_last:
        return to.data == "pictures"
    if how.checkpointing:
        return to.can_checkpoint
    if how.ranks > 1:
        return name in ("gpt2", "resnet", "llama", "timm_convnext")
    if how.threads > 1:
        return name in ("gpt2", "resnet", "t5", "swin", "mamba2", "timm_mobilenet")
    return how.dtype != "float64" or name != "mixtral"  # a grouped matrix product knows no float64


def train(name: str, how: Variation, loss: Callable[..., Any] = loss_of, **overrides: Any) -> Training:
    """A model and its step, varied so; `overrides` are settings of the model."""
    if how.attention is not None:
        overrides["attention"] = how.attention
    torch.set_num_threads(how.threads)
    model, batch = model_of(name, **overrides), batch_of(name)
    if how.dtype != "autocast":
        model = model.to(getattr(torch, how.dtype))
    if how.channels_last:
        model = model.to(memory_format=torch.channels_last)
        batch["pixel_values"] = batch["pixel_values"].contiguous(memory_format=torch.channels_last)
    if how.checkpointing:
        _checkpoint(model)
    optimizer = _optimizer(model, how.optimizer)
    if how.ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)

    def step(number: int) -> None:
        model.zero_grad()
        with k.kernels(how.rounding):
            with _computing(how.dtype):
                value = loss(name, model, batch)
            value.backward()
            if optimizer is not None:
                optimizer.step()

    return model, step


def _checkpoint(model: nn.Module) -> None:
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.set_grad_checkpointing(True)


def _optimizer(model: nn.Module, kind: str | None) -> torch.optim.Optimizer | None:
    if kind is None:
        return None
    choice = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[kind]
    return torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1, **choice)


@contextlib.contextmanager
def _computing(dtype: str) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16) if dtype == "autocast" else contextlib.nullcontext():
        yield


class SetOfHeads(nn.Module):
    """A net that loops over a set of names, so its calls follow each other as Python hashes them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 24)
        self.heads = nn.ModuleDict(
            {name: nn.Linear(24, 5) for name in ("age", "size", "colour", "shape", "kind")}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.body(x))
        total = x.mean()
        for name in set(self.heads):
            total = total + torch.tanh(self.heads[name](x)).square().mean()
        return total


def train_set() -> Training:
    """A step of the net that loops over a set."""
    model, x = SetOfHeads(), torch.randn(8, 16, generator=torch.Generator().manual_seed(3))
    return model, lambda number: model(x).backward()


def unavailable() -> str | None:
    """Why this part cannot run."""
    if not os.path.exists(python_of("models")):
        return f"{ROOT.name}/.venv-truth is not there: `make truth` makes it"
    return None


def prepare() -> None:
    """Load in the worker what every run needs."""
    from msprobe.pytorch import PrecisionDebugger  # noqa: F401  # for the forks of this process

    packages()
    for name in ARCHITECTURES:
        model_of(name)
    _, step = train("vit", Variation("any", rounding=k.EITHER_WAY))
    step(0)


def run_of(name: str, how: Variation) -> Run:
    steps = 2 if how.optimizer else 1
    make = partial(train, name, how)
    return Run(f"{name}.{how.name}", make, steps, how.variables, how.ranks, python="models")


def suite() -> Suite:
    made = Suite({}, [], SOURCES)
    for name, architecture in ARCHITECTURES.items():
        for how, beside in VARIATIONS:
            if applies(how, architecture, name):
                target, golden = made.add(run_of(name, how)), made.add(run_of(name, beside))
                made.pairs.append(Pair(BENCH, target, target, golden, modes=MIX))
    for seed in ("1", "2", "3"):
        made.add(Run(f"set.hash{seed}", train_set, variables=(("PYTHONHASHSEED", seed),), python="models"))
    for seed in ("2", "3"):
        made.pairs.append(Pair(BENCH, f"set.hash{seed}", f"set.hash{seed}", "set.hash1"))
    return made
