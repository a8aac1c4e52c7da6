"""Compare two recordings, place by place, and say which one needs attention first.

TARGET is the run under suspicion, GOLDEN the one that is trusted. Each is the folder of a run, of one of its
steps or ranks, or a dump.json. Ranks and steps of the same number are compared with each other; each gives
one table, compare_result_{timestamp}.xlsx, and one advisor_{timestamp}.txt.

Instead of two paths a compare.json may name them:

  {"npu_path": "./npu_dump/step0/rank/dump.json", "bench_path": "./gpu_dump/step0/rank/dump.json",
   "stack_path": "./npu_dump/step0/rank/stack.json", "is_print_compare_log": true}

examples:
  msprobe compare ./npu_dump ./gpu_dump
  msprobe compare ./npu_dump/step0 ./gpu_dump/step0 -o ./result --csv
  msprobe -f pytorch compare -i compare.json -o ./output -s
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msprobe.errors import UsageError

if TYPE_CHECKING:
    from msprobe.compare import Comparison

SUMMARY = "where two recordings part"


class Request(NamedTuple):
    """What to compare; the stack file of a single card may be named, or lies beside the recording."""

    target: str
    golden: str
    stack: str | None = None
    loud: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", help="the recording under suspicion")
    parser.add_argument("golden", metavar="GOLDEN", nargs="?", help="the recording that is trusted")
    parser.add_argument(
        "-i",
        "--input_path",
        metavar="FILE",
        help="a compare.json that names both, instead of two paths",
    )
    parser.add_argument(
        "-o", "--output_path", metavar="DIR", default="./output", help="where results go (default: ./output)"
    )
    parser.add_argument(
        "-s", "--stack_mode", action="store_true", help="show the call stacks in the column NPU_Stack_Info"
    )
    parser.add_argument(
        "-c", "--compare_only", action="store_true", help="only the table: no advice on screen and in a file"
    )
    parser.add_argument(
        "-f",
        "--fuzzy_match",
        action="store_true",
        help="match calls of one name also where their counts differ",
    )
    parser.add_argument("--csv", action="store_true", help="write the table as csv instead of xlsx")


def run(arguments: argparse.Namespace) -> int:
    from msprobe.compare import compare

    request = _request(arguments)
    out = Path(arguments.output_path)
    _make(out)
    comparisons = compare(request.target, request.golden, fuzzy=arguments.fuzzy_match, progress=_progress())
    stamp = time.strftime("%Y%m%d%H%M%S")
    for comparison in comparisons:
        for line in _report(comparison, out, stamp, arguments, several=len(comparisons) > 1):
            print(line)
    return 0


def _request(arguments: argparse.Namespace) -> Request:
    if arguments.input_path is not None:
        if arguments.target is not None:
            raise UsageError("Give either TARGET and GOLDEN or -i compare.json, not both.")
        return _read_request(arguments.input_path)
    if arguments.golden is None:
        raise UsageError("Nothing to compare: give TARGET and GOLDEN, or -i compare.json.")
    return Request(arguments.target, arguments.golden)


def _read_request(path: str) -> Request:
    from msprobe.json_file import read_object

    found = read_object(path)
    known = {"npu_path": str, "bench_path": str, "stack_path": str, "is_print_compare_log": bool}
    for key, value in found.value.items():
        if key not in known:
            raise UsageError(f"{path}: '{key}' is not a key of compare.json; it knows {', '.join(known)}.")
        if not isinstance(value, known[key]):
            word = "true or false" if known[key] is bool else "a text"
            raise UsageError(f"{path}: '{key}' is {value!r}; it must be {word}.")
    for key in ("npu_path", "bench_path"):
        if not found.value.get(key):
            raise UsageError(f"{path}: '{key}' is missing; it names a dump.json or the folder of a step.")
    values = found.value
    return Request(
        str(values["npu_path"]),
        str(values["bench_path"]),
        str(values["stack_path"]) if values.get("stack_path") else None,
        values.get("is_print_compare_log") is not False,
    )


def _make(out: Path) -> None:
    from msprobe.store.layout import make_folder

    try:
        make_folder(out)
    except OSError as error:
        raise UsageError(f"-o {out}: the folder cannot be made: {error.strerror}.") from None


def _progress() -> Callable[[int, int], None]:
    """Shows how far it is where somebody looks, at most a few times a second."""
    shown = [0.0]

    def show(done: int, all_: int) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() and (now - shown[0] > 0.2 or done == all_):
            shown[0] = now
            end = "\n" if done == all_ else ""
            print(f"\rcomparing: {done} of {all_} places", end=end, file=sys.stderr, flush=True)

    return show


def _report(
    comparison: Comparison, out: Path, stamp: str, arguments: argparse.Namespace, *, several: bool
) -> list[str]:
    from msprobe.report.advice import advise
    from msprobe.report.columns import table
    from msprobe.report.table import write_csv
    from msprobe.report.xlsx import write_xlsx

    target = comparison.target
    rank = "" if target.rank is None else str(target.rank)
    place = f"_step{target.step}_rank{rank}" if several else ""
    shown = table(comparison.findings, comparison.mode, with_stack=arguments.stack_mode)
    path = out / f"compare_result{place}_{stamp}.{'csv' if arguments.csv else 'xlsx'}"
    (write_csv if arguments.csv else write_xlsx)(path, shown)
    lines = [f"{path}: {len(comparison.findings)} rows"]
    if not arguments.compare_only:
        from msprobe.store.layout import write_whole

        advice = advise(comparison.findings)
        file = out / f"advisor{place}_{stamp}.txt"
        write_whole(file, [f"{advice}\n".encode()])
        lines += str(advice).splitlines()
    return lines
