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
from msprobe.store.dump_json import encode_fields
from msprobe.store.finish import finish
from msprobe.store.guarded import GuardedSink
from msprobe.store.layout import JOURNAL, TENSOR_FOLDER, make_folder
from msprobe.store.tensors import Contents, TensorWriter
from msprobe.store.troubles import Told


class Writer(GuardedSink):
    """Appends records as they happen; no method raises. Why something failed is in dump_error_info.log."""

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
        super().__init__(folder, told)
        self._stacks: dict[tuple[str, ...], int] = {}
        self._stack_count = 0
        self._journal: journal.Journal | None = None
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
        """Whether records are taken: after close(), or if the recording could not be begun, they are not."""
        return self._journal is not None and os.getpid() == self._process

    def _write(self, record: Record) -> None:
        assert self._journal is not None
        try:
            self._journal.append(self._lines(record))
        except BaseException:
            self._stacks.clear()  # the stack of this record may be lost too: write each anew
            raise

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
            encode_fields(record.fields),
        )

    def publish(self, left_out: Mapping[str, int] | None = None) -> None:
        """Bring the JSON files up to date; the recording may go on."""
        if not self.is_open:
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

    def close(self, left_out: Mapping[str, int] | None = None) -> None:
        """Publish, and leave nothing but the finished files."""
        if self._journal is None or not self.is_open:
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

    @contextlib.contextmanager
    def _trying(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - recording must never stop training
            self.tell(doing, error)


def _header_json(header: Header, folder: Path, with_tensors: bool) -> str:
    data_folder = str(folder / TENSOR_FOLDER) if with_tensors else None
    return json.dumps({**header._asdict(), "dump_data_dir": data_folder})
