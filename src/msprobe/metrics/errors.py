"""How a result differs from its reference: its size, and its directions, each with a standard error.

With result y, reference g and error e = y - g over N numbers, everything in float64:

    relative     |e| / |g|, 2-norms
    scale        <e, g> / <g, g>: by how much the whole result is too large
    shift        mean(e) / rms(g): by how much the whole result lies too high
    spreads      how far the scale errors of single indices of each axis lie about that of the whole
    peak         max|e| / rms(e)

Rounding is large, but it has no direction: its scale error lies within a few standard errors of zero. Faults
have a direction. The standard error comes from the data: with r = e - scale * g,

    se^2 = sum over blocks of (sum of r * g in the block)^2 / (sum of g^2 outside the block)^2

where the blocks are the indices of one axis, and the axis is the one that gives most. So errors that are
alike along an axis, such as those of a row that was normalised, count once and not once for each number. This
is the jackknife: each block is left out once. If one number carries the whole norm, no fit hides its error.

A number that is NaN or infinite on a side is left out of all sums; where the other side does not have the
same, it is counted as mismatched.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from msprobe.kernels_error import Terms, error_sums

_Floats = npt.NDArray[np.float64]
_Array = np.ndarray[Any, Any]

LEAST_BLOCKS = 8  # fewer say nothing about how sums over blocks scatter
_LEAST_NUMBERS = 64  # of an array that has no axis of that many indices, to be cut into blocks at all
_LEAST_CARRIERS = 4.0  # numbers that an index needs for a scale error of its own
_PLAIN = 150  # of numbers below 2**150, such as each float32, fourth powers stay in range
_MOST = 1000  # 2**1000 is still a float64


class Bound(NamedTuple):
    """How far one number of a result may be off: `relative` times the reference's number, plus `absolute`."""

    relative: float
    absolute: float = 0.0


class Spread(NamedTuple):
    """How far the scale errors of single indices of an axis lie about that of the whole."""

    size: float  # the root mean square; this part of the relative error is scaling of single indices
    noise: float  # what errors without direction would give


class PairError(NamedTuple):
    """What a result and its reference say about each other; None: the data cannot tell."""

    numbers: int  # that are finite on both sides
    mismatched: int  # NaN or infinite, and not the same on both sides
    reference_norm: float
    error_norm: float
    relative: float  # inf: an error beside a reference of zeros; 0: zeros on both sides
    scale: float | None  # None: a reference of zeros
    scale_deviation: float | None  # standard error of `scale`; None: fewer than 8 blocks, or one carries all
    shift: float | None
    shift_deviation: float | None
    spreads: tuple[Spread, ...]  # of each axis that has at least two indices which enough numbers carry
    peak: float  # 0: no error
    peak_index: tuple[int, ...] | None  # of the largest error
    beyond: int  # numbers whose error is larger than the bound that was given

    @property
    def largest(self) -> float:
        """The largest absolute error."""
        return self.peak * self.error_norm / math.sqrt(self.numbers) if self.numbers else 0.0


def measure_error(
    result: _Array,
    reference: _Array,
    *,
    bound: Bound | None = None,
    overflow: float = math.inf,
) -> PairError:
    """Measure a result against a reference of the same shape; both real or both complex.

    bound     numbers with a larger error are counted in `beyond`
    overflow  the largest number that the result's dtype holds: a larger one of the reference is infinite
    """
    ours, theirs = _real(result), _real(reference)
    if ours.shape != theirs.shape:
        raise ValueError(f"the result has shape {ours.shape}, but the reference {theirs.shape}")
    with np.errstate(all="ignore"):
        return _summary(_Pair(ours, theirs, bound, overflow))


def _real(array: _Array) -> _Array:
    """Complex numbers as pairs of real ones along a new last axis."""
    if array.dtype.kind != "c":
        return array
    whole = np.ascontiguousarray(array)
    return whole.view(whole.real.dtype).reshape(*array.shape, 2)


class _Pair:
    """Two arrays as rows along their last axis, and their sums."""

    def __init__(self, result: _Array, reference: _Array, bound: Bound | None, overflow: float) -> None:
        self.shape = tuple(result.shape)
        self.long = [size for size in self.shape if size > 1] or [1]  # axes of one index are none
        self.last: int = self.long[-1]
        self._sides = result.reshape(-1, self.last), reference.reshape(-1, self.last)
        self._terms = Terms(0, overflow, *(bound if bound is not None else ()))
        self.found = error_sums(*self._sides, self._terms)
        self.exponent = self._exponent()  # of the power of two by which the sums' numbers are divided
        if self.exponent:
            self._terms = self._terms._replace(exponent=self.exponent)
            self.found = error_sums(*self._sides, self._terms)
        self.by_row, self._powers_by_row = self.found.by_row[:3], self.found.by_row[3:]  # e g, g g, e
        self.by_column, self._powers_by_column = self.found.by_column[:3], self.found.by_column[3:]
        self.rows: int = self._sides[0].shape[0]

    def _exponent(self) -> int:
        """0 if no fourth power of a number that counts overflows or vanishes."""
        largest, error = self.found.largest, self.found.largest_error
        exponent = math.frexp(largest or error)[1] if math.isfinite(error) else 0
        if abs(exponent) < _PLAIN:
            return 0
        return max(-_MOST, min(_MOST, exponent))

    @property
    def numbers(self) -> int:
        """How many numbers are finite on both sides."""
        return self.rows * self.last - self.found.absent

    @property
    def peak_index(self) -> tuple[int, ...] | None:
        """Where the largest error is."""
        if not self.found.largest_error:
            return None
        return tuple(map(int, np.unravel_index(self.found.place, self.shape)))

    def by_axis(self) -> Iterator[tuple[_Floats, _Floats]]:
        """The sums and the powers by index, of each axis."""
        axes = self.long[:-1]
        for axis in range(len(axes)):
            yield self._by_index(self.by_row, axis), self._by_index(self._powers_by_row, axis)
        yield self.by_column, self._powers_by_column

    def _by_index(self, by_row: _Floats, axis: int) -> _Floats:
        axes = self.long[:-1]
        others = tuple(1 + other for other in range(len(axes)) if other != axis)
        found: _Floats = by_row.reshape(3, *axes).sum(axis=others)
        return found

    def blocks(self) -> Iterator[_Floats]:
        """The sums by index, of each axis that has enough indices; else of blocks of numbers in a row."""
        axes = self.long[:-1]
        found = False
        for axis, size in enumerate(axes):
            if size >= LEAST_BLOCKS:
                found = True
                yield self._by_index(self.by_row, axis)
        if self.last >= LEAST_BLOCKS:
            found = True
            yield self.by_column
        if not found and self.rows * self.last >= _LEAST_NUMBERS:
            yield self._in_a_row()

    def _in_a_row(self) -> _Floats:
        """Only of a small array: each of its axes has less than 8 indices."""
        result, reference = (side.reshape(1, -1) for side in self._sides)
        cuts = [number * result.size // LEAST_BLOCKS for number in range(LEAST_BLOCKS + 1)]
        blocks = [slice(*ends) for ends in itertools.pairwise(cuts)]
        found = [error_sums(result[:, block], reference[:, block], self._terms) for block in blocks]
        return np.stack([sums.by_row[:3, 0] for sums in found], axis=1)


def _summary(pair: _Pair) -> PairError:
    product, square, total = (float(values.sum()) for values in pair.by_row)
    reference_norm, error_norm = math.sqrt(square), math.sqrt(pair.found.squares)
    count, factor = pair.numbers, math.ldexp(1.0, pair.exponent)
    scale = shift = None
    spreads: list[Spread] = []
    deviations: tuple[float | None, float | None] = (None, None)
    if square > 0:
        scale, shift = product / square, total / math.sqrt(count * square)
        deviations = _deviations(pair, scale, total / count, count)
        found = (_spread(sums, powers, scale) for sums, powers in pair.by_axis())
        spreads = [spread for spread in found if spread is not None]
    largest = pair.found.largest_error / factor
    return PairError(
        numbers=count,
        mismatched=pair.found.mismatched,
        reference_norm=reference_norm * factor,
        error_norm=error_norm * factor,
        relative=error_norm / reference_norm if reference_norm else math.inf if error_norm else 0.0,
        scale=scale,
        scale_deviation=deviations[0],
        shift=shift,
        shift_deviation=deviations[1],
        spreads=tuple(spreads),
        peak=largest * math.sqrt(count) / error_norm if error_norm else 0.0,
        peak_index=pair.peak_index,
        beyond=pair.found.beyond,
    )


def _deviations(pair: _Pair, scale: float, mean: float, count: int) -> tuple[float | None, float | None]:
    """The standard errors of scale and shift: the largest over the axes."""
    square = float(pair.by_row[1].sum())
    scales, shifts = [], []
    for product, squares, error in pair.blocks():
        blocks = product.size
        left = (product - scale * squares) / (square - squares)
        scales.append(math.sqrt((blocks - 1) / blocks * float(left @ left)))
        left = error - mean * (count / blocks)
        shifts.append(math.sqrt(blocks / (blocks - 1) * float(left @ left)) / math.sqrt(count * square))
    largest = max(scales, default=math.nan)
    return largest if math.isfinite(largest) else None, max(shifts, default=None)


def _spread(sums: _Floats, powers: _Floats, scale: float) -> Spread | None:
    """The scale errors of the indices of an axis, weighted by how much of the reference each holds.

    An index that few numbers carry has no scale error of its own.
    """
    product, square, _ = sums
    held = (square > 0) & (square * square >= _LEAST_CARRIERS * powers[2])
    if np.count_nonzero(held) < 2:
        return None
    product, square = product[held], square[held]
    own = product / square
    left = np.maximum(powers[0][held] - 2 * own * powers[1][held] + own * own * powers[2][held], 0.0)
    whole = float(square.sum())
    size = math.sqrt(max(float((square * (own - scale) ** 2).sum()), 0.0) / whole)
    return Spread(size, math.sqrt(float((left / square).sum()) / whole))
