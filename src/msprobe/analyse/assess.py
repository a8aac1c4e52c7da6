"""Our own verdict of every place: is it rounding, did it come in with the inputs, or did this call make it?

A call is judged by what went into it. Its output may be off by what rounding explains, times a margin: once
in its dtype, and for so many summands (u * sqrt(K)) in float32 or better, in which all hardware adds; plus
what its inputs were off, times what one call may make of that. What nothing explains originated here.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msprobe.analyse.cancel import cancels
from msprobe.analyse.distance import coarsest, distance, roundoff, summands
from msprobe.analyse.gain import GAIN, gain
from msprobe.analyse.judge import Finding, by_call
from msprobe.analyse.match import Pair
from msprobe.analyse.reason import entered, off, originated, told
from msprobe.analyse.sources import Seen, Sources
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
DRIFT = 16.0  # where only summaries are known: how much larger an unseen error may be than any seen so far

_COMPUTED = 2.0**-9  # a plain number that is further off was not computed from what differs, but set
_SUM = 2.0**-24  # the roundoff that numbers of less precision are added with
# What these return is not determined: memory as it was found.
_UNDEFINED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize_"})
# These change buffers that they are given, beside what they return.
_CHANGING = frozenset({"batch_norm", "instance_norm"})


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


def assess(findings: Sequence[Finding]) -> list[Verdict]:
    """A verdict for each finding, in their order; the calls are gone through in the order of execution."""
    calls = list(by_call(findings))
    seen = [[Seen(f.pair, distance(f.pair, f.measured)) for f in call] for call in calls]
    verdicts: list[list[Verdict]] = [[] for _ in calls]
    sources = Sources(seen)
    memory = _Memory({call[0].pair.place.record.name: call[0].pair.place.record.parent for call in calls})
    for call in seen:
        memory.prepare(call)
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
        self._inside: dict[str, float] = {}  # a module: the roundoff of the coarsest dtype in it
        self._cancelled: set[object] = set()  # contents

    def prepare(self, call: Sequence[Seen]) -> None:
        """Note which dtype a call has, for the modules around it."""
        unit = coarsest(_leaves(call))
        for module in self._around(str(call[0].pair.place.record.name)):
            self._inside[module] = max(unit, self._inside.get(module, 0.0))

    def coarsest_in(self, name: CallName) -> float:
        """The largest roundoff of what was recorded inside a module, such as bfloat16 below autocast."""
        return self._inside.get(str(name), 0.0)

    def is_cancelled(self, seen: Seen) -> bool:
        """Whether the same values came out of a call as rounding of far larger numbers."""
        known = content(seen.pair) if self._cancelled else None
        return known is not None and known in self._cancelled

    def noted(self, call: Sequence[Seen], verdicts: list[Verdict]) -> list[Verdict]:
        """The verdicts of a call, with what is known of the calls in it."""
        name = str(call[0].pair.place.record.name)
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
                self._cancelled.add(content(seen.pair))
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


def content(pair: Pair) -> object:
    """What tells the values of a place from others, in whatever shape; None where little is known."""
    leaves = [place.leaf for place in (pair.target, pair.golden) if place is not None]
    if any(leaf is None or leaf.stats is None for leaf in leaves):
        return None
    return tuple((leaf.dtype, leaf.stats, leaf.checksum) for leaf in leaves if leaf is not None)


def _is_output(seen: Seen) -> bool:
    return seen.pair.place.side == "output"


def _made_inside(verdict: Verdict, culprit: str) -> Verdict:
    """A module's output is what a call in it made of it."""
    if verdict.level not in (ORIGINATED, PASSED_ON):
        return verdict
    return verdict._replace(level=PASSED_ON, reason=f"{off(verdict.error or 0.0)}, made inside by {culprit}")


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


def _assess_call(call: Sequence[Seen], sources: Sequence[Seen], memory: _Memory) -> list[Verdict]:
    name = call[0].pair.place.record.name
    if name.api in _UNDEFINED:
        return [Verdict(NOT_JUDGED, "its content is whatever the memory held") for _ in call]
    leaves = list(_leaves((*call, *sources)))
    growth = math.sqrt(summands(leaves, is_gradient=name.direction != FORWARD))
    rounding = _Rounding(max(coarsest(leaves), memory.coarsest_in(name)), growth)
    reaches_out = _reaches_out(name, [seen for seen in call if _is_output(seen)])
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


def _reaches_out(name: CallName, outputs: Sequence[Seen]) -> bool:
    """Whether what went into a call may have had an effect, as far as its outputs show."""
    if not outputs or name.api in _CHANGING or any(seen.distance.error != 0 for seen in outputs):
        return True
    return not _overwrites(name) and not all(map(_shows_all, outputs))


def _overwrites(name: CallName) -> bool:
    """Whether a call may put something else in the place of its input, whatever that was."""
    return name.api == "__setitem__" or (name.api.endswith("_") and not name.api.endswith("__"))


def _shows_all(seen: Seen) -> bool:
    """Whether an equal output is equal: four statistics tell numbers apart, but not what is true where."""
    leaf = seen.pair.place.leaf
    if seen.distance.is_whole or leaf is None or roundoff(leaf.dtype):
        return True
    return leaf.statistics is not None and leaf.statistics.max == leaf.statistics.min


class _Rounding(NamedTuple):
    """What rounding explains in one call."""

    unit: float  # of the coarsest dtype
    growth: float  # by the number of summands

    def at(self, seen: Seen) -> float:
        """The tolerance at a place, none where numbers are whole; an input was rounded to its own dtype."""
        leaf = seen.pair.place.leaf
        if leaf is None or not leaf.is_tensor:
            unit = roundoff(None) if leaf is not None and isinstance(leaf.value, float) else 0.0
        elif not roundoff(leaf.dtype):
            unit = 0.0
        else:
            unit = self.unit if _is_output(seen) else coarsest(_leaves([seen]))
        return MARGIN * max(unit, min(unit, _SUM) * self.growth)


def _leaves(places: Iterable[Seen]) -> Iterator[Leaf | None]:
    for seen in places:
        pair = seen.pair
        if pair.target is not None:
            yield pair.target.leaf
        if pair.golden is not None:
            yield pair.golden.leaf


def _alone(seen: Seen, error: float | None, tolerance: float) -> Verdict | None:
    """The verdict of a place for which nothing else must be asked; None for all others."""
    if error is None:
        return Verdict(NOT_JUDGED, seen.pair.reason or "nothing was recorded to compare")
    if error == 0:
        return _EQUAL
    if error <= tolerance:
        return Verdict(ROUNDING, f"{off(error)}; rounding explains up to {tolerance:.2g}", error, tolerance)
    return None


def _input(seen: Seen, error: float, tolerance: float, memory: _Memory, reaches_out: bool) -> Verdict:
    name, leaf = seen.pair.place.record.name, seen.pair.place.leaf
    is_plain = leaf is not None and not leaf.is_tensor
    if memory.is_cancelled(seen):
        reason = f"{off(error)}: rounding of an earlier call, whose values nearly cancel"
        return Verdict(ROUNDING, reason, error, tolerance)
    what = told(seen.pair, seen.distance)
    is_explained = error <= tolerance + (min(memory.drift, _COMPUTED) if is_plain else GAIN * memory.drift)
    if is_explained or (seen.distance.seen == "shapes" and memory.drift > 0):
        return Verdict(PASSED_ON, f"{what}, which earlier calls passed on", error, tolerance)
    if not reaches_out and (is_plain or math.isfinite(error) or _overwrites(name)):
        return Verdict(PASSED_ON, f"{what}; the outputs show no effect", error, tolerance)
    return Verdict(ENTERED, entered(seen.pair, seen.distance), error, tolerance)


def _output(seen: Seen, error: float, tolerance: float, sources: Sequence[Seen], memory: _Memory) -> Verdict:
    came = _before(seen, sources, memory)
    before = max(came.most, came.unseen)
    if tolerance == 0 and before > 0:
        return Verdict(PASSED_ON, "a whole number or truth value changed with its inputs", error, tolerance)
    if seen.distance.seen == "shapes" and before > 0:
        return Verdict(PASSED_ON, f"{told(seen.pair, seen.distance)}, as its inputs differ", error, tolerance)
    # Where inputs differ, a decision such as that of relu may flip for a few numbers: it is the typical one
    # that must be explained.
    most = tolerance + gain(seen.pair, (s.pair for s in sources)) * before
    if before > 0 and seen.distance.typical <= most:
        if max(came.sound, came.unseen) <= tolerance < before:
            reason = f"{off(error)}, as those of its inputs whose values nearly cancel"
            return Verdict(ROUNDING, reason, error, tolerance)
        whose = "its inputs" if came.most >= came.unseen else "earlier calls"
        return Verdict(PASSED_ON, f"{off(error)}; {whose} are off by up to {before:.2g}", error, tolerance)
    if cancels(seen, sources, tolerance):
        reason = f"{off(error)}, but its values nearly cancel: that is rounding of the far larger inputs"
        return Verdict(ROUNDING, reason, error, tolerance)
    inputs = _sight(sources) if came.most == 0 else f"its inputs are off by only {came.most:.2g}"
    return Verdict(ORIGINATED, originated(seen.pair, seen.distance, inputs, tolerance), error, tolerance)


class _Before(NamedTuple):
    """How far what went into a call is off."""

    most: float  # as far as it was recorded
    sound: float  # the same without values that nearly cancel
    unseen: float  # what may have come with it unseen


def _before(seen: Seen, sources: Sequence[Seen], memory: _Memory) -> _Before:
    most = max((s.distance.error or 0.0 for s in sources), default=0.0)
    sound = max((s.distance.error or 0.0 for s in sources if not memory.is_cancelled(s)), default=0.0)
    unseen = 0.0
    if seen.distance.seen in ("statistics", "checksums"):  # which show less than there is
        unseen = memory.drift * DRIFT / GAIN
    if seen.pair.place.record.name.direction == PARAMETERS_GRAD and not any(
        s.pair.place.record.name.direction == BACKWARD for s in sources
    ):
        unseen = memory.drift  # the gradient that went in was not recorded
    return _Before(most, sound, unseen)


def _sight(sources: Sequence[Seen]) -> str:
    """In words, how equal inputs are that show no difference."""
    tensors = [s for s in sources if (leaf := s.pair.place.leaf) is not None and leaf.is_tensor]
    if any(s.distance.error is None for s in tensors):
        return "those of its inputs that could be compared are equal"
    if not all(s.distance.is_whole for s in tensors):
        return "its inputs are equal in max, min, mean and norm"
    return "its inputs are equal"
