"""The rows of a comparison as the page's script gets them: by column, each text once, numbers as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from msprobe.analyse.judge import Finding
from msprobe.graph_order import in_order
from msprobe.kernels import Statistics
from msprobe.name import FORWARD
from msprobe.pairing.match import Pair, Place
from msprobe.record import Record, Recording
from msprobe.report.columns import DESCRIPTION, RESULTS, STATISTICS, Columns, description, metrics, results
from msprobe.report.page_numbers import Numbers
from msprobe.report.page_tree import TreeBuilder
from msprobe.verdict.comparison import Comparison
from msprobe.verdict.levels import CANNOT_TELL, ENTERED, NOT_JUDGED, ORIGINATED, PASSED_ON, ROUNDING, SAME

# From harmless to grave; a row holds the number of its verdict.
GRAVITY = (SAME, NOT_JUDGED, ROUNDING, PASSED_ON, CANNOT_TELL, ENTERED, ORIGINATED)

_NO_STATISTICS = (None,) * len(STATISTICS)


class PageRows(NamedTuple):
    """`facts` can be written as JSON; where it names numbers, these are in `numbers`."""

    facts: dict[str, Any]
    numbers: bytes


class _Call(NamedTuple):
    """The rows of one record."""

    record: Record
    name: str
    places: list[Place]


def page_rows(comparison: Comparison) -> PageRows:
    findings, verdicts, located = comparison.findings, comparison.verdicts, comparison.located
    numbers = Numbers()
    code = {level: number for number, level in enumerate(GRAVITY)}
    pairs = [finding.pair for finding in findings]
    calls = list(_calls([pair.target or pair.golden for pair in pairs]))
    beside = (metrics(comparison.mode), results(comparison.mode))  # what the sides do not say themselves
    shown = [column for some in beside for column in _columns(some, findings, numbers)]
    facts = {
        "levels": GRAVITY,
        "culprit": located.culprit.row if located.culprit else None,
        "first": located.first.row if located.first else None,
        **_of_calls(calls, comparison),
        "slot": _words(_slots(calls)),
        "level": [code[verdict.level] for verdict in verdicts],
        "error": numbers.add([verdict.error for verdict in verdicts]),
        "tolerance": numbers.add([verdict.tolerance for verdict in verdicts]),
        "reason": _words([verdict.reason for verdict in verdicts]),
        "columns": shown,
        "result": next(number for number, column in enumerate(shown) if column["header"] in RESULTS),
        "target": _side([pair.target for pair in pairs], numbers),
        "golden": _side([pair.golden for pair in pairs], numbers),
        "alignment": _alignment(pairs, numbers),
        "renamed": {
            row: theirs.name
            for row, (ours, theirs, *_) in enumerate(pairs)
            if ours is not None and theirs is not None and ours.name != theirs.name
        },
    }
    return PageRows(facts, numbers.packed())


def _alignment(pairs: Sequence[Pair], numbers: Numbers) -> dict[str, Any] | None:
    """How sure each pair is that was found without a mapping; None if there is none."""
    if not any(pair.certainty for pair in pairs):
        return None
    sure = [pair.certainty for pair in pairs]
    return {
        "share": numbers.add([None if each is None else each.share for each in sure]),
        "why": _words(["" if each is None else each.why for each in sure]),
    }


# ---- calls ----


def _calls(places: Iterable[Any]) -> Iterator[_Call]:
    for _, rows in groupby(places, key=lambda place: id(place.record)):
        found = list(rows)
        record = found[0].record
        yield _Call(record, str(record.name), found)


def _of_calls(calls: Sequence[_Call], comparison: Comparison) -> dict[str, Any]:
    builder = TreeBuilder(comparison.target, comparison.golden)
    return {
        "calls": {
            "name": [call.name for call in calls],
            "rows": [len(call.places) for call in calls],
            "node": [builder.add(call.record) for call in calls],
            "stack": _words([frames_of(call.record, comparison.target) for call in calls]),
            "order": in_order([call.record.name for call in calls]),
        },
        "tree": builder.tree._asdict(),
    }


def _slots(calls: Sequence[_Call]) -> Iterator[str]:
    for call in calls:
        start = len(call.name) + 1
        for place in call.places:
            yield place.name[start:]


def frames_of(record: Record, target: Recording) -> tuple[str, ...]:
    """Where the call was made; one of the backward pass is as good as made where it went forward."""
    if record.stack is None:
        facing = target.records.get(str(record.name.facing(FORWARD)))
        record = record if facing is None else facing
    return () if record.stack is None else record.stack.frames


# ---- one of the two sides ----


def _side(places: Sequence[Place | None], numbers: Numbers) -> dict[str, Any]:
    kinds = [_kind(place) for place in places]
    examples = dict(zip(kinds, places, strict=True))  # one is described as its whole kind is
    return {
        "missing": [row for row, place in enumerate(places) if place is None],
        "kind": {
            "headers": [*DESCRIPTION, "value"],
            "words": [[*description(place), kind[-1]] for kind, place in examples.items()],
            "codes": _words(kinds)["codes"],
        },
        "statistics": {"headers": STATISTICS, **numbers.add([_statistics(place) for place in places])},
        "file": _words([_file(place) for place in places]),
    }


def _kind(place: Place | None) -> tuple[Any, ...]:
    """All that decides how a leaf is described, its value last unless it is a tensor."""
    if place is None:
        return (False, "")
    leaf = place.leaf
    if leaf is None:
        return (True, "None")
    if leaf.is_tensor:
        return (leaf.dtype, leaf.shape, leaf.requires_grad, "")
    return (leaf.type, repr(leaf.value))


def _statistics(place: Place | None) -> tuple[Any, ...]:
    stats = None if place is None or place.leaf is None else place.leaf.stats
    return stats[:4] if isinstance(stats, Statistics) else _NO_STATISTICS


def _file(place: Place | None) -> str:
    """The tensor file; most are named as the place, and then the rest of the name is enough."""
    if place is None or place.leaf is None or place.leaf.data_name is None:
        return ""
    return place.leaf.data_name.removeprefix(place.name)


# ---- columns ----


def _columns(some: Columns, findings: Sequence[Finding], numbers: Numbers) -> Iterator[dict[str, Any]]:
    cells = list(zip(*map(some.fill, findings), strict=True)) or [()] * len(some.headers)
    for header, column in zip(some.headers, cells, strict=True):
        yield {"header": header, **(numbers.column(column) or _words(column))}


class _Numbering(dict[Any, int]):
    """Gives each new text the next number."""

    def __missing__(self, text: Any) -> int:
        number = self[text] = len(self)
        return number


def _words(texts: Iterable[Any]) -> dict[str, Any]:
    """Each distinct text once, and for each row the number of its text."""
    numbers = _Numbering()
    codes = list(map(numbers.__getitem__, texts))
    return {"words": list(numbers), "codes": codes}
