"""Writing old dumps: the records of msprobe's recorder become lines of a .pkl and .npy files beside it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from msprobe.analyse.match import places
from msprobe.capture.overflow_limit import Limit
from msprobe.capture.stacks import Stacks
from msprobe.log import logger
from msprobe.record import Deferred, Filled, Leaf, Record
from msprobe.store.dtypes import TensorData
from msprobe.store.layout import append_whole, make_below, open_new
from msprobe.store.tensor_file import encode_npy
from msprobe.store.tensor_folder import Folder
from msprobe.store.troubles import Told, Troubles
from ptdbg_ascend.modes import Order
from ptdbg_ascend.names import NUMBERS, STACK, call_text, line_text, old_frame
from ptdbg_ascend.old_files import NO_SUMMARY, SUFFIX

_STEP = 1  # the second field of a line that has statistics


class _Dump:
    """One .pkl and its folder; what lay there before is replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        folder = path.with_suffix("")
        if folder.is_symlink():
            folder.unlink()
        for old in folder.glob("*.npy") if folder.is_dir() else ():
            old.unlink()
        self._folder = Folder(folder)
        self._descriptor = open_new(path, os.O_APPEND | os.O_TRUNC)

    def append(self, lines: list[list[Any]]) -> None:
        """Write whole lines, at once and for good, or none of them."""
        text = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        append_whole(self._descriptor, text)

    def save(self, name: str, content: TensorData) -> None:
        self._folder.write(f"{name}.npy", encode_npy(content))

    def close(self) -> None:
        os.close(self._descriptor)
        self._folder.close()


class OldWriter:
    """Takes records in the place of msprobe's Writer. Whatever the disk does, training goes on."""

    is_open = True
    tensors = None  # contents come with their leaves

    def __init__(self, stacks: Stacks) -> None:
        self.folder = Path()  # of the rank
        self.records = 0
        self.lost = 0
        self.matched = 0  # records of the last order
        self.order = Order()
        self._stacks = stacks
        self._dumps: dict[Path, _Dump] = {}  # of this run, which adds to them
        self._dump: _Dump | None = None
        self._troubles = Troubles(Told())
        self._process = os.getpid()

    def aim(self, order: Order, path: Path, root: Path) -> None:
        """From here on records go to this .pkl, which is made; below `root` no link is followed to it."""
        if path not in self._dumps:
            make_below(root, path.parent)
            self._dumps[path] = _Dump(path)
        self.order, self.folder, self._dump = order, path.parent, self._dumps[path]
        self.matched = 0

    def needs_content(self, leaf: Leaf) -> bool:
        return self.order.mode != "stack" and self.order.wants(leaf)

    def append(self, record: Record) -> None:
        # What raised gave nothing, and what checkpointing runs again has its lines.
        if os.getpid() != self._process or "exception" in record.fields or record.fields.get("is_recompute"):
            return
        try:
            self._write(record)
        except Exception as error:  # noqa: BLE001 - recording must never stop training
            self.lost += 1
            self.tell(f"write the dump of {record.name}", error)
        else:
            self.records += 1
            self.matched += 1

    def _write(self, record: Record) -> None:
        assert self._dump is not None
        mode = self.order.mode
        lines = [] if mode == "stack" else list(self._lines(self._dump, record))
        if mode not in ("all", "api_list"):
            lines.insert(len(lines) if mode == "api_stack" else 0, self._stack(record))
        self._dump.append(lines)

    def _lines(self, dump: _Dump, record: Record) -> Iterator[list[Any]]:
        """The lines of its positional arguments and of its outputs, whose tensors are saved first."""
        fields = {key: tree for key, tree in record.fields.items() if key != "input_kwargs"}
        outputs = len(fields.get("output") or ())
        for place in places(record._replace(fields=fields)):
            leaf = place.leaf
            in_order = all(part.isdecimal() for part in place.slot.split(".")[1:])  # not by name, in a dict
            if leaf is not None and in_order and self.order.wants(leaf):
                text = line_text(record.name, place.slot, outputs)
                content = leaf.content if isinstance(leaf, Filled) else _number(leaf)
                if content is not None:
                    dump.save(text, content)
                yield self._line(text, leaf)

    def _line(self, text: str, leaf: Leaf) -> list[Any]:
        if not leaf.is_tensor:
            value = [] if leaf.type == "slice" else leaf.value
            return [text, _STEP, [], f"<class '{leaf.type}'>", "[]", [value] * 3]
        return [text, _STEP, [], leaf.dtype, list(leaf.shape or ()), _summary(leaf)]

    def _stack(self, record: Record) -> list[Any]:
        """Where the call was made; of gradients, where backward was."""
        stack = record.stack or self._stacks.here().stack
        return [f"{call_text(record.name)}_{STACK}", [list(old_frame(frame)) for frame in stack.frames]]

    def publish(self, left_out: Mapping[str, int] | None = None) -> None:
        """Nothing waits: every line was written when its call ended."""

    def tell(self, doing: str, error: BaseException) -> None:
        self._troubles.could_not(doing, self.folder, error)

    def close(self) -> None:
        self._dump = None  # a call of another thread may still end, and its number may be another file's
        while self._dumps:
            self._dumps.popitem()[1].close()


def _number(leaf: Leaf) -> TensorData | None:
    """The content of a plain value, if it is a number that numpy has a type for."""
    value = np.asarray(leaf.value)
    is_number = leaf.type in NUMBERS and value.dtype.kind in "bif"
    return TensorData(value.tobytes(), value.dtype.name, ()) if is_number else None


def _summary(leaf: Leaf) -> list[Any]:
    """Max, min and mean as the old files have them: none of an empty tensor, nor of one of booleans."""
    stats = leaf.stats.statistics if isinstance(leaf.stats, Deferred) else leaf.stats
    numbers = stats[:3] if stats is not None else (None,)
    return [[], [], []] if None in numbers else [float(number) for number in numbers if number is not None]


class EveryOverflow(Limit):
    """Counts as the old tool did: each call that gives NaN or an infinity, whoever has made it."""

    def count(self, folder: object) -> int:
        return self.met

    def saved(self, path: Path) -> int:
        return super().count(path)


class OverflowWriter(OldWriter):
    """Gives each overflowing call a dump of its own, without statistics."""

    def __init__(self, stacks: Stacks, limit: EveryOverflow, root: Path, folder: Path) -> None:
        super().__init__(stacks)
        self.folder = folder
        self._root = root
        self._limit = limit

    def _write(self, record: Record) -> None:
        make_below(self._root, self.folder)
        stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime())
        dump = _Dump(self.folder / f"Overflow_info_{stamp}_{self._limit.met + 1}{SUFFIX}")
        try:
            dump.append([self._stack(record), *self._lines(dump, record)])
        finally:
            dump.close()
        count, name = self._limit.saved(dump.path), call_text(record.name)
        told = f"module name :'{name}' is overflow and dump file is saved in '{dump.path}'."
        logger().warning("[overflow %d times]: %s", count, told)

    def _line(self, text: str, leaf: Leaf) -> list[Any]:
        return [text, NO_SUMMARY, *super()._line(text, leaf)[2:5]]
