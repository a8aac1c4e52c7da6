"""Verdict: what became of one recorded value, as one of a few levels, and the numbers behind it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msprobe.verdict.difference import Difference

Level = Literal["same", "rounding", "passed on", "entered", "originated", "cannot tell", "not judged"]
SAME: Level = "same"
ROUNDING: Level = "rounding"  # differs, as far as rounding explains
PASSED_ON: Level = "passed on"  # differs more, and so did what went into the call
ENTERED: Level = "entered"  # an input that differs, which nothing recorded before it explains
ORIGINATED: Level = "originated"  # what went in agrees, what came out does not
CANNOT_TELL: Level = "cannot tell"  # differs, and what was recorded does not say why
NOT_JUDGED: Level = "not judged"
LEVELS = (SAME, ROUNDING, PASSED_ON, ENTERED, ORIGINATED, CANNOT_TELL, NOT_JUDGED)


class Verdict(NamedTuple):
    """What became of a value, why, and the numbers behind it."""

    level: Level
    reason: str = ""
    error: float | None = None  # relative; also the smallest tolerance that would have passed
    tolerance: float | None = None  # relative: what rounding explains here
    score: float = 0.0  # the largest of the tests, in units of its bound: above 1 nothing explains it
    explained: float | None = None  # relative: what rounding and the arguments explain together
    reached: float | None = None  # relative: what the errors of the arguments likely make of it
    scale: float | None = None
    is_cancelled: bool = False  # its summands cancel, so that its relative error says nothing
    looks_equal: bool = False  # nothing shows a difference, but it is not known that the bits are equal
    is_change: bool = False  # of a parameter over the step before: its gradient does not explain it

    def at_level(self, level: Level, reason: str) -> Verdict:
        """The same at another level; much faster than _replace(), because it is done for every output."""
        return tuple.__new__(Verdict, (level, reason, *self[2:]))

    @property
    def is_origin(self) -> bool:
        return self.level in (ENTERED, ORIGINATED)


class Made(NamedTuple):
    """A value that a call gave out, and what became of it."""

    value: Difference
    verdict: Verdict
    error: float  # that it likely has, in its unit
    expected: float = 0.0  # that rounding and the arguments usually make

    @property
    def relative(self) -> float:
        """The relative error, at least as large as what was seen."""
        likely = self.error / self.value.norm if self.value.norm else 0.0
        return max(self.verdict.error or 0.0, likely)
