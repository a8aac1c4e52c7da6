"""A call's arguments made again from its record: tensors from their files, or of numbers between the recorded
minimum and maximum, the same in every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash

from msprobe.adapter import Replay
from msprobe.analyse.standard_table import COARSE, EPS_BY_DTYPE
from msprobe.errors import RecordingError
from msprobe.kernels import Statistics
from msprobe.name import CallName, slot_name
from msprobe.operators import Operator, operator_of
from msprobe.perturb import bit_noise
from msprobe.precheck.calls import Skip, Skipped
from msprobe.record import Leaf, Recording, Tree, leaves, number_type
from msprobe.store import tensor_path
from msprobe.store.dtypes import DTYPES, Array, TensorData
from msprobe.store.tensor_file import StoredTensor, read

_PLAIN = frozenset({"bool", "int", "float", "str"})
_TENSOR = "torch.Tensor"
_ARRAY = "numpy.ndarray"
_DTYPE = "torch.dtype"
_INDEXED = "__setitem__"
_OF_NUMPY = frozenset({"bool", "float16", "float32", "float64", "complex64", "complex128"})


class Rebuilder(Replay, Protocol):
    """A framework that can also make what only it knows, such as a dtype."""

    def special(self, leaf: Leaf, device: str, raised: Callable[[str], str]) -> Any:
        """The value of a leaf that is neither a tensor nor plain; `raised` gives a dtype in its place.

        Raises Skipped if it cannot be made.
        """
        ...

    def device(self, index: int) -> str:
        """The device that is checked: accelerator number `index`, or the host where there is none."""
        ...

    def apis(self) -> list[str]:
        """The names of the APIs that can be called again, without prefix."""
        ...

    def drew(self, before: Any) -> bool:
        """Whether random numbers were drawn since randomness() gave `before`."""
        ...


class Place(NamedTuple):
    """Stands in the arguments where a tensor belongs."""

    number: int


class Input(NamedTuple):
    """A tensor among the arguments: its values, and the dtype that they are to have."""

    slot: str
    data: TensorData
    dtype: str
    requires_grad: bool
    recorded: bool  # its values are those of the recording
    cast: str = ""  # what mixed precision made of it before the call computed with it

    @property
    def is_float(self) -> bool:
        return is_float(self.dtype)

    @property
    def computed(self) -> str:
        """The dtype that the call computed with."""
        return self.cast or self.dtype


def is_float(dtype: str) -> bool:
    return "float" in dtype or "complex" in dtype


class Arguments(NamedTuple):
    """Of one call; its trees hold Places, and Leaves that only the framework can turn into values."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Input, ...]
    made_up: bool = False  # beside the tensors: an array, of which only statistics are recorded

    @property
    def recorded(self) -> bool:
        return not self.made_up and all(tensor.recorded for tensor in self.inputs)


def rebuild(recording: Recording, name: CallName, fields: dict[str, Any]) -> Arguments:
    """Raises Skipped where an argument cannot be made."""
    inputs: list[Input] = []
    arrays: list[str] = []

    def see(tree: Tree, slot: str) -> Any:
        if isinstance(tree, Leaf):
            return _value(tree, slot)
        if isinstance(tree, list):
            return [see(item, f"{slot}.{index}") for index, item in enumerate(tree)]
        if isinstance(tree, dict):
            if not tree:
                raise Skipped(Skip.LOST_ARGUMENT, slot)  # what release 8.3.3 writes of a positional dtype
            return {key: see(item, f"{slot}.{key}") for key, item in tree.items()}
        return tree

    def _value(leaf: Leaf, slot: str) -> Any:
        if leaf.type == _ARRAY:
            arrays.append(slot)
            return generated(leaf, slot_name(str(name), slot))
        if leaf.is_tensor:
            if leaf.type != _TENSOR:
                raise Skipped(Skip.LOST_ARGUMENT, f"{slot} is a {leaf.type}.")
            inputs.append(tensor_of(recording, leaf, slot_name(str(name), slot)))
            return Place(len(inputs) - 1)
        return leaf.value if leaf.type in _PLAIN else leaf

    args = [see(tree, f"input.{index}") for index, tree in enumerate(fields.get("input_args") or ())]
    if name.api == _INDEXED and len(args) > 1 and isinstance(args[1], list):
        args[1] = tuple(args[1])  # JSON has no tuples; a list of indices is much rarer
    kwargs = {key: see(tree, f"kwargs.{key}") for key, tree in (fields.get("input_kwargs") or {}).items()}
    _settle_eps(name.api, args, kwargs, inputs)
    cast = _mixed(operator_of(name), fields, inputs)
    if cast:
        inputs = [tensor._replace(cast=cast) if tensor.is_float else tensor for tensor in inputs]
    return Arguments(tuple(args), kwargs, tuple(inputs), bool(arrays))


def _settle_eps(api: str, args: list[Any], kwargs: dict[str, Any], inputs: Sequence[Input]) -> None:
    """Write out an eps that is left to the dtype, so that a reference of higher precision has the same."""
    place = EPS_BY_DTYPE.get(api)
    if place is None or not inputs:
        return
    eps = 2.0**-52 if inputs[0].dtype == "float64" else 2.0**-23  # half precision is normalised in float32
    if len(args) > place:
        args[place] = eps if args[place] is None else args[place]
    elif kwargs.get("eps") is None:
        kwargs["eps"] = eps


def _mixed(operator: Operator, fields: dict[str, Any], inputs: Sequence[Input]) -> str:
    """The dtype that mixed precision computed in, which only the dtype of the output tells; "": none."""
    outputs = [number_type(leaf.dtype) for leaf in leaves(fields.get("output")) if leaf.is_tensor]
    floats = {tensor.dtype for tensor in inputs if tensor.is_float}
    output = outputs[0] if outputs else ""
    if output in COARSE and "float32" in floats and operator.is_lowered:
        return output
    named = leaves([fields.get("input_args"), fields.get("input_kwargs")])
    if output == "float32" and floats and floats <= COARSE and not operator.casts:
        return "" if any(leaf.type == _DTYPE for leaf in named) else output
    return ""


def filled(tree: Any, tensors: Sequence[Any], special: Callable[[Leaf], Any]) -> Any:
    """The tree with its tensors and values in place."""
    if isinstance(tree, Place):
        return tensors[tree.number]
    if isinstance(tree, Leaf):
        return special(tree)
    if isinstance(tree, (list, tuple)):
        items = (filled(item, tensors, special) for item in tree)
        return tuple(items) if isinstance(tree, tuple) else list(items)
    if isinstance(tree, dict):
        return {key: filled(item, tensors, special) for key, item in tree.items()}
    return tree


def shaken(tensors: Sequence[Input | None]) -> list[Input | None]:
    """The same with every number changed in its last bit."""
    changed = [None if tensor is None else bit_noise(tensor.data) for tensor in tensors]
    return [
        tensor if tensor is None or data is None or isinstance(data, str) else tensor._replace(data=data)
        for tensor, data in zip(tensors, changed, strict=True)
    ]


# ---- tensors ----


def tensor_of(recording: Recording, leaf: Leaf, name: str) -> Input:
    dtype = number_type(leaf.dtype)
    if dtype not in DTYPES:
        raise Skipped(Skip.LOST_ARGUMENT, f"{name} is of dtype {leaf.dtype}.")
    stored = content_of(recording, leaf)
    wants_gradient = bool(leaf.requires_grad)
    if stored is not None:
        return Input(name, stored, dtype, wants_gradient, recorded=True)
    array = generated(leaf, name)
    data = TensorData(array.tobytes(), array.dtype.name, array.shape)
    return Input(name, data, dtype, wants_gradient, recorded=False)


def content_of(recording: Recording, leaf: Leaf | None) -> TensorData | None:
    """What was recorded of a tensor, if its contents were."""
    path = tensor_path(recording, leaf) if leaf is not None else None
    if path is None or not path.exists():
        return None
    try:
        stored = read(path)
    except RecordingError as error:
        raise Skipped(Skip.UNREADABLE, error) from None
    return tensor_data(stored)


def tensor_data(stored: StoredTensor) -> TensorData:
    return TensorData(np.ascontiguousarray(stored.array).tobytes(), stored.dtype, stored.array.shape)


def generated(leaf: Leaf, name: str) -> Array:
    """Numbers from the recorded minimum to the maximum, the first and the last of them these two."""
    shape, stats, dtype = leaf.shape or (), leaf.stats, number_type(leaf.dtype)
    if 0 in shape:
        return np.zeros(shape, _whole_type(dtype))
    if not isinstance(stats, Statistics) or stats.min is None or stats.max is None:
        raise Skipped(Skip.NO_STATISTICS, name)
    if not (math.isfinite(stats.min) and math.isfinite(stats.max)):
        raise Skipped(Skip.NOT_FINITE, name)
    random = np.random.Generator(np.random.PCG64(xxhash.xxh3_64_intdigest(name.encode())))
    return _numbers(random, stats.min, stats.max, shape, dtype)


def _whole_type(dtype: str) -> np.dtype[Any]:
    """What numbers of this dtype are generated as."""
    if dtype in _OF_NUMPY or dtype.startswith(("int", "uint")):
        return np.dtype(dtype)
    return np.dtype("complex128" if dtype.startswith("complex") else "float64")


def _numbers(
    random: np.random.Generator, low: float, high: float, shape: tuple[int, ...], dtype: str
) -> Array:
    array: Array
    if dtype == "bool":
        array = np.asarray(random.integers(0, 2, shape)).astype(np.bool_)
    elif dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        low = max(int(low), int(limits.min))
        high = max(low, min(int(high), int(limits.max)))
        array = np.asarray(random.integers(low, high, shape, dtype=np.dtype(dtype).type, endpoint=True))
    else:
        array = np.asarray(random.uniform(float(low), float(high), shape)).astype(_whole_type(dtype))
    array.flat[0], array.flat[-1] = low, high
    return array
