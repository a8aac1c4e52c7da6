"""The tensors of calls that wait for a worker, in files that the worker reads as those of a recording."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from pathlib import Path
from typing import cast

from msprobe.errors import UsageError
from msprobe.online.message import Received, each_leaf
from msprobe.record import Leaf, Record
from msprobe.store.layout import TENSOR_FOLDER, make_below, open_new
from msprobe.store.tensor_file import encode_pt

_MOST_KEPT = 8 << 30  # bytes
_FILE = 1 << 12  # bytes that a file takes on disk beside what is in it


class Spooled:
    """A record whose tensors are in files, as long as somebody holds it."""

    def __init__(self, record: Record, files: list[str], size: int, weight: int) -> None:
        self.record = record
        self.files = files
        self.size = size  # on disk
        self.weight = weight  # in memory
        self.holders = 1


class Spool:
    """A folder of its own below the output folder, which one checker has at a time."""

    def __init__(self, out: Path, ranks: int = 1) -> None:
        self.folder = out / ".online_spool"
        self._holding = threading.Lock()
        self._lock = os.open(_made(out / ".online.lock"), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UsageError(
                f"Another online check writes to {out}; end it, or name another folder with -o."
            ) from None
        shutil.rmtree(self.folder, ignore_errors=True)  # what a killed checker left
        self._tensors = make_below(out, self.folder / TENSOR_FOLDER)
        self.room = min(_MOST_KEPT, shutil.disk_usage(out).free // (4 * ranks))  # bytes that a rank may keep

    def put(self, key: str, received: Received) -> Spooled:
        """Write the tensors of a call; whoever called this holds it."""
        names = {name: f"{key}-{received.sequence}-{place}.pt" for place, name in enumerate(received.tensors)}
        files = list(names.values())
        try:
            for name, tensor in received.tensors.items():
                with os.fdopen(open_new(self._tensors / names[name]), "wb") as stream:
                    stream.writelines(cast("list[bytes]", encode_pt(tensor)))
        except BaseException as error:
            self._remove(files)
            if isinstance(error, OSError):  # a full disk does not say where
                error.filename = str(self._tensors)
            raise

        def renamed(leaf: Leaf) -> Leaf:
            return leaf if leaf.data_name is None else leaf._replace(data_name=names[leaf.data_name])

        record = received.record
        fields = {field: each_leaf(tree, renamed) for field, tree in record.fields.items()}
        size = received.size + _FILE * len(files)
        return Spooled(record._replace(fields=fields), files, size, received.weight)

    def hold(self, spooled: Spooled) -> None:
        with self._holding:
            spooled.holders += 1

    def release(self, spooled: Spooled) -> None:
        with self._holding:
            spooled.holders -= 1
            if spooled.holders:
                return
        self._remove(spooled.files)

    def _remove(self, files: list[str]) -> None:
        for name in files:
            with contextlib.suppress(OSError):
                (self._tensors / name).unlink()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def _made(path: Path) -> Path:
    os.close(open_new(path))
    return path
