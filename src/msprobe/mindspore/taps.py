"""Taps in compiled graphs: what a cell takes and gives is shown to Python while the graph computes it.

MindSpore compiles the first functions below from their source, so they keep to the words its compiler knows.
A tap hands nothing back into the computation: values pass it untouched, and only wait until they are shown.
Graphs run their operators in parallel. So a call is told from another by a token, a number that Python gives
out when the inputs of the call are shown, and that the graph carries to its outputs and into its backward.
"""

# The compiler of graphs builds tuples and goes through dicts in these ways.
# ruff: noqa: RUF005, SIM118

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import functional as graph

from msprobe.adapter import Undo
from msprobe.capture.patch import replace, together
from msprobe.mindspore.framework import api
from msprobe.mindspore.layouts import (
    NOT,
    WIDER,
    WIDER_WITH_A_DIMENSION,
    WITH_A_DIMENSION,
    Layouts,
    has_gradient,
    how_to_show,
)

_ORIGINAL = "_msprobe_construct"  # under this name a tapped cell keeps its own construct()
_EMPTY: tuple[Any, ...] = ()
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # an operator has a fixed number of inputs; more are not shown


class Shown(Protocol):
    """Whom taps show something to, in whatever thread the graph runs. No error may leave these."""

    def enter(self, layout: int, arrays: Sequence[Any]) -> int:
        """Inputs and parameters of a call; answers its token, 0 if nobody wants to see more of it."""
        ...

    def leave(self, token: int, layout: int, arrays: Sequence[Any]) -> None: ...

    def of_input(self, token: int, index: int, array: Any) -> None:
        """The gradient of the tensor that has this place among those that a call took."""
        ...

    def of_output(self, token: int, index: int, array: Any) -> None: ...

    def of_parameter(self, key: int, array: Any) -> None:
        """The gradient of a parameter, over all its uses."""
        ...


# --- compiled into the graph ---


def _array(value: Any, how: Any) -> Any:
    """What is shown of a tensor."""
    value = graph.stop_gradient(value)
    if how in (WIDER, WIDER_WITH_A_DIMENSION):
        value = graph.cast(value, mindspore.float32)
    if how >= WITH_A_DIMENSION:
        value = graph.reshape(value, (1,))
    return value


def _arrays(value: Any) -> Any:
    """The tensors of a nested argument, as they are shown."""
    found = _EMPTY
    if isinstance(value, Tensor):
        how = how_to_show(value)
        if how != NOT:
            found = (_array(value, how),)
    elif isinstance(value, (tuple, list)):
        for item in value:
            found = found + _arrays(item)
    elif isinstance(value, dict):
        for key in value.keys():
            found = found + _arrays(value[key])
    return found


def _count(value: Any) -> Any:
    """How many tensors a nested argument holds."""
    found = 0
    if isinstance(value, Tensor):
        found = 1
    elif isinstance(value, (tuple, list)):
        for item in value:
            found = found + _count(item)
    elif isinstance(value, dict):
        for key in value.keys():
            found = found + _count(value[key])
    return found


def _before(value: Any, last: Any) -> Any:
    """How many tensors a dict holds before a key."""
    found = 0
    reached = False
    for key in value.keys():
        if key == last:
            reached = True
        if not reached:
            found = found + _count(value[key])
    return found


def _marked(value: Any, token: Any, gradient: Any, index: Any) -> Any:
    """The nested argument with its gradients tapped; `index` is that of its first tensor."""
    if isinstance(value, Parameter):
        return value
    if isinstance(value, Tensor):
        value = graph.depend(value, token)
        if has_gradient(value):
            value = gradient(value, token, Tensor([index], mindspore.int64))
        return value
    if isinstance(value, tuple):
        new = _EMPTY
        for item in value:
            new = new + (_marked(item, token, gradient, index),)
            index = index + _count(item)
        return new
    if isinstance(value, list):
        return list(_marked(tuple(value), token, gradient, index))
    if isinstance(value, dict):
        # A dict that is filled key by key is built by the interpreter, where no gradient passes.
        return {
            key: _marked(value[key], token, gradient, index + _before(value, key)) for key in value.keys()
        }
    return value


def _padded(arrays: Any, size: Any, filling: Any) -> Any:
    for _ in range(size - len(arrays)):
        arrays = arrays + (filling,)
    return arrays[:size]


class _Gradient(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """Gives back what it is given, and shows the gradient that comes back through it."""

    def __init__(self, show: Any) -> None:
        super().__init__()
        self.show = show

    def construct(self, value: Any, token: Any, index: Any) -> Any:
        return value

    def bprop(self, value: Any, token: Any, index: Any, out: Any, dout: Any) -> Any:
        shown = self.show(token, index, _array(dout, how_to_show(dout)))
        return graph.depend(dout, shown), graph.zeros_like(token), graph.zeros_like(index)


def _tapped(taps: Taps, number: int, names: tuple[str, ...]) -> Callable[..., Any]:
    """The construct() of a cell between its taps."""
    layout_of, place_of, sizes = taps.layouts, taps.place_of, _SIZES
    enters, leaves, of_input, of_output = taps.enters, taps.leaves, taps.of_input, taps.of_output

    def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = _EMPTY
        for name in names:
            parameters = parameters + (getattr(self, name),)
        given = (args, kwargs, parameters)
        arrays = _arrays(given)
        place = place_of(len(arrays))
        layout = Tensor([layout_of(number, given)], mindspore.int64)
        token = graph.stop_gradient(enters[place](layout, *_padded(arrays, sizes[place], layout)))
        taken = _marked((args, kwargs), token, of_input, 0)
        output = self._msprobe_construct(*taken[0], **taken[1])
        arrays = _arrays(output)
        place = place_of(len(arrays))
        layout = Tensor([layout_of(number, output)], mindspore.int64)
        shown = graph.stop_gradient(leaves[place](token, layout, *_padded(arrays, sizes[place], layout)))
        # The backward takes the token from here: a graph of nothing but gradients shows the outputs too.
        return _marked(output, graph.depend(token, shown), of_output, 0)

    return construct


def _shown_gradient(key: int, of_parameter: Any) -> Callable[..., Any]:
    def hook(gradient: Any) -> Any:
        shown = of_parameter(Tensor([key], mindspore.int64), _array(gradient, how_to_show(gradient)))
        return graph.depend(gradient, shown)

    return hook


# --- made in Python ---


class Taps:
    """The operators of the taps, and the layouts of the calls that were compiled with them."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self.layouts = Layouts()
        self.place_of = ops.constexpr(_place_of)
        self.enters = tuple(_operator(self._enter, size + 1) for size in _SIZES)
        self.leaves = tuple(_operator(self._leave, size + 2) for size in _SIZES)
        self.of_input = _Gradient(_operator(self._of_input, 3))
        self.of_output = _Gradient(_operator(self._of_output, 3))
        self.of_parameter = _operator(self._of_parameter, 2)

    def install(self, cell: nn.Cell, number: int, parameters: tuple[str, ...]) -> Undo:
        """Have a cell compiled with taps from now on."""
        original = cell.construct
        construct = _tapped(self, number, parameters)
        if is_compiled(cell):
            construct = _entry(original.__func__, construct)
        setattr(cell, _ORIGINAL, original)
        return together(
            lambda: functools.partial(delattr, cell, _ORIGINAL),
            lambda: replace(cell, "construct", lambda _: types.MethodType(construct, cell)),
        )

    def follow(self, parameter: Parameter, key: int) -> Undo:
        """Have the gradient of a parameter shown by the graphs that are compiled from now on."""
        remove: Undo = parameter.register_hook(_shown_gradient(key, self.of_parameter)).remove
        return remove

    def _enter(self, layout: Any, *arrays: Any) -> Any:
        return _number(self._shown.enter(int(layout[0]), arrays))

    def _leave(self, token: Any, layout: Any, *arrays: Any) -> Any:
        self._shown.leave(int(token[0]), int(layout[0]), arrays)
        return _number(0)

    def _of_input(self, token: Any, index: Any, array: Any) -> Any:
        self._shown.of_input(int(token[0]), int(index[0]), array)
        return _number(0)

    def _of_output(self, token: Any, index: Any, array: Any) -> Any:
        self._shown.of_output(int(token[0]), int(index[0]), array)
        return _number(0)

    def _of_parameter(self, key: Any, array: Any) -> Any:
        self._shown.of_parameter(int(key[0]), array)
        return _number(0)


def is_compiled(cell: nn.Cell) -> bool:
    """Whether mindspore.jit compiles its construct() from source, wherever it is called."""
    construct = getattr(getattr(cell, _ORIGINAL, cell.construct), "__func__", None)
    code = getattr(construct, "__code__", None)
    return hasattr(construct, "__wrapped__") and getattr(code, "co_filename", None) == api.__file__


def _entry(compiled: Callable[..., Any], construct: Callable[..., Any]) -> Callable[..., Any]:
    """What runs is still the function of mindspore.jit; what that finds to compile is `construct`."""

    @functools.wraps(construct)
    def entry(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compiled(self, *args, **kwargs)

    return entry


def _operator(function: Callable[..., Any], inputs: int) -> Any:
    """An operator that shows its inputs to a Python function, whose result is one number."""
    operator = ops.Custom(function, lambda *_: (1,), lambda *_: mindspore.int64, "pyfunc")
    operator.add_prim_attr("inputs_num", inputs)  # it was told 1 for all of `*arrays`
    return operator.set_device("CPU")  # where Python is, whatever device the rest of the graph runs on


def _number(value: int) -> Any:
    return np.array([value], np.int64)


def _place_of(count: int) -> int:
    """Which of the sizes has room for so many tensors."""
    return next((place for place, size in enumerate(_SIZES) if size >= count), len(_SIZES) - 1)
