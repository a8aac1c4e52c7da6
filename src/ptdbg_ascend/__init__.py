"""The old package ptdbg_ascend, release 2.3: its functions and its files, done by msprobe.

docs/legacy.md has each of its calls beside the one that msprobe has for it today.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

__version__ = "2.3"

_RECORDING = ("acc_cmp_dump", "overflow_check", "register_hook", "seed_all", "set_backward_input")
_SWITCHING = ("set_dump_path", "set_dump_switch", "set_overflow_check_switch")
_COMPARING = ("compare", "compare_distributed", "parse")
__all__ = [*_RECORDING, *_SWITCHING, *_COMPARING]


def __getattr__(name: str) -> Any:
    """The first use of an old function finds all of them, and says once that there is a newer way."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "ptdbg_ascend is the old way into msprobe: record with msprobe.pytorch.PrecisionDebugger, compare "
        "with `msprobe compare TARGET GOLDEN`. docs/legacy.md has each old call beside the new one.",
        DeprecationWarning,
        stacklevel=2,
    )
    session, comparing = (import_module(f"{__name__}.{module}") for module in ("session", "comparing"))
    found = {each: getattr(comparing if each in _COMPARING else session.the, each) for each in __all__}
    globals().update(found)
    return found[name]
