"""What to compare, in the words of compare.json; every mistake in it is told in a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from msprobe.errors import UsageError
from msprobe.given import is_count, is_folder

_KEYS: dict[str, type] = {
    "npu_path": str,
    "bench_path": str,
    "stack_path": str,
    "is_print_compare_log": bool,
    "rank_id": list,
    "step_id": list,
}
_WORDS = {str: "a text", bool: "true or false", list: "a list of numbers from 0 on, such as [0, 1]"}


class Kernels(NamedTuple):
    """Which kernels: those of these ranks and steps; empty is all."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]


class Request(NamedTuple):
    """Two recordings, and how they were asked for."""

    target: str
    golden: str
    stack: str | None = None  # the target's stack.json, where one was named
    loud: bool = False  # a line on screen for each call
    kernels: Kernels | None = None  # of these, if kernels are to be compared


def requested(values: Mapping[str, Any], where: str, *, with_stack: bool) -> Request:
    """The request of a compare.json, or of a dict with its keys; `where` names it in messages."""
    for key, value in values.items():
        _check(key, value, where)
    for key in ("npu_path", "bench_path"):
        if not values.get(key):
            raise UsageError(f"{where}: '{key}' is missing; it names a dump.json or the folder of a step.")
    target, golden, stack = values["npu_path"], values["bench_path"], values.get("stack_path")
    if "rank_id" in values or "step_id" in values:
        kernels = Kernels(tuple(values.get("rank_id", ())), tuple(values.get("step_id", ())))
        _check_folders(target, golden, where)
        return Request(target, golden, kernels=kernels)
    if with_stack:
        _check_stack(target, stack, where)
    return Request(target, golden, stack or None, values.get("is_print_compare_log") is not False)


def _check(key: str, value: Any, where: str) -> None:
    if key not in _KEYS:
        near = difflib.get_close_matches(str(key), _KEYS, n=1)
        meant = f"did you mean '{near[0]}'?" if near else f"it knows {', '.join(_KEYS)}."
        raise UsageError(f"{where}: '{key}' is not a key of compare.json; {meant}")
    kind = _KEYS[key]
    if not isinstance(value, kind) or (isinstance(value, list) and not all(map(is_count, value))):
        raise UsageError(f"{where}: '{key}' is {value!r}; it must be {_WORDS[kind]}.")


def _check_folders(target: str, golden: str, where: str) -> None:
    for key, path in (("npu_path", target), ("bench_path", golden)):
        if not is_folder(path):
            raise UsageError(
                f"{where}: with 'rank_id' or 'step_id' kernels are compared, and '{key}' must be the folder "
                f"of a kernel dump; {path} is none. Leave both keys out to compare a dump.json."
            )


def _check_stack(target: str, stack: str | None, where: str) -> None:
    if is_folder(target):
        raise UsageError(
            f"{where}: call stacks are shown for one card, and {target} is the folder of several. Name a "
            "dump.json and its stack_path, or give the two folders on the command line without -i."
        )
    if not stack:
        raise UsageError(f"{where}: 'stack_path' is missing; call stacks come from the target's stack.json.")
