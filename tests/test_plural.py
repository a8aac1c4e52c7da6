"""Numbers and their nouns."""

import pytest

from msprobe.plural import counted


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (0, ("call",), "0 calls"),
        (1, ("call",), "1 call"),
        (2, ("tensor file",), "2 tensor files"),
        (1, ("place", "were"), "1 place was"),
        (12, ("place", "were"), "12 places were"),
        (1, ("call", "are"), "1 call is"),
        (0, ("call", "are"), "0 calls are"),
    ],
)
def test_counted(number: int, words: tuple[str, ...], text: str) -> None:
    assert counted(number, *words) == text
