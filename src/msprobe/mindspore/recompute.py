"""Recomputed cells: tells the first run of a block from the one that backward makes."""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import mindspore

from msprobe.adapter import Region, Undo
from msprobe.capture.patch import replace, together
from msprobe.capture.rerun import FirstThenRerun, Visible

# mindspore.common.recompute is a function; the module of that name stands here only.
_home: Any = sys.modules[mindspore.recompute.__module__]
_NOT_REENTRANT = "recompute_without_reentrant"


def is_machinery(cell: Any) -> bool:
    """Whether a cell is none of the user's: a recomputed cell holds one that has MindSpore run it again."""
    return bool(type(cell).__module__ == _home.__name__)


def watch_recompute(region: Region, visible: Visible) -> Undo:
    """Follow recomputed blocks from here on; those of this time are followed until their backward has run."""
    marks: dict[int, list[Any]] = defaultdict(list)  # by the cell: it may run several times before backward

    def first(construct: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(construct)
        def run(cell: Any, *args: Any, **kwargs: Any) -> Any:
            marks[id(cell)].append(region.mark())
            return construct(cell, *args, **kwargs)

        return run

    def second(bprop: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(bprop)
        def run(cell: Any, *args: Any) -> Any:
            if not marks[id(cell)]:
                return bprop(cell, *args)
            with visible(), region.again(marks[id(cell)].pop()):  # as MindSpore does: the last run first
                return bprop(cell, *args)

        return run

    def kept(run_block: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run_block)
        def run(block: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return run_block(FirstThenRerun(block, region, visible), *args, **kwargs)

        return run

    changes = [(_home._RecomputeCell, "construct", first), (_home._RecomputeCell, "bprop", second)]
    if hasattr(_home, _NOT_REENTRANT):
        changes.append((_home, _NOT_REENTRANT, kept))
    return together(*(functools.partial(replace, *change) for change in changes))
