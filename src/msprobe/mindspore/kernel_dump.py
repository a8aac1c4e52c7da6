"""MindSpore's own dump, as this process steers it: switched on, told the steps, resting in between."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import mindspore
from mindspore import _c_expression
from mindspore.communication import GlobalComm, get_local_rank, get_rank

from msprobe.adapter import Undo
from msprobe.capture.patch import replace, together
from msprobe.errors import UsageError
from msprobe.log import logger
from msprobe.mindspore.framework import api, executor
from msprobe.mindspore.kernel_config import ELSEWHERE, DumpSettings, Machine
from msprobe.store.layout import make_folder, write_whole

_VARIABLE = "MINDSPORE_DUMP_CONFIG"  # read when the first graph is compiled
_SET_NUMBER = "_set_init_iter"


def this_machine() -> Machine:
    level = mindspore.context.get_jit_config().get("jit_level") or mindspore.get_context("jit_level") or "O0"
    version = tuple(int(number) for number in re.findall(r"[0-9]+", mindspore.__version__)[:3])
    return Machine(mindspore.get_context("device_target"), level, version)


def own_rank() -> int | None:
    """None outside distributed training, which counts as rank 0."""
    return int(get_rank()) if GlobalComm.INITED else None


def rank_on_its_node() -> int:
    """What a configuration, which is the same on all nodes, means by a rank."""
    return int(get_local_rank()) if GlobalComm.INITED else 0


def has_compiled() -> bool:
    """Whether a graph was compiled in this process: one that was has no dump in it."""
    cells: dict[Any, Any] = getattr(api, "cells_compile_cache", {})
    return bool(getattr(api, "ms_compile_cache", ())) or any(cells.values())


def write_settings(settings: DumpSettings, folder: Path) -> Path:
    file = make_folder(folder) / settings.file
    write_whole(file, [json.dumps(settings.content, indent=4).encode()])
    return file


class KernelDump:
    """The dump, from its beginning to the end of the process: MindSpore reads its settings once."""

    def __init__(self, settings: DumpSettings, folder: Path) -> None:
        file = write_settings(settings, folder)
        if os.environ.get(_VARIABLE, str(file)) != str(file):
            logger().warning("%s was %s; it is now %s.", _VARIABLE, os.environ[_VARIABLE], file)
        os.environ[_VARIABLE] = str(file)
        self._set_number: Callable[[int], None] | None = getattr(_c_expression, _SET_NUMBER, None)
        if self._set_number is None:
            logger().warning(
                "this MindSpore cannot be told which step it is: it counts each graph's runs from 0, and "
                "stop() does not stop it."
            )
        try:
            self.name_step(ELSEWHERE)
        except RuntimeError as refusal:
            del os.environ[_VARIABLE]
            reason = str(refusal).partition("\n")[0].rstrip(".")
            raise UsageError(f"MindSpore refuses what {file} asks it to record: {reason}.") from None

    def name_step(self, number: int) -> None:
        """What runs from here on is of this step, or ELSEWHERE; what was begun before has ended."""
        if self._set_number is not None:
            executor.sync()
            self._set_number(number)

    def close(self) -> None:
        """Graphs that are compiled from here on have no dump in them; in the others it rests."""
        os.environ.pop(_VARIABLE, None)


def watch_graphs(before: Callable[[Hashable], None], begin: Callable[[int], None]) -> Undo:
    """Have `before` called ahead of each run of a graph, with what the graph was compiled from.

    Whoever tells MindSpore its first step meanwhile, as MsprobeInitStep does, tells `begin`.
    """
    installs = [
        lambda: replace(api._JitExecutor, "__call__", lambda call: _announced(call, before, _function)),
        lambda: replace(api._CellGraphExecutor, "run", lambda call: _announced(call, before, _cell)),
    ]
    if hasattr(_c_expression, _SET_NUMBER):
        installs.append(lambda: replace(_c_expression, _SET_NUMBER, lambda _: begin))
    return together(*installs)


def _announced(
    call: Callable[..., Any], before: Callable[[Hashable], None], source: Callable[..., Hashable]
) -> Callable[..., Any]:
    @functools.wraps(call)
    def announced(executor: Any, *args: Any, **kwargs: Any) -> Any:
        before(source(executor, *args))
        return call(executor, *args, **kwargs)

    return announced


def _function(compiled: Any, *args: Any) -> Hashable:
    """A function may be made anew for each step, as mindspore.grad does: then its code is what stays."""
    return compiled.fn.__code__ if compiled.obj is None else (id(compiled.obj), compiled.fn.__name__)


def _cell(executor: Any, cell: Any, *args: Any) -> Hashable:
    return id(cell)
