"""Packs recordings of both nets in both frameworks into tests/golden/across.tar.xz: run it where both are.

PYTHONPATH=src python tests/ms/make_across.py
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))  # it is no test, so nobody else does

from across_record import ARCHIVE, WANTED, record_all  # noqa: E402  # they lie there


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for framework, wanted in WANTED.items():
            for name, loss in record_all(framework, Path(folder) / framework, wanted).items():
                print(f"{framework} {name}: loss {loss}")
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                _add(archive, path, str(path.relative_to(folder)), folder)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes")


def _add(archive: tarfile.TarFile, path: Path, name: str, folder: str) -> None:
    """A file without a trace of the machine: who made it, when, and where things lie there."""
    content = path.read_bytes()
    if path.suffix == ".json":
        for place, short in ((folder, "run"), (str(TESTS.parent), "msprobe"), (sys.prefix, "env")):
            content = content.replace(place.encode(), short.encode())
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o640
    archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
