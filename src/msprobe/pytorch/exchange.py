"""Lets a Python function run other code while it stays the same object, for everyone who holds it."""

from __future__ import annotations

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


def _template(*args: Any, **kwargs: Any) -> Any:
    stand_in: Any = "stand-in"
    return stand_in(*args, **kwargs)


def _calling(stand_in: Callable[..., Any], before: CodeType) -> CodeType:
    """The template's code with the callable as its constant; the free variables of the old code stay declared."""
    code = _template.__code__
    constants = tuple(stand_in if constant == "stand-in" else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_name=before.co_name, co_freevars=before.co_freevars)
