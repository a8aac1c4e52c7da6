"""Level L2: the kernels of compiled graphs, which MindSpore writes, at the steps that we count."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import Counter
from collections.abc import Hashable
from typing import Any

from msprobe.adapter import Undo
from msprobe.capture.door import OpenDebugger
from msprobe.config import Config, Scene
from msprobe.errors import UsageError
from msprobe.given import is_count
from msprobe.log import logger, set_rank
from msprobe.mindspore.kernel_config import (
    ELSEWHERE,
    NET,
    check,
    dump_settings,
    folder_of,
    refuse_overflow,
)
from msprobe.mindspore.kernel_dump import (
    KernelDump,
    has_compiled,
    own_rank,
    rank_on_its_node,
    this_machine,
    watch_graphs,
    write_settings,
)
from msprobe.store.kernel_summary import join, remove, set_aside, summarise
from msprobe.store.kernels_dir import KernelFolder, step_folders


class Steps:
    """Which step a graph runs in: the one that step() has counted to.

    A script may never call it. Until it does, a graph's first run is taken for the first step, its second for
    the second, and so on; what was taken wrongly is known when the first step turns out to be over.
    """

    def __init__(self) -> None:
        self.first = self.current = 0
        self.is_counted = False  # by step()
        self._runs: Counter[Hashable] = Counter()

    def begin(self, first: int) -> None:
        self.first = self.current = first
        self._runs.clear()

    def of(self, graph: Hashable) -> int:
        self._runs[graph] += 1
        return self.current if self.is_counted else self.first + self._runs[graph] - 1

    def count(self) -> None:
        self.is_counted = True
        self.current += 1

    def taken_wrongly(self) -> range:
        """The numbers that runs of the first step were given, besides its own."""
        return range(self.first + 1, self.first + max(self._runs.values(), default=1))


class KernelDebugger(OpenDebugger):
    """Has MindSpore write what its kernels took and gave, from start() to stop()."""

    def __init__(self, config: Config, scene: Scene) -> None:
        check(config)
        self.config = config
        self._scene = scene
        self._path = folder_of(config)
        self._steps = Steps()
        self._dump: KernelDump | None = None
        self._is_refused = False  # by the disk; graphs that are compiled meanwhile have no dump in them
        self._statistics = False  # made of tensors, by us
        self._number: int | None = None  # of the step whose kernels are being recorded
        self._first_ended = False
        self._has_run = False
        self._undo: Undo | None = None
        self._told: set[str] = set()
        self._pid = os.getpid()
        atexit.register(self.close)

    # --- what a training script calls ---

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Record the graphs that run from here on, if they are compiled from here on."""
        if self._pid != os.getpid():
            return
        if token_range is not None:
            self._tell_once("token_range has no effect at level L2.")
        if self._dump is None and (self._is_refused or not self._open()):
            return
        if self._first_ended:
            self._correct_first_step()
        if self._undo is None:
            self._undo = watch_graphs(self._before_graph, self._begin_at)
        if self._steps.is_counted and self._is_wanted():  # a backward alone runs unannounced
            self._move_to(self._steps.current)

    def stop(self) -> None:
        """Record no further graph."""
        if self._pid != os.getpid() or self._undo is None:
            return
        self._undo()
        self._undo = None
        self._move_to(None)
        if not self._has_run:
            what = "graph" if self._scene is Scene.MINDSPORE_STATIC else "part that mindspore.jit compiles"
            self._tell_once(f"no kernel was recorded: no {what} ran between start() and stop().")

    def step(self) -> None:
        """Count on; without stop() what follows is recorded too, as the next step."""
        if self._pid != os.getpid():
            return
        self._move_to(None)
        self._first_ended = self._first_ended or not self._steps.is_counted
        self._steps.count()
        if self._undo is not None and self._first_ended:
            self._correct_first_step()

    def set_init_step(self, step: int) -> None:
        """Count steps from here; call it before the training loop."""
        if not is_count(step):
            raise UsageError(f"set_init_step takes a whole number from 0 on, not {step!r}.")
        if self._number is not None:
            raise UsageError(
                f"set_init_step({step}) came while step {self._number} is recorded; call it before the "
                "training loop."
            )
        self._steps.begin(step)

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        self._tell_once("save() has no effect at level L2; it records at level debug.")

    def register(self, module: Any, name: str, prefix: str | None) -> None:
        self._tell_once("register_custom_api() has no effect at level L2; it is for levels L1 and mix.")

    def forget(self, module: Any, name: str) -> None:
        pass

    def close(self) -> None:
        """Leave MindSpore as it was found, as far as it lets itself be."""
        atexit.unregister(self.close)
        if self._pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # of training, which has told it
                self.stop()
            if self._dump is not None:
                self._dump.close()

    # --- how it is done ---

    def _open(self) -> bool:
        machine = this_machine()
        settings = dump_settings(self.config, machine)
        if self.config.task == "overflow_check" and machine.device != "Ascend":
            refuse_overflow(machine.device, write_settings(settings, self._path))
        if self.config.async_dump and machine.device == "CPU":
            self._tell_once(
                "async_dump has no effect on CPU: MindSpore writes what a kernel gave before it goes on."
            )
        if has_compiled():
            logger().warning(
                "nothing is recorded: MindSpore takes up its dump with the first graph that it compiles, and "
                "start() came after that. At level L2 call start() before the model is made."
            )
        elif self._scene is Scene.MINDSPORE_STATIC and own_rank() is not None:
            logger().warning(
                "start() came after mindspore.communication.init: the kernels may be missing. At level L2 "
                "call start() before it."
            )
        try:
            self._dump = KernelDump(settings, self._path)
        except OSError as problem:
            self._is_refused = True
            logger().warning("nothing is recorded: %s: %s.", problem.filename, problem.strerror)
            return False
        self._statistics = settings.statistics
        if self._statistics:
            logger().info(
                "MindSpore writes no statistics of kernels on CPU: it writes tensors, which become "
                "statistic.csv when a step ends and are removed."
            )
        place = self._path / "rank_{rank}" / NET / "{graph}" / "{step}"
        logger().info("MindSpore writes the kernels of each graph to %s, as %s says.", place, settings.file)
        return True

    def _before_graph(self, graph: Hashable) -> None:
        is_first, self._has_run = not self._has_run, True
        if not self._is_wanted():
            return
        if is_first:
            set_rank(own_rank())
            self._try(set_aside, self._path, own_rank() or 0, NET)
        self._move_to(self._steps.of(graph))

    def _begin_at(self, step: int = 0) -> None:
        self._move_to(None)
        self._steps.begin(step)

    def _is_wanted(self) -> bool:
        if not self.config.rank:
            return True
        rank = rank_on_its_node()
        if rank in self.config.rank:
            return True
        self._tell_once(
            f"the configuration records rank {list(self.config.rank)} of each node and this process is rank "
            f"{rank}: nothing is recorded here."
        )
        return False

    def _move_to(self, number: int | None) -> None:
        """What runs next is of this step, or of none; the one that is left is complete on disk."""
        if number == self._number or self._dump is None:
            return
        left, self._number = self._number, number
        try:
            self._dump.name_step(ELSEWHERE if number is None else number)
        finally:  # what failed in training is told here, and ends it as it would have without us
            if left is not None:
                self._try(self._finish, left)

    def _finish(self, number: int) -> None:
        folders = self._folders(number)
        for folder in folders if self._statistics else ():
            summarise(folder)
        names = getattr(self.config.section, "list", ())
        if names and not folders and (not self.config.step or number in self.config.step):
            self._tell_once(f'step {number}: no kernel was recorded: "list" names none that ran.')

    def _correct_first_step(self) -> None:
        """It is over, and another follows: all that ran in it is of one step."""
        self._first_ended = False
        first, others = self._steps.first, self._steps.taken_wrongly()
        if not others:
            return
        if self.config.step:
            logger().warning(
                "step %d: a graph ran %d times in it, and only the runs with the numbers of `step` were "
                "recorded; the steps that follow are recorded whole.",
                first,
                len(others) + 1,
            )
        if self.config.step and first not in self.config.step:
            self._try(lambda: remove(self._folders(*others)))
        else:
            self._try(lambda: join(self._folders(*others), first))

    def _folders(self, *numbers: int) -> list[KernelFolder]:
        return step_folders(self._path, own_rank() or 0, NET, numbers)

    def _try(self, deed: Any, *args: Any) -> None:
        try:
            deed(*args)
        except Exception as problem:  # noqa: BLE001 - recording must never stop training
            self._tell_once(f"the kernels that were written could not be put in order: {problem}.")

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            logger().warning("%s", sentence)
