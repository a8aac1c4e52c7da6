"""The old table: its columns, its words and its rule of accuracy; matching and numbers are msprobe's."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from msprobe.analyse.match import Pair, Place, match
from msprobe.analyse.measure import UNSUPPORTED, TensorErrors, values_of
from msprobe.compare import UNLIKE_FILES, measured_tensors
from msprobe.log import logger
from msprobe.record import Leaf, Recording, Stack
from msprobe.report.advice import FINE, Advice, usual_advice
from msprobe.report.table import Cell, Table, write_csv
from msprobe.store import tensor_path
from msprobe.store.layout import write_whole
from ptdbg_ascend.names import old_frame

SUMMARY = ("max", "min", "mean")

_NAN = "Nan"
_SHAPES = "shape unmatched"
_COSINE, _ABSOLUTE = 0.99, 0.001
_AS_GOOD_AS_ONE = 0.99999
_SIDES = ("NPU", "Bench")
_DESCRIBED = ("Name", "Tensor Dtype", "Tensor Shape")
_NUMBERS = ("Cosine", "MaxAbsErr")
_LAST = ("Accuracy Reached or Not", "Err_message", "NPU_Stack_Info")
_EMPTY = "This is empty data, can not compare."
_NOT_A_NUMBER = "Cannot compare by Cosine Similarity, the dump data has NaN."


class Dump(NamedTuple):
    """One side: what was dumped, and of what kind the file is."""

    recording: Recording
    has_summary: bool
    is_api_stack: bool  # the stack of a call follows its tensors


_Row = tuple[Place, dict[str, Cell]]  # a place of the target, and its cells by column


class Result(NamedTuple):
    """What the old table says of two tensors."""

    cosine: str
    max_abs: str
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
    if errors.message.startswith(UNLIKE_FILES):
        return Result(_SHAPES, _SHAPES, "Shape of NPU and bench Tensor do not match. Skipped.")
    if errors.max_abs == UNSUPPORTED:
        return Result(*("1", "0") if errors.message == _EMPTY else (_NAN, _NAN), errors.message)
    if not is_finite or isinstance(errors.max_abs, str):
        return Result(_NAN, "nan", _NOT_A_NUMBER)
    largest = f"{errors.max_abs:.6f}"
    if errors.cosine == UNSUPPORTED:  # of one number; msprobe has a message where it is in no list
        if errors.message:
            return Result("1", largest, "This is type of scalar data, can not compare.")
        return Result("1.000000", largest, "This tensor is scalar.")
    if isinstance(errors.cosine, str):
        return Result(_NAN, largest, errors.message)
    return Result("1.0" if errors.cosine > _AS_GOOD_AS_ONE else f"{errors.cosine:.6f}", largest)


def _rows(target: Recording, golden: Recording) -> Iterator[_Row]:
    """Every place of the target; a call has a counterpart if all its tensors have one, and no more."""
    pairs: list[Pair] = []
    for _, call in groupby(match(target, golden), key=lambda pair: str(pair.place.record.name)):
        found = list(call)
        is_whole = all(pair.target is not None and pair.golden is not None for pair in found)
        whole = [pair._replace(reason="") if is_whole else pair._replace(golden=None) for pair in found]
        pairs += [pair for pair in whole if pair.target is not None]
    before = None
    for pair, errors in zip(pairs, measured_tensors(pairs, target, golden), strict=True):
        assert pair.target is not None
        theirs = pair.golden.leaf if pair.golden is not None else None
        result = _result(errors, (target, pair.target.leaf), (golden, theirs))
        stack = pair.target.record.stack if pair.target.record is not before else None
        before = pair.target.record
        yield pair.target, _cells(pair.target.leaf, theirs, result, stack)


def _cells(ours: Leaf | None, theirs: Leaf | None, result: Result, stack: Stack | None) -> dict[str, Cell]:
    """By column; the first row of a call has its stack."""
    sides = zip(_SIDES, (ours, theirs), strict=True)
    cells = {f"{side} {key}": cell for side, leaf in sides for key, cell in _told(leaf).items()}
    frames = None if stack is None else str([list(old_frame(frame)) for frame in stack.frames])
    numbers = (result.cosine, result.max_abs, result.accuracy, result.message, frames)
    return cells | dict(zip((*_NUMBERS, *_LAST), numbers, strict=True))


def _told(leaf: Leaf | None) -> dict[str, Cell]:
    if leaf is None:
        return dict.fromkeys((*_DESCRIBED, *SUMMARY), _NAN)
    described = (_name(leaf), leaf.dtype or f"<class '{leaf.type}'>", str(list(leaf.shape or ())))
    summary = ("[]" if value is None else value for value in values_of(leaf)[:3])
    return dict(zip((*_DESCRIBED, *SUMMARY), (*described, *summary), strict=True))


def _name(leaf: Leaf) -> str:
    """A file is called as its tensor."""
    return str(leaf.data_name).removesuffix(".npy")


def _result(errors: TensorErrors | None, *sides: tuple[Recording, Leaf | None]) -> Result:
    leaves = [leaf for _, leaf in sides if leaf is not None]
    if errors is None or len(leaves) < 2:
        return Result(_NAN, _NAN, "No bench data matched.")
    for recording, leaf in sides:
        path = tensor_path(recording, leaf) if leaf is not None else None
        if path is None or not os.path.isfile(path):
            return Result(_NAN, _NAN, f"Dump file:{path} not found")
    if leaves[0].dtype != leaves[1].dtype:
        logger().warning("%s: Dtype of NPU and bench Tensor do not match.", _name(leaves[0]))
    values = [value for leaf in leaves for value in values_of(leaf)[:3] if isinstance(value, float)]
    return result_of(errors, all(map(math.isfinite, values)))


# ---- files ----


def report(
    dumps: tuple[Dump, Dump],
    out: Path,
    stack_mode: bool | None,
    auto_analyze: bool,
    suffix: str,
    is_loud: bool,
) -> None:
    """Write the table and the advice; with `is_loud` each row is printed, too."""
    rows = []
    for place, cells in _rows(dumps[0].recording, dumps[1].recording):
        rows.append((place, cells))
        if is_loud:
            name, cosine, largest, message = (cells[key] for key in ("NPU Name", *_NUMBERS, "Err_message"))
            print(f"start comapre: {name}")
            print(f"[{name}] Compare result: cosine {cosine}, max_abs_err {largest}, {message}")
    if stack_mode is None:
        stack_mode = any(place.record.stack for place, _ in rows)
    columns = [f"{side} {key}" for key in _DESCRIBED for side in _SIDES] + list(_NUMBERS)
    for side, dump in zip(_SIDES, dumps, strict=True):
        columns += [f"{side} {key}" for key in SUMMARY if dump.has_summary]
    columns += _LAST if stack_mode else _LAST[:-1]
    stamp, mark = time.strftime("%Y%m%d%H%M%S"), f"_{suffix.removeprefix('_')}" if suffix else ""
    path = out / f"compare_result{mark}_{stamp}.csv"
    write_csv(path, Table(columns, [[cells[key] for key in columns] for _, cells in rows]))
    logger().info("The comparison result is saved in: %s", path)
    if auto_analyze:
        advice = out / f"advisor_{stamp}.txt"  # of several ranks within a second each has its own
        _analyze(rows, out / f"advisor{mark}_{stamp}.txt" if advice.exists() else advice)


def _analyze(rows: Sequence[_Row], path: Path) -> None:
    """The first tensor that does not reach the accuracy; line 1 of the table is its head."""
    advice = Advice(None, None, FINE)
    for line, (place, cells) in enumerate(rows, 2):
        name = str(cells["NPU Name"])
        if cells["Accuracy Reached or Not"] == "No" and "batch_norm" not in name:
            logger().warning("Find %s accuracy not reached, the line is %d", name, line)
            advice = Advice(line, name, usual_advice(place))
            break
    write_whole(path, [f"{advice}\n".encode()])
    logger().info("The summary of the expert advice is as follows:\n%s", advice)
    logger().info("The advisor summary is saved in: %s", path)
