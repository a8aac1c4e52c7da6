"""Modules of two runs that have the same parameters, which no others have."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Sequence

from msprobe.pairing.likeness import SAME_PARAMETERS, Node, apart, shapes
from msprobe.pairing.tree import all_in


def anchored(ours: Sequence[Node], theirs: Sequence[Node]) -> dict[str, str]:
    """Return the golden owner of each module whose parameters no other module has."""
    here, there = _by_shapes(ours), _by_shapes(theirs)
    found: dict[str, str] = {}
    for slots, modules in here.items():
        others = sorted(there.get(slots, ()), key=_norm)
        norms = [_norm(other) for other in others]
        likely: dict[str, list[str]] = {}
        for module in modules:
            norm = _norm(module)
            first = bisect.bisect_left(norms, norm * (1 - 2 * SAME_PARAMETERS))
            last = bisect.bisect_right(norms, norm * (1 + 2 * SAME_PARAMETERS))
            same = [other.name.owner for other in others[first:last] if _same_parameters(module, other)]
            likely[module.name.owner] = same
        taken = Counter(owner for owners in likely.values() for owner in owners)
        found.update((a, b[0]) for a, b in likely.items() if len(b) == 1 and taken[b[0]] == 1)
    return found


def _by_shapes(nodes: Sequence[Node]) -> dict[tuple[str, ...], list[Node]]:
    found: dict[tuple[str, ...], list[Node]] = defaultdict(list)
    seen: set[str] = set()
    for each in all_in(nodes):
        if each.parameters and each.name.owner not in seen:
            seen.add(each.name.owner)
            named = (f"{slot} {shapes([place])}" for slot, place in each.parameters.items())
            found[tuple(sorted(named))].append(each)
    return found


def _norm(found: Node) -> float:
    norms = [getattr(place.leaf.stats, "norm", None) for place in found.parameters.values() if place.leaf]
    return sum(norm for norm in norms if isinstance(norm, (int, float)) and norm == norm)


def _same_parameters(ours: Node, theirs: Node) -> bool:
    errors = [apart(place, theirs.parameters[slot]) for slot, place in ours.parameters.items()]
    known = [error for error in errors if error is not None]
    return bool(known) and all(error <= SAME_PARAMETERS for error in known)
