"""What to compare, in the words of compare.json; every mistake in it is told in a sentence."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from msprobe.errors import UsageError

_KEYS = {"npu_path": str, "bench_path": str, "stack_path": str, "is_print_compare_log": bool}


class Request(NamedTuple):
    """Two recordings, and how they were asked for."""

    target: str
    golden: str
    stack: str | None = None  # the target's stack.json, where one was named
    loud: bool = False  # a line on screen for each call


def requested(values: Mapping[str, Any], where: str, *, with_stack: bool) -> Request:
    """The request of a compare.json, or of a dict with its keys; `where` names it in messages."""
    for key, value in values.items():
        _check(key, value, where)
    for key in ("npu_path", "bench_path"):
        if not values.get(key):
            raise UsageError(f"{where}: '{key}' is missing; it names a dump.json or the folder of a step.")
    target, golden, stack = values["npu_path"], values["bench_path"], values.get("stack_path")
    if with_stack:
        _check_stack(target, stack, where)
    return Request(target, golden, stack or None, values.get("is_print_compare_log") is not False)


def _check(key: str, value: Any, where: str) -> None:
    if key not in _KEYS:
        near = difflib.get_close_matches(str(key), _KEYS, n=1)
        meant = f"did you mean '{near[0]}'?" if near else f"it knows {', '.join(_KEYS)}."
        raise UsageError(f"{where}: '{key}' is not a key of compare.json; {meant}")
    if not isinstance(value, _KEYS[key]):
        word = "true or false" if _KEYS[key] is bool else "a text"
        raise UsageError(f"{where}: '{key}' is {value!r}; it must be {word}.")


def _check_stack(target: str, stack: str | None, where: str) -> None:
    if os.path.isdir(target):
        raise UsageError(
            f"{where}: call stacks are shown for one card, and {target} is the folder of several. Name a "
            "dump.json and its stack_path, or give the two folders on the command line without -i."
        )
    if not stack:
        raise UsageError(f"{where}: 'stack_path' is missing; call stacks come from the target's stack.json.")
