"""Judge a result against a reference of higher precision by what rounding in its dtype can explain.

With unit roundoff u of the dtype, accumulation in float32 or better with unit a, and K summands for a number:

    relative error   4 u: a call rounds a few times, and each time by u at most.
                     Or u and twice the error of the same call on the CPU in the same dtypes. Or what the last
                     bits of the inputs decide, where large numbers cancel. Never more than
                     (4 + 2 sqrt(K)) u + K a beyond the latter.
    scale error      max(u, 12 standard errors) + sqrt(K) a
    one number       8 u of it and of the root mean square; more, if the CPU or last bits show it, or if it is
                     not known how the call rounds, and sums may be kept in the dtype itself

Measured with the CPU kernels of torch 2.13 (forward and backward of 90 APIs with 64 to 4096 summands in
float32, bfloat16 and float16): a relative error of at most 2 u for single operations, of 0.3 sqrt(K) u for
sums that are kept in the dtype itself (the gradients of layer_norm's weight and bias, nll_loss), and of
0.9 K a where places are computed in float32 (interpolate); a scale error of at most 1 u, or 12 standard
errors, or 0.1 sqrt(K) a (norm). Subnormal numbers have steps of a fixed size, which is added.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import NamedTuple

from msprobe.dtypes import largest_number, roundoff, smallest_step
from msprobe.metrics.errors import Bound, PairError

PASS, ERROR, CANNOT_TELL = "pass", "error", "cannot tell"


class Precision(NamedTuple):
    """What a dtype can hold."""

    unit: float  # the largest relative error of rounding to nearest
    step: float  # between subnormal numbers
    largest: float


PRECISIONS = MappingProxyType(
    {
        name: Precision(roundoff(name), smallest_step(name), largest_number(name))
        for name in ("float64", "float32", "bfloat16", "float16")
    }
)

_STEPS = 4.0  # roundings of a call
_DEVIATIONS = 12.0  # standard errors that rounding may be off as a whole
_AS_SAMPLE = 2.0  # how much worse than on the CPU a call may round elsewhere
_ONE_NUMBER = 8.0
_LAST_BITS = 4.0  # by how many changes in the last bit of all inputs a result may be off
_TELLS_NOTHING = 0.1  # a tolerance above this hides what a user would call wrong


class Evidence(NamedTuple):
    """What else is known of how a call rounds; it is asked for only where a result is off."""

    sample: PairError | None = None  # the call in the same dtypes on the CPU, against the same reference
    last_bits: PairError | None = (
        None  # the reference with all inputs changed in their last bit, against itself
    )
    input_unit: float = 0.0  # of the coarsest input


class Judged(NamedTuple):
    """The verdict on a result, and the numbers behind it."""

    relative_error: float | None
    scale_error: float | None
    tolerance: float | None  # of the relative error; None: the reference is zero
    verdict: str
    reason: str = ""


def element_bound(dtype: str, rms: float) -> Bound:
    """How far a single number may be off before it is looked at; `rms` of the reference."""
    unit, step, _ = PRECISIONS[dtype]
    return Bound(_ONE_NUMBER * unit, _ONE_NUMBER * unit * rms + step)


def judge_rounding(error: PairError, dtype: str, summands: int, evidence: Evidence | None = None) -> Judged:
    """Judge what was measured of a result whose call computes in `dtype`.

    Without evidence the tolerance is the smallest; an error may turn out to be rounding once there is some.
    """
    limits = _Limits(error, PRECISIONS[dtype], summands, evidence)
    most, size = limits.norm(), error.reference_norm
    tolerance = most / size if size else None
    judged = Judged(error.relative, error.scale, tolerance, PASS)
    fault = _fault(error, limits, dtype)
    if fault:
        return judged._replace(verdict=ERROR, reason=fault)
    if error.error_norm and not most <= _TELLS_NOTHING * size:
        return judged._replace(verdict=CANNOT_TELL, reason=_undecided(limits, dtype))
    return judged


def _fault(error: PairError, limits: _Limits, dtype: str) -> str:
    """What rounding does not explain, in words; "" if it explains everything."""
    if error.mismatched:
        some = "One number is" if error.mismatched == 1 else f"{error.mismatched} numbers are"
        return f"{some} NaN or infinite on one side only, or not the same."
    explains = f"rounding in {dtype} explains at most"
    scale, most = error.scale, limits.scale()
    if scale is not None and most is not None and not abs(scale) <= most:
        size = "large" if scale > 0 else "small"
        return f"It is {_percent(abs(scale))} too {size} as a whole; {explains} {_percent(most)}."
    if not error.error_norm <= limits.norm():
        if not error.reference_norm:
            return f"The reference is zero, and it is not: its norm is {error.error_norm:.3g}."
        allowed = _percent(limits.norm() / error.reference_norm)
        return f"The relative error is {_percent(error.relative)}; {explains} {allowed}."
    if error.beyond and not error.largest <= limits.one_number():
        where = f", most at {list(error.peak_index)}" if error.peak_index else ""
        some = "One number is" if error.beyond == 1 else f"{error.beyond} of {error.numbers} numbers are"
        return f"{some} off by more than rounding in {dtype} explains{where}: by {error.largest:.3g}."
    return ""


def _undecided(limits: _Limits, dtype: str) -> str:
    """Why a tolerance is so large that nothing can be said."""
    if limits.change is None:
        return f"Its numbers are among the smallest that {dtype} has, so that rounding decides them."
    change = f"{limits.change:.2g} times its size" if limits.change < math.inf else "from zero"
    return f"A change of its inputs in their last bit changes it by {change}, so that rounding decides it."


class _Limits:
    """How far rounding goes."""

    def __init__(
        self, error: PairError, precision: Precision, summands: int, evidence: Evidence | None
    ) -> None:
        self._error = error
        self._unit, self._step, _ = precision
        self._summands = max(1, summands)
        self._evidence = evidence
        # Accumulation is in float32 or better, whatever the result is rounded to.
        self._added = min(self._unit, PRECISIONS["float32"].unit)

    @property
    def change(self) -> float | None:
        """How far last bits of the inputs change the result, beside its size."""
        if self._evidence is None or self._evidence.last_bits is None:
            return None
        return self._evidence.last_bits.relative

    def norm(self) -> float:
        """The largest norm of the error."""
        size = self._error.reference_norm
        smallest = _STEPS * self._unit * size + self._steps()
        if self._evidence is None:
            return smallest
        sample, last_bits = self._evidence.sample, self._evidence.last_bits
        decided = 0.0
        if last_bits is not None:
            decided = self._times_last_bits(last_bits.error_norm - 2 * self._evidence.input_unit * size)
        most = smallest + self._by_adding() * size + decided
        if sample is None or not sample.error_norm < math.inf:
            return most
        return min(max(smallest, self._unit * size + _AS_SAMPLE * sample.error_norm, decided), most)

    def _by_adding(self) -> float:
        """The relative error that adding up can make, if sums are kept in the dtype itself."""
        return 2 * math.sqrt(self._summands) * self._unit + self._summands * self._added

    def _steps(self) -> float:
        """What the steps between subnormal numbers add to the norm."""
        return self._step * math.sqrt(self._error.numbers)

    def _times_last_bits(self, change: float) -> float:
        """Rounding while adding up is larger than a change in the last bit of each summand."""
        grows = math.sqrt(self._summands) if self._added == self._unit else 1.0
        return _LAST_BITS * grows * max(0.0, change)

    def scale(self) -> float | None:
        """The largest scale error; None: the data cannot tell."""
        deviation, size = self._error.scale_deviation, self._error.reference_norm
        if deviation is None:
            return None
        most = max(self._unit, _DEVIATIONS * deviation) + math.sqrt(self._summands) * self._added
        return most + self._steps() / size

    def one_number(self) -> float:
        """The largest error of one number."""
        if self._evidence is None:
            return 0.0
        sample, last_bits = self._evidence.sample, self._evidence.last_bits
        decided = 0.0 if last_bits is None else self._times_last_bits(last_bits.largest)
        if sample is not None:
            return max(2 * _AS_SAMPLE * sample.largest, decided)
        rms = self._error.reference_norm / math.sqrt(self._error.numbers)
        return max(_ONE_NUMBER * (self._unit + self._by_adding()) * rms, decided)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
