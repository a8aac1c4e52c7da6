"""The part of a measured training run that is the same for every framework and tool.

A run prints one JSON line: how long the measured steps took until all was on disk, their CPU
time, and the peak memory.
"""

import argparse
import atexit
import json
import os
import resource
import time
from collections.abc import Callable, Iterable
from typing import Any

SIZES = {  # name: width, length, batch, heads
    "call-bound": (32, 64, 4, 4),
    "compute-bound": (192, 128, 12, 6),
}


def options(tools: Iterable[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", choices=list(tools), default="plain")
    parser.add_argument("--net", choices=list(SIZES), default="call-bound")
    parser.add_argument("--level", default="L1")
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--summary", default="statistics")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--out", default="out")
    given = parser.parse_args()
    measured: dict[str, float] = {}
    atexit.register(_report, measured)  # the first to be registered is the last to run: all writers are done
    given.measured = measured
    return given


def configuration(given: argparse.Namespace, **more: Any) -> str:
    """The path of the configuration that asks for what was given."""
    task: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["all"]}
    if given.task == "statistics":
        task["summary_mode"] = given.summary
    elif given.task == "overflow_check":
        task = {"overflow_nums": -1}
    config = {"task": given.task, "dump_path": given.out, "level": given.level, given.task: task, **more}
    os.makedirs(given.out, exist_ok=True)
    path = f"{given.out}.json"
    with open(path, "w") as stream:
        json.dump(config, stream)
    os.chmod(path, 0o640)
    return path


def train(given: argparse.Namespace, step: Callable[[bool], float]) -> None:
    """Warm up and measure; `step` takes whether it is recorded."""
    for _ in range(given.warmup):
        step(False)
    recording = given.tool not in ("plain", "off")
    if recording:
        step(True)  # the first recorded step pays for imports and caches; it is not measured
    given.measured["began"], given.measured["cpu"] = time.monotonic(), time.process_time()
    for _ in range(given.steps):
        given.measured["loss"] = step(recording)


def _report(measured: dict[str, float]) -> None:
    measured["seconds"] = time.monotonic() - measured.pop("began")
    measured["cpu"] = time.process_time() - measured["cpu"]
    measured["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(measured), flush=True)
