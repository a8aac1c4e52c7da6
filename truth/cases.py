"""What a case is: how a run is trained, which two runs form a pair, and what the answer must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# level, task, summary_mode
MODES = {
    "tensor": ("mix", "tensor", "statistics"),
    "sketch": ("mix", "statistics", "sketch"),
    "statistics": ("mix", "statistics", "statistics"),
    "statistics-L1": ("L1", "statistics", "statistics"),
    "statistics-L0": ("L0", "statistics", "statistics"),
}
MIX = ("tensor", "sketch", "statistics")
ALL_MODES = tuple(MODES)

SAVED = "SAVED"  # among the options of a pair: the mapping that --save_mapping writes for it

Step = Callable[[int], Any]
Training = tuple[Any, Step]  # the model that is recorded, and what one step does


class Run(NamedTuple):
    """One training run that is recorded: `make` builds it in a process of its own, after seeding."""

    name: str
    make: Callable[[], Training]
    steps: int = 1
    variables: tuple[tuple[str, str], ...] = ()  # of the environment, set before Python starts
    ranks: int = 1
    config: tuple[tuple[str, Any], ...] = ()  # further keys of config.json
    python: str = "torch"  # which environment: torch, models or mindspore
    record: Callable[..., None] | None = None  # another way to record it than with PyTorch
    is_large: bool = False  # its tensors are removed as soon as they were compared


class Pair(NamedTuple):
    """Two runs and the truth about them; `culprit` is None where both are sound."""

    bench: str  # the row of the table that counts it
    name: str
    target: str
    golden: str
    culprit: str | None = None  # matches the calls that may be named
    modules: str | None = None  # the same at level L0; None: what holds or follows the call
    modes: tuple[str, ...] = ALL_MODES
    options: tuple[str, ...] = ()  # of `msprobe compare`


class Suite(NamedTuple):
    """The runs and pairs of one part; `sources` are the modules here that decide what is recorded."""

    runs: dict[str, Run]
    pairs: list[Pair]
    sources: tuple[str, ...]

    def add(self, run: Run) -> str:
        """Add a run and return its name; the same name twice is one run."""
        self.runs.setdefault(run.name, run)
        return run.name


def beside(folder: Path, ending: str) -> Path:
    """A file that lies beside a folder; names of runs hold dots, so no suffix is replaced."""
    return folder.with_name(folder.name + ending)
