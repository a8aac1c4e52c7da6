"""Recovering what killed processes left behind: each recording that has a journal is finished from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msprobe.errors import RecordingError
from msprobe.store import claims
from msprobe.store.finish import Finished, recover
from msprobe.store.layout import JOURNAL, PREVIOUS, holds_recording, rank_folders, sweep


class Outcome(NamedTuple):
    """What became of one recording; all None: it was complete already."""

    folder: Path
    recovered: Finished | None = None
    holder: str | None = None  # the process that still records it
    damage: str | None = None  # why it cannot be recovered


def recover_all(root: Path) -> Iterator[Outcome]:
    """Finish every recording at or below `root`, also of earlier runs, whose process died; tells of each one.

    Doing it again is harmless, and so is being killed: a journal is removed only when its files are written.
    """
    earlier = root / PREVIOUS
    for place in (root, *(sorted(earlier.iterdir()) if earlier.is_dir() else ())):
        for folder in rank_folders(place):
            whole = folder.absolute()
            holder = claims.holder(whole.parent.parent, whole.name)
            if holds_recording(folder):
                yield _outcome(folder, holder)
            elif holder is None:
                _tidy(folder)


def _outcome(folder: Path, holder: str | None) -> Outcome:
    if not (folder / JOURNAL).is_file():
        return Outcome(folder)
    if holder is not None:
        return Outcome(folder, holder=holder)
    try:
        return Outcome(folder, recovered=recover(folder))
    except RecordingError as error:
        return Outcome(folder, damage=str(error))
    except OSError as error:
        return Outcome(folder, damage=f"{error.filename or folder}: {error.strerror or error}.")


def _tidy(folder: Path) -> None:
    """Remove what a process left that died while it began a recording; what holds anything else stays."""
    with contextlib.suppress(OSError):
        sweep(folder)
        folder.rmdir()
        folder.parent.rmdir()
