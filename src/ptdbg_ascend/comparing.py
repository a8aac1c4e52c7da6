"""The old functions that look at dumps: compare, compare_distributed and parse, with their checks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msprobe.errors import MsprobeError
from msprobe.log import logger
from msprobe.store.layout import is_plain_name
from ptdbg_ascend import failure, old_files
from ptdbg_ascend.failure import CompareException, demand
from ptdbg_ascend.old_files import Line
from ptdbg_ascend.old_table import SUMMARY, Dump, report

_PATHS = ("npu_pkl_path", "npu_dump_data_dir", "bench_pkl_path", "bench_dump_data_dir")
_OTHER_COUNT = "The number of ranks in the two runs are different. Unable to match the ranks. Use compare()."
_NO_RANK = "dump_dir contains '{}'. Expected 'rank'. Please delete irrelevant files in {} and try again."
_OTHER_MODE = "The dump mode of the two files is not same, please check the dump files"
_HAS_STACKS = "The current file contains stack information, please turn on the stack_mode"
_NO_STACKS = "The current file does not contain stack information, please turn off the stack_mode"


# ---- what scripts call ----


def compare(
    input_param: Any = None,
    output_path: Any = None,
    stack_mode: bool | None = None,
    auto_analyze: bool = True,
    suffix: str = "",
    *,
    input_parma: Any = None,  # the spelling of the old source
) -> None:
    """Compare two dumps into `compare_result_{suffix}_{time}.csv`; stacks are shown where the file has them.

    An error is told, and ends the process with the status that the old tool gave it.
    """
    param = input_param if input_parma is None else input_parma
    try:
        _check(param, output_path, stack_mode, auto_analyze, suffix)
        dumps = _dump("npu", param), _dump("bench", param)
        if stack_mode is not None:
            _check_modes(dumps[0].is_api_stack, dumps[1].is_api_stack, stack_mode)
        is_loud = param.get("is_print_compare_log") is True
        report(dumps, Path(output_path), stack_mode, auto_analyze, suffix, is_loud)
    except (MsprobeError, OSError) as error:
        logger().error("%s", error)
        logger().error("Compare failed, Please check it and do it again!")
        sys.exit(error.code if isinstance(error, CompareException) else failure.INVALID_DUMP_FILE)


def compare_distributed(npu_dump_dir: Any, bench_dump_dir: Any, output_path: Any, **kwargs: Any) -> None:
    """Compare the ranks of two dump_tag folders, one or more, in the order of their numbers.

    `kwargs`: whatever compare() can be given, too.
    """
    ours, theirs = _ranks(npu_dump_dir), _ranks(bench_dump_dir)
    demand(len(ours) == len(theirs), _OTHER_COUNT, failure.INVALID_PATH)
    suffix = kwargs.pop("suffix", "")
    for npu, bench in zip(ours, theirs, strict=True):
        param = {**_paths("npu", npu), **_paths("bench", bench), "is_print_compare_log": True}
        mark = f"{npu.name}-{bench.name}" + (f"_{suffix}" if suffix else "")
        compare(param, output_path, suffix=mark, **kwargs)


def parse(pkl_file: Any, moudule_name_prefix: Any = None, module_name_prefix: Any = None) -> None:
    """Print the statistics and the stacks of the calls whose names begin so."""
    prefix = moudule_name_prefix if module_name_prefix is None else module_name_prefix
    are_texts = isinstance(prefix, str) and isinstance(pkl_file, (str, os.PathLike))
    demand(are_texts, "parse takes the path of a .pkl and the beginning of a name, both as texts.")
    demand(os.path.isfile(pkl_file), f"{pkl_file} is an invalid file or non-exist.", failure.INVALID_PATH)
    head = "\nStatistic Info:\n"
    for line in old_files.lines(Path(pkl_file)):
        if line.text.startswith(prefix):
            print("" if line.is_stack else head, end="")
            head = head if line.is_stack else ""
            print("\n".join(_told(line)))


def _told(line: Line) -> Iterator[str]:
    if not line.is_stack:
        dtype, shape, *summary = line.fields[2:]
        numbers = zip(SUMMARY, *summary, strict=False) if summary else ()
        told = "".join(f"[{word}: {number}]" for word, number in numbers)
        yield f"  [{line.text}][dtype: {dtype}][shape: {shape}]{told}"
        return
    yield f"\nTrace back({line.text}):"
    for path, number, function, code in reversed(old_files.frames(line)):
        yield f'  File "{path}", line {number}, in {function}'
        if code:
            yield f"    {code}"


# ---- checks ----


def _check(param: Any, output_path: Any, stack_mode: Any, auto_analyze: Any, suffix: Any) -> None:
    is_good = isinstance(param, dict) and isinstance(output_path, (str, os.PathLike))
    demand(is_good, "Invalid input parameters")
    for word, value in (("stack_mode", stack_mode or False), ("auto_analyze", auto_analyze)):
        demand(isinstance(value, bool), f"Params {word} only support True or False.")
    is_part = isinstance(suffix, str) and is_plain_name(suffix or "_")
    demand(is_part, f"Params suffix is {suffix!r}; it must be a part of a file name.")
    for key in _PATHS:
        path = param.get(key)
        is_path = isinstance(path, (str, os.PathLike))
        demand(is_path, f"Invalid input parameters: input_param needs the path '{key}'.")
        is_there = (os.path.isfile if "pkl" in key else os.path.isdir)(path)
        demand(is_there, f"{path} is an invalid file or non-exist.", failure.INVALID_PATH)
    demand(os.path.isdir(output_path), f"The path {output_path} is not exist.", failure.INVALID_PATH)


def _dump(word: str, param: Mapping[str, Any]) -> Dump:
    path, data = Path(param[f"{word}_pkl_path"]), Path(param[f"{word}_dump_data_dir"])
    lines = list(old_files.lines(path))
    tensors = [line for line in lines if not line.is_stack]
    demand(tensors, f"{path} holds no tensors: there is nothing to compare.", failure.INVALID_DUMP_FILE)
    is_api_stack = len(tensors) < len(lines) and not lines[0].is_stack
    return Dump(old_files.recording(path, data, lines), tensors[0].has_summary, is_api_stack)


def _check_modes(ours: bool, theirs: bool, stack_mode: bool) -> None:
    """A stack_mode that was given must be that of both files; nobody needs to give one."""
    demand(ours == theirs, _OTHER_MODE, failure.INVALID_COMPARE_MODE)
    demand(ours == stack_mode, _HAS_STACKS if ours else _NO_STACKS, failure.INVALID_COMPARE_MODE)


def _ranks(folder: Any) -> list[Path]:
    is_folder = isinstance(folder, (str, os.PathLike)) and os.path.isdir(folder)
    demand(is_folder, f"The path {folder} is not exist.", failure.INVALID_PATH)
    found = sorted(Path(folder).iterdir())
    for path in found:
        is_rank = re.fullmatch("rank[0-9]{1,9}", path.name) and path.is_dir()
        demand(is_rank, _NO_RANK.format(path.name, folder), failure.INVALID_PATH)
    return sorted(found, key=lambda path: int(path.name.removeprefix("rank")))


def _paths(word: str, folder: Path) -> dict[str, str]:
    dumps = old_files.dumps_in(folder)
    demand(dumps, f"{folder} holds no .pkl of a dump.", failure.NO_DUMP_FILE)
    data = dumps[0].with_suffix("")
    is_one = len(dumps) == 1 and data.is_dir()
    demand(is_one, f"{folder} must hold one .pkl, and a folder of the same name.", failure.INVALID_FILE)
    return {f"{word}_pkl_path": str(dumps[0]), f"{word}_dump_data_dir": str(data)}
