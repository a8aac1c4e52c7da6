"""The first place that needs attention, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msprobe.analyse.judge import UNMATCHED, Finding
from msprobe.name import BACKWARD, FORWARD
from msprobe.pairing.match import Place

FINE = "All data in comparison result meets the accuracy requirements."
UNSEEN = "No data could be compared: the column Err_message says why of each."
_FORWARD_INPUT = (
    "1. Analyze the model to view the input source.\n2. Check whether an inplace API causes the output "
    "result to overwrite the input result. That is, the fault is actually caused by a computation error.\n3. "
    "The fault may be caused by memory corruption and further analysis is required."
)
_FORWARD_OUTPUT = "This is a forward API computation error. Check the computation implementation."
_BACKWARD_INPUT = "Check whether the forward computation result is affected."
_BACKWARD_OUTPUT = "This is a backward API computation error. Check the computation implementation."
_UNCERTAIN = (
    "This torch api may be uncertainty in the calculation, can seed_all(mode=True) to enable deterministic "
    "computing."
)
# Specified by name: they are not the operators whose kernels add in any order.
_UNCERTAIN_APIS = ("conv2d", "conv3d", "matmul", "nll_loss", "layer_norm", "lstm")


class Advice(NamedTuple):
    line: int | None
    name: str | None
    text: str

    def __str__(self) -> str:
        line, name = ("NA" if value is None else value for value in (self.line, self.name))
        return f"Line: {line}\nSuspect Nodes: {name}\nExpert Advice: {self.text}"


def advise(findings: Sequence[Finding]) -> Advice:
    for line, finding in enumerate(findings):
        if finding.is_bad:
            return Advice(line, finding.pair.place.name, _text(finding))
    is_unseen = all(finding.result == UNMATCHED for finding in findings)
    return Advice(None, None, UNSEEN if is_unseen else FINE)


def _text(finding: Finding) -> str:
    place = finding.pair.place
    if place.side == "output" and place.record.name.api in _UNCERTAIN_APIS:
        return _UNCERTAIN
    return usual_advice(place)


def usual_advice(place: Place) -> str:
    """What a difference at this place calls for, whatever API it is of."""
    direction = place.record.name.direction
    if direction == FORWARD:
        return _FORWARD_OUTPUT if place.side == "output" else _FORWARD_INPUT
    if direction == BACKWARD and place.side == "input":
        return _BACKWARD_INPUT
    return _BACKWARD_OUTPUT
