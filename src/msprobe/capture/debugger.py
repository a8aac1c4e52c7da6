"""Debugger: start / stop / step / save, the same for every framework."""

from __future__ import annotations

import atexit
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msprobe.adapter import Adapter, Undo, Want
from msprobe.capture.recorder import Plan, Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.stacks import Stacks
from msprobe.capture.variables import VariableRecorder
from msprobe.config import Config
from msprobe.errors import UsageError
from msprobe.log import logger, set_rank
from msprobe.record import Header
from msprobe.store.layout import recording_folder, set_aside
from msprobe.store.writer import Writer


class Debugger:
    """Follows one training run: opens a recording per step, and listens between start() and stop()."""

    def __init__(self, adapter: Adapter, config: Config, stacks: Stacks) -> None:
        self.config = config
        self._adapter = adapter
        self._stacks = stacks
        self._step = 0
        self._run = Path(config.dump_path)
        self._pid = os.getpid()
        self._undo: list[Undo] = []
        self._recorder: Recorder | None = None
        self._variables: VariableRecorder | None = None
        self._writer: Writer | None = None
        self._opened = False  # this run has written something
        self._told: set[str] = set()
        atexit.register(self.close)

    @property
    def step_number(self) -> int:
        return self._step

    # --- what a training script calls ---

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Record from here on."""
        if self.config.level in ("L0", "mix") and model is None:
            raise UsageError(
                f"level {self.config.level} records modules, so start() needs the model: call start(model=your_model)."
            )
        tokens = _checked_range(token_range, model)
        if not self.is_wanted() or self._undo:
            return
        if self.config.level == "debug":
            self._tell_once("level debug records what save() is given; start() and stop() have no effect.")
            return
        recorder = self._recorder = self._recorder or self._open_recorder()
        if self.config.level in ("L0", "mix"):
            self._undo.append(self._adapter.watch(model, recorder))
        if self.config.level in ("L1", "mix"):
            self._undo.append(self._adapter.intercept(recorder.around, recorder))
        if tokens is None:
            recorder.listening = True
        else:
            self._listen_to_tokens(recorder, model, tokens)

    def stop(self) -> None:
        """Record no further call; gradients of the calls so far are taken until step()."""
        if self._pid != os.getpid():
            return
        self._silence()
        if self._recorder is not None and self._writer is not None:
            self._recorder.pause()
            self._writer.publish()

    def step(self) -> None:
        """The step is over: finish its recording and count on."""
        if self._pid != os.getpid():
            return
        self._finish()
        self._step += 1
        if self.config.step and self._step == max(self.config.step) + 1:
            self._tell_once(f"all steps of the configuration are recorded in {self._run}.")

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record one variable, and its gradient, under a name (level debug)."""
        if self.config.level != "debug" or not self.is_wanted():
            return
        if self._variables is None:
            self._variables = VariableRecorder(self._adapter, self._open_writer(), self._plan())
        self._variables.save(variable, name, save_backward)

    def set_init_step(self, step: int) -> None:
        """Count steps from here; call it before the training loop."""
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise UsageError(f"set_init_step takes a whole number from 0 on, not {step!r}.")
        self._step = step

    def close(self) -> None:
        """Leave everything as it was found, and the recording complete."""
        if self._pid == os.getpid():
            self._finish()

    # --- how it is done ---

    def is_wanted(self) -> bool:
        """Whether this process records this step; each "no" is told once."""
        if self._pid != os.getpid():
            return False
        if self.config.step and self._step not in self.config.step:
            return False
        rank = self._adapter.rank()
        if self.config.rank and (0 if rank is None else rank) not in self.config.rank:
            self._tell_once(
                f"the configuration records rank {list(self.config.rank)} and this process is "
                f"{'rank 0 (not distributed)' if rank is None else f'rank {rank}'}: nothing is recorded here."
            )
            return False
        return True

    def _open_recorder(self) -> Recorder:
        section = self.config.section
        scope = Scope(
            getattr(section, "scope", ()), getattr(section, "list", ()), getattr(section, "data_mode", ("all",))
        )
        return Recorder(self._adapter, self._open_writer(), scope, self._stacks, self._plan())

    def _open_writer(self) -> Writer:
        rank = self._adapter.rank()
        set_rank(rank)
        if not self._opened:
            self._opened = True
            self._set_old_run_aside(rank)
        header = Header(self.config.task, self.config.level, self._adapter.framework)
        folder = recording_folder(self._run, self._step, rank)
        with_tensors = self.config.task == "tensor" or bool(getattr(self.config.section, "tensor_list", ()))
        self._writer = Writer(folder, header, suffix=self._adapter.file_suffix, with_tensors=with_tensors)
        return self._writer

    def _set_old_run_aside(self, rank: int | None) -> None:
        try:
            place = set_aside(self._run, rank)
        except OSError as error:
            logger().error("an older recording in %s cannot be moved aside: %s.", self._run, error)
            return
        if place is not None:
            logger().warning("%s held an older recording; it is now in %s.", self._run, place)

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
        )

    def _listen_to_tokens(self, recorder: Recorder, model: Any, tokens: tuple[int, int]) -> None:
        calls = Counter[str]()

        def before() -> None:
            recorder.listening = tokens[0] <= calls["model"] <= tokens[1]

        def after() -> None:
            calls["model"] += 1
            recorder.listening = False

        self._undo.append(self._adapter.on_model_call(model, before, after))

    def _silence(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _finish(self) -> None:
        self._silence()
        if self._recorder is not None:
            self._recorder.close()
            self._report(self._recorder.scope)
        if self._variables is not None:
            self._variables.close()
        if self._writer is not None:
            self._writer.close()
        self._recorder = self._variables = self._writer = None

    def _report(self, scope: Scope) -> None:
        for sentence in scope.never_met():
            logger().warning("step %d: %s", self._step, sentence)
        for reason, count in scope.left_out.items():
            logger().debug("step %d: %d calls not recorded: %s.", self._step, count, reason)

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            logger().info("%s", sentence)


def _checked_range(token_range: Any, model: Any) -> tuple[int, int] | None:
    if token_range is None:
        return None
    good = (
        isinstance(token_range, (list, tuple))
        and len(token_range) == 2
        and all(isinstance(end, int) and not isinstance(end, bool) and end >= 0 for end in token_range)
        and token_range[0] <= token_range[1]
    )
    if not good:
        raise UsageError(f"token_range is {token_range!r}; it must be [first, last] with 0 <= first <= last.")
    if model is None:
        raise UsageError("token_range counts the calls of a model, so start() needs it: start(model=..., token_range=...).")
    return token_range[0], token_range[1]
