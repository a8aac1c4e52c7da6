"""Our verdicts at the rows of a table whose calls are paired in another way than our verdict pairs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msprobe.pairing.match import Pair
from msprobe.verdict.levels import NOT_JUDGED, Verdict
from msprobe.verdict.locate import Divergence, Located

_NO_ROW = Verdict(NOT_JUDGED, "our verdict pairs this place with another one")


class TableRows:
    """The rows of a table, and the pairs that were judged instead of those that the table shows.

    Both have every place of both runs once, so that each judged place has a row.
    """

    def __init__(self, table: Sequence[Pair], judged: Sequence[Pair]) -> None:
        self._table, self._judged = table, judged
        self._row: dict[tuple[bool, str], int] = {}
        for number, pair in enumerate(table):
            self._row.update((key, number) for key in _keys(pair))

    def verdicts(self, found: Sequence[Verdict]) -> list[Verdict]:
        """For each row the verdict of the target's place in it, or of the golden place if it is alone."""
        by_place: dict[tuple[bool, str], tuple[Pair, Verdict]] = {}
        for pair, verdict in zip(self._judged, found, strict=True):
            by_place[_key(pair)] = pair, verdict
        return [_beside(pair, *by_place.get(_key(pair), (pair, _NO_ROW))) for pair in self._table]

    def located(self, found: Located) -> Located:
        """The same with the numbers of the table's rows."""
        return found._replace(
            first=self._at_row(found.first),
            culprit=self._at_row(found.culprit),
            origins=tuple(filter(None, map(self._at_row, found.origins))),
            not_finite=self._at_row(found.not_finite),
            not_equal=self._at_row(found.not_equal),
            uncertain=self._at_row(found.uncertain),
        )

    def _at_row(self, found: Divergence | None) -> Divergence | None:
        return None if found is None else found._replace(row=self._row[_key(self._judged[found.row])])


def _keys(pair: Pair) -> Iterator[tuple[bool, str]]:
    """The places of a pair, each with whether it is the target's."""
    if pair.target is not None:
        yield True, pair.target.name
    if pair.golden is not None:
        yield False, pair.golden.name


def _key(pair: Pair) -> tuple[bool, str]:
    return next(_keys(pair))


def _beside(row: Pair, judged: Pair, verdict: Verdict) -> Verdict:
    """The verdict, with the golden place that it was judged by if the row has another one."""
    names = [None if pair.golden is None else pair.golden.name for pair in (row, judged)]
    if names[0] == names[1] or names[1] is None or not verdict.reason:
        return verdict
    return verdict._replace(reason=f"beside {names[1]}: {verdict.reason}")
