"""The "msprobe" logger: one line per message, with time, process and rank in the prefix."""

import logging
import sys

_FORMAT = "%(asctime)s (%(process)d)%(rank)s [%(levelname)s] msprobe: %(message)s"


class _RankFilter(logging.Filter):
    """Puts the rank of this process, once known, into each record."""

    def __init__(self) -> None:
        super().__init__()
        self.rank: int | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        record.rank = "" if self.rank is None else f" rank {self.rank}"
        return True


_rank = _RankFilter()


def logger() -> logging.Logger:
    """The logger of this package, with a handler of its own unless the program configured one."""
    log = logging.getLogger("msprobe")
    if not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%d %H:%M:%S"))
        handler.addFilter(_rank)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    return log


def set_rank(rank: int | None) -> None:
    _rank.rank = rank
