"""Modules as they run: which are watched, under which names, and where compiled ones end our view."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from msprobe.adapter import ModuleWatch, State, Undo
from msprobe.capture import models
from msprobe.capture.patch import Shared, together
from msprobe.log import logger
from msprobe.name import module_owner
from msprobe.pytorch.checkpoint import watch_checkpoints
from msprobe.pytorch.compiled import CompiledCode
from msprobe.pytorch.exchange import Exchange, Exchanges

_is_tracing: Callable[[], bool] = torch._C._is_tracing  # by torch.jit.trace
_SKIPPED_CLASSES = ("FullyShardedDataParallel",)
_NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


class Watched(NamedTuple):
    """A module and the owner of its records."""

    owner: str
    module: nn.Module


def models_of(model: Any) -> list[tuple[int | None, nn.Module]]:
    return models.models_of(model, nn.Module, "torch.nn.Module")


def watched_modules(model: Any) -> Iterator[Watched]:
    """The children of each model, named by their paths; the models themselves are not recorded."""
    for index, root in models_of(model):
        hidden: tuple[str, ...] = ()
        for path, module in root.named_modules():
            if hidden and path.startswith(hidden):
                continue
            if _is_compiled(module):
                hidden += (f"{path}._orig_mod" if path else "_orig_mod",)
            if path and type(module).__name__ not in _SKIPPED_CLASSES:
                inside = getattr(module, "_orig_mod", module)
                yield Watched(module_owner(path, type(inside).__name__, index=index), module)


def _is_compiled(module: nn.Module) -> bool:
    """Made by torch.compile(module); one compiled in place (module.compile()) keeps its class."""
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


class ModuleCalls:
    """Sees the calls of modules in nn.Module.__call__: compiled code would notice hooks on modules."""

    def __init__(self, compiled: CompiledCode) -> None:
        calls = Exchanges([Exchange(nn.Module.__call__, self._seen)])  # type: ignore[arg-type]
        self._sight = Shared(calls.on, lambda: compiled.follow(calls.pause, calls.resume))
        self._owners: dict[int, tuple[weakref.ref[nn.Module], list[str]]] = {}  # by the id of the module
        self._watch: ModuleWatch | None = None

    def watch(self, model: Any, watch: ModuleWatch) -> Undo:
        """Tell `watch` of the children of a model, or of several, as they run."""
        modules = list(watched_modules(model))
        self._owners = {}
        for owner, module in modules:  # a module that stands in two models of a list has two names
            self._owners.setdefault(id(module), (weakref.ref(module), []))[1].append(owner)
        self._watch = watch
        compiled = [owner for owner, module in modules if _is_compiled(module)]
        if compiled or any(_is_compiled(root) for _, root in models_of(model)):
            _tell_compiled(", ".join(compiled) or "the model itself")
        return together(self._sight.on, lambda: watch_checkpoints(watch, self._sight.held))

    def _seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            known, watch = self._owners.get(id(module)), self._watch
            if known is None or known[0]() is not module or watch is None or _is_tracing():
                return original(module, *args, **kwargs)
            return _told(watch, known[1], original, module, args, kwargs)

        return call


def _told(
    watch: ModuleWatch,
    owners: list[str],
    original: Callable[..., Any],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a module and tell of it, under each of its names."""
    if not owners:
        return original(module, *args, **kwargs)
    owner, *others = owners
    remove = None
    if module._forward_pre_hooks:
        remove = _enter_last(module, functools.partial(watch.enter, owner))
    else:
        watch.enter(owner, module, args, kwargs)
    try:
        output = _told(watch, others, original, module, args, kwargs)
    except BaseException:
        watch.leave(owner, module, None, failed=True)
        raise
    finally:
        if remove is not None:
            remove()
    watch.leave(owner, module, output, failed=False)
    return output


def _enter_last(module: nn.Module, enter: Callable[..., None]) -> Undo:
    """Look once, behind the module's own hooks, which may fetch its parameters, or change its inputs.

    Another thread that calls the module meanwhile runs this hook too, without keywords once it is removed.
    """
    caller = threading.get_ident()

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] = _NO_KEYWORDS) -> None:
        if threading.get_ident() == caller:
            handle.remove()
            enter(module, args, kwargs)

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    return handle.remove


@functools.cache
def _tell_compiled(which: str) -> None:
    """Once for a process, not at every step."""
    logger().warning("compiled modules are recorded at their boundary only: %s.", which)


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


def parameters(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """What named_parameters() says of a module without those in it, which takes longer to find it out."""
    if _names_parameters_plainly(module):
        return _named([("", module._parameters)]) if module._parameters else ()
    return module.named_parameters(recurse=False)


def buffers(module: nn.Module) -> Iterable[tuple[str, torch.Tensor, int]]:
    if not _names_buffers_plainly(module):
        found: Iterable[tuple[str, torch.Tensor]] = module.named_buffers(recurse=False)
    elif module._buffers:
        found = _named([("", module._buffers)])
    else:
        return ()
    return ((name, buffer, buffer.numel()) for name, buffer in found)


def named_state(model: Any) -> Iterator[State]:
    """The parameters and buffers of a model, or of several."""
    for before, root in models.with_prefix(model, nn.Module):
        own, rest = root.named_parameters(), root.named_buffers()
        if _names_parameters_plainly(root) and _names_buffers_plainly(root):
            inside = [(f"{path}." if path else "", module) for path, module in root.named_modules()]
            own = _named([(path, module._parameters) for path, module in inside])
            rest = _named([(path, module._buffers) for path, module in inside])
        for name, parameter in own:
            yield State("parameter", f"{before}{name}", parameter, tuple(parameter.shape))
        for name, buffer in rest:
            yield State("buffer", f"{before}{name}", buffer, tuple(buffer.shape))


def _names_parameters_plainly(module: nn.Module) -> bool:
    """Whether the class of a module leaves named_parameters() to torch."""
    return type(module).named_parameters is nn.Module.named_parameters


def _names_buffers_plainly(module: nn.Module) -> bool:
    return type(module).named_buffers is nn.Module.named_buffers


def _named(
    held: Iterable[tuple[str, Mapping[str, torch.Tensor | None]]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """What modules hold, each tensor once, by its name and what is said before the names of its module."""
    known: set[int] = set()
    for before, tensors in held:
        for name, tensor in tensors.items():
            if tensor is not None and id(tensor) not in known:
                known.add(id(tensor))
                yield f"{before}{name}", tensor


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    return parameter.grad if parameter.is_leaf else None  # torch warns of the others
