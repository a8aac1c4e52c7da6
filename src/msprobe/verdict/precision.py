"""Where the target computes in a coarser dtype than the golden run: a fact of the whole run, or the fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msprobe.dtypes import roundoff
from msprobe.name import FORWARD
from msprobe.operators import operator_of
from msprobe.pairing.match import Pair
from msprobe.record import number_type
from msprobe.verdict.sources import Seen


class Precision(NamedTuple):
    """The whole target run computes in a coarser dtype."""

    target: str
    golden: str
    where: Literal["everywhere", "matrix products"]  # the second as mixed precision does


class Coarser(NamedTuple):
    """What was found: a fact of the run, or the values at which single calls lose precision."""

    fact: Precision | None
    lost: frozenset[int]  # the ids of the pairs; empty if there is a fact
    words: Mapping[int, str]  # by the id of the pair
    automatic: float = 0.0  # the unit roundoff that mixed precision computes matrix products in; 0: no such


def coarser_calls(calls: Sequence[Sequence[Seen]], order: Sequence[int]) -> Coarser:
    """Return where the target is coarser; `order`: the numbers of the calls in order of execution."""
    forward = [calls[n] for n in order if calls[n][0].pair.place.record.name.direction == FORWARD]
    fact, automatic = _everywhere(forward) or _matrix_products(forward), _automatic(forward)
    if fact is not None:
        return Coarser(fact, frozenset(), {}, automatic)
    lost: dict[int, str] = {}
    for call in forward:
        # A value that the coarser dtype holds exactly has lost nothing: what is computed with it may have.
        coarse = [seen for seen in call if _is_coarser(seen.pair) and not _is_held(seen)]
        coarse_inputs = [seen for seen in coarse if not seen.is_output]
        for seen in (coarse_inputs or coarse)[:1]:
            lost[id(seen.pair)] = _words(seen.pair)
        if lost:
            break
    return Coarser(None, frozenset(lost), lost, automatic)


def _is_held(seen: Seen) -> bool:
    return seen.value.is_known and seen.value.agrees


def _automatic(forward: Sequence[Sequence[Seen]]) -> float:
    """The unit roundoff of what the target's products give out where all that goes in is finer."""
    found = 0.0
    for call in forward:
        if operator_of(call[0].place.record.name).is_lowered:
            places = [seen.pair.target for seen in call if seen.pair.target is not None]
            units = [(place.side, roundoff(place.leaf.dtype)) for place in places if place.leaf is not None]
            given = [unit for side, unit in units if side != "output" and unit]
            made = [unit for side, unit in units if side == "output" and unit]
            if given and made and max(given) < max(made):
                found = max(found, *made)
    return found


def _units(pair: Pair) -> tuple[float, float] | None:
    """The unit roundoffs of the target's and the golden tensor."""
    ours = pair.target.leaf if pair.target is not None else None
    theirs = pair.golden.leaf if pair.golden is not None else None
    if ours is None or theirs is None or not ours.is_tensor or not theirs.is_tensor:
        return None
    return roundoff(ours.dtype), roundoff(theirs.dtype)


def _is_coarser(pair: Pair) -> bool:
    ours = pair.target.leaf if pair.target is not None else None
    theirs = pair.golden.leaf if pair.golden is not None else None
    if ours is None or theirs is None or ours.dtype == theirs.dtype:  # as nearly all are
        return False
    units = _units(pair)
    if units is None or units[0] <= units[1]:
        return False
    return _dtype(pair, "golden") != "bool"  # a mask of numbers beside one of truth values


def _words(pair: Pair) -> str:
    ours, theirs = (_dtype(pair, side) for side in ("target", "golden"))
    return f"precision is lost here: {ours} where the golden run has {theirs}"


def _dtype(pair: Pair, side: Literal["target", "golden"]) -> str:
    place = pair.target if side == "target" else pair.golden
    return number_type(place.leaf.dtype) if place is not None and place.leaf is not None else ""


def _everywhere(forward: Sequence[Sequence[Seen]]) -> Precision | None:
    """Whether the target is coarser from the first call on that has numbers with a fraction."""
    for call in forward:
        pairs = list(_float_pairs(call))
        if pairs:
            first = next((pair for pair in pairs if _is_coarser(pair)), None)
            return _fact(first, "everywhere") if first is not None and _many(forward) else None
    return None


def _many(forward: Sequence[Sequence[Seen]]) -> bool:
    """Whether most matrix products are coarser, or most results of a run without any.

    Models widen some of what they compute by themselves, and go on in the coarser dtype.
    """
    products = [call for call in forward if operator_of(call[0].place.record.name).is_lowered]
    outputs = [seen.pair for call in products or forward for seen in call if seen.is_output]
    known = [pair for pair in outputs if (units := _units(pair)) is not None and all(units)]
    return 2 * sum(map(_is_coarser, known)) > len(known)


def _float_pairs(call: Sequence[Seen]) -> Iterator[Pair]:
    for seen in call:
        units = _units(seen.pair)
        if units is not None and all(units):
            yield seen.pair


def _matrix_products(forward: Sequence[Sequence[Seen]]) -> Precision | None:
    """Whether all matrix products and convolutions are coarser, as mixed precision makes them."""
    found: list[Pair] = []
    for call in forward:
        operator = operator_of(call[0].place.record.name)
        name = call[0].place.record.name
        if name.is_module or operator.kind != "multiplies" or operator.summed == "none":
            continue
        outputs = [
            seen.pair
            for seen in call
            if seen.is_output and (units := _units(seen.pair)) is not None and all(units)
        ]
        if not all(map(_is_coarser, outputs)):
            return None
        found += outputs
    return _fact(found[0], "matrix products") if found else None


def _fact(pair: Pair, where: Literal["everywhere", "matrix products"]) -> Precision:
    return Precision(_dtype(pair, "target"), _dtype(pair, "golden"), where)
