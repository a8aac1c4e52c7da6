"""Which run is at fault in a call, by how far the result of each is from the same call in float64.

The error of a result beside f64(its own inputs) is the call's own: nothing that went in is part of it. With
unit roundoff u of the result's dtype, u32 of float32, in which hardware adds up, K summands and S the norm
that the result would have if its summands did not cancel, a sound kernel has an error of up to

    floor = u |y| + 4 u32 (1 + sqrt(K)) S

A run is at fault if its error is larger than that of the other run by a factor, both in units of their own u,
where an error below the floor counts as the floor:

    relative error, single numbers           2      TorchDynamo's factor for a result beside a reference
    scale error, mean, rows and channels     1.25   rounding toward zero has a scale error of up to 1 u

The two factors and the 4 give half of what verdict/tolerance.py allows to the difference of two kernels. So a
call that differs by more than that although its inputs are equal has at least one run at fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from msprobe.dtypes import SINGLE
from msprobe.metrics.errors import PairError, Spread

Measure = Literal[
    "NaN and infinities",
    "relative error",
    "scale error",
    "mean",
    "rows or channels",
    "single numbers",
    "values",
]

_INNER = 4.0  # roundings inside a kernel
_SIZE, _DIRECTION = 2.0, 1.25
_DEVIATIONS = 12.0  # standard errors: see verdict/directions.py
_SPREAD = 4.0  # times the noise of the scale errors of rows or channels: see there
_ONE_NUMBER = 8.0  # roundings that a single number may be off: see metrics/rounding.py


class OwnError(NamedTuple):
    """The error of one result of a call beside the same call in float64."""

    dtype: str
    unit: float  # what the error is held against; 0: whole numbers, which do not round
    inner: float = 0.0  # norm of the error that roundings inside a sound kernel may make
    error: PairError | None = None  # None: whole numbers
    unequal: int = 0  # of whole numbers: how many differ

    @property
    def floor(self) -> float:
        """The norm of the error that a sound kernel may have."""
        return self.inner + (self.unit * self.error.reference_norm if self.error is not None else 0.0)


class Excess(NamedTuple):
    """How far one run's error is beyond that of the other, by the measure that shows it best."""

    score: float  # above 1: it is at fault
    measure: Measure
    error: float  # in roundings
    other: float


def inner_rounding(unit: float, summands: int, uncancelled: float) -> float:
    """Return the norm of the error that roundings inside a sound kernel may make; `uncancelled`: S."""
    return _INNER * min(unit, SINGLE) * (1 + math.sqrt(summands)) * uncancelled


def excess(own: OwnError, other: OwnError | None) -> Excess:
    """Return by which measure a run's error is worst beside that of the other run, or beside the floor."""
    found = [_excess(measure, value, own, other) for measure, value in _measures(own, strict=True)]
    return max(found, key=lambda each: each.score)


def roundings(own: OwnError) -> float:
    """Return the relative error in roundings; of whole numbers how many differ."""
    return next(value for measure, value in _measures(own, strict=False) if measure != "NaN and infinities")


def _excess(measure: Measure, value: float, own: OwnError, other: OwnError | None) -> Excess:
    beside = 0.0
    if other is not None:
        beside = next((v for m, v in _measures(other, strict=False) if m == measure), 0.0)
    if measure in ("NaN and infinities", "values"):
        score = value / (_SIZE * max(beside, 0.5)) if value else 0.0
        return Excess(score if score <= 1 else math.inf, measure, value, beside)
    floor = _floor(own) * (_ONE_NUMBER if measure == "single numbers" else 1.0)
    factor = _SIZE if measure in ("relative error", "single numbers") else _DIRECTION
    most = factor * max(floor, beside)
    score = 0.0 if value == 0 else value / most if most > 0 and math.isfinite(most) else math.inf
    return Excess(0.0 if math.isinf(value) and math.isinf(beside) else score, measure, value, beside)


def _floor(own: OwnError) -> float:
    """The floor in roundings."""
    norm = own.error.reference_norm if own.error is not None else 0.0
    return own.floor / (own.unit * norm) if norm and own.unit else 1.0


def _measures(own: OwnError, *, strict: bool) -> Iterator[tuple[Measure, float]]:
    """Each measure in roundings; `strict`: zero where it does not stand out from noise."""
    error = own.error
    if error is None:
        yield "values", float(own.unequal)
        return
    yield "NaN and infinities", float(error.mismatched)
    norm = error.reference_norm
    if not norm:  # a result that is zero has no rounding of its own
        off = error.error_norm
        yield "relative error", off / own.floor if own.floor else math.inf if off else 0.0
        return
    unit = own.unit
    yield "relative error", error.relative / unit
    for measure, value, deviation in _directions(error):
        if value is not None and (not strict or _stands_out(value, deviation)):
            yield measure, abs(value) / unit
    spreads = [_beyond_noise(spread) for spread in (error.first_spread, error.last_spread)]
    yield "rows or channels", max(spreads) / unit
    if error.beyond or not strict:
        yield "single numbers", error.largest / (unit * norm / math.sqrt(error.numbers))


def _directions(error: PairError) -> Iterator[tuple[Measure, float | None, float | None]]:
    yield "scale error", error.scale, error.scale_deviation
    yield "mean", error.shift, error.shift_deviation


def _stands_out(value: float, deviation: float | None) -> bool:
    return deviation is not None and abs(value) > _DEVIATIONS * deviation


def _beyond_noise(spread: Spread | None) -> float:
    return 0.0 if spread is None else max(0.0, spread.size - _SPREAD * spread.noise)
