"""One call made a second time: with perturbed inputs, in higher precision, on another device.

The second call is prepared before the first one runs, so that it does not matter what the first one changes,
and it works on copies, so that it changes nothing itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from msprobe.adapter import Replay, Surroundings
from msprobe.perturb import relative_change, relative_noise
from msprobe.store.dtypes import TensorData

HOST = "cpu"
RAISED: Mapping[str, str] = MappingProxyType({"float16": "float32", "bfloat16": "float32"})

NOTHING_TO_RAISE = "without a tensor in half precision"
NO_TENSOR = "without a floating-point tensor to perturb"

Change = Callable[[Any], Any]
_INTO = "out"  # the keyword of tensors that a call writes its result into


class Calling(NamedTuple):
    """A call that is about to be made, and what it will run in."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    surroundings: Surroundings


class SecondCall(NamedTuple):
    """A call that can be made, once or more, whatever becomes of the first one's arguments."""

    replay: Replay
    call: Calling
    mixed: bool
    randomness: Any
    change: float = 0.0  # of the tensor that was perturbed, beside its size

    @property
    def inputs(self) -> list[Any]:
        """The tensors among the arguments, in order."""
        return tensors_of((self.call.args, self.call.kwargs), self.replay.is_tensor)

    def run(self, *, differentiable: bool = False) -> Any:
        """The answer; random numbers are those that the first call drew, and go on where they were."""
        function, args, kwargs, surroundings = self.call
        with (
            surroundings(mixed=self.mixed, differentiable=differentiable),
            drawn_again(self.replay, self.randomness, (args, kwargs)),
        ):
            return function(*args, **kwargs)

    def with_noise(self, size: float) -> SecondCall:
        """The same call with all its floating-point tensors changed by `size` of themselves."""
        noisy: dict[int, Any] = {}

        def change(tensor: Any) -> Any:
            if id(tensor) not in noisy:
                noisy[id(tensor)] = noisy_tensor(self.replay, tensor, size)
            return noisy[id(tensor)]

        args, kwargs = mapped((self.call.args, self.call.kwargs), self.replay.is_tensor, change)
        return self._replace(call=self.call._replace(args=args, kwargs=kwargs))

    def _run_with(self, inputs: Sequence[Any]) -> Any:
        """The answer to other tensors, which take the places of `inputs`."""
        given = iter(inputs)
        arguments = (self.call.args, self.call.kwargs)
        args, kwargs = mapped(arguments, self.replay.is_tensor, lambda _: next(given))
        filled = self._replace(call=self.call._replace(args=args, kwargs=kwargs))
        return filled.run(differentiable=True)

    def gradients(self, places: Sequence[int], of_outputs: Mapping[int, Any]) -> list[Any]:
        """The gradients of the inputs at these places, from those of the outputs."""
        inputs = self.inputs

        def call(leaves: Sequence[Any]) -> list[Any]:
            filled = list(inputs)
            for place, leaf in zip(places, leaves, strict=True):
                filled[place] = leaf
            return answers(self._run_with(filled), filled, self.replay.is_tensor)

        count = max(of_outputs, default=-1) + 1
        given = [of_outputs.get(index) for index in range(count)]
        return self.replay.gradients(call, [inputs[place] for place in places], given)


def noisy_tensor(replay: Replay, tensor: Any, size: float) -> Any:
    """A copy of a tensor whose numbers are changed by `size` of themselves; of integers a plain copy."""
    data = replay.snapshot(tensor) if is_floating(replay, tensor) else None
    return replay.copy(tensor) if data is None else replay.like(tensor, relative_noise(data, size))


def perturbed(
    replay: Replay, call: Calling, perturb: Callable[[TensorData], TensorData | str] | None
) -> SecondCall | str:
    """The call with the first of its floating-point tensors perturbed; or why it would say nothing.

    Without a perturbation it is the same call again.
    """
    reasons: list[str] = []
    found: list[bool] = []
    changes: list[float] = []
    copy = _copying(replay)

    def change(tensor: Any) -> Any:
        if found or not is_floating(replay, tensor):
            return copy(tensor)
        found.append(True)
        if perturb is None:
            return copy(tensor)
        data = replay.snapshot(tensor)
        new = NO_TENSOR if data is None else perturb(data)
        if data is None or isinstance(new, str):
            reasons.append(NO_TENSOR if data is None else str(new))
            return tensor
        changes.append(relative_change(data, new))
        return replay.like(tensor, new)

    given = {key: value for key, value in call.kwargs.items() if key != _INTO}
    args, kwargs = mapped((call.args, given), replay.is_tensor, change)
    if reasons or not found:
        return reasons[0] if reasons else NO_TENSOR
    if _INTO in call.kwargs:
        kwargs[_INTO] = mapped(call.kwargs[_INTO], replay.is_tensor, copy)
    return _second(replay, call, args, kwargs, mixed=True)._replace(change=max(changes, default=0.0))


def raised(
    replay: Replay, call: Calling, *, device: str | None = None, in_graph: bool = False
) -> SecondCall | str:
    """The call with all tensors of half precision in float32, and on a device if one is named.

    `in_graph`: its inputs stay part of the graph, so that gradients pass through the second call.
    """
    raises: list[bool] = []
    copy = _copying(replay, in_graph)

    def change(tensor: Any) -> Any:
        wide = RAISED.get(replay.dtype_of(tensor))
        raises.append(wide is not None)
        there = device is None or replay.device_of(tensor) == device
        if wide is None and there:
            return copy(tensor)
        return replay.moved(tensor, wide, None if there else device)

    args, kwargs = mapped((call.args, call.kwargs), replay.is_tensor, change)
    if device is None and not any(raises):
        return NOTHING_TO_RAISE
    return _second(replay, call, args, kwargs, mixed=False)


def _second(replay: Replay, call: Calling, args: Any, kwargs: dict[str, Any], *, mixed: bool) -> SecondCall:
    if "inplace" in kwargs:
        kwargs["inplace"] = False
    drawn = randomness(replay, (call.args, call.kwargs))
    return SecondCall(replay, call._replace(args=args, kwargs=kwargs), mixed, drawn)


def is_floating(replay: Replay, tensor: Any) -> bool:
    """Whether it holds real numbers with fractions, in memory."""
    return "float" in replay.dtype_of(tensor) and replay.device_of(tensor) != "meta"


def _copying(replay: Replay, in_graph: bool = False) -> Change:
    """Copies tensors; one that comes twice is one tensor in the second call too."""
    copies: dict[int, Any] = {}

    def copy(tensor: Any) -> Any:
        if id(tensor) not in copies:
            copies[id(tensor)] = replay.copy(tensor, in_graph=in_graph)
        return copies[id(tensor)]

    return copy


# --- random numbers ---


def randomness(replay: Replay, given: Any = ()) -> Any:
    return random.getstate(), np.random.get_state(), replay.randomness(_others(given))


def _restore(replay: Replay, state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    replay.restore_randomness(state[2])


@contextmanager
def drawn_again(replay: Replay, state: Any, given: Any = ()) -> Iterator[None]:
    """Random numbers come from this state for a while, and afterwards go on as if nothing was drawn."""
    now = randomness(replay, given)
    _restore(replay, state)
    try:
        yield
    finally:
        _restore(replay, now)


def _others(given: Any) -> list[Any]:
    """What else may hold random state: arguments that are no tensors and no containers."""
    found: list[Any] = []
    args, kwargs = given or ((), {})
    for value in (*args, *kwargs.values()):
        if not isinstance(value, (bool, int, float, str, list, tuple, dict, type(None))):
            found.append(value)
    return found


# --- nested arguments ---


def tensors_of(value: Any, is_tensor: Callable[[Any], bool]) -> list[Any]:
    """The tensors of nested lists, tuples and dicts, in the order in which mapped() changes them."""
    found: list[Any] = []

    def see(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    mapped(value, is_tensor, see)
    return found


def mapped(value: Any, is_tensor: Callable[[Any], bool], change: Change) -> Any:
    """The value with each tensor in it changed; lists, tuples and dicts are made anew, the rest stays."""
    if is_tensor(value):
        return change(value)
    kind = type(value)
    if isinstance(value, (tuple, list)):
        items = [mapped(item, is_tensor, change) for item in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else rebuilt(kind, items)
    if kind is dict:
        return {key: mapped(item, is_tensor, change) for key, item in value.items()}
    return value


def answers(output: Any, inputs: Sequence[Any], is_tensor: Callable[[Any], bool]) -> list[Any]:
    """The tensors that a call gave; one that gives none has changed the first of its inputs."""
    return tensors_of(output, is_tensor) or list(inputs[:1])


def rebuilt(kind: type, items: list[Any]) -> Any:
    """A tuple or list of this type: a named tuple takes its items one by one."""
    if kind is list:
        return items
    return kind(*items) if hasattr(kind, "_make") else kind(items)
