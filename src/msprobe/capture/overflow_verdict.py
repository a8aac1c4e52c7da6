"""Who made a number that is not finite: the call itself, one before it, or the programmer, on purpose.

producer    it gave one, and all it was given was finite
passed on   it was given one already, or a call inside it is the producer
entered     it was given one, and no call that was recorded has made it: data, weights, a sum of gradients
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from msprobe.name import CallName
from msprobe.operators import operator_of
from msprobe.record import Leaf

VERDICTS = PRODUCER, PASSED_ON, ENTERED = "producer", "passed on", "entered"

Kinds: TypeAlias = frozenset[str]  # of numbers that are not finite; which they are says NAN, INF, MINUS_INF
NAN, INF, MINUS_INF = "nan", "inf", "-inf"
NONE: Kinds = frozenset()
ANY: Kinds = frozenset({NAN, INF, MINUS_INF})
_CLIPPING = "clip_grad"  # the parent of calls that clip gradients
MASKED: Kinds = frozenset({MINUS_INF})  # what a mask holds that was made elsewhere, and no accident does


class Seen(NamedTuple):
    """An input: the kinds of numbers in it that are not finite, and those among them that are meant to be."""

    kinds: Kinds
    excused: Kinds


class Opinion(NamedTuple):
    """What is thought of a call: its verdict, or what of its outputs is meant to be as it is."""

    verdict: str | None = None
    excused: Kinds = NONE


def kinds_of(leaf: Leaf) -> Kinds:
    """Which numbers that are not finite a leaf holds; where NaN hides the sign of an infinity, it is inf."""
    if leaf.stats is None:
        return _kinds_of_number(leaf.value) if isinstance(leaf.value, float) else NONE
    stats = leaf.statistics
    if stats is None or not (stats.nan or stats.inf):
        return NONE
    kinds = {NAN} if stats.nan else set()
    if stats.inf:
        kinds |= {INF} if stats.nan or stats.max == math.inf else set()
        kinds |= {MINUS_INF} if stats.min == -math.inf else set()
    return frozenset(kinds)


def _kinds_of_number(value: float) -> Kinds:
    if math.isfinite(value):
        return NONE
    return frozenset({NAN if value != value else INF if value > 0 else MINUS_INF})


def excuse_of_number(name: CallName, kinds: Kinds, parent: str | None = None) -> Kinds:
    """Return what is meant of a number that a program writes into a call.

    -inf is a mask everywhere. inf is meant where it fills, and where gradients are clipped: a largest norm of
    inf clips nothing.
    """
    return (kinds - {NAN}) if operator_of(name).fills or parent == _CLIPPING else kinds & MASKED


def judge(name: CallName, inputs: Iterable[Seen], found: Kinds) -> Opinion:
    """Of a forward call by itself; `found` is what its outputs hold. `entered` is for the caller to tell."""
    if operator_of(name).is_undefined:
        return Opinion(excused=ANY)
    excused: set[str] = set()
    for seen in inputs:
        if not seen.kinds <= seen.excused:
            return Opinion(PASSED_ON)
        excused |= seen.kinds
    if found <= excused:
        return Opinion(excused=frozenset(excused))
    if name.is_module and found == MASKED:
        return Opinion(excused=MASKED)  # nobody sees what it did inside, and accidents leave other kinds too
    return Opinion(PRODUCER)
