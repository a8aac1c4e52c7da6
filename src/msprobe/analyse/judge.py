"""Verdicts of one place and of one call: those that the specification prescribes, word for word."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from msprobe.analyse.measure import (
    NOTHING,
    UNSUPPORTED,
    Checksums,
    Measured,
    Number,
    StatisticsErrors,
    TensorErrors,
    values_of,
)
from msprobe.name import PARAMETERS_GRAD
from msprobe.pairing.match import Pair

YES, NO, NONE, UNMATCHED = "Yes", "No", "None", "Unmatched"
PASS, DIFFERENT = "pass", "Different"
WARNING = "Warning"
BAD = (NO, WARNING, DIFFERENT)
RED, YELLOW = "FFFF0000", "FFFFFF00"

_DOUBLE_CHECK = "Need double check api accuracy. "
_GRADIENT = "Requires_grad inconsistent. "
_FUZZY = " Fuzzy matching data, the comparison accuracy may be affected."
_NOT_FINITE = "maximum or minimum is nan, -inf, or inf"
_HUGE = "maximum absolute error exceeds 1e+10"
_RATIO_BAD = "The input/parameter's one thousandth err ratio exceeds 0.9, while the output's is below 0.6"
_RATIO_DROPS = (
    "The output's one thousandth err ratio decreases by more than 0.1 compared to the input/parameter's"
)
_COSINE_DROPS = "The output's cosine decreases by more than 0.1 compared to the input/parameter's"
_TEN_TIMES = (
    "maximum absolute error of both input/parameters and output exceed 1, with the output larger by an order "
    "of magnitude"
)
_RELATIVE_BAD = "maximum relative error exceeds 0.5"
_RELATIVE_GROWS = "The output's maximum relative error exceeds 0.1, while the input/parameter's is below 0.01"

_COSINE, _COSINE_BAD = 0.99, 0.9
_ABSOLUTE, _ABSOLUTE_BAD = 0.001, 1.0
_RELATIVE = 0.5


class Finding(NamedTuple):
    """A pair, how far it is apart, and what the specification makes of it."""

    pair: Pair
    measured: Measured
    result: str
    message: str = ""
    fill: str | None = None
    gradients_agree: bool = True  # both sides say the same about needing a gradient

    @property
    def is_bad(self) -> bool:
        return self.result in BAD


def by_call(findings: Sequence[Finding]) -> Iterator[list[Finding]]:
    """The findings of each call, which stand together."""
    for _, call in groupby(findings, key=lambda finding: id(finding.pair.place.record)):
        yield list(call)


def judge(pair: Pair, measured: Measured) -> Finding:
    """What the specification says of one pair on its own."""
    message = ""
    agrees = needs_agree(pair)
    if pair.target is None or pair.golden is None or pair.reason:
        return Finding(pair, measured, UNMATCHED, f"{pair.reason}.", gradients_agree=agrees)
    if isinstance(measured, TensorErrors):
        result, message = accuracy(measured), measured.message
    elif isinstance(measured, StatisticsErrors):
        result = WARNING if measured.are_far else ""
        message = _DOUBLE_CHECK if result else ""
    elif isinstance(measured, Checksums):
        result = PASS if measured.agree else DIFFERENT
    else:
        result = NONE
    if not agrees:
        message += _GRADIENT
    return Finding(pair, measured, result, message + (_FUZZY if pair.fuzzy else ""), gradients_agree=agrees)


def accuracy(errors: TensorErrors) -> str:
    """The column Accuracy Reached or Not."""
    cosine, largest = errors.cosine, errors.max_abs
    if NOTHING in (cosine, largest):
        return NO
    if cosine == UNSUPPORTED or isinstance(largest, str):
        return NONE
    cosine = 1.0 if isinstance(cosine, str) else cosine  # one side is all zeros: how large is the other?
    if not (cosine >= _COSINE or largest <= _ABSOLUTE):
        return NO
    if not (cosine >= _COSINE_BAD and largest <= _ABSOLUTE_BAD):
        return NO
    return YES


def needs_agree(pair: Pair) -> bool:
    """Whether both sides say the same about needing a gradient; MindSpore says nothing of its tensors."""
    if pair.target is None or pair.golden is None:
        return False
    ours, theirs = pair.target.leaf, pair.golden.leaf
    one, other = ours and ours.requires_grad, theirs and theirs.requires_grad
    if one == other:
        return True
    are_tensors = ours is not None and theirs is not None and ours.is_tensor and theirs.is_tensor
    return are_tensors and (one is None or other is None)


# ---- colours: a call's outputs beside its inputs ----


def colour(findings: Sequence[Finding]) -> list[Finding]:
    """The findings of one call with the colours that the specification gives them, and why."""
    inputs = [finding for finding in findings if finding.pair.place.side != "output"]
    return [_coloured(finding, inputs) for finding in findings]


def _coloured(finding: Finding, inputs: Sequence[Finding]) -> Finding:
    if isinstance(finding.measured, Checksums) or finding.measured is None:
        return finding
    reds = _reds(finding)
    yellows: list[str] = []
    if _is_output(finding) and finding.result != UNMATCHED:
        for other in inputs:
            red, yellow = _beside(finding.measured, other.measured)
            reds += red
            yellows += yellow
    if not finding.gradients_agree and finding.result != UNMATCHED:
        yellows.append(_GRADIENT.strip())
    words = list(dict.fromkeys(reds or yellows))
    if not words:
        return finding
    message = "\n".join(filter(None, [finding.message, *words]))
    return finding._replace(message=message, fill=RED if reds else YELLOW)


def _reds(finding: Finding) -> list[str]:
    found = []
    target = finding.pair.target
    if target is not None:
        known = finding.measured.values if isinstance(finding.measured, StatisticsErrors) else ()
        largest, smallest, *_ = known or values_of(target.leaf)
        if _is_infinite(largest) or _is_infinite(smallest):
            found.append(_NOT_FINITE)
    error = _largest(finding.measured)
    if error is not None and abs(error) > 1e10:
        found.append(_HUGE)
    if isinstance(finding.measured, StatisticsErrors):
        relative = finding.measured.max_relative
        if relative is not None and relative > _RELATIVE and _is_output(finding):
            found.append(_RELATIVE_BAD)
    return found


def _is_infinite(end: object) -> bool:
    """Whether an end of the range of a tensor is infinite or NaN."""
    return isinstance(end, float) and not math.isfinite(end)


def _beside(output: Measured, source: Measured) -> tuple[list[str], list[str]]:
    """What an output says beside one input or parameter: reasons for red, reasons for yellow."""
    reds: list[str] = []
    yellows: list[str] = []
    before, after = _largest(source), _largest(output)
    if before is not None and after is not None and 1 < abs(before) <= abs(after) / 10:
        yellows.append(_TEN_TIMES)
    if isinstance(output, StatisticsErrors) and isinstance(source, StatisticsErrors):
        had, has = source.max_relative, output.max_relative
        if had is not None and has is not None and had < 0.01 and has > 0.1:
            yellows.append(_RELATIVE_GROWS)
    if isinstance(output, TensorErrors) and isinstance(source, TensorErrors):
        had, has = _number(source.one_thousandth), _number(output.one_thousandth)
        if had is not None and has is not None:
            if had > 0.9 and has < 0.6:
                reds.append(_RATIO_BAD)
            elif had - has > 0.1:
                yellows.append(_RATIO_DROPS)
        had, has = _number(source.cosine), _number(output.cosine)
        if had is not None and has is not None and had - has > 0.1:
            yellows.append(_COSINE_DROPS)
    return reds, yellows


def _largest(measured: Measured) -> float | None:
    if isinstance(measured, TensorErrors):
        return _number(measured.max_abs)
    return _number(measured.differences[0]) if isinstance(measured, StatisticsErrors) else None


def _number(value: Number) -> float | None:
    return None if isinstance(value, str) else value


def _is_output(finding: Finding) -> bool:
    """For colours, to which release 8.3.3 does not count the gradients of parameters."""
    place = finding.pair.place
    return place.side == "output" and place.record.name.direction != PARAMETERS_GRAD
