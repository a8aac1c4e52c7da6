"""The answers of the toy to the questions of msprobe.adapter: a third framework, no mocks, no torch."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msprobe.adapter import Api, Around, Extent, GradientSink, ModuleWatch, Region, State, Undo, Want
from msprobe.kernels import checksum, described_of, sketch_of
from msprobe.name import module_owner
from msprobe.record import Deferred, Leaf
from msprobe.store.tensor_file import TensorData
from toy import Array, Kind, Module, Node, Parcel, StopEarly, Work, ops, tape

_UNRECORDED = ("checkpoint",)


class ToyAdapter:
    """The toy's answers."""

    framework = "toy"
    module_prefix = "Module"
    file_suffix = ".npy"
    marks_recompute = True

    def __init__(self) -> None:
        self.the_rank: int | None = None
        self.described = 0  # how many arrays were looked at
        self.transfers: list[int] = []  # how many statistics each transfer brought from the device
        self.refuses: Callable[[Array], bool] = lambda array: False  # arrays that cannot be described
        self.flags: list[bool] = []  # what the device answers when it is asked for an overflow
        self._waiting: list[tuple[Deferred, Any]] = []

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, Array)

    def describe(self, tensor: Array, want: Want) -> Leaf:
        if self.refuses(tensor):
            raise RuntimeError("this array cannot be described")
        self.described += 1
        values = tensor.values
        stats: Any
        stats, digest, brief = described_of(values)
        if tensor.on_device:
            self._waiting.append((deferred := Deferred(), (stats, digest, brief)))
            stats, digest, brief = deferred, None, None
        return Leaf(
            "toy.Array",
            dtype=values.dtype.name,
            shape=values.shape,
            stats=stats,
            requires_grad=tensor.requires_grad,
            checksum=checksum(values.tobytes()) if want.checksum else None,
            sketch=sketch_of(values) if want.sketch else brief,
            hash=digest,
        )

    def sketch(self, tensor: Array) -> bytes | None:
        return None if tensor.on_device else sketch_of(tensor.values)

    def pending(self) -> int:
        return len(self._waiting)

    def settle(self) -> None:
        if self._waiting:
            self.transfers.append(len(self._waiting))
        for deferred, found in self._waiting:
            deferred.statistics, deferred.hash, deferred.sketch = found
        self._waiting = []

    def describe_other(self, value: Any) -> Leaf | None:
        return Leaf("toy.Kind", str(value)) if isinstance(value, Kind) else None

    def parts_of(self, value: Any) -> Mapping[str, Any] | None:
        return {"content": value.content, "to": value.to} if isinstance(value, Parcel) else None

    def snapshot(self, tensor: Array) -> TensorData:
        return TensorData(tensor.values.tobytes(), tensor.values.dtype.name, tensor.values.shape)

    def version_of(self, tensor: Array) -> Hashable | None:
        return tensor.version

    def memory_of(self, tensor: Array) -> Any:
        return tensor.values

    def extent_of(self, tensor: Array | None, version: Hashable | None, leaf: Leaf) -> Extent:
        return Extent(0, 1, leaf.shape, version)

    def differentiates(self) -> bool:
        return tape.is_on

    def begin_backward(self, inputs: Sequence[Array]) -> Any:
        edges = [(array.edge, array) for array in inputs]
        return next(Node._numbers), edges

    def on_backward(self, begun: Any, outputs: Sequence[Array], sink: GradientSink) -> bool:
        """Hook the nodes of the call that made its outputs, or that have an edge to one of its inputs."""
        since, inputs = begun
        tops = [array.edge for array in outputs if array.edge is not None and array.edge[0].number > since]
        nodes = {edge[0]: None for edge in tops}
        for node in nodes_below(list(nodes), since):
            nodes[node] = None
        hooked = [node for node in nodes if _uses(node, inputs) or any(node is top for top, _ in tops)]
        left = [len(hooked)]
        for node in hooked:
            node.hooks.append(_told(node, tops, inputs, sink, left))
        return bool(hooked)

    def on_gradient(self, tensor: Array, callback: Callable[[Any], None]) -> Undo | None:
        if not tensor.requires_grad:
            return None
        tensor.on_gradient.append(callback)
        return lambda: tensor.on_gradient.remove(callback) if callback in tensor.on_gradient else None

    def on_completion(self, result: Any, callback: Callable[[], None]) -> bool:
        if not isinstance(result, Work):
            return False
        result.waited.append(callback)
        return True

    def is_control_flow(self, error: BaseException) -> bool:
        return isinstance(error, StopEarly)

    def overflow_flag(self) -> bool | None:
        return self.flags.pop(0) if self.flags else None

    def parameters(self, module: Module) -> Iterable[tuple[str, Array]]:
        return module.parameters()

    def named_state(self, models: Any) -> Iterator[State]:
        for index, root in _roots(models):
            for path, module in root.named():
                for name, array in module.parameters():
                    before = [] if index is None else [str(index)]
                    full = ".".join([*before, *([path] if path else []), name])
                    yield State("parameter", full, array, array.values.shape)

    def buffers(self, module: Module) -> Iterable[tuple[str, Array, int]]:
        return ()

    def gradient_of(self, parameter: Array) -> None:
        return None  # what it holds are values without an identity

    def intercept(self, around: Around, region: Region) -> Undo:
        held = dict(vars(ops))
        for name, function in held.items():
            if name not in _UNRECORDED:
                setattr(ops, name, _seen(name, function, around))
        ops.checkpoint = lambda function, x: held["checkpoint"](_Again(function, region), x)
        return lambda: vars(ops).update(held)

    def watch(self, models: Any, watch: ModuleWatch) -> Undo:
        undo: list[Undo] = []
        for index, root in _roots(models):
            for path, module in root.named():
                if path:
                    owner = module_owner(path, type(module).__name__, index=index)
                    undo += _hooked(module, *_telling(owner, watch))
        return lambda: [one() for one in undo] and None

    def on_model_call(self, model: Module, before: Callable[[], None], after: Callable[[], None]) -> Undo:
        undo = _hooked(model, lambda *_: before(), lambda *_: after())
        return lambda: [one() for one in undo] and None

    def rank(self) -> int | None:
        return self.the_rank

    counted_rank = rank

    @contextmanager
    def untracked(self) -> Iterator[None]:
        with tape.switched(False):
            yield


def _roots(models: Any) -> list[tuple[int | None, Module]]:
    return list(enumerate(models)) if isinstance(models, (list, tuple)) else [(None, models)]


def nodes_below(nodes: list[Node], since: int) -> Iterator[Node]:
    for node in nodes:
        below = [source[0][0] for source in node.inputs if source is not None and source[0] is not None]
        newer = [other for other in below if other.number > since]
        yield from newer
        yield from nodes_below(newer, since)


def _uses(node: Node, inputs: Sequence[Any]) -> bool:
    return any(_same(source, place) for source in node.inputs for place in inputs)


def _same(source: Any, place: Any) -> bool:
    """Whether an input of a node is an input of the call, as it was before the call."""
    if source is None:
        return False
    return source[0] == place[0] if place[0] is not None else source[0] is None and source[1] is place[1]


def _told(node: Node, tops: Any, inputs: Any, sink: GradientSink, left: list[int]) -> Callable[..., None]:
    def hook(of_inputs: Sequence[Any], of_outputs: Sequence[Any]) -> None:
        for index, (top, place) in enumerate(tops):
            if top is node:
                sink.of_output(index, Array(of_outputs[place]))
        for source, share in zip(node.inputs, of_inputs, strict=True):
            index = next((i for i, place in enumerate(inputs) if _same(source, place)), None)
            if index is not None:
                sink.of_input(index, Array(share))
        left[0] -= 1
        if left[0] == 0:
            sink.finish()

    return hook


def _seen(name: str, function: Callable[..., Any], around: Around) -> Callable[..., Any]:
    api = Api("Toy", name, in_place=name.endswith("_"), communicates=name == "double_across")
    return lambda *args, **kwargs: around(api, function, args, kwargs)


class _Again:
    """Tells the runs of a checkpointed function after the first one to the region."""

    def __init__(self, function: Callable[[Array], Array], region: Region) -> None:
        self._function, self._region, self._mark = function, region, region.mark()
        self._ran = False

    def __call__(self, x: Array) -> Array:
        if not self._ran:
            self._ran = True
            return self._function(x)
        with self._region.again(self._mark):
            return self._function(x)


def _telling(owner: str, watch: ModuleWatch) -> tuple[Callable[..., None], Callable[..., None]]:
    return (
        lambda module, args, kwargs: watch.enter(owner, module, args, kwargs),
        lambda module, output, failed: watch.leave(owner, module, output, failed),
    )


def _hooked(module: Module, before: Callable[..., None], after: Callable[..., None]) -> list[Undo]:
    module.before.append(before)
    module.after.insert(0, after)
    return [lambda: module.before.remove(before), lambda: module.after.remove(after)]
