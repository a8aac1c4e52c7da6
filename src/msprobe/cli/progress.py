"""How far slow work is: a bar where somebody looks, else a line in the log now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from msprobe.log import logger

_BAR_SECONDS = 0.2
_LINE_SECONDS = 30.0


def progress(doing: str, *, logs: bool = False) -> Callable[[int, int], None]:
    """A function to call with how many are done, of how many."""
    shown = [time.monotonic() if logs else 0.0]

    def show(done: int, count: int) -> None:
        now = time.monotonic()
        if sys.stderr.isatty():
            if now - shown[0] > _BAR_SECONDS or done == count:
                shown[0] = now
                bar = "#" * (20 * done // count) if count else ""
                end = "\n" if done == count else ""
                print(f"\r{doing} [{bar:<20}] {done} of {count}", end=end, file=sys.stderr, flush=True)
        elif logs and now - shown[0] > _LINE_SECONDS:
            shown[0] = now
            logger().info("%s: %d of %d", doing, done, count)

    return show
