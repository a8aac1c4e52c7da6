"""Dumping as of old: which calls a script means, and how msprobe's records of them become its files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msprobe.adapter import Adapter
from msprobe.analyse.match import places
from msprobe.capture.debugger import Debugger
from msprobe.capture.overflow import OverflowRecorder
from msprobe.capture.overflow_limit import Limit
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

MODES = ["all", "list", "range", "stack", "acl", "api_list", "api_stack"]
SWITCHES = ("ON", "OFF")
OVERFLOW = "overflow_check"  # no mode of a switch; there a single number counts, which has no dimension

_PREFIXES = frozenset({"Functional", "Tensor", "Torch", "VF", "NPU"})  # of all calls the old format can name
_SCOPE = "set_dump_switch, scope param set invalid, "
_NO_APIS = "Current dump mode is 'api_list', but the content of api_list parameter is empty or valid."


class Order(Scope):
    """Sees every call from register_hook on, so that they are counted; while it is not ON none is dumped."""

    def __init__(self, mode: Any, scope: Any, api_list: Any, filter_switch: Any, dump_mode: Any) -> None:
        """The arguments of set_dump_switch; every mistake in them is told."""
        demand(mode in MODES, f"Current mode '{mode}' is not supported. Please use the field in {MODES}")
        demand(filter_switch in SWITCHES, "Please set filter_switch with 'ON' or 'OFF'.")
        is_direction = dump_mode in ("all", "forward", "backward")
        demand(is_direction, "Please set dump_mode with 'all' or 'forward' or 'backward'.")
        for word, given in (("scope", scope), ("api_list", api_list)):
            is_list = isinstance(given, (list, tuple)) and all(isinstance(one, str) and one for one in given)
            demand(is_list, f"set_dump_switch, {word} is {given!r}; it must be a list of names.")
        count = len(scope)
        demand(mode != "list" or count, f"{_SCOPE}it's should not be an empty list.")
        demand(mode != "range" or count == 2, f"{_SCOPE}it's must be [start, end].")
        demand(mode != "stack" or count <= 2, f"{_SCOPE}it's must be [start, end] or [].")
        demand(mode != "acl" or count == 1, f"{_SCOPE}only one api name is supported in acl mode.")
        demand(mode != "api_list" or api_list, _NO_APIS)
        is_range = mode == "range" or (mode == "stack" and count == 2)
        for one in scope if is_range or mode == "acl" else ():
            demand(is_call(one), f"{_SCOPE}'{one}' is no name of a call, such as Tensor_abs_1_forward.")
        named = [ours(one) for one in scope]
        if mode == "api_list":
            named = [f".{api.lower()}." for api in api_list]
        is_list = mode in ("list", "stack", "api_list") and not is_range
        super().__init__(named if is_range else (), named if is_list else (), [dump_mode])
        self.mode = mode
        self.everything = filter_switch == "OFF"  # integers, booleans and plain values are dumped, too
        self.is_on = True
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


class EveryOverflow(Limit):
    """Counts as the old tool did: each call that gives NaN or an infinity, whoever has made it."""

    def count(self, folder: object) -> int:
        return self.met

    def saved(self, path: Path | None) -> int:
        """`path` is None where it could not be."""
        return super().count(path)


class Mounted(GuardedSink, Task):
    """The task of a debugger, and where its records go: calls are counted, and dumped while it is ON."""

    saves_tensors = False

    def __init__(self, adapter: Adapter, stacks: Stacks, folder: Path, most: int | None) -> None:
        """`most`: so many overflows end training; None: calls are dumped whether they overflow or not."""
        super().__init__(folder)
        self.order = Order("all", (), (), "ON", "all")
        self.order.is_on = False
        self._is_overflow = most is not None
        self._limit = EveryOverflow(-1 if most is None else most)
        self._path: Path | None = None  # of the .pkl that records go to
        self._begun: set[Path] = set()  # dumps of this run, which adds to them
        self._stacks = stacks
        self._debugger = Debugger(adapter, Config(dump_path="."), stacks, task=self)
        self._debugger.start()

    def recorder(self, opening: Opening) -> Recorder:
        plan = opening.plan._replace(fills=lambda leaf: self.order.wants(leaf))
        parts = (opening.adapter, self, self.order, opening.stacks, plan)
        self._recorder = OverflowRecorder(*parts, self._limit) if self._is_overflow else Recorder(*parts)
        return self._recorder

    def end_training(self) -> None:
        self._limit.end_training()

    def start(self, order: Order, path: Path | None = None) -> None:
        """From here on these calls are dumped to this .pkl; without one, each to a dump of its own."""
        self.stop()
        if path is not None:
            try:
                self._aim(path)
            except OSError as error:
                why = f"{error.filename or path} cannot be written: {error.strerror or error}."
                raise CompareException(f"set_dump_switch: {why}", INVALID_PATH) from error
        self.order = self._recorder.scope = order

    def stop(self) -> None:
        """Calls are counted on; what waits on a device is written."""
        was_on, self.order.is_on = self.order.is_on, False
        with self._recorder.guarded("fetch the last statistics"):
            self._recorder.settle()
        if was_on and self.order.mode == "list":
            logger().info("The number of matched dump is %d", self.order.matched)

    def release(self) -> None:
        """Whoever dumps here again begins anew; a call of another thread that ends now is lost."""
        self._path = None
        self._begun.clear()

    def close(self) -> None:
        self._debugger.close()

    def append(self, record: Record) -> None:
        # What raised gave nothing, and what checkpointing runs again has its lines.
        if "exception" not in record.fields and not record.fields.get("is_recompute"):
            super().append(record)

    def _aim(self, path: Path) -> None:
        """Begin a dump, and replace what lay there; no link on the way to it is followed."""
        if path not in self._begun:
            make_below(path.parents[2], path.parent)
            data = path.with_suffix("")
            if data.is_symlink():
                data.unlink()
            for old in data.glob("*.npy"):
                old.unlink()
            write_whole(path, [])
            self._begun.add(path)
        self.folder, self._path = path.parent, path

    def _write(self, record: Record) -> None:
        if not self._is_overflow:
            self._dump(record)
            return
        stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime())
        path = self.folder / f"Overflow_info_{stamp}_{self._limit.met + 1}{SUFFIX}"
        try:
            self._aim(path)
            self._dump(record)
        except OSError:
            self._limit.saved(None)
            raise
        told = f"module name :'{call_text(record.name)}' is overflow and dump file is saved in '{path}'."
        logger().warning("[overflow %d times]: %s", self._limit.saved(path), told)

    def _dump(self, record: Record) -> None:
        path, mode = self._path, self.order.mode
        assert path is not None
        lines = list(self._lines(record, path.with_suffix("")))
        if mode not in ("all", "api_list"):
            lines.insert(len(lines) if mode == "api_stack" else 0, self._stack(record))
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
                line = [text, 101 if self._is_overflow else 1, [], *described(leaf)]  # 101: no statistics
                yield line[:5] if self._is_overflow else line

    def _stack(self, record: Record) -> list[Any]:
        """Where the call was made; of gradients, where backward was."""
        stack = record.stack or self._stacks.here().stack
        return [f"{call_text(record.name)}_{STACK}", list(map(Frame.parse, stack.frames))]
