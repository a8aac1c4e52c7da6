"""Where the installed MindSpore keeps what has moved between its releases."""

from __future__ import annotations

import importlib
from typing import Any

import mindspore


def _graph_api() -> Any:
    """Since 2.9 mindspore.common.api only forwards, with a warning: what is set there reaches nobody."""
    try:
        return importlib.import_module("mindspore.graph.api")
    except ImportError:
        return importlib.import_module("mindspore.common.api")


api = _graph_api()
executor: Any = api._pynative_executor
no_grad: Any = api._no_grad


def grad_node(tensor: mindspore.Tensor) -> Any:
    """The node of backward that a tensor hangs on; None without one, and in releases that show none."""
    return getattr(tensor, "_grad_node", None)


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
