"""Compare two recordings and name the call that made the difference.

TARGET is the run under suspicion, GOLDEN the one that is trusted. Each is the folder of a run, of one of its
steps or ranks, or a dump.json. Ranks and steps of the same number are compared with each other. Each gives

  compare_result_{timestamp}.xlsx   every value of every call, with its metrics and verdicts
  compare_result_{timestamp}.html   the same as a page: open it in a browser
  advisor_{timestamp}.txt           the first row that the specification's fixed rules mark, and what to do
  next_config_{timestamp}.json      if they diverge: what to record next, around the suspect

Instead of two paths a compare.json may name them:

  {"npu_path": "./npu_dump/step0/rank/dump.json", "bench_path": "./gpu_dump/step0/rank/dump.json",
   "stack_path": "./npu_dump/step0/rank/stack.json", "is_print_compare_log": true}

examples:
  msprobe compare ./npu_dump ./gpu_dump
  msprobe compare ./npu_dump/step0 ./gpu_dump/step0 -o ./result --csv
  msprobe compare ./new ./trusted --fail-on divergence --json summary.json --junit junit.xml
  msprobe -f pytorch compare -i compare.json -o ./output -s

Two runs that do not make the same calls, such as of another release or with another attention, are paired by
what their calls do, and the screen says so. --align does this in any case, --no-align never:

  msprobe compare ./sdpa_dump ./eager_dump --no-align

A run of MindSpore (the target) can be compared with one of PyTorch. Without a mapping their calls are aligned
by what they do, where they stand in the model, their shapes and values; the table tells how sure that is.

  msprobe compare ./mindspore_dump ./pytorch_dump --save_mapping pairs.yaml
  msprobe compare ./mindspore_dump ./pytorch_dump -am -cm cells.yaml

--replay calls the suspects again in float64 on their recorded inputs, in both runs. Each is then proven,
refuted or not replayable. Both runs must be recorded with task tensor, and PyTorch must be installed:

  msprobe compare ./npu_dump ./gpu_dump --replay

Kernels of MindSpore graphs are compared if compare.json names folders and has rank_id or step_id; -o, --csv,
--json, --junit and --fail-on can be given with it:

  {"npu_path": "./npu_dump", "bench_path": "./bench_dump", "rank_id": [0], "step_id": []}

exit status: 0, or 1 if --fail-on found what it names, or 2 for a mistake in the command or its input, and if
nothing could be judged
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.cli.progress import progress
from msprobe.errors import UsageError
from msprobe.screen import harmless

if TYPE_CHECKING:
    from msprobe.compare_kernels import KernelsCompared
    from msprobe.compare_request import Request
    from msprobe.compare_runs import Replay
    from msprobe.pairing.mapping import Mappings
    from msprobe.verdict.comparison import Outcome

SUMMARY = "compare two recordings and name the call that made the difference"
FAILURES = ("divergence", "accuracy", "unmatched")
_PAIRING = ("fuzzy_match", "api_mapping", "cell_mapping", "data_mapping", "layer_mapping")  # but for --align
_NOT_FOR_KERNELS = (
    *("stack_mode", "compare_only", "align", *_PAIRING, "save_mapping"),
    *("jobs", "replay"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", metavar="TARGET", nargs="?", help="the recording under suspicion")
    add("golden", metavar="GOLDEN", nargs="?", help="the recording that is trusted")
    add("-i", "--input_path", metavar="FILE", help="a compare.json that names both, instead of two paths")
    add("-o", "--output_path", metavar="DIR", default="./output", help="where results go (default: ./output)")
    add("-s", "--stack_mode", action="store_true", help="call stacks in a column NPU_Stack_Info")
    add("-c", "--compare_only", action="store_true", help="only the table: no advice, no page")
    add("-f", "--fuzzy_match", action="store_true", help="match calls also if their counts differ")
    add(
        "--align",
        action=argparse.BooleanOptionalAction,
        help="pair calls by what they do, not by their numbers; if neither is given, this is done where the "
        "numbers cannot be trusted, and the screen says why",
    )
    _add_mappings(parser)
    add(
        "--replay",
        action="store_true",
        help="call the suspects again in float64 on their recorded inputs, in both runs, and say of each "
        "whether it is at fault by itself; needs recordings with task tensor, and PyTorch",
    )
    add(
        "--save_mapping",
        metavar="FILE",
        help="write which value was compared with which, as a file for -dm that can be edited",
    )
    add("--csv", action="store_true", help="write tables as csv instead of xlsx")
    add("--json", metavar="FILE", help="write a summary for programs (docs/compare.md describes its keys)")
    add("--junit", metavar="FILE", help="write JUnit XML: one test for each call")
    add(
        "--fail-on",
        metavar="WHAT",
        action="append",
        choices=FAILURES,
        help="exit with 1 if the runs diverge or that cannot be told (divergence), if there is a result No, "
        "Warning or Different (accuracy), or a value without a counterpart (unmatched); may be given several "
        "times",
    )
    add("-j", "--jobs", metavar="N", type=int, help="ranks and steps compared at a time (default: all cores)")


def _add_mappings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-am",
        "--api_mapping",
        metavar="FILE",
        nargs="?",
        const="",
        help="across frameworks: which API of MindSpore is which of PyTorch; without FILE as built in",
    )
    add(
        "-cm",
        "--cell_mapping",
        metavar="FILE",
        nargs="?",
        const="",
        help="modules that the two runs call differently, as lines `target: golden`, such as "
        "enc.l1.Linear: encoder.layer1.Linear, or enc: encoder for all in it",
    )
    add(
        "-dm",
        "--data_mapping",
        metavar="FILE",
        help="single calls or places that belong together, as lines `target: golden` of full names",
    )
    add(
        "-lm", "--layer_mapping", metavar="FILE", help="across frameworks: layers that are called differently"
    )


def run(arguments: argparse.Namespace) -> int:
    from msprobe.compare_runs import Options, compare_runs
    from msprobe.report.files import wanted_in

    if arguments.save_mapping is not None and not arguments.save_mapping.endswith((".yaml", ".yml")):
        raise UsageError(
            f"--save_mapping {arguments.save_mapping}: the name of a mapping file ends in .yaml."
        )
    request = _request(arguments)
    if request.kernels is not None:
        return _run_kernels(arguments, request)
    mappings = _mappings(arguments)
    wanted = wanted_in(
        arguments.output_path,
        with_stack=arguments.stack_mode,
        only_table=arguments.compare_only,
        as_csv=arguments.csv,
    )
    with_cases = request.loud or arguments.junit is not None
    options = Options(
        arguments.fuzzy_match,
        mappings,
        with_cases,
        request.stack,
        _jobs(arguments.jobs),
        arguments.framework,
        arguments.save_mapping,
        arguments.input_path is not None,
        _replay(arguments) if arguments.replay else None,
    )
    compared = compare_runs(request.target, request.golden, wanted, options, progress("comparing"))
    try:
        _write_for_programs(arguments, compared.outcomes, compared.files())
    finally:  # the answer is shown even if these files cannot be written
        if request.loud:
            _log_calls(compared.outcomes)
        for line in compared.told():
            print(harmless(line))
    return _status(compared.outcomes, arguments.fail_on or ())


def _write_for_programs(
    arguments: argparse.Namespace, outcomes: Sequence[Outcome], files: dict[str, Any]
) -> None:
    """Write JSON and JUnit; this comes before the screen, whose reader may close it early (`| head`)."""
    from msprobe.report.files import write_junit, write_summary

    if arguments.json is not None:
        write_summary(Path(arguments.json), outcomes, files)
    if arguments.junit is not None:
        write_junit(Path(arguments.junit), outcomes)


def _replay(arguments: argparse.Namespace) -> Replay:
    """What calls the suspects again; several comparisons at a time share the processor."""
    from functools import partial

    from msprobe.cli.run_ut import WORKER
    from msprobe.precheck.pool import command_of
    from msprobe.precheck.suspects import Worker, replay_suspects

    jobs = _jobs(arguments.jobs)
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else 0
    return partial(replay_suspects, worker=Worker(command_of(WORKER), threads=threads))


def _mappings(arguments: argparse.Namespace) -> Mappings:
    from msprobe.mapping_file import read_mappings

    mappings = read_mappings(
        api=arguments.api_mapping,
        cell=arguments.cell_mapping,
        data=arguments.data_mapping,
        layer=arguments.layer_mapping,
    )
    given = _given(arguments, _PAIRING)
    if arguments.align and given:
        raise UsageError(
            f"--align pairs calls by what they do and cannot be combined with --{given[0]}; leave one out."
        )
    return mappings._replace(align=arguments.align)


def _given(arguments: argparse.Namespace, options: Sequence[str]) -> list[str]:
    return [option for option in options if getattr(arguments, option) not in (None, False)]


def _run_kernels(arguments: argparse.Namespace, request: Request) -> int:
    """The kernels of graphs; there is no choice of how to pair them."""
    from msprobe.compare_kernels import compare_kernels
    from msprobe.report.files import wanted_in

    given = _given(arguments, _NOT_FOR_KERNELS)
    if given:
        raise UsageError(
            f"'rank_id' or 'step_id' in {arguments.input_path} asks for kernels, which are compared with -i, "
            f"-o, --csv, --json, --junit and --fail-on alone; leave out --{', --'.join(given)}."
        )
    wanted = wanted_in(arguments.output_path, as_csv=arguments.csv)
    found = list(compare_kernels(request, wanted, with_cases=arguments.junit is not None))
    outcomes = [compared.outcome for compared in found]
    files = [{"table": str(compared.table), "page": None, "advice": None} for compared in found]
    try:
        _write_for_programs(arguments, outcomes, {"reports": files})
    finally:
        _show_kernels(found)
    return _status(outcomes, arguments.fail_on or ())


def _show_kernels(found: Sequence[KernelsCompared]) -> None:
    from msprobe.report.answer import answer

    for line in answer([compared.outcome for compared in found]):
        print(harmless(line))
    print("\nBy the fixed rules of the specification:")
    for compared in found:
        print(harmless(compared.told()))
    print()
    for compared in found:
        print(harmless(f"wrote {compared.table}"))


def _request(arguments: argparse.Namespace) -> Request:
    from msprobe.compare_request import Request

    if arguments.input_path is not None:
        if arguments.target is not None:
            raise UsageError("Give either TARGET and GOLDEN or -i compare.json, not both.")
        return _read_request(arguments.input_path, with_stack=arguments.stack_mode)
    if arguments.golden is None:
        raise UsageError("Nothing to compare: give TARGET and GOLDEN, or -i compare.json.")
    return Request(arguments.target, arguments.golden)


def _read_request(path: str, *, with_stack: bool) -> Request:
    from msprobe.compare_request import requested
    from msprobe.json_file import read_object

    return requested(read_object(path).value, path, with_stack=with_stack)


def _jobs(asked: int | None) -> int:
    if asked is not None and asked < 1:
        raise UsageError(f"-j {asked}: it must be 1 or more.")
    return asked or os.cpu_count() or 1


def _log_calls(outcomes: Sequence[Outcome]) -> None:
    """A line for each call, as is_print_compare_log asks for."""
    for outcome in outcomes:
        for case in outcome.cases:
            reason = case.reason or "agrees, or differs no more than its inputs explain"
            print(harmless(f"{case.call}: {reason}"))


def _status(outcomes: Sequence[Outcome], fail_on: Sequence[str]) -> int:
    from msprobe.analyse.judge import BAD
    from msprobe.verdict.locate import diverged

    if not any(outcome.judged for outcome in outcomes):
        return 2  # nothing judged is never a pass
    found = {
        "divergence": diverged([outcome.located for outcome in outcomes]) is not False,
        "accuracy": any(outcome.results[result] for outcome in outcomes for result in BAD),
        "unmatched": any(outcome.unmatched for outcome in outcomes),
    }
    return 1 if any(found[what] for what in fail_on) else 0
