"""The changes of parameters from one step to the next: what the optimizer makes of the gradients.

A parameter that differs says little: its change says what an optimizer did. The change d of each parameter is
measured by sketches, which are linear, so that S(d) is the difference of two sketches. With e = d_target -
d_golden and theta the parameter, relative to the larger of the two changes:

    size      |e| / |d|
    limit     u |theta| / |d|: the parameter is stored rounded, so that no change is known better than that
    noise     the relative error of the gradient, and of the parameter beside its change, before the step

An optimizer may turn an error of a gradient into a far larger one of a change: Adam makes a whole step of
each number of a gradient that is zero but for rounding. So a single parameter is accused only by the norm of
its change, which such steps keep. The setting of an optimizer changes all parameters; a fault of it shows in
at least half of them. Where the whole step before was bit-equal in both runs, every parameter speaks for
itself.
docs/decisions/013-verdict.md has the reasons.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from msprobe import kernels, store
from msprobe.analyse.judge import Finding
from msprobe.dtypes import SINGLE, roundoff
from msprobe.errors import RecordingError
from msprobe.graph import Graph
from msprobe.name import FORWARD, PARAMETERS_GRAD
from msprobe.pairing.described import described
from msprobe.pairing.match import Place
from msprobe.record import Leaf, Recording, Side, is_float, slots
from msprobe.store.tensor_file import as_float, read
from msprobe.verdict.levels import CANNOT_TELL, ENTERED, PASSED_ON, Verdict
from msprobe.verdict.locate import rows_in_order

_Vector = npt.NDArray[np.float64]
Kind = Literal["parameter", "buffer"]
_FIELD_KINDS: Mapping[Side, Kind] = {"parameters": "parameter", "buffers": "buffer"}

# Two sound optimizers (plain, foreach, fused; rounding either way) differ by up to 0.6 limits in float32.
_LIMITS = 8.0
_ROUNDINGS = 64.0  # unit roundoffs of the change itself: an optimizer computes it in about ten operations
_MOST_LIMIT = 1 / 32  # beyond it eight limits are a quarter of the change: it cannot be told
# An error of a gradient passes on to the change as it is; the numbers that are smaller than it, a share of
# about the relative error, may become whole steps. Measured where rounding of bfloat16 puts gradients off by
# 0.015 to 0.26 (gpt2, llama, t5, vit, resnet under autocast, AdamW): the size is 1.1 times the root of the
# noise over most parameters, the scale error at most 0.55 times the noise.
_GAIN = 8.0
_ROOT_GAIN = 4.0
_SCALE_GAIN = 4.0
_DEVIATIONS = 6.0
_DOUBTFUL_SIZE = 0.05  # of a change that is mostly lost in the rounding of the parameter
_OTHER_NORM = 0.5  # of the squared norm: steps in the other direction keep it
_MOST_NOISE = 0.05  # a gradient that is further off is mostly rounding, and so may be the norm of the change
_STATISTICS_GAIN = 10.0  # max, min, mean and norm show about a tenth of an error
# Frameworks add Adam's eps before or after the bias correction, which is 0.001 in the first step.
_OTHER_EPS = 1e-8 / math.sqrt(0.001)
_OTHER_RANKS = 2.0**-20  # the relative error of gradients that other ranks may bring in
_DECAY_DEVIATIONS = 8.0
_ALIKE = 0.05  # factors of one setting agree to this
_EXPLAINED = 0.95  # of the squared error, by one direction
_SKETCHED = kernels.SKETCH_SIZE
_WITHOUT_CORRECTION = 0.1 / math.sqrt(0.001)  # Adam's first step without bias correction, with usual betas


def full_sketch(leaf: Leaf) -> bytes | None:
    """The sketch of a tensor; a brief one, of some of its numbers, does not show changes well enough."""
    return leaf.sketch if leaf.sketch is not None and len(leaf.sketch) == 4 * kernels.SKETCH_SIZE else None


class Shown(NamedTuple):
    """A tensor as one run recorded it."""

    leaf: Leaf
    file: Path | None = None  # with its content

    def vector(self) -> _Vector | None:
        """Its sketch, made of the content where none was recorded; None if neither is there."""
        sketch = full_sketch(self.leaf)
        if sketch is None and self.file is not None:
            try:
                stored = read(self.file, verify=False)
                sketch = kernels.sketch_of(as_float(stored.array, stored.dtype))
            except (RecordingError, OSError, MemoryError):
                return None
        return None if sketch is None else np.frombuffer(sketch, "<f4").astype(np.float64)


class Tracked(NamedTuple):
    """A parameter or buffer of one run at one step, and what was added up to its gradient."""

    kind: Kind
    shown: Shown
    gradients: tuple[Shown, ...] = ()


class StepState(NamedTuple):
    """The parameters and buffers of both runs at one step, by their names in each run."""

    step: int | None
    target: Mapping[str, Tracked]
    golden: Mapping[str, Tracked]
    is_equal: bool  # all that both runs recorded in this step is the same, and there is no other rank
    changes: Mapping[str, _Vector]  # of the golden run up to this step, by the target's names


def state_of(target: Recording, golden: Recording, changes: Mapping[str, _Vector] | None = None) -> StepState:
    """Return what the next step is judged by; it holds leaves and names of files, and no recording."""
    same = target.records.keys() == golden.records.keys() and target.rank is None
    is_equal = same and all(
        record.fields == golden.records[key].fields for key, record in target.records.items()
    )
    return StepState(target.step, _tracked(target), _tracked(golden), is_equal, changes or {})


def _tracked(recording: Recording) -> dict[str, Tracked]:
    """The state that a recording shows, each as it shows first."""
    found: dict[str, Tracked] = {}
    gradients: dict[str, list[Shown]] = defaultdict(list)
    owned: dict[tuple[str, str], str] = {}  # the name of a parameter, by its module and its name there
    for record in recording.records.values():
        name = record.name
        if name.direction == PARAMETERS_GRAD:
            for slot, _, leaf in slots(record):
                if leaf is not None and leaf.is_tensor:
                    own = owned.get((name.owner, slot), ".".join((*name.path, slot)))
                    gradients.setdefault(own, []).append(_shown(recording, leaf))
        if name.direction != FORWARD:
            continue
        for slot, side, leaf in slots(record):
            known = _named(side, leaf, name.path, slot)
            if known is not None and leaf is not None:
                if side == "parameters":
                    owned[name.owner, slot.partition(".")[2]] = known[1]
                if known[1] not in found:
                    found[known[1]] = Tracked(known[0], _shown(recording, leaf))
    if not gradients:
        graph = Graph(recording)
        for own in found:
            for maker in graph.gradient_makers(own):
                given = graph.leaf(maker.name, maker.slot)
                if given is not None:
                    gradients[own].append(_shown(recording, given))
    return {own: one._replace(gradients=tuple(gradients.get(own, ()))) for own, one in found.items()}


def _named(side: Side, leaf: Leaf | None, path: Sequence[str], slot: str) -> tuple[Kind, str] | None:
    """The kind and the name of the parameter or buffer that goes into a call."""
    if leaf is None or not is_float(leaf.dtype) or not leaf.is_tensor or side == "output":
        return None
    kind, _, name = (leaf.made_by or "").partition(":")
    if kind in ("parameter", "buffer"):
        return kind, name  # type: ignore[return-value]  # it is one of them
    if side in _FIELD_KINDS and leaf.made_by is None:
        return _FIELD_KINDS[side], ".".join((*path, slot.partition(".")[2]))
    return None


def _shown(recording: Recording, leaf: Leaf) -> Shown:
    return Shown(leaf, None if full_sketch(leaf) is not None else store.tensor_path(recording, leaf))


class Change(NamedTuple):
    """The change of one parameter or buffer over a step, in both runs."""

    name: str
    rows: tuple[int, ...]  # that show it, in order of execution
    kind: Kind
    has_gradient: bool
    error: _Vector  # the target's change minus the golden one
    golden: _Vector  # the golden change
    value: _Vector  # the golden parameter before the step
    norms: tuple[float, float]  # of the target's and the golden change
    limit: float
    noise: float
    unit: float
    numbers: int

    @property
    def size(self) -> float:
        return _norm(self.error) / self._largest if self._largest else 0.0

    @property
    def _largest(self) -> float:
        return max(self.norms)

    @property
    def tells(self) -> bool:
        """Whether the rounding of the stored numbers leaves enough of the change to be judged."""
        return self.limit <= _MOST_LIMIT

    def tolerance(self, exact: bool) -> float:
        """How far the sizes of most parameters may be off."""
        if exact:
            return self._rounding
        steps = min(math.sqrt(self.noise), self.noise * math.sqrt(self.numbers))  # of numbers near zero
        return self._rounding + _GAIN * self.noise + _ROOT_GAIN * steps

    @property
    def scale_tolerance(self) -> float:
        return self._rounding + _SCALE_GAIN * self.noise

    @property
    def _rounding(self) -> float:
        return _LIMITS * self.limit + _ROUNDINGS * self.unit

    @property
    def has_other_norm(self) -> bool:
        target, golden = (norm / self._largest if self._largest else 0.0 for norm in self.norms)
        return abs(target * target - golden * golden) > _OTHER_NORM and self.noise <= _MOST_NOISE

    @property
    def factor(self) -> float:
        """The target's change as a multiple of the golden one."""
        return 1 + _coefficient(self.error, self.golden)

    @property
    def decay(self) -> float | None:
        """The error as a multiple of the parameter, if its direction shows so beyond doubt."""
        found = _coefficient(self.error, self.value)
        left = _norm(self.error - found * self.value)
        freedom = math.sqrt(max(min(_SKETCHED, self.value.size) - 1, 1))
        size = _norm(self.value)
        if not size or abs(found) <= 4 * self.unit or abs(found) * size * freedom <= _DECAY_DEVIATIONS * left:
            return None
        return found


class Judged(NamedTuple):
    """What became of the changes of parameters over a step."""

    verdicts: list[Verdict]  # of all findings
    changes: dict[str, _Vector]  # of the golden run, by the target's names
    lost: tuple[int, int] = (0, 0)  # how many changes the rounding of what is stored hides, and of how many


def judge_changes(
    before: StepState | None,
    graphs: tuple[Graph, Graph],
    findings: Sequence[Finding],
    verdicts: Sequence[Verdict],
) -> Judged:
    """Judge the changes of parameters over a step.

    `before`: the state of the step before; None, or one that is not directly before it, tells nothing.
    """
    verdicts = list(verdicts)
    if before is None or not _follows(before.step, graphs[0].recording.step):
        return Judged(verdicts, {})
    changes = list(_changes(before, graphs, findings))
    exact = before.is_equal
    faulty = _faulty(changes, exact)
    _mark(verdicts, changes, faulty, before, exact)
    if exact and not faulty:
        _doubt(verdicts, changes, before.step)
    trained = [change for change in changes if change.kind == "parameter" and change.has_gradient]
    lost = sum(not change.tells for change in trained)
    known = {change.name: change.golden for change in changes}
    return Judged(verdicts, known, (lost, len(trained)))


def _faulty(changes: Sequence[Change], exact: bool) -> list[Change]:
    """The changes that nothing explains, in order of execution."""
    known = [change for change in changes if change.tells and (change.has_gradient or exact)]
    beyond = [change for change in known if change.size > change.tolerance(exact)]
    if exact or 2 * len(beyond) >= len(known) > 1:
        return beyond
    single = [change for change in changes if change.tells and change.has_other_norm]
    return _scaled(known) or _decayed(known) or single


def _scaled(known: Sequence[Change]) -> list[Change]:
    """The parameters whose changes are too large, or too small, if most of them are."""
    if len(known) < 2:
        return []
    middle = statistics.median(change.factor - 1 for change in known)
    size, tolerance = (
        statistics.median(numbers)
        for numbers in ([change.size for change in known], [change.scale_tolerance for change in known])
    )
    deviation = size / math.sqrt(_SKETCHED * len(known))  # of the estimates from sketches
    if abs(middle) <= tolerance + _DEVIATIONS * deviation:
        return []
    return [change for change in known if (change.factor - 1) * middle > middle * middle / 2]


def _follows(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now == before + 1


def _changes(before: StepState, graphs: tuple[Graph, Graph], findings: Sequence[Finding]) -> Iterator[Change]:
    """The changes of what both runs show at both steps, in order of execution."""
    target, golden = (graph.recording for graph in graphs)
    rows: dict[str, list[int]] = defaultdict(list)
    leaves: tuple[dict[str, Leaf], dict[str, Leaf]] = {}, {}
    names: dict[str, str] = {}
    lone: list[tuple[str, int]] = []
    for row in rows_in_order(findings):
        pair = findings[row].pair
        ours, theirs = map(_state_name, graphs, pair[:2])
        for name, place, known in ((ours, pair.target, leaves[0]), (theirs, pair.golden, leaves[1])):
            if name is not None and place is not None and place.leaf is not None:
                known.setdefault(name, place.leaf)
        if ours is not None and theirs is None and pair.golden is None:
            lone.append((ours, row))
        if ours is None or theirs is None or pair.unjudged or names.setdefault(ours, theirs) != theirs:
            continue
        rows[ours].append(row)
    for name, row in lone:  # it goes into a call that only the target makes
        names.setdefault(name, name)
        rows[name].append(row)
    for name, other in names.items():
        now = leaves[0].get(name), leaves[1].get(other)
        past = before.target.get(name), before.golden.get(other)
        if now[0] is None or now[1] is None or past[0] is None or past[1] is None:
            continue
        found = _change(
            name,
            tuple(rows[name]),
            (past[0], past[1]),
            (_shown(target, now[0]), _shown(golden, now[1])),
            _unrecorded_noise(target, golden, past[1]),
        )
        if found is not None:
            yield found


def _state_name(graph: Graph, place: Place | None) -> str | None:
    """The name of the parameter or buffer that a place shows."""
    if place is None or place.record.name.direction != FORWARD:
        return None
    known = _named(place.side, place.leaf, place.record.name.path, place.slot)
    if known is not None:
        return known[1]
    state = graph.state(place.call, place.slot) if place.side == "input" else None
    return None if state is None else state.name


def _change(
    name: str,
    rows: tuple[int, ...],
    past: tuple[Tracked, Tracked],
    now: tuple[Shown, Shown],
    unrecorded: float,
) -> Change | None:
    if len({each.leaf.shape for each in (past[0].shown, past[1].shown, *now)}) > 1:
        return None
    vectors = [each.vector() for each in (past[0].shown, past[1].shown, *now)]
    if any(vector is None or not np.all(np.isfinite(vector)) for vector in vectors):
        return None
    (our_past, their_past, our_now, their_now) = (np.asarray(vector) for vector in vectors)
    ours, theirs = our_now - our_past, their_now - their_past
    norms = _norm(ours), _norm(theirs)
    unit = max(roundoff(each.leaf.dtype) for each in (past[0].shown, past[1].shown, *now))
    largest, size = max(norms), max(_norm(our_past), _norm(their_past), _norm(our_now), _norm(their_now))
    stored = max(unit, SINGLE) * size  # a sketch is rounded to float32
    limit = stored / largest if largest > 0 else math.inf
    noise = _gradient_noise(past)
    if noise is None and past[0].kind == "parameter" and past[0].gradients:
        return None
    apart = _norm(our_past - their_past)
    apart = max(apart - 2 * stored, 0.0) / largest if largest > 0 else 0.0
    noise = max(noise or 0.0, apart, unrecorded)
    has_gradient = bool(past[0].gradients and past[1].gradients)
    return Change(
        name,
        rows,
        past[0].kind,
        has_gradient,
        ours - theirs,
        theirs,
        their_past,
        norms,
        limit,
        noise,
        unit,
        now[0].leaf.elements,
    )


def _unrecorded_noise(target: Recording, golden: Recording, past: Tracked) -> float:
    """The noise that a change may have although the recorded gradients do not show it."""
    noise = _OTHER_RANKS if target.rank is not None else 0.0
    stats = past.gradients[0].leaf.statistics if past.gradients else None
    if target.header.framework != golden.header.framework and stats is not None and stats.norm:
        rms = abs(stats.norm) / math.sqrt(past.gradients[0].leaf.elements)
        noise = max(noise, _OTHER_EPS / rms)
    return noise


def _gradient_noise(past: tuple[Tracked, Tracked]) -> float | None:
    """The relative error of a gradient; None where it is not known."""
    ours, theirs = past[0].gradients, past[1].gradients
    if not ours or len(ours) != len(theirs):
        return None
    errors = [_relative(*each) for each in zip(ours, theirs, strict=True)]
    return None if None in errors else max(error for error in errors if error is not None)


def _relative(ours: Shown, theirs: Shown) -> float | None:
    same = ours.leaf.hash is not None and ours.leaf.dtype == theirs.leaf.dtype
    if same and ours.leaf.hash == theirs.leaf.hash:
        return 0.0
    vectors = ours.vector(), theirs.vector()
    if vectors[0] is None or vectors[1] is None:
        error = described(ours.leaf, theirs.leaf)
        unit = max(roundoff(ours.leaf.dtype), roundoff(theirs.leaf.dtype))
        return None if error is None else max(_STATISTICS_GAIN * error, unit)
    size = max(map(_norm, (vectors[0], vectors[1])))
    return _norm(vectors[0] - vectors[1]) / size if size else 0.0


def _norm(vector: _Vector) -> float:
    return float(np.linalg.norm(vector))


def _coefficient(error: _Vector, direction: _Vector) -> float:
    square = float(direction @ direction)
    return float(error @ direction) / square if square else 0.0


def _decayed(known: Sequence[Change]) -> list[Change]:
    """The parameters that differ by one multiple of themselves, if at least half of them do, and two."""
    sized = [change for change in known if _norm(change.value) > 0]
    found = [(change, decay) for change in sized if (decay := change.decay) is not None]
    if len(found) < 2:
        return []
    middle = statistics.median(decay for _, decay in found)
    alike = [change for change, decay in found if abs(decay - middle) <= 4 * _ALIKE * abs(middle)]
    return alike if len(alike) >= 2 and 2 * len(alike) >= len(sized) else []


# ---- what is said ----


def _mark(
    verdicts: list[Verdict],
    changes: Sequence[Change],
    faulty: Sequence[Change],
    before: StepState,
    exact: bool,
) -> None:
    """Put into the rows what was found: the first of the faulty parameters is the culprit."""
    setting = _setting(faulty, changes, before) if faulty else ""
    for number, change in enumerate(faulty):
        if number:
            words = _others(change, faulty[0], before.step)
        else:
            words = _words(change, setting, before.step)
        for place, row in enumerate(change.rows):
            verdicts[row] = verdicts[row]._replace(
                level=PASSED_ON if number or place else ENTERED,
                reason=words,
                score=change.size / change.tolerance(exact),
                is_change=True,
            )
    named = {change.name for change in faulty}
    for change in changes:
        if change.name in named or not change.tells or not (change.has_gradient or exact):
            continue
        for row in change.rows:
            if verdicts[row].level == ENTERED:
                verdicts[row] = verdicts[row]._replace(
                    level=PASSED_ON, reason=_explained(change, before.step)
                )


def _doubt(verdicts: list[Verdict], changes: Sequence[Change], step: int | None) -> None:
    """Mark as "cannot tell" the first change that is far off after a step that was bit-equal."""
    for change in changes:
        if not change.tells and change.has_gradient and change.size > _DOUBTFUL_SIZE:
            what = f"the change of {change.name} {_in_step(step)} is off by {change.size:.2g} of its size"
            why = "rounding of the stored parameter may explain that, or hide a fault"
            words = f"{what}, although all else was bit-equal: {why}"
            row = change.rows[0]
            verdicts[row] = verdicts[row]._replace(level=CANNOT_TELL, reason=words)
            return


def _in_step(step: int | None) -> str:
    return f"in step {step}"


def _times(factor: float) -> str:
    return f"{factor:.4g}"


def _words(change: Change, setting: str, step: int | None) -> str:
    target, golden = (norm / max(change.norms) for norm in change.norms)
    tiny = _LIMITS * change.limit
    if target <= tiny:
        what = f"{change.name} did not change {_in_step(step)}, and the golden run's did"
    elif golden <= tiny:
        what = f"{change.name} changed {_in_step(step)}, and the golden run's did not"
    elif _share(change.error, change.golden) >= _EXPLAINED:
        what = f"the change of {change.name} {_in_step(step)} is {_times(change.factor)} times golden's"
    else:
        what = f"the change of {change.name} {_in_step(step)} is off by {change.size:.2g} of its size"
    return f"{what}: {setting}" if setting else what


def _others(change: Change, first: Change, step: int | None) -> str:
    return f"its change {_in_step(step)} is off by {change.size:.2g} of its size, as that of {first.name}"


def _explained(change: Change, step: int | None) -> str:
    return (
        f"its change {_in_step(step)} is off by {change.size:.2g} of its size, "
        "which rounding of its gradient may bring about"
    )


def _share(error: _Vector, direction: _Vector) -> float:
    """How much of the squared error lies in one direction."""
    square = float(error @ error)
    part = _coefficient(error, direction)
    return part * part * float(direction @ direction) / square if square else 0.0


def _setting(faulty: Sequence[Change], changes: Sequence[Change], before: StepState) -> str:
    """Which setting of the optimizer the numbers show, over all parameters that differ."""
    if not any(change.has_gradient for change in faulty):
        return "it has no gradient, so that no optimizer changes it, but the call that keeps it"
    moving = [change for change in changes if change.tells]
    still = [c for c in faulty if min(c.norms) <= _LIMITS * c.limit * max(c.norms)]
    if len(still) == len(faulty):
        if len(faulty) == len(moving):
            return "the optimizer made no step in one of the runs"
        return "it is frozen, or the optimizer was not given it, in one of the runs"
    previous = [(c, before.changes[c.name]) for c in faulty if c.name in before.changes]
    known = (
        _direction([(c, c.golden) for c in faulty], len(faulty), _EXPLAINED, _of_factor),
        _direction([(c, c.value) for c in faulty if c.decay is not None], len(faulty), 0.8, _of_decay),
        _direction(previous, len(faulty), _EXPLAINED, _of_momentum),
    )
    found = [each for each in known if each is not None]
    # Where two changes in a row are alike, one direction is a part of another.
    best = max(found, key=lambda each: each.share, default=None)
    if best is not None:
        return best.words
    if before.step == 1 and len(previous) == len(faulty):
        what = (
            "the optimizer: its first step agrees, and the second does not, in which earlier gradients count"
        )
        return f"{what}: a beta, or state that it keeps"
    return "the optimizer: its gradient explains no such difference; compare its settings"


class _Direction(NamedTuple):
    """What the errors of most parameters are a multiple of."""

    share: float  # of the squared error that it explains
    words: str


def _direction(
    along: Sequence[tuple[Change, _Vector]], faulty: int, least: float, words: Callable[[float], str]
) -> _Direction | None:
    """Say what the errors of most of the faulty parameters are a multiple of, if it is one and the same."""
    shares = [(_share(c.error, vector), _coefficient(c.error, vector)) for c, vector in along]
    clear = [(share, multiple) for share, multiple in shares if share >= least]
    if 2 * len(clear) <= faulty or not _agree([multiple for _, multiple in clear]):
        return None
    share, multiple = (statistics.median(numbers) for numbers in zip(*clear, strict=True))
    return _Direction(share, words(multiple))


def _of_decay(multiple: float) -> str:
    return f"it differs by {_times(multiple)} times the parameter itself: the weight decay"


def _of_momentum(multiple: float) -> str:
    what = f"it differs by {_times(multiple)} times the change before: the momentum"
    return f"{what}, or gradients that were not set to zero" if abs(abs(multiple) - 1) < _ALIKE else what


def _of_factor(multiple: float) -> str:
    factor = 1 + multiple
    if abs(factor + 1) < _ALIKE:
        return "the sign of the step"
    for known in (_WITHOUT_CORRECTION, 1 / _WITHOUT_CORRECTION):
        if abs(factor / known - 1) < 0.01:
            return "the learning rate, or the bias correction of Adam"
    return "the learning rate, or a factor that the gradients were scaled by"


def _agree(numbers: Sequence[float]) -> bool:
    """Whether most of the numbers are about the same."""
    middle = statistics.median(numbers)
    near = [number for number in numbers if abs(number - middle) <= _ALIKE * abs(middle)]
    return 2 * len(near) > len(numbers)
