"""What each task does with the calls of a step: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from msprobe.adapter import Adapter, Replay
from msprobe.capture.free_benchmark import Bench, Check
from msprobe.capture.makers import Carried
from msprobe.capture.overflow import OverflowRecorder
from msprobe.capture.overflow_limit import Limit
from msprobe.capture.recorder import Plan, Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.stacks import Stacks
from msprobe.config import Config, FreeBenchmark, OverflowCheck
from msprobe.errors import UsageError
from msprobe.log import logger
from msprobe.plural import counted
from msprobe.store.run import Run
from msprobe.store.writer import Writer


class Opening(NamedTuple):
    """A step that begins: what a task may follow its calls with."""

    step: int
    adapter: Adapter
    replay: Replay | None  # None where the framework cannot make calls again
    run: Run
    write: Callable[[], Writer]  # begins a recording
    scope: Scope
    stacks: Stacks
    plan: Plan
    carried: Carried  # who made what outlives a step


class Task(Protocol):
    """A task over a whole run; its debugger asks it for a recorder at each step."""

    saves_tensors: bool  # into dump_tensor_data

    def recorder(self, opening: Opening) -> Recorder | Check: ...

    def obstacle(self) -> str | None:
        """Why no further step is recorded."""
        return None

    def end_training(self) -> None:
        """After stop() and step(), when the recording is complete: raise if training ends here."""
        return

    def close(self) -> None:
        """The run is over."""
        return


class Recording(Task):
    """Tasks statistics and tensor: every call is written."""

    def __init__(self, config: Config) -> None:
        self.saves_tensors = config.task == "tensor" or bool(getattr(config.section, "tensor_list", ()))

    def recorder(self, opening: Opening) -> Recorder:
        return Recorder(
            opening.adapter, opening.write(), opening.scope, opening.stacks, opening.plan, opening.carried
        )


def tell_how_overflows_are_found(adapter: Adapter) -> None:
    """Whether the device is asked for them, or values are looked at alone."""
    register = adapter.overflow_flag() is not None
    logger().info(
        "overflow_check %s.",
        "asks the overflow register of the device after each call, and looks at values as well"
        if register
        else "looks at values, at NaN and infinities in outputs and gradients: there is no overflow "
        "register to ask here",
    )


class OverflowChecking(Task):
    """Task overflow_check: the calls that overflow are written, and too many of them end training."""

    saves_tensors = True

    def __init__(self, config: Config) -> None:
        section = config.section
        assert isinstance(section, OverflowCheck)
        self._limit = Limit(section.overflow_nums)
        self._is_told = False

    def recorder(self, opening: Opening) -> Recorder:
        if not self._is_told:
            self._is_told = True
            tell_how_overflows_are_found(opening.adapter)
        return OverflowRecorder(
            opening.adapter, opening.write(), opening.scope, opening.stacks, opening.plan, self._limit
        )

    def obstacle(self) -> str | None:
        if self._limit.over:
            met = counted(self._limit.met, "overflow")
            return f"overflow_nums was reached after {met}: nothing more is checked."
        return None

    def end_training(self) -> None:
        self._limit.end_training()


class FreeBenchmarking(Task):
    """Task free_benchmark: calls are made a second time, and nothing is recorded but what they differ in."""

    saves_tensors = False

    def __init__(self, config: Config) -> None:
        section = config.section
        assert isinstance(section, FreeBenchmark)
        self._section = section
        self._bench: Bench | None = None

    def recorder(self, opening: Opening) -> Check:
        if opening.replay is None:
            raise UsageError(f"task free_benchmark cannot be done with {opening.adapter.framework}.")
        if self._bench is None:
            self._bench = Bench(opening.adapter, opening.replay, self._section, opening.run)
        return self._bench.begin(opening.step)


class _Make(Protocol):
    def __call__(self, config: Config) -> Task: ...


TASKS: Mapping[str, _Make] = MappingProxyType(
    {
        "statistics": Recording,
        "tensor": Recording,
        "overflow_check": OverflowChecking,
        "free_benchmark": FreeBenchmarking,
    }
)
