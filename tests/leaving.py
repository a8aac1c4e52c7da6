"""How a script of two gloo processes ends."""

from __future__ import annotations

import atexit
import os
import sys


def leave() -> None:
    """End this process as it ends by itself, without what torch does after that.

    A thread of torch that asks for the interpreter when that has ended aborts the process: "terminate called
    without an active exception", about once in fifty under DistributedDataParallel, recorded or not.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
