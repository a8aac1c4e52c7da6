"""The error of a result beside its reference, added up by row and by column in one pass over both.

metrics/errors.py makes its measures of these sums. Here a number that is NaN or infinite on a side is 0 on
both, and e is result - reference, g the reference.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from msprobe import kernels
from msprobe.kernels_numpy import KIND_OF

_Array: TypeAlias = npt.NDArray[Any]
_Doubles: TypeAlias = npt.NDArray[np.float64]

_SUMS = 6
_LANES = 4  # each sum of a row is added up in so many parts, as in the compiled kernel
_AT_ONCE = 1 << 15  # numbers that the numpy functions take at a time


class Terms(NamedTuple):
    """What is asked of the numbers."""

    exponent: int = 0  # e and g are divided by 2**exponent before they are added up
    overflow: float = math.inf  # a larger number of the reference counts as infinite
    relative: float = 0.0  # an error beyond relative * |g| + absolute is counted
    absolute: float = math.inf


class ErrorSums(NamedTuple):
    """The sums of e g, g g, e, and e e g g, e g g g, g g g g, in this order, by row and by column."""

    by_row: _Doubles
    by_column: _Doubles
    largest: float  # |g|, not divided
    largest_error: float  # |e|, not divided
    squares: float  # of e
    place: int  # of the largest error, in row-major order
    absent: int  # numbers that are not finite on a side
    mismatched: int  # those of them that are not the same on both sides
    beyond: int


def error_sums(result: _Array, reference: _Array, terms: Terms) -> ErrorSums:
    """Add up two arrays of rows and columns."""
    ours, theirs = _contiguous(result), _contiguous(reference)
    rows, columns = ours.shape
    by_row, by_column = np.zeros((_SUMS, rows)), np.zeros((_SUMS, -(-columns // _LANES) * _LANES))
    native = kernels.native()
    if native is None:
        found = _add_numpy(ours, theirs, terms, by_row, by_column)
    else:
        memory = [part for each in (ours, theirs) for part in (kernels.address_of(each), KIND_OF[each.dtype])]
        sums = kernels.address_of(by_row), kernels.address_of(by_column)
        found = native.error(*memory, rows, columns, *sums, math.ldexp(1.0, -terms.exponent), *terms[1:])
    return ErrorSums(by_row, by_column[:, :columns], *found)


def _contiguous(array: _Array) -> _Array:
    return np.ascontiguousarray(array, array.dtype if array.dtype in KIND_OF else np.float64)


# ---- in numpy, in the order of the compiled kernel ----

_Found: TypeAlias = tuple[float, float, float, int, int, int, int]


def _add_numpy(
    result: _Array, reference: _Array, terms: Terms, by_row: _Doubles, by_column: _Doubles
) -> _Found:
    largest = largest_error = squares = 0.0
    place = absent = mismatched = beyond = 0
    for rows, y, g in _parts(result, reference, by_column.shape[1]):
        if terms.overflow < math.inf:
            g[np.abs(g) > terms.overflow] *= math.inf
        odd = ~(np.isfinite(y) & np.isfinite(g))
        absent += int(np.count_nonzero(odd))
        mismatched += int(np.count_nonzero(odd & (y != g) & ~(np.isnan(y) & np.isnan(g))))
        y[odd] = g[odd] = 0.0
        e = y - g
        size, error = np.abs(g), np.abs(e)
        if terms.absolute < math.inf:
            beyond += int(np.count_nonzero(~(error <= terms.relative * size + terms.absolute)))
        largest = max(largest, float(size.max(initial=0.0)))
        if float(error.max(initial=0.0)) > largest_error:
            row, column = divmod(int(error.argmax()), error.shape[1])
            place, largest_error = (rows.start + row) * result.shape[1] + column, float(error.max())
        e, g = np.ldexp(e, -terms.exponent), np.ldexp(g, -terms.exponent)
        for row_squares in _add_part(rows, e, g, by_row, by_column):
            squares += float(row_squares)
    return largest, largest_error, squares, place, absent, mismatched, beyond


def _parts(result: _Array, reference: _Array, width: int) -> Iterator[tuple[slice, _Doubles, _Doubles]]:
    """Some rows of both at a time, in float64, with zeros up to `width` columns."""
    at_once = max(1, _AT_ONCE // width)
    for top in range(0, len(result), at_once):
        rows = slice(top, min(top + at_once, len(result)))
        y, g = (np.zeros((rows.stop - top, width)) for _ in range(2))
        y[:, : result.shape[1]], g[:, : result.shape[1]] = result[rows], reference[rows]
        yield rows, y, g


def _add_part(rows: slice, e: _Doubles, g: _Doubles, by_row: _Doubles, by_column: _Doubles) -> _Doubles:
    """Add some rows to the sums; return the sum of the squares of e of each row."""
    product, square = e * g, g * g
    terms = product, square, e, product * product, product * square, square * square
    for number, values in enumerate(terms):
        by_row[number, rows] = _sums_of_rows(values)
        by_column[number] = np.add.reduce(np.vstack([by_column[number], values]), axis=0)
    return _sums_of_rows(e * e)


def _sums_of_rows(values: _Doubles) -> _Doubles:
    lanes = np.add.reduce(values.reshape(len(values), -1, _LANES), axis=1)
    found: _Doubles = (lanes[:, 0] + lanes[:, 2]) + (lanes[:, 1] + lanes[:, 3])
    return found
