"""The old comparison: functions, checks, the table and its rule; the numbers are msprobe's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import Any

from msprobe.analyse.match import Pair, Place, places
from msprobe.analyse.measure import EMPTY, UNSUPPORTED, TensorErrors
from msprobe.compare import UNLIKE_FILES, file_of, measured_tensors
from msprobe.errors import MsprobeError
from msprobe.log import logger
from msprobe.record import Frame, Recording, Stack
from msprobe.report.advice import FINE, Advice, usual_advice
from msprobe.report.files import wanted_in, write_advice, write_table
from msprobe.report.table import Table
from msprobe.screen import harmless
from msprobe.store.formats import files_in
from msprobe.store.layout import is_plain_name, rank_folders
from ptdbg_ascend import INVALID_PATH, CompareException, demand, old_files

_INVALID_FILE, _NO_DUMP_FILE, _INVALID_DUMP_FILE, _INVALID_COMPARE_MODE = 6, 9, 13, 17
_PATH = (str, os.PathLike)
_PATHS = ("npu_pkl_path", "npu_dump_data_dir", "bench_pkl_path", "bench_dump_data_dir")
_OTHER_COUNT = "The number of ranks in the two runs are different. Unable to match the ranks. Use compare()."
_NO_RANK = "dump_dir contains '{}'. Expected 'rank'. Please delete irrelevant files in {} and try again."
_OTHER_MODE = "The dump mode of the two files is not same, please check the dump files"
_HAS_STACKS = "The current file contains stack information, please turn on the stack_mode"
_NO_STACKS = "The current file does not contain stack information, please turn off the stack_mode"
_COLUMNS = (
    *("NPU Name", "Bench Name", "NPU Tensor Dtype", "Bench Tensor Dtype", "NPU Tensor Shape"),
    *("Bench Tensor Shape", "Cosine", "MaxAbsErr", "NPU max", "NPU min", "NPU mean", "Bench max"),
    *("Bench min", "Bench mean", "Accuracy Reached or Not", "Err_message", "NPU_Stack_Info"),
)
_NAN, _SHAPES = "Nan", "shape unmatched"
_OPTIONAL, _NOTHING = (*_COLUMNS[8:14], _COLUMNS[16]), {_NAN, "[]", ""}  # not shown if no row has more
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
            demand(is_stacked == is_like, _OTHER_MODE, _INVALID_COMPARE_MODE)
            why = _HAS_STACKS if is_stacked else _NO_STACKS
            demand(is_stacked == stack_mode, why, _INVALID_COMPARE_MODE)
        table, advice = _compared(ours, theirs, param.get("is_print_compare_log") is True)
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
        sys.exit(error.code if isinstance(error, CompareException) else _INVALID_DUMP_FILE)


def compare_distributed(npu_dump_dir: Any, bench_dump_dir: Any, output_path: Any, **kwargs: Any) -> None:
    """Compare the ranks of two dump_tag folders, in the order of their numbers; `kwargs` go to compare()."""
    ours, theirs = _dumps(npu_dump_dir), _dumps(bench_dump_dir)
    demand(len(ours) == len(theirs), _OTHER_COUNT, INVALID_PATH)
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
    demand(os.path.isfile(pkl_file), f"{pkl_file} is an invalid file or non-exist.", INVALID_PATH)
    found = [line for line in old_files.lines(Path(pkl_file)) if line.text.startswith(prefix)]
    if not found:
        logger().warning("%s has no line that begins with %r.", pkl_file, prefix)
    head = "\nStatistic Info:\n"
    for text, _, _, seen in found:
        if isinstance(seen, Stack):
            shown = (line for frame in reversed(seen.frames) for line in Frame.parse(frame).in_traceback())
            print(f"\nTrace back({text}):", *map(harmless, shown), sep="\n")
        else:
            dtype, shape, (largest, least, mean) = old_files.described(seen)
            numbers = f"[max: {largest}][min: {least}][mean: {mean}]" if largest != [] else ""
            print(head + harmless(f"  [{text}][dtype: {dtype}][shape: {shape}]{numbers}"))
            head = ""


def _check(param: Any, output_path: Any, stack_mode: Any, auto_analyze: Any, suffix: Any) -> None:
    demand(isinstance(param, dict) and isinstance(output_path, _PATH), "Invalid input parameters")
    for word, value in (("stack_mode", stack_mode or False), ("auto_analyze", auto_analyze)):
        demand(isinstance(value, bool), f"Params {word} only support True or False.")
    is_part = suffix == "" or is_plain_name(suffix)
    demand(is_part, f"Params suffix is {suffix!r}; it must be a part of a file name.")
    for key in _PATHS:
        path = param.get(key)
        demand(isinstance(path, _PATH), f"Invalid input parameters: input_param needs the path '{key}'.")
        is_there = (os.path.isfile if "pkl" in key else os.path.isdir)(path)
        demand(is_there, f"{path} is an invalid file or non-exist.", INVALID_PATH)
    demand(os.path.isdir(output_path), f"The path {output_path} is not exist.", INVALID_PATH)


def _read(word: str, param: Mapping[str, Any]) -> tuple[Recording, bool]:
    """What was dumped, and whether by api_stack: then the stack of a call follows its tensors."""
    path = Path(param[f"{word}_pkl_path"])
    recording = old_files.read_one(path, Path(param[f"{word}_dump_data_dir"]))
    records = recording.records.values()
    has_tensor = any(record.fields for record in records)
    demand(has_tensor, f"{path} holds no tensors: there is nothing to compare.", _INVALID_DUMP_FILE)
    has_stack = any(record.stack is not None for record in records)
    return recording, has_stack and next(old_files.lines(path)).slot != old_files.STACK


def _dumps(folder: Any) -> list[Path]:
    """The .pkl of each rank, in the order of their numbers."""
    is_folder = isinstance(folder, _PATH) and os.path.isdir(folder)
    demand(is_folder, f"The path {folder} is not exist.", INVALID_PATH)
    ranks = {rank: files_in(rank, old_files.SUFFIX) for rank in rank_folders(Path(folder), 1)}
    for path in Path(folder).iterdir():
        demand(path in ranks, _NO_RANK.format(path.name, folder), INVALID_PATH)
    demand(ranks, f"{folder} holds no rank.", _NO_DUMP_FILE)
    for rank, dumps in ranks.items():
        demand(dumps, f"{rank} holds no .pkl of a dump.", _NO_DUMP_FILE)
        is_one = len(dumps) == 1 and dumps[0].with_suffix("").is_dir()
        demand(is_one, f"{rank} must hold one .pkl, and a folder of the same name.", _INVALID_FILE)
    return [dumps[0] for dumps in ranks.values()]


def _compared(target: Recording, golden: Recording, is_loud: bool) -> tuple[Table, Advice]:
    """The table, and what to do about the first row that does not reach the accuracy."""
    rows: list[list[str]] = []
    advice, before = Advice(None, None, FINE), None
    pairs = list(_pairs(target, golden))
    for pair, errors in zip(pairs, measured_tensors(pairs, target, golden), strict=True):
        (name, *ours), (bench, *theirs) = (_cells(place) for place in pair[:2])
        cosine, largest, message = _result(pair, errors, {*ours, *theirs}, target, golden)
        reached, record = accuracy(cosine, largest), pair.place.record
        frames = record.stack.frames if record.stack is not None and record is not before else ()
        stack, before = str([list(Frame.parse(frame)) for frame in frames]) if frames else "", record
        described = (name, bench, ours[0], theirs[0], ours[1], theirs[1])
        rows.append([*described, cosine, largest, *ours[2:], *theirs[2:], reached, message, stack])
        if pair.golden is not None and ours[0] != theirs[0]:
            logger().warning("%s: Dtype of NPU and bench Tensor do not match.", name)
        if is_loud:
            told = f"cosine {cosine}, max_abs_err {largest}, {message}"
            print(f"start comapre: {name}\n[{name}] Compare result: {told}")
        if reached == "No" and "batch_norm" not in name and advice.line is None:
            advice = Advice(len(rows) + 1, name, usual_advice(pair.place))  # line 1 is the head
    if all(row[6] == row[7] == _NAN for row in rows):
        logger().warning("None of the %d rows could be compared: see their Err_message.", len(rows))
    columns = zip(_COLUMNS, zip(*rows, strict=True), strict=True)
    shown = [head not in _OPTIONAL or not _NOTHING.issuperset(cells) for head, cells in columns]
    return Table([*compress(_COLUMNS, shown)], [[*compress(row, shown)] for row in rows]), advice


def _pairs(target: Recording, golden: Recording) -> Iterator[Pair]:
    """Every place of the target; a call has a counterpart if all its places have one, and no more."""
    for name, record in target.records.items():
        ours, theirs = (list(places(one)) if one else [] for one in (record, golden.records.get(name)))
        if [place.name for place in ours] == [place.name for place in theirs]:
            yield from map(Pair, ours, theirs)
        else:
            yield from (Pair(place, None, "No bench data matched.") for place in ours)


def _cells(place: Place | None) -> list[str]:
    """Name, dtype, shape, max, min, mean; a file is called as its tensor."""
    if place is None or place.leaf is None:
        return [_NAN] * 6
    dtype, shape, summary = old_files.described(place.leaf)
    return [str(place.leaf.data_name).removesuffix(".npy"), dtype, str(shape), *map(str, summary)]


def _result(
    pair: Pair, errors: TensorErrors | None, cells: set[str], *sides: Recording
) -> tuple[str, str, str]:
    """Cosine, MaxAbsErr and Err_message of a row that has these cells."""
    if errors is None:
        return _NAN, _NAN, pair.reason
    for path in map(file_of, sides, pair[:2]):
        if path is None or not os.path.isfile(path):
            return _NAN, _NAN, f"Dump file:{path} not found"
    return result_of(errors, cells.isdisjoint({"nan", "inf", "-inf"}))


def result_of(errors: TensorErrors, is_finite: bool) -> tuple[str, str, str]:
    """The same numbers in old words; `is_finite`: so are the statistics of both tensors."""
    if errors.message.startswith(f"{UNLIKE_FILES}shapes"):
        return _SHAPES, _SHAPES, "Shape of NPU and bench Tensor do not match. Skipped."
    if errors.max_abs == UNSUPPORTED:
        return (*(("1", "0") if errors.message == EMPTY else (_NAN, _NAN)), errors.message)
    if not is_finite or isinstance(errors.max_abs, str):
        return _NAN, "nan", "Cannot compare by Cosine Similarity, the dump data has NaN."
    largest = f"{errors.max_abs:.6f}"
    if errors.cosine == UNSUPPORTED and errors.message:  # of one number, which is in no list
        return "1", largest, "This is type of scalar data, can not compare."
    if errors.cosine == UNSUPPORTED:
        return "1.000000", largest, "This tensor is scalar."
    if isinstance(errors.cosine, str):
        return _NAN, largest, errors.message
    return "1.0" if errors.cosine > _AS_GOOD_AS_ONE else f"{errors.cosine:.6f}", largest, ""


def accuracy(cosine: str, largest: str) -> str:
    """The old rule: both numbers must be bad."""
    if cosine == _SHAPES:
        return "Unmatched"
    if "nan" in (cosine.lower(), largest.lower()):
        return _NAN
    return "Yes" if float(cosine) >= _COSINE or float(largest) <= _ABSOLUTE else "No"
