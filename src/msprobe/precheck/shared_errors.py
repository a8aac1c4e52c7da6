"""Measure the scale error of a result apart from the errors that the same call makes on the CPU, too.

A sum that is kept in bfloat16 has errors of 1 % or more. If there are only a few dozen such sums, as in the
gradient of layer norm's weight, the standard error of their scale is so large that a factor of 1.02 does not
stand out. Where the CPU rounds alike, its result of the same call has the same errors, and these say nothing
about the factor. So with result y, exact result g and the CPU's result s,

    y - g = scale * g + share * (s - g) + rest

is fitted by least squares. The data decide the share: it is about 1 for a device that rounds as the CPU does,
and about 0 for a device whose errors have nothing to do with the CPU's. If it does not stand out of its own
standard error, nothing is shared, and there is no answer. Standard errors are the jackknife of
metrics/errors.py: both numbers are fitted again without each index of an axis, and the axis that gives most
counts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from msprobe.metrics.errors import LEAST_BLOCKS
from msprobe.store.dtypes import Array

_Floats = npt.NDArray[np.float64]

_DEVIATIONS = 12.0  # standard errors: see metrics/rounding.py
# Of the square of s - g: what must be left without its part along g. Less is rounding in float64.
_LEAST_LEFT = 1e-9


class ScaleError(NamedTuple):
    """By how much a result is too large as a whole, and the standard error of that."""

    value: float
    deviation: float


class _Terms(NamedTuple):
    """What the fit is made of, with zeros where a number is not finite."""

    error: _Floats
    exact: _Floats
    shared: _Floats  # the errors of the CPU


def scale_beside(sample: Array, result: Array, exact: Array) -> ScaleError | None:
    """Return the scale error of a result apart from errors it shares with the CPU's, `sample`.

    None: it shares none, or the data cannot tell.
    """
    axes = [axis for axis, size in enumerate(exact.shape) if size >= LEAST_BLOCKS]
    with np.errstate(all="ignore"):
        terms = _terms(sample, result, exact)
        if terms is None or not axes:
            return None
        scale, share = map(float, _fitted(_sums(terms, None))[:, 0])
        deviations = np.max([_deviations(_sums(terms, axis)) for axis in axes], axis=0)
    if not (np.isfinite(deviations).all() and abs(share) > _DEVIATIONS * deviations[1]):
        return None
    return ScaleError(scale, float(deviations[0]))


def _terms(sample: Array, result: Array, exact: Array) -> _Terms | None:
    """None: the shapes differ, the numbers are complex or whole, or all of them are zero."""
    sides = (sample, result, exact)
    if any(side.dtype.kind != "f" or side.shape != exact.shape for side in sides):
        return None
    finite = np.logical_and.reduce([np.isfinite(side) for side in sides])
    again, ours, theirs = (np.where(finite, side, 0.0).astype(np.float64) for side in sides)
    largest = float(np.abs(theirs).max(initial=0.0))
    if not largest:
        return None
    return _Terms((ours - theirs) / largest, theirs / largest, (again - theirs) / largest)


def _sums(terms: _Terms, axis: int | None) -> _Floats:
    """The sums of products that the fit needs, by index of an axis; None: of all numbers at once."""
    error, exact, shared = (
        term.reshape(1, -1) if axis is None else np.moveaxis(term, axis, 0).reshape(term.shape[axis], -1)
        for term in terms
    )
    pairs = ((error, exact), (error, shared), (exact, exact), (exact, shared), (shared, shared))
    return np.stack([np.einsum("ij,ij->i", one, other) for one, other in pairs])


def _fitted(sums: _Floats) -> _Floats:
    """Scale and share; NaN where the CPU has no errors, or has a scale error and nothing else."""
    error_exact, error_shared, exact, both, shared = sums
    left = exact * shared - both * both
    found = np.stack([error_exact * shared - error_shared * both, error_shared * exact - error_exact * both])
    found[:, ~(left > _LEAST_LEFT * exact * shared)] = math.nan
    fitted: _Floats = found / left
    return fitted


def _deviations(by_index: _Floats) -> _Floats:
    """The jackknife: how scale and share scatter if each index is left out once. NaN: cannot tell."""
    blocks = by_index.shape[1]
    found = _fitted(by_index.sum(axis=1, keepdims=True) - by_index)
    left = found - found.mean(axis=1, keepdims=True)
    deviations: _Floats = np.sqrt((blocks - 1) / blocks * (left * left).sum(axis=1))
    return deviations
