"""Two kernel dumps of MindSpore graphs beside each other, tensor by tensor, for each rank and step.

The specified table has its own rules; our verdict judges each kernel by its inputs, as it judges calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from msprobe.analyse.judge import NO, UNMATCHED, YES, accuracy
from msprobe.analyse.measure import measure_statistics, measure_tensors, no_errors, unlike
from msprobe.compare import STATISTICS, TENSOR
from msprobe.compare_kernel_calls import Dumped, KernelPair, KernelValue, described_leaf, judge_kernels
from msprobe.compare_request import Request
from msprobe.errors import RecordingError, UsageError
from msprobe.kernels import Statistics, described_of
from msprobe.plural import counted
from msprobe.record import Leaf
from msprobe.report.files import Wanted, write_table
from msprobe.report.kernel_table import KernelRow, KernelSide, kernel_table
from msprobe.store.kernel_summary import described
from msprobe.store.kernels_dir import (
    KernelFolder,
    KernelSlot,
    KernelStatistics,
    KernelTensor,
    kernel_folders,
    kernel_statistics,
    kernel_tensors,
    read_kernel_tensor,
)
from msprobe.store.tensor_file import StoredTensor, as_float
from msprobe.verdict.comparison import Outcome

_SCALAR = "This is type of scalar data, can not compare."
_ONE = "This is a 1-d tensor of length 1."
_NOWHERE = "The golden run has no such tensor."
_ONLY_THERE = "The target has no such tensor."

Found = TypeVar("Found", KernelTensor, KernelStatistics)


class KernelsCompared(NamedTuple):
    """What came of one rank and step."""

    rank: int
    step: int
    rows: list[KernelRow]
    table: Path
    outcome: Outcome

    def told(self) -> str:
        """What the specified rules say of it."""
        bad = [row for row in self.rows if row.result == NO]
        unmatched = sum(row.result == UNMATCHED for row in self.rows)
        first = (bad[0].target or bad[0].golden) if bad else None
        where = f", the first {Path(first.name).name}" if first is not None else ""
        return (
            f"rank {self.rank}, step {self.step}: {counted(len(self.rows), 'tensor')} of kernels, {len(bad)} "
            f"do not reach accuracy{where}, {unmatched} without a counterpart"
        )


def compare_kernels(
    request: Request, wanted: Wanted, *, with_cases: bool = False
) -> Iterator[KernelsCompared]:
    """Compare the ranks and steps that were asked for, and write a table for each."""
    ours, theirs = _folders(request.target), _folders(request.golden)
    for rank, step in _asked(request, ours, theirs):
        rows, pairs, of_statistics = _compared(ours[rank, step], theirs[rank, step])
        if not rows:
            raise RecordingError(
                f"Nothing was compared: rank {rank}, step {step} holds no tensor of a kernel."
            )
        dumped = [Dumped(str(side[rank, step][0].path), step, rank) for side in (ours, theirs)]
        judged = judge_kernels(pairs, STATISTICS if of_statistics else TENSOR, *dumped)
        found = kernel_table(rows, judged.verdicts, of_statistics=of_statistics)
        path = write_table(wanted, "compare_result", f"_{rank}_{step}", found)
        outcome = judged.comparison.outcome(with_cases=with_cases)
        yield KernelsCompared(rank, step, rows, path, outcome)


Folders = dict[tuple[int, int], list[KernelFolder]]


def _folders(path: str) -> Folders:
    found: Folders = defaultdict(list)
    for folder in kernel_folders(Path(path)):
        found[folder.rank, folder.step].append(folder)
    if not found:
        raise RecordingError(
            f"{path} holds no kernel dump; below it a folder such as rank_0/Net/0/1 is expected: rank, net, "
            "graph and step."
        )
    return dict(found)


def _asked(request: Request, ours: Folders, theirs: Folders) -> list[tuple[int, int]]:
    """Return the ranks and steps to compare; one that was asked for and is missing is an error."""
    assert request.kernels is not None
    for word, place, numbers in (("rank", 0, request.kernels.ranks), ("step", 1, request.kernels.steps)):
        for whose, folders in ((request.target, ours), (request.golden, theirs)):
            there = sorted({key[place] for key in folders})
            for number in numbers:
                if number not in there:
                    known = ", ".join(map(str, there))
                    raise UsageError(
                        f"{whose} has no {word} {number}, which {word}_id names; it has {known}."
                    )
    ranks, steps = request.kernels
    common = sorted(
        (rank, step)
        for rank, step in ours.keys() & theirs.keys()
        if (not ranks or rank in ranks) and (not steps or step in steps)
    )
    if not common:
        raise UsageError(
            f"{request.target} and {request.golden} have no rank and step in common, as far as rank_id and "
            "step_id ask for them."
        )
    return common


class _Compared(NamedTuple):
    """What a comparison of kernels has of each tensor: the row of the table, and what our verdict judges."""

    rows: list[KernelRow]
    pairs: list[KernelPair]
    of_statistics: bool  # where no tensors were recorded


def _compared(ours: Sequence[KernelFolder], theirs: Sequence[KernelFolder]) -> _Compared:
    tensors = [[tensor for folder in side for tensor in kernel_tensors(folder)] for side in (ours, theirs)]
    if any(tensors):
        found = [_tensor_row(a, b) for a, b in _paired(*tensors)]
    else:
        lines = [[line for folder in side for line in kernel_statistics(folder)] for side in (ours, theirs)]
        found = [_statistics_row(a, b) for a, b in _paired(*lines)]
    return _Compared([row for row, _ in found], [pair for _, pair in found], not any(tensors))


def _paired(ours: Sequence[Found], theirs: Sequence[Found]) -> Iterator[tuple[Found | None, Found | None]]:
    """By their slots; where a kernel ran several times, the first with the first."""
    there: dict[KernelSlot, list[Found]] = defaultdict(list)
    for each in theirs:
        there[each.slot].append(each)
    for each in ours:
        waiting = there[each.slot]
        yield each, waiting.pop(0) if waiting else None
    yield from ((None, each) for waiting in there.values() for each in waiting)


# ---- tensors ----


def _tensor_row(ours: KernelTensor | None, theirs: KernelTensor | None) -> tuple[KernelRow, KernelPair]:
    try:
        mine, other = (None if each is None else read_kernel_tensor(each) for each in (ours, theirs))
    except RecordingError as problem:
        sides = [
            None if each is None else KernelSide(str(each.path), "", "", ("",) * 4) for each in (ours, theirs)
        ]
        row = KernelRow(sides[0], sides[1], None, UNMATCHED, str(problem))
        return row, KernelPair(_value(ours), _value(theirs), result=UNMATCHED, unjudged=str(problem))
    left = None if ours is None or mine is None else _tensor_side(ours, mine)
    right = None if theirs is None or other is None else _tensor_side(theirs, other)
    pair = KernelPair(_value(ours, mine), _value(theirs, other))
    if mine is None or other is None:
        why = _ONLY_THERE if mine is None else _NOWHERE
        return KernelRow(left, right, None, UNMATCHED, why), pair._replace(result=UNMATCHED, reason=why)
    if differing := unlike(mine, other):
        what, _, both = differing.partition(" ")
        why = f"The {what} differ: {both}."
        row = KernelRow(left, right, no_errors(why), UNMATCHED, why)
        return row, pair._replace(result=UNMATCHED, reason=why)
    errors = measure_tensors(mine, other)
    if mine.array.shape == ():
        return KernelRow(left, right, None, "", _SCALAR), pair._replace(measured=errors)
    message = errors.message or (_ONE if mine.array.shape == (1,) else "")
    row = KernelRow(left, right, errors, accuracy(errors), message)
    return row, pair._replace(measured=errors, result=row.result)


def _tensor_side(found: KernelTensor, tensor: StoredTensor) -> KernelSide:
    return KernelSide(str(found.path), tensor.dtype, str(tensor.array.shape), described(tensor))


def _value(found: KernelTensor | None, tensor: StoredTensor | None = None) -> KernelValue | None:
    if found is None:
        return None
    leaf = None
    if tensor is not None:
        stats, digest, _ = described_of(as_float(tensor.array, tensor.dtype))
        leaf = described_leaf(tensor.dtype, tensor.array.shape, stats=stats, hash=digest)
    return KernelValue(found.slot, found.op_type, found.timestamp, leaf)


# ---- statistics ----


def _statistics_row(
    ours: KernelStatistics | None, theirs: KernelStatistics | None
) -> tuple[KernelRow, KernelPair]:
    left, right = (None if each is None else _statistics_side(each) for each in (ours, theirs))
    pair = KernelPair(_described_value(ours), _described_value(theirs))
    if ours is None or theirs is None:
        why = _ONLY_THERE if ours is None else _NOWHERE
        return KernelRow(left, right, None, UNMATCHED, why), pair._replace(result=UNMATCHED, reason=why)
    if ours.shape != theirs.shape:
        why = f"The shapes differ: {ours.shape} and {theirs.shape}."
        return KernelRow(left, right, None, UNMATCHED, why), pair._replace(result=UNMATCHED, reason=why)
    errors = measure_statistics(_leaf(ours), _leaf(theirs))
    row = KernelRow(left, right, errors, NO if errors.are_far else YES)
    return row, pair._replace(measured=errors, result=row.result)


def _statistics_side(found: KernelStatistics) -> KernelSide:
    return KernelSide(str(found.slot), found.dtype, found.shape, found.values, str(found.path))


def _described_value(found: KernelStatistics | None) -> KernelValue | None:
    if found is None:
        return None
    return KernelValue(found.slot, found.op_type, found.timestamp, _leaf(found))


def _leaf(found: KernelStatistics) -> Leaf:
    return described_leaf(found.dtype, found.shape, stats=Statistics(*found.values[:4]))
