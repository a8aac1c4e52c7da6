"""The order in which calls were executed, which is not quite the order in which they were written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD, CallName


def in_order(names: Sequence[CallName]) -> list[int]:
    """The numbers of the calls as they were executed: as recorded, but for two kinds.

    Gradients of parameters come last; some writers put them where the module ran forward. A backward call
    that is written when the last of its gradients has come, as that of an LSTM, comes where it began.
    """
    last = {name.owner: n for n, name in enumerate(names) if name.direction == BACKWARD}
    end = max(last.values(), default=len(names))
    late = _late(names)

    def place(number: int) -> tuple[int, int]:
        name = names[number]
        if name.direction == PARAMETERS_GRAD:
            return max(number, last.get(name.owner, end)), 1
        return (late[number], -1) if number in late else (number, 0)

    return sorted(range(len(names)), key=place)


def _late(names: Sequence[CallName]) -> dict[int, int]:
    """Backward calls that stand behind one whose forward call was earlier, and the first such one.

    Autograd goes back from the last call to the first, so that one began before the other, and nothing of
    the other went into it.
    """
    went = {name.call: n for n, name in enumerate(names) if name.direction == FORWARD and not name.is_module}
    found: dict[int, int] = {}
    back: list[int] = []  # how far back this backward pass has come: the forward calls, as negative numbers
    where: list[int] = []  # and with which backward call
    for number, name in enumerate(names):
        if name.direction == FORWARD:
            back, where = [], []
        elif name.direction == BACKWARD and not name.is_module and name.call in went:
            depth = -went[name.call]
            if (first := bisect_right(back, depth)) < len(back):
                found[number] = where[first]
            else:
                back.append(depth)
                where.append(number)
    return found
