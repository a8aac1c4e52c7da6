"""The plain arguments of two calls: whether they agree, and the call of one run with those of the other."""

from __future__ import annotations

import math
from typing import Any

from msprobe.dtypes import are_same_limit
from msprobe.precheck.arguments import Arguments, Input, Place
from msprobe.record import Leaf

_OVERRIDDEN = frozenset({"torch.dtype", "torch.device"})  # a replayed call has others in any case


def agree(ours: Arguments, theirs: Arguments) -> bool:
    """Return whether two calls have the same plain arguments, and tensors at the same positions."""
    return _agree(ours.args, theirs.args) and _agree(ours.kwargs, theirs.kwargs)


def _agree(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Place) or isinstance(theirs, Place):
        return isinstance(ours, Place) and isinstance(theirs, Place)
    if isinstance(ours, Leaf) and isinstance(theirs, Leaf):
        is_same = (ours.type, ours.value, ours.extra) == (theirs.type, theirs.value, theirs.extra)
        return is_same or (ours.type == theirs.type and ours.type in _OVERRIDDEN)
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(_agree, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_agree(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == theirs or are_same_limit(ours, theirs) or (math.isnan(ours) and math.isnan(theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


def with_arguments_of(theirs: Arguments, ours: Arguments, replaced: str) -> Arguments:
    """Return a call with all plain arguments of `theirs`, and with the tensors of `ours` where it has some.

    The tensor at the slot `replaced`, such as `input.mask`, is that of `theirs` too.
    """
    known = dict(_tensors(ours))
    inputs: list[Input] = []

    def see(tree: Any, slot: str) -> Any:
        if isinstance(tree, Place):
            keeps = slot in known and slot != replaced
            inputs.append(known[slot] if keeps else theirs.inputs[tree.number])
            return Place(len(inputs) - 1)
        if isinstance(tree, (list, tuple)):
            items = [see(item, f"{slot}.{index}") for index, item in enumerate(tree)]
            return tuple(items) if isinstance(tree, tuple) else items
        if isinstance(tree, dict):
            return {key: see(item, f"{slot}.{key}") for key, item in tree.items()}
        return tree

    return theirs._replace(
        args=see(theirs.args, "input"), kwargs=see(theirs.kwargs, "input"), inputs=tuple(inputs)
    )


def _tensors(arguments: Arguments) -> list[tuple[str, Input]]:
    """The tensors of a call by their slots; keywords stand among the inputs, as in a table."""
    found: list[tuple[str, Input]] = []

    def see(tree: Any, slot: str) -> None:
        if isinstance(tree, Place):
            found.append((slot, arguments.inputs[tree.number]))
        elif isinstance(tree, (list, tuple)):
            for index, item in enumerate(tree):
                see(item, f"{slot}.{index}")
        elif isinstance(tree, dict):
            for key, item in tree.items():
                see(item, f"{slot}.{key}")

    see(arguments.args, "input")
    see(arguments.kwargs, "input")
    return found
