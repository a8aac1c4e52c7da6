"""Our own verdict of every place: is it rounding, did it come in with the inputs, or did this call make it?

A call is judged by what went into it. Its output may be off by what rounding of its dtype explains for so
many summands (u * sqrt(K), times a margin), plus what its inputs were off, times what one call may make of
that. What nothing explains originated here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msprobe.analyse.distance import Distance, coarsest, distance, roundoff, summands
from msprobe.analyse.judge import Finding, by_call
from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD, CallName
from msprobe.record import Leaf

Level = Literal["same", "rounding", "passed on", "entered", "originated", "not judged"]
SAME: Level = "same"
ROUNDING: Level = "rounding"  # differs, as far as rounding explains
PASSED_ON: Level = "passed on"  # differs more, and so did what went into the call
ENTERED: Level = "entered"  # an input that differs though nothing recorded before it does
ORIGINATED: Level = "originated"  # what went in agrees, what came out does not
NOT_JUDGED: Level = "not judged"
LEVELS = (SAME, ROUNDING, PASSED_ON, ENTERED, ORIGINATED, NOT_JUDGED)

MARGIN = 8.0  # times u * sqrt(K): what rounding explains
GAIN = 64.0  # what one call may make of an error of its inputs
DRIFT = 16.0  # where only summaries are known: how much larger an unseen error may be than any seen so far

# What these return is not determined: memory as it was found.
_UNDEFINED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize_"})


class Verdict(NamedTuple):
    """What became of a place, why, and the numbers behind it."""

    level: Level
    reason: str = ""
    error: float | None = None  # relative; also the smallest tolerance that would have passed
    tolerance: float | None = None  # what rounding explains here

    @property
    def cancelled(self) -> bool:
        """Rounding of far larger numbers that cancel: large beside the rest, and of no consequence."""
        return self.level == ROUNDING and self.error is not None and not self.error <= (self.tolerance or 0.0)

    @property
    def is_origin(self) -> bool:
        return self.level in (ENTERED, ORIGINATED)


_EQUAL = Verdict(SAME, error=0.0)


class _Seen(NamedTuple):
    """A place whose distance is known."""

    finding: Finding
    distance: Distance


def assess(findings: Sequence[Finding]) -> list[Verdict]:
    """A verdict for each finding, in their order; the calls are gone through in the order of execution."""
    calls = list(by_call(findings))
    seen = [[_Seen(f, distance(f.pair, f.measured)) for f in call] for call in calls]
    verdicts: list[list[Verdict]] = [[] for _ in calls]
    sources = _Sources(seen)
    memory = _Memory({call[0].pair.place.record.name: call[0].pair.place.record.parent for call in calls})
    for number in in_order([call[0].pair.place.record.name for call in calls]):
        call = seen[number]
        found = _assess_call(call, sources.of(call), memory)
        verdicts[number] = memory.noted(call, found)
    return [verdict for call_verdicts in verdicts for verdict in call_verdicts]


class _Memory:
    """What earlier calls have left, on the way through a run."""

    def __init__(self, parents: Mapping[CallName, str | None]) -> None:
        self.drift = 0.0  # the largest error so far
        self._parents = {str(name): parent for name, parent in parents.items()}
        self._made_in: dict[str, str] = {}  # a module: the call in it that made a difference
        self._cancelled: set[object] = set()

    def is_cancelled(self, seen: _Seen) -> bool:
        """Whether the same values came out of a call as rounding of far larger numbers."""
        return bool(self._cancelled) and _content(seen) in self._cancelled

    def noted(self, call: Sequence[_Seen], verdicts: list[Verdict]) -> list[Verdict]:
        """The verdicts of a call, with what is known of the calls in it."""
        name = str(call[0].finding.pair.place.record.name)
        if name in self._made_in:
            verdicts = [
                _made_inside(verdict, self._made_in[name]) if _is_output(seen) else verdict
                for seen, verdict in zip(call, verdicts, strict=True)
            ]
        elif any(verdict.is_origin for verdict in verdicts):
            self._made_in.update((module, name) for module in self._around(name))
        outputs = [v.error for s, v in zip(call, verdicts, strict=True) if _is_output(s)]
        lost = bool(outputs) and all(error == 0 for error in outputs)  # whatever came in had no effect
        for seen, verdict in zip(call, verdicts, strict=True):
            if verdict.cancelled:
                self._cancelled.add(_content(seen))
            elif verdict.error is not None and not lost:
                self.drift = max(self.drift, verdict.error)
        return verdicts

    def _around(self, name: str) -> list[str]:
        """The modules that a call ran in."""
        found: list[str] = []
        parent = self._parents.get(name)
        while parent is not None and parent not in found:
            found.append(parent)
            parent = self._parents.get(parent)
        return found


def _content(seen: _Seen) -> object:
    """What tells the values of a place from others, whatever shape they come in."""
    pair = seen.finding.pair
    leaves = [place.leaf for place in (pair.target, pair.golden) if place is not None]
    return tuple((leaf.dtype, leaf.stats, leaf.checksum) for leaf in leaves if leaf is not None)


def _is_output(seen: _Seen) -> bool:
    return seen.finding.pair.place.side == "output"


def _made_inside(verdict: Verdict, culprit: str) -> Verdict:
    """A module's output is what a call in it made of it."""
    if verdict.level not in (ORIGINATED, PASSED_ON):
        return verdict
    return verdict._replace(level=PASSED_ON, reason=f"{_off(verdict.error or 0.0)}, made inside by {culprit}")


def in_order(names: Sequence[CallName]) -> list[int]:
    """The numbers of the calls as they were executed: as recorded, but gradients of parameters come later.

    Some writers put these where the module ran forward.
    """
    last = {name.owner: n for n, name in enumerate(names) if name.direction == BACKWARD}
    end = max(last.values(), default=len(names))

    def place(number: int) -> tuple[int, int]:
        name = names[number]
        if name.direction != PARAMETERS_GRAD:
            return number, 0
        return max(number, last.get(name.owner, end)), 1

    return sorted(range(len(names)), key=place)


class _Sources:
    """What went into each call: its own inputs, and for a backward call all of the forward call.

    Where several calls are compared with one of the golden run, what went into any of them counts for all.
    """

    def __init__(self, calls: Sequence[Sequence[_Seen]]) -> None:
        self._forward: dict[CallName, Sequence[_Seen]] = {}
        self._modules: dict[str, list[_Seen]] = defaultdict(list)
        self._together: dict[CallName, list[Sequence[_Seen]]] = defaultdict(list)
        for call in calls:
            if call[0].finding.pair.target is None:
                continue
            name = call[0].finding.pair.place.record.name
            for other in _golden_names(call):
                self._together[other].append(call)
            if name.direction == FORWARD:
                self._forward[name] = call
            if name.is_module and name.direction != PARAMETERS_GRAD:
                self._modules[name.owner] += call

    def of(self, call: Sequence[_Seen]) -> list[_Seen]:
        name = call[0].finding.pair.place.record.name
        if name.direction == PARAMETERS_GRAD:
            return self._modules[name.owner]
        calls = [call]
        for other in _golden_names(call):
            calls += (each for each in self._together[other] if each is not call)
        own = [seen for each in calls for seen in each if seen.finding.pair.place.side != "output"]
        if name.direction == BACKWARD:
            names = (each[0].finding.pair.place.record.name.facing(FORWARD) for each in calls)
            return [*own, *(seen for each in names for seen in self._forward.get(each, ()))]
        return own


def _golden_names(call: Sequence[_Seen]) -> set[CallName]:
    """The calls of the golden run that places of a call are compared with; mostly one."""
    golden = (seen.finding.pair.golden for seen in call)
    return {place.record.name for place in golden if place is not None}


def _assess_call(call: Sequence[_Seen], sources: Sequence[_Seen], memory: _Memory) -> list[Verdict]:
    name = call[0].finding.pair.place.record.name
    if name.api in _UNDEFINED:
        return [Verdict(NOT_JUDGED, "its content is whatever the memory held") for _ in call]
    leaves = list(_leaves((*call, *sources)))
    growth = math.sqrt(summands(leaves, is_gradient=name.direction != FORWARD))
    rounding = _Rounding(coarsest(leaves), growth)
    outputs = [seen for seen in call if _is_output(seen)]
    reaches_out = not outputs or any(seen.distance.error != 0 for seen in outputs)
    found = []
    for seen in call:
        error, tolerance = seen.distance.error, rounding.at(seen)
        verdict = _alone(seen, error, tolerance)
        if verdict is None:
            assert error is not None
            if _is_output(seen):
                verdict = _output(seen, error, tolerance, sources, memory)
            else:
                verdict = _input(seen, error, tolerance, memory, reaches_out)
        found.append(verdict)
    return found


class _Rounding(NamedTuple):
    """What rounding explains in one call."""

    unit: float  # of the coarsest dtype
    growth: float  # by the number of summands

    def at(self, seen: _Seen) -> float:
        """The tolerance at a place; none where numbers are whole."""
        leaf = seen.finding.pair.place.leaf
        if leaf is None or not leaf.is_tensor:
            unit = roundoff(None) if leaf is not None and isinstance(leaf.value, float) else 0.0
        else:
            unit = self.unit if roundoff(leaf.dtype) else 0.0
        return MARGIN * unit * self.growth


def _leaves(places: Iterable[_Seen]) -> Iterator[Leaf | None]:
    for seen in places:
        pair = seen.finding.pair
        if pair.target is not None:
            yield pair.target.leaf
        if pair.golden is not None:
            yield pair.golden.leaf


def _alone(seen: _Seen, error: float | None, tolerance: float) -> Verdict | None:
    """The verdict of a place for which nothing else must be asked; None for all others."""
    if error is None:
        return Verdict(NOT_JUDGED, seen.finding.pair.reason or "nothing was recorded to compare")
    if error == 0:
        return _EQUAL
    if error <= tolerance:
        return Verdict(ROUNDING, _explained(error, tolerance), error, tolerance)
    return None


def _input(seen: _Seen, error: float, tolerance: float, memory: _Memory, reaches_out: bool) -> Verdict:
    if memory.is_cancelled(seen):
        reason = f"{_off(error)}: rounding of an earlier call, whose values nearly cancel"
        return Verdict(ROUNDING, reason, error, tolerance)
    if error <= tolerance + GAIN * memory.drift or not reaches_out:
        return Verdict(PASSED_ON, f"{_off(error)}, which earlier calls passed on", error, tolerance)
    return Verdict(ENTERED, _entered(seen, error), error, tolerance)


def _output(
    seen: _Seen, error: float, tolerance: float, sources: Sequence[_Seen], memory: _Memory
) -> Verdict:
    came = _before(seen, sources, memory)
    before = max(came.most, came.unseen)
    if tolerance == 0 and before > 0:
        return Verdict(PASSED_ON, "a whole number or truth value changed with its inputs", error, tolerance)
    # Where inputs differ, a decision such as that of relu may flip for a few numbers: it is the typical one
    # that must be explained.
    if before > 0 and seen.distance.typical <= tolerance + GAIN * before:
        if max(came.sound, came.unseen) <= tolerance < before:
            reason = f"{_off(error)}, as those of its inputs whose values nearly cancel"
            return Verdict(ROUNDING, reason, error, tolerance)
        whose = "its inputs" if came.most >= came.unseen else "earlier calls"
        return Verdict(PASSED_ON, f"{_off(error)}; {whose} are off by up to {before:.2g}", error, tolerance)
    if _cancelled(seen, sources, tolerance):
        reason = f"{_off(error)}, but its values nearly cancel: that is rounding of the far larger inputs"
        return Verdict(ROUNDING, reason, error, tolerance)
    return Verdict(ORIGINATED, _originated(seen, error, tolerance, came.most), error, tolerance)


class _Before(NamedTuple):
    """How far what went into a call is off."""

    most: float  # as far as it was recorded
    sound: float  # the same without values that nearly cancel
    unseen: float  # what may have come with it unseen


def _before(seen: _Seen, sources: Sequence[_Seen], memory: _Memory) -> _Before:
    most = max((s.distance.error or 0.0 for s in sources), default=0.0)
    sound = max((s.distance.error or 0.0 for s in sources if not memory.is_cancelled(s)), default=0.0)
    unseen = 0.0
    if seen.distance.seen in ("statistics", "checksums"):  # which show less than there is
        unseen = memory.drift * DRIFT / GAIN
    if seen.finding.pair.place.record.name.direction == PARAMETERS_GRAD and not any(
        s.finding.pair.place.record.name.direction == BACKWARD for s in sources
    ):
        unseen = memory.drift  # the gradient that went in was not recorded
    return _Before(most, sound, unseen)


def _cancelled(seen: _Seen, sources: Sequence[_Seen], tolerance: float) -> bool:
    """Whether the error is small beside what the values were made from.

    A gradient is made from gradients, times what ran forward, and may be a sum of many.
    """
    off = (seen.distance.error or 0.0) * seen.distance.size
    forward = [s for s in sources if s.finding.pair.place.record.name.direction == FORWARD]
    if seen.finding.pair.place.record.name.direction == FORWARD:
        return any(off <= _reach(s, tolerance) for s in forward)
    times = max([1.0, *(s.distance.size for s in forward)])
    gradients = [s for s in sources if s.finding.pair.place.record.name.direction == BACKWARD]
    return any(off <= times * _reach(s, tolerance) * math.sqrt(_share(s, seen)) for s in gradients)


def _reach(source: _Seen, tolerance: float) -> float:
    """How far an error of an input, and rounding of it, go where nothing else is added."""
    error, size = source.distance.error, source.distance.size
    return size * (tolerance + GAIN * error) if error is not None and math.isfinite(error) else 0.0


def _share(source: _Seen, seen: _Seen) -> float:
    """How many numbers of the source there are for each of the result, one at least."""
    return max(1.0, _count(source) / max(1, _count(seen)))


def _count(seen: _Seen) -> int:
    leaf = seen.finding.pair.place.leaf
    return math.prod(leaf.shape or ()) if leaf is not None else 1


# ---- in words ----


def _off(error: float) -> str:
    return "NaN or infinite on one side alone" if math.isinf(error) else f"off by {error:.2g} of its size"


def _explained(error: float, tolerance: float) -> str:
    return f"{_off(error)}; rounding explains up to {tolerance:.2g}"


def _originated(seen: _Seen, error: float, tolerance: float, before: float) -> str:
    inputs = "its inputs are equal" if before == 0 else f"its inputs are off by only {before:.2g}"
    dtype = seen.finding.pair.place.leaf.dtype if seen.finding.pair.place.leaf else ""
    explained = f"rounding of {dtype} explains up to {tolerance:.2g}" if tolerance else "no rounding here"
    return f"{_off(error)}; {inputs}, and {explained}"


def _entered(seen: _Seen, error: float) -> str:
    pair = seen.finding.pair
    leaves = [place.leaf for place in (pair.target, pair.golden) if place is not None]
    if not any(leaf is not None and leaf.is_tensor for leaf in leaves):
        ours, theirs = (None if leaf is None else leaf.value for leaf in leaves)
        return f"this argument is {ours!r}, in the golden run {theirs!r}"
    return (
        f"{_off(error)} already when it comes in, though nothing compared before it is: a parameter, data, "
        "or code that was not recorded or has no counterpart"
    )
