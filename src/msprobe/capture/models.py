"""The model a training script gives to start(): one, or a list or tuple of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msprobe.errors import UsageError


def models_of(model: Any, kind: type, called: str) -> list[tuple[int | None, Any]]:
    """Each model with its place in the list if it was a list; `called` is the name of `kind` in messages."""
    if isinstance(model, kind):
        return [(None, model)]
    if isinstance(model, (list, tuple)) and model and all(isinstance(item, kind) for item in model):
        return list(enumerate(model))
    raise UsageError(
        f"the model given to start() is {_described(model)}; it must be a {called} or a list or tuple of "
        "them."
    )


def with_prefix(model: Any, kind: type) -> Iterator[tuple[str, Any]]:
    """Each model with what the names of its parameters begin with; at level L1 there may be none."""
    several = isinstance(model, (list, tuple))
    for index, each in enumerate(model if several else [model]):
        if isinstance(each, kind):
            yield f"{index}." if several else "", each


def _described(model: Any) -> str:
    if isinstance(model, (list, tuple)):
        kinds = sorted({type(item).__name__ for item in model})
        return f"a {type(model).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"a {type(model).__name__}"
