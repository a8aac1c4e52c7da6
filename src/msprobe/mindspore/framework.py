"""Where the installed MindSpore keeps what has moved between its releases."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Hashable
from typing import Any

import mindspore
from mindspore import _c_expression
from mindspore._c_expression import TensorPy
from mindspore.common.hook_handle import _TensorHookHandle


def _graph_api() -> Any:
    """Since 2.9 mindspore.common.api only forwards, with a warning: what is set there reaches nobody."""
    try:
        return importlib.import_module("mindspore.graph.api")
    except ImportError:
        return importlib.import_module("mindspore.common.api")


api = _graph_api()
executor: Any = api._pynative_executor
no_grad: Any = api._no_grad

_MARK = "msprobe"  # under which a tensor holds its mark

LEAF = 2**64 - 1  # the sequence number of a node that no operator made
SHOWS_NODES = hasattr(TensorPy, "_grad_node")  # of the graph of backward; since 2.7.1

# Waits for all calls that were made: what failed among them is raised here, as an error of training. Without
# this the values of any tensor raise it, once. Early releases have only sync(), which clears the graph then.
raise_late_errors: Callable[[], None] = getattr(_c_expression, "_wait_pipeline", executor.sync)


def grad_node(tensor: mindspore.Tensor) -> Any:
    """The node of backward that a tensor hangs on; None without one."""
    return getattr(tensor, "_grad_node", None)


def node_key(node: Any) -> Hashable:
    """What tells a node from all others as long as it is held; early releases number only operators."""
    if hasattr(node, "_unique_id"):
        key: Hashable = node._unique_id()
        return key
    number: int = node._sequence_nr()
    return node.name() if number == LEAF else number


def hook_gradient(tensor: mindspore.Tensor, hook: Callable[[Any], None]) -> Any:
    """The handle of a hook for the gradient of a tensor; MSAdapter's own register_hook() does not work."""
    handle = _TensorHookHandle(tensor)
    handle.id = TensorPy.register_hook(tensor, hook)
    return handle


class Mark:
    """Stands for a tensor of MindSpore, and is gone when that is: each hook sees it as another object."""

    __slots__ = ("__weakref__",)


def mark(tensor: mindspore.Tensor) -> Mark:
    """The mark of a tensor, which it is given if it has none; no other tensor, no view, ever has it."""
    found = mark_of(tensor)
    if found is None:
        found = Mark()
        tensor._set_user_data(_MARK, found)
    return found


def mark_of(tensor: mindspore.Tensor) -> Mark | None:
    """The mark of a tensor; None for all but gradients and what calls have changed in place."""
    found: Mark | None = tensor._get_user_data(_MARK) if SHOWS_NODES else None
    return found


def release() -> tuple[int, ...]:
    """The version as numbers: as text, 2.10 would come before 2.7."""
    return tuple(int(number) for number in re.findall("[0-9]+", mindspore.__version__)[:3])


def is_graph_mode() -> bool:
    return bool(mindspore.get_context("mode") == mindspore.GRAPH_MODE)


def bytecode_capture() -> list[type]:
    """The context in which mindspore.jit captures bytecode, if this release has it."""
    for where in ("mindspore.graph._utils.pijit_context", "mindspore.common._pijit_context"):
        try:
            return [importlib.import_module(where).PIJitCaptureContext]
        except (ImportError, AttributeError):
            continue
    return []
