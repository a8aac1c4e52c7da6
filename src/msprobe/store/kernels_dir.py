"""Folders that a kernel dump of CANN leaves behind: whose data a file is, told by its path.

{dump_path}/{time}/{device}/{model}/{op_type}.{op_name}.{task}.{stream}.{timestamp}
dump/output/20230131172437/1/0/Add.Add.45.0.1675157077183551
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msprobe.errors import RecordingError

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
