"""Folders that a kernel dump of CANN or of MindSpore leaves behind: whose data a file is, told by its path.

{dump_path}/{time}/{device}/{model}/{op_type}.{op_name}.{task}.{stream}.{timestamp}
dump/output/20230131172437/1/0/Add.Add.45.0.1675157077183551
"""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msprobe.errors import RecordingError
from msprobe.store.layout import open_regular

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

STATISTICS_FILE = "statistic.csv"
_NAMES_FILE = "mapping.csv"
_RANK = re.compile(r"rank_([0-9]{1,9})")
_TENSOR = re.compile(
    r"([^./]+)\.([^/]+)\.([0-9]+)\.([0-9]+)\.([0-9]+)\.(input|output)\.([0-9]+)\.([^./]+)\.([^./]+)\.npy"
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


class KernelStatistics(NamedTuple):
    """A line of a statistic.csv."""

    slot: KernelSlot
    timestamp: int
    dtype: str
    shape: str
    values: tuple[float | None, float | None, float | None, float | None]  # max, min, mean and norm
    path: Path


def kernel_folders(dump_path: Path) -> list[KernelFolder]:
    """Where the kernels of each rank, graph and step lie."""
    found = []
    for rank_folder in _folders(dump_path):
        rank = _RANK.fullmatch(rank_folder.name)
        for net in _folders(rank_folder) if rank is not None else ():
            for graph in filter(_is_numbered, _folders(net)):
                for step in filter(_is_numbered, _folders(graph)):
                    number = int(rank[1]) if rank is not None else 0
                    found.append(KernelFolder(number, int(step.name), net.name, int(graph.name), step))
    return sorted(found)


def kernel_tensors(folder: KernelFolder) -> list[KernelTensor]:
    """The tensors in a folder, in the order in which they were written."""
    names = _long_names(folder.path / _NAMES_FILE)
    found = []
    with os.scandir(folder.path) as entries:
        for entry in entries:
            name = _TENSOR.fullmatch(names.get(entry.name, entry.name))
            if name is not None and entry.is_file(follow_symlinks=False):
                _, op_name, task, _, timestamp, side, slot, _, _ = name.groups()
                place = KernelSlot(folder.net, folder.graph, op_name, int(task), side, int(slot))
                found.append(KernelTensor(place, int(timestamp), Path(entry.path)))
    return sorted(found, key=lambda tensor: (tensor.timestamp, tensor.slot))


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
            found.append(
                KernelStatistics(slot, int(row["Timestamp"]), row["Data Type"], row["Shape"], values, path)
            )
        except (KeyError, ValueError, TypeError) as problem:
            raise RecordingError(f"{path}, line {number}: it cannot be understood: {problem}.") from None
    return found


def _value(text: str | None) -> float | None:
    return float(text) if text else None


def _long_names(path: Path) -> dict[str, str]:
    """The name that a file would have, by the one that it has."""
    found = {}
    for row in _csv_rows(path):
        whole = next((cell for cell in row if _TENSOR.fullmatch(cell)), None)
        for cell in row if whole is not None else ():
            found[cell if cell.endswith(".npy") else f"{cell}.npy"] = whole or ""
    return found


def _csv(path: Path) -> Iterator[dict[str, str]]:
    rows = _csv_rows(path)
    header = next(rows, [])
    for row in rows:
        yield dict(zip(header, row, strict=False))


def _csv_rows(path: Path) -> Iterator[list[str]]:
    if not path.is_file():
        return
    with os.fdopen(open_regular(path), "r", newline="", encoding="utf-8-sig", errors="replace") as stream:
        yield from itertools.islice((row for row in csv.reader(stream) if row), _MOST_LINES)


def _folders(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_numbered(folder: Path) -> bool:
    return _is_number(folder.name)
