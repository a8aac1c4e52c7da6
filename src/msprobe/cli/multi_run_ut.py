"""run_ut with several worker processes at a time; the tables are the same.

examples:
  msprobe -f pytorch multi_run_ut -api_info dump.json -n 8
  msprobe -f pytorch multi_run_ut -api_info dump.json -n 32 -d 0 1 2 3

exit status: as run_ut
"""

from __future__ import annotations

import argparse

from msprobe.cli import run_ut
from msprobe.errors import UsageError

SUMMARY = "run_ut in several processes"
MOST = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run_ut.add_arguments(parser)
    parser.add_argument(
        "-n",
        "--num_splits",
        metavar="N",
        type=int,
        default=8,
        help=f"how many processes, at most {MOST} (default: 8)",
    )


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.num_splits <= MOST:
        raise UsageError(f"-n {arguments.num_splits}: it must lie between 1 and {MOST}.")
    return run_ut.run(arguments, arguments.num_splits)
