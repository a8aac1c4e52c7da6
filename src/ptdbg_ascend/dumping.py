"""Dumping as of old: which calls a script means, and how msprobe's records of them become its files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.analyse.match import places
from msprobe.capture.debugger import Debugger
from msprobe.capture.overflow import OverflowRecorder
from msprobe.capture.overflow_limit import Limit
from msprobe.capture.overflow_verdict import VERDICTS
from msprobe.capture.recorder import Recorder
from msprobe.capture.scope import Scope
from msprobe.capture.stacks import Stacks
from msprobe.capture.tasks import Opening, Task
from msprobe.config import Config
from msprobe.log import logger
from msprobe.name import CallName
from msprobe.record import Filled, Frame, Leaf, Record, number_type
from msprobe.store.dtypes import number_data
from msprobe.store.guarded import GuardedSink
from msprobe.store.layout import append_to, make_below, write_whole
from msprobe.store.tensor_file import encode_npy
from ptdbg_ascend.failure import INVALID_PATH, CompareException, demand
from ptdbg_ascend.old_files import STACK, SUFFIX, call_text, described, is_call, line_text, ours

if TYPE_CHECKING:
    from msprobe.pytorch.adapter import TorchAdapter

MODES = ["all", "list", "range", "stack", "acl", "api_list", "api_stack"]
SWITCHES = ("ON", "OFF")
OVERFLOW = "overflow_check"  # no mode of a switch; there a single number counts, which has no dimension

_PREFIXES = frozenset({"Functional", "Tensor", "Torch", "VF", "NPU"})  # of all calls the old format can name
_SCOPE = "set_dump_switch, scope param set invalid, "
_COUNTS = {  # of the names that a mode takes as scope
    "list": (1, 1 << 30, "it's should not be an empty list."),
    "range": (2, 2, "it's must be [start, end]."),
    "stack": (0, 2, "it's must be [start, end] or []."),
    "acl": (1, 1, "only one api name is supported in acl mode."),
}
_NO_APIS = "Current dump mode is 'api_list', but the content of api_list parameter is empty or valid."


class Order(Scope):
    """Sees every call from register_hook on, so that they are counted; while it is not ON none is dumped."""

    def __init__(
        self,
        mode: Any = "all",
        scope: Any = (),
        api_list: Any = (),
        filter_switch: Any = "ON",
        dump_mode: Any = "all",
        is_on: bool = True,
    ) -> None:
        """The arguments of set_dump_switch; every mistake in them is told."""
        demand(filter_switch in SWITCHES, "Please set filter_switch with 'ON' or 'OFF'.")
        is_direction = dump_mode in ("all", "forward", "backward")
        demand(is_direction, "Please set dump_mode with 'all' or 'forward' or 'backward'.")
        for word, given in (("scope", scope), ("api_list", api_list)):
            is_list = isinstance(given, (list, tuple)) and all(isinstance(one, str) and one for one in given)
            demand(is_list, f"set_dump_switch, {word} is {given!r}; it must be a list of names.")
        least, most, why = _COUNTS.get(mode, (0, 1 << 30, ""))
        demand(least <= len(scope) <= most, _SCOPE + why)
        demand(mode != "api_list" or api_list, _NO_APIS)
        is_range = mode in ("range", "stack") and len(scope) == 2
        for one in scope if is_range or mode == "acl" else ():
            demand(is_call(one), f"{_SCOPE}'{one}' is no name of a call, such as Tensor_abs_1_forward.")
        named = [f".{api.lower()}." for api in api_list] if mode == "api_list" else list(map(ours, scope))
        is_list = mode in ("list", "stack", "api_list") and not is_range
        super().__init__(named if is_range else (), named if is_list else (), [dump_mode])
        self.mode = mode
        self.everything = filter_switch == "OFF"  # integers, booleans and plain values are dumped, too
        self.is_on = is_on
        self.matched = 0  # calls that were dumped

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
            return self.everything and leaf.type in ("bool", "int", "float", "slice")
        is_float = number_type(leaf.dtype).startswith(("float", "bfloat"))
        has_element = 0 not in (leaf.shape or ()) and (bool(leaf.shape) or self.mode == OVERFLOW)
        return self.everything or (is_float and has_element)


class Dump(GuardedSink, Task):
    """The task of a debugger, and where its records go: calls are counted, and dumped while it is ON."""

    saves_tensors = False

    def __init__(self, adapter: TorchAdapter, folder: Path, most: int | None) -> None:
        """`most`: so many overflows end training; None: calls are dumped whether they overflow or not."""
        super().__init__(folder)
        self.order = Order(is_on=False)
        self._limit = None if most is None else Limit(most, VERDICTS)
        self._begun: set[Path] = set()  # dumps of this run, which adds to them
        own = os.path.dirname(__file__) + os.sep
        self._stacks = Stacks((*adapter.hidden_files, own), adapter.frame_groups)
        self._debugger = Debugger(adapter, Config(dump_path="."), self._stacks, task=self)
        self._debugger.start()

    def recorder(self, opening: Opening) -> Recorder:
        plan = opening.plan._replace(fills=lambda leaf: self.order.wants(leaf))
        parts = (opening.adapter, self, self.order, opening.stacks, plan)
        self._recorder = Recorder(*parts) if self._limit is None else OverflowRecorder(*parts, self._limit)
        return self._recorder

    def end_training(self) -> None:
        if self._limit is not None:
            self._limit.end_training()

    def start(self, order: Order, path: Path | None = None) -> None:
        """From here on these calls are dumped to this .pkl; without one, each to a dump of its own."""
        self.stop()
        if path is not None:
            try:
                self._begin(path)
            except OSError as error:
                why = f"{error.filename or path} cannot be written: {error.strerror or error}."
                raise CompareException(f"set_dump_switch: {why}", INVALID_PATH) from error
            self.folder, self.place = path.parent, path
        self.order = self._recorder.scope = order

    def stop(self) -> None:
        """Calls are counted on; what waits on a device is written."""
        was_on, self.order.is_on = self.order.is_on, False
        with self._recorder.guarded("fetch the last statistics"):
            self._recorder.settle()
        if was_on and self.order.mode == "list":
            logger().info("The number of matched dump is %d", self.order.matched)

    def renew(self) -> None:
        """Whoever dumps to the same files from here on begins anew."""
        self.stop()
        self._begun.clear()

    def close(self) -> None:
        self._debugger.close()

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
        if self._limit is None:
            assert self.place is not None
            self._dump(record, self.place)
            return
        self.place, number = None, self._limit.met + 1
        stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime())
        path = self.folder / f"Overflow_info_{stamp}_{number}{SUFFIX}"
        self._begin(path)
        self._dump(record, path)
        self.place = path
        told = f"module name :'{call_text(record.name)}' is overflow and dump file is saved in '{path}'."
        logger().warning("[overflow %d times]: %s", number, told)

    def _dump(self, record: Record, path: Path) -> None:
        mode, lines = self.order.mode, list(self._lines(record, path.with_suffix("")))
        if mode not in ("all", "api_list"):
            stack = record.stack or self._stacks.here().stack  # of gradients, where backward was called
            line = [f"{call_text(record.name)}_{STACK}", list(map(Frame.parse, stack.frames))]
            lines.insert(len(lines) if mode == "api_stack" else 0, line)
        append_to(path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
        self.order.matched += 1

    def _lines(self, record: Record, data: Path) -> Iterator[list[Any]]:
        """The lines of its positional arguments and of its outputs, whose tensors are saved first."""
        outputs = len(record.fields.get("output") or ())
        for place in places(record):
            leaf = place.leaf
            in_order = all(part.isdecimal() for part in place.slot.split(".")[1:])  # no keyword, in no dict
            if leaf is not None and in_order and self.order.wants(leaf):
                text = line_text(record.name, place.slot, outputs)
                content = leaf.content if isinstance(leaf, Filled) else number_data(leaf.value)
                if content is not None:
                    write_whole(make_below(data.parent, data) / f"{text}.npy", encode_npy(content))
                dtype, shape, summary = described(leaf)
                yield (
                    [text, 1, [], dtype, shape, summary]
                    if self._limit is None
                    else [text, 101, [], dtype, shape]
                )
