"""Dumping as of old: which calls a switch means, and how msprobe's records of them become old files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msprobe.analyse.match import places
from msprobe.capture.overflow import OverflowRecorder
from msprobe.capture.overflow_limit import Limit
from msprobe.capture.overflow_verdict import VERDICTS
from msprobe.capture.recorder import Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.tasks import Opening, Task
from msprobe.log import logger
from msprobe.name import CallName
from msprobe.record import Filled, Frame, Leaf, Record, number_type
from msprobe.store.dtypes import number_data
from msprobe.store.guarded import GuardedSink
from msprobe.store.layout import append_to, make_below, write_whole
from msprobe.store.tensor_file import encode_npy
from ptdbg_ascend.old_files import STACK, SUFFIX, call_text, described, line_text

_PREFIXES = frozenset({"Functional", "Tensor", "Torch", "VF", "NPU"})  # of the calls that release 2.3 sees
OVERFLOW = "overflow_check"  # no mode of a switch; there a single number counts, which has no dimension


class Order(Scope):
    """Sees every call from register_hook on, so that they are counted; while it is not ON none is dumped."""

    is_on = False

    def __init__(self, mode: str, named: Sequence[str] = (), side: str = "all", whole: bool = False) -> None:
        """`named`: calls, as msprobe calls them; `whole`: not only tensors of floating point are dumped."""
        is_range = mode in ("range", "stack") and len(named) == 2
        super().__init__(named if is_range else (), () if is_range else named, [side])
        self.mode, self._whole = mode, whole

    def enter(self, name: CallName) -> bool:
        if not self.is_on:
            return self._refuse("made while dumping was OFF")
        if name.prefix not in _PREFIXES:
            return self._refuse("of a kind that the old format has no name for")
        return super().enter(name)

    def expects_backward(self, name: CallName) -> bool:
        return self.is_on and name.prefix in _PREFIXES and super().expects_backward(name)

    def wants(self, leaf: Leaf) -> bool:
        """What filter_switch lets pass: tensors of floating point that have a dimension and an element."""
        if self.mode == "stack":
            return False
        if not leaf.is_tensor or leaf.type == "numpy.ndarray":  # which the old tool did not look at
            return self._whole and leaf.type in ("bool", "int", "float", "slice")
        is_float = number_type(leaf.dtype).startswith(("float", "bfloat"))
        has_element = 0 not in (leaf.shape or ()) and (bool(leaf.shape) or self.mode == OVERFLOW)
        return self._whole or (is_float and has_element)


class Dump(GuardedSink, Task):
    """The task of a debugger, and where its records go: calls are counted, and dumped while it is ON."""

    saves_tensors = False

    def __init__(self, folder: Path, most: int | None) -> None:
        """`most`: so many overflows end training; None: calls are dumped whether they overflow or not."""
        super().__init__(folder)
        self._limit = None if most is None else Limit(most, VERDICTS)
        self._order = Order("all")
        self._matched = 0  # calls that were dumped since ON
        self._begun: set[Path] = set()  # dumps of this run, which adds to them

    def recorder(self, opening: Opening) -> Recorder:
        plan = opening.plan._replace(fills=lambda leaf: self._order.wants(leaf))
        parts = (opening.adapter, self, self._order, opening.stacks, plan)
        self._recorder = Recorder(*parts) if self._limit is None else OverflowRecorder(*parts, self._limit)
        self._stacks = opening.stacks
        return self._recorder

    def start(self, order: Order, path: Path | None = None) -> None:
        """From here on these calls are dumped to this .pkl; without one, each to a dump of its own."""
        self.stop()
        if path is not None:
            self._begin(path)
            self.folder, self._path = path.parent, path
        self._order = self._recorder.scope = order
        self._order.is_on, self._matched = True, 0

    def stop(self) -> None:
        """Calls are counted on; what waits on a device is written."""
        was_on, self._order.is_on = self._order.is_on, False
        with self._recorder.guarded("fetch the last statistics"):
            self._recorder.settle()
        if was_on and self._order.mode == "list":
            logger().info("The number of matched dump is %d", self._matched)

    def renew(self) -> None:
        """Who dumps to the same files from here on begins anew."""
        self.stop()
        self._begun.clear()

    def _begin(self, path: Path) -> None:
        """Begin a dump, and replace what lay there; no link on the way to it is followed."""
        if path in self._begun:
            return
        make_below(path.parents[2], path.parent)
        data = path.with_suffix("")
        if data.is_symlink():
            data.unlink()
        for old in data.glob("*.npy"):
            old.unlink()
        write_whole(path, [])
        self._begun.add(path)

    def _write(self, record: Record) -> None:
        if "exception" in record.fields or record.fields.get("is_recompute"):
            return  # what raised gave nothing, and what checkpointing runs again has its lines
        number = 0 if self._limit is None else self._limit.met + 1
        if number:
            stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime())
            self._path, self.place = self.folder / f"Overflow_info_{stamp}_{number}{SUFFIX}", None
            self._begin(self._path)
        mode, lines = self._order.mode, list(self._lines(record, self._path.with_suffix("")))
        if mode not in ("all", "api_list"):
            stack = record.stack or self._stacks.here().stack  # of gradients, where backward was called
            line = [f"{call_text(record.name)}_{STACK}", list(map(Frame.parse, stack.frames))]
            lines.insert(len(lines) if mode == "api_stack" else 0, line)
        append_to(self._path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
        self.place, self._matched = self._path, self._matched + 1
        if number:
            told = f"module name :'{call_text(record.name)}' is overflow and dump file is saved in"
            logger().warning("[overflow %d times]: %s '%s'.", number, told, self.place)

    def _lines(self, record: Record, data: Path) -> Iterator[list[Any]]:
        """The lines of its positional arguments and of its outputs, whose tensors are saved first."""
        outputs = len(record.fields.get("output") or ())
        for place in places(record):
            leaf = place.leaf
            in_order = all(part.isdecimal() for part in place.slot.split(".")[1:])  # no keyword, in no dict
            if leaf is not None and in_order and self._order.wants(leaf):
                text = line_text(record.name, place.slot, outputs)
                content = leaf.content if isinstance(leaf, Filled) else number_data(leaf.value)
                if content is not None:
                    write_whole(make_below(data.parent, data) / f"{text}.npy", encode_npy(content))
                *kind, summary = described(leaf)
                yield [text, 1, [], *kind, summary] if self._limit is None else [text, 101, [], *kind]
