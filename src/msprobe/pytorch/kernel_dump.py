"""Level L2: kernel data of one API, which torch_npu writes by itself once it is asked in the right order."""

from __future__ import annotations

import difflib
import importlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from msprobe.adapter import Adapter, Api, OptimizerState, Undo
from msprobe.config import Config
from msprobe.errors import HardwareError, RecordingError
from msprobe.log import logger
from msprobe.name import BACKWARD, FORWARD, CallName, call_owner
from msprobe.store import tensor_file

_QUEUED = (
    "TASK_QUEUE_ENABLE is not 0: calls run late, which spoils kernel data. Set it before training starts."
)


class _Thread(threading.local):
    """Of nested calls only the outermost counts; checkpointed code counts its calls as in its first run."""

    def __init__(self) -> None:
        self.inside = False
        self.counts: Counter[str] | None = None


class CallKernels:
    """Has torch_npu dump the kernels of calls that overflowed, each while it runs once more."""

    def __init__(self, acl_config: str, refusal: str) -> None:
        """`refusal`: what is raised as a HardwareError where torch_npu is not there."""
        try:
            self._npu = _torch_npu()
        except HardwareError as error:
            raise HardwareError(refusal) from error
        if os.environ.get("TASK_QUEUE_ENABLE") != "0":
            logger().warning(_QUEUED)
        self._acl_config = acl_config

    def prepare(self, args: Any, kwargs: Any) -> Any:
        return _copies((args, kwargs), lambda tensor: tensor)

    def dump(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        try:
            with _same_randomness(self._npu):
                copied_args, copied_kwargs = _copies((args, kwargs), lambda tensor: tensor)
                with torch.no_grad(), _dumping(self._npu, self._acl_config):
                    function(*copied_args, **copied_kwargs)
        except Exception as error:  # noqa: BLE001 - a dump must never stop training
            logger().error("the kernel data of %s could not be dumped: %s.", name, error)
        else:
            logger().info("torch_npu has dumped the kernel data of %s as %s says.", name, self._acl_config)

    def dump_gradients(self, name: str) -> None:
        logger().info(
            "The overflow is caused by backward operator %s. You can use reverse acl dump(mode='acl') to get "
            "operator dump data.",
            name,
        )


class KernelDump:
    """Waits for the one call that is named, and has its kernels dumped while it runs once more."""

    def __init__(self, config: Config) -> None:
        if os.environ.get("TASK_QUEUE_ENABLE") != "0":
            logger().warning(_QUEUED)
        self._npu = _torch_npu()
        self._acl_config = config.acl_config
        self._wanted = CallName.parse(getattr(config.section, "scope", ("",))[0])
        self._gradients: tuple[str, ...] = getattr(config.section, "backward_input", ())
        self._counts: Counter[str] = Counter()
        self._thread = _Thread()
        self._undo: Undo | None = None
        self._done = False

    def start(self, adapter: Adapter) -> None:
        if self._undo is None and not self._done:
            self._undo = adapter.intercept(self.around, self)

    def stop(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def step(self) -> None:
        self.stop()
        if self._counts and not self._done:
            made = [str(CallName(owner, FORWARD, number - 1)) for owner, number in self._counts.items()]
            near = difflib.get_close_matches(str(self._wanted.facing(FORWARD)), made, n=1, cutoff=0.0)
            logger().warning(
                "no kernel data were dumped: %s was not called in this step; the nearest call is %s.",
                self._wanted.facing(FORWARD),
                near[0],
            )
        self._counts.clear()

    # --- the calls as they run ---

    def around(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        thread = self._thread
        if thread.inside or self._done:
            return function(*args, **kwargs)
        thread.inside = True
        try:
            counts = self._counts if thread.counts is None else thread.counts
            owner = call_owner(api.prefix, api.name)
            name = CallName(owner, FORWARD, counts[owner])
            counts[owner] += 1
            if name == self._wanted.facing(FORWARD):
                self._dump(api, function, args, kwargs)
            return function(*args, **kwargs)
        finally:
            thread.inside = False

    def mark(self) -> Counter[str]:
        counts = self._thread.counts
        return Counter(self._counts if counts is None else counts)

    @contextmanager
    def again(self, mark: Counter[str]) -> Iterator[None]:
        before, self._thread.counts = self._thread.counts, Counter(mark)
        try:
            yield
        finally:
            self._thread.counts = before

    def copied(self, source: Any, copy: Any, *, is_whole: bool) -> None:
        """Do nothing: this task does not ask who made a tensor."""

    def optimizes(self, states: Iterable[OptimizerState]) -> None:
        """Do nothing: this task does not ask who made a tensor."""

    # --- the one call, run once more on copies of its arguments ---

    def _dump(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._done = True
        try:
            with _same_randomness(self._npu):
                if self._wanted.direction == BACKWARD:
                    self._dump_backward(api, function, args, kwargs)
                else:
                    copied_args, copied_kwargs = _copies((args, kwargs), lambda tensor: tensor)
                    with torch.no_grad(), _dumping(self._npu, str(self._acl_config)):
                        function(*copied_args, **copied_kwargs)
        except Exception as error:  # noqa: BLE001 - a dump must never stop training
            logger().error("the kernel data of %s could not be dumped: %s.", self._wanted, error)
        else:
            logger().info(
                "torch_npu has dumped the kernel data of %s as %s says.", self._wanted, self._acl_config
            )

    def _dump_backward(
        self, api: Api, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        with torch.enable_grad():
            # An in-place call must not change a leaf of the graph.
            change: Callable[[Tensor], Tensor] = Tensor.clone if api.in_place else (lambda tensor: tensor)
            copied_args, copied_kwargs = _copies((args, kwargs), change)
            output = function(*copied_args, **copied_kwargs)
        outputs = [leaf for leaf in tree_leaves(output) if torch.is_tensor(leaf) and leaf.requires_grad]
        gradients = [_gradient(path) for path in self._gradients]
        if not torch.is_tensor(output) and len(outputs) != len(gradients):
            raise RecordingError(
                "its output is not of tensor type and cannot be automatically derived: name one file of "
                "backward_input for each of its outputs, or build a case of this one call by hand"
            )
        if [tensor.shape for tensor in outputs] != [gradient.shape for gradient in gradients]:
            raise RecordingError(
                f"its outputs have the shapes {[list(tensor.shape) for tensor in outputs]} and the files of "
                f"backward_input {[list(gradient.shape) for gradient in gradients]}"
            )
        gradients = [gradient.to(tensor.device) for tensor, gradient in zip(outputs, gradients, strict=True)]
        with _dumping(self._npu, str(self._acl_config)):
            torch.autograd.backward(outputs, gradients)


@contextmanager
def _dumping(torch_npu: Any, acl_config: str) -> Iterator[None]:
    npu = torch_npu.npu
    npu.init_dump()
    try:
        npu.set_dump(acl_config)
        npu.synchronize()
        yield
        npu.synchronize()
    finally:
        npu.finalize_dump()


def _torch_npu() -> Any:
    try:
        return importlib.import_module("torch_npu")
    except (ImportError, OSError) as error:
        raise HardwareError(
            f"level L2 dumps kernel data through torch_npu, which cannot be imported here ({error}): "
            "nothing was dumped; use level L1 or mix on this machine."
        ) from None


def _copies(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with copies in place of the tensors; what was one tensor stays one."""
    known: dict[int, Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            leaf = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            known[id(tensor)] = change(leaf)
        return known[id(tensor)]

    return tree_map_only(Tensor, copy, tree)


def _gradient(path: str) -> Tensor:
    array, dtype, _ = tensor_file.read(path)
    kind: torch.dtype = getattr(torch, dtype)
    if not array.size:
        return torch.empty(array.shape, dtype=kind)
    return torch.frombuffer(bytearray(array.tobytes()), dtype=kind).reshape(array.shape)


@contextmanager
def _same_randomness(npu: Any) -> Iterator[None]:
    """Whatever is drawn inside, the program draws the same afterwards as it would have."""
    host = torch.get_rng_state()
    device = npu.npu.get_rng_state() if hasattr(npu.npu, "get_rng_state") else None
    try:
        yield
    finally:
        torch.set_rng_state(host)
        if device is not None:
            npu.npu.set_rng_state(device)
