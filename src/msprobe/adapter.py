"""Adapter: the questions a framework must answer so that the rest of msprobe never asks it directly."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from msprobe.name import CallName
from msprobe.record import Leaf
from msprobe.store.dtypes import TensorData

T = TypeVar("T")
Undo = Callable[[], None]


class Api(NamedTuple):
    """One interceptable function under the name it is recorded by."""

    prefix: str
    name: str
    in_place: bool = False  # its first argument is changed by the call
    communicates: bool = False  # its results stand in its arguments, perhaps only after a wait


class Around(Protocol):
    """What an adapter calls instead of an intercepted function."""

    def __call__(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...


class Copied(Protocol):
    """What an adapter calls when a call that is not recorded has copied a tensor, or a part of it."""

    def __call__(self, source: Any, copy: Any, *, is_whole: bool) -> None: ...


class OptimizerState(NamedTuple):
    """A tensor that an optimizer keeps from step to step."""

    name: str  # such as `exp_avg`
    parameter: Any  # that it is kept for; None where its name says so
    tensor: Any


class Region(Protocol):
    """What an adapter tells about checkpointed code, which runs a second time, copies and optimizers."""

    def mark(self) -> Any:
        """Before the first run: where the call counts stand."""
        ...

    def again(self, mark: Any) -> AbstractContextManager[None]:
        """Around a further run: its calls carry the names of the first."""
        ...

    def copied(self, source: Any, copy: Any, *, is_whole: bool) -> None:
        """After a call that is not recorded: its result is a copy of a tensor, or of some of its elements."""
        ...

    def optimizes(self, states: Iterable[OptimizerState]) -> None:
        """Before an optimizer makes its step: what it has kept so far."""
        ...


class ModuleWatch(Region, Protocol):
    """What an adapter tells while modules run.

    Where a thread of Python runs them, they are entered and left. Elsewhere each call is begun, within one
    that it runs in, and ended, which may happen in any order.
    """

    listening: bool

    def enter(self, owner: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...

    def leave(self, owner: str, module: Any, output: Any, failed: bool) -> None: ...

    def begin(
        self, owner: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], around: Any = None
    ) -> Any: ...

    def end(self, call: Any, module: Any, output: Any) -> None: ...

    def safely(self, doing: str, record: str, work: Callable[..., T], *args: Any) -> T | None:
        """Return `work(*args)`; log an error of it, and let training go on."""
        ...


class GradientSink(Protocol):
    """Takes the gradients of one call while backward runs; a function in place of a gradient makes it."""

    def of_output(self, index: int, gradient: Any) -> None: ...

    def of_input(self, index: int, gradient: Any) -> None: ...

    def finish(self) -> None: ...


class Extent(NamedTuple):
    """Where a tensor lies in the memory that it may share with others."""

    start: int
    end: int  # behind its last byte
    look: Hashable  # how the numbers lie there: equal ones at one start show the same numbers
    changes: Hashable | None  # equal ones: nobody has written there in between; None where nothing tells


class State(NamedTuple):
    """A tensor that belongs to a model under a name."""

    kind: Literal["parameter", "buffer"]
    name: str
    tensor: Any
    shape: tuple[int, ...]


class Want(NamedTuple):
    """What a description of a tensor holds beside dtype, shape and the four statistics."""

    checksum: bool = False
    sketch: bool = False
    float_sketch: bool = False  # a whole sketch of floating-point numbers that can be read where they lie


class Adapter(Protocol):
    """A framework, as far as recording needs it."""

    framework: str
    module_prefix: str
    file_suffix: str
    marks_recompute: bool  # whether its files say of each call if it was seen a second time

    def is_tensor(self, value: Any) -> bool: ...

    def describe(self, tensor: Any, want: Want) -> Leaf:
        """Describe a tensor now; on a device the statistics may follow with `settle()`."""
        ...

    def sketch(self, tensor: Any) -> bytes | None:
        """The sketch of a tensor; None where its values cannot be read here at little cost."""
        ...

    def pending(self) -> int:
        """How many descriptions wait on a device."""
        ...

    def settle(self) -> None:
        """Fetch all waiting descriptions in one transfer and fill in their `Deferred` statistics."""
        ...

    def describe_other(self, value: Any) -> Leaf | None:
        """A value only this framework knows: a dtype, a device, a process group."""
        ...

    def parts_of(self, value: Any) -> Mapping[str, Any] | None:
        """The parts of a container only this framework knows: its tensors are described, the rest stands."""
        ...

    def snapshot(self, tensor: Any) -> Any:
        """A private copy of the tensor's bytes (store.tensor_file.TensorData), or None if it has none."""
        ...

    def version_of(self, tensor: Any) -> Hashable | None:
        """Changes whenever the tensor's content may have; None when nothing can be said."""
        ...

    def memory_of(self, tensor: Any) -> Any:
        """What stands for the memory of a tensor, and can be held weakly; None where nothing does."""
        ...

    def extent_of(self, tensor: Any, version: Hashable | None, leaf: Leaf) -> Extent:
        """Where in its memory a tensor lies that has this version and this leaf.

        The tensor itself is None where it may be gone; then there is a version.
        """
        ...

    def differentiates(self) -> bool:
        """Whether calls made now become part of a graph."""
        ...

    def begin_backward(self, inputs: Sequence[Any]) -> Any:
        """Before a call that may be differentiated: note where its inputs hang in the graph."""
        ...

    def on_backward(self, begun: Any, outputs: Sequence[Any], sink: GradientSink) -> bool:
        """After the call: send this call's own gradients to `sink`; False when there will be none."""
        ...

    def on_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Undo | None:
        """Call back once with the total gradient of a leaf tensor."""
        ...

    def on_completion(self, result: Any, callback: Callable[[], None]) -> bool:
        """Call back when an asynchronous communication was waited for; False if it is complete already."""
        ...

    def is_control_flow(self, error: BaseException) -> bool:
        """Whether the framework raised this to steer itself, so that it is no failure of the call."""
        ...

    def overflow_flag(self) -> bool | None:
        """Whether the device noted an overflow since this was asked last; None where no device notes any."""
        ...

    def parameters(self, module: Any) -> Iterable[tuple[str, Any]]: ...

    def buffers(self, module: Any) -> Iterable[tuple[str, Any, int]]:
        """The state of a module itself that is no parameter: name, tensor, and how many elements it has."""
        ...

    def named_state(self, models: Any) -> Iterable[State]:
        """The parameters and buffers of what was given to start(), each under its name there."""
        ...

    def gradient_of(self, parameter: Any) -> Any:
        """The gradient that a parameter holds, as its optimizer finds it; None where it holds none."""
        ...

    def intercept(self, around: Around, region: Region) -> Undo: ...

    def watch(self, models: Any, watch: ModuleWatch) -> Undo: ...

    def on_model_call(self, model: Any, before: Callable[[], None], after: Callable[[], None]) -> Undo: ...

    def rank(self) -> int | None:
        """The rank of this process, None outside distributed training."""
        ...

    def counted_rank(self) -> int | None:
        """The same as configurations count it: among all processes, or anew on every node."""
        ...

    def untracked(self) -> AbstractContextManager[Any]:
        """While our own code touches tensors: no interception, no graph, no change of any state."""
        ...


class Surroundings(Protocol):
    """What a call ran in: its mixed precision, and whether a graph was built."""

    def __call__(self, *, mixed: bool, differentiable: bool) -> AbstractContextManager[Any]:
        """Enter it: with mixed precision or without, for a call that gradients shall pass or for another."""
        ...


class Replay(Protocol):
    """A framework, as far as calling one of its APIs again needs it.

    dtypes have the names of msprobe.store.dtypes, such as "float16"; devices those of the framework.
    """

    def is_tensor(self, value: Any) -> bool: ...

    def function_of(self, name: CallName) -> Callable[..., Any] | None:
        """What a record names, if it is one of the listed APIs and this release has it."""
        ...

    def obstacle(self, api: Api, tensors: Sequence[Any]) -> str | None:
        """Why a call with these tensors cannot be made a second time unnoticed; None where it can."""
        ...

    def comparable(self, api: Api, output: Any) -> Any:
        """The part of an output that two calls with the same inputs have in common, in its places."""
        ...

    def listed_as(self, name: CallName) -> str:
        """How the list of free_benchmark names this call in full."""
        ...

    def means(self, entry: str, name: CallName) -> bool:
        """Whether an entry of that list means this call."""
        ...

    def dtype_of(self, tensor: Any) -> str: ...

    def device_of(self, tensor: Any) -> str: ...

    def shape_of(self, tensor: Any) -> tuple[int, ...]: ...

    def snapshot(self, tensor: Any) -> TensorData | None:
        """A private copy of the tensor's bytes, or None if it has none."""
        ...

    def make(self, data: TensorData, device: str = "cpu") -> Any:
        """A tensor with these values, outside every graph."""
        ...

    def moved(self, tensor: Any, dtype: str | None = None, device: str | None = None) -> Any:
        """The tensor with another dtype or on another device; part of the graph, if one is built."""
        ...

    def copy(self, tensor: Any, *, in_graph: bool = False) -> Any:
        """The same values in memory of its own; outside every graph, unless gradients shall pass it."""
        ...

    def like(self, tensor: Any, data: TensorData) -> Any:
        """A copy with other values: on the same device, laid out in the same way."""
        ...

    def outside(self) -> AbstractContextManager[Any]:
        """No graph is built, and no call is recorded."""
        ...

    def surroundings(self) -> Surroundings:
        """What calls run in now, to be entered anew, perhaps later."""
        ...

    def randomness(self, values: Sequence[Any] = ()) -> Any:
        """The state of all random numbers that calls may draw, also of generators among these values."""
        ...

    def restore_randomness(self, state: Any) -> None: ...

    def gradients(
        self, call: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[Any], of_outputs: Sequence[Any]
    ) -> list[Any]:
        """Run `call(inputs)` and go back from its outputs: a gradient, or None, for each of the inputs."""
        ...
