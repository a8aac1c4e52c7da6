"""What the compiler of graphs knows of the values that cells take and give: asked for while it compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mindspore
from mindspore import Tensor, ops
from mindspore._c_expression.typing import TensorType

from msprobe.mindspore.describe import name_of

# How a tensor is shown. What is empty, or has a size that is known only when the graph runs, is not: no such
# tensor can be handed to Python.
NOT, AS_IT_IS, WIDER, WITH_A_DIMENSION, WIDER_WITH_A_DIMENSION = range(5)

_WIDENED = ("BFloat16",)  # numpy may not have them, and float32 has all their values
_FLOATS = ("Float16", "Float32", "Float64", *_WIDENED)


class Slot(NamedTuple):
    """The place of a tensor among what a cell takes or gives."""

    dtype: str
    shape: tuple[int, ...]  # with negative numbers for what is not known

    @property
    def is_known(self) -> bool:
        return min(self.shape, default=0) >= 0

    @property
    def is_shown(self) -> bool:
        return min(self.shape, default=1) > 0

    @property
    def has_gradient(self) -> bool:
        return self.is_shown and self.dtype in _FLOATS

    @property
    def how(self) -> int:
        if not self.is_shown:
            return NOT
        if self.shape:
            return WIDER if self.dtype in _WIDENED else AS_IT_IS
        return WIDER_WITH_A_DIMENSION if self.dtype in _WIDENED else WITH_A_DIMENSION


class Layout(NamedTuple):
    """What one compiled call of a cell takes or gives, with slots in the places of its tensors."""

    cell: int
    tree: Any


class Unknown:
    """What only the graph knows, such as a number that it computes; or a function, or a cell."""

    def __repr__(self) -> str:
        return "Unknown"


def slots_of(tree: Any) -> Iterator[Slot]:
    """The slots of a tree, in the order in which tensors are counted."""
    if isinstance(tree, Slot):
        yield tree
    elif isinstance(tree, (tuple, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from slots_of(part)


def _tree(shape: Any, dtype: Any, value: Any) -> Any:
    """A value, as far as it is known, as Python would have it."""
    if isinstance(dtype, TensorType):
        return Slot(name_of(dtype.element_type()), tuple(shape))
    if isinstance(value, dict):
        parts = zip(shape, dtype, value.values(), strict=True)
        return {str(key): _tree(*part) for key, part in zip(value, parts, strict=True)}
    if isinstance(dtype, (tuple, list)):
        values = value if isinstance(value, (tuple, list)) else [None] * len(dtype)
        return tuple(_tree(*part) for part in zip(shape, dtype, values, strict=True))
    return Unknown() if value is None and dtype is not None else value


class _Question(ops.PrimitiveWithInfer):  # type: ignore[misc]  # MindSpore has no types
    """An operator that is never run: what it gives is a number that is known while a graph is compiled."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.set_const_prim(True)


class Layouts(_Question):
    """layouts(cell, value): the number of the layout of what a cell takes or gives."""

    def __init__(self) -> None:
        super().__init__("MsprobeLayout")
        self.found: list[Layout] = []
        self._numbers: dict[str, int] = {}

    def __infer__(self, cell: Any, value: Any) -> Any:
        layout = Layout(cell["value"], _tree(value["shape"], value["dtype"], value["value"]))
        text = repr(layout)  # 1, 1.0 and True are equal
        if text not in self._numbers:
            self.found.append(layout)
            self._numbers[text] = len(self.found) - 1
        return _answer(self._numbers[text])


class OfTensor(_Question):
    """What is to be done with a tensor."""

    def __init__(self, name: str, answer: Callable[[Slot], int]) -> None:
        super().__init__(name)
        self._of_slot = answer

    def __infer__(self, tensor: Any) -> Any:
        slot = _tree(tensor["shape"], tensor["dtype"], None)
        return _answer(self._of_slot(slot) if isinstance(slot, Slot) else 0)

    def __call__(self, tensor: Tensor) -> int:
        """In a dynamic graph, where a hook that is compiled elsewhere may run as it is."""
        return self._of_slot(Slot(name_of(tensor.dtype), tuple(tensor.shape)))


how_to_show = OfTensor("MsprobeHow", lambda slot: slot.how)
has_gradient = OfTensor("MsprobeHasGradient", lambda slot: int(slot.has_gradient))


def _answer(number: int) -> dict[str, Any]:
    return {"shape": (), "dtype": mindspore.int64, "value": number}
