"""The old comparison: functions, checks, the table and its rule; the numbers are msprobe's."""

import sys
from pathlib import Path
from typing import Any

from msprobe.analyse.measure import EMPTY, UNSUPPORTED, TensorErrors
from msprobe.compare import UNLIKE_FILES, compare_recordings, file_of, measured_tensors
from msprobe.errors import MsprobeError
from msprobe.given import is_file, is_folder, is_path, is_plain_name
from msprobe.log import logger
from msprobe.pairing.match import Pair, Place, frames_of, match_whole
from msprobe.record import Frame, Recording
from msprobe.report.advice import FINE, UNSEEN, Advice, usual_advice
from msprobe.report.answer import answer
from msprobe.report.files import wanted_in, write_advice, write_table
from msprobe.report.seen import shown
from msprobe.report.table import Table
from msprobe.store.formats import files_of_ranks
from ptdbg_ascend import INVALID_PATH, CompareException, demand, old_files

_INVALID_FILE, _NO_DUMP_FILE, _INVALID_DUMP_FILE, _INVALID_COMPARE_MODE = 6, 9, 13, 17
_PATHS = ("npu_pkl_path", "npu_dump_data_dir", "bench_pkl_path", "bench_dump_data_dir")
_OTHER_COUNT = "The number of ranks in the two runs are different. Unable to match the ranks. Use compare()."
_NO_RANK = "dump_dir contains '{}'. Expected 'rank'. Please delete irrelevant files in {} and try again."
_OTHER_MODE = "The dump mode of the two files is not same, please check the dump files"
_STACKS = "The current file {} stack information, please turn {} the stack_mode"
_COLUMNS = (
    *("NPU Name", "Bench Name", "NPU Tensor Dtype", "Bench Tensor Dtype", "NPU Tensor Shape"),
    *("Bench Tensor Shape", "Cosine", "MaxAbsErr", "NPU max", "NPU min", "NPU mean", "Bench max"),
    *("Bench min", "Bench mean", "Accuracy Reached or Not", "Err_message", "NPU_Stack_Info"),
)
_OPTIONAL, _NAN, _SHAPES = (*_COLUMNS[8:14], _COLUMNS[16]), "Nan", "shape unmatched"
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
    """Compare two dumps, and write `compare_result_{suffix}_{time}.csv`, with stacks if the dump has them.

    Log an error, and end the process with the status that the old tool gave it.
    """
    param = input_param if input_parma is None else input_parma
    try:
        _check(param, output_path, stack_mode, auto_analyze, suffix)
        (ours, is_stacked), (theirs, is_like) = _read("npu", param), _read("bench", param)
        if stack_mode is not None:  # nobody needs to give one
            demand(is_stacked == is_like, _OTHER_MODE, _INVALID_COMPARE_MODE)
            words = ("contains", "on") if is_stacked else ("does not contain", "off")
            demand(is_stacked == stack_mode, _STACKS.format(*words), _INVALID_COMPARE_MODE)
        table, advice = _compared(ours, theirs, param.get("is_print_compare_log") is True)
        wanted, mark = wanted_in(output_path, as_csv=True), f"_{suffix.removeprefix('_')}" if suffix else ""
        path = write_table(wanted, "compare_result", mark, table)
        logger().info("The comparison result is saved in: %s", path)
        if auto_analyze:
            if advice.line is not None:
                logger().warning("Find %s accuracy not reached, the line is %d", advice.name, advice.line)
            path = write_advice(wanted, mark, advice)
            found = answer([compare_recordings(ours, theirs, as_specified=True).outcome()])
            logger().info("%s\n\nBy the fixed rules of the specification:\n%s", "\n".join(found), advice)
            logger().info("The expert advice is saved in %s", path)
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
    are_texts = isinstance(prefix, str) and is_path(pkl_file)
    demand(are_texts, "parse takes the path of a .pkl and the beginning of a name, both as texts.")
    demand(is_file(pkl_file), f"{pkl_file} is an invalid file or non-exist.", INVALID_PATH)
    lines = old_files.lines(Path(pkl_file))
    found = [(line.text, line.seen) for line in lines if line.text.startswith(prefix)]
    if not found:
        logger().warning("%s has no line that begins with %r.", pkl_file, prefix)
    for line in shown(found):
        print(line)


def _check(param: Any, output_path: Any, stack_mode: Any, auto_analyze: Any, suffix: Any) -> None:
    demand(isinstance(param, dict) and is_path(output_path), "Invalid input parameters")
    for word, value in (("stack_mode", stack_mode or False), ("auto_analyze", auto_analyze)):
        demand(isinstance(value, bool), f"Params {word} only support True or False.")
    is_part = suffix == "" or is_plain_name(suffix)
    demand(is_part, f"Params suffix is {suffix!r}; it must be a part of a file name.")
    for key in _PATHS:
        path = param.get(key)
        demand(is_path(path), f"Invalid input parameters: input_param needs the path '{key}'.")
        is_there = is_file(path) if "pkl" in key else is_folder(path)
        demand(is_there, f"{path} is an invalid file or non-exist.", INVALID_PATH)
    demand(is_folder(output_path), f"The path {output_path} is not exist.", INVALID_PATH)


def _read(word: str, param: dict[str, Any]) -> tuple[Recording, bool]:
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
    demand(is_folder(folder), f"The path {folder} is not exist.", INVALID_PATH)
    ranks = files_of_ranks(Path(folder), old_files.SUFFIX)
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
    advice = Advice(None, None, FINE)
    pairs = list(match_whole(target, golden, "No bench data matched."))
    measured = zip(pairs, measured_tensors(pairs, target, golden), frames_of(pairs), strict=True)
    for pair, errors, frames in measured:
        (name, *ours), (bench, *theirs) = (_cells(place) for place in pair[:2])
        why = _obstacle(pair, target, golden)
        result = result_of(errors, {*ours, *theirs}) if errors and not why else (_NAN, _NAN, _NAN, why)
        cosine, largest, reached, message = result
        stack = str([list(Frame.parse(frame)) for frame in frames] or "")
        described = (name, bench, ours[0], theirs[0], ours[1], theirs[1])
        rows.append([*described, cosine, largest, *ours[2:], *theirs[2:], reached, message, stack])
        if pair.golden is not None and ours[0] != theirs[0]:
            logger().warning("%s: Dtype of NPU and bench Tensor do not match.", name)
        if is_loud:
            told = f"cosine {cosine}, max_abs_err {largest}, {message}"
            print(f"start comapre: {name}\n[{name}] Compare result: {told}")
        if reached == "No" and "batch_norm" not in name and advice.line is None:
            advice = Advice(len(rows) + 1, name, usual_advice(pair.place))  # line 1 is the head
    if not any(row[-3] in ("Yes", "No") for row in rows):
        advice = Advice(None, None, UNSEEN)
        logger().warning("%s", UNSEEN)
    return Table(_COLUMNS, rows).lean(_OPTIONAL, (_NAN, "[]", "")), advice


def _obstacle(pair: Pair, *sides: Recording) -> str:
    """Why the tensors of a pair cannot be compared, if they cannot."""
    lost = [path for path in map(file_of, sides, pair[:2]) if not is_file(path)]
    return pair.reason or (f"Dump file:{lost[0]} not found" if lost else "")


def _cells(place: Place | None) -> list[str]:
    """Name, dtype, shape, max, min, mean; a file is called as its tensor."""
    if place is None or place.leaf is None:
        return [_NAN] * 6
    dtype, shape, summary = old_files.described(place.leaf)
    return [str(place.leaf.data_name).removesuffix(".npy"), dtype, str(shape), *map(str, summary)]


def result_of(errors: TensorErrors, cells: set[str]) -> tuple[str, str, str, str]:
    """Cosine, MaxAbsErr, whether one of them is good, and Err_message; `cells`: what else the row says."""
    if errors.message.startswith(f"{UNLIKE_FILES}shapes"):
        return _SHAPES, _SHAPES, "Unmatched", "Shape of NPU and bench Tensor do not match. Skipped."
    if errors.max_abs == UNSUPPORTED:
        return (*(("1", "0", "Yes") if errors.message == EMPTY else (_NAN, _NAN, _NAN)), errors.message)
    if isinstance(errors.max_abs, str) or cells & {"nan", "inf", "-inf"}:
        return _NAN, "nan", _NAN, "Cannot compare by Cosine Similarity, the dump data has NaN."
    largest = f"{errors.max_abs:.6f}"
    if errors.cosine == UNSUPPORTED and errors.message:  # of one number, which is in no list
        return "1", largest, "Yes", "This is type of scalar data, can not compare."
    if errors.cosine == UNSUPPORTED:
        return "1.000000", largest, "Yes", "This tensor is scalar."
    if isinstance(errors.cosine, str):
        return _NAN, largest, _NAN, errors.message
    cosine = "1.0" if errors.cosine > _AS_GOOD_AS_ONE else f"{errors.cosine:.6f}"
    is_good = float(cosine) >= _COSINE or float(largest) <= _ABSOLUTE
    return cosine, largest, "Yes" if is_good else "No", ""
