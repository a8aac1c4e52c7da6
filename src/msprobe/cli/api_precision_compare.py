"""Judge two results of run_ut by the standard of each API: how one device did, beside another.

Both are the details tables of a check of the same dump.json, made on the device in question and on one that
is trusted. Two tables are written:

  api_precision_compare_result_{timestamp}.csv    one row for each call
  api_precision_compare_details_{timestamp}.csv   one row for each output and gradient, with its standard

example:
  msprobe -f pytorch api_precision_compare -npu npu/accuracy_checking_details_20260101120000.csv \\
          -gpu gpu/accuracy_checking_details_20260101130000.csv -o ./out

exit status: 0 no result is wrong, 1 if there is an error, 2 for a mistake in the command or its input, and if
no result was judged
"""

from __future__ import annotations

import argparse
from pathlib import Path

from msprobe.cli.run_ut import must_be_pytorch
from msprobe.errors import UsageError
from msprobe.screen import harmless

SUMMARY = "judge two results of run_ut by the standard of each API"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-npu",
        "--npu_csv_path",
        metavar="FILE",
        required=True,
        help="accuracy_checking_details_*.csv of the device in question",
    )
    add(
        "-gpu",
        "--gpu_csv_path",
        metavar="FILE",
        required=True,
        help="accuracy_checking_details_*.csv of the trusted device",
    )
    add("-o", "--out_path", metavar="DIR", default="./", help="where results go (default: ./)")


def run(arguments: argparse.Namespace) -> int:
    from msprobe.precheck.standards import compare_details

    must_be_pytorch(arguments.framework, arguments.command)
    compared = compare_details(
        Path(arguments.npu_csv_path), Path(arguments.gpu_csv_path), Path(arguments.out_path)
    )
    for line in compared.told():
        print(harmless(line))
    if compared.nothing_judged:
        raise UsageError(compared.nothing_judged)
    return 1 if compared.failed else 0
