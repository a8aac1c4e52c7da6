"""What recording costs: plain training, this tool and the existing one, interleaved in one run, as ratios.

Every number is the least of the rounds: on a shared machine other work only ever adds, and a disk that stalls
for seconds would decide a median. The clock of a run starts with its measured steps and stops when its
process is about to end, after all that a tool does then: whatever it writes behind training is paid for.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
INCUMBENT = ROOT / ".venv-26.2.0" / "bin" / "python"

ROOM = 30 << 30  # bytes that all rounds together leave on disk until the end


class Case(NamedTuple):
    """One way of recording."""

    label: str
    level: str
    task: str
    summary: str
    steps: int
    incumbent: bool = True  # the existing tool can do it too


CASES = [
    Case("L0 statistics", "L0", "statistics", "statistics", 20),
    Case("L1 statistics", "L1", "statistics", "statistics", 20),
    Case("mix statistics", "mix", "statistics", "statistics", 20),
    Case("L1 md5", "L1", "statistics", "md5", 20),
    Case("L1 sketch", "L1", "statistics", "sketch", 20, incumbent=False),
    Case("L1 tensor", "L1", "tensor", "statistics", 5),
    Case("L1 overflow_check", "L1", "overflow_check", "statistics", 20, incumbent=False),
]
OFF = Case("present but off", "L1", "statistics", "statistics", 20, incumbent=False)


class Cost(NamedTuple):
    """What one run took, per step; memory and disk as a whole."""

    seconds: float
    peak: int
    disk: int


def run(
    python: Path, tool: str, net: str, case: Case, folder: Path, script: Path = HERE / "train.py"
) -> Cost:
    """The cost of one run, which finds the disk at rest.

    What it wrote is not deleted before all is over: for five minutes after it took back inodes ext4 looks
    for others, and every file that is made pays for that.
    """
    out = Path(tempfile.mkdtemp(dir=folder)) / "out"
    os.sync()
    command = [str(python), str(script), "--tool", tool, "--net", net, "--level", case.level]
    command += ["--task", case.task, "--summary", case.summary, "--steps", str(case.steps), "--out", str(out)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    if tool == "incumbent":  # it is imported by the same name
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    disk = disk_of(out)
    steps_on_disk = max(1, len(list(out.glob("step*"))))
    return Cost(told["seconds"] / case.steps, told["peak"], disk // steps_on_disk)


def disk_of(folder: Path) -> int:
    """Allocated bytes below a folder; a file with several names counts once."""
    seen = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            seen[status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def measure(
    net: str, cases: list[Case], rounds: int, folder: Path, incumbent: Path | None
) -> dict[tuple[str, str], list[Cost]]:
    """Runs of every case, one after the other, round by round, so that a noisy minute hits all alike."""
    costs: dict[tuple[str, str], list[Cost]] = {}
    for number in range(rounds):
        for case in cases:
            print(f"  {net}: round {number + 1} of {rounds}, {case.label}", file=sys.stderr, flush=True)
            me = Path(sys.executable)
            costs.setdefault((case.label, "plain"), []).append(run(me, "plain", net, case, folder))
            tool = "off" if case is OFF else "ours"
            costs.setdefault((case.label, "ours"), []).append(run(me, tool, net, case, folder))
            if case.incumbent and incumbent is not None:
                costs.setdefault((case.label, "incumbent"), []).append(
                    run(incumbent, "incumbent", net, case, folder)
                )
    return costs


def table(net: str, cases: list[Case], costs: dict[tuple[str, str], list[Cost]]) -> list[str]:
    lines = [
        f"### {net}",
        "",
        "| recording | plain ms/step | ours ms/step | slowdown | incumbent ms/step | slowdown "
        "| **added time, ours / incumbent** | ours KB/step | incumbent KB/step | **bytes ratio** "
        "| ours peak MB | incumbent peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        plain = least(costs[case.label, "plain"])
        ours = least(costs[case.label, "ours"])
        cells = [case.label, ms(plain), ms(ours), f"{ours.seconds / plain.seconds:.2f}x"]
        other = costs.get((case.label, "incumbent"))
        if other:
            them = least(other)
            added = (ours.seconds - plain.seconds) / (them.seconds - plain.seconds)
            cells += [ms(them), f"{them.seconds / plain.seconds:.2f}x"]
            cells += [f"**{added:.2f}**", kb(ours.disk), kb(them.disk)]
            cells += [f"**{ours.disk / them.disk:.2f}**", mb(ours.peak), mb(them.peak)]
        else:
            cells += ["", "", "", kb(ours.disk), "", "", mb(ours.peak), ""]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def least(costs: list[Cost]) -> Cost:
    return Cost(*(min(values) for values in zip(*costs, strict=True)))


def ms(cost: Cost) -> str:
    return f"{cost.seconds * 1000:.1f}"


def kb(size: float) -> str:
    return f"{size / 1024:.0f}"


def mb(size: float) -> str:
    return f"{size / 2**20:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--net", choices=["call-bound", "compute-bound"], action="append")
    labels = [case.label for case in [OFF, *CASES]]
    parser.add_argument("--case", choices=labels, action="append", help="only this one; nothing is written")
    parser.add_argument(
        "--incumbent", type=Path, default=INCUMBENT, help="a Python that has mindstudio-probe 26.2.0"
    )
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "benchmark.md")
    options = parser.parse_args()
    incumbent = options.incumbent if options.incumbent.exists() else None
    if incumbent is None:
        print(f"{options.incumbent} does not exist: measuring without the incumbent.", file=sys.stderr)
    cases = [case for case in [OFF, *CASES] if options.case is None or case.label in options.case]
    lines = [
        "# What recording costs",
        "",
        "Written by `make bench`. The least of the rounds; time per training step (forward, backward, "
        "optimizer) until all is written; bytes are allocated blocks per step, files with several names "
        "counted once; the ratios in bold compare the time and the bytes that each tool *adds*, in the same "
        "run. The incumbent is "
        'mindstudio-probe 26.2.0 with `"risk_level": "ALL"`, so that it records the same calls.',
        "",
        f"Machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"no accelerator; {options.rounds} rounds.",
        "",
    ]
    if shutil.disk_usage(ROOT).free < ROOM:
        print(f"Less than {ROOM >> 30} GB are free: the disk may run full.", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=ROOT / "build" if (ROOT / "build").is_dir() else None) as folder:
        for net in options.net or ["call-bound", "compute-bound"]:
            lines += table(net, cases, measure(net, cases, options.rounds, Path(folder), incumbent))
    text = "\n".join(lines)
    print(text)
    if options.net is options.case is None:
        options.write.write_text(text)


if __name__ == "__main__":
    main()
