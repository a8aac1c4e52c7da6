"""The old package ptdbg_ascend, release 2.3: its functions and its files, done by msprobe.

docs/legacy.md has each of its calls beside the one that msprobe has for it today.
"""

import warnings
from importlib import import_module
from typing import Any

from msprobe.errors import UsageError

__version__ = "2.3"

__all__ = [
    *("acc_cmp_dump", "compare", "compare_distributed", "overflow_check", "parse", "register_hook"),
    *("seed_all", "set_backward_input", "set_dump_path", "set_dump_switch", "set_overflow_check_switch"),
]

INVALID_PATH, INVALID_PARAM = 1, 11  # the numbers that the old tool gave to kinds of errors


class CompareException(UsageError):
    """What an old script may catch; `code` is the exit status where the old function ended the process."""

    def __init__(self, sentence: str, code: int = INVALID_PARAM) -> None:
        super().__init__(sentence)
        self.code = code


def demand(condition: object, sentence: str, code: int = INVALID_PARAM) -> None:
    """Go on if this holds; the sentence says why it must."""
    if not condition:
        raise CompareException(sentence, code)


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
    for module in (import_module(f"{__name__}.comparing"), import_module(f"{__name__}.session")):
        globals().update({each: value for each, value in vars(module).items() if each in __all__})
    return globals()[name]
