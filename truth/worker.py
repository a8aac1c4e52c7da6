"""Do many small jobs in forks of one process that has imported everything: `python -m truth.worker PART`.

Each line of the input is a JSON object. {"run": name, "mode": mode, "folder": path, "log": path} records a
run of PART; {"argv": [...], "log": path} calls the msprobe command, with the arguments of "first" before,
if there are any. Each line of the output is a JSON object with the exit status and the seconds it took.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 900  # seconds for one job
# What the command imports when it compares; one that is not there is imported by nobody.
PRELOADED = ("numpy", "msprobe.cli.main", "msprobe.cli.compare", "msprobe.compare_runs", "msprobe.compare")


def main() -> None:
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some modules print while they are imported
    record = _recorder(sys.argv[1]) if len(sys.argv) > 1 else None
    for name in () if record else PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    for line in sys.stdin:
        order = json.loads(line)
        began = time.perf_counter()
        status, cpu = _forked(_command if "argv" in order else record, order)
        answer = {"status": status, "seconds": time.perf_counter() - began, "cpu": cpu}
        print(json.dumps(answer), file=results, flush=True)


def _recorder(part: str) -> Callable[[dict[str, Any]], int]:
    module = importlib.import_module(f"truth.part_{part}")
    suite = module.suite()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # a fork has none of the threads of its parent
    module.prepare()
    from truth.recording import record

    def work(order: dict[str, Any]) -> int:
        record(suite.runs[order["run"]], order["mode"], Path(order["folder"]))
        return 0

    return work


def _command(order: dict[str, Any]) -> int:
    from msprobe.cli.main import main as command

    if "first" in order:
        command(order["first"])
    status = command(order["argv"])
    return 0 if status is None else int(status)


def _forked(work: Callable[[dict[str, Any]], int], order: dict[str, Any]) -> tuple[int, float]:
    child = os.fork()
    if child:
        _, status, usage = os.wait4(child, 0)
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    signal.alarm(LIMIT)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 70
    try:
        status = work(order)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever a job raises costs that job alone
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
