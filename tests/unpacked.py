"""Recordings that lie packed in the repository."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest


def unpacked(archive: Path, folders: pytest.TempPathFactory) -> Path:
    """A new folder that holds what is in the archive."""
    folder = folders.mktemp(archive.name.partition(".")[0])
    # The first releases of Python 3.10 and 3.11 have no filters.
    kept = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as files:
        files.extractall(folder, **kept)
    return folder
