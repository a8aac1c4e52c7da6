"""Check each recorded API call against the same call in higher precision, without a second run.

Inputs come from the tensor files of the recording, or are generated between the recorded minimum and maximum.
The reference is computed on the CPU, one precision higher. The checked side is the call made again on the
accelerator of this machine; on a machine without one, where a tensor recording holds the outputs, it is what
was recorded (--outputs says otherwise). Each call runs in a worker process: one that crashes or hangs costs
one row. Two tables are written:

  accuracy_checking_result_{timestamp}.csv    one row for each call: pass, warning, error or SKIP by the
                                              specified rule; pass, error or cannot tell as verdict
  accuracy_checking_details_{timestamp}.csv   one row for each output and each gradient, with its metrics

The verdict holds the relative and the scale error against what rounding explains. It decides the exit status.

With "is_online": true in the configuration the calls come from a training that runs now with "online_run_ut":
true, over the network or through a folder, and each rank has tables of its own (..._rank{R}.csv).

examples:
  msprobe -f pytorch run_ut -api_info ./dump/step0/rank/dump.json -o ./out
  msprobe -f pytorch run_ut -api_info dump.json -config config.json -save_error_data
  msprobe -f pytorch run_ut -api_info dump.json -csv_path ./out/accuracy_checking_result_20260101120000.csv
  msprobe -f pytorch run_ut -config online.json -o ./out

exit status: 0 no call is wrong, 1 if there is an error or a call ended its process, 2 for a mistake in the
command, and if no call was judged
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msprobe.cli.progress import progress
from msprobe.errors import UsageError
from msprobe.plural import counted
from msprobe.screen import harmless

if TYPE_CHECKING:
    from msprobe.config import RunUt
    from msprobe.precheck.check import Checked, Options

SUMMARY = "check recorded API calls against a more precise reference"
WORKER = "msprobe.pytorch.worker"
_OF_RECORDINGS = MappingProxyType(
    {
        "api_info_file": "-api_info",
        "result_csv_path": "-csv_path",
        "save_error_data": "-save_error_data",
        "filter_api": "-f",
    }
)
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
    from msprobe.precheck.check import new_tables, precheck, summary
    from msprobe.precheck.tables import Tables

    must_be_pytorch(arguments.framework, arguments.command)
    devices = devices_of(arguments.device_id)
    must_have_time(arguments.timeout)
    section = _section(arguments.config_path)
    options = _options(arguments, section, devices, workers)
    if section.is_online:
        return _run_online(arguments, section, options)
    if arguments.api_info_file is None:
        raise UsageError(f"{arguments.command} needs -api_info, the dump.json of the recording to check.")
    resumes = arguments.result_csv_path
    tables = new_tables(arguments.out_path) if resumes is None else Tables.resumed(Path(resumes))
    checked = precheck(arguments.api_info_file, tables, options, progress("checking", logs=True))
    for line in summary(checked):
        print(harmless(line))
    _tell_errors(checked)
    if checked.nothing_judged:
        raise UsageError(checked.nothing_judged)
    return 1 if checked.failed else 0


def _options(
    arguments: argparse.Namespace, section: RunUt, devices: tuple[int, ...], workers: int | None
) -> Options:
    from msprobe.precheck.calls import Lists
    from msprobe.precheck.check import Options
    from msprobe.precheck.pool import command_of

    count = workers or len(devices)
    return Options(
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


def _run_online(arguments: argparse.Namespace, section: RunUt, options: Options) -> int:
    """The checking side of the online pre-check."""
    from msprobe.online.receiver import check_online

    given = [flag for name, flag in _OF_RECORDINGS.items() if getattr(arguments, name)]
    given += ["--outputs"] if arguments.outputs != "auto" else []
    if given:
        raise UsageError(
            f'"run_ut.is_online" in {arguments.config_path} is true, so calls come from training and '
            f"{given[0]} cannot be used; set is_online to false to check a recording."
        )
    outcome = check_online(section, arguments.out_path, options)
    for line in outcome.told():
        print(harmless(line))
    if outcome.nothing_judged:
        raise UsageError(outcome.nothing_judged)
    return 1 if outcome.failed else 0


def must_be_pytorch(framework: str | None, command: str) -> None:
    if framework not in (None, "pytorch"):
        raise UsageError(f"{command} checks recordings of PyTorch only, not of MindSpore.")


def must_have_time(seconds: float) -> None:
    if not seconds > 0:
        raise UsageError(f"--timeout {seconds}: it must be above 0.")


def devices_of(given: list[int]) -> tuple[int, ...]:
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
    return config.section


def _tell_errors(checked: Checked) -> None:
    from msprobe.analyse.standards import ERROR
    from msprobe.precheck.check import differences, status_of

    failed = [call for call in checked.summed if status_of(call) == ERROR]
    for call in failed[:_MOST_SHOWN]:
        print(harmless(f"error: {call.reason or call.message or call.call}"))
    if len(failed) > _MOST_SHOWN:
        print(f"and {counted(len(failed) - _MOST_SHOWN, 'more call')} with errors")
    for line in differences(checked):
        print(harmless(line))
    if checked.left_out:
        print(f"left out by -f: {counted(checked.left_out, 'call')}, another one again but for values")
    for path in (checked.result_file, checked.details_file, checked.error_folder):
        if path is not None:
            print(harmless(f"wrote {path}"))
