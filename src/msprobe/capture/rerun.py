"""Code that backward runs a second time: stands for it, and tells its later runs to a region."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from msprobe.adapter import Region

Visible = Callable[[], AbstractContextManager[None]]  # while its block runs calls are seen, even after stop()


class Rerun:
    """Stands for code in the place where only backward runs it: every run is told to the region."""

    def __init__(self, function: Callable[..., Any], region: Region, visible: Visible) -> None:
        self._function = function
        self._region = region
        self._visible = visible
        self._mark = region.mark()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._visible(), self._region.again(self._mark):
            return self._function(*args, **kwargs)


class FirstThenRerun(Rerun):
    """The same, where the first run comes through this object too."""

    def __init__(self, function: Callable[..., Any], region: Region, visible: Visible) -> None:
        super().__init__(function, region, visible)
        self._ran = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._ran:
            return super().__call__(*args, **kwargs)
        self._ran = True
        return self._function(*args, **kwargs)
