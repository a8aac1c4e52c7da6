"""Run: one output folder while it is written; a rank has one owner, and older recordings are moved aside."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from msprobe.errors import MsprobeError, UsageError
from msprobe.log import logger
from msprobe.record import Header
from msprobe.store import claims
from msprobe.store.layout import (
    CONSTRUCT,
    DEBUG,
    DUMP,
    ERRORS,
    FOLDER_MODE,
    JOURNAL,
    PREVIOUS,
    RANK_FOLDER,
    STACK,
    STEP_FOLDER,
    TENSOR_FOLDER,
    make_below,
    make_folder,
    rank_folder,
    recording_folder,
)
from msprobe.store.tensors import Contents
from msprobe.store.troubles import Told
from msprobe.store.writer import Writer


class Run:
    """Opens the recordings of this process below one folder, and keeps other processes out of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told = Told()
        self._contents = Contents()
        self._claimed: dict[str, int] = {}  # the folder name of a rank -> the descriptor that holds its lock
        self._refused: dict[str, str] = {}  # and why: an exception would keep the frames of training alive
        # A forked child would keep the locks beyond the death of this process.
        forget = weakref.WeakMethod(self.close)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    def record(
        self, step: int, rank: int | None, header: Header, *, suffix: str, with_tensors: bool
    ) -> Writer:
        """Begin a recording; one that cannot be begun says why in the log, and takes nothing."""
        folder = recording_folder(self.path, step, rank)
        return Writer(
            folder,
            header,
            suffix=suffix,
            with_tensors=with_tensors,
            make=self._make,
            told=self._told,
            contents=self._contents,
        )

    def share(self, name: str, rank: int | None) -> Path:
        """The path of a file that all ranks append to; one that an older run left is moved aside."""
        path = make_folder(self.path) / name
        own = rank_folder(rank)
        with claims.alone(self.path):
            if os.path.lexists(path) and not claims.any_of_this_run(self.path):
                self._set_aside([path])
            if own not in self._claimed:
                with contextlib.suppress(UsageError):  # another process has it, and lines have room for both
                    self._claimed[own] = claims.take(self.path, own)
        return path

    def close(self) -> None:
        """Give up the claims; the claimed folders stay marked as recordings of this time."""
        for descriptor in self._claimed.values():
            os.close(descriptor)
        self._claimed.clear()

    def _make(self, folder: Path) -> Path:
        name = folder.name
        make_folder(self.path)
        if name not in self._claimed and name not in self._refused:
            self._claim(name)
        elif name in self._claimed and _is_used(folder):  # a step a second time: the first one is older now
            self._set_aside([folder])
        if name in self._refused:
            raise UsageError(self._refused[name])
        return make_below(self.path, folder)

    def _claim(self, name: str) -> None:
        try:
            with claims.alone(self.path):
                descriptor = claims.take(self.path, name)
                try:
                    self._set_aside(
                        folder
                        for folder in _used_folders(self.path)
                        if folder.name == name or not claims.is_of_this_run(self.path, folder.name)
                    )
                except BaseException:
                    os.close(descriptor)
                    raise
        except (OSError, MsprobeError) as problem:
            self._refused[name] = str(getattr(problem, "strerror", None) or problem)
        else:
            self._claimed[name] = descriptor

    def _set_aside(self, folders: Iterable[Path]) -> None:
        place: Path | None = None
        for folder in folders:
            place = place or _new_place(self.path)
            target = make_below(self.path, place / folder.relative_to(self.path).parent) / folder.name
            os.rename(folder, target)
            if folder.parent != self.path:
                with contextlib.suppress(OSError):  # not empty: it holds something else
                    folder.parent.rmdir()
        if place is not None:
            logger().warning("%s held an older recording; it is now in %s.", self.path, place)


def _used_folders(run: Path) -> Iterator[Path]:
    """The folders of all ranks that hold something of a recording, and links that stand in their places."""
    for step in sorted(run.iterdir()):
        if not STEP_FOLDER.fullmatch(step.name):
            continue
        if step.is_symlink():
            yield step
        elif step.is_dir():
            for folder in sorted(step.iterdir()):
                if RANK_FOLDER.fullmatch(folder.name) and (folder.is_symlink() or _is_used(folder)):
                    yield folder


def _is_used(folder: Path) -> bool:
    names = (DUMP, DEBUG, JOURNAL, STACK, CONSTRUCT, ERRORS, TENSOR_FOLDER)
    return any(os.path.lexists(folder / name) for name in names)


def _new_place(run: Path) -> Path:
    """A new folder for what is moved aside, called by the time."""
    stamp = time.strftime("%Y%m%d%H%M%S")
    make_below(run, run / PREVIOUS)
    number = 0
    while True:
        place = run / PREVIOUS / (f"{stamp}_{number}" if number else stamp)
        try:
            place.mkdir(FOLDER_MODE)
        except FileExistsError:  # two within one second
            number += 1
            continue
        place.chmod(FOLDER_MODE)
        return place
