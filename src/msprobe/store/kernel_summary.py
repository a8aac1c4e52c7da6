"""What is made of the tensors of kernels after MindSpore wrote them: statistics, and one step of several."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msprobe import kernels
from msprobe.errors import MsprobeError
from msprobe.log import logger
from msprobe.store.kernels_dir import (
    NAMES_FILE,
    STATISTICS_COLUMNS,
    STATISTICS_FILE,
    KernelFolder,
    KernelTensor,
    csv_rows,
    kernel_tensors,
    read_kernel_tensor,
)
from msprobe.store.layout import PREVIOUS, make_below, write_whole
from msprobe.store.tensor_file import StoredTensor, as_float

Values = tuple[float | bool | None, ...]


def described(tensor: StoredTensor) -> Values:
    """max, min, mean and norm; of truth values, as the specified table has it, the last two as of 0 and 1."""
    found = kernels.statistics_of(as_float(tensor.array, tensor.dtype))[:4]
    if tensor.dtype == "bool":
        return (*found[:2], *kernels.statistics_of(tensor.array.view("uint8"))[2:4])
    return tuple(found)


def summarise(folder: KernelFolder) -> None:
    """Add the tensors of a folder to its statistic.csv, and remove them."""
    tensors = kernel_tensors(folder)
    if not tensors:
        return
    path = folder.path / STATISTICS_FILE
    lines = list(csv_rows(path)) or [list(STATISTICS_COLUMNS)]
    _write(path, [*lines, *map(_line, tensors)])
    for tensor in tensors:
        tensor.path.unlink()
    (folder.path / NAMES_FILE).unlink(missing_ok=True)


def _line(tensor: KernelTensor) -> list[str]:
    slot = tensor.slot
    first = [tensor.op_type, slot.op_name, slot.task, tensor.stream, tensor.timestamp, slot.side, slot.slot]
    try:
        read = read_kernel_tensor(tensor)
        shape = ",".join(map(str, read.array.shape))
        numbers = ("" if value is None else value + 0 for value in described(read))
        rest = [read.array.nbytes, read.dtype, f"({shape})", *numbers]
    except MsprobeError as problem:
        logger().warning("a tensor of a kernel has no statistics: %s", problem)
        rest = [tensor.path.stat().st_size, tensor.dtype.lower(), "", "", "", "", ""]
    return list(map(str, (*first, *rest)))


def join(folders: Sequence[KernelFolder], step: int) -> None:
    """Have what lies in these folders, each of its own graph, lie at one step."""
    for folder in folders:
        target = folder.path.with_name(str(step))
        target.mkdir(mode=0o700, exist_ok=True)
        for name, header in ((STATISTICS_FILE, 1), (NAMES_FILE, 0)):
            before, more = (list(csv_rows(place / name)) for place in (target, folder.path))
            if more:
                _write(target / name, [*before, *(more[header:] if before else more)])
                (folder.path / name).unlink()
        for path in list(folder.path.iterdir()):
            os.rename(path, target / path.name)
        folder.path.rmdir()


def remove(folders: Sequence[KernelFolder]) -> None:
    for folder in folders:
        for path in list(folder.path.iterdir()):
            path.unlink()
        folder.path.rmdir()


def set_aside(dump_path: Path, rank: int, net: str) -> None:
    """What an earlier run left where this one will write; in one folder nobody could tell them apart."""
    folder = dump_path / f"rank_{rank}" / net
    if not os.path.lexists(folder):
        return
    stamp = f"{time.strftime('%Y%m%d%H%M%S')}_{os.getpid()}"
    place = make_below(dump_path, dump_path / PREVIOUS / stamp / folder.parent.name)
    os.rename(folder, place / net)
    logger().warning("%s held the kernels of an earlier run; they are now in %s.", folder, place)


def _write(path: Path, rows: Iterable[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_whole(path, [text.getvalue().encode()])
