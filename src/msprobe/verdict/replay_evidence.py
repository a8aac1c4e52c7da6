"""What calling a suspect again in float64 showed: whether the call itself is at fault."""

from __future__ import annotations

from typing import Literal, NamedTuple

ReplayOutcome = Literal["proven", "refuted", "not replayable"]

PROVEN: ReplayOutcome = "proven"  # the call itself makes the difference
REFUTED: ReplayOutcome = "refuted"  # in both runs the call gives what its inputs call for
NOT_REPLAYABLE: ReplayOutcome = "not replayable"


class ReplayEvidence(NamedTuple):
    """The outcome for one suspect, and the numbers behind it.

    Errors are those of a result beside the same call in float64 on the same inputs, in roundings: units of
    the unit roundoff of the result's dtype.
    """

    outcome: ReplayOutcome
    reason: str
    target_error: float | None = None
    golden_error: float | None = None
    slot: str = ""  # of the result that these two are of
    measure: str = ""  # what of the error they are: "relative error", "scale error", ...
    at_fault: Literal["", "target", "golden"] = ""
    loss_share: float | None = None  # how much of the loss difference the call's own errors make
    loss_difference: float | None = None  # loss of the target minus that of the golden run


class ReplayCount(NamedTuple):
    """How many suspects of a recording have which outcome, or why none was called again."""

    proven: int = 0
    refuted: int = 0
    not_replayable: int = 0
    missing: str = ""  # what is needed and is not there, as a sentence
