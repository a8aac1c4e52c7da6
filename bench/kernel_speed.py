"""Whether recording slows down kernels that it does not record: a dozen of torch's before, while and after.

Each time is the least of 7 CPU times of one thread; each ratio is to the time before the recording in the
same process, and the median over processes. Processes that record alternate with processes that do not, whose
ratios show the noise of the machine. Every ratio of a process that records should be below 1.05.

    .venv/bin/python bench/kernel_speed.py --processes 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

REPEATS = 7
LEAST_SECONDS = 0.004  # that one time is taken over
MOMENTS = ("while", "after")


def kernels() -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    x, y = torch.randn(2, 512, 512)
    image, filters = torch.randn(4, 16, 32, 32), torch.randn(16, 16, 3, 3)
    half = x.bfloat16()
    return {
        "tanh": lambda: torch.tanh(x),
        "exp": lambda: torch.exp(x),
        "sigmoid": lambda: torch.sigmoid(x),
        "gelu": lambda: F.gelu(x),
        "relu": lambda: torch.relu(x),
        "add": lambda: x + y,
        "sum": lambda: x.sum(),
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: F.layer_norm(x, (512,)),
        "matmul": lambda: x @ y,
        "conv2d": lambda: F.conv2d(image, filters),
        "sort": lambda: torch.sort(x),
        "bfloat16 mul": lambda: half * half,
        "transpose copy": lambda: x.t().contiguous(),
    }


def least_times(found: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the least CPU time of each kernel, which nothing records."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return {name: min(cpu_time(kernel) for _ in range(REPEATS)) for name, kernel in found.items()}


def cpu_time(kernel: Callable[[], object]) -> float:
    count = 0
    start = time.thread_time()
    while True:
        kernel()
        count += 1
        seconds = time.thread_time() - start
        if seconds >= LEAST_SECONDS:
            return seconds / count


def one_process(records: bool, summary: str) -> dict[str, dict[str, float]]:
    """Return the ratio of each kernel at each moment to its time before."""
    torch.set_num_threads(1)
    model, found = torch.nn.Linear(64, 64), kernels()
    start = stop = step = lambda *_: None
    with tempfile.TemporaryDirectory() as folder:
        if records:
            from msprobe.pytorch import PrecisionDebugger

            path = Path(folder) / "config.json"
            task = {"task": "statistics", "level": "mix", "statistics": {"summary_mode": summary}}
            path.write_text(json.dumps({"dump_path": folder + "/out", **task}))
            debugger = PrecisionDebugger(config_path=str(path))
            start, stop, step = debugger.start, debugger.stop, debugger.step
        least_times(found)  # warms up
        before = least_times(found)
        start(model)
        model(torch.ones(64, 64)).sum().backward()
        times = {"while": least_times(found)}
        stop()
        step()
        times["after"] = least_times(found)
    return {name: {at: times[at][name] / before[name] for at in MOMENTS} for name in found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=5, help="of each kind")
    parser.add_argument("--summary", choices=["statistics", "md5", "sketch"], default="statistics")
    parser.add_argument("--one", choices=["plain", "recording"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one_process(given.one == "recording", given.summary)))
        return
    ratios: dict[str, list[dict[str, dict[str, float]]]] = {"plain": [], "recording": []}
    for _ in range(given.processes):
        for kind, found in ratios.items():
            command = [sys.executable, __file__, "--one", kind, "--summary", given.summary]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    print("| kernel | while, plain | while, recording | after, plain | after, recording |")
    print("|---|---|---|---|---|")
    for name in ratios["plain"][0]:
        cells = [
            f"{statistics.median(found[name][at] for found in ratios[kind]):.2f}"
            for at in MOMENTS
            for kind in ratios
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
