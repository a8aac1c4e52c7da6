"""The errors of the old package: each a sentence, with the number that the old tool gave its kind."""

from __future__ import annotations

from msprobe.errors import UsageError

INVALID_PATH, INVALID_FILE, NO_DUMP_FILE, INVALID_PARAM = 1, 6, 9, 11
INVALID_DUMP_FILE, INVALID_COMPARE_MODE = 13, 17


class CompareException(UsageError):
    """What an old script may catch; `code` is the exit status where the old function ended the process."""

    def __init__(self, sentence: str, code: int = INVALID_PARAM) -> None:
        super().__init__(sentence)
        self.code = code


def demand(condition: object, sentence: str, code: int = INVALID_PARAM) -> None:
    """Go on if this holds; the sentence says why it must."""
    if not condition:
        raise CompareException(sentence, code)
