"""The old comparison: functions, checks, the table and its rule; the numbers are msprobe's."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

from msprobe.analyse.match import Pair, Place, places
from msprobe.analyse.measure import EMPTY, UNSUPPORTED, TensorErrors, values_of
from msprobe.compare import UNLIKE_FILES, file_of, measured_tensors
from msprobe.errors import MsprobeError
from msprobe.log import logger
from msprobe.record import Frame, Recording, Stack, leaves
from msprobe.report.advice import FINE, Advice, usual_advice
from msprobe.report.files import wanted_in, write_advice, write_table
from msprobe.report.table import Cell, Table
from msprobe.screen import harmless
from msprobe.store.formats import files_in
from msprobe.store.layout import is_plain_name, rank_folders
from ptdbg_ascend import failure, old_files
from ptdbg_ascend.failure import CompareException, demand

_PATH = (str, os.PathLike)
_PATHS = ("npu_pkl_path", "npu_dump_data_dir", "bench_pkl_path", "bench_dump_data_dir")
_OTHER_COUNT = "The number of ranks in the two runs are different. Unable to match the ranks. Use compare()."
_NO_RANK = "dump_dir contains '{}'. Expected 'rank'. Please delete irrelevant files in {} and try again."
_OTHER_MODE = "The dump mode of the two files is not same, please check the dump files"
_HAS_STACKS = "The current file contains stack information, please turn on the stack_mode"
_NO_STACKS = "The current file does not contain stack information, please turn off the stack_mode"
_NO_BENCH = "No bench data matched."
_COLUMNS = (
    *("NPU Name", "Bench Name", "NPU Tensor Dtype", "Bench Tensor Dtype", "NPU Tensor Shape"),
    *("Bench Tensor Shape", "Cosine", "MaxAbsErr", "NPU max", "NPU min", "NPU mean", "Bench max"),
    *("Bench min", "Bench mean", "Accuracy Reached or Not", "Err_message", "NPU_Stack_Info"),
)
_NAN, _SHAPES = "Nan", "shape unmatched"
_COSINE, _ABSOLUTE, _AS_GOOD_AS_ONE = 0.99, 0.001, 0.99999


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
        (ours, is_stacked), (theirs, is_like) = _read("npu", param), _read("bench", param)
        if stack_mode is not None:  # nobody needs to give one
            demand(is_stacked == is_like, _OTHER_MODE, failure.INVALID_COMPARE_MODE)
            why = _HAS_STACKS if is_stacked else _NO_STACKS
            demand(is_stacked == stack_mode, why, failure.INVALID_COMPARE_MODE)
        table, advice = _compared(ours, theirs, stack_mode, param.get("is_print_compare_log") is True)
        wanted, mark = wanted_in(output_path, as_csv=True), f"_{suffix.removeprefix('_')}" if suffix else ""
        path = write_table(wanted, "compare_result", mark, table)
        logger().info("The comparison result is saved in: %s", path)
        if auto_analyze:
            if advice.line is not None:
                logger().warning("Find %s accuracy not reached, the line is %d", advice.name, advice.line)
            path = write_advice(wanted, mark, advice)
            logger().info("The expert advice is saved in %s:\n%s", path, advice)
    except (MsprobeError, OSError) as error:
        logger().error("%s", error)
        logger().error("Compare failed, Please check it and do it again!")
        sys.exit(error.code if isinstance(error, CompareException) else failure.INVALID_DUMP_FILE)


def compare_distributed(npu_dump_dir: Any, bench_dump_dir: Any, output_path: Any, **kwargs: Any) -> None:
    """Compare the ranks of two dump_tag folders, in the order of their numbers; `kwargs` go to compare()."""
    ours, theirs = _dumps(npu_dump_dir), _dumps(bench_dump_dir)
    demand(len(ours) == len(theirs), _OTHER_COUNT, failure.INVALID_PATH)
    suffix = kwargs.pop("suffix", "")
    for npu, bench in zip(ours, theirs, strict=True):
        mark = f"{npu.parent.name}-{bench.parent.name}" + (f"_{suffix}" if suffix else "")
        param = dict(zip(_PATHS, (npu, npu.with_suffix(""), bench, bench.with_suffix("")), strict=True))
        compare({**param, "is_print_compare_log": True}, output_path, suffix=mark, **kwargs)


def parse(pkl_file: Any, moudule_name_prefix: Any = None, module_name_prefix: Any = None) -> None:
    """Print the statistics and the stacks of the calls whose names begin so."""
    prefix = moudule_name_prefix if module_name_prefix is None else module_name_prefix
    are_texts = isinstance(prefix, str) and isinstance(pkl_file, _PATH)
    demand(are_texts, "parse takes the path of a .pkl and the beginning of a name, both as texts.")
    demand(os.path.isfile(pkl_file), f"{pkl_file} is an invalid file or non-exist.", failure.INVALID_PATH)
    head = "\nStatistic Info:\n"
    found = [line for line in old_files.lines(Path(pkl_file)) if line.text.startswith(prefix)]
    if not found:
        logger().warning("%s has no line that begins with %r.", pkl_file, prefix)
    for text, _, _, seen in found:
        if isinstance(seen, Stack):
            print(f"\nTrace back({text}):")
            for path, number, function, code in map(Frame.parse, reversed(seen.frames)):
                print(harmless(f'  File "{path}", line {number}, in {function}'))
                if code:
                    print(harmless(f"    {code}"))
        else:
            dtype, shape, (largest, least, mean) = old_files.described(seen)
            numbers = f"[max: {largest}][min: {least}][mean: {mean}]" if largest != [] else ""
            print(head + harmless(f"  [{text}][dtype: {dtype}][shape: {shape}]{numbers}"))
            head = ""


def _check(param: Any, output_path: Any, stack_mode: Any, auto_analyze: Any, suffix: Any) -> None:
    demand(isinstance(param, dict) and isinstance(output_path, _PATH), "Invalid input parameters")
    for word, value in (("stack_mode", stack_mode or False), ("auto_analyze", auto_analyze)):
        demand(isinstance(value, bool), f"Params {word} only support True or False.")
    is_part = isinstance(suffix, str) and is_plain_name(suffix or "_")
    demand(is_part, f"Params suffix is {suffix!r}; it must be a part of a file name.")
    for key in _PATHS:
        path = param.get(key)
        demand(isinstance(path, _PATH), f"Invalid input parameters: input_param needs the path '{key}'.")
        is_there = (os.path.isfile if "pkl" in key else os.path.isdir)(path)
        demand(is_there, f"{path} is an invalid file or non-exist.", failure.INVALID_PATH)
    demand(os.path.isdir(output_path), f"The path {output_path} is not exist.", failure.INVALID_PATH)


def _read(word: str, param: Mapping[str, Any]) -> tuple[Recording, bool]:
    """What was dumped, and whether by api_stack: then the stack of a call follows its tensors."""
    path, data = Path(param[f"{word}_pkl_path"]), Path(param[f"{word}_dump_data_dir"])
    lines = list(old_files.lines(path))
    are_stacks = [isinstance(line.seen, Stack) for line in lines]
    has_tensor = not all(are_stacks)
    demand(has_tensor, f"{path} holds no tensors: there is nothing to compare.", failure.INVALID_DUMP_FILE)
    return old_files.recording(path, data, lines), any(are_stacks) and not are_stacks[0]


def _dumps(folder: Any) -> list[Path]:
    """The .pkl of each rank, in the order of their numbers."""
    is_folder = isinstance(folder, _PATH) and os.path.isdir(folder)
    demand(is_folder, f"The path {folder} is not exist.", failure.INVALID_PATH)
    ranks = {rank: files_in(rank, old_files.SUFFIX) for rank in rank_folders(Path(folder), 1)}
    for path in Path(folder).iterdir():
        demand(path in ranks, _NO_RANK.format(path.name, folder), failure.INVALID_PATH)
    demand(ranks, f"{folder} holds no rank.", failure.NO_DUMP_FILE)
    for rank, dumps in ranks.items():
        demand(dumps, f"{rank} holds no .pkl of a dump.", failure.NO_DUMP_FILE)
        is_one = len(dumps) == 1 and dumps[0].with_suffix("").is_dir()
        demand(is_one, f"{rank} must hold one .pkl, and a folder of the same name.", failure.INVALID_FILE)
    return [dumps[0] for dumps in ranks.values()]


class Result(NamedTuple):
    """What the old table says of two tensors."""

    cosine: str = _NAN
    max_abs: str = _NAN
    message: str = ""

    @property
    def accuracy(self) -> str:
        if self.cosine == _SHAPES:
            return "Unmatched"
        cosine, largest = float(self.cosine), float(self.max_abs)
        if math.isnan(cosine) or math.isnan(largest):
            return _NAN
        return "Yes" if cosine >= _COSINE or largest <= _ABSOLUTE else "No"


def result_of(errors: TensorErrors, is_finite: bool) -> Result:
    """The same numbers in old words; `is_finite`: so are the statistics of both tensors."""
    if errors.message.startswith(f"{UNLIKE_FILES}shapes"):
        return Result(_SHAPES, _SHAPES, "Shape of NPU and bench Tensor do not match. Skipped.")
    if errors.max_abs == UNSUPPORTED:
        return Result(*("1", "0") if errors.message == EMPTY else (_NAN, _NAN), errors.message)
    if not is_finite or isinstance(errors.max_abs, str):
        return Result(_NAN, "nan", "Cannot compare by Cosine Similarity, the dump data has NaN.")
    largest = f"{errors.max_abs:.6f}"
    if errors.cosine == UNSUPPORTED:  # of one number; msprobe has a message where it is in no list
        if errors.message:
            return Result("1", largest, "This is type of scalar data, can not compare.")
        return Result("1.000000", largest, "This tensor is scalar.")
    if isinstance(errors.cosine, str):
        return Result(_NAN, largest, errors.message)
    return Result("1.0" if errors.cosine > _AS_GOOD_AS_ONE else f"{errors.cosine:.6f}", largest)


def _compared(
    target: Recording, golden: Recording, with_stack: bool | None, is_loud: bool
) -> tuple[Table, Advice]:
    """The table, and what to do about the first row that does not reach the accuracy."""
    rows: list[list[Cell]] = []
    advice, before = Advice(None, None, FINE), None
    pairs = list(_pairs(target, golden))
    for pair, errors in zip(pairs, measured_tensors(pairs, target, golden), strict=True):
        ours, theirs = cells = list(map(_cells, pair[:2]))
        result = _result(pair, errors, (target, golden), cells)
        record = pair.place.record  # its first row has the stack
        stack = record.stack if record is not before else None
        frames = None if stack is None else str([list(Frame.parse(text)) for text in stack.frames])
        described = chain.from_iterable(zip(ours[:3], theirs[:3], strict=True))
        numbers = (result.cosine, result.max_abs, *ours[3:], *theirs[3:])
        rows.append([*described, *numbers, result.accuracy, result.message, frames])
        before, name = record, str(ours[0])
        if is_loud:
            told = f"cosine {result.cosine}, max_abs_err {result.max_abs}, {result.message}"
            print(f"start comapre: {name}\n[{name}] Compare result: {told}")
        if result.accuracy == "No" and "batch_norm" not in name and advice.line is None:
            advice = Advice(len(rows) + 1, name, usual_advice(pair.place))  # line 1 is the head
    if all(row[6] == row[7] == _NAN for row in rows):
        logger().warning("None of the %d rows could be compared: see their Err_message.", len(rows))
    wanted = [True] * len(_COLUMNS)
    for start, recording in ((8, target), (11, golden)):  # overflowing calls have no statistics
        seen = (leaf for record in recording.records.values() for leaf in leaves(record.fields))
        wanted[start : start + 3] = [any(values_of(leaf)[0] is not None for leaf in seen)] * 3
    wanted[-1] = any(row[-1] for row in rows) if with_stack is None else with_stack
    return Table([*compress(_COLUMNS, wanted)], [[*compress(row, wanted)] for row in rows]), advice


def _pairs(target: Recording, golden: Recording) -> Iterator[Pair]:
    """Every place of the target; a call has a counterpart if all its places have one, and no more."""
    for name, record in target.records.items():
        ours, theirs = (list(places(one)) if one else [] for one in (record, golden.records.get(name)))
        if [place.name for place in ours] == [place.name for place in theirs]:
            yield from map(Pair, ours, theirs)
        else:
            yield from (Pair(place, None, _NO_BENCH) for place in ours)


def _result(
    pair: Pair, errors: TensorErrors | None, sides: tuple[Recording, Recording], cells: list[list[Cell]]
) -> Result:
    if errors is None:
        return Result(message=pair.reason)
    for path in map(file_of, sides, pair[:2]):
        if path is None or not os.path.isfile(path):
            return Result(message=f"Dump file:{path} not found")
    (name, dtype, _, *ours), (_, other, _, *theirs) = cells
    if dtype != other:
        logger().warning("%s: Dtype of NPU and bench Tensor do not match.", name)
    numbers = (cell for cell in (*ours, *theirs) if isinstance(cell, float))
    return result_of(errors, all(map(math.isfinite, numbers)))


def _cells(place: Place | None) -> list[Cell]:
    """Name, dtype, shape, max, min, mean; a file is called as its tensor."""
    if place is None or place.leaf is None:
        return [_NAN] * 6
    dtype, shape, summary = old_files.described(place.leaf)
    name = str(place.leaf.data_name).removesuffix(".npy")
    return [name, dtype, str(shape), *(str(value) if value == [] else value for value in summary)]
