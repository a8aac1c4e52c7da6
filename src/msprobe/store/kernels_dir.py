"""Folders that a kernel dump of CANN or of MindSpore leaves behind: whose data a file is, told by its path.

{dump_path}/{time}/{device}/{model}/{op_type}.{op_name}.{task}.{stream}.{timestamp}
dump/output/20230131172437/1/0/Add.Add.45.0.1675157077183551
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from msprobe.errors import RecordingError
from msprobe.store.layout import open_regular
from msprobe.store.tensor_file import StoredTensor, read

_FILE = re.compile(r"([^./]+)\.([^/]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)")
_TIME = re.compile(r"[0-9]{14}")
_NUMBER = re.compile(r"[0-9]+")


class KernelFile(NamedTuple):
    """The data of one kernel that ran once."""

    time: str  # when the dump began, as year, month, day, hour, minute, second
    device: int
    model: int
    op_type: str
    op_name: str
    task: int
    stream: int
    timestamp: int  # microseconds since 1970
    path: Path


def kernel_file(path: Path) -> KernelFile:
    """What the path of a kernel's data says."""
    *_, time, device, model = ("", "", "", *path.parent.parts)
    name = _FILE.fullmatch(path.name)
    if name is None or not _TIME.fullmatch(time) or not (_is_number(device) and _is_number(model)):
        raise RecordingError(
            f"{path} is no file of a kernel dump; expected a path such as "
            "20230131172437/1/0/Add.Add.45.0.1675157077183551."
        )
    op_type, op_name, task, stream, timestamp = name.groups()
    return KernelFile(
        time, int(device), int(model), op_type, op_name, int(task), int(stream), int(timestamp), path
    )


def kernel_files(dump_path: Path) -> Iterator[KernelFile]:
    """The kernel data below the dump_path of acl_config.json, in the order in which it was written."""
    found = []
    for path in _files(dump_path):
        try:
            found.append(kernel_file(path))
        except RecordingError:  # acl leaves other files there too
            continue
    yield from sorted(found, key=lambda file: (file.time, file.device, file.timestamp, file.path))


def _files(folder: Path, depth: int = 3) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if depth and entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path), depth - 1)
            elif not depth and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


# ---- the kernels of a MindSpore graph ----
#
# {dump_path}/rank_{rank}/{net}/{graph}/{step}/
#     {op_type}.{op_name}.{task}.{stream}.{timestamp}.{input|output}.{slot}.{format}.{dtype}.npy
#     statistic.csv  one line for each tensor, if statistics were recorded
#     mapping.csv    the names of files whose names would be too long
#
# {dump_path}/rank_{rank}/{time}/step_{step}/ holds the same, written by adump on Ascend; there a tensor that
# .npy has no type for is a file of its bare numbers, without .npy at the end.

STATISTICS_FILE = "statistic.csv"
NAMES_FILE = "mapping.csv"
STATISTICS_COLUMNS = (
    *("Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot"),
    *("Data Size", "Data Type", "Shape", "Max Value", "Min Value", "Avg Value", "L2Norm Value"),
)
_RANK = re.compile(r"rank_([0-9]{1,9})")
_STEP = re.compile(r"step_([0-9]{1,9})")
_TENSOR = re.compile(
    r"([^./]+)\.([^/]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)\.(input|output)\.([0-9]+)\.([^./]+)\.([^./]+)(\.npy)?"
)
_MOST_LINES = 10_000_000


class KernelFolder(NamedTuple):
    """What one graph left at one step."""

    rank: int
    step: int
    net: str
    graph: int
    path: Path


class KernelSlot(NamedTuple):
    """An input or output of a kernel, by what does not change from run to run."""

    net: str
    graph: int
    op_name: str
    task: int
    side: str  # input or output
    slot: int

    def __str__(self) -> str:
        return f"{self.op_name}.{self.task}.{self.side}.{self.slot}"


class KernelTensor(NamedTuple):
    slot: KernelSlot
    timestamp: int
    path: Path
    op_type: str
    stream: int
    dtype: str  # as the name of the file has it
    is_npy: bool  # else bare numbers


class KernelStatistics(NamedTuple):
    """A line of a statistic.csv."""

    slot: KernelSlot
    timestamp: int
    op_type: str
    dtype: str
    shape: str
    values: tuple[float | None, float | None, float | None, float | None]  # max, min, mean and norm
    path: Path


def kernel_folders(dump_path: Path) -> list[KernelFolder]:
    """Where the kernels of each rank, graph and step lie."""
    ranks = ((_RANK.fullmatch(folder.name), folder) for folder in _folders(dump_path))
    return sorted(
        found
        for rank, folder in ranks
        if rank is not None
        for net in _folders(folder)
        for found in (*_of_graphs(int(rank[1]), net), *_of_adump(int(rank[1]), net))
    )


def step_folders(dump_path: Path, rank: int, net: str, steps: Iterable[int]) -> list[KernelFolder]:
    """Where the kernels that one rank ran at these steps lie."""
    place = dump_path / f"rank_{rank}" / net
    graphs = list(filter(_is_numbered, _folders(place))) if place.is_dir() else []
    found = ((step, graph, graph / str(step)) for step in steps for graph in graphs)
    return [
        KernelFolder(rank, step, net, int(graph.name), path) for step, graph, path in found if path.is_dir()
    ]


def _of_graphs(rank: int, net: Path) -> Iterator[KernelFolder]:
    for graph in filter(_is_numbered, _folders(net)):
        for step in filter(_is_numbered, _folders(graph)):
            yield KernelFolder(rank, int(step.name), net.name, int(graph.name), step)


def _of_adump(rank: int, time: Path) -> Iterator[KernelFolder]:
    for folder in _folders(time) if _is_numbered(time) else ():
        step = _STEP.fullmatch(folder.name)
        if step is not None:  # the time differs from run to run, and is no part of what a kernel is called
            yield KernelFolder(rank, int(step[1]), "", 0, folder)


def kernel_tensors(folder: KernelFolder) -> list[KernelTensor]:
    """The tensors in a folder, in the order in which they were written."""
    names = _long_names(folder.path / NAMES_FILE)
    found = []
    with os.scandir(folder.path) as entries:
        for entry in entries:
            name = _TENSOR.fullmatch(names.get(entry.name, entry.name))
            if name is not None and entry.is_file(follow_symlinks=False):
                op_type, op_name, task, stream, timestamp, side, slot, _, dtype, npy = name.groups()
                place = KernelSlot(folder.net, folder.graph, op_name, int(task), side, int(slot))
                found.append(
                    KernelTensor(
                        place, int(timestamp), Path(entry.path), op_type, int(stream), dtype, bool(npy)
                    )
                )
    return sorted(found, key=lambda tensor: (tensor.timestamp, tensor.slot))


def read_kernel_tensor(tensor: KernelTensor) -> StoredTensor:
    """Its numbers. Bare ones have no shape; in .npy, which has no bfloat16, MindSpore calls it E2."""
    if tensor.is_npy and tensor.dtype != "BFloat16":
        return read(tensor.path)
    if not tensor.is_npy and tensor.dtype != "BF16":
        raise RecordingError(
            f"The tensor file '{tensor.path}' holds bare {tensor.dtype} numbers, which cannot be read."
        )
    try:
        with os.fdopen(open_regular(tensor.path), "rb") as stream:
            content = stream.read()
        if not tensor.is_npy:
            return StoredTensor(np.frombuffer(content, "<u2"), "bfloat16")
        array = np.load(io.BytesIO(content.replace(b"'<E2'", b"'<u2'", 1)), allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise RecordingError(f"The tensor file '{tensor.path}' cannot be read: {problem}.") from None
    return StoredTensor(array, "bfloat16" if array.dtype == np.uint16 else array.dtype.name)


def kernel_statistics(folder: KernelFolder) -> list[KernelStatistics]:
    """The lines of its statistic.csv; none if it has no such file."""
    path = folder.path / STATISTICS_FILE
    found = []
    for number, row in enumerate(_csv(path), 2):
        try:
            slot = KernelSlot(
                folder.net, folder.graph, row["Op Name"], int(row["Task ID"]), row["IO"], int(row["Slot"])
            )
            most, least, mean, norm = (
                _value(row.get(f"{word} Value")) for word in ("Max", "Min", "Avg", "L2Norm")
            )
            values = most, least, mean, norm
            timestamp, op_type, dtype = int(row["Timestamp"]), row["Op Type"], row["Data Type"]
            found.append(KernelStatistics(slot, timestamp, op_type, dtype, row["Shape"], values, path))
        except (KeyError, ValueError, TypeError) as problem:
            raise RecordingError(f"{path}, line {number}: it cannot be understood: {problem}.") from None
    return found


def _value(text: str | None) -> float | None:
    return float(text) if text else None


def _long_names(path: Path) -> dict[str, str]:
    """The name that a file would have, by the one that it has."""
    found = {}
    for row in csv_rows(path):
        whole = next((cell for cell in row if _TENSOR.fullmatch(cell)), None)
        for cell in row if whole is not None else ():
            found[cell] = found[f"{cell}.npy"] = whole or ""
    return found


def _csv(path: Path) -> Iterator[dict[str, str]]:
    rows = csv_rows(path)
    header = next(rows, [])
    for row in rows:
        yield dict(zip(header, row, strict=False))


def csv_rows(path: Path) -> Iterator[list[str]]:
    """The lines of a file, header and all; none if there is no such file."""
    if not path.is_file():
        return
    with os.fdopen(open_regular(path), "r", newline="", encoding="utf-8-sig", errors="replace") as stream:
        try:
            yield from itertools.islice((row for row in csv.reader(stream) if row), _MOST_LINES)
        except csv.Error as problem:
            raise RecordingError(f"{path} is no table of a kernel dump: {problem}.") from None


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_numbered(folder: Path) -> bool:
    return _is_number(folder.name)
