"""Cells as they run: which are watched, under which names, and the primitives they hold."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from mindspore import nn, ops
from mindspore.experimental import optim

from msprobe.adapter import Api, Around, ModuleWatch, OptimizerState, State, Undo
from msprobe.capture import models
from msprobe.capture.patch import Shared, replace, together
from msprobe.mindspore.framework import executor, raise_late_errors
from msprobe.mindspore.recompute import is_machinery, watch_recompute
from msprobe.name import module_owner

_OPTIMIZERS = (nn.Optimizer, optim.Optimizer)

Parts = Callable[[Any], Iterable[tuple[str, Any]]]


class Kind(NamedTuple):
    """What models are made of: cells, or what stands in for them."""

    plain: type
    called: str
    prefix: str  # of their records
    tree: Parts  # all of a model by their paths; the model itself has none
    parameters: Parts  # of one itself, by the names of its attributes
    buffers: Parts  # the same
    has_hooks: Callable[[Any], bool]  # behind which its inputs are what it computes with


CELLS = Kind(
    nn.Cell,
    "mindspore.nn.Cell",
    "Cell",
    lambda cell: cell.cells_and_names(),
    lambda cell: cell._params.items(),
    lambda cell: (),  # running statistics are parameters
    lambda cell: bool(cell._forward_pre_hook or _begins_graph(cell)),
)


def _begins_graph(cell: nn.Cell) -> bool:
    """Whether it is the one that is differentiated: its hooks run in a graph that only its call begins."""
    return bool(cell.requires_grad and not executor.grad_flag())


def models_of(model: Any, kind: Kind = CELLS) -> list[tuple[int | None, Any]]:
    return models.models_of(model, kind.plain, kind.called)


def _children(model: Any, kind: Kind) -> Iterator[tuple[str, Any]]:
    """The cells below each model by the owner of their records; the models themselves are not recorded."""
    for index, root in models_of(model, kind):
        for path, cell in kind.tree(root):
            if path and not is_machinery(cell):
                yield module_owner(path, type(cell).__name__, prefix=kind.prefix, index=index), cell


def named_state(model: Any, kind: Kind = CELLS) -> Iterator[State]:
    """The parameters and buffers of a model, or of several."""
    for before, root in models.with_prefix(model, kind.plain):
        for path, cell in kind.tree(root):
            around = f"{before}{path}." if path else before
            for name, parameter in kind.parameters(cell):
                if parameter is not None:
                    yield State("parameter", f"{around}{name}", parameter, tuple(parameter.shape))
            for name, buffer in kind.buffers(cell):
                yield State("buffer", f"{around}{name}", buffer, tuple(buffer.shape))


def watch_optimizers(optimizes: Callable[[Iterable[OptimizerState]], None]) -> Undo:
    """Tell of the parameters of each optimizer, before its step; those of the model are among them."""

    def make(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def seen(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            optimizes(OptimizerState(each.name, None, each) for each in optimizer.get_parameters())
            return call(optimizer, *args, **kwargs)

        return seen

    return together(*(functools.partial(replace, kind, "__call__", make) for kind in _OPTIMIZERS))


def watch_cells(model: Any, watch: ModuleWatch, kind: Kind = CELLS) -> Undo:
    """Tell `watch` of the cells of a model, or of several, as they run."""
    owners: dict[int, tuple[weakref.ref[Any], list[str]]] = {}  # by the id of the cell
    for owner, cell in _children(model, kind):  # a cell that stands in two models of a list has two names
        owners.setdefault(id(cell), (weakref.ref(cell), []))[1].append(owner)

    def make(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def seen(cell: Any, *args: Any, **kwargs: Any) -> Any:
            known = owners.get(id(cell))
            if known is None or known[0]() is not cell:
                return call(cell, *args, **kwargs)
            run = functools.partial(call, cell)
            return _told(watch, known[1], run, cell, kind.has_hooks(cell), args, kwargs)

        return seen

    sight = Shared(lambda: replace(kind.plain, "__call__", make))
    return together(sight.on, lambda: watch_recompute(watch, sight.held))


def _told(
    watch: ModuleWatch,
    owners: list[str],
    run: Callable[..., Any],
    cell: Any,
    has_hooks: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a cell and tell of it, under each of its names."""
    raise_late_errors()
    remove = _enter(watch, owners, cell, has_hooks, args, kwargs)
    try:
        output = run(*args, **kwargs)
        raise_late_errors()
    except BaseException:
        for owner in reversed(owners):
            watch.leave(owner, cell, None, failed=True)
        raise
    finally:
        if remove is not None:
            remove()
    for owner in reversed(owners):
        watch.leave(owner, cell, output, failed=False)
    return output


def _enter(
    watch: ModuleWatch,
    owners: list[str],
    cell: Any,
    has_hooks: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Undo | None:
    """Look at the inputs, if need be behind the cell's own hooks, which may change them."""
    waiting = list(owners)

    def enter(cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        while waiting:
            watch.enter(waiting.pop(0), cell, args, kwargs)

    if has_hooks:
        remove: Undo = cell.register_forward_pre_hook(enter, with_kwargs=True).remove
        return remove
    enter(cell, args, kwargs)
    return None


def on_model_call(
    model: Any, before: Callable[[], None], after: Callable[[], None], kind: Kind = CELLS
) -> Undo:
    """Call back around every call of the (first) model."""
    root = models_of(model, kind)[0][1]

    def make(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(cell: Any, *args: Any, **kwargs: Any) -> Any:
            if cell is not root:
                return call(cell, *args, **kwargs)
            before()
            try:
                return call(cell, *args, **kwargs)
            finally:
                after()

        return counted

    return replace(kind.plain, "__call__", make)


class Primitives:
    """Sees the primitives that cells hold; each has its own `__call__`, so that its class is exchanged."""

    def __init__(self, kind: Kind = CELLS) -> None:
        self._kind = kind
        self._classes: dict[type, type] = {}  # what a class is exchanged for; made once
        self._apis: dict[int, Api] = {}
        self._around: Around | None = None

    def install(self, model: Any, around: Around) -> Undo:
        self._around = around
        found: dict[int, tuple[str, ops.Primitive]] = {}
        for _, root in models_of(model, self._kind):
            for _, cell in self._kind.tree(root):
                for attribute, primitive in _primitives_of(cell):
                    found.setdefault(id(primitive), (attribute, primitive))
        return together(*(functools.partial(self._exchange, *each) for each in found.values()))

    def _exchange(self, attribute: str, primitive: ops.Primitive) -> Undo:
        plain = type(primitive)
        self._apis[id(primitive)] = Api("Primitive", f"{attribute}.{plain.__name__}")
        primitive.__class__ = self._seen(plain)

        def undo() -> None:
            primitive.__class__ = plain
            del self._apis[id(primitive)]

        return undo

    def _seen(self, plain: type) -> type:
        if plain not in self._classes:

            def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
                function = functools.partial(plain.__call__, primitive)
                if self._around is None:
                    return function(*args, **kwargs)
                return self._around(self._apis[id(primitive)], function, args, kwargs)

            functools.update_wrapper(call, plain.__call__)
            self._classes[plain] = type(
                plain.__name__, (plain,), {"__call__": call, "__doc__": plain.__doc__}
            )
        return self._classes[plain]


def _primitives_of(cell: Any) -> Iterator[tuple[str, ops.Primitive]]:
    for name, value in vars(cell).items():
        if isinstance(value, ops.Primitive):
            yield name, value
    yield from getattr(cell, "_primitives", {}).items()
