"""Which recordings exist already: each has a stamp of the sources that decide what is in it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from truth.cases import MODES, Run, Suite, beside
from truth.jobs import PACKAGES, Job, Kind

HERE = Path(__file__).resolve().parent
# Parts of msprobe that have no say in what is recorded.
READING = {"analyse", "verdict", "pairing", "metrics", "compare", "report", "cli", "precheck", "online"}
READING |= {
    "compare.py",
    "compare_runs.py",
    "compare_function.py",
    "compare_kernels.py",
    "compare_kernel_calls.py",
    "compare_request.py",
}
READING |= {
    "graph.py",
    "graph_order.py",
    "graph_values.py",
    "operators",
    "mapping_file.py",
    "screen.py",
    "text.py",
    "plural.py",
    "replay.py",
}


@cache
def recorder_digest() -> str:
    """A digest of the source that records."""
    digest = hashlib.sha256()
    package = PACKAGES / "msprobe"
    for path in sorted(package.rglob("*")):
        where = path.relative_to(package)
        if path.suffix in {".py", ".c", ".h"} and where.parts[0] not in READING:
            digest.update(str(where).encode() + path.read_bytes())
    return digest.hexdigest()


class Recordings:
    """The recordings of one part below a folder."""

    def __init__(self, part: str, suite: Suite, work: Path) -> None:
        self._part, self._suite, self._work = part, suite, work / part
        sources = hashlib.sha256(recorder_digest().encode())
        for name in suite.sources:
            sources.update((HERE / name).read_bytes())
        self._digest = sources.hexdigest()

    def folder(self, run: str, mode: str) -> Path:
        return self._work / mode / run

    def missing(self, wanted: Iterable[tuple[str, str]]) -> Iterator[Job]:
        """A job for each recording that is not there or was made by other sources."""
        for run, mode in dict.fromkeys(wanted):
            folder = self.folder(run, mode)
            stamp = beside(folder, ".stamp")
            if stamp.exists() and stamp.read_text(encoding="utf-8") == self._stamp(run, mode):
                continue
            stamp.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            yield Job(self._kind(self._suite.runs[run]), self._order(run, mode))

    def _kind(self, run: Run) -> Kind:
        return Kind(self._part, run.python, run.variables, run.ranks > 1)

    def _order(self, run: str, mode: str) -> dict[str, Any]:
        folder = self.folder(run, mode)
        return {"run": run, "mode": mode, "folder": str(folder), "log": str(beside(folder, ".log"))}

    def _stamp(self, run: str, mode: str) -> str:
        return f"{self._digest} {run} {MODES[mode]}"

    def made(self, job: Job) -> None:
        """Note that a recording is complete."""
        run, mode = job.order["run"], job.order["mode"]
        beside(self.folder(run, mode), ".stamp").write_text(self._stamp(run, mode), encoding="utf-8")

    def drop_large(self) -> None:
        """Remove the tensors of large runs."""
        for run in self._suite.runs.values():
            if run.is_large:
                beside(self.folder(run.name, "tensor"), ".stamp").unlink(missing_ok=True)
                shutil.rmtree(self.folder(run.name, "tensor"), ignore_errors=True)
