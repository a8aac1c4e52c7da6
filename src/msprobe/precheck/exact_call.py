"""What a worker does with a suspect: call it again in float64 in both runs, and say which run is at fault.

The error of a recorded result beside the same call in float64 on the recorded inputs is the call's own. The
target's own error beside that of the golden run decides. Where plain arguments differ, the golden run's
arguments are called on the target's inputs: if they give the golden run's result, they are the cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from msprobe.analyse.accuracy import real_dtype
from msprobe.analyse.standard_table import COARSE
from msprobe.metrics.own_error import Excess, OwnError, excess, inner_rounding, roundings
from msprobe.metrics.rounding import PRECISIONS
from msprobe.name import BACKWARD, FORWARD
from msprobe.operators import Operator, operator_of
from msprobe.precheck.arguments import Arguments, Input, Rebuilder, content_of, is_float, shaken
from msprobe.precheck.calls import Call, Skip, Skipped, reason_for
from msprobe.precheck.judging import How, floats_of, pair_error
from msprobe.precheck.run import Ran, double_side, run
from msprobe.precheck.settings import agree, with_arguments_of
from msprobe.precheck.work import (
    Setup,
    arguments_of,
    given_of,
    how_of,
    merged,
    nudged,
    recorded_gradients,
    repeats_in,
)
from msprobe.record import Leaf, slots
from msprobe.store.dtypes import TensorData
from msprobe.verdict.replay_evidence import NOT_REPLAYABLE, PROVEN, REFUTED, ReplayEvidence

_WIDE = frozenset({"float64", "complex128"})
_LAST_BIT = 1.4  # roundings by which a flipped last bit changes a number: 1 to 2, the root mean square
_LEFT = 0.1  # of a difference, that other inputs may bring if an argument explains it
_SIZE = 2.0  # roundings, as in metrics/own_error.py
# Operators whose result cannot cancel: nothing is added up.
_UNCANCELLED = frozenset({"moves", "compares", "makes", "smooth", "powers", "exponential"})
_LINEAR = frozenset({"moves", "adds", "sums", "multiplies"})  # gradients need no result of theirs
_AGAIN = "called again in float64 on its own inputs"


class Suspect(NamedTuple):
    """Two calls that were compared, and what of them is suspected."""

    target: Call | None  # None: of a framework whose calls cannot be made again
    golden: Call
    direction: str
    replaced: str = ""  # the slot of an argument that differs, if that is what is suspected
    own_units: bool = True  # False: the target is held against the dtype of the golden run


class Setups(NamedTuple):
    """Where the tensors of the two runs lie."""

    target: Setup
    golden: Setup


class _Result(NamedTuple):
    """One result of a call: as it was recorded, in float64, and how far these are apart."""

    slot: str
    recorded: TensorData
    exact: TensorData
    own: OwnError


class _Again(NamedTuple):
    """One call, made again in float64."""

    call: Call
    arguments: Arguments
    given: Sequence[Input | None] | None
    results: list[_Result]
    uncast: dict[str, TensorData]  # outputs by slot, from the inputs as they are before mixed precision


def replay_suspect(suspect: Suspect, setups: Setups, replay: Rebuilder) -> ReplayEvidence:
    """Call both calls again; what cannot be called or judged is not replayable, with the reason."""
    try:
        ours = None if suspect.target is None else _again(suspect.target, suspect, setups.target, replay)
    except Exception as error:  # noqa: BLE001 - one call must not cost the others
        return ReplayEvidence(NOT_REPLAYABLE, reason_for(error))
    try:
        theirs = _again(suspect.golden, suspect, setups.golden, replay)
        evidence = _golden_alone(theirs) if ours is None else _decided(suspect, ours, theirs, replay)
        return evidence if evidence.outcome != PROVEN else _by_itself(evidence, suspect, setups, replay)
    except Exception as error:  # noqa: BLE001 - the same
        return ReplayEvidence(NOT_REPLAYABLE, f"The golden run's call: {reason_for(error)}")


def _by_itself(
    evidence: ReplayEvidence, suspect: Suspect, setups: Setups, replay: Rebuilder
) -> ReplayEvidence:
    """The same, but for a gradient whose forward call is wrong, too: it may be computed from its result."""
    if suspect.direction != BACKWARD:
        return evidence
    forward = replay_suspect(suspect._replace(direction=FORWARD), setups, replay)
    if forward.at_fault != evidence.at_fault:
        return evidence
    return evidence._replace(
        outcome=NOT_REPLAYABLE,
        reason="Its forward call is wrong, and gradients may be computed from what that returned.",
        at_fault="",
    )


# ---- one call ----


def _again(call: Call, suspect: Suspect, setup: Setup, replay: Rebuilder) -> _Again:
    is_back = suspect.direction == BACKWARD
    call = call._replace(has_backward=is_back)
    arguments, given = arguments_of(call, setup), given_of(call, setup)
    if not suspect.own_units:  # what mixed precision makes of the inputs is part of what is suspected
        arguments = _uncast(arguments)
    if not arguments.recorded or (is_back and not _is_recorded(given)):
        raise Skipped(Skip.NO_CONTENTS)
    exact = _in_double(replay, call, arguments, given)
    if any(is_float(data.dtype) and data.dtype not in _WIDE for data in exact.outputs):
        raise Skipped(Skip.FIXED_DTYPE)
    recorded = recorded_gradients(call, setup, arguments) if is_back else _outputs(call, setup)
    if is_back and not any(recorded):
        raise Skipped(Skip.OTHER_GRADIENTS)
    repeats = repeats_in(arguments.inputs, recorded) if is_back else {}
    found = _results(merged(exact, repeats), is_back)
    changed = _results(merged(_with_other_bits(replay, call, arguments, given), repeats), is_back)
    if len(found) != len(recorded):
        raise Skipped(Skip.OTHER_OUTPUTS)
    how, operator = how_of(call, arguments, given), operator_of(call.name)
    results = []
    for number, (slot, one, other) in enumerate(
        zip(_slots(call, is_back, len(found)), recorded, found, strict=True)
    ):
        if one is None or other is None or (operator.decides and not is_float(other.dtype)):
            continue
        near = changed[number] if number < len(changed) else None
        results.append(_Result(slot, one, other, _own_error(one, other, near, how, operator, is_back)))
    if not results:
        raise Skipped(Skip.CHOOSES if operator.decides else Skip.NO_NUMBERS)
    outputs = exact.outputs
    if not is_back and any(tensor.cast for tensor in arguments.inputs):
        outputs = _in_double(replay, call, _uncast(arguments), None).outputs
    uncast = {} if is_back else dict(zip(_slots(call, is_back, 0), outputs, strict=False))
    return _Again(call, arguments, given, results, uncast)


def _uncast(arguments: Arguments) -> Arguments:
    """The arguments as they are before mixed precision rounds them."""
    return arguments._replace(inputs=tuple(tensor._replace(cast="") for tensor in arguments.inputs))


def _is_recorded(given: Sequence[Input | None] | None) -> bool:
    return given is not None and all(tensor is None or tensor.recorded for tensor in given)


def _in_double(
    replay: Rebuilder, call: Call, arguments: Arguments, given: Sequence[Input | None] | None
) -> Ran:
    before = replay.randomness()
    ran = run(replay, call, arguments, double_side(call, arguments), given)
    if replay.drew(before):
        raise Skipped(Skip.RANDOM)
    if ran.failed_back:
        raise Skipped(Skip.REFERENCE_FAILED, ran.failed_back)
    return ran


def _with_other_bits(
    replay: Rebuilder, call: Call, arguments: Arguments, given: Sequence[Input | None] | None
) -> Ran:
    """The call in float64 with the last bit of every input changed; nothing if it refuses these numbers."""
    try:
        return _in_double(replay, call, nudged(arguments), None if given is None else shaken(given))
    except Skipped:
        return Ran(())


def _outputs(call: Call, setup: Setup) -> tuple[TensorData | None, ...]:
    found = tuple(content_of(setup.recording, leaf) for _, leaf in _output_leaves(call))
    if not found or not all(found):
        raise Skipped(Skip.NO_CONTENTS if found else Skip.NO_NUMBERS)
    return found


def _output_leaves(call: Call) -> list[tuple[str, Leaf]]:
    return [
        (slot, leaf)
        for slot, side, leaf in slots(call.forward)
        if side == "output" and slot.startswith("output") and leaf is not None and leaf.is_tensor
    ]


def _slots(call: Call, is_back: bool, count: int) -> list[str]:
    if is_back:
        return [f"output.{number}" for number in range(count)]
    return [slot for slot, _ in _output_leaves(call)]


def _results(ran: Ran, is_back: bool) -> tuple[TensorData | None, ...]:
    return ran.gradients if is_back else ran.outputs


def _own_error(
    recorded: TensorData,
    exact: TensorData,
    changed: TensorData | None,
    how: How,
    operator: Operator,
    is_back: bool,
) -> OwnError:
    if recorded.shape != exact.shape or is_float(recorded.dtype) != is_float(exact.dtype):
        raise Skipped(Skip.OTHER_OUTPUTS)
    if not is_float(recorded.dtype):
        unequal = np.count_nonzero(floats_of(recorded) != floats_of(exact))
        return OwnError(recorded.dtype, 0.0, unequal=int(unequal))
    kind = real_dtype(recorded.dtype)
    if how.computed in COARSE and kind not in COARSE:
        kind = how.computed
    if kind not in PRECISIONS:
        raise Skipped(Skip.NO_STANDARD, recorded.dtype)
    error = pair_error(floats_of(recorded), floats_of(exact), kind)
    precision = PRECISIONS[kind]
    uncancelled = last_bits = 0.0
    cancels = not operator.decides and (is_back or operator.kind not in _UNCANCELLED)
    if cancels and changed is not None and changed.shape == exact.shape and how.input_unit:
        change = pair_error(floats_of(changed), floats_of(exact), "float64")
        uncancelled, last_bits = change.error_norm / (_LAST_BIT * how.input_unit), change.largest
    inner = inner_rounding(error.reference_norm, precision.unit, how.added, uncancelled, is_gradient=is_back)
    steps = precision.step * math.sqrt(error.numbers)
    is_known, uses_result = operator.kind != "unknown", is_back and operator.kind not in _LINEAR
    return OwnError(
        kind, precision.unit, inner + steps, last_bits, error, uses_result=uses_result, is_known=is_known
    )


# ---- both calls ----


def _golden_alone(theirs: _Again) -> ReplayEvidence:
    """What can be said if only the golden run's call can be made again."""
    worst = max(theirs.results, key=lambda result: excess(result.own, None).score)
    size = roundings(worst.own)
    return ReplayEvidence(
        NOT_REPLAYABLE,
        "The target was not recorded with PyTorch, so that only the golden run's call can be made again: "
        f"{_AGAIN}, its {worst.slot} has a relative error of {_roundings(size, worst.own)}.",
        golden_error=size,
        slot=worst.slot,
        measure="relative error",
    )


def _decided(suspect: Suspect, ours: _Again, theirs: _Again, replay: Rebuilder) -> ReplayEvidence:
    pairs = [
        (one if suspect.own_units else _in_units_of(one, other), other)
        for one, other in zip(ours.results, theirs.results, strict=False)
    ]
    share = _share(ours, theirs)
    target = _worst(pairs)
    golden = _worst([(other, one) for one, other in pairs])
    if target.excess.is_fault:
        return _proven(target, "target")._replace(loss_share=share)
    if golden.excess.is_fault:
        return _proven(golden, "golden")._replace(loss_share=share)
    evidence = _right(target.result, target.other)._replace(loss_share=share)
    if max(target.excess.score, golden.excess.score) > 1:
        evidence = _doubtful(target, evidence)
    if ours.call.name.owner != theirs.call.name.owner:
        return _undecided(evidence, f"the golden run calls {theirs.call.name.owner}, which may have others")
    if not suspect.replaced and agree(ours.arguments, theirs.arguments):
        return evidence
    if suspect.direction == BACKWARD:
        return _undecided(evidence, "those of its forward call differ")
    return _by_arguments(suspect, ours, theirs, evidence, replay)


class _Worst(NamedTuple):
    """The result of one run that is furthest off beside that of the other run."""

    excess: Excess
    result: _Result
    other: _Result


def _worst(pairs: Sequence[tuple[_Result, _Result]]) -> _Worst:
    found = [_Worst(excess(one.own, other.own), one, other) for one, other in pairs]
    return max(found, key=lambda each: (each.excess.is_fault, each.excess.score))


def _right(target: _Result, golden: _Result) -> ReplayEvidence:
    sizes = roundings(target.own), roundings(golden.own)
    words = (
        f"it is right in both runs: its {target.slot} has a relative error of "
        f"{_roundings(sizes[0], target.own)}, the golden run's of {_roundings(sizes[1], golden.own)}. What "
        "differs is rounding, or comes with its inputs."
    )
    return ReplayEvidence(REFUTED, f"{_sentence(_AGAIN)} {words}", *sizes, target.slot, "relative error")


def _doubtful(found: _Worst, evidence: ReplayEvidence) -> ReplayEvidence:
    """Neither proven nor refuted: more than rounding of the result, less than it takes to be sure."""
    words = f"{_off(found)}: too much to refute it, and too little to prove it"
    return evidence._replace(
        outcome=NOT_REPLAYABLE,
        reason=f"{_sentence(_AGAIN)} {words}.",
        target_error=found.excess.error,
        golden_error=found.excess.other,
        slot=found.result.slot,
        measure=found.excess.measure,
    )


def _in_units_of(one: _Result, other: _Result) -> _Result:
    """A result held against the finer dtype of two."""
    if not one.own.unit or not other.own.unit:
        return one
    finer = min(one.own, other.own, key=lambda own: own.unit)
    return one._replace(own=one.own._replace(unit=finer.unit, dtype=finer.dtype))


def _undecided(evidence: ReplayEvidence, why: str) -> ReplayEvidence:
    """Only a call whose arguments agree in both runs can be refuted."""
    return evidence._replace(
        outcome=NOT_REPLAYABLE,
        reason=f"{_sentence(_AGAIN)} it is right in both runs, but its arguments do not agree: {why}.",
    )


def _proven(found: _Worst, at_fault: Literal["target", "golden"]) -> ReplayEvidence:
    measured = found.excess
    errors = (measured.error, measured.other)
    target, golden = errors if at_fault == "target" else reversed(errors)
    words = _off(found, *_OWNERS[at_fault])
    return ReplayEvidence(
        PROVEN,
        f"{_sentence(_AGAIN)} {words}.",
        target,
        golden,
        found.result.slot,
        measured.measure,
        at_fault,
    )


_OWNERS = {"target": ("its", "the golden run's"), "golden": ("the golden run's", "the target's")}


def _off(found: _Worst, whose: str = "its", other: str = "the golden run's") -> str:
    """How far a result is off, and the same result of the other run."""
    measured, result = found.excess, found.result
    if measured.measure in ("NaN and infinities", "values"):
        what = "wrong" if measured.measure == "values" else "NaN or infinite"
        count = f"{measured.error:.0f} numbers of {whose} {result.slot}"
        return f"{count} are {what}, and {measured.other:.0f} of {other}"
    return (
        f"{whose} {result.slot} is off: {_MEASURES[measured.measure]} "
        f"{_roundings(measured.error, result.own)}, {other} {_roundings(measured.other, found.other.own)}"
    )


_MEASURES = {
    "relative error": "a relative error of",
    "scale error": "a scale error of",
    "mean": "its mean is off by",
    "rows or channels": "rows or channels have scale errors of about",
    "single numbers": "single numbers are off by",
}


def _roundings(size: float, own: OwnError) -> str:
    if not own.unit:
        return f"{size:.0f} numbers"
    return f"{size:.2g} roundings of {own.dtype}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]},"


# ---- other arguments ----


def _by_arguments(
    suspect: Suspect, ours: _Again, theirs: _Again, evidence: ReplayEvidence, replay: Rebuilder
) -> ReplayEvidence:
    """Whether the golden run's arguments on the target's inputs give the golden run's result."""
    arguments = with_arguments_of(theirs.arguments, ours.arguments, suspect.replaced)
    found = _in_double(replay, theirs.call, arguments, None).outputs
    outputs = dict(zip(_slots(theirs.call, False, len(found)), found, strict=False))
    worst, left_over = None, (0.0, 0.0, 0.0)
    for one, other in zip(ours.results, theirs.results, strict=False):
        exact = outputs.get(other.slot)
        if exact is None or exact.shape != other.recorded.shape or not other.own.unit:
            continue
        before = _distance(one.recorded, other.recorded)
        if worst is None or before > left_over[0]:
            tenth = _LEFT * before if math.isfinite(before) else 0.0
            allowed = max(tenth, _SIZE * other.own.floor)
            worst, left_over = other, (before, _distance(exact, other.recorded), allowed)
    if worst is None:
        return _undecided(evidence, "with the golden run's arguments it gives another kind of result")
    before, left, allowed = left_over
    size = worst.own.unit * (worst.own.error.reference_norm if worst.own.error is not None else 0.0) or 1.0
    numbers = f"{left / size:.2g} roundings of {worst.own.dtype} are left of {before / size:.2g}"
    if not before > _SIZE * worst.own.floor:
        return _undecided(evidence, "the results differ by no more than rounding")
    if not left <= allowed:
        return _undecided(evidence, f"with the golden run's arguments its result still differs, {numbers}")
    return evidence._replace(
        outcome=PROVEN,
        reason=f"With the golden run's arguments its inputs give the golden run's {worst.slot}: {numbers}.",
        target_error=before / size,
        golden_error=left / size,
        slot=worst.slot,
        at_fault="target",
        loss_share=_share(ours, theirs, outputs),
    )


def _distance(one: TensorData, other: TensorData) -> float:
    """The norm of the difference; infinite if the shapes differ, or one side has NaN or infinities."""
    if one.shape != other.shape:
        return math.inf
    error = pair_error(floats_of(one), floats_of(other), "float64")
    return math.inf if error.mismatched else error.error_norm


# ---- the share of the loss ----


def _share(ours: _Again, theirs: _Again, instead: dict[str, TensorData] | None = None) -> float | None:
    """<dL/dy, own error of the target - own error of the golden run>, over the outputs of a forward call.

    dL/dy is the mean of both runs, so that the share is right to the second order of the errors. What mixed
    precision makes of inputs counts as the call's own here. `instead`: exact results of the target by slot,
    in place of those with its own arguments. None: no gradient was recorded, or shapes differ.
    """
    if not _has_gradients(ours) or not _has_gradients(theirs):
        return None
    total = 0.0
    for one, other in zip(ours.results, theirs.results, strict=False):
        gradients = _gradient(ours, one), _gradient(theirs, other)
        exact = (ours.uncast if instead is None else instead).get(one.slot), theirs.uncast.get(other.slot)
        if gradients == (None, None):
            continue
        found = [_floats(data) for data in (*gradients, one.recorded, exact[0], other.recorded, exact[1])]
        if any(values is None or values.shape != one.recorded.shape for values in found):
            return None
        gradient, golden_gradient, y, reference, golden_y, golden_reference = found
        with np.errstate(all="ignore"):
            error = (y - reference) - (golden_y - golden_reference)
            total += float(np.vdot((gradient + golden_gradient) / 2, error))
    return total if math.isfinite(total) else None


def _has_gradients(again: _Again) -> bool:
    return not again.call.has_backward and _is_recorded(again.given)


def _gradient(again: _Again, result: _Result) -> TensorData | None:
    """What came back to an output."""
    number = [slot for slot, _ in _output_leaves(again.call)].index(result.slot)
    given = again.given or ()
    gradient = given[number] if number < len(given) else None
    return None if gradient is None else gradient.data


def _floats(data: TensorData | None) -> Any:
    """The values as float64; None for none, and for complex numbers."""
    return None if data is None or "complex" in data.dtype else floats_of(data).astype(np.float64)
