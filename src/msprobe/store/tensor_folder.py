"""A folder of tensor files where a name stands for a whole file or for nothing, whenever we are killed."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from msprobe.store.disk import Disk
from msprobe.store.layout import FILE_MODE, FOLDER_MODE

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LONGEST_NAME = 255  # bytes, on every file system in use
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Identity(NamedTuple):
    """Of a file: the same as long as nobody replaces or changes it."""

    inode: int
    size: int
    changed: int  # when, in nanoseconds


def file_name(name: str, suffix: str) -> str:
    """The file of the tensor called `name`: the name itself wherever a file can be called so.

    A sign that cannot or should not stand in a file name becomes "_", and a long name is cut; a digest of the
    whole name is then added, so that two names never share a file.
    """
    longest = _LONGEST_NAME - len(suffix)
    if name.isascii() and name.isprintable() and "/" not in name and len(name) <= longest:
        return name + suffix
    clean = "".join(sign if sign.isprintable() and sign != "/" else "_" for sign in name)
    if clean == name and len(name.encode()) <= longest:
        return name + suffix
    ending = f".{xxhash.xxh3_64_hexdigest(name.encode('utf-8', 'surrogatepass'))}{suffix}"
    return clean.encode()[: _LONGEST_NAME - len(ending)].decode(errors="ignore") + ending


class Folder:
    """Makes files in one folder, which is itself made when the first file comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress = 0  # grows with each step; when it stands still, the disk does not answer
        self.disk = Disk()
        self._descriptor: int | None = None
        self._beside = f".{os.getpid()}-{id(self):x}.tmp"

    def write(self, name: str, chunks: Sequence[Buffer]) -> Identity:
        """Write a file, in place of what had its name."""
        folder = self._opened()
        try:
            descriptor = self._create(folder)
            try:
                for _ in self.disk.write(descriptor, chunks):
                    self.progress += 1
                status = os.fstat(descriptor)
                if stat.S_IMODE(status.st_mode) != FILE_MODE:  # by the umask
                    os.fchmod(descriptor, FILE_MODE)
            finally:
                os.close(descriptor)
            os.rename(self._beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            self.remove(self._beside)
            self.close()  # perhaps the folder is gone: the next file looks for it anew
            raise
        return _identity(status)

    def link(self, name: str, same_as: str) -> None:
        """Give a file a further name, in place of what had that name."""
        folder = self._opened()
        try:
            _link(same_as, name, folder)
        except FileExistsError:
            self.remove(self._beside)
            _link(same_as, self._beside, folder)
            os.rename(self._beside, name, src_dir_fd=folder, dst_dir_fd=folder)
            self.remove(self._beside)  # it stays if both names were one file already
        self.progress += 1

    def identity(self, path: str) -> Identity | None:
        """Of the file at this path, if there is one."""
        try:
            return _identity(os.stat(path, follow_symlinks=False))
        except OSError:
            return None

    def copy(self, name: str, same_as: str) -> Identity:
        """What `link` does, where links cannot be made."""
        descriptor = os.open(same_as, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._opened())
        try:
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
                return self.write(name, [content])
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one and if it can be removed."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._opened())

    def close(self) -> None:
        """Let go of the folder; the next file opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, FOLDER_MODE)
                os.chmod(self.path, FOLDER_MODE)  # whatever the umask says
            self._descriptor = os.open(self.path, _OPEN_FOLDER)
        return self._descriptor

    def _create(self, folder: int) -> int:
        try:
            return os.open(self._beside, _CREATE, FILE_MODE, dir_fd=folder)
        except FileExistsError:  # left by a killed process that had our number
            os.unlink(self._beside, dir_fd=folder)
            return os.open(self._beside, _CREATE, FILE_MODE, dir_fd=folder)


def _identity(status: os.stat_result) -> Identity:
    return Identity(status.st_ino, status.st_size, status.st_mtime_ns)


def _link(same_as: str, name: str, folder: int) -> None:
    os.link(same_as, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
