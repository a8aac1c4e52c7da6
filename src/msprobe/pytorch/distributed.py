"""Communication: which tensors it writes, when an asynchronous one is complete, what a P2POp holds."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from msprobe.adapter import Undo
from msprobe.capture.patch import replace, together
from msprobe.log import logger
from msprobe.plural import counted
from msprobe.pytorch.describe import group_id

# Methods of a process group that write into tensors they are given; torch does not count that as a change.
_WRITES = re.compile(
    r"_?(broadcast|all_?reduce|reduce|all_?gather|gather|scatter|all_?to_?all|recv)(_.*|base)?"
)


class _Expected(NamedTuple):
    works: list[Any]
    callback: Callable[[], None]


class Transfers:
    """The communication of one start() ... stop()."""

    def __init__(self, written: Callable[[Any], None]) -> None:
        self.is_under_way = False  # what is described now may be half written
        self._written = written
        self._expected: list[_Expected] = []

    def expect(self, result: Any, callback: Callable[[], None]) -> bool:
        """Call back when every work in `result` was waited for; False when there is nothing to wait for."""
        works = [work for work in (result if isinstance(result, list) else [result]) if _is_work(work)]
        if works:
            self._expected.append(_Expected(works, callback))
        return bool(works)

    def follow_works(self) -> Undo:
        """Notice wait(); what was not waited for by the time of undo is called back then."""
        if not torch.distributed.is_available():
            return lambda: None
        restore = replace(torch.distributed.Work, "wait", self._noticing_wait)
        process = os.getpid()

        def undo() -> None:
            restore()
            if os.getpid() == process:
                self._give_up()

        return undo

    def follow_writes(self) -> Undo:
        """Tell which tensors communication writes, whoever calls it."""
        if not torch.distributed.is_available():
            return lambda: None
        group = torch.distributed.ProcessGroup
        names = [name for name in vars(group) if _WRITES.fullmatch(name)]
        return together(*(functools.partial(replace, group, name, self._noticing_writes) for name in names))

    def _noticing_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            self._waited(work)
            return result

        return wait

    def _noticing_writes(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            for tensor in _tensors([*args, *kwargs.values()]):
                self._written(tensor)
            return original(*args, **kwargs)

        return method

    def _waited(self, work: Any) -> None:
        for expected in list(self._expected):
            left = [other for other in expected.works if other is not work]
            if len(left) < len(expected.works):
                expected.works[:] = left
                if not left:
                    self._expected.remove(expected)
                    expected.callback()

    def _give_up(self) -> None:
        expected, self._expected = self._expected, []
        under_way = 0
        for works, callback in expected:
            self.is_under_way = not all(map(_is_complete, works))
            under_way += self.is_under_way
            callback()
        self.is_under_way = False
        if under_way:
            logger().warning(
                "%s still under way at stop(), and such a result is not recorded. Call stop() after wait().",
                counted(under_way, "asynchronous communication", "were"),
            )


def _is_work(value: Any) -> bool:
    return torch.distributed.is_available() and isinstance(value, torch.distributed.Work)


def _is_complete(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except RuntimeError:  # it failed, and its tensors may hold anything
        return False


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += _tensors(value)
        elif isinstance(value, torch.Tensor):
            found.append(value)
    return found


def parts_of_p2p(operation: Any) -> dict[str, Any]:
    """What a torch.distributed.P2POp holds, in the order of the file format."""
    group = operation.group or torch.distributed.group.WORLD
    return {
        "class_type": "torch.distributed.P2POp",
        "tensor": operation.tensor,
        "op": operation.op.__name__,
        "peer": operation.peer,
        "tag": operation.tag,
        "group_id": group_id(torch.distributed.get_process_group_ranks(group)),
    }
