"""Taking records from training: each is written for good or counted as lost, and training goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msprobe.record import Record
from msprobe.store.tensors import TensorWriter
from msprobe.store.troubles import Told, Troubles


class GuardedSink:
    """Has its subclass write each record. Whatever the disk does, append() does not raise.

    In a forked child it does nothing: the recording belongs to the process that began it.
    """

    tensors: TensorWriter | None = None  # takes contents, where these are not part of the records

    def __init__(self, folder: Path, told: Told | None = None) -> None:
        self.folder = folder
        self.place: Path | None = folder  # of the last record
        self.records = 0
        self.lost = 0  # records that the disk did not take
        self._troubles = Troubles(told or Told())
        self._process = os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether records are taken."""
        return os.getpid() == self._process

    def append(self, record: Record) -> None:
        """Note a finished call for good."""
        if not self.is_open:
            return
        try:
            self._write(record)
        except Exception as error:  # noqa: BLE001 - recording must never stop training
            self.lost += 1
            self.tell(f"write {record.name}", error)
        else:
            self.records += 1

    def publish(self, left_out: Mapping[str, int] | None = None) -> None:
        """Nothing waits where each record is written at once.

        `left_out` counts the calls that were not recorded, by reason.
        """

    def _write(self, record: Record) -> None:
        raise NotImplementedError

    def tell(self, doing: str, error: BaseException) -> None:
        """One log line for each kind of trouble."""
        self._troubles.could_not(doing, self.folder, error)
