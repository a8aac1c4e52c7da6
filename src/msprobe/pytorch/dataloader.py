"""enable_dataloader: each batch of a data loader begins a step, and training exits after the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.utils.data.dataloader as loading

from msprobe.adapter import Undo
from msprobe.log import logger

if TYPE_CHECKING:
    from msprobe.capture.debugger import Debugger


class StepsRecorded(SystemExit):
    """All steps of the configuration are recorded, so training exits, with status 0."""

    def __init__(self) -> None:
        super().__init__(0)


def follow_dataloader(debugger: Debugger) -> Undo:
    """From now on each batch begins a step; after the last configured step the next batch exits training."""
    kind: Any = loading._BaseDataLoaderIter
    original = kind.__next__
    running = False

    def next_batch(iterator: Any) -> Any:
        nonlocal running
        if running:
            running = False
            debugger.stop()
            debugger.step()
            if debugger.config.step and debugger.step_number > max(debugger.config.step):
                kind.__next__ = original
                logger().info("enable_dataloader: the configured steps are recorded; training exits here.")
                raise StepsRecorded
        batch = original(iterator)
        running = True
        debugger.start()
        return batch

    kind.__next__ = next_batch

    def undo() -> None:
        kind.__next__ = original

    return undo
