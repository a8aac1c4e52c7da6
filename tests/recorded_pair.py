"""Two short real runs, recorded and compared, and what the answer says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.compare import compare
from msprobe.report.answer import answer
from msprobe.verdict.comparison import Comparison
from msprobe.verdict.locate import Diverged, Divergence, diverged, overall
from torch_fixtures import Probe

TASKS = ("tensor", "sketch", "statistics")
Run = Callable[[], tuple[Any, Sequence[Callable[[], Any]]]]  # makes a model, and the steps that are recorded


class Found(NamedTuple):
    """What comparing two runs says."""

    comparisons: list[Comparison]

    @property
    def diverged(self) -> Diverged:
        return diverged([each.located for each in self.comparisons])

    @property
    def culprit(self) -> Divergence | None:
        return overall([each.located for each in self.comparisons])

    @property
    def named(self) -> str:
        """The name of the place that is named; empty if none is."""
        return self.culprit.place.name if self.culprit is not None else ""

    @property
    def words(self) -> str:
        return "\n".join(answer([each.outcome() for each in self.comparisons]))


def recorded(folder: Path, run: Run, task: str, level: str) -> Path:
    """Record the steps of a run; every run starts with the same seed."""
    folder.mkdir(parents=True)
    made = Probe(folder)
    made.close()
    torch.manual_seed(7)
    model, steps = run()
    section = {"summary_mode": task} if task in ("sketch", "md5") else {}
    debugger = made.debugger(level, "tensor" if task == "tensor" else "statistics", section=section)
    for step in steps:
        debugger.start(model)
        step()
        debugger.stop()
        debugger.step()
    made.close()
    return made.folder


def compared(folder: Path, target: Run, golden: Run, task: str, level: str, **options: Any) -> Found:
    ours, theirs = recorded(folder / "t", target, task, level), recorded(folder / "g", golden, task, level)
    return Found(compare(ours, theirs, **options))


class Kernel(TorchDispatchMode):
    """Changes the first result of a kernel, below the recorder."""

    def __init__(self, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._name, self._change = name, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ != self._name:
            return result
        with torch._C.DisableTorchFunction():  # the recorder must not see how it is made wrong
            if isinstance(result, tuple):
                return (self._change(result[0]), *result[1:])
            return self._change(result)


def with_kernel(run: Run, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    """The same run with a wrong kernel."""

    def made() -> tuple[Any, Sequence[Callable[[], Any]]]:
        model, steps = run()

        def within(step: Callable[[], Any]) -> Callable[[], Any]:
            def go() -> None:
                with Kernel(name, change):
                    step()

            return go

        return model, [within(step) for step in steps]

    return made
