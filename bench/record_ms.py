"""What recording MindSpore costs: plain and recorded training in turn, as ratios of their step times.

The existing tool records no dynamic graph without an Ascend device, so that there is nothing to stand beside.
What the added time goes into is asked of a profiler, in a run of its own.
"""

import argparse
import os
import platform
import pstats
import subprocess
import sys
import tempfile
from pathlib import Path

from record import Case, Cost, kb, least, mb, ms, run

HERE = Path(__file__).parent
ROOT = HERE.parent
SCRIPT = HERE / "train_ms.py"
OFF = Case("present but off", "L1", "statistics", "statistics", 8)
CASES = [
    Case("L0 statistics", "L0", "statistics", "statistics", 8),
    Case("L1 statistics", "L1", "statistics", "statistics", 8),
    Case("mix statistics", "mix", "statistics", "statistics", 8),
    Case("L1 tensor", "L1", "tensor", "statistics", 5),
]
NETS = ("call-bound", "compute-bound")
SHOWN = 6  # functions of a profile


def measure(net: str, rounds: int, folder: Path) -> dict[tuple[str, str], list[Cost]]:
    costs: dict[tuple[str, str], list[Cost]] = {}
    for number in range(rounds):
        for case in [OFF, *CASES]:
            print(f"  {net}: round {number + 1} of {rounds}, {case.label}", file=sys.stderr, flush=True)
            for tool in ("plain", "off" if case is OFF else "ours"):
                spent = run(Path(sys.executable), tool, net, case, folder, SCRIPT)
                costs.setdefault((case.label, tool), []).append(spent)
    return costs


def table(net: str, costs: dict[tuple[str, str], list[Cost]]) -> list[str]:
    lines = [
        f"### {net}",
        "",
        "| recording | plain ms/step | ours ms/step | **slowdown** | KB/step | plain peak MB | our peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in [OFF, *CASES]:
        plain = least(costs[case.label, "plain"])
        ours = least(costs[case.label, "off" if case is OFF else "ours"])
        ratio = f"**{ours.seconds / plain.seconds:.2f}x**"
        cells = [case.label, ms(plain), ms(ours), ratio, kb(ours.disk), mb(plain.peak), mb(ours.peak)]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def dominant(net: str, case: Case, folder: Path) -> list[str]:
    """The functions in which a recorded run spends most of its time."""
    profile, out = folder / f"{net}.{case.level}.profile", folder / f"{net}.{case.level}"
    command = [sys.executable, "-m", "cProfile", "-o", str(profile), str(SCRIPT), "--tool", "ours"]
    command += [
        "--net",
        net,
        "--level",
        case.level,
        "--task",
        case.task,
        "--steps",
        str(case.steps),
        "--out",
        str(out),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    spent = {key: own for key, (_, _, own, _, _) in pstats.Stats(str(profile)).stats.items()}
    ours = {key: own for key, own in spent.items() if "importlib" not in key[0]}
    total = sum(ours.values())
    most = sorted(ours.items(), key=lambda item: -item[1])[:SHOWN]
    return [f"- {100 * own / total:.0f} %  `{called(*key)}`" for key, own in most]


def called(file: str, line: int, function: str) -> str:
    parts = Path(file).parts
    for package in ("msprobe", "mindspore"):
        if package in parts:
            begin = len(parts) - 1 - parts[::-1].index(package)
            return f"{'/'.join(parts[begin:])}: {function}"
    return function.split(" at 0x")[0].lstrip("<").rstrip(">")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, default=ROOT / "docs" / "benchmark_mindspore.md")
    options = parser.parse_args()
    lines = [
        "# What recording MindSpore costs",
        "",
        "Written by `make bench`. The GPT of the PyTorch benchmark in a dynamic graph; the least of the "
        "rounds; time per training step until all is written.",
        "",
        f"Machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"no accelerator; {options.rounds} rounds.",
        "",
    ]
    with tempfile.TemporaryDirectory(dir=ROOT / "build" if (ROOT / "build").is_dir() else None) as folder:
        for net in NETS:
            lines += table(net, measure(net, options.rounds, Path(folder)))
        for net in NETS:
            lines += [f"What dominates L1 statistics, {net} (`compile` is the import of modules, once):", ""]
            lines += [*dominant(net, CASES[1], Path(folder)), ""]
    text = "\n".join(lines)
    print(text)
    options.write.write_text(text)


if __name__ == "__main__":
    main()
