"""Where the records of a step go: the files of a recording, those of another format, or another process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from msprobe.record import Record
from msprobe.store.dtypes import TensorData


class TensorSink(Protocol):
    """Takes the contents of tensors, each under the name of its place in a record."""

    def put(self, name: str, tensor: TensorData) -> None: ...

    def link(self, name: str, same_as: str) -> None:
        """A further name for what was put under the name `same_as`."""
        ...


class RecordSink(Protocol):
    """Takes records when their calls are over. No method raises: whatever happens here, training goes on."""

    @property
    def is_open(self) -> bool:
        """False where nothing can be taken, which was told."""
        ...

    @property
    def records(self) -> int:
        """How many were taken."""
        ...

    @property
    def lost(self) -> int:
        """How many could not be."""
        ...

    @property
    def tensors(self) -> TensorSink | None:
        """None: it wants no contents of tensors."""
        ...

    def append(self, record: Record) -> None: ...

    def tell(self, doing: str, error: BaseException) -> None:
        """Say what could not be done."""
        ...


class FolderSink(RecordSink, Protocol):
    """One whose records lie in a folder, where more can be written beside them."""

    @property
    def folder(self) -> Path: ...

    @property
    def place(self) -> Path | None:
        """Where the last record lies: in the folder, or in a file of its own; None if it was lost."""
        ...

    def publish(self, left_out: Mapping[str, int] | None = None) -> None:
        """Bring its files up to date."""
        ...
