"""One recorded call made again: on the checked device as it was, or on the host in higher precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from msprobe.capture.patch import is_in_place
from msprobe.kernels import Statistics
from msprobe.name import slot_name
from msprobe.operators import operator_of
from msprobe.precheck.arguments import Arguments, Input, Rebuilder, filled, generated, is_float
from msprobe.precheck.calls import Call, Skip, Skipped
from msprobe.record import Leaf, tensors_in
from msprobe.store.dtypes import DTYPES, TensorData

HOST = "cpu"

_SINGLE = frozenset({"float32", "float64", "complex64", "complex128"})
_STEPS = 64  # a made gradient is a multiple of 1/64: every dtype holds it, so that both sides get the same
_NUMBERS = (bool, int, float, complex)


class Ran(NamedTuple):
    """One run of a call: its outputs, and the gradients of its inputs."""

    outputs: tuple[TensorData, ...]
    gradients: tuple[TensorData | None, ...] = ()
    failed_back: str = ""  # why it has no gradients


class Side(NamedTuple):
    """Where, and in which precision, a call is made."""

    device: str
    raised: Callable[[str], str]
    failure: Skip
    raises_casts: bool = False  # also the dtype that a cast is told


def checked_side(device: str) -> Side:
    return Side(device, str, Skip.CHECKED_FAILED)


def reference_side(call: Call, arguments: Arguments) -> Side:
    """One step more precise than the most precise number among the arguments."""
    if _depends_on_width(call, arguments):
        return Side(HOST, str, Skip.REFERENCE_FAILED)
    dtypes = {tensor.computed for tensor in arguments.inputs}
    wide = bool(dtypes & _SINGLE) or not any(map(is_float, dtypes))
    return Side(HOST, partial(_raised, wide=wide), Skip.REFERENCE_FAILED)


def double_side(call: Call, arguments: Arguments) -> Side:
    """float64 throughout, also where the call names another dtype; Skipped where it cannot be had."""
    if _depends_on_width(call, arguments):
        raise Skipped(Skip.FIXED_DTYPE)
    return Side(HOST, partial(_raised, wide=True), Skip.REFERENCE_FAILED, raises_casts=True)


def _depends_on_width(call: Call, arguments: Arguments) -> bool:
    """Whether the result depends on how many bits a number has."""
    reads_bits = operator_of(call.name).reads_bits
    return reads_bits or (call.name.api == "view" and _names_dtype(arguments))


def _names_dtype(arguments: Arguments) -> bool:
    values = (*arguments.args, *arguments.kwargs.values())
    return any(isinstance(value, Leaf) and value.type == "torch.dtype" for value in values)


def _raised(dtype: str, *, wide: bool) -> str:
    if "complex" in dtype:
        return "complex128" if wide else "complex64"
    return ("float64" if wide else "float32") if "float" in dtype else dtype


def run(
    replay: Rebuilder,
    call: Call,
    arguments: Arguments,
    side: Side,
    given: Sequence[Input | None] | None,
) -> Ran:
    """`given`: gradients of the outputs; None: none were recorded, so that they are made up."""
    function = replay.function_of(call.name)
    if function is None:
        raise Skipped(Skip.UNKNOWN)
    try:
        return _Run(replay, function, call, arguments, side, given).go()
    except (Skipped, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever the function raises is the answer
        raise Skipped(side.failure, f"{type(error).__name__}: {error}") from None


class _Run:
    """Makes a call once, and its gradients with it if it has any."""

    def __init__(
        self,
        replay: Rebuilder,
        function: Callable[..., Any],
        call: Call,
        arguments: Arguments,
        side: Side,
        given: Sequence[Input | None] | None,
    ) -> None:
        self._replay = replay
        self._function = function
        self._call = call
        self._arguments = arguments
        self._side = side
        self._given = given
        self._outputs: list[Any] = []
        self._taken: tuple[TensorData, ...] | None = None
        self._tensors = [self._tensor(tensor) for tensor in arguments.inputs]
        self._wanted = [
            index for index, tensor in enumerate(arguments.inputs) if tensor.requires_grad and tensor.is_float
        ]

    def go(self) -> Ran:
        if not (self._call.has_backward and self._wanted):
            with self._replay.outside():
                self._make(self._tensors)
            return Ran(self._take())
        try:
            gradients = self._back()
        except Exception as error:
            if self._taken is None or isinstance(error, MemoryError):
                raise
            told = error if isinstance(error, Skipped) else f"{type(error).__name__}: {error}"
            return Ran(self._taken, failed_back=str(told))
        return Ran(self._taken or (), gradients)

    def _tensor(self, tensor: Input) -> Any:
        """Rounded first to what the call computed with, so that both sides have the same numbers."""
        made = self._replay.moved(self._replay.make(tensor.data), tensor.dtype)
        computed = self._replay.moved(made, tensor.computed)
        return self._replay.moved(computed, self._side.raised(tensor.computed), self._side.device)

    def _back(self) -> tuple[TensorData | None, ...]:
        leaves = [self._tensors[index] for index in self._wanted]
        found = self._replay.gradients(self._called, leaves, _Later(self.results, self.gradient))
        gradients: list[TensorData | None] = [None] * len(self._tensors)
        for index, gradient in zip(self._wanted, found, strict=True):
            gradients[index] = None if gradient is None else self._replay.snapshot(gradient)
        return tuple(gradients)

    def _called(self, wanted: Sequence[Any]) -> Sequence[Any]:
        tensors = list(self._tensors)
        for index, tensor in zip(self._wanted, wanted, strict=True):
            tensors[index] = tensor
        self._make(tensors)
        self._taken = self._take()
        return self.results()

    def _make(self, tensors: Sequence[Any]) -> None:
        special = partial(self._replay.special, device=self._side.device, raised=self._dtype)
        args = filled(self._arguments.args, tensors, special)
        kwargs = filled(self._arguments.kwargs, tensors, special)
        if kwargs.get("device") is not None:
            kwargs["device"] = self._side.device
        output = self._function(*args, **kwargs)
        if output is None and args and is_in_place(self._call.name.api):
            output = args[0]
        found = tensors_in([output], self._replay.is_tensor)
        self._outputs = found or [item for item in _flat(output) if _is_number(item)]

    def _dtype(self, dtype: str) -> str:
        keeps = operator_of(self._call.name).casts and not self._side.raises_casts
        return dtype if keeps else self._side.raised(dtype)

    def _take(self) -> tuple[TensorData, ...]:
        taken = []
        for output in self._outputs:
            data = self._replay.snapshot(output) if self._replay.is_tensor(output) else _array(output)
            if data is None:
                raise Skipped(Skip.NO_NUMBERS)
            taken.append(data)
        return tuple(taken)

    def results(self) -> list[Any]:
        return [output for output in self._outputs if self._replay.is_tensor(output)]

    def gradient(self, index: int, output: Any) -> Any:
        """What comes back to an output, in its dtype; None: nothing."""
        dtype, shape = self._replay.dtype_of(output), tuple(output.shape)
        if not is_float(dtype):
            return None
        if self._given is None:
            made = self._replay.make(_made_up(slot_name(self._call.text, f"backward.input.{index}"), shape))
        else:
            given = self._given[index] if index < len(self._given) else None
            if given is None:
                return None
            if given.data.shape != shape:
                raise Skipped(Skip.GRADIENT_UNLIKE, f"{given.data.shape} is not {shape}.")
            made = self._replay.moved(self._replay.make(given.data), given.dtype)
        return self._replay.moved(made, dtype, self._side.device)


class _Later(Sequence[Any]):
    """Gradients that are made once the call has run, for they have the dtypes of its outputs."""

    def __init__(self, results: Callable[[], list[Any]], gradient: Callable[[int, Any], Any]) -> None:
        self._results, self._gradient = results, gradient

    def __len__(self) -> int:
        return len(self._results())

    def __getitem__(self, index: Any) -> Any:
        return self._gradient(index, self._results()[index])


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) or (isinstance(value, np.ndarray) and value.dtype.name in DTYPES)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [part for item in value for part in _flat(item)] if isinstance(value, (list, tuple)) else [value]


def _array(value: Any) -> TensorData:
    array = np.asarray(value)
    return TensorData(array.tobytes(), array.dtype.name, array.shape)


def _made_up(name: str, shape: tuple[int, ...]) -> TensorData:
    leaf = Leaf("torch.Tensor", dtype="torch.float64", shape=shape, stats=Statistics(1.0, -1.0, None, None))
    array = np.round(generated(leaf, name) * _STEPS) / _STEPS
    return TensorData(array.tobytes(), "float64", shape)
