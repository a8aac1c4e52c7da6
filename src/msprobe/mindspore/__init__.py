"""The public door for MindSpore training; comparing what was recorded needs no MindSpore."""

from typing import TYPE_CHECKING, Any

from msprobe.compare_function import compare, compare_distributed

if TYPE_CHECKING:
    from msprobe.mindspore.callbacks import MsprobeInitStep, MsprobeStep
    from msprobe.mindspore.debugger import PrecisionDebugger
    from msprobe.mindspore.seeds import seed_all

__all__ = [
    "MsprobeInitStep",
    "MsprobeStep",
    "PrecisionDebugger",
    "compare",
    "compare_distributed",
    "seed_all",
]

_HOMES = {
    "MsprobeInitStep": "callbacks",
    "MsprobeStep": "callbacks",
    "PrecisionDebugger": "debugger",
    "seed_all": "seeds",
}
_HOMES_WITH_MSADAPTER = {**_HOMES, "seed_all": "msadapter_seeds"}  # where its defaults are others


def __getattr__(name: str) -> Any:
    """What needs MindSpore is imported when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from msprobe.mindspore import msadapter

    homes = _HOMES_WITH_MSADAPTER if msadapter.is_active() else _HOMES
    return getattr(import_module(f"{__name__}.{homes[name]}"), name)
