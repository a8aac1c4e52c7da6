"""Callbacks for mindspore.train.Model: each training step becomes one recorded step."""

from __future__ import annotations

from typing import Any

from mindspore import _c_expression
from mindspore.train import Callback

from msprobe.capture.door import Door
from msprobe.errors import UsageError
from msprobe.log import logger
from msprobe.mindspore.debugger import PrecisionDebugger
from msprobe.mindspore.model_debugger import ModelDebugger


class MsprobeStep(Callback):  # type: ignore[misc]  # MindSpore has no types
    """Starts the debugger as each step begins, and ends its step as the step ends."""

    def __init__(self, debugger: Door) -> None:
        super().__init__()
        if not isinstance(debugger, Door):
            raise UsageError(f"MsprobeStep takes the PrecisionDebugger of the training, not {debugger!r}.")
        self._debugger = debugger

    def on_train_step_begin(self, run_context: Any) -> None:
        self._debugger.start()

    def on_train_step_end(self, run_context: Any) -> None:
        self._debugger.stop()
        self._debugger.step()


class MsprobeInitStep(Callback):  # type: ignore[misc]  # MindSpore has no types
    """Lets steps be counted from the one at which training resumes, in kernel dumps too."""

    def on_train_begin(self, run_context: Any) -> None:
        first = run_context.original_args().cur_step_num
        begin_at = getattr(_c_expression, "_set_init_iter", None)
        if begin_at is None:
            logger().warning("this MindSpore cannot be told its first step; kernel dumps count from 0.")
        else:
            begin_at(first)
        if first:
            _count_from(first)


def _count_from(first: int) -> None:
    try:
        debugger = PrecisionDebugger.the.get()
        if isinstance(debugger, ModelDebugger):  # the others are told by MindSpore
            debugger.set_init_step(first)
    except UsageError as error:
        logger().warning("steps are not counted from %d on: %s", first, error)
