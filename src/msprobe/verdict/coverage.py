"""Whether what was judged shows enough of two runs to say that they do not diverge.

A difference that matters reaches what a step ends with: its losses and the gradients of its parameters. Where
most of these have no counterpart, values that agree before them say little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile

from msprobe.analyse.judge import Finding
from msprobe.graph import Graph
from msprobe.name import BACKWARD, FORWARD, PARAMETERS_GRAD
from msprobe.pairing.match import Place
from msprobe.record import is_float
from msprobe.verdict.levels import CANNOT_TELL, NOT_JUDGED, Verdict
from msprobe.verdict.locate import rows_in_order

_NOTHING = "no value is known on both sides"
_FEW = 10  # one value in so many may be unjudged without a question about the rest


def supported(
    findings: Sequence[Finding], verdicts: Sequence[Verdict], *, is_doubtful: bool
) -> list[Verdict]:
    """Return the verdicts without those that rest on nothing: no value of both runs was compared.

    `is_doubtful`: calls were paired by their numbers although these do not fit. Then a value that only one
    run has is no suspect before the first value of both was compared: its call may just have another number.
    """
    compared = [_is_compared(*each) for each in zip(findings, verdicts, strict=True)]
    if not any(compared):
        return [each if each.level == NOT_JUDGED else Verdict(NOT_JUDGED, _NOTHING) for each in verdicts]
    found = list(verdicts)
    if is_doubtful:
        for row in takewhile(lambda row: not compared[row], rows_in_order(findings)):
            if found[row].is_origin:
                reason = f"{found[row].reason}; but no value was compared before it"
                found[row] = found[row]._replace(level=CANNOT_TELL, reason=reason)
    return found


def _is_compared(finding: Finding, verdict: Verdict) -> bool:
    """Whether a value of one run was held against one of the other; the two may stand at different places."""
    pair = finding.pair
    has_both = pair.target is not None and pair.golden is not None
    has_error = verdict.error is not None and math.isfinite(verdict.error)  # without: of another shape
    return verdict.level != NOT_JUDGED and (has_both or has_error)


def unjudged_ends(graph: Graph, findings: Sequence[Finding], verdicts: Sequence[Verdict]) -> str:
    """Return, in words, that most of what the target's step ends with was not judged; empty if it was."""
    unjudged = sum(verdict.level == NOT_JUDGED for verdict in verdicts)
    if unjudged == len(verdicts):
        return _NOTHING
    if unjudged <= len(verdicts) // _FEW:
        return ""
    levels = {
        finding.pair.target.name: verdict.level
        for finding, verdict in zip(findings, verdicts, strict=True)
        if finding.pair.target is not None
    }
    ends = [levels[place.name] != NOT_JUDGED for place in _ends(graph, findings)]
    if 2 * sum(ends) >= len(ends):
        return ""
    if len(ends) == 1:
        return "the only result that the target ends with, a loss or a gradient, could not be judged"
    share = f"only {sum(ends)}" if any(ends) else "none"
    return (
        f"{share} of the {len(ends)} results that the target ends with (losses and gradients) could be judged"
    )


def _ends(graph: Graph, findings: Sequence[Finding]) -> list[Place]:
    """The gradients of the target's parameters; without any, the results that no recorded call uses.

    A gradient that another tool records in a way of its own says nothing, whichever run is the target.
    """
    pairs = [finding.pair for finding in findings if not finding.pair.is_recorded_otherwise]
    places = [pair.target for pair in pairs if pair.target is not None and pair.target.side == "output"]
    has_calls = any(not place.record.name.is_module for place in places)
    gradients, unused = [], []
    for place in places:
        name, leaf = place.record.name, place.leaf
        if leaf is None or not leaf.is_tensor or not is_float(leaf.dtype):
            continue
        if name.direction == PARAMETERS_GRAD:
            gradients.append(place)
        elif (name.is_module and has_calls) or str(name) not in graph.recording.records:
            continue  # the second: a foreign file whose key is not quite the name
        elif name.direction == BACKWARD:
            makers = graph.argument_makers(str(name), place.slot)
            if any(maker.kind == "parameter" for maker in makers):
                gradients.append(place)
        elif name.direction == FORWARD and not graph.users(str(name), place.slot):
            unused.append(place)
    return gradients or unused
