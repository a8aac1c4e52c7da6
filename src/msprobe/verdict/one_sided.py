"""Values that only one run has: an argument, a gradient, a plain number beside a tensor."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from msprobe.analyse.judge import Finding, by_call
from msprobe.analyse.measure import Measured
from msprobe.dtypes import PLAIN, SINGLE, roundoff
from msprobe.graph import Graph
from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD, CallName, slot_name
from msprobe.operators import operator_of
from msprobe.pairing.match import Pair, Place
from msprobe.record import Leaf, Record, slots
from msprobe.verdict.difference import SAME_VALUE, UNKNOWN, Difference, Differences, other_shape
from msprobe.verdict.levels import PASSED_ON, Verdict
from msprobe.verdict.sources import Seen

ONE_SIDED = Difference("one side", False, is_odd=True)
_DEVIATIONS = 8.0  # of a sum over numbers that were rounded
_OF_GRADIENTS = 64.0  # unit roundoffs that a gradient may be off by


def paired_calls(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Return the findings of each call; what only the golden run gave to it belongs to the target's call."""
    found: list[list[Finding]] = []
    for call in by_call(findings):
        pair = call[0].pair
        is_more = pair.target is None and pair.is_one_sided
        if is_more and found and any(_is_of(each.pair, pair.place.record) for each in found[-1]):
            found[-1] += call
        else:
            found.append(call)
    return found


def _is_of(pair: Pair, golden: Record) -> bool:
    return pair.golden is not None and pair.golden.record is golden


class OneSided:
    """Says how far two values are apart, also where only one run has the value, and whether that matters."""

    def __init__(self, findings: Sequence[Finding], graphs: tuple[Graph, Graph]) -> None:
        self._graphs = graphs
        self._differences = Differences()
        self._has_makers = all(graph.is_recorded for graph in graphs)
        self._pairs = [finding.pair for finding in findings]

    def difference(self, pair: Pair, measured: Measured) -> Difference:
        """Return how far two values are apart, or that only one run has this one."""
        is_backward = pair.place.record.name.direction != FORWARD
        if is_backward and not self._has_makers:  # other tools record other gradients
            return self._differences.of(pair, measured)
        if id(pair) in self._in_other_pieces:
            return UNKNOWN
        if pair.is_one_sided or self._is_lost_gradient(pair):
            return ONE_SIDED
        ours = None if pair.target is None else pair.target.leaf
        theirs = None if pair.golden is None else pair.golden.leaf
        if ours is None or theirs is None or pair.unjudged:
            return self._differences.of(pair, measured)
        if ours.is_tensor != theirs.is_tensor:
            return _number_beside_tensor(ours, theirs)
        is_other = ours.shape != theirs.shape and ours.is_tensor and pair.certainty is not None
        return (
            other_shape(ours, theirs)
            if is_other and self._is_taken_elsewhere(pair)
            else self._differences.of(pair, measured)
        )

    @functools.cached_property
    def _paired(self) -> tuple[set[CallName], set[CallName]]:
        """The names of the calls of either run that the other makes too."""
        return _names([pair for pair in self._pairs if pair.target is not None and pair.golden is not None])

    @functools.cached_property
    def _owners(self) -> list[set[str]]:
        """The modules and APIs of these calls."""
        return [{name.owner for name in names} for names in self._paired]

    @functools.cached_property
    def _directions(self) -> list[set[str]]:
        """The directions that were recorded of either run."""
        return [{name.direction for name in names} for names in _names(self._pairs)]

    @functools.cached_property
    def _in_other_pieces(self) -> set[int]:
        """The ids of the pairs of parameters that one run keeps in other pieces, such as q, k and v in one.

        Their gradients lie in the same pieces.
        """
        records: dict[str, tuple[list[Pair], list[Pair]]] = defaultdict(lambda: ([], []))
        for pair in self._pairs:
            is_gradient = pair.place.record.name.direction == PARAMETERS_GRAD
            if is_gradient or (pair.is_one_sided and pair.place.side == "parameters"):
                side, place = only_place(pair)
                if place is not None and None in (pair.target, pair.golden):
                    record = place.call if side == 0 else self._counterparts[1].get(place.call, place.call)
                    records[record][side].append(pair)
        alike = (sides for sides in records.values() if _are_alike(*sides))
        return {id(pair) for sides in alike for pair in (*sides[0], *sides[1])}

    def _is_taken_elsewhere(self, pair: Pair) -> bool:
        """Whether two calls made an input in the two runs whose own counterparts are others, of one shape.

        Calls that were paired by what they do may have arguments of another shape for many reasons; that one
        run takes the result of another call is a difference.
        """
        if pair.place.side != "input" or pair.place.record.name.direction != FORWARD:
            return False
        makers = [
            graph.makers(place.call, place.slot)
            for graph, place in zip(self._graphs, pair[:2], strict=True)
            if isinstance(place, Place)
        ]
        if len(makers) < 2 or any(len(each) != 1 or each[0].kind != "call" for each in makers):
            return False
        names = [slot_name(each[0].name, each[0].slot) for each in makers]
        found = [known.get(name) for known, name in zip(self._results, names, strict=True)]
        return None not in found and found[0] is not found[1]

    @functools.cached_property
    def _results(self) -> tuple[dict[str, Pair], dict[str, Pair]]:
        """The pairs of results of one shape, by their names in the target and in the golden run."""
        both: tuple[dict[str, Pair], dict[str, Pair]] = {}, {}
        for pair in self._pairs:
            if pair.target is None or pair.golden is None or pair.place.side != "output":
                continue
            shapes = [place.leaf and place.leaf.shape for place in (pair.target, pair.golden)]
            if shapes[0] is not None and shapes[0] == shapes[1]:
                both[0][pair.target.name], both[1][pair.golden.name] = pair, pair
        return both

    def _is_lost_gradient(self, pair: Pair) -> bool:
        """Whether both runs make a call forward, and only one has the gradients of its parameters."""
        if pair.unjudged or (pair.target is not None and pair.golden is not None):
            return False
        place = pair.place
        ours, theirs = (0, 1) if pair.target is not None else (1, 0)
        name = place.record.name
        if place.leaf is None or name.direction == FORWARD or name.direction not in self._directions[theirs]:
            return False
        if name.direction == PARAMETERS_GRAD:
            return name.owner in self._owners[ours]
        return name.facing(FORWARD) in self._paired[ours] and self._is_of_parameter(ours, place)

    def _is_of_parameter(self, side: int, place: Place) -> bool:
        """Whether a place shows the gradient of a parameter."""
        if place.side != "output":
            return False
        makers = self._graphs[side].argument_makers(place.call, place.slot)
        return any(maker.kind == "parameter" for maker in makers)

    def is_needed(self, pair: Pair) -> bool:
        """Return whether a gradient that one run lacks is that of a parameter, or lies on the way to one.

        Where a gradient was lost, parameters lost theirs. Else a call has no gradient of its own, because
        it gave back its argument, as a cast to the dtype that it has, or because nobody asked for it.
        """
        side, place = only_place(pair)
        if place is None or (place.record.name.direction == BACKWARD and place.side != "output"):
            return False
        is_backward = place.record.name.direction == BACKWARD
        return self._is_of_trained(side, place) or (is_backward and side in self._with_lost)

    @functools.cached_property
    def _with_lost(self) -> set[int]:
        """The runs that have the gradient of a parameter which the other lacks."""
        found = map(only_place, (p for p in self._pairs if p.is_one_sided or self._is_lost_gradient(p)))
        return {side for side, place in found if place is not None and self._is_of_trained(side, place)}

    def _is_of_trained(self, side: int, place: Place) -> bool:
        """Whether a place shows the gradient of a parameter, as the call that uses it gives it out."""
        name = place.record.name
        if name.direction == BACKWARD and operator_of(name).keeps_values and not self._is_cut(side, place):
            return False
        return name.direction == PARAMETERS_GRAD or (
            name.direction == BACKWARD and self._is_of_parameter(side, place)
        )

    def _is_cut(self, side: int, place: Place) -> bool:
        """Whether the other run goes on with what its call gave out, and no gradient comes back from there.

        Where that call gave back its argument, nothing is used that it gave out.
        """
        graph = self._graphs[1 - side]
        call = self._counterparts[side].get(str(place.record.name.facing(FORWARD)))
        record = graph.recording.records.get(call or "")
        if call is None or record is None:
            return False
        outputs = (slot for slot, where, leaf in slots(record) if where == "output" and leaf is not None)
        given = [graph.is_given_back(*use) for slot in outputs for use in graph.users(call, slot)]
        return bool(given) and not any(given)

    @functools.cached_property
    def _counterparts(self) -> tuple[dict[str, str], dict[str, str]]:
        """The call that each call is compared with, by the names of both runs."""
        found: tuple[dict[str, str], dict[str, str]] = {}, {}
        for pair in self._pairs:
            if pair.target is not None and pair.golden is not None:
                found[0].setdefault(pair.target.call, pair.golden.call)
                found[1].setdefault(pair.golden.call, pair.target.call)
        return found


class _Pieces(NamedTuple):
    """What several tensors are together."""

    numbers: int
    sum: float
    squares: float
    unit: float


def _are_alike(ours: Sequence[Pair], theirs: Sequence[Pair]) -> bool:
    """Whether tensors have as many numbers as others, the same sum, and the same sum of squares."""
    one, other = _together(ours), _together(theirs)
    if one is None or other is None or not one.numbers or one.numbers != other.numbers:
        return False
    unit = max(one.unit, other.unit)
    is_gradient = ours[0].place.record.name.direction == PARAMETERS_GRAD
    # Each number is rounded by itself; a gradient has the rounding of all that went before it.
    rounding = unit * (_OF_GRADIENTS if is_gradient else _DEVIATIONS / math.sqrt(one.numbers)) + SINGLE
    return abs(one.squares - other.squares) <= rounding * one.squares and (
        abs(one.sum - other.sum) <= rounding * math.sqrt(one.numbers * one.squares)
    )


def _together(pairs: Sequence[Pair]) -> _Pieces | None:
    """What the tensors that only one run has are together; None if that is not known."""
    found = _Pieces(0, 0.0, 0.0, SINGLE)
    for _, place in map(only_place, pairs):
        leaf = place.leaf if place is not None else None
        stats = leaf.statistics if leaf is not None else None
        if leaf is None or stats is None or stats.mean is None or stats.norm is None:
            return None
        numbers, squares = found.numbers + leaf.elements, found.squares + stats.norm * stats.norm
        total, unit = found.sum + leaf.elements * stats.mean, max(found.unit, roundoff(leaf.dtype))
        found = _Pieces(numbers, total, squares, unit)
    return found if math.isfinite(found.squares) else None


def only_place(pair: Pair) -> tuple[int, Place | None]:
    """The run that has a value which the other lacks, and the place of it."""
    for side, place in enumerate((pair.target, pair.golden)):
        if place is not None and place.leaf is not None:
            return side, place
    return 0, None


def gradients_wanted(seen: Seen) -> Verdict | None:
    """Return the verdict of an equal input that requires gradients in one run only; else None."""
    pair = seen.pair
    leaves = [place.leaf for place in (pair.target, pair.golden) if place is not None]
    wanted = [leaf.requires_grad for leaf in leaves if leaf is not None]
    if pair.place.record.name.direction != FORWARD or len(wanted) < 2 or None in wanted:
        return None
    if wanted[0] == wanted[1]:
        return None
    return Verdict(PASSED_ON, f"equal; requires_grad is {wanted[0]}, in the golden run {wanted[1]}", 0.0, 0.0)


def _names(pairs: Sequence[Pair]) -> tuple[set[CallName], set[CallName]]:
    """The names of the calls of the target, and of the golden run."""
    return (
        {pair.target.record.name for pair in pairs if pair.target is not None},
        {pair.golden.record.name for pair in pairs if pair.golden is not None},
    )


def _number_beside_tensor(ours: Leaf, theirs: Leaf) -> Difference:
    """Return how far a plain number is from a tensor, all of whose numbers may be this one."""
    tensor, plain = (ours, theirs) if ours.is_tensor else (theirs, ours)
    stats, value = tensor.statistics, plain.value
    if stats is None or stats.max is None or stats.min is None or not isinstance(value, (int, float)):
        return ONE_SIDED
    ends = float(stats.max), float(stats.min)
    unit = roundoff(tensor.dtype) or PLAIN
    if all(end == value or abs(end - value) <= 2 * unit * abs(value) for end in ends):
        return SAME_VALUE
    size = max(abs(float(value)), *map(abs, ends))
    error = max(abs(end - value) for end in ends)
    if not math.isfinite(size) or not math.isfinite(error):
        return ONE_SIDED
    return Difference("one side", False, error, size, max(tensor.elements, 1), size)
