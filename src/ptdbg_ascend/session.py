"""What an old script calls to record; each function expects those before it, and says what is missing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe.capture.debugger import Debugger
from msprobe.config import Config, Tensor, load_acl_config
from msprobe.errors import HardwareError
from msprobe.log import logger
from msprobe.store.layout import is_plain_name
from ptdbg_ascend import INVALID_PATH, CompareException, __version__, demand
from ptdbg_ascend.dumping import OVERFLOW, Dump, Order
from ptdbg_ascend.old_files import CALL, SUFFIX, ours

DUMP, TAG = "acc_cmp_dump", "ptdbg_dump"
MODES = ["all", "list", "range", "stack", "acl", "api_list", "api_stack"]
_COUNTS = {  # of the names that a mode takes as scope
    "list": (1, 1 << 30, "it's should not be an empty list."),
    "range": (2, 2, "it's must be [start, end]."),
    "stack": (0, 2, "it's must be [start, end] or []."),
    "acl": (1, 1, "only one api name is supported in acl mode."),
}
_SCOPE = "set_dump_switch, scope param set invalid, "
_NO_APIS = "Current dump mode is 'api_list', but the content of api_list parameter is empty or valid."
_PREPARE = (
    "Please disable the shuffle function of the dataset and the dropout function of the model before running "
    "the program."
)
_NO_SEED = "seed_all was not called: its seed is 1234 from here on. Call it before the model is made."
_NO_RANK = "register_hook was given no rank and finds none: it dumps to rank0. If more train, name each."
_NO_ACL = "dump_mode='acl' finds no overflows: nothing was dumped. Find the call with dump_mode='api' first."
_OTHER_MODE = "mode='acl' belongs to register_hook(dump_mode='acl'), and every other mode to one without it."
_NO_NPU = "set_dump_switch, mode='acl' needs torch_npu, which cannot be imported here: nothing was dumped."


@dataclass
class Asked:
    """What a script has asked for so far, and the debugger that does it."""

    folder: Path = Path(f"{TAG}_v{__version__}")  # of the ranks
    name: str = ""  # of a dump
    rank: int = 0
    is_seeded: bool = False
    mounted: tuple[str, str, int] = ("", "", 0)  # a hook, its dump_config with dump_mode acl, and its process
    debugger: Debugger | None = None
    dump: Dump | None = None  # its task, where it dumps no kernel data
    kernels_of: str = ""  # the call whose kernel data it dumps

    @property
    def rank_folder(self) -> Path:
        return (self.folder / f"rank{self.rank}").absolute()


the = Asked()


def seed_all(seed: int = 1234, mode: bool = False) -> None:
    """Fix every random state that training draws from; `mode` asks for deterministic algorithms."""
    from msprobe.pytorch import seed_all

    seed_all(seed, mode)
    the.is_seeded = True


def set_dump_path(fpath: Any = None, dump_tag: Any = TAG) -> None:
    """Dump to `{folder of fpath}/{dump_tag}_v2.3/rank{N}/{name of fpath}`."""
    if not fpath or not isinstance(fpath, (str, os.PathLike)):
        raise RuntimeError(f"set_dump_path '{fpath}' error, please set a valid filename")
    path = Path(os.path.abspath(fpath))
    demand(not path.is_dir(), f"set_dump_path '{path}' error, please set a valid filename.", INVALID_PATH)
    is_name = is_plain_name(dump_tag)
    demand(is_name, f"set_dump_path, dump_tag is {dump_tag!r}; it must be the name of a folder.")
    the.folder, the.name = path.parent / f"{dump_tag}_v{__version__}", path.stem


def acc_cmp_dump(*_args: Any) -> None:
    """For register_hook: dump inputs and outputs of calls."""


def overflow_check(*_args: Any) -> None:
    """For register_hook: dump the calls that give NaN or infinities."""


def register_hook(
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
    demand(dump_mode in ("api", "acl"), "dump_mode only support ['api', 'acl']")
    acl_config = _checked_config(dump_config) if dump_mode == "acl" else ""
    if acl_config and name == OVERFLOW:
        raise HardwareError(_NO_ACL)
    has_place = acl_config or name == OVERFLOW or the.name
    demand(has_place, "register_hook needs to know where to dump: call set_dump_path before it.")
    logger().info(_PREPARE)
    if not the.is_seeded:
        logger().warning(_NO_SEED)
        seed_all()
    logger().info("Start mounting the %s hook function to the model.", name)
    the.rank = _rank_of(model) if rank is None else rank
    before, the.mounted = the.mounted, (name, acl_config, os.getpid())
    if the.dump is not None and before == the.mounted and name == DUMP:
        the.dump.stop(anew=True)  # for another model; calls are counted on
    elif acl_config:
        close()
    else:
        most = overflow_nums if name == OVERFLOW else None
        _follow(Config(dump_path=".", rm_dropout=False), Dump(the.rank_folder, most))
    if name == OVERFLOW:
        logger().info("overflow_check looks at values, and at the overflow register that torch_npu has.")
        set_overflow_check_switch("ON")
    logger().info("The %s hook function is successfully mounted to the model.", name)


def set_dump_switch(
    switch: Any,
    mode: Any = "all",
    scope: Any = (),
    api_list: Any = (),
    filter_switch: Any = "ON",
    dump_mode: Any = "all",
) -> None:
    """Begin ("ON") or end ("OFF") dumping the calls that the other arguments choose."""
    is_on = _is_first("dump switch", switch)
    if not _is_mounted(DUMP, "set_dump_switch"):
        return
    if not is_on:
        if (running := the.dump or the.debugger) is not None:
            running.stop()
        return
    demand(mode in MODES, f"Current mode '{mode}' is not supported. Please use the field in {MODES}")
    is_filtered = _is_first("filter_switch", filter_switch)
    _is_first("dump_mode", dump_mode, "all", "forward", "backward")
    named = _named(mode, scope, api_list)
    demand((mode == "acl") == bool(the.mounted[1]), _OTHER_MODE)
    if the.dump is None:
        if not is_filtered:
            logger().info("set_dump_switch, filter_switch has no effect with mode='acl'.")
        _dump_kernels(scope[0])
        return
    path = the.rank_folder / f"{'api_stack_' if mode == 'api_stack' else ''}{the.name}{SUFFIX}"
    try:
        the.dump.start(Order(mode, named, dump_mode, not is_filtered), path)
    except OSError as error:
        why = f"{error.filename or path} cannot be written: {error.strerror or error}."
        raise CompareException(f"set_dump_switch: {why}", INVALID_PATH) from error


def set_overflow_check_switch(switch: Any, filter_switch: Any = "ON") -> None:
    """Begin or end looking for overflows; without it all calls are looked at."""
    is_on = _is_first("overflow switch", switch)
    is_filtered = _is_first("overflow filter_switch", filter_switch)
    if _is_mounted(OVERFLOW, "set_overflow_check_switch") and the.dump is not None:
        if is_on:
            the.dump.start(Order(OVERFLOW, whole=not is_filtered))
        else:
            the.dump.stop()


def set_backward_input(backward_input: Any) -> None:
    """The gradients, .npy files of an earlier dump, that mode acl runs a backward call with."""
    files = backward_input if isinstance(backward_input, (list, tuple)) else ()
    is_good = files and all(str(file).endswith(".npy") and os.path.isfile(file) for file in files)
    demand(is_good, f"set_backward_input takes .npy files that exist, not {backward_input!r}.")
    is_backward = the.kernels_of.endswith("_backward")
    demand(is_backward, "set_backward_input needs a backward call: call set_dump_switch with one before it.")
    _dump_kernels(the.kernels_of, *map(str, files))


def close() -> None:
    """Follow no call any more."""
    if the.debugger is not None:
        the.debugger.close()
    the.debugger, the.dump, the.kernels_of = None, None, ""


def _follow(config: Config, dump: Dump | None = None) -> None:
    """Have a debugger follow the calls, in the place of the one before."""
    from msprobe.pytorch.debugger import TorchDebugger

    close()
    the.dump, the.debugger = dump, TorchDebugger(config, task=dump)
    the.debugger.start()


def _dump_kernels(name: str, *gradients: str) -> None:
    """Have torch_npu dump what one call computes; of a backward call, with these gradients."""
    section = Tensor(scope=(ours(name),), backward_input=gradients)
    config = Config(
        dump_path=".", task="tensor", level="L2", acl_config=the.mounted[1], rm_dropout=False, section=section
    )
    try:
        _follow(config)
    except HardwareError:
        raise HardwareError(f"{_NO_NPU} Dump {name} with mode='list' on this machine.") from None
    the.kernels_of = name


def _is_mounted(hook: str, function: str) -> bool:
    mounted, _, process = the.mounted
    is_here = process == os.getpid()
    demand(is_here, f"{function} needs a hook in this process: call register_hook before it.")
    if mounted != hook:
        logger().warning("%s has no effect: register_hook was given %s.", function, mounted)
    return mounted == hook


def _is_first(word: str, value: Any, *allowed: str) -> bool:
    allowed = allowed or ("ON", "OFF")
    demand(value in allowed, f"Please set {word} with {' or '.join(map(repr, allowed))}.")
    return bool(value == allowed[0])


def _checked_config(dump_config: Any) -> str:
    """The file that says where kernel data go."""
    demand(dump_config is not None, "dump_mode is acl mode, dump_config must be configured.")
    path = str(dump_config)
    demand(path.endswith(".json"), "dump_config must be configure json file.")
    demand(os.path.isfile(path), f"register_hook, dump_config: there is no file {path}.", INVALID_PATH)
    load_acl_config(path)
    return path


def _rank_of(model: Any) -> int:
    """The number of the model's device, or the rank of this process."""
    from msprobe.pytorch.adapter import TorchAdapter

    index: int | None = next((parameter.device.index for parameter in model.parameters()), None)
    rank = TorchAdapter().rank() if index is None else index
    if rank is None:
        logger().warning(_NO_RANK)
    return rank or 0


def _named(mode: str, scope: Any, api_list: Any) -> list[str]:
    """The calls that a switch means, as msprobe calls them, or parts of their names; none for all."""
    for word, given in (("scope", scope), ("api_list", api_list)):
        is_list = isinstance(given, (list, tuple)) and all(isinstance(one, str) and one for one in given)
        demand(is_list, f"set_dump_switch, {word} is {given!r}; it must be a list of names.")
    demand(mode != "api_list" or api_list, _NO_APIS)
    least, most, why = _COUNTS.get(mode, (0, len(scope), ""))
    demand(least <= len(scope) <= most, _SCOPE + why)
    is_exact = mode in ("range", "acl") or (mode == "stack" and len(scope) == 2)
    for one in scope if is_exact else ():
        demand(CALL.fullmatch(one), f"{_SCOPE}'{one}' is no name of a call, such as Tensor_abs_1_forward.")
    if mode == "api_list":
        return [f".{api.lower()}." for api in api_list]
    return [ours(name) for name in scope] if mode in _COUNTS else []
