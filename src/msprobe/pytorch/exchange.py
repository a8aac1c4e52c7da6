"""Lets a Python function run other code while it stays the same object, for everyone who holds it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from msprobe.adapter import Undo


class Exchanged(NamedTuple):
    """A function whose code was exchanged: `original` still does what it did."""

    original: Callable[..., Any]
    undo: Undo


def exchange(function: FunctionType, stand_in: Callable[..., Any]) -> Exchanged:
    """Let every call of `function` become `stand_in(*args, **kwargs)`.

    Replacing an attribute would miss `from torch.nn.functional import relu` and break `act is F.relu`.
    """
    before = function.__code__
    original = FunctionType(
        before, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__dict__.update(function.__dict__)
    original.__qualname__ = function.__qualname__
    function.__code__ = _calling(stand_in, before)

    def undo() -> None:
        function.__code__ = before

    return Exchanged(original, undo)


_PLACE = "the stand-in"


def _calling(stand_in: Callable[..., Any], before: CodeType) -> CodeType:
    """Code that calls the callable, which is its constant; it has the free variables of the old code."""
    code = _template(before.co_freevars)
    constants = tuple(stand_in if constant == _PLACE else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_name=before.co_name)


@functools.cache
def _template(free: tuple[str, ...]) -> CodeType:
    """Compiled, not put together: code with free variables begins by fetching them, else a traceback that
    looks at the frame's locals crashes the interpreter."""
    names = ", ".join(free)
    source = (
        f"def _outer({names}):\n"
        "    def _inner(*_args, **_kwargs):\n"
        f"        if False: {names or None}\n"  # never run, and yet it makes them free variables
        f"        _stand_in = {_PLACE!r}\n"
        "        return _stand_in(*_args, **_kwargs)\n"
    )
    code = compile(source, __file__, "exec")
    for _ in ("_outer", "_inner"):
        code = next(constant for constant in code.co_consts if isinstance(constant, CodeType))
    return code
