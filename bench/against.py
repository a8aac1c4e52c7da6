"""Hold the CPU time of this tree against that of another commit: recording and comparing, in turn.

  python bench/against.py 5f3ab9d                         clone the commit, build its kernels, measure both
  python bench/against.py 5f3ab9d --case "L1 statistics" --rounds 3

Both trees train the same nets, and compare recordings that they made of the same runs. CPU time depends
less on other work on the machine than the clock does. The ratio of a round is one between neighbours; the
median over the rounds is printed.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from record import CASES, ROOT, Case

HERE = Path(__file__).parent
NETS = ("call-bound", "compute-bound")


def clone(commit: str, folder: Path) -> Path:
    """Return the packages of a clone of the commit, with its kernels built."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "checkout", "-q", commit], cwd=folder, check=True)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    return folder / "src"


def done(command: list[str], packages: Path) -> tuple[str, float]:
    """Run a command with these packages; return what it printed and its CPU seconds."""
    env = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(packages)}
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen([sys.executable, *command], stdout=said, stderr=subprocess.STDOUT, env=env)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{text}")
    return text, used.ru_utime + used.ru_stime


def recorded(packages: Path, tool: str, net: str, case: Case, out: Path) -> float:
    """Record a training run and return the CPU seconds of its measured steps."""
    command = [str(HERE / "train.py"), "--tool", tool, "--net", net, "--level", case.level]
    command += ["--task", case.task, "--summary", case.summary, "--steps", str(case.steps)]
    text, _ = done([*command, "--out", str(out)], packages)
    return float(json.loads(text.strip().splitlines()[-1])["cpu"])


def recording_row(trees: tuple[Path, Path], net: str, case: Case, rounds: int, folder: Path) -> str:
    """Return the row of a way of recording: CPU time per step of plain training and of both trees."""
    plain, before, now = [], [], []
    for _ in range(rounds):
        for costs, packages, tool in (
            (before, trees[0], "ours"),
            (now, trees[1], "ours"),
            (plain, trees[1], "plain"),
        ):
            out = folder / "recorded"
            costs.append(recorded(packages, tool, net, case, out) / case.steps * 1000)
            shutil.rmtree(out, ignore_errors=True)
    return row(f"{net}, {case.label}", f"{statistics.median(plain):.1f}", before, now, "ms/step")


def comparing_row(trees: tuple[Path, Path], task: str, rounds: int, folder: Path) -> str:
    """Return the row of comparing two runs that differ by rounding; see two_runs.py."""
    runs = [(folder / f"{task}-{n}-target", folder / f"{task}-{n}-golden") for n in range(2)]
    for (target, golden), packages in zip(runs, trees, strict=True):
        for out, noise in ((golden, []), (target, ["--noise"])):
            command = [str(HERE / "two_runs.py"), "--tool", "ours", "--task", task, "--out", str(out)]
            done([*command, *noise], packages)
    costs: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for found, packages, (target, golden) in zip(costs, trees, runs, strict=True):
            command = ["-m", "msprobe", "compare", str(target / "step0"), str(golden / "step0")]
            found.append(done([*command, "-o", str(folder / "report"), "-j", "1"], packages)[1])
            shutil.rmtree(folder / "report")
    return row(f"compare, {task}", "", *costs, "s")


def row(label: str, plain: str, before: list[float], now: list[float], unit: str) -> str:
    ratio = statistics.median(b / a for a, b in zip(before, now, strict=True))
    return (
        f"| {label} ({unit}) | {plain} | {statistics.median(before):.2f} | {statistics.median(now):.2f} "
        f"| **{ratio:.2f}** |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the commit that this tree is held against")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--case", choices=[case.label for case in CASES], action="append")
    parser.add_argument("--compare", choices=["statistics", "tensor"], action="append")
    options = parser.parse_args()
    everything = not (options.net or options.case or options.compare)
    print(f"CPU time, median of {options.rounds} rounds\n")
    print(f"| what | plain | {options.commit} | now | **now / {options.commit}** |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=ROOT / "build" if (ROOT / "build").is_dir() else None) as folder:
        trees = clone(options.commit, Path(folder) / "before"), ROOT / "src"
        if everything or options.net or options.case:
            for net in options.net or NETS:
                for case in CASES:
                    if options.case is None or case.label in options.case:
                        print(recording_row(trees, net, case, options.rounds, Path(folder)), flush=True)
        for task in options.compare or (("statistics", "tensor") if everything else ()):
            print(comparing_row(trees, task, options.rounds, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
