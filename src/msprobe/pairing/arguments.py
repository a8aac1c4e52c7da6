"""Which plain arguments of two calls of different APIs mean the same, so that they can be judged."""

from __future__ import annotations

from msprobe.name import CallName
from msprobe.pairing.roles import plain_role


def mean_the_same(ours: CallName, theirs: CallName, slots: tuple[str, str]) -> bool:
    """Whether a plain argument is the same setting in two APIs; `slots` has its slot in either, or "".

    What has one keyword in both is the same setting. What stands at a position is the same only where both
    frameworks are known to have the same there; so is what only one of them has at all.
    """
    here, there = map(_argument, slots)
    if not here or not there:
        return here == there  # no argument at all, but an output
    if not here.isdigit() and not there.isdigit():
        return True
    roles = _role(ours, here), _role(theirs, there)
    return roles[0] == roles[1] and roles[0] != ""


def _argument(slot: str) -> str:
    """The position or keyword of an argument: `1` of `.input.1` and of `.input.1.0`."""
    parts = slot.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "input" else ""


def _role(name: CallName, argument: str) -> str:
    return plain_role(name, int(argument)) if argument.isdigit() else argument
