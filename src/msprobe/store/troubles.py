"""What went wrong while recording: each kind told once in the log, its reason noted beside the recording."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Hashable
from pathlib import Path

from msprobe.log import logger
from msprobe.plural import counted
from msprobe.store.layout import ERRORS, append_to


class Told:
    """Which kinds of trouble this run's log has shown already; shared by its recordings and threads."""

    def __init__(self) -> None:
        self._kinds: set[Hashable] = set()
        self._lock = threading.Lock()

    def first(self, kind: Hashable) -> bool:
        with self._lock:
            known = kind in self._kinds
            self._kinds.add(kind)
            return not known


class Troubles:
    """The troubles of one recording. Telling never raises."""

    def __init__(self, told: Told) -> None:
        self.folder: Path | None = None  # of the recording, once it is ours
        self._told = told
        self._counts: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def tell(self, sentence: str, error: BaseException, kind: Hashable = None) -> None:
        """Log the sentence if its kind is new to the run; note the error if it is new to the recording."""
        kind = kind or _kind(error)
        with self._lock:
            self._counts[kind] += 1
            new = self._counts[kind] == 1
        if new:
            if self._told.first(kind):
                logger().error("%s", sentence)
            reason = "".join(traceback.format_exception(error))
            self._note(f"[ERROR] {sentence} pid={os.getpid()}\n{reason}")

    def could_not(self, doing: str, folder: Path, error: BaseException) -> None:
        """One sentence for whatever was tried."""
        reason = str(error.strerror if isinstance(error, OSError) and error.strerror else error).rstrip(".")
        self.tell(f"could not {doing} in {folder}: {reason}; training goes on.", error)

    def close(self) -> None:
        """Note how often each kind came; the entries above show only its first time."""
        further = self._counts.total() - len(self._counts)
        if further > 0:
            self._note(f"[ERROR] {counted(further, 'further error')} of these kinds followed.\n")
        self._counts.clear()

    def _note(self, text: str) -> None:
        if self.folder is None:
            return
        try:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S %z")
            append_to(self.folder / ERRORS, f"[{stamp}] {text}".encode("utf-8", "replace"))
        except OSError:
            return  # the folder is gone or full: the log line is all that can be said


def _kind(error: BaseException) -> Hashable:
    """The type of an error, its number, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    place = (frames[-1].filename, frames[-1].lineno) if frames else None
    return type(error), getattr(error, "errno", None), place
