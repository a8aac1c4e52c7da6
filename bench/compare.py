"""What comparing costs: this tool and the existing one on the same recordings, in turn, as ratios.

The recordings are written by the existing tool: two of 300 MB of tensors in which every number differs by
rounding, and two of 20 000 calls with statistics. Both tools write xlsx; ours the page and the advice too.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
INCUMBENT = ROOT / ".venv-26.2.0" / "bin" / "python"
TASKS = ("tensor", "statistics")


class Cost(NamedTuple):
    """What one comparison took."""

    seconds: float
    peak: int  # bytes, of the largest process


def record(incumbent: Path, folder: Path, task: str) -> tuple[Path, Path]:
    """The step folders of two runs, recorded by the existing tool."""
    steps = []
    for name, noise in (("golden", []), ("target", ["--noise"])):
        out = folder / task / name
        out.parent.mkdir(mode=0o750, exist_ok=True)
        command = [str(incumbent), str(HERE / "two_runs.py"), "--task", task, "--out", str(out), *noise]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment())
        steps.append(out / "step0")
    return steps[1], steps[0]


def environment() -> dict[str, str]:
    """Without our package on the path: both tools are imported by one name."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def cost(command: list[str], env: dict[str, str]) -> Cost:
    began = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
    assert child.stderr is not None
    errors = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{errors.decode()}")
    return Cost(time.monotonic() - began, used.ru_maxrss * 1024)


def measure(incumbent: Path, folder: Path, task: str, rounds: int) -> tuple[list[Cost], list[Cost]]:
    target, golden = record(incumbent, folder, task)
    ours, theirs = [], []
    for number in range(rounds):
        print(f"  {task}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        out = folder / f"{task}-{number}"
        command = [sys.executable, "-m", "msprobe", "compare", str(target), str(golden), "-o"]
        ours.append(cost([*command, str(out / "ours")], dict(os.environ)))
        (out / "theirs").mkdir(mode=0o750, parents=True)
        command = [str(incumbent.parent / "msprobe"), "compare", "-tp", str(target), "-gp", str(golden)]
        theirs.append(cost([*command, "-o", str(out / "theirs"), "--xlsx"], environment()))
        shutil.rmtree(out)
    return ours, theirs


def table(costs: dict[str, tuple[list[Cost], list[Cost]]]) -> list[str]:
    lines = [
        "| recordings | ours s | incumbent s | **ours / incumbent** | ours peak MB | incumbent peak MB |",
        "|---|---|---|---|---|---|",
    ]
    for task, (ours, theirs) in costs.items():
        seconds = [min(c.seconds for c in side) for side in (ours, theirs)]
        ratio = seconds[0] / seconds[1]
        peaks = [max(c.peak for c in side) / 2**20 for side in (ours, theirs)]
        what = "300 MB of tensors" if task == "tensor" else "statistics of 20 000 calls"
        cells = [what, *(f"{s:.2f}" for s in seconds), f"**{ratio:.3f}**", *(f"{p:.0f}" for p in peaks)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument(
        "--incumbent", type=Path, default=INCUMBENT, help="a Python that has mindstudio-probe 26.2.0"
    )
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "benchmark_compare.md")
    options = parser.parse_args()
    if not options.incumbent.exists():
        sys.exit(f"{options.incumbent} does not exist: there is nothing to compare with.")
    with tempfile.TemporaryDirectory(dir=ROOT / "build" if (ROOT / "build").is_dir() else None) as folder:
        os.chmod(folder, 0o750)
        costs = {
            task: measure(options.incumbent, Path(folder), task, options.rounds)
            for task in options.task or TASKS
        }
    text = "\n".join(
        [
            "# What comparing costs",
            "",
            "Written by `make bench`. The least of the rounds, whole commands, both writing xlsx, ours also "
            "the page and the advice; the recordings were written by the incumbent, mindstudio-probe 26.2.0, "
            "and all numbers in them differ by rounding.",
            "",
            f"Machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; "
            f"{options.rounds} rounds.",
            "",
            *table(costs),
        ]
    )
    print(text)
    if options.task is None:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
