"""Modules as they run: which are watched, under which names, and where compiled ones end our view."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from msprobe.adapter import ModuleWatch, Undo
from msprobe.errors import UsageError
from msprobe.log import logger
from msprobe.name import module_owner

_SKIPPED_CLASSES = ("FullyShardedDataParallel",)


class Watched(NamedTuple):
    """A module and the owner of its records."""

    owner: str
    module: nn.Module


def models_of(model: Any) -> list[tuple[int | None, nn.Module]]:
    """The models start() was given, each with its place in the list if it was a list."""
    if isinstance(model, nn.Module):
        return [(None, model)]
    if isinstance(model, (list, tuple)) and model and all(isinstance(item, nn.Module) for item in model):
        return list(enumerate(model))
    raise UsageError(
        f"the model given to start() is {_kind(model)}; it must be a torch.nn.Module or a list or tuple of them."
    )


def _kind(model: Any) -> str:
    if isinstance(model, (list, tuple)):
        return f"a {type(model).__name__} of {', '.join(sorted({type(item).__name__ for item in model})) or 'nothing'}"
    return f"a {type(model).__name__}"


def watched_modules(model: Any) -> Iterator[Watched]:
    """The children of each model, named by their paths; the models themselves are not recorded."""
    for index, root in models_of(model):
        hidden: tuple[str, ...] = ("_orig_mod.",) if _is_compiled(root) else ()
        for path, module in root.named_modules():
            if hidden and path.startswith(hidden):
                continue
            if _is_compiled(module):
                hidden += (f"{path}._orig_mod" if path else "_orig_mod",)
            if path and type(module).__name__ not in _SKIPPED_CLASSES:
                inside = getattr(module, "_orig_mod", module)
                yield Watched(module_owner(path, type(inside).__name__, index=index), module)


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


class ModuleHooks:
    """Hooks on every watched module; ours run last before forward and first after it, so that both see what it saw."""

    def __init__(self, modules: list[Watched], watch: ModuleWatch) -> None:
        self._modules = modules
        self._watch = watch
        self._handles: list[Any] = []

    def install(self) -> None:
        for owner, module in self._modules:
            before, after = self._hooks(owner)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._handles.append(
                module.register_forward_hook(after, prepend=True, with_kwargs=True, always_call=True)
            )

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _hooks(self, owner: str) -> tuple[Callable[..., None], Callable[..., None]]:
        watch = self._watch

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            watch.enter(owner, module, args, kwargs)

        def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            failed = output is None and sys.exc_info()[1] is not None  # always_call tells no more than that
            watch.leave(owner, module, output, failed)

        return before, after


def watch_modules(model: Any, watch: ModuleWatch) -> Undo:
    modules = list(watched_modules(model))
    compiled = [owner for owner, module in modules if _is_compiled(module)]
    if compiled or any(_is_compiled(root) for _, root in models_of(model)):
        logger().warning(
            "compiled modules are recorded at their boundary only: %s.", ", ".join(compiled) or "the model itself"
        )
    hooks = ModuleHooks(modules, watch)
    hooks.install()
    return hooks.remove


def on_model_call(model: Any, before: Callable[[], None], after: Callable[[], None]) -> Undo:
    """Call back around every call of the (first) model."""
    root = models_of(model)[0][1]
    handles = [
        root.register_forward_pre_hook(lambda *_: before()),
        root.register_forward_hook(lambda *_: after(), always_call=True),
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def parameters(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return module.named_parameters(recurse=False)
