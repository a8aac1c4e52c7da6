"""Part `ports`: nets in MindSpore beside the same in PyTorch, without a mapping and with each of them."""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import Any

from truth.cases import ALL_MODES, SAVED, Pair, Run, Suite, Training
from truth.jobs import ROOT, python_of
from truth.porting import PORTS, STATE, STEPS

SOURCES = (
    "cases.py",
    "part_ports.py",
    "porting.py",
    "porting_mindspore.py",
    "porting_torch.py",
    "recording.py",
)
FAULTS, FAULTS_OF_STATE, SOUND = "ports, faults", "ports, faults of state", "ports, sound"
LEARNING = {"encoder": ("none",), "conv": ("sgd",), "mlp": ("sgd", "adam", "adamw")}
OF_FAULT = {"beta": "adam", "weight_decay": "adamw"}
MAPPINGS = ROOT / "truth/mappings"


def _torch(net: str, learning: str) -> Training:
    from truth.porting_torch import train

    return train(net, learning)


def _mindspore(net: str, learning: str, fault: str, config: str) -> None:
    from truth.porting_mindspore import record

    record(net, learning, fault, config)


def unavailable() -> str | None:
    """Why this part cannot run."""
    if not os.path.exists(python_of("mindspore")):
        return "there is no .venv-mindspore: `make envs` makes it"
    return None


def prepare() -> None:
    """Import what every run needs; nothing is computed, so that the process can still be forked."""
    for name in ("msprobe.mindspore", "truth.porting_mindspore", "truth.porting_torch"):
        importlib.import_module(name)


WITH_MODEL = tuple(mode for mode in ALL_MODES if mode != "statistics-L1")  # a mapping of layers needs it


def _nothing() -> Any:
    raise AssertionError("this run is recorded in its own way")


def suite() -> Suite:
    made = Suite({}, [], SOURCES)
    for net, ways in LEARNING.items():
        for learning in ways:
            golden, sound = _golden(made, net, learning), _target(made, net, learning, "sound")
            made.pairs.append(Pair(SOUND, sound, sound, golden))
            for options in _mappings(net):
                name = f"{sound} {' '.join(each for each in options if each.startswith('-'))}"
                modes = WITH_MODEL if "-lm" in options else ALL_MODES
                made.pairs.append(Pair(SOUND, name, sound, golden, options=options, modes=modes))
    for port in PORTS:
        learning = OF_FAULT.get(port.fault, LEARNING[port.net][0])
        target = _target(made, port.net, learning, port.fault)
        bench = FAULTS_OF_STATE if port.fault in STATE else FAULTS
        golden = _golden(made, port.net, learning)
        made.pairs.append(Pair(bench, target, target, golden, f"in {port.calls}", modes=ALL_MODES))
    return made


def _mappings(net: str) -> list[tuple[str, ...]]:
    cells, layers = MAPPINGS / f"{net}_cells.yaml", MAPPINGS / f"{net}_layers.yaml"
    return [("-am",), ("-am", "-cm", str(cells)), ("-dm", SAVED), ("-lm", str(layers))]


def _golden(made: Suite, net: str, learning: str) -> str:
    make = partial(_torch, net, learning)
    return made.add(Run(f"{net}.{learning}.torch", make, STEPS[net], python="mindspore"))


def _target(made: Suite, net: str, learning: str, fault: str) -> str:
    record = partial(_mindspore, net, learning, fault)
    return made.add(Run(f"{net}.{learning}.{fault}", _nothing, record=record, python="mindspore"))
