"""Callbacks for mindspore.train.Model: each training step becomes one recorded step."""

from __future__ import annotations

from typing import Any

from mindspore import _c_expression
from mindspore.train import Callback

from msprobe.capture.door import Door
from msprobe.errors import UsageError
from msprobe.log import logger


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
    """Lets kernel dumps count from the step at which training resumes."""

    def on_train_begin(self, run_context: Any) -> None:
        begin_at = getattr(_c_expression, "_set_init_iter", None)
        if begin_at is None:
            logger().warning("this MindSpore cannot be told its first step; kernel dumps count from 0.")
        else:
            begin_at(run_context.original_args().cur_step_num)
