"""What free_benchmark names: a call whose second answer is further from the first than rounding explains.

The specified rule takes single elements and one limit for each dtype. Its rows stand in free_benchmark.csv.
In half precision that limit is as large as one rounding, so that nearly every sound call has a row. Here the
whole answer is judged, by the norm of the difference:

    improve_precision, to_cpu   the second answer is the reference; the first is judged by what rounding in
                                its dtype explains, as run_ut judges (msprobe.metrics.rounding)
    add_noise, bit_noise        the answer may move by 64 times the change of the input, by four roundings, or
                                by the limit of the specified rule, whichever is most; where that is more than
                                a tenth of the answer, or the noise changes nothing, the mode cannot tell
    change_value                the answer may move by four roundings, or by the limit of the specified rule;
                                where it moves further, only the sum, mean, norm or the like of a whole tensor
                                is named, as it does not depend on the order of the numbers; else the mode
                                cannot tell
    no_change                   the specified rule
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from msprobe.analyse.stability import Difference
from msprobe.metrics.errors import PairError, measure_error
from msprobe.metrics.rounding import (
    CANNOT_TELL,
    ERROR,
    PASS,
    PRECISIONS,
    Evidence,
    judge_rounding,
)
from msprobe.name import CallName
from msprobe.operators import operator_of
from msprobe.store.dtypes import Array

REFERENCES = ("improve_precision", "to_cpu")  # modes whose second answer is the better one
NOISES = ("add_noise", "bit_noise")
SWAPS = "change_value"

NO_CHANGE = (
    "the noise is smaller than the last bit of {dtype}, so that it changes nothing; use {mode} instead"
)
AS_LARGE_AS_ROUNDING = (
    "the change of the input is as large as rounding in {dtype}; use improve_precision instead"
)
OF_POSITIONS = (
    "what a call gives may depend on where single numbers stand, and this mode judges only what does not, "
    "such as the sum, the mean or the norm of a whole tensor; use bit_noise or improve_precision instead"
)

_FINE = ("float32", "float64")  # in these a flipped last bit is small enough to be judged
_GAIN = 64.0  # how many times the change of an input an answer may move
_ROUNDINGS = 4.0
_TELLS_NOTHING = 0.1


class Verdict(NamedTuple):
    """What is said of one answer, or of a call as a whole."""

    word: str  # pass, error or cannot tell
    reason: str = ""


class Numbers(NamedTuple):
    """The numbers of an answer, in their shape."""

    array: Array
    dtype: str


def judge_reference(
    original: Numbers,
    reference: Numbers,
    dtype: str,
    summands: int,
    noisy: Callable[[], Numbers | None],
) -> Verdict:
    """Judge an answer by a second one of higher precision, or of the host.

    dtype     the coarsest that the call computes in
    noisy     the second answer with the last bits of all inputs changed; it is asked for only if one is off
    """
    if original.array.shape != reference.array.shape:
        return Verdict(ERROR, "The shape changes.")
    error = _error(original.array, reference.array, dtype)
    judged = judge_rounding(error, dtype, summands)
    if judged.verdict == ERROR and not error.mismatched:
        other = noisy()
        fits = other is not None and other.array.shape == reference.array.shape
        last_bits = _error(other.array, reference.array, dtype) if other is not None and fits else None
        evidence = Evidence(last_bits=last_bits, input_unit=PRECISIONS[dtype].unit)
        judged = judge_rounding(error, dtype, summands, evidence)
    return Verdict(judged.verdict, judged.reason)


def judge_noise(
    original: Numbers, second: Numbers, limit: float, change: float, by_rule: Difference, dtype: str
) -> Verdict:
    """Judge how far an answer moves when an input changes by `change` of its size.

    limit     of the specified rule
    dtype     the coarsest that the call computes in
    """
    precision = PRECISIONS.get(original.dtype)
    if precision is None or original.array.shape != second.array.shape:
        return Verdict(PASS if by_rule.consistent else ERROR)
    error = measure_error(second.array, original.array)
    if error.mismatched:
        return Verdict(ERROR)
    if not change:
        mode = "bit_noise" if dtype in _FINE else "improve_precision"
        return Verdict(CANNOT_TELL, NO_CHANGE.format(dtype=dtype, mode=mode))
    most = max(limit - 1.0, _ROUNDINGS * precision.unit, _GAIN * change)
    if not error.relative <= most and not _is_tiny(error, original):
        return Verdict(ERROR)
    if most > _TELLS_NOTHING:
        return Verdict(CANNOT_TELL, AS_LARGE_AS_ROUNDING.format(dtype=dtype))
    return Verdict(PASS)


def judge_swap(
    name: CallName, original: Numbers, second: Numbers, limit: float, by_rule: Difference
) -> Verdict:
    """Judge how far an answer moves when two numbers of an input change places; `limit`: of the rule."""
    is_without_order = original.array.size == 1 and operator_of(name).ignores_order
    worse = Verdict(ERROR) if is_without_order else Verdict(CANNOT_TELL, OF_POSITIONS)
    precision = PRECISIONS.get(original.dtype)
    if precision is None or original.array.shape != second.array.shape:
        return Verdict(PASS) if by_rule.consistent else worse
    error = measure_error(second.array, original.array)
    most = max(limit - 1.0, _ROUNDINGS * precision.unit)
    moves = error.mismatched or (not error.relative <= most and not _is_tiny(error, original))
    return worse if moves else Verdict(PASS)


def _is_tiny(error: PairError, original: Numbers) -> bool:
    """Whether an answer is below what its dtype can hold in full precision."""
    step = PRECISIONS[original.dtype].step
    return error.error_norm <= step * math.sqrt(error.numbers)


def _error(result: Array, reference: Array, dtype: str) -> PairError:
    return measure_error(result, reference, overflow=PRECISIONS[dtype].largest)


def worst(verdicts: list[Verdict]) -> Verdict:
    """The verdict on a call, from those on its answers."""
    order = (ERROR, CANNOT_TELL, PASS)
    return min(verdicts, key=lambda one: order.index(one.word), default=Verdict(PASS))
