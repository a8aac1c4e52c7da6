"""Sees every call of a listed torch function once, in every thread that trains, and undoes itself without a trace.

No attribute of torch changes, so that `act is F.gelu` holds and `from torch import matmul` is seen whenever it was
bound. Functions written in C are seen by a torch-function mode. Functions written in Python run other code for a while
(see exchange): the mode would see them too, but no longer how their arguments were passed. Operators get a wrapper that
notes their name, because `x + 1` reaches the mode as `add`. Only a user's own functions are replaced where they stand.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from msprobe.adapter import Api, Around, Undo
from msprobe.pytorch.apis import Apis, Place
from msprobe.pytorch.exchange import exchange

_ESCAPES = frozenset(
    getattr(torch.Tensor, name)
    for name in ("numpy", "data_ptr", "untyped_storage", "storage", "__array__", "__dlpack__", "set_")
) | {torch.Tensor.data.__get__, torch.Tensor.data.__set__}  # type: ignore[attr-defined]
_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_OWN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})


_OURS = "_msprobe_operator"


class _Thread(threading.local):
    """Whether this thread is seen, and which operator it has just begun."""

    def __init__(self) -> None:
        self.operator: str | None = None
        self.entered = False
        self.suspended = False  # it was seen, and is inside compiled code


class Interception(TorchFunctionMode):
    """The mode of one start() ... stop()."""

    def __init__(self, apis: Apis, around: Around, escaped: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._table = dict(apis.overridable)
        self._apis = apis
        self._around = around
        self._escaped = escaped
        self._thread = _Thread()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator = self._thread.operator
        if operator is not None:
            self._thread.operator = None
            return self._around(self._apis.operators[operator], func, args, kwargs)
        api = self._table.get(func)
        if api is not None:
            if func in _ESCAPES:
                self._escaped(args[0])
            return self._around(api, func, args, kwargs)
        return self._pass_on(func, types, args, kwargs)

    def _pass_on(self, func: Any, types_: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(func, types.FunctionType):
            if _OWN_TYPES.issuperset(types_):
                torch._C._push_on_torch_function_stack(self)
                try:
                    return _with_open_inside(func)(*args, **kwargs)
                finally:
                    _remove(self)
        elif func in _ESCAPES:
            self._escaped(args[0])
        else:
            api = self._apis.find_operator(func)
            if api is not None:
                self._table[func] = api
                return self._around(api, func, args, kwargs)
        return func(*args, **kwargs)

    # --- being on the stacks of threads ---

    def install(self) -> Undo:
        """See the calls of this thread, and of every other one while it runs a module."""
        self._enter()
        undo = [
            self._leave,
            self._exchange_functions(),
            self._name_operators(),
            self._follow_threads(),
            self._step_back_from_compiled(),
        ]
        return lambda: _run(undo)

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Sees the calls of this thread for a while, if it does not already."""
        if self._thread.entered:
            yield
            return
        self._enter()
        undo = [self._leave, self._exchange_functions(), self._name_operators()]
        try:
            yield
        finally:
            _run(undo)

    def _enter(self) -> None:
        self._thread.entered = True
        torch._C._push_on_torch_function_stack(self)

    def _leave(self) -> None:
        self._thread.entered = False
        _remove(self)

    def _exchange_functions(self) -> Undo:
        undo = []
        for function, api in self._apis.exchanged.items():
            if not hasattr(function, _OURS):
                undo.append(self._exchange(function, api))
        return lambda: _run(undo)

    def _exchange(self, function: types.FunctionType, api: Api) -> Undo:
        thread = self._thread

        def run(*args: Any, **kwargs: Any) -> Any:
            """The original, with the mode out of its way: only the outermost call is of interest."""
            _remove(self)
            try:
                return exchanged.original(*args, **kwargs)
            finally:
                torch._C._push_on_torch_function_stack(self)

        functools.update_wrapper(run, function)

        def call(*args: Any, **kwargs: Any) -> Any:
            if thread.entered and _is_on_stack(self):
                return self._around(api, run, args, kwargs)
            return exchanged.original(*args, **kwargs)

        exchanged = exchange(function, call)
        setattr(function, _OURS, True)

        def undo() -> None:
            delattr(function, _OURS)
            exchanged.undo()

        return undo

    def _name_operators(self) -> Undo:
        """Make `x + 1` known as Tensor.__add__: the operator notes its name, the mode records it."""
        undo = []
        for name in self._apis.operators:
            operator = getattr(torch.Tensor, name)
            if not hasattr(operator, _OURS):
                undo.append(_replace(torch.Tensor, name, _named(operator, name, self._thread)))
        return lambda: _run(undo)

    def _follow_threads(self) -> Undo:
        """A mode belongs to one thread; another one gets it while it runs a module."""
        thread = self._thread
        original = torch.nn.Module.__call__

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if thread.entered or thread.suspended:
                return original(module, *args, **kwargs)
            self._enter()
            try:
                return original(module, *args, **kwargs)
            finally:
                self._leave()

        return _replace(torch.nn.Module, "__call__", functools.wraps(original)(call))

    def _step_back_from_compiled(self) -> Undo:
        """Compiled code must not see us: its compiler would trace our code, and its guards would notice us."""
        frames: Any = sys.modules.get("torch._dynamo.eval_frame")
        if frames is None or not hasattr(frames, "_maybe_set_eval_frame"):
            return lambda: None
        thread = self._thread
        original = frames._maybe_set_eval_frame

        def set_eval_frame(callback: Any) -> Any:
            compiling = callback is not None and callback is not False
            if compiling and thread.entered:
                self._leave()
                thread.suspended = True
            elif not compiling and thread.suspended:
                thread.suspended = False
                self._enter()
            return original(callback)

        return _replace(frames, "_maybe_set_eval_frame", set_eval_frame)


def _named(function: Callable[..., Any], name: str, thread: _Thread) -> Callable[..., Any]:
    @functools.wraps(function)
    def operator(*args: Any, **kwargs: Any) -> Any:
        thread.operator = name if thread.entered else None
        try:
            return function(*args, **kwargs)
        finally:
            thread.operator = None

    setattr(operator, _OURS, True)
    return operator


def _with_open_inside(function: types.FunctionType) -> types.FunctionType:
    """A copy of one of torch's Python functions that does its work at once, so that the mode sees the calls inside."""
    namespace = dict(function.__globals__)
    namespace.update(dict.fromkeys(_CHECKS, _never))
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _never(*_args: Any) -> bool:
    return False


def _remove(mode: TorchFunctionMode) -> None:
    """Take a mode off this thread's stack, also from below others."""
    above = []
    while torch._C._len_torch_function_stack():
        top = torch._C._pop_torch_function_stack()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)


def _is_on_stack(mode: TorchFunctionMode) -> bool:
    """Whether calls reach the mode now: torch takes it off the stack while it handles one."""
    size = torch._C._len_torch_function_stack()
    return any(torch._C._get_function_stack_at(i) is mode for i in range(size))


def _replace(holder: Any, name: str, value: Any) -> Undo:
    """Set an attribute; undoing puts the holder back exactly, whether it owned the attribute or inherited it."""
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
        undo.append(_replace(holder, name, _recorded(getattr(holder, name), api, around)))
    return lambda: _run(undo)


def _recorded(function: Callable[..., Any], api: Api, around: Around) -> Callable[..., Any]:
    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        return around(api, function, args, kwargs)

    return recorded
