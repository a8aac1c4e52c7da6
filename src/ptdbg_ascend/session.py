"""What an old script has asked for so far: a path, a hook, a switch; and the debugger that does it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.capture.debugger import Debugger
from msprobe.config import Config, Tensor, load_acl_config
from msprobe.errors import HardwareError
from msprobe.log import logger
from msprobe.store.layout import is_plain_name
from ptdbg_ascend import __version__
from ptdbg_ascend.dumping import MODES, OVERFLOW, SWITCHES, Dump, Order
from ptdbg_ascend.failure import INVALID_PATH, demand
from ptdbg_ascend.old_files import SUFFIX, ours

if TYPE_CHECKING:
    from msprobe.pytorch.adapter import TorchAdapter

DUMP = "acc_cmp_dump"
TAG = "ptdbg_dump"

_PREPARE = (
    "Please disable the shuffle function of the dataset and the dropout function of the model before running "
    "the program."
)
_NO_SEED = (
    "seed_all was not called: from here on random numbers are fixed, by the seed 1234. A model made before "
    "has other weights in each run; call seed_all() first."
)
_NO_RANK = "register_hook was given no rank and finds none: it dumps to rank0. If more train, name each."
_NO_ACL = "dump_mode='acl' finds no overflows: nothing was dumped. Find the call with dump_mode='api' first."
_OTHER_MODE = "mode='acl' belongs to register_hook(dump_mode='acl'), and every other mode to one without it."
_NO_NPU = (
    "set_dump_switch, mode='acl' needs torch_npu, which cannot be imported here: nothing was dumped. Dump {} "
    "with mode='list' on this machine."
)


class Session:
    """The old functions; each expects those before it, and says which one is missing."""

    def __init__(self) -> None:
        self._folder = Path(f"{TAG}_v{__version__}")  # of the ranks
        self._name = ""  # of a dump
        self._rank = 0
        self._mounted = ("", "", 0)  # a hook, its dump_config with dump_mode acl, and its process
        self._running: Dump | Debugger | None = None  # what dumps calls, or kernel data
        self._kernels_of = ""  # a call that mode acl names
        self._is_seeded = False

    def seed_all(self, seed: int = 1234, mode: bool = False) -> None:
        """Fix every random state that training draws from; `mode` asks for deterministic algorithms."""
        from msprobe.pytorch import seed_all

        seed_all(seed, mode)
        self._is_seeded = True

    def set_dump_path(self, fpath: Any = None, dump_tag: Any = TAG) -> None:
        """Dump to `{folder of fpath}/{dump_tag}_v2.3/rank{N}/{name of fpath}`."""
        if not fpath or not isinstance(fpath, (str, os.PathLike)):
            raise RuntimeError(f"set_dump_path '{fpath}' error, please set a valid filename")
        path = Path(os.path.abspath(fpath))
        demand(not path.is_dir(), f"set_dump_path '{path}' error, please set a valid filename.", INVALID_PATH)
        is_name = isinstance(dump_tag, str) and is_plain_name(dump_tag)
        demand(is_name, f"set_dump_path, dump_tag is {dump_tag!r}; it must be the name of a folder.")
        self._folder, self._name = path.parent / f"{dump_tag}_v{__version__}", path.stem

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
        from msprobe.pytorch.adapter import TorchAdapter

        name = getattr(hook, "__name__", repr(hook))
        demand(hasattr(model, "named_modules"), "Please register hooks to nn.Module.")
        demand(name in (DUMP, OVERFLOW), f"register_hook takes {DUMP} or {OVERFLOW} as hook, not {name}.")
        for word, value, least in (("overflow_nums", overflow_nums, 1), ("rank", rank or 0, 0)):
            is_number = isinstance(value, int) and not isinstance(value, bool) and value >= least
            demand(is_number, f"register_hook, {word} is {value!r}; it must be a number from {least} on.")
        demand(dump_mode in ("api", "acl"), "dump_mode only support ['api', 'acl']")
        acl_config = _checked_config(dump_config) if dump_mode == "acl" else ""
        if acl_config and name == OVERFLOW:
            raise HardwareError(_NO_ACL)
        has_place = acl_config or name == OVERFLOW or self._name
        demand(has_place, "register_hook needs to know where to dump: call set_dump_path before it.")
        logger().info(_PREPARE)
        if not self._is_seeded:
            logger().warning(_NO_SEED)
            self.seed_all()
        logger().info("Start mounting the %s hook function to the model.", name)
        before, self._mounted = self._mounted, (name, acl_config, os.getpid())
        adapter = TorchAdapter()
        self._rank = _rank_of(model, adapter) if rank is None else rank
        if before == self._mounted and name == DUMP and isinstance(self._running, Dump):
            self._running.renew()  # for another model; calls are counted on
        else:
            self.close()
            most = overflow_nums if name == OVERFLOW else None
            self._running = None if acl_config else Dump(adapter, self._rank_folder, most)
        if name == OVERFLOW:
            logger().info("overflow_check looks at values, and at the overflow register that torch_npu has.")
            self.set_overflow_check_switch("ON")
        logger().info("The %s hook function is successfully mounted to the model.", name)

    @property
    def _rank_folder(self) -> Path:
        return (self._folder / f"rank{self._rank}").absolute()

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
            if self._running is not None:
                self._running.stop()
            return
        demand(mode in MODES, f"Current mode '{mode}' is not supported. Please use the field in {MODES}")
        asked = Order(mode, scope, api_list, filter_switch, dump_mode)
        demand((mode == "acl") == bool(self._mounted[1]), _OTHER_MODE)
        if mode == "acl":
            if asked.everything:
                logger().info("set_dump_switch, filter_switch has no effect with mode='acl'.")
            self._dump_kernels(scope[0])
        elif isinstance(self._running, Dump):
            prefix = "api_stack_" if mode == "api_stack" else ""
            self._running.start(asked, self._rank_folder / f"{prefix}{self._name}{SUFFIX}")

    def set_overflow_check_switch(self, switch: Any, filter_switch: Any = "ON") -> None:
        """Begin or end looking for overflows; without it all calls are looked at."""
        demand(switch in SWITCHES, "Please set overflow switch with 'ON' or 'OFF'.")
        demand(filter_switch in SWITCHES, "Please set overflow filter_switch with 'ON' or 'OFF'.")
        if self._is_mounted(OVERFLOW, "set_overflow_check_switch") and isinstance(self._running, Dump):
            self._running.start(Order(OVERFLOW, filter_switch=filter_switch, is_on=switch == "ON"))

    def _is_mounted(self, hook: str, function: str) -> bool:
        mounted, _, process = self._mounted
        demand(
            process == os.getpid(), f"{function} needs a hook in this process: call register_hook before it."
        )
        if mounted != hook:
            logger().warning("%s has no effect: register_hook was given %s.", function, mounted)
        return mounted == hook

    def set_backward_input(self, backward_input: Any) -> None:
        """The gradients, .npy files of an earlier dump, that mode acl runs a backward call with."""
        files = backward_input if isinstance(backward_input, (list, tuple)) else ()
        is_good = files and all(str(file).endswith(".npy") and os.path.isfile(file) for file in files)
        demand(is_good, f"set_backward_input takes .npy files that exist, not {backward_input!r}.")
        is_backward = self._kernels_of.endswith("_backward")
        demand(
            is_backward, "set_backward_input needs a backward call: call set_dump_switch with one before it."
        )
        self._dump_kernels(self._kernels_of, *map(str, files))

    def _dump_kernels(self, name: str, *gradients: str) -> None:
        """Have torch_npu dump what one call computes; of a backward call, with these gradients."""
        from msprobe.pytorch.debugger import TorchDebugger

        self.close()
        section = Tensor(scope=(ours(name),), backward_input=gradients)
        try:
            self._running = TorchDebugger(
                Config(
                    dump_path=".", task="tensor", level="L2", acl_config=self._mounted[1], section=section
                ),
                None,
            )
        except HardwareError:
            raise HardwareError(_NO_NPU.format(name)) from None
        self._kernels_of = name
        self._running.start()

    def close(self) -> None:
        """Follow no call any more."""
        if self._running is not None:
            self._running.close()
        self._running, self._kernels_of = None, ""


def _checked_config(dump_config: Any) -> str:
    """The file that says where kernel data go."""
    demand(dump_config is not None, "dump_mode is acl mode, dump_config must be configured.")
    path = str(dump_config)
    demand(path.endswith(".json"), "dump_config must be configure json file.")
    demand(os.path.isfile(path), f"register_hook, dump_config: there is no file {path}.", INVALID_PATH)
    load_acl_config(path)
    if os.environ.get("TASK_QUEUE_ENABLE") != "0":
        logger().warning("TASK_QUEUE_ENABLE is not 0: calls run late, which spoils kernel data.")
    return path


def _rank_of(model: Any, adapter: TorchAdapter) -> int:
    """The number of the model's device, or the rank of this process."""
    parameter = next(iter(model.parameters()), None)
    index: int | None = getattr(getattr(parameter, "device", None), "index", None)
    rank = adapter.rank() if index is None else index
    if rank is None:
        logger().warning(_NO_RANK)
    return rank or 0


the = Session()
