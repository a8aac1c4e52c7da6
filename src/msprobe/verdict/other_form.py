"""Suspects that only compute in another form: everything that is made of them agrees again.

`(q / s) @ k` beside `(q @ k) / s`: one run divides before the product, the other after it. Calls that were
paired by what they do then differ by a factor, and the values behind both do not. From a suspect on, the
calls that take in what differs are followed, and their backward calls too. If all of this comes to an end in
values that agree by far more than such a difference would leave of itself, no call of it is at fault. The
share of a gradient that one call gives a parameter comes to its end in the whole gradient of the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msprobe.graph import Graph, Spot
from msprobe.name import BACKWARD, PARAMETERS_GRAD, slot_name
from msprobe.operators import operator_of
from msprobe.pairing.match import Pair
from msprobe.record import slots
from msprobe.verdict.levels import ENTERED, PASSED_ON, ROUNDING, SAME, Verdict

_MOST_CALLS = 64  # forward, that one other form may take; gradients go all the way back
_CLEAR = 16.0  # times the tolerance of what agrees: a suspect that is less off may only have faded
_ABSORBED = 8.0  # times its error: what the arguments of a result that agrees should have made of it
_REASON = "computed in another form: what is made of it agrees with the golden run"


def excused(
    pairs: Sequence[Pair], verdicts: Sequence[Verdict], graphs: tuple[Graph, Graph]
) -> dict[int, Verdict]:
    """Return the verdicts of suspects that only compute in another form, by their numbers.

    Calls of the same names in the same order have one form, unless an argument of them is set otherwise, such
    as the number that masks others: then all must end in values that are equal.
    """
    is_aligned = any(pair.certainty is not None for pair in pairs)
    suspects = [
        number
        for number, verdict in enumerate(verdicts)
        if verdict.is_origin and (is_aligned or _is_setting(pairs[number], verdict))
    ]
    if not suspects:
        return {}
    sides = [_Side(graph, number, pairs, verdicts) for number, graph in enumerate(graphs)]
    found: dict[int, Verdict] = {}
    for number in suspects:
        pair, verdict = pairs[number], verdicts[number]
        side = sides[0 if pair.target is not None else 1]
        tolerance = side.end_tolerance(pair.place.call, is_exact=not is_aligned)
        error = math.inf if verdict.error is None else verdict.error  # None: only one run has it
        if tolerance is None or not error >= _CLEAR * tolerance:
            continue
        found[number] = verdict._replace(level=PASSED_ON, reason=_REASON)
    return found


def _is_setting(pair: Pair, verdict: Verdict) -> bool:
    """Whether a suspect is a plain argument of its call."""
    leaves = [place.leaf for place in (pair.target, pair.golden) if place is not None]
    return verdict.level == ENTERED and not any(leaf is None or leaf.is_tensor for leaf in leaves)


class _Side:
    """One run: its graph, and which of its values agree with the other run."""

    def __init__(self, graph: Graph, number: int, pairs: Sequence[Pair], verdicts: Sequence[Verdict]) -> None:
        self._graph, self._records = graph, graph.recording.records
        self._verdicts: dict[str, Verdict] = {}
        self._whole: dict[str, Verdict] = {}  # of the whole gradients, by the names of the parameters
        for pair, verdict in zip(pairs, verdicts, strict=True):
            place = pair.golden if number else pair.target
            if place is not None and pair.target is not None and pair.golden is not None:
                self._verdicts[place.name] = verdict
                if place.record.name.direction == PARAMETERS_GRAD:
                    self._whole[".".join((*place.record.name.path, place.slot))] = verdict

    def end_tolerance(self, record: str, *, is_exact: bool) -> float | None:
        """Follow what a call made until all agrees, and return the largest tolerance of what agrees there.

        None if not all agrees in the end, or if the call's own results do. `is_exact`: only what is equal
        agrees.
        """
        results = [self._verdicts.get(slot_name(record, slot)) for slot in self._outputs(record)]
        if results and all(made is not None and _agrees(made) for made in results):
            return None  # a setting that differs, and whose effect rounding hides
        agrees = _is_equal if is_exact else _agrees
        waiting, region, tolerance, forward = [record], set[str](), 0.0, 0
        while waiting:
            call = waiting.pop()
            if call in region:
                continue
            region.add(call)
            if call not in self._records:
                return None
            forward += self._records[call].name.direction != BACKWARD
            if forward > _MOST_CALLS:
                return None
            back = str(self._records[call].name.facing(BACKWARD))
            if back in self._records:
                waiting.append(back)
            for slot in self._outputs(call):
                made = self._verdicts.get(slot_name(call, slot))
                if made is not None and (_is_equal(made) if is_exact else _is_absorbed(made)):
                    tolerance = max(tolerance, made.tolerance or 0.0)
                    continue
                users = list(self._users(call, slot))
                if not users:
                    whole = self._whole_gradient(call, slot)
                    if whole is None or not agrees(whole):
                        return None
                    tolerance = max(tolerance, whole.tolerance or 0.0)
                for user in users:
                    given = self._verdicts.get(slot_name(*user))
                    if given is not None and agrees(given):
                        tolerance = max(tolerance, given.tolerance or 0.0)
                    elif given is not None and not self._takes_values(user[0]):
                        return None  # the value itself is an end, such as a loss
                    else:
                        waiting.append(user[0])
        return tolerance

    def _whole_gradient(self, record: str, slot: str) -> Verdict | None:
        """The verdict of the gradient of a parameter to which a call gives this share."""
        if self._records[record].name.direction != BACKWARD:
            return None
        makers = self._graph.argument_makers(record, slot)
        names = [maker.name for maker in makers if maker.kind == "parameter"]
        return self._whole.get(names[0]) if len(names) == 1 else None

    def _outputs(self, record: str) -> list[str]:
        """The tensors that a call gave out."""
        found = slots(self._records[record]) if record in self._records else ()
        return [
            slot for slot, side, leaf in found if side == "output" and leaf is not None and leaf.is_tensor
        ]

    def _takes_values(self, record: str) -> bool:
        """Whether a call computes with the values of its arguments, not only with their shapes."""
        operator = operator_of(self._records[record].name)
        return operator.kind != "makes" and not operator.is_shape

    def _users(self, record: str, slot: str) -> Iterator[Spot]:
        """Where an output goes in; a gradient goes into the backward call of what made its argument."""
        uses = self._graph.users(record, slot)
        yield from uses
        if uses or self._records[record].name.direction != BACKWARD:
            return
        for maker in self._graph.argument_makers(record, slot):
            back = str(self._records[maker.name].name.facing(BACKWARD)) if maker.kind == "call" else ""
            number = self._outputs(maker.name).index(maker.slot) if back in self._records else -1
            if number >= 0:
                yield back, f"input.{number}"


def _is_equal(verdict: Verdict) -> bool:
    return verdict.level == SAME and not verdict.looks_equal


def _agrees(verdict: Verdict) -> bool:
    return verdict.level in (SAME, ROUNDING)


def _is_absorbed(verdict: Verdict) -> bool:
    """Whether a result agrees although its arguments differ by far more."""
    if verdict.level == SAME:
        return True
    is_less = verdict.reached is not None and _ABSORBED * (verdict.error or 0.0) <= verdict.reached
    return verdict.level == ROUNDING and is_less
