"""Writer: one recording in progress, its journal, its tensor files and its error log."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import Any

from msprobe.record import Header, Record
from msprobe.store import journal
from msprobe.store.dump_json import Encoder
from msprobe.store.finish import finish
from msprobe.store.layout import JOURNAL, TENSOR_FOLDER, make_folder
from msprobe.store.tensors import Contents, TensorWriter
from msprobe.store.troubles import Told, Troubles


class Writer:
    """Appends records as they happen. Whatever the disk does, no method raises: training goes on.

    In a forked child it does nothing: the recording belongs to the process that began it.
    """

    def __init__(
        self,
        folder: Path,
        header: Header,
        *,
        suffix: str,
        with_tensors: bool,
        make: Callable[[Path], Path] = make_folder,
        told: Told | None = None,
        contents: Contents | None = None,
    ) -> None:
        self.folder = folder
        self.records = 0
        self.lost = 0  # records that the disk did not take
        self.tensors: TensorWriter | None = None
        self._troubles = Troubles(told or Told())
        self._encoder = Encoder()
        self._stacks: dict[tuple[str, ...], int] = {}
        self._stack_count = 0
        self._journal: journal.Journal | None = None
        self._process = os.getpid()
        self._published: object = None  # what publish() saw when it last wrote the files
        with self._trying("begin the recording"):
            make(folder)
            self._troubles.folder = folder
            self._journal = journal.Journal(folder / JOURNAL, _header_json(header, folder, with_tensors))
            if with_tensors:
                make_folder(folder / TENSOR_FOLDER)
                self.tensors = TensorWriter(
                    folder / TENSOR_FOLDER, suffix=suffix, on_error=self.tell, contents=contents
                )

    @property
    def is_open(self) -> bool:
        """False where the recording could not be begun, which was told, and after close()."""
        return self._journal is not None

    def append(self, record: Record) -> None:
        """Note a finished call for good."""
        if self._journal is None or os.getpid() != self._process:
            return
        try:
            self._journal.append(self._lines(record))
        except Exception as error:  # noqa: BLE001 - recording must never stop training
            self.lost += 1
            self._stacks.clear()  # the stack of this record may be lost too: write each anew
            self.tell("write the journal", error)
        else:
            self.records += 1

    def _lines(self, record: Record) -> bytes:
        """The record, after its stack where that is new."""
        parent = "null" if record.parent is None else quote(record.parent)
        lines = b""
        number: int | str = journal.NONE
        if record.stack is not None:
            known = self._stacks.get(record.stack.frames)
            number = self._stack_count if known is None else known
            if known is None:
                lines = journal.stack_line(number, json.dumps(record.stack.frames))
                self._stacks[record.stack.frames] = number
                self._stack_count += 1
        return lines + journal.record_line(
            quote(str(record.name)),
            number,
            parent if record.has_parent else journal.NONE,
            self._encoder.tree(record.fields),
        )

    def publish(self, left_out: Mapping[str, int] | None = None) -> None:
        """Bring the JSON files up to date; the recording may go on.

        `left_out` counts the calls that were not recorded, by reason.
        """
        if self._journal is None or os.getpid() != self._process:
            return
        missing = waiting = 0
        if self.tensors is not None:
            self.tensors.drain()
            missing, waiting = self.tensors.stats.missing, self.tensors.waiting
        remarks: dict[str, Any] = {"lost_records": self.lost, "left_out": dict(left_out or {})}
        remarks = {key: value for key, value in remarks.items() if value}
        state = (
            self.records,
            missing,
            waiting,
            remarks,
        )  # before the journal is read: more may come meanwhile
        if self._published != state:
            self._published = None
            with self._trying("write the JSON files (`msprobe recover` makes them from the journal)"):
                finish(self.folder, remarks, lost_files=missing > 0 or waiting > 0)
                self._published = state
        self._encoder.forget()

    def close(self, left_out: Mapping[str, int] | None = None) -> None:
        """Publish, and leave nothing but the finished files."""
        if self._journal is None or os.getpid() != self._process:
            return
        if self.tensors is not None:
            self.tensors.close()
        self.publish(left_out)
        self._journal.close()
        self._journal = None
        if self._published is not None:
            with self._trying("remove the journal"):
                (self.folder / JOURNAL).unlink()
        self._troubles.close()

    def tell(self, doing: str, error: BaseException) -> None:
        """One log line for each kind of trouble, and the reason in dump_error_info.log."""
        self._troubles.could_not(doing, self.folder, error)

    @contextlib.contextmanager
    def _trying(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - recording must never stop training
            self.tell(doing, error)


def _header_json(header: Header, folder: Path, with_tensors: bool) -> str:
    data_folder = str(folder / TENSOR_FOLDER) if with_tensors else None
    return json.dumps({**header._asdict(), "dump_data_dir": data_folder})
