"""Story 2: two runs go in; every pair of places is matched, measured and judged."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from msprobe import store
from msprobe.analyse.judge import Finding, Measured, colour, judge
from msprobe.analyse.match import Pair, Place, match, places
from msprobe.analyse.measure import (
    EQUAL,
    TensorErrors,
    measure_checksums,
    measure_statistics,
    measure_tensors,
    no_errors,
)
from msprobe.errors import RecordingError, UsageError
from msprobe.record import Leaf, Recording
from msprobe.store.tensor_file import StoredTensor, read

TENSOR, STATISTICS, CHECKSUM = "tensor", "statistics", "md5"

_AHEAD = 256  # pairs whose tensors may be read before the first of them is judged
_NO_FILE = "{} does not have data file."

Progress = Callable[[int, int], None]  # how many of how many places are measured


class Comparison(NamedTuple):
    """One rank at one step of both runs, place by place."""

    target: Recording
    golden: Recording
    mode: str  # what was compared: the tensors themselves, their checksums, or their statistics
    findings: list[Finding]


def compare(
    target: str | os.PathLike[str],
    golden: str | os.PathLike[str],
    *,
    fuzzy: bool = False,
    progress: Progress | None = None,
) -> list[Comparison]:
    """Compare two runs, steps, ranks or files, step by step and rank by rank."""
    found = []
    for ours, theirs in paired(store.read(target), store.read(golden)):
        found.append(compare_recordings(ours, theirs, fuzzy=fuzzy, progress=progress))
    if not any(comparison.findings for comparison in found):
        raise RecordingError(f"Nothing was compared: {target} and {golden} hold no record.")
    return found


def paired(target: Sequence[Recording], golden: Sequence[Recording]) -> list[tuple[Recording, Recording]]:
    """The recordings of one step and rank of both runs; two single ones belong together in any case."""
    if len(target) == len(golden) == 1:
        return [(target[0], golden[0])]
    theirs = {(recording.step, recording.rank): recording for recording in golden}
    pairs = [
        (recording, theirs[recording.step, recording.rank])
        for recording in target
        if (recording.step, recording.rank) in theirs
    ]
    if not pairs:
        raise RecordingError(
            f"The two runs have no step and rank in common: the target has {_named(target)}, the golden run "
            f"has {_named(golden)}. Give two folders of one rank, or two dump.json files, to compare these."
        )
    return pairs


def _named(recordings: Sequence[Recording]) -> str:
    names = [f"step {r.step} rank {'-' if r.rank is None else r.rank}" for r in recordings]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def compare_recordings(
    target: Recording, golden: Recording, *, fuzzy: bool = False, progress: Progress | None = None
) -> Comparison:
    mode = mode_of(target, golden)
    pairs = match(target, golden, fuzzy=fuzzy)
    findings = []
    measured = _measured(mode, pairs, target, golden)
    for done, (pair, errors) in enumerate(zip(pairs, measured, strict=True)):
        findings.append(judge(pair, errors))
        if progress is not None and done % 256 == 0:
            progress(done, len(pairs))
    if progress is not None:
        progress(len(pairs), len(pairs))
    calls = itertools.groupby(findings, key=lambda finding: id(finding.pair.place.record))
    coloured = [finding for _, call in calls for finding in colour(list(call))]
    return Comparison(target, golden, mode, coloured)


def mode_of(target: Recording, golden: Recording) -> str:
    """The most that both recordings offer."""
    if target.header.framework != golden.header.framework:
        raise UsageError(
            f"{target.folder} was recorded with {target.header.framework} and {golden.folder} with "
            f"{golden.header.framework}; comparing across frameworks is not part of this release."
        )
    if target.header.task == golden.header.task == TENSOR:
        return TENSOR
    return CHECKSUM if all(map(_has_checksums, (target, golden))) else STATISTICS


def _has_checksums(recording: Recording) -> bool:
    leaves = (place.leaf for record in recording.records.values() for place in places(record))
    return any(leaf is not None and leaf.checksum is not None for leaf in leaves)


def _measured(mode: str, pairs: Sequence[Pair], target: Recording, golden: Recording) -> Iterator[Measured]:
    """The errors of each pair, in order; tensors are read by several threads, a bounded number ahead."""
    if mode != TENSOR:
        measure = measure_checksums if mode == CHECKSUM else measure_statistics
        for pair in pairs:
            yield measure(_leaf(pair.target), _leaf(pair.golden)) if not pair.reason else None
        return
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        parts = (pairs[start : start + _AHEAD] for start in range(0, len(pairs), _AHEAD))
        for part in parts:
            yield from pool.map(lambda pair: _tensors(pair, target, golden), part)


def _leaf(place: Place | None) -> Leaf | None:
    return None if place is None else place.leaf


def _tensors(pair: Pair, target: Recording, golden: Recording) -> TensorErrors | None:
    if pair.reason:
        return None
    paths = _path(target, pair.target), _path(golden, pair.golden)
    for path, whose in zip(paths, ("NPU", "Bench"), strict=True):
        if path is None or not path.is_file():
            return no_errors(_NO_FILE.format(whose))
    ours, theirs = (read(path, verify=False) for path in paths if path is not None)
    if ours.array.shape != theirs.array.shape:
        return no_errors(f"The files hold the shapes {ours.array.shape} and {theirs.array.shape}.")
    if _same(ours, theirs) and ours.array.size > 1:
        return EQUAL
    return measure_tensors(ours, theirs)


def _same(ours: StoredTensor, theirs: StoredTensor) -> bool:
    """Whether the files say that they hold the same numbers, which then need not be read."""
    return ours.crc != 0 and (ours.crc, ours.dtype) == (theirs.crc, theirs.dtype)


def _path(recording: Recording, place: Place | None) -> Path | None:
    leaf = _leaf(place)
    return None if leaf is None else store.tensor_path(recording, leaf)
