"""Cells as they run: which are watched, under which names, and the primitives they hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mindspore import nn, ops

from msprobe.adapter import Api, Around, ModuleWatch, Undo
from msprobe.capture import models
from msprobe.capture.patch import replace, together
from msprobe.name import module_owner

CELL = "Cell"


def models_of(model: Any) -> list[tuple[int | None, nn.Cell]]:
    return models.models_of(model, nn.Cell, "mindspore.nn.Cell")


def _children(model: Any) -> Iterator[tuple[str, nn.Cell]]:
    """The cells below each model by the owner of their records; the models themselves are not recorded."""
    for index, root in models_of(model):
        for path, cell in root.cells_and_names():
            if path:
                yield module_owner(path, type(cell).__name__, prefix=CELL, index=index), cell


def watch_cells(model: Any, watch: ModuleWatch) -> Undo:
    """Tell `watch` of the cells of a model, or of several, as they run."""
    cells = list(_children(model))  # held, so that an id stays the id of its cell
    owners: dict[int, list[str]] = {}
    for owner, cell in cells:  # a cell that stands in two models of a list has two names
        owners.setdefault(id(cell), []).append(owner)

    def make(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def told(cell: nn.Cell, *args: Any, **kwargs: Any) -> Any:
            names = owners.get(id(cell), ())
            for name in names:
                watch.enter(name, cell, args, kwargs)
            try:
                output = call(cell, *args, **kwargs)
            except BaseException:
                for name in reversed(names):
                    watch.leave(name, cell, None, failed=True)
                raise
            for name in reversed(names):
                watch.leave(name, cell, output, failed=False)
            return output

        return told

    undo = replace(nn.Cell, "__call__", make)
    return together(lambda: undo, lambda: cells.clear)


def on_model_call(model: Any, before: Callable[[], None], after: Callable[[], None]) -> Undo:
    """Call back around every call of the (first) model."""
    root = models_of(model)[0][1]

    def make(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(cell: nn.Cell, *args: Any, **kwargs: Any) -> Any:
            if cell is not root:
                return call(cell, *args, **kwargs)
            before()
            try:
                return call(cell, *args, **kwargs)
            finally:
                after()

        return counted

    return replace(nn.Cell, "__call__", make)


def parameters(cell: nn.Cell) -> Iterator[tuple[str, Any]]:
    """The parameters a cell has itself, by the names of its attributes."""
    yield from cell._params.items()


class Primitives:
    """Sees the primitives that cells hold; each has its own `__call__`, so that its class is exchanged."""

    def __init__(self) -> None:
        self._classes: dict[type, type] = {}  # what a class is exchanged for; made once
        self._apis: dict[int, Api] = {}
        self._around: Around | None = None

    def install(self, model: Any, around: Around) -> Undo:
        self._around = around
        found: dict[int, tuple[str, ops.Primitive]] = {}
        for _, root in models_of(model):
            for _, cell in root.cells_and_names():
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


def _primitives_of(cell: nn.Cell) -> Iterator[tuple[str, ops.Primitive]]:
    for name, value in vars(cell).items():
        if isinstance(value, ops.Primitive):
            yield name, value
    yield from getattr(cell, "_primitives", {}).items()
