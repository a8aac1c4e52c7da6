"""A toy framework of numpy arrays: operators, a tape, modules, a device, communication (see toy_adapter)."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np


class StopEarly(Exception):
    """Raised by the framework to steer itself."""


class Kind(str):
    """A value that only this framework knows."""


class Parcel:
    """A container that only this framework knows."""

    def __init__(self, content: "Array", to: int) -> None:
        self.content, self.to = content, to


class Array:
    """Values with a version, a place on the tape, and the device they lie on."""

    def __init__(self, values: Any, *, requires_grad: bool = False, on_device: bool = False) -> None:
        self.values = np.array(values, dtype=None if np.asarray(values).dtype.kind in "biu" else np.float32)
        self.version = 0
        self.requires_grad = requires_grad
        self.on_device = on_device
        self.edge: tuple[Node, int] | None = None
        self.gradient: np.ndarray[Any, Any] | None = None
        self.on_gradient: list[Callable[[Array], None]] = []

    def change(self, values: Any) -> None:
        self.values[...] = values
        self.version += 1


class Node:
    """One operation on the tape: where its inputs came from, and how gradients pass through it."""

    _numbers = itertools.count()

    def __init__(
        self, inputs: Sequence[Array], outputs: Sequence[Any], pass_back: Callable[..., Sequence[Any]]
    ) -> None:
        self.number = next(Node._numbers)
        self.inputs = [(array.edge, array) if array.requires_grad else None for array in inputs]
        self.outputs = [np.zeros_like(value) for value in outputs]
        self.pass_back = pass_back
        self.hooks: list[Callable[[Sequence[Any], Sequence[Any]], None]] = []


class Tape:
    """Whether operations are noted; the toy has one, as frameworks have."""

    def __init__(self) -> None:
        self.is_on = True

    @contextmanager
    def switched(self, is_on: bool) -> Iterator[None]:
        before, self.is_on = self.is_on, is_on
        try:
            yield
        finally:
            self.is_on = before


tape = Tape()


def _made(
    values: Sequence[Any], inputs: Sequence[Array], pass_back: Callable[..., Sequence[Any]]
) -> list[Array]:
    arrays = [Array(value, on_device=any(array.on_device for array in inputs)) for value in values]
    if tape.is_on and any(array.requires_grad for array in inputs):
        node = Node(inputs, values, pass_back)
        for place, array in enumerate(arrays):
            array.requires_grad, array.edge = True, (node, place)
    return arrays


def add(x: Array, y: Array) -> Array:
    return _made([x.values + y.values], [x, y], lambda g: (g, g))[0]


def mul(x: Array, y: Array) -> Array:
    a, b = x.values.copy(), y.values.copy()
    return _made([a * b], [x, y], lambda g: (g * b, g * a))[0]


def relu(x: Array) -> Array:
    positive = x.values > 0
    return _made([x.values * positive], [x], lambda g: (g * positive,))[0]


def relu_(x: Array) -> Array:
    """In place: x itself is the result."""
    positive = x.values > 0
    if tape.is_on and x.requires_grad:
        x.edge = (Node([x], [x.values], lambda g: (g * positive,)), 0)
    x.change(x.values * positive)
    return x


def split(x: Array, *, at: int) -> tuple[Array, Array]:
    one, two = _made([x.values[:at], x.values[at:]], [x], lambda g, h: (np.concatenate([g, h]),))
    return one, two


def scaled_sum(x: Array, factor: float = 1.0, **options: Any) -> Array:
    """Two operations inside one API: the inner ones are calls too, but not the outermost."""
    return ops.mul(Array(factor), ops.add(x, x))


def total(x: Array) -> Array:
    shape = x.values.shape
    return _made([x.values.sum()], [x], lambda g: (np.broadcast_to(g, shape),))[0]


def broken(x: Array) -> Array:
    raise ValueError(f"cannot take shape {x.values.shape}")


def steering(x: Array) -> Array:
    raise StopEarly


class Work:
    """A communication under way."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self.waited: list[Callable[[], None]] = []

    def wait(self) -> None:
        self._finish()
        for callback in self.waited:
            callback()


def double_across(x: Array, *, wait: bool = True) -> Work | None:
    """As if two ranks with equal arrays added them up: the result stands in the argument."""
    work = Work(lambda: x.change(x.values * 2))
    if wait:
        work.wait()
        return None
    return work


def checkpoint(function: Callable[[Array], Array], x: Array) -> Array:
    """Run without a tape; backward runs the function again, with one."""
    with tape.switched(False):
        values = function(x).values

    def pass_back(g: Any) -> tuple[Any]:
        again = Array(x.values, requires_grad=True)
        with tape.switched(True):
            backward(function(again), g)
        return (again.gradient,)

    return _made([values], [x], pass_back)[0]


ops = SimpleNamespace(
    add=add,
    mul=mul,
    relu=relu,
    relu_=relu_,
    split=split,
    scaled_sum=scaled_sum,
    total=total,
    broken=broken,
    steering=steering,
    double_across=double_across,
    checkpoint=checkpoint,
)


def backward(result: Array, gradient: Any = None) -> None:
    """Pass gradients back from a result to the arrays it was made of."""
    waiting: dict[Node, list[Any]] = {}
    leaves: dict[int, tuple[Array, Any]] = {}

    def give(edge: tuple[Node, int] | None, array: Array, share: Any) -> None:
        if edge is None:
            known = leaves.get(id(array))
            leaves[id(array)] = (array, share if known is None else known[1] + share)
        else:
            slots = waiting.setdefault(edge[0], list(edge[0].outputs))
            slots[edge[1]] = slots[edge[1]] + share

    give(result.edge, result, np.ones_like(result.values) if gradient is None else gradient)
    while waiting:
        node = max(waiting, key=lambda node: node.number)
        of_outputs = waiting.pop(node)
        of_inputs = node.pass_back(*of_outputs)
        for hook in node.hooks:
            hook(of_inputs, of_outputs)
        for source, share in zip(node.inputs, of_inputs, strict=True):
            if source is not None:
                give(source[0], source[1], share)
    for array, whole in leaves.values():
        array.gradient = whole if array.gradient is None else array.gradient + whole
        for callback in list(array.on_gradient):
            callback(Array(whole))


class Module:
    """A part of a model: children and parameters are its attributes."""

    def __init__(self) -> None:
        self.before: list[Callable[..., None]] = []
        self.after: list[Callable[..., None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for hook in self.before:
            hook(self, args, kwargs)
        output, failed = None, True
        try:
            output = self.forward(*args, **kwargs)
            failed = False
        finally:
            for hook in self.after:
                hook(self, output, failed)
        return output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def named(self, path: str = "") -> Iterator[tuple[str, "Module"]]:
        yield path, self
        for name, child in vars(self).items():
            if isinstance(child, Module):
                yield from child.named(f"{path}.{name}".lstrip("."))

    def parameters(self) -> Iterator[tuple[str, Array]]:
        return ((name, value) for name, value in vars(self).items() if isinstance(value, Array))


class Scale(Module):
    def __init__(self, weight: Any, bias: Any = None) -> None:
        super().__init__()
        self.weight = Array(weight, requires_grad=True)
        if bias is not None:
            self.bias = Array(bias, requires_grad=True)

    def forward(self, x: Array) -> Array:
        y = ops.mul(x, self.weight)
        return ops.add(y, self.bias) if hasattr(self, "bias") else y


class Pair(Module):
    """Two scales with a relu between; `net` of a Model."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Scale([2.0, 3.0], [0.5, 0.5]), Scale([1.0, -1.0])

    def forward(self, x: Array) -> Array:
        return self.two(ops.relu(self.one(x)))


class Model(Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Pair()

    def forward(self, x: Array) -> Array:
        return ops.total(self.net(x))
