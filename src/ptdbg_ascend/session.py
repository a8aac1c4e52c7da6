"""What an old script calls to record, and the dump that comes of it; each function says what it misses."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msprobe.capture.debugger import Debugger
from msprobe.capture.scope import Scope
from msprobe.capture.switched import Switched
from msprobe.config import load_acl_config
from msprobe.errors import HardwareError
from msprobe.given import are_names, is_count, is_file, is_folder, is_path, is_plain_name
from msprobe.log import logger
from msprobe.pairing.match import seen_in
from msprobe.record import Frame, Leaf, Record, is_float
from msprobe.store.line_file import LineFiles
from ptdbg_ascend import INVALID_PATH, CompareException, __version__, demand
from ptdbg_ascend.old_files import CALL, STACK, SUFFIX, call_text, described, line_text, ours

DUMP, OVERFLOW, TAG = "acc_cmp_dump", "overflow_check", "ptdbg_dump"
MODES = ["all", "list", "range", "stack", "acl", "api_list", "api_stack"]
_COUNTS = {  # of the names that a mode takes as scope
    "list": (1, 1 << 30, "it's should not be an empty list."),
    "range": (2, 2, "it's must be [start, end]."),
    "stack": (0, 2, "it's must be [start, end] or []."),
    "acl": (1, 1, "only one api name is supported in acl mode."),
}
_SCOPE = "set_dump_switch, scope param set invalid, "
_NO_APIS = "Current dump mode is 'api_list', but the content of api_list parameter is empty or valid."
_NO_SEED = "seed_all was not called: its seed is 1234 from here on. Call it before the model is made."
_NO_RANK = "register_hook was given no rank and finds none: it dumps to rank0. If more train, name each."
_NO_ACL = "register_hook, dump_mode='acl' needs an Ascend NPU and torch_npu: nothing was dumped. Use 'api'."
_OTHER_MODE = "mode='acl' belongs to register_hook(dump_mode='acl'), and every other mode to one without it."
_NO_NPU = "set_dump_switch, mode='acl' needs torch_npu, which cannot be imported here: nothing was dumped."
_OVERFLOW = "[overflow %d times]: module name :'%s' is overflow and dump file is saved in '%s'."


class Dump(Switched):
    """Writes each call to the .pkl of the present switch; one that overflows, to a .pkl of its own."""

    def __init__(self, folder: Path, most: int | None, kernels: Any = None) -> None:
        super().__init__(folder, most, kernels)
        self._mode, self._is_whole, self.files = "all", False, LineFiles(levels=2)

    def start(self, mode: str, calls: Scope, is_whole: bool, path: Path | None = None) -> None:
        """From here on these calls are dumped to this .pkl; without one, each to a dump of its own."""
        self.stop()
        if path is not None:
            self.folder, self._file = path.parent, self.files.open(path)
        self._mode, self._is_whole = mode, is_whole
        self.switch_on(calls)

    def stop(self) -> None:
        """From here on calls are counted only."""
        written = self.switch_off()
        if written is not None and self._mode == "list":
            logger().info("The number of matched dump is %d", written)

    def wants(self, leaf: Leaf) -> bool:
        """What filter_switch lets pass: tensors of floating point that have a dimension and an element."""
        if self._mode == "stack":
            return False
        if not leaf.is_tensor or leaf.type == "numpy.ndarray":  # which the old tool did not look at
            return self._is_whole and leaf.type in ("bool", "int", "float", "slice")
        has_dimension = bool(leaf.shape) or self._mode == OVERFLOW  # where a single number counts
        return self._is_whole or (is_float(leaf.dtype) and has_dimension and 0 not in (leaf.shape or ()))

    def _write(self, record: Record) -> None:
        name, number = call_text(record.name), 0 if self.limit is None else self.limit.met + 1
        if number:
            self.place, stamp = None, time.strftime("%Y%m%d_%H%M%S", time.gmtime())
            self._file = self.files.open(self.folder / f"Overflow_info_{stamp}_{number}{SUFFIX}")
        lines = list(self._lines(record))
        if record.stack is not None and self._mode not in ("all", "api_list"):
            line = [f"{name}_{STACK}", list(map(Frame.parse, record.stack.frames))]
            lines.insert(len(lines) if self._mode == "api_stack" else 0, line)
        self._file.add(lines)
        self.place = self._file.path
        if number:
            logger().warning(_OVERFLOW, number, name, self.place)

    def _lines(self, record: Record) -> Iterator[list[Any]]:
        """The lines of its positional arguments and of its outputs, whose tensors are saved first."""
        for slot, leaf in seen_in(record):
            # A keyword has no number, and neither has what is in a dict.
            if all(part.isdecimal() for part in slot.split(".")[1:]) and self.wants(leaf):
                text = line_text(record.name, slot, len(record.fields.get("output") or ()))
                self._file.save(text, leaf)
                told = described(leaf)
                yield [text, 1, [], *told] if self.limit is None else [text, 101, [], *told[:2]]


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


the = Asked()


def seed_all(seed: int = 1234, mode: bool = False) -> None:
    """Fix every random state that training draws from; `mode` asks for deterministic algorithms."""
    from msprobe.pytorch import seed_all

    seed_all(seed, mode)
    the.is_seeded = True


def set_dump_path(fpath: Any = None, dump_tag: Any = TAG) -> None:
    """Dump to `{folder of fpath}/{dump_tag}_v2.3/rank{N}/{name of fpath}`."""
    if not fpath or not is_path(fpath):
        raise RuntimeError(f"set_dump_path '{fpath}' error, please set a valid filename")
    path = Path(os.path.abspath(fpath))
    demand(not is_folder(path), f"set_dump_path '{path}' error, please set a valid filename.", INVALID_PATH)
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
    from msprobe.pytorch.adapter import TorchAdapter
    from msprobe.pytorch.debugger import TorchDebugger

    name = getattr(hook, "__name__", repr(hook))
    rank = int(rank) if isinstance(rank, str) and rank.isdecimal() else rank  # as LOCAL_RANK is
    demand(hasattr(model, "named_modules"), "Please register hooks to nn.Module.")
    demand(name in (DUMP, OVERFLOW), f"register_hook takes {DUMP} or {OVERFLOW} as hook, not {name}.")
    for key, given, low in (("overflow_nums", overflow_nums, 1), ("rank", rank or 0, 0)):
        demand(is_count(given, low), f"register_hook, {key} is {given!r}; it must be a number from {low} on.")
    demand(dump_mode in ("api", "acl"), "dump_mode only support ['api', 'acl']")
    acl_config = _checked_config(dump_config) if dump_mode == "acl" else ""
    kernels = TorchDebugger.call_kernels(acl_config, _NO_ACL) if acl_config and name == OVERFLOW else None
    has_place = acl_config or name == OVERFLOW or the.name
    demand(has_place, "register_hook needs to know where to dump: call set_dump_path before it.")
    logger().info(
        "Please disable the shuffle function of the dataset and the dropout function of the model before "
        "running the program."
    )
    if not the.is_seeded:
        logger().warning(_NO_SEED)
        seed_all()
    logger().info("Start mounting the %s hook function to the model.", name)
    if rank is None and (rank := TorchAdapter().rank_of(model)) is None:
        logger().warning(_NO_RANK)
    the.rank = rank or 0
    before, the.mounted = the.mounted, (name, acl_config, os.getpid())
    if the.dump is not None and before == the.mounted and name == DUMP:
        the.dump.stop()  # for another model; calls are counted on, and files begun anew
        the.dump.files.forget()
    elif acl_config and kernels is None:
        follow(None)
    else:
        most = overflow_nums if name == OVERFLOW else None
        dump = Dump(the.folder.absolute() / f"rank{the.rank}", most, kernels)
        follow(TorchDebugger.of_task(dump), dump)
    if name == OVERFLOW:
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
    _is_first("dump_mode", dump_mode, ("all", "forward", "backward"))
    calls = _calls(mode, scope, api_list, dump_mode)
    demand((mode == "acl") == bool(the.mounted[1]), _OTHER_MODE)
    if the.dump is None:
        if not is_filtered:
            logger().info("set_dump_switch, filter_switch has no effect with mode='acl'.")
        _dump_kernels(scope[0])
        return
    name = f"{'api_stack_' if mode == 'api_stack' else ''}{the.name}{SUFFIX}"
    try:
        the.dump.start(mode, calls, not is_filtered, the.folder.absolute() / f"rank{the.rank}" / name)
    except OSError as error:
        why = f"{error.filename or name} cannot be written: {error.strerror or error}."
        raise CompareException(f"set_dump_switch: {why}", INVALID_PATH) from error


def set_overflow_check_switch(switch: Any, filter_switch: Any = "ON") -> None:
    """Begin or end looking for overflows; without it all calls are looked at."""
    is_on = _is_first("overflow switch", switch)
    is_filtered = _is_first("overflow filter_switch", filter_switch)
    if _is_mounted(OVERFLOW, "set_overflow_check_switch") and the.dump is not None:
        the.dump.stop()
        if is_on:
            the.dump.start(OVERFLOW, Scope(), not is_filtered)


def set_backward_input(backward_input: Any) -> None:
    """The gradients, .npy files of an earlier dump, that mode acl runs a backward call with."""
    files = backward_input if isinstance(backward_input, (list, tuple)) else ()
    is_good = files and all(str(file).endswith(".npy") and is_file(file) for file in files)
    demand(is_good, f"set_backward_input takes .npy files that exist, not {backward_input!r}.")
    is_backward = the.kernels_of.endswith("_backward")
    demand(is_backward, "set_backward_input needs a backward call: call set_dump_switch with one before it.")
    _dump_kernels(the.kernels_of, *map(str, files))


def follow(debugger: Debugger | None, dump: Dump | None = None) -> None:
    """Have this debugger follow the calls, in the place of the one before; None: follow them no more."""
    if the.debugger is not None:
        the.debugger.close()
    the.debugger, the.dump, the.kernels_of = debugger, dump, ""
    if debugger is not None:
        debugger.start()


def _dump_kernels(name: str, *gradients: str) -> None:
    """Have torch_npu dump what one call computes; of a backward call, with these gradients."""
    from msprobe.pytorch.debugger import TorchDebugger

    try:
        follow(TorchDebugger.of_kernels(ours(name), the.mounted[1], gradients))
    except HardwareError:
        raise HardwareError(f"{_NO_NPU} Dump {name} with mode='list' on this machine.") from None
    the.kernels_of = name


def _is_mounted(hook: str, function: str) -> bool:
    mounted = the.mounted[0] if the.mounted[2] == os.getpid() else ""  # as in the processes of other ranks
    if mounted != hook:
        why = f"register_hook was given {mounted}" if mounted else "call register_hook before it"
        logger().warning("%s has no effect: %s.", function, why)
    return mounted == hook


def _is_first(word: str, value: Any, allowed: tuple[str, ...] = ("ON", "OFF")) -> bool:
    demand(value in allowed, f"Please set {word} with {' or '.join(map(repr, allowed))}.")
    return bool(value == allowed[0])


def _checked_config(dump_config: Any) -> str:
    """The file that says where kernel data go."""
    demand(dump_config is not None, "dump_mode is acl mode, dump_config must be configured.")
    path = str(dump_config)
    demand(path.endswith(".json"), "dump_config must be configure json file.")
    demand(is_file(path), f"register_hook, dump_config: there is no file {path}.", INVALID_PATH)
    load_acl_config(path)
    return path


def _calls(mode: str, scope: Any, api_list: Any, side: str) -> Scope:
    """The calls that a switch means: all, those from one to another, or those of these names."""
    for word, given in (("scope", scope), ("api_list", api_list)):
        demand(are_names(given), f"set_dump_switch, {word} is {given!r}; it must be a list of names.")
    demand(mode != "api_list" or api_list, _NO_APIS)
    least, most, why = _COUNTS.get(mode, (0, len(scope), ""))
    demand(least <= len(scope) <= most, _SCOPE + why)
    if mode == "api_list":
        return Scope(patterns=[f".{api.lower()}." for api in api_list], data_mode=[side])
    names = scope if mode in _COUNTS else ()
    if mode not in ("range", "acl") and (mode, len(names)) != ("stack", 2):
        return Scope(patterns=names, data_mode=[side], spelling=call_text)
    for one in scope:
        demand(CALL.fullmatch(one), f"{_SCOPE}'{one}' is no name of a call, such as Tensor_abs_1_forward.")
    return Scope([ours(name) for name in names], data_mode=[side])
