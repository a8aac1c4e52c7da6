"""What register_hook mounts: msprobe's debugger and recorder, with the old files in the place of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msprobe.capture.debugger import Debugger
from msprobe.capture.overflow import OverflowRecorder
from msprobe.capture.recorder import Recorder
from msprobe.capture.stacks import Stacks
from msprobe.capture.tasks import Opening
from msprobe.config import Config, Tensor
from msprobe.errors import HardwareError
from msprobe.log import logger
from msprobe.pytorch.adapter import TorchAdapter
from msprobe.pytorch.kernel_dump import KernelDump
from ptdbg_ascend.modes import OldScope
from ptdbg_ascend.names import ours
from ptdbg_ascend.old_writer import EveryOverflow, OldWriter, OverflowWriter

_NO_RANK = (
    "register_hook was given no rank and finds none: the dump goes to rank0. Name it if more processes train."
)
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Mounted:
    """A hook that register_hook has mounted: from there on calls are counted, and dumped while it is ON.

    It is the task of a debugger: calls are recorded as by any, and written as the old tool did.
    """

    saves_tensors = False

    def __init__(self, root: Path, folder: Path, most: int | None) -> None:
        """`most`: so many overflows end training; None: calls are dumped whether they overflow or not."""
        adapter = TorchAdapter()
        stacks = Stacks((*adapter.hidden_files, _OWN_FOLDER), adapter.frame_groups)
        self._limit = EveryOverflow(-1 if most is None else most)
        self._recorder: Recorder | None = None
        self._scope = OldScope(is_on=False)
        overflowing = OverflowWriter(stacks, self._limit, root, folder)
        self.writer = OldWriter(stacks) if most is None else overflowing
        self._debugger = Debugger(adapter, Config(dump_path=str(root)), stacks, task=self)
        self._debugger.start()

    def recorder(self, opening: Opening) -> Recorder:
        adapter, scope, stacks = opening.adapter, self._scope, opening.stacks
        plan = opening.plan._replace(fills=self.writer.needs_content)
        if isinstance(self.writer, OverflowWriter):
            self._recorder = OverflowRecorder(adapter, self.writer, scope, stacks, plan, self._limit)
        else:
            self._recorder = Recorder(adapter, self.writer, scope, stacks, plan)
        return self._recorder

    def obstacle(self) -> str | None:
        return None

    def end_training(self) -> None:
        self._limit.end_training()

    def turn_on(self, scope: OldScope) -> None:
        """From here on these calls are dumped."""
        self.turn_off()
        scope.left_out = self._scope.left_out
        self._scope = scope
        if self._recorder is not None:
            self._recorder.scope = scope

    def turn_off(self) -> None:
        """Calls are counted on; what waits on a device is written."""
        self._scope.is_on = False
        if self._recorder is not None:
            with self._recorder.guarded("fetch the last statistics"):
                self._recorder.settle()

    def close(self) -> None:
        self._debugger.close()
        self.writer.close()


def kernels_of(name: str, gradients: Sequence[str], acl_config: str) -> KernelDump:
    """Have the kernel data of this call dumped, by its old name."""
    section = Tensor(scope=(ours(name),), backward_input=tuple(gradients))
    config = Config(dump_path=".", task="tensor", level="L2", acl_config=acl_config, section=section)
    try:
        kernels = KernelDump(config)
    except HardwareError:
        raise HardwareError(
            "set_dump_switch, mode='acl' dumps kernel data through torch_npu, which cannot be imported "
            f"here: nothing was dumped. Dump {name} with mode='list' on this machine."
        ) from None
    kernels.start(TorchAdapter())
    return kernels


def rank_of(model: Any) -> int:
    """The number of the model's device, or the rank of this process."""
    parameter = next(iter(model.parameters()), None)
    index: int | None = getattr(getattr(parameter, "device", None), "index", None)
    rank = TorchAdapter().rank() if index is None else index
    if rank is None:
        logger().warning(_NO_RANK)
    return rank or 0
