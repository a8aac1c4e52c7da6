"""Check each recorded API call against the same call in higher precision, without a second run.

Inputs come from the tensor files of the recording, or are generated between the recorded minimum and maximum.
The reference is computed on the CPU, one precision higher. The checked side is the call made again on the
accelerator of this machine; on a machine without one, where a tensor recording holds the outputs, it is what
was recorded (--outputs says otherwise). Each call runs in a worker process: one that crashes or hangs costs
one row. Two tables are written:

  accuracy_checking_result_{timestamp}.csv    one row for each call: pass, warning, error or SKIP
  accuracy_checking_details_{timestamp}.csv   one row for each output and each gradient, with its metrics

examples:
  msprobe -f pytorch run_ut -api_info ./dump/step0/rank/dump.json -o ./out
  msprobe -f pytorch run_ut -api_info dump.json -config config.json -save_error_data
  msprobe -f pytorch run_ut -api_info dump.json -csv_path ./out/accuracy_checking_result_20260101120000.csv

exit status: 0 all pass, 1 if there is an error or a call ended its process, 2 for a mistake in the command
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.cli.progress import progress
from msprobe.cli.screen import harmless
from msprobe.errors import UsageError

if TYPE_CHECKING:
    from msprobe.config import RunUt
    from msprobe.precheck import Checked

SUMMARY = "check recorded API calls against a more precise reference"
WORKER = "msprobe.pytorch.worker"
_MOST_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-api_info",
        "--api_info_file",
        metavar="FILE",
        help="the dump.json of one step and rank, or its folder",
    )
    add("-o", "--out_path", metavar="DIR", default="./", help="where results go (default: ./)")
    add("-save_error_data", action="store_true", help="save inputs and outputs of failing calls")
    add("-j", "--jit_compile", action="store_true", help="accepted; there is nothing to compile on this side")
    add(
        "-d",
        "--device",
        dest="device_id",
        metavar="ID",
        nargs="+",
        type=int,
        default=[0],
        help="which accelerators to use (default: 0)",
    )
    add("-csv_path", "--result_csv_path", metavar="FILE", help="go on with a check that was interrupted")
    add(
        "-f",
        "--filter_api",
        action="store_true",
        help="of calls that differ in nothing but the values of their tensors check only the first",
    )
    add("-config", "--config_path", metavar="FILE", help="a config.json with task run_ut")
    add(
        "--outputs",
        choices=("auto", "recorded", "replayed"),
        default="auto",
        help="what is checked: recorded outputs, or those of the call made again (default: auto = recorded "
        "where there is no accelerator and contents were recorded)",
    )
    add("--timeout", metavar="SECONDS", type=float, default=300.0, help="for one call (default: 300)")


def run(arguments: argparse.Namespace, workers: int | None = None) -> int:
    from msprobe.precheck import Options, new_tables, precheck, summary
    from msprobe.precheck_calls import Lists
    from msprobe.precheck_pool import command_of
    from msprobe.precheck_tables import Tables

    must_be_pytorch(arguments.framework, arguments.command)
    devices = _devices(arguments.device_id)
    if not arguments.timeout > 0:
        raise UsageError(f"--timeout {arguments.timeout}: it must be above 0.")
    section = _section(arguments.config_path)
    if arguments.api_info_file is None:
        raise UsageError(f"{arguments.command} needs -api_info, the dump.json of the recording to check.")
    resumes = arguments.result_csv_path
    tables = new_tables(arguments.out_path) if resumes is None else Tables.resumed(Path(resumes))
    count = workers or len(devices)
    options = Options(
        worker=command_of(WORKER),
        lists=Lists(section.white_list, section.black_list),
        error_folder=Path(section.error_data_path) if arguments.save_error_data else None,
        devices=devices,
        workers=count,
        outputs=arguments.outputs,
        only_first=arguments.filter_api,
        seconds=arguments.timeout,
        threads=max(1, (os.cpu_count() or 1) // count) if count > 1 else 0,
    )
    checked = precheck(arguments.api_info_file, tables, options, progress("checking", logs=True))
    for line in summary(checked):
        print(harmless(line))
    _tell_errors(checked)
    return 1 if checked.failed else 0


def must_be_pytorch(framework: str | None, command: str) -> None:
    if framework not in (None, "pytorch"):
        raise UsageError(f"{command} checks recordings of PyTorch only, not of MindSpore.")


def _devices(given: list[int]) -> tuple[int, ...]:
    if min(given) < 0 or len(set(given)) != len(given):
        raise UsageError(f"-d {' '.join(map(str, given))}: each is 0 or more, and named once.")
    return tuple(given)


def _section(path: str | None) -> RunUt:
    """Section run_ut of a configuration, or its defaults."""
    from msprobe.config import RunUt, Scene, load
    from msprobe.log import logger

    if path is None:
        return RunUt()
    config, notices = load(path, scene=Scene.PYTORCH)
    if not isinstance(config.section, RunUt):
        raise UsageError(f'The task in {path} is "{config.task}"; this command needs "run_ut".')
    for notice in notices:
        logger().info("%s", notice)
    if config.section.is_online:
        raise UsageError(f'"run_ut.is_online" in {path} is true, but this command checks a recording.')
    return config.section


def _tell_errors(checked: Checked) -> None:
    from msprobe.analyse.standards import ERROR
    from msprobe.precheck import status_of

    failed = [call for call in checked.summed if status_of(call) == ERROR]
    for call in failed[:_MOST_SHOWN]:
        print(harmless(f"error: {call.message or call.call}"))
    if len(failed) > _MOST_SHOWN:
        print(f"and {len(failed) - _MOST_SHOWN} more calls with errors")
    if checked.left_out:
        print(f"left out by -f: {checked.left_out} calls that repeat another but for values")
    for path in (checked.result_file, checked.details_file, checked.error_folder):
        if path is not None:
            print(harmless(f"wrote {path}"))
