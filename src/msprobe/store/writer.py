"""Writer: one recording in progress, its journal, its tensor files and its error log."""

from __future__ import annotations

import json
import os
import time
import traceback
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import Any

from msprobe.log import logger
from msprobe.record import Header, Record, Stack
from msprobe.store import journal
from msprobe.store.dump_json import Encoder
from msprobe.store.finish import finish
from msprobe.store.layout import ERRORS, JOURNAL, TENSOR_FOLDER, make_folder, open_new
from msprobe.store.tensors import TensorWriter


class Writer:
    """Appends records as they happen. Whatever the disk does, no method raises: training goes on."""

    def __init__(self, folder: Path, header: Header, *, suffix: str, with_tensors: bool) -> None:
        self.folder = folder
        self.records = 0
        self._header = header
        self._encoder = Encoder()
        self._stacks: set[int] = set()
        self._told: set[str] = set()
        self._journal: journal.Journal | None = None
        self.tensors: TensorWriter | None = None
        try:
            make_folder(folder)
            tensor_folder = folder / TENSOR_FOLDER
            self._journal = journal.Journal(folder / JOURNAL, self._header_json(with_tensors))
            if with_tensors:
                make_folder(tensor_folder)
                self.tensors = TensorWriter(tensor_folder, suffix=suffix, on_error=self.tell)
        except OSError as error:
            self.tell("open the recording", error)

    def _header_json(self, with_tensors: bool) -> str:
        fields = {**self._header._asdict(), "dump_data_dir": None}
        if with_tensors:
            fields["dump_data_dir"] = str(self.folder / TENSOR_FOLDER)
        return json.dumps(fields)

    def append(self, record: Record) -> None:
        """Note a finished call for good."""
        try:
            if self._journal is None:
                return
            line = self._stack_line(record.stack) + journal.record_line(
                quote(str(record.name)),
                record.stack.number if record.stack else None,
                ("null" if record.parent is None else quote(record.parent)) if record.has_parent else journal.NONE,
                self._encoder.tree(record.fields),
            )
            self._journal.append(line)
            self.records += 1
        except OSError as error:
            self.tell("write the journal", error)

    def _stack_line(self, stack: Stack | None) -> str:
        if stack is None or stack.number in self._stacks:
            return ""
        self._stacks.add(stack.number)
        return journal.stack_line(stack.number, json.dumps(stack.frames))

    def publish(self) -> None:
        """Bring the JSON files up to date; the recording may go on."""
        try:
            if self.tensors is not None:
                self.tensors.drain()
            finish(self.folder)
        except OSError as error:
            self.tell("write the JSON files", error)
        self._encoder.forget()

    def close(self) -> None:
        """Publish, and leave nothing but the finished files."""
        if self.tensors is not None:
            self.tensors.close()
        self.publish()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
            if not any("JSON" in told for told in self._told):
                (self.folder / JOURNAL).unlink(missing_ok=True)

    def tell(self, doing: str, error: BaseException) -> None:
        """One log line for each kind of trouble, and the reason in dump_error_info.log."""
        key = f"{doing}: {type(error).__name__}"
        if key in self._told:
            return
        self._told.add(key)
        logger().error("could not %s in %s: %s; training goes on.", doing, self.folder, error)
        self._note(f"[{time.strftime('%Y-%m-%d %H:%M:%S %z')}] [ERROR] {doing} failed: pid={os.getpid()}\n", error)

    def _note(self, line: str, error: BaseException) -> None:
        text = line + "".join(traceback.format_exception(error))
        try:
            descriptor = open_new(self.folder / ERRORS, os.O_APPEND)
            try:
                os.write(descriptor, text.encode("utf-8", "replace"))
            finally:
                os.close(descriptor)
        except OSError:
            return  # the folder is gone or full: the log line above is all that can be said

    def statistics(self) -> dict[str, Any]:
        return {"records": self.records}
