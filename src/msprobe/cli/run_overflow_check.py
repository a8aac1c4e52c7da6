"""Say of each call that overflowed whether that is normal: whether it overflows in higher precision too.

The recording is one of task overflow_check, or any other that holds the contents of tensors.

example:
  msprobe -f pytorch run_overflow_check -api_info ./dump/step0/rank/dump.json

exit status: 0 if each overflow is normal, 1 if one is not or was not judged, 2 for a mistake in the command
"""

from __future__ import annotations

import argparse

from msprobe.cli.progress import progress
from msprobe.cli.run_ut import WORKER, devices_of, must_be_pytorch, must_have_time
from msprobe.screen import harmless

SUMMARY = "say which overflows are normal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-api_info", "--api_info_file", metavar="FILE", required=True, help="the dump.json, or its folder")
    add("-j", "--jit_compile", action="store_true", help="accepted; there is nothing to compile on this side")
    add("-d", "--device", dest="device_id", metavar="ID", type=int, default=0, help="accepted; not used")
    add("--timeout", metavar="SECONDS", type=float, default=300.0, help="for one call (default: 300)")


def run(arguments: argparse.Namespace) -> int:
    from msprobe.precheck.overflows import judge_overflows
    from msprobe.precheck.pool import command_of

    must_be_pytorch(arguments.framework, arguments.command)
    devices_of([arguments.device_id])
    must_have_time(arguments.timeout)
    judged = judge_overflows(
        arguments.api_info_file, command_of(WORKER), arguments.timeout, progress("checking", logs=True)
    )
    for line in judged.told():
        print(harmless(line))
    return 0 if judged.all_normal else 1
