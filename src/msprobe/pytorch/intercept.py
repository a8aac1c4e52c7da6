"""Sees every call of a listed torch function once, in every thread that trains, and leaves no trace.

No function of torch is replaced, so that `act is F.gelu` holds and `from torch import matmul` is seen
whenever it was bound. Functions written in C are seen by a torch-function mode. Functions written in Python
run other code for a while (see exchange): the mode would see them too, but no longer how their arguments were
passed. Only operators, which the mode cannot tell from methods (`x + 1` reaches it as `add`), are replaced in
their class.
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

from msprobe.adapter import Api, Around, Undo
from msprobe.pytorch.apis import Apis, Place
from msprobe.pytorch.compiled import CompiledCode
from msprobe.pytorch.exchange import Exchange, Exchanges

# They hand out the memory of a tensor, or give it another.
_ESCAPES = frozenset(
    getattr(torch.Tensor, name)
    for name in ("numpy", "data_ptr", "untyped_storage", "storage", "__array__", "__dlpack__", "set_")
) | {torch.Tensor.data.__get__, torch.Tensor.data.__set__}  # type: ignore[attr-defined]
# They change the tensors of their lists, and torch does not count that.
_UNCOUNTED = frozenset(
    getattr(torch, name)
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
    if hasattr(torch, name)
)
_SILENT = _ESCAPES | _UNCOUNTED
_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_OWN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})

_push = torch._C._push_on_torch_function_stack
_pop = torch._C._pop_torch_function_stack
_size = torch._C._len_torch_function_stack
_at = torch._C._get_function_stack_at
_all_disabled = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)
_is_tracing = torch._C._is_tracing  # by torch.jit.trace, which would trace our work too


class _Thread(threading.local):
    """Whether the calls of this thread are seen."""

    def __init__(self) -> None:
        self.entered = False
        self.suspended = False  # they were, and it is inside compiled code


class Interception(TorchFunctionMode):
    """The mode; made once, because call stacks are known by the code that stood in for functions."""

    def __init__(self, apis: Apis, escaped: Callable[[Any], None], compiled: CompiledCode) -> None:
        super().__init__()
        self.apis = apis
        self._table = dict(apis.overridable)
        self._around: Around = _just_call
        self._escaped = escaped
        self._thread = _Thread()
        self._functions = Exchanges(
            Exchange(function, functools.partial(self._seen, api)) for function, api in apis.exchanged.items()
        )
        self._modules = Exchanges([Exchange(torch.nn.Module.__call__, self._follow)])  # type: ignore[arg-type]
        self._compiled = compiled

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SILENT:
            self._note(func, args)
        api = self._table.get(func)
        if api is not None and not _is_tracing():
            return self._around(api, func, args, kwargs)
        return self._pass_on(func, types, args, kwargs)

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
            self._escaped(args[0])
        else:
            for tensors in args:
                for tensor in tensors if isinstance(tensors, (list, tuple)) else ():
                    self._escaped(tensor)

    def _open(self, function: types.FunctionType, types_: Any, args: Any, kwargs: Any) -> Any:
        """Run one of torch's Python functions so that the calls inside it are seen, and not it again."""
        _push(self)
        try:
            return _redispatch(function, types_, args, kwargs)
        finally:
            _remove(self)

    # --- being on the stacks of threads ---

    def install(self, around: Around) -> Undo:
        """See the calls of this thread, and of every other one while it runs a module."""
        self._around = around
        undo = [self._modules.on(), self._see_this_thread()]
        return lambda: _run(undo)

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Sees the calls of this thread for a while, if it does not already."""
        if self._thread.entered:
            yield
            return
        undo = self._see_this_thread()
        try:
            yield
        finally:
            undo()

    def _see_this_thread(self) -> Undo:
        self._enter()
        undo = [self._leave, self._functions.on(), self._replace_operators()]
        undo.append(self._compiled.follow(self._step_back, self._return))
        return lambda: _run(undo)

    def _enter(self) -> None:
        """Below the modes of the user: each of these takes off the topmost as its own."""
        self._thread.entered = True
        _insert(self, 1 if _size() and isinstance(_at(0), DeviceContext) else 0)  # torch wants this lowest

    def _leave(self) -> None:
        self._thread.entered = False
        _remove(self)

    def _seen(self, api: Api, original: Callable[..., Any]) -> Callable[..., Any]:
        """What a function of Python does instead of its own work, while it is seen."""
        thread = self._thread

        def run(*args: Any, **kwargs: Any) -> Any:
            """The original, with the mode out of its way: only the outermost call is of interest."""
            position = _remove(self)
            try:
                return original(*args, **kwargs)
            finally:
                _insert(self, position)

        def call(*args: Any, **kwargs: Any) -> Any:
            if thread.entered and _reaches(self):
                return self._around(api, run, args, kwargs)
            return original(*args, **kwargs)

        functools.update_wrapper(call, original)
        return call

    def _replace_operators(self) -> Undo:
        undo = []
        for name, api in self.apis.operators.items():
            undo.append(replace(torch.Tensor, name, self._seen(api, getattr(torch.Tensor, name))))
        return lambda: _run(undo)

    def _follow(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A mode belongs to one thread; another one gets it while it runs a module."""
        thread = self._thread

        def call(*args: Any, **kwargs: Any) -> Any:
            if thread.entered or thread.suspended:
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
        if self._thread.entered:
            self._leave()
            self._thread.suspended = True

    def _return(self) -> None:
        if self._thread.suspended:
            self._thread.suspended = False
            self._enter()
        self._functions.resume()
        self._modules.resume()


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


def _just_call(api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


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


def replace(holder: Any, name: str, value: Any) -> Undo:
    """Set an attribute; undone, the holder is as before, whether it owned the attribute or inherited it."""
    own = vars(holder).get(name, _ABSENT) if hasattr(holder, "__dict__") else _ABSENT
    before = getattr(holder, name)
    setattr(holder, name, value)

    def undo() -> None:
        if own is _ABSENT and isinstance(holder, type):
            delattr(holder, name)
        else:
            setattr(holder, name, before if own is _ABSENT else own)

    return undo


_ABSENT = object()


def _run(undo: list[Undo]) -> None:
    while undo:
        undo.pop()()


def replace_places(places: list[Place], around: Around) -> Undo:
    """Replace functions of the user's own where they stand."""
    undo: list[Undo] = []
    for holder, name, api in places:
        undo.append(replace(holder, name, _recorded(getattr(holder, name), api, around)))
    return lambda: _run(undo)


def _recorded(function: Callable[..., Any], api: Api, around: Around) -> Callable[..., Any]:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        return around(api, function, args, kwargs)

    return recorded
