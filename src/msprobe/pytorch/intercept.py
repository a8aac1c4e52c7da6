"""Sees every call of a listed torch function once, in every thread that trains, and leaves no trace.

Functions written in C are seen by a torch-function mode, so that `from torch import matmul` is seen whenever
it was bound. Functions written in Python run other code for a while (see exchange) and stay the objects they
are: the mode would see them too, but no longer how their arguments were passed. Replaced where they stand are
only operators, which the mode cannot tell from methods (`x + 1` reaches it as `add`), and the few functions
that no mode sees.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from msprobe.adapter import Api, Around, Copied, Undo
from msprobe.capture.patch import Shared, just_call, together
from msprobe.pytorch.apis import Apis
from msprobe.pytorch.compiled import CompiledCode
from msprobe.pytorch.exchange import Exchange, Exchanges, Replacement, exchange
from msprobe.pytorch.versions import SEEN_DOORS

_data: Any = torch.Tensor.data
_doors = (getattr(torch.Tensor, name) for name in SEEN_DOORS if name != "data")
_ESCAPES = frozenset({*_doors, _data.__get__, _data.__set__})
# They change the tensors of their lists, and torch does not count that.
_UNCOUNTED = frozenset(
    getattr(torch, name)
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
    if hasattr(torch, name)
)
_SILENT = _ESCAPES | _UNCOUNTED
_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
# They are not listed, and copy a tensor, some only where they must: the copy has the maker of its source.
_COPYING = frozenset(
    getattr(holder, name)
    for holder, names in (
        (torch.Tensor, ("contiguous", "clone", "cpu", "cuda", "npu", "type", "pin_memory", "to_dense")),
        (torch.Tensor, ("resolve_conj", "resolve_neg", "__getitem__")),  # `x[places]` copies
        (torch, ("clone", "resolve_conj", "resolve_neg", "tensor", "as_tensor", "asarray")),
    )
    for name in names
    if hasattr(holder, name)
)
_getitem = torch.Tensor.__getitem__
_OWN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})

_push = torch._C._push_on_torch_function_stack
_pop = torch._C._pop_torch_function_stack
_size = torch._C._len_torch_function_stack
_at = torch._C._get_function_stack_at
_all_disabled = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)
_is_tracing = torch._C._is_tracing  # by torch.jit.trace, which would trace our work too
_is_overridden = torch.overrides.has_torch_function


class _Thread(threading.local):
    """Whether the calls of this thread are seen."""

    def __init__(self) -> None:
        self.entered = False
        self.suspended = False  # inside compiled code: the mode was on its stack
        self.opened = 0  # functions it runs that torch took the mode off for, and will put it back


class Interception(TorchFunctionMode):
    """The mode; made once, because call stacks are known by the code that stood in for functions."""

    def __init__(self, apis: Apis, escaped: Callable[[Any], None], compiled: CompiledCode) -> None:
        super().__init__()
        self.apis = apis
        self._table = dict(apis.overridable)
        self._around: Around = just_call
        self._copied: Copied = _nothing
        self._escaped = escaped
        self._thread = _Thread()
        self._functions = Exchanges(
            [
                *(Exchange(function, self._seeing(api)) for function, api in apis.exchanged.items()),
                *(Replacement(torch.Tensor, name, self._seeing(api)) for name, api in apis.operators.items()),
                Replacement(torch.overrides, "has_torch_function", lambda _: _is_overridden_by_others),
            ]
        )
        torch.jit._builtins._register_builtin(_is_overridden_by_others, "aten::has_torch_function")
        self._modules = Exchanges([Exchange(torch.nn.Module.__call__, self._follow)])  # type: ignore[arg-type]
        self._sight = Shared(self._functions.on, lambda: compiled.follow(self._step_back, self._return))
        self._shedding: Undo = _nothing

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SILENT:
            self._note(func, args)
        api = self._table.get(func)
        if api is not None and not _is_tracing():
            return self._around(api, func, args, kwargs)
        result = self._pass_on(func, types, args, kwargs)
        if func in _COPYING and not _is_tracing():
            self._note_copy(func, args, result)
        return result

    def _note_copy(self, func: Any, args: Any, result: Any) -> None:
        source = args[0] if args else None
        if result is not source and isinstance(source, torch.Tensor) and isinstance(result, torch.Tensor):
            self._copied(source, result, is_whole=func is not _getitem)

    def _pass_on(self, func: Any, types_: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(func, types.FunctionType):
            if _OWN_TYPES.issuperset(types_) and func not in self.apis.exchanged:
                return self._open(func, types_, args, kwargs)
        else:
            api = self.apis.find_operator(func)
            if api is not None:
                self._table[func] = api
                return self._around(api, func, args, kwargs)
        return func(*args, **kwargs)

    def _note(self, func: Any, args: Any) -> None:
        """Some tensors may change from here on without torch counting it."""
        if func in _ESCAPES:
            for tensor in args[:2]:  # with `x.data = y` both share the memory of y, and others that of x
                self._escaped(tensor)
        else:
            for tensors in args:
                for tensor in tensors if isinstance(tensors, (list, tuple)) else ():
                    self._escaped(tensor)

    def _open(self, function: types.FunctionType, types_: Any, args: Any, kwargs: Any) -> Any:
        """Run one of torch's Python functions so that the calls inside it are seen, and not it again."""
        _push(self)
        self._thread.opened += 1
        try:
            return _redispatch(function, types_, args, kwargs)
        finally:
            self._thread.opened -= 1
            _remove(self)

    # --- being on the stacks of threads ---

    def install(self, around: Around, copied: Copied) -> Undo:
        """See the calls of this thread, and of every other one while it runs a module."""
        self._around, self._copied = around, copied
        self._shedding()
        ended = functools.partial(self._shed, threading.get_ident())
        return together(self._modules.on, self._see_this_thread, lambda: ended)

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Sees the calls of this thread for a while, whether it is installed or no longer."""
        undo = self._sight.on() if self._thread.entered else self._see_this_thread()
        try:
            yield
        finally:
            undo()

    def _see_this_thread(self) -> Undo:
        self._enter()
        return together(lambda: self._leave, self._sight.on)

    def _enter(self) -> None:
        """Below the modes of the user: each of these takes off the topmost as its own."""
        _remove(self)
        self._thread.entered = True
        _insert(self, 1 if _size() and isinstance(_at(0), DeviceContext) else 0)  # torch wants this lowest

    def _leave(self) -> None:
        self._thread.entered = False
        _remove(self)

    def _shed(self, owner: int) -> None:
        """Have torch put the mode back no more: it has taken it off just now, or another thread has it on."""
        thread = self._thread
        here = threading.get_ident() == owner
        if here and not thread.opened and (not thread.entered or _position(self) is not None):
            return

        def push(mode: TorchFunctionMode) -> None:
            if mode is not self or threading.get_ident() != owner:
                exchanged.original(mode)
            elif not thread.opened:
                thread.entered = False
                self._shedding()

        def undo() -> None:
            self._shedding = _nothing
            exchanged.undo()

        exchanged = exchange(torch.overrides._push_mode, push)  # type: ignore[arg-type]
        self._shedding = undo

    def _seeing(self, api: Api) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return functools.partial(self._seen, api)

    def _seen(self, api: Api, original: Callable[..., Any]) -> Callable[..., Any]:
        """What a function of Python does instead of its own work, while it is seen."""
        thread = self._thread

        def run(*args: Any, **kwargs: Any) -> Any:
            """The original, with the mode out of its way: only the outermost call is of interest."""
            position = _remove(self)
            try:
                return original(*args, **kwargs)
            finally:
                if thread.entered:
                    _insert(self, position)
                elif not thread.opened:
                    self._shedding()

        def call(*args: Any, **kwargs: Any) -> Any:
            if thread.entered and _reaches(self):
                return self._around(api, run, args, kwargs)
            return original(*args, **kwargs)

        functools.update_wrapper(call, original)
        return call

    def _follow(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A mode belongs to one thread; another one gets it while it runs a module."""
        thread = self._thread

        def call(*args: Any, **kwargs: Any) -> Any:
            if thread.entered:
                return original(*args, **kwargs)
            self._enter()
            try:
                return original(*args, **kwargs)
            finally:
                self._leave()

        return call

    def _step_back(self) -> None:
        self._modules.pause()
        self._functions.pause()
        self._thread.suspended = _position(self) is not None
        if self._thread.suspended:
            self._leave()

    def _return(self) -> None:
        if self._thread.suspended:
            self._thread.suspended = False
            self._enter()
        self._functions.resume()
        self._modules.resume()


def _is_overridden_by_others(arguments: Any) -> bool:
    """As without us: attention asks this, and takes another way, with other rounding, if so."""
    ours = next((mode for mode in map(_at, range(_size())) if isinstance(mode, Interception)), None)
    if ours is None:
        return _is_overridden(arguments)
    position = _remove(ours)
    try:
        return _is_overridden(arguments)
    finally:
        _insert(ours, position)


class _Opened(dict[str, Any]):
    """The globals of a function, where torch never asks whether somebody overrides it."""

    def __init__(self, function: types.FunctionType) -> None:
        super().__init__(dict.fromkeys(_CHECKS, _never))
        self._names = function.__globals__

    def __missing__(self, name: str) -> Any:
        return self._names[name]


def _doing_its_work(function: types.FunctionType, _types: Any, args: Any, kwargs: Any) -> Any:
    """Call one of torch's Python functions as redispatch_function does, which torch has since 2.13.

    A function that asks by another name than _CHECKS does its work unseen, else it would come here forever.
    """
    if not any(name in function.__globals__ for name in _CHECKS):
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)
    copy = types.FunctionType(
        function.__code__, _Opened(function), function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy(*args, **kwargs)


def _never(*_args: Any) -> bool:
    return False


_redispatch = getattr(torch.overrides, "redispatch_function", _doing_its_work)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """There is nothing to undo, or nobody to tell."""


# --- the stack of modes: calls go to the topmost first ---


def _position(mode: TorchFunctionMode) -> int | None:
    """Where the mode stands; None while torch has taken it off, because it handles a call."""
    for position in range(_size()):
        if _at(position) is mode:
            return position
    return None


def _reaches(mode: TorchFunctionMode) -> bool:
    """Whether a call that is made now would reach the mode."""
    return _position(mode) is not None and not _all_disabled() and not _is_tracing()


def _remove(mode: TorchFunctionMode) -> int:
    """Take a mode off this thread's stack, also from below others; tells where it stood."""
    size = _size()
    if size and _at(size - 1) is mode:
        _pop()
        return size - 1
    position = _position(mode)
    if position is None:
        return size
    above = [_pop() for _ in range(size - position)][:-1]
    for other in reversed(above):
        _push(other)
    return position


def _insert(mode: TorchFunctionMode, position: int) -> None:
    """Put a mode where it stood, or shall stand."""
    above = [_pop() for _ in range(_size() - position)]
    _push(mode)
    for other in reversed(above):
        _push(other)
