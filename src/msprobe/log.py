"""The "msprobe" logger: one line per message, with time, process and rank in the prefix."""

import logging
import sys
from typing import Any

from msprobe.screen import harmless

_FORMAT = "%(asctime)s (%(process)d)%(rank)s [%(levelname)s] msprobe: %(message)s"


class _Rank(logging.Filter):
    """Puts the rank of this process, once known, into each message."""

    def __init__(self) -> None:
        super().__init__()
        self.rank: int | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        record.rank = "" if self.rank is None else f" rank {self.rank}"
        return True


_rank = _Rank()


class _ToStderr(logging.StreamHandler[Any]):
    """Writes to what sys.stderr is now; a program may have replaced it since."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


class _Lines(logging.Formatter):
    """Only a line feed ends a line; no other character of a message steers the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(harmless, super().format(record).split("\n")))


def logger() -> logging.Logger:
    """The logger of this package, writing to stderr unless the program gave it a handler of its own."""
    log = logging.getLogger("msprobe")
    if not log.handlers:
        to_stderr = _ToStderr()
        to_stderr.setFormatter(_Lines(_FORMAT, "%Y-%m-%d %H:%M:%S"))
        to_stderr.addFilter(_rank)
        log.addHandler(to_stderr)
        log.propagate = False
        if log.level == logging.NOTSET:
            log.setLevel(logging.INFO)
    return log


def set_rank(rank: int | None) -> None:
    """From here on messages name this rank."""
    _rank.rank = rank
