"""What went into a call: its tensors, their errors, and how these reach each of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msprobe.dtypes import SINGLE
from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD, CallName
from msprobe.operators import Operator
from msprobe.verdict.call_facts import (
    arguments_of,
    explains,
    has_other_count,
    plain_numbers,
    position_of,
    roundoffs,
)
from msprobe.verdict.decisions import share_of_decisions
from msprobe.verdict.gradients import Backward, backward_reach, parameter_reach
from msprobe.verdict.known_errors import KnownErrors
from msprobe.verdict.sources import Seen
from msprobe.verdict.tolerance import Argument, Reach, forward_reach


class CallInputs:
    """The tensors that went into one call, and their errors; made only if an output of the call differs."""

    def __init__(
        self,
        name: CallName,
        operator: Operator,
        sources: Sequence[Seen],
        own_units: set[float],
        errors: KnownErrors,
        is_changed_state: Callable[[Argument], bool],
    ) -> None:
        """`sources`: of a backward call also what went into and came out of its forward call.

        `own_units`: the roundoffs of the call's own tensors. `is_changed_state`: whether an argument is a
        parameter that differs by more than rounding.
        """
        self.operator, self.sources, self.own_units = operator, sources, own_units
        self.differing = [s for s in sources if not s.value.agrees and s.value.is_known and explains(s)]
        self.other_counts = [source for source in sources if has_other_count(source)]
        self.units = own_units | roundoffs(sources)
        self.unit = max(self.units, default=SINGLE)
        self._backward = None if name.direction == FORWARD else _backward(sources)
        self.arguments = arguments_of(sources) if self._backward is None else self._backward.all
        self._plain = plain_numbers(sources) if self._backward is None else ()
        self.errors = [errors.of(argument) for argument in self.arguments]
        self.largest = list(map(errors.largest, self.arguments, self.errors))
        self.decided = share_of_decisions(sources)
        self._is_known = all(argument.value.is_equal is not None for argument in self.arguments)
        self._is_changed = any(map(is_changed_state, self.arguments))

    def reach(self, seen: Seen) -> Reach:
        """Return how the arguments reach an output."""
        if self._backward is None:
            reach = forward_reach(self.operator, seen.value, self.arguments, self._plain)
        elif seen.place.record.name.direction == PARAMETERS_GRAD:
            reach = parameter_reach(seen.value, self._backward)
        else:
            reach = backward_reach(self.operator, seen.value, position_of(seen), self._backward)
        if reach.is_exact and not self._is_known:
            reach = reach._replace(is_exact=False)  # it is not known whether exactly the same went in
        if self._is_changed:
            # An optimizer adds up what goes into these calls: such errors have much in common with it.
            reach = reach.at_most(math.inf)
        return reach


def _backward(sources: Sequence[Seen]) -> Backward:
    gradients = [s for s in sources if s.place.record.name.direction == BACKWARD]
    forward = [s for s in sources if s.place.record.name.direction == FORWARD]
    return Backward(
        arguments_of([s for s in gradients if not s.is_output]),
        arguments_of([s for s in forward if not s.is_output]),
        arguments_of([s for s in forward if s.is_output]),
        plain_numbers(forward),
    )
