"""Give jobs to workers, several at a time, each with the Python and the environment that its jobs need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msprobe

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = Path(msprobe.__file__).resolve().parent.parent
CHUNK = 40  # jobs that one worker does before it ends
PYTHONS = {"torch": ".venv", "models": ".venv-truth", "mindspore": ".venv-mindspore"}
# Some virtual machines announce matrix tiles that their kernel does not allow: oneDNN would use them.
STEADY = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "PYTHONHASHSEED": "0"}
LOOPBACK = ("unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


class Kind(NamedTuple):
    """What jobs that share a worker have in common."""

    part: str | None  # None: they compare
    python: str = "torch"
    variables: tuple[tuple[str, str], ...] = ()
    ranks: bool = False


class Job(NamedTuple):
    kind: Kind
    order: dict[str, Any]


Done = Callable[[Job, dict[str, Any]], None]


def python_of(name: str) -> str:
    """The interpreter of an environment; without one this interpreter is taken for PyTorch."""
    path = ROOT / PYTHONS[name] / "bin/python"
    return str(path) if path.exists() or name != "torch" else sys.executable


def do(jobs: Iterable[Job], at_once: int, done: Done) -> None:
    """Do all jobs and call `done` with each answer, from one thread at a time."""
    chunks, lock = list(_chunks(jobs)), threading.Lock()

    def serve() -> None:
        while True:
            with lock:
                if not chunks:
                    return
                chunk = chunks.pop(0)
            for job, answer in _work(chunk):
                with lock:
                    done(job, answer)

    threads = [threading.Thread(target=serve) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _chunks(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    kinds: dict[Kind, list[Job]] = {}
    for job in jobs:
        kinds.setdefault(job.kind, []).append(job)
    for alike in kinds.values():
        for start in range(0, len(alike), CHUNK):
            yield alike[start : start + CHUNK]


def _work(chunk: list[Job]) -> Iterator[tuple[Job, dict[str, Any]]]:
    kind = chunk[0].kind
    command = [python_of(kind.python), "-m", "truth.worker", *([kind.part] if kind.part else [])]
    variables = {**os.environ, **STEADY, **dict(kind.variables)}
    variables["PYTHONPATH"] = f"{PACKAGES}{os.pathsep}{ROOT}"
    process = subprocess.Popen(
        [*(LOOPBACK if kind.ranks else ()), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=variables,
        cwd=ROOT,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    for job in chunk:
        line = ""
        try:
            process.stdin.write(json.dumps(job.order) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            pass
        yield job, json.loads(line) if line else {"status": 71, "seconds": 0.0, "cpu": 0.0}
    process.stdin.close()
    process.wait()
