"""Dumping as of old: what a switch asks for, and how msprobe's records of it become old files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msprobe.analyse.match import places
from msprobe.capture.scope import Scope
from msprobe.capture.switched import Switched
from msprobe.log import logger
from msprobe.record import Filled, Frame, Leaf, Record, number_type
from msprobe.store.dtypes import number_data
from msprobe.store.layout import append_to, clear, make_below, write_whole
from msprobe.store.tensor_file import encode_npy
from ptdbg_ascend.old_files import STACK, SUFFIX, call_text, described, line_text

OVERFLOW = "overflow_check"  # no mode of a switch; there a single number counts, which has no dimension


class Order(NamedTuple):
    """What a switch asks for."""

    mode: str
    named: Sequence[str] = ()  # calls, as msprobe calls them
    side: str = "all"
    whole: bool = False  # not only tensors of floating point are dumped

    def scope(self) -> Scope:
        ends = self.named if self.mode in ("range", "stack") and len(self.named) == 2 else ()
        return Scope(ends, () if ends else self.named, [self.side])

    def wants(self, leaf: Leaf) -> bool:
        """What filter_switch lets pass: tensors of floating point that have a dimension and an element."""
        if self.mode == "stack":
            return False
        if not leaf.is_tensor or leaf.type == "numpy.ndarray":  # which the old tool did not look at
            return self.whole and leaf.type in ("bool", "int", "float", "slice")
        is_float = number_type(leaf.dtype).startswith(("float", "bfloat"))
        has_element = 0 not in (leaf.shape or ()) and (bool(leaf.shape) or self.mode == OVERFLOW)
        return self.whole or (is_float and has_element)


class Dump(Switched):
    """Writes each call to the .pkl of the present order; one that overflows, to a .pkl of its own."""

    def __init__(self, folder: Path, most: int | None = None) -> None:
        super().__init__(folder, most)
        self._order = Order("all")
        self._matched = 0  # calls that were dumped since ON
        self._begun: set[Path] = set()  # dumps of this run, which adds to them

    def wants(self, leaf: Leaf) -> bool:
        return self._order.wants(leaf)

    def start(self, order: Order, path: Path | None = None) -> None:
        """From here on these calls are dumped to this .pkl; without one, each to a dump of its own."""
        self.stop()
        if path is not None:
            self._begin(path)
            self.folder, self._path = path.parent, path
        self._order, self._matched = order, 0
        self.switch_on(order.scope())

    def stop(self, *, anew: bool = False) -> None:
        """`anew`: who dumps to the same files from here on replaces them."""
        was_on = self.is_on
        self.switch_off()
        if was_on and self._order.mode == "list":
            logger().info("The number of matched dump is %d", self._matched)
        if anew:
            self._begun.clear()

    def _begin(self, path: Path) -> None:
        if path not in self._begun:
            make_below(path.parents[2], path.parent)
            clear(path.with_suffix(""), ".npy")
            write_whole(path, [])
            self._begun.add(path)

    def _write(self, record: Record) -> None:
        if "exception" in record.fields or record.fields.get("is_recompute"):
            return  # what raised gave nothing, and what checkpointing runs again has its lines
        name, number = call_text(record.name), 0 if self.limit is None else self.limit.met + 1
        if number:
            stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime())
            self._path, self.place = self.folder / f"Overflow_info_{stamp}_{number}{SUFFIX}", None
            self._begin(self._path)
        mode, lines = self._order.mode, list(self._lines(record, self._path.with_suffix("")))
        if record.stack is not None and mode not in ("all", "api_list"):
            line = [f"{name}_{STACK}", list(map(Frame.parse, record.stack.frames))]
            lines.insert(len(lines) if mode == "api_stack" else 0, line)
        append_to(self._path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
        self.place, self._matched = self._path, self._matched + 1
        if number:
            told = "[overflow %d times]: module name :'%s' is overflow and dump file is saved in '%s'."
            logger().warning(told, number, name, self.place)

    def _lines(self, record: Record, data: Path) -> Iterator[list[Any]]:
        """The lines of its positional arguments and of its outputs, whose tensors are saved first."""
        outputs = len(record.fields.get("output") or ())
        for place in places(record):
            leaf = place.leaf
            in_order = all(part.isdecimal() for part in place.slot.split(".")[1:])  # no keyword, in no dict
            if leaf is not None and in_order and self.wants(leaf):
                text = line_text(record.name, place.slot, outputs)
                content = leaf.content if isinstance(leaf, Filled) else number_data(leaf.value)
                if content is not None:
                    write_whole(make_below(data.parent, data) / f"{text}.npy", encode_npy(content))
                *kind, summary = described(leaf)
                yield [text, 1, [], *kind, summary] if self.limit is None else [text, 101, [], *kind]
