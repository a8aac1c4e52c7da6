"""Judges each output and each gradient of a call, by the specified rule and by what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from msprobe.analyse.accuracy import Values, measure, real_dtype, undetermined, values_of, zero_share
from msprobe.analyse.standard_table import COARSE, LIMITS
from msprobe.analyse.standards import ERROR, PASS, SKIP, WARNING, Verdict, judge, judge_zeros, worst
from msprobe.metrics.errors import PairError, measure_error
from msprobe.metrics.rounding import (
    CANNOT_TELL,
    PRECISIONS,
    Evidence,
    Judged,
    element_bound,
    judge_rounding,
)
from msprobe.name import slot_name
from msprobe.plural import counted
from msprobe.precheck.calls import Call, Skip
from msprobe.precheck.run import Ran
from msprobe.precheck.shared_errors import scale_beside
from msprobe.report.precheck_csv import Result, Summed
from msprobe.store.dtypes import Array, TensorData, as_float

_LONGEST_MESSAGE = 2000
_ROUNDING = "A change of the inputs in their last bit changes it as much, so that rounding decides it."
_VERDICTS = (ERROR, CANNOT_TELL, PASS)
_NOTHING = Ran(())


class Answer(NamedTuple):
    """What was found out about one call."""

    summed: Summed
    results: tuple[Result, ...] = ()

    @property
    def is_off(self) -> bool:
        """Whether a result fails by its numbers, so that it is worth a look at how the call rounds."""
        return any(
            each.accuracy is not None and ERROR in (each.status, each.judged and each.judged.verdict)
            for each in self.results
        )


class How(NamedTuple):
    """What of a call its results are judged by."""

    drops: bool  # numbers at random
    computed: str  # the dtype of mixed precision, or nothing
    added: int  # how many numbers may have been added up for one of a result
    input_unit: float = 0.0  # unit roundoff of the coarsest input


class Rounds(NamedTuple):
    """How a call rounds, as far as it was found out by making it again."""

    last_bits: Ran = _NOTHING  # the reference after a change of the inputs in their last bit
    sample: Ran = _NOTHING  # the call on the CPU in the dtypes of the checked side


class _Sides(NamedTuple):
    """One result in each of the runs of a call; None: not there."""

    checked: TensorData | None
    exact: TensorData | None
    last_bits: TensorData | None = None
    sample: TensorData | None = None


def judge_call(call: Call, ours: Ran, reference: Ran, how: How, rounds: Rounds | None = None) -> Answer:
    """Judge each result of a call; `rounds` excuses errors that it shows to be rounding."""
    others = rounds or Rounds()
    forward = _judged(
        slot_name(call.text, "forward"),
        [ours.outputs, reference.outputs, others.last_bits.outputs, others.sample.outputs],
        how,
        looked=rounds is not None,
    )
    backward: list[Result] = []
    if call.has_backward:
        name, failed = slot_name(call.text, "backward"), ours.failed_back or reference.failed_back
        runs = [ours.gradients, reference.gradients, others.last_bits.gradients, others.sample.gradients]
        backward = [] if failed else _judged(name, runs, how, looked=rounds is not None)
        if not backward and (call.backward is not None or failed):
            backward = [Result(slot_name(name, "output.0"), SKIP, failed or Skip.NO_GRAPH.of())]
    return summed_up(call.text, forward, backward)


def summed_up(call: str, forward: Sequence[Result], backward: Sequence[Result]) -> Answer:
    """One row for all results of a call."""
    results = (*forward, *backward)
    told = [f"{each.place}: {each.message}" for each in results if each.status in (ERROR, WARNING)]
    skips = dict.fromkeys(each.message for each in results if each.status == SKIP)
    message = " ".join([*told, *skips])[:_LONGEST_MESSAGE]
    reasons = [
        f"{each.place}: {each.judged.reason}"
        for verdict in (ERROR, CANNOT_TELL)
        for each in results
        if each.judged is not None and each.judged.verdict == verdict
    ]
    ahead, back = (worst(each.status for each in side) for side in (forward, backward))
    reason = " ".join(reasons)[:_LONGEST_MESSAGE]
    return Answer(Summed(call, ahead, back, message, _worst(forward), _worst(backward), reason), results)


def _worst(results: Iterable[Result]) -> str:
    """The worst verdict; one that was skipped does not count beside one that was not."""
    found = {each.judged.verdict if each.judged is not None else SKIP for each in results}
    return next((verdict for verdict in (*_VERDICTS, SKIP) if verdict in found), "")


def _judged(
    name: str, runs: Sequence[Sequence[TensorData | None]], how: How, *, looked: bool
) -> list[Result]:
    ours, reference = runs[:2]
    if len(ours) != len(reference):
        message = f"It gave {counted(len(ours), 'output')}, and the reference {len(reference)}."
        return [Result(slot_name(name, "output.0"), ERROR, message, judged=_failed(message))]
    results = []
    for index, found in enumerate(zip_longest(*runs)):
        sides = _Sides(*found)
        if sides.checked is not None and sides.exact is not None:
            results.append(_result(slot_name(name, f"output.{index}"), sides, how, looked=looked))
    return results


def _failed(reason: str) -> Judged:
    return Judged(None, None, None, ERROR, reason)


def _result(place: str, sides: _Sides, how: How, *, looked: bool) -> Result:
    checked, exact = sides.checked, sides.exact
    assert checked is not None and exact is not None
    about = Result(place, ERROR, "", exact.dtype, checked.dtype, checked.shape)
    ours, theirs = values_of(checked), values_of(exact)
    wrong = ""
    if checked.shape != exact.shape:
        wrong = f"The shape is {checked.shape}, but {exact.shape} of the reference."
    elif ours.is_float != theirs.is_float:
        wrong = f"The dtype is {ours.dtype}, but {theirs.dtype} of the reference."
    if wrong:
        return about._replace(message=wrong, judged=_failed(wrong))
    kind = real_dtype(ours.dtype)
    if ours.is_float and how.computed in COARSE and kind not in COARSE:
        kind = how.computed
    if ours.is_float and kind not in LIMITS:
        return about._replace(status=SKIP, message=Skip.NO_STANDARD.of(ours.dtype))
    accuracy = measure(ours, theirs, kind)
    verdict = _dropped(ours, theirs) if how.drops else judge(accuracy, kind)
    if ours.is_float:
        judged = _by_rounding(sides, kind, how, looked=looked)
    else:
        judged = Judged(None, None, None, verdict.status, verdict.message)
    changed = sides.last_bits
    if verdict.status == ERROR and ours.is_float and changed is not None and changed.shape == exact.shape:
        excused = undetermined(ours, theirs, values_of(changed), how.added)
        verdict = Verdict(PASS, _ROUNDING) if excused else verdict
    return about._replace(status=verdict.status, message=verdict.message, accuracy=accuracy, judged=judged)


def _dropped(ours: Values, theirs: Values) -> Verdict:
    return judge_zeros(zero_share(ours), zero_share(theirs), ours.array.size)


# ---- by what rounding explains ----


def _by_rounding(sides: _Sides, kind: str, how: How, *, looked: bool) -> Judged:
    checked, exact = sides.checked, sides.exact
    assert checked is not None and exact is not None
    ours, theirs = floats_of(checked), floats_of(exact)
    error = pair_error(ours, theirs, kind)
    if not looked:
        return judge_rounding(error, kind, how.added)
    sample, last_bits = (
        None if other is None or other.shape != exact.shape else floats_of(other)
        for other in (sides.sample, sides.last_bits)
    )
    evidence = Evidence(
        None if sample is None else pair_error(sample, theirs, kind),
        None if last_bits is None else pair_error(last_bits, theirs, kind),
        how.input_unit,
    )
    judged = judge_rounding(error, kind, how.added, evidence)
    apart = None if judged.verdict == ERROR or sample is None else scale_beside(sample, ours, theirs)
    if apart is None:
        return judged
    without_shared = error._replace(scale=apart.value, scale_deviation=apart.deviation)
    again = judge_rounding(without_shared, kind, how.added, evidence)
    if again.verdict != ERROR:
        return judged
    return again._replace(reason=f"Beside the same call on the CPU: {again.reason}")


def pair_error(result: Array, reference: Array, kind: str) -> PairError:
    """Measure a result of dtype `kind` against a reference of higher precision."""
    finite = reference[np.isfinite(reference)].astype(np.complex128 if reference.dtype.kind == "c" else float)
    with np.errstate(all="ignore"):
        rms = float(np.linalg.norm(finite)) / math.sqrt(finite.size) if finite.size else 0.0
    precision = PRECISIONS[kind]
    return measure_error(result, reference, bound=element_bound(kind, rms), overflow=precision.largest)


def floats_of(data: TensorData) -> Array:
    """The values of a tensor in its shape; those of half precision as float32."""
    return as_float(*values_of(data)).reshape(data.shape)
