"""What an old script has asked for so far: a path, a hook, a switch; and the debugger that does it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.config import load_acl_config
from msprobe.errors import HardwareError
from msprobe.log import logger
from msprobe.store.layout import is_plain_name
from ptdbg_ascend import __version__
from ptdbg_ascend.failure import INVALID_PATH, CompareException, demand
from ptdbg_ascend.modes import OVERFLOW, SWITCHES, OldScope, Order, order
from ptdbg_ascend.old_files import SUFFIX

if TYPE_CHECKING:
    from msprobe.pytorch.kernel_dump import KernelDump
    from ptdbg_ascend.mounting import Mounted

DUMP = "acc_cmp_dump"
DUMP_MODES = ["api", "acl"]

_OTHER_MODE = "mode='acl' belongs to register_hook(dump_mode='acl'), and every other mode to one without it."
_NO_GRADIENTS = "mode='acl' of a backward call needs set_backward_input before 'OFF': nothing was dumped."


class Session:
    """The old functions; each expects those before it, and says which one is missing."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._tag = "ptdbg_dump"
        self._rank = 0
        self._hook = ""
        self._mounted: Mounted | None = None
        self._acl_config: str | None = None
        self._kernels: KernelDump | None = None
        self._awaited = ""  # a backward call whose gradients set_backward_input will name
        self._is_seeded = False
        self._process = os.getpid()

    def seed_all(self, seed: int = 1234, mode: bool = False) -> None:
        """Fix every random state that training draws from; `mode` asks for deterministic algorithms."""
        from msprobe.pytorch import seed_all

        seed_all(seed, mode)
        self._is_seeded = True

    def set_dump_path(self, fpath: Any = None, dump_tag: Any = "ptdbg_dump") -> None:
        """Dump to `{folder of fpath}/{dump_tag}_v2.3/rank{N}/{name of fpath}`."""
        if not fpath or not isinstance(fpath, (str, os.PathLike)):
            raise RuntimeError(f"set_dump_path '{fpath}' error, please set a valid filename")
        path = Path(os.path.abspath(fpath))
        demand(not path.is_dir(), f"set_dump_path '{path}' error, please set a valid filename.", INVALID_PATH)
        is_name = isinstance(dump_tag, str) and is_plain_name(dump_tag)
        demand(is_name, f"set_dump_path, dump_tag is {dump_tag!r}; it must be the name of a folder.")
        self._path, self._tag = path, dump_tag

    # ---- register_hook ----

    @staticmethod
    def acc_cmp_dump(*_args: Any) -> None:
        """For register_hook: dump inputs and outputs of calls."""

    @staticmethod
    def overflow_check(*_args: Any) -> None:
        """For register_hook: dump the calls that give NaN or infinities."""

    def register_hook(
        self,
        model: Any,
        hook: Any,
        overflow_nums: Any = 1,
        dump_mode: Any = "api",
        dump_config: Any = None,
        rank: Any = None,
    ) -> None:
        """Follow the calls of this process from here on, for dumping or for finding overflows."""
        name = getattr(hook, "__name__", repr(hook))
        demand(hasattr(model, "named_modules"), "Please register hooks to nn.Module.")
        demand(name in (DUMP, OVERFLOW), f"register_hook takes {DUMP} or {OVERFLOW} as hook, not {name}.")
        for word, value, least in (("overflow_nums", overflow_nums, 1), ("rank", rank or 0, 0)):
            is_number = isinstance(value, int) and not isinstance(value, bool) and value >= least
            demand(is_number, f"register_hook, {word} is {value!r}; it must be a number from {least} on.")
        acl_config = _checked_config(dump_mode, dump_config)
        if acl_config is not None and name == OVERFLOW:
            raise HardwareError(
                "register_hook, dump_mode='acl' of overflowing calls would dump kernel data by torch_npu: "
                "nothing was dumped. Find the call with dump_mode='api', then dump it with mode='acl'."
            )
        has_place = acl_config is not None or name == OVERFLOW or self._path is not None
        demand(has_place, "register_hook needs to know where to dump: call set_dump_path before it.")
        logger().info(
            "Please disable the shuffle function of the dataset and the dropout function of the model before "
            "running the program."
        )
        if not self._is_seeded:
            logger().info("seed_all was not called; from here on random numbers are fixed, by the seed 1234.")
            self.seed_all()
        logger().info("Start mounting the %s hook function to the model.", name)
        self._mount(model, name, acl_config, rank, overflow_nums)
        logger().info("The %s hook function is successfully mounted to the model.", name)

    def _mount(self, model: Any, name: str, acl_config: str | None, rank: int | None, most: int) -> None:
        from ptdbg_ascend.mounting import Mounted, rank_of

        is_same = self._hook == name == DUMP and acl_config is None and self._process == os.getpid()
        if self._mounted is not None and is_same:  # for another model of the script; calls are counted on
            self._turn_off()
            self._mounted.writer.close()
        else:
            self.close()
        self._rank = rank_of(model) if rank is None else rank
        self._hook, self._acl_config = name, acl_config
        if acl_config is None and self._mounted is None:
            self._mounted = Mounted(self._root, self._folder, most if name == OVERFLOW else None)
        if name == OVERFLOW:
            logger().info("overflow_check looks at values, and at the overflow register that torch_npu has.")
            self.set_overflow_check_switch("ON")

    @property
    def _root(self) -> Path:
        return self._path.parent if self._path is not None else Path.cwd()

    @property
    def _folder(self) -> Path:
        return self._root / f"{self._tag}_v{__version__}" / f"rank{self._rank}"

    # ---- switches ----

    def set_dump_switch(
        self,
        switch: Any,
        mode: Any = "all",
        scope: Any = (),
        api_list: Any = (),
        filter_switch: Any = "ON",
        dump_mode: Any = "all",
    ) -> None:
        """Begin ("ON") or end ("OFF") dumping the calls that the other arguments choose."""
        demand(switch in SWITCHES, "Please set dump switch with 'ON' or 'OFF'.")
        if not self._is_mounted(DUMP, "set_dump_switch"):
            return
        if switch == "OFF":
            self._turn_off()
            return
        asked = order(mode, scope, api_list, filter_switch, dump_mode)
        demand((asked.mode == "acl") == (self._acl_config is not None), _OTHER_MODE)
        if asked.mode != "acl":
            self._turn_on(asked)
            return
        if asked.everything:
            logger().info("set_dump_switch, filter_switch has no effect with mode='acl'.")
        if asked.scope[0].endswith("_backward"):
            self._awaited = asked.scope[0]
        else:
            self._dump_kernels(asked.scope[0])

    def _turn_on(self, asked: Order) -> None:
        assert self._mounted is not None and self._path is not None
        prefix = "api_stack_" if asked.mode == "api_stack" else ""
        path = self._folder / f"{prefix}{self._path.stem}{SUFFIX}"
        self._mounted.turn_off()
        try:
            self._mounted.writer.aim(asked, path, self._root)
        except OSError as error:
            why = f"set_dump_switch: {error.filename or path} cannot be written: {error.strerror or error}."
            raise CompareException(why, INVALID_PATH) from error
        self._mounted.turn_on(asked.as_scope())

    def _turn_off(self) -> None:
        awaited, self._awaited = self._awaited, ""
        demand(not awaited, _NO_GRADIENTS)
        if self._kernels is not None:
            self._kernels.stop()
        if self._mounted is not None:
            self._mounted.turn_off()
            if self._mounted.writer.order.mode == "list":
                logger().info("The number of matched dump is %d", self._mounted.writer.matched)

    def set_overflow_check_switch(self, switch: Any, filter_switch: Any = "ON") -> None:
        """Begin or end looking for overflows; without it all calls are looked at."""
        demand(switch in SWITCHES, "Please set overflow switch with 'ON' or 'OFF'.")
        demand(filter_switch in SWITCHES, "Please set overflow filter_switch with 'ON' or 'OFF'.")
        if self._is_mounted(OVERFLOW, "set_overflow_check_switch") and self._mounted is not None:
            self._mounted.writer.order = Order(OVERFLOW, everything=filter_switch == "OFF")
            self._mounted.turn_on(OldScope(is_on=switch == "ON"))

    def _is_mounted(self, hook: str, function: str) -> bool:
        is_here = self._process == os.getpid() and self._hook
        demand(is_here, f"{function} needs a hook in this process: call register_hook before it.")
        if self._hook != hook:
            logger().warning("%s has no effect: register_hook was given %s.", function, self._hook)
        return self._hook == hook

    # ---- kernel data of one call ----

    def set_backward_input(self, backward_input: Any) -> None:
        """The gradients, .npy files of an earlier dump, that mode acl runs a backward call with."""
        files = backward_input if isinstance(backward_input, (list, tuple)) else ()
        are_there = all(str(file).endswith(".npy") and os.path.isfile(file) for file in files)
        demand(
            files and are_there, f"set_backward_input takes .npy files that exist, not {backward_input!r}."
        )
        awaited, self._awaited = self._awaited, ""
        demand(awaited, "set_backward_input needs a backward call: call set_dump_switch with one before it.")
        self._dump_kernels(awaited, *map(str, files))

    def _dump_kernels(self, name: str, *gradients: str) -> None:
        from ptdbg_ascend.mounting import kernels_of

        assert self._acl_config is not None
        if self._kernels is not None:
            self._kernels.stop()
        self._kernels = kernels_of(name, gradients, self._acl_config)

    def close(self) -> None:
        """Leave everything as it was before register_hook."""
        if self._process == os.getpid():
            if self._kernels is not None:
                self._kernels.step()
            if self._mounted is not None:
                self._mounted.close()
        self._process = os.getpid()
        self._mounted = self._kernels = self._acl_config = None
        self._hook = self._awaited = ""


def _checked_config(dump_mode: Any, dump_config: Any) -> str | None:
    """The file that says where kernel data go, where such are wanted."""
    demand(dump_mode in DUMP_MODES, f"dump_mode only support {DUMP_MODES}")
    if dump_mode == "api":
        return None
    demand(dump_config is not None, "dump_mode is acl mode, dump_config must be configured.")
    path = str(dump_config)
    demand(path.endswith(".json"), "dump_config must be configure json file.")
    demand(os.path.isfile(path), f"register_hook, dump_config: there is no file {path}.", INVALID_PATH)
    load_acl_config(path)
    if os.environ.get("TASK_QUEUE_ENABLE") != "0":
        logger().warning("TASK_QUEUE_ENABLE is not 0: calls run late, which spoils kernel data.")
    return path


the = Session()
