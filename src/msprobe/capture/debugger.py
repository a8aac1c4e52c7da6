"""Debugger: start / stop / step / save, the same for every framework."""

from __future__ import annotations

import atexit
import os
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msprobe.adapter import Adapter, Replay, Undo, Want
from msprobe.capture.chosen import Chosen
from msprobe.capture.free_benchmark import Check
from msprobe.capture.makers import Carried
from msprobe.capture.recorder import Plan, Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.stacks import Stacks
from msprobe.capture.tasks import TASKS, Opening, Task
from msprobe.capture.variables import VariableRecorder
from msprobe.config import Config
from msprobe.errors import UsageError
from msprobe.given import is_count
from msprobe.log import logger, set_rank
from msprobe.record import Header
from msprobe.store.run import Run
from msprobe.store.writer import Writer


class Debugger:
    """Follows one training run: opens a recording per step, and listens between start() and stop()."""

    def __init__(
        self,
        adapter: Adapter,
        config: Config,
        stacks: Stacks,
        replay: Replay | None = None,
        task: Task | None = None,
    ) -> None:
        """`task`: one that is none of ours, in the place of the one that the configuration names."""
        if config.task not in TASKS:
            raise UsageError(
                f"task {config.task} cannot be recorded by this release; use one of {', '.join(TASKS)}."
            )
        self.config = config
        self._task = task or TASKS[config.task](config)
        self._adapter = adapter
        self._replay = replay
        self._stacks = stacks
        self._step = 0
        self._run = Run(Path(config.dump_path).absolute())  # the program may change its folder
        self._pid = os.getpid()
        self._undo: list[Undo] = []
        self._recorder: Recorder | Check | None = None
        self._variables: VariableRecorder | None = None
        self._writer: Writer | None = None
        self._told: set[str] = set()
        self._carried = Carried()
        atexit.register(self.close)
        forsake = weakref.WeakMethod(self._forsake)
        os.register_at_fork(after_in_child=lambda: (method := forsake()) and method())

    @property
    def step_number(self) -> int:
        return self._step

    # --- what a training script calls ---

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Record from here on."""
        if self.config.level in ("L0", "mix") and model is None:
            raise UsageError(
                f"level {self.config.level} records modules, so start() needs the model: "
                "call start(model=your_model)."
            )
        tokens = _checked_range(token_range, model)
        if not self.is_wanted():
            return
        if self._undo:
            self.tell_once("start() was called again before stop(); recording goes on as it was begun.")
        elif self.config.level == "debug":
            self.tell_once("level debug records what save() is given; start() and stop() have no effect.")
        else:
            self._listen(model, tokens)

    def stop(self) -> None:
        """Record no further call; gradients of the calls so far are taken until step()."""
        if self._pid != os.getpid():
            return
        self._silence()
        if self._recorder is not None:
            with self._recorder.guarded("fetch the last statistics"):
                self._recorder.pause()
        if self._variables is not None:
            self._variables.pause()
        if self._writer is not None:
            self._writer.publish(self._left_out())
        self._task.end_training()

    def step(self) -> None:
        """The step is over: finish its recording and count on."""
        if self._pid != os.getpid():
            return
        self._finish()
        self._step += 1
        self._tell_if_over()
        self._task.end_training()

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record one variable, and its gradient, under a name (level debug)."""
        if self.config.level != "debug":
            self.tell_once(f"save() has no effect at level {self.config.level}; it records at level debug.")
        elif self.is_wanted():
            if self._variables is None:
                self._variables = VariableRecorder(self._adapter, self._open_writer(), self._plan())
            self._variables.save(variable, name, save_backward)

    def set_init_step(self, step: int) -> None:
        """Count steps from here; call it before the training loop."""
        if not is_count(step):
            raise UsageError(f"set_init_step takes a whole number from 0 on, not {step!r}.")
        if self._writer is not None:
            raise UsageError(
                f"set_init_step({step}) came while step {self._step} is recorded; call it before start(), or "
                "after step()."
            )
        self._step = step

    def close(self) -> None:
        """Leave everything as it was found, and the recording complete."""
        atexit.unregister(self.close)
        if self._pid == os.getpid():
            self._finish()
            self._run.close()
            self._task.close()

    # --- how it is done ---

    def is_wanted(self) -> bool:
        """Whether this process records this step; each "no" is told once."""
        if self._pid != os.getpid():
            self.tell_once(
                "the debugger was made in the process that this one was forked from; nothing is recorded "
                "here unless this process makes a debugger of its own."
            )
            return False
        if self.config.step and self._step not in self.config.step:
            self._tell_if_over()
            return False
        rank = self._adapter.counted_rank()
        if self.config.rank and (0 if rank is None else rank) not in self.config.rank:
            self.tell_once(
                f"the configuration records rank {list(self.config.rank)} and this process is "
                f"{'rank 0 (not distributed)' if rank is None else f'rank {rank}'}: nothing is recorded here."
            )
            return False
        obstacle = self._task.obstacle()
        if obstacle is not None:
            self.tell_once(obstacle)
        return obstacle is None

    def _listen(self, model: Any, tokens: tuple[int, int] | None) -> None:
        recorder = self._recorder = self._recorder or self._open_recorder()
        if isinstance(recorder, Recorder) and recorder.is_idle:
            return
        try:
            if model is not None and isinstance(recorder, Recorder):
                recorder.name_state(model)
            if self.config.level in ("L0", "mix") and isinstance(recorder, Recorder):
                self._undo.append(self._adapter.watch(model, recorder))
            if self.config.level in ("L1", "mix"):
                self._undo.append(self._adapter.intercept(recorder.around, recorder))
            if tokens is None:
                recorder.listening = True
            else:
                self._listen_to_tokens(recorder, model, tokens)
        except BaseException:
            self._silence()
            raise

    def _listen_to_tokens(self, recorder: Recorder | Check, model: Any, tokens: tuple[int, int]) -> None:
        calls = Counter[str]()

        def before() -> None:
            recorder.listening = tokens[0] <= calls["model"] <= tokens[1]

        def after() -> None:
            calls["model"] += 1
            recorder.listening = False

        self._undo.append(self._adapter.on_model_call(model, before, after))

    def _open_recorder(self) -> Recorder | Check:
        section = self.config.section
        scope = Scope(
            getattr(section, "scope", ()),
            getattr(section, "list", ()),
            getattr(section, "data_mode", ("all",)),
            inner=self.config.level == "mix",
        )
        self._carried.step = self._step
        return self._task.recorder(
            Opening(
                self._step,
                self._adapter,
                self._replay,
                self._run,
                self._open_writer,
                scope,
                self._stacks,
                self._plan(),
                self._carried,
            )
        )

    def _open_writer(self) -> Writer:
        rank = self._adapter.rank()
        set_rank(rank)
        self._writer = self._run.record(
            self._step,
            rank,
            Header(self.config.task, self.config.level, self._adapter.framework),
            suffix=self._adapter.file_suffix,
            with_tensors=self._task.saves_tensors,
        )
        return self._writer

    def _plan(self) -> Plan:
        section = self.config.section
        mode = getattr(section, "summary_mode", "statistics")
        patterns: tuple[str, ...] = tuple(getattr(section, "tensor_list", ()))
        saves: Callable[[str], bool] = (
            (lambda name: any(pattern in name for pattern in patterns)) if patterns else (lambda name: True)
        )
        return Plan(
            want=Want(checksum=mode == "md5", sketch=mode == "sketch"),
            saves=saves,
            with_parents=self.config.level in ("L0", "mix"),
            with_state=self.config.task in ("statistics", "tensor"),
        )

    def _silence(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _forsake(self) -> None:
        """In a forked child, such as a worker of a data loader: the recording stays with the parent."""
        if self._recorder is not None:
            self._recorder.listening = False
        self._silence()
        self._recorder = self._variables = self._writer = None

    def _finish(self) -> None:
        self._silence()
        if self._recorder is not None:
            with self._recorder.guarded("finish the recording"):
                self._recorder.close()
            self._report(self._recorder.scope)
        if self._variables is not None:
            self._variables.close()
        if self._writer is not None:
            self._writer.close(self._left_out())
        self._recorder = self._variables = self._writer = None

    def _left_out(self) -> dict[str, int]:
        return dict(self._recorder.scope.left_out) if self._recorder is not None else {}

    def _report(self, scope: Scope | Chosen) -> None:
        """Say what of the configuration was never met, and what the step came to."""
        for name, key in scope.never_met().items():
            if name not in self._told:
                self._told.add(name)
                near = scope.nearest(name)
                hint = f"; the nearest that was made is {near}" if near else ""
                logger().warning("%s names %s, but step %d made no such call%s.", key, name, self._step, hint)
        if self._recorder is not None:
            self._recorder.tell_result(self._step)

    def _tell_if_over(self) -> None:
        if self.config.step and self._step > max(self.config.step):
            last = max(self.config.step)
            self.tell_once(f"no step after step {last} is recorded; the recordings are in {self._run.path}.")

    def tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            logger().info("%s", sentence)


def _checked_range(token_range: Any, model: Any) -> tuple[int, int] | None:
    if token_range is None:
        return None
    good = (
        isinstance(token_range, (list, tuple))
        and len(token_range) == 2
        and all(map(is_count, token_range))
        and token_range[0] <= token_range[1]
    )
    if not good:
        raise UsageError(f"token_range is {token_range!r}; it must be [first, last] with 0 <= first <= last.")
    if model is None:
        raise UsageError(
            "token_range counts the calls of a model, so start() needs it: start(model=..., token_range=...)."
        )
    return token_range[0], token_range[1]
