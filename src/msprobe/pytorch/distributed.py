"""Communication: when an asynchronous one is complete, so that its results can be read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from msprobe.adapter import Undo


class Completions:
    """What to do once works that are under way have been waited for."""

    def __init__(self) -> None:
        self._open: list[tuple[list[Any], Callable[[], None]]] = []

    def expect(self, result: Any, callback: Callable[[], None]) -> bool:
        """Call back when every work in `result` was waited for; False when there is nothing to wait for."""
        works = result if isinstance(result, list) else [result]
        works = [work for work in works if _is_work(work)]
        if not works:
            return False
        self._open.append((works, callback))
        return True

    def install(self) -> Undo:
        if not torch.distributed.is_available():
            return lambda: None
        kind = torch.distributed.Work
        original = kind.wait

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            self._waited(work)
            return result

        kind.wait = wait  # type: ignore[method-assign]

        def undo() -> None:
            kind.wait = original  # type: ignore[method-assign]
            self._open.clear()

        return undo

    def _waited(self, work: Any) -> None:
        for entry in list(self._open):
            works, callback = entry
            works[:] = [other for other in works if other is not work]
            if not works:
                self._open.remove(entry)
                callback()


def _is_work(value: Any) -> bool:
    return torch.distributed.is_available() and isinstance(value, torch.distributed.Work)
