"""Worker processes: each has one call at a time, and one that dies or hangs takes only that call with it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msprobe.errors import HardwareError
from msprobe.precheck.calls import Skip
from msprobe.precheck.protocol import Order, Ready, order_line, read_ready

_START_SECONDS = 600.0  # importing a framework from a slow disk takes its time
_STOP_SECONDS = 5.0
_MOST_SEEN = 4000  # of the error stream of a process that died
_KILLED = -signal.SIGKILL

# The worker searches modules where we do; the current folder, which -c would add, is not among these.
_PROGRAM = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {} import main; main()"


def command_of(module: str) -> list[str]:
    """What starts a worker whose `main` is in this module."""
    return [sys.executable, "-c", _PROGRAM.format(module), json.dumps(sys.path)]


class Lost(NamedTuple):
    """In place of an answer: the process did not live to give it."""

    reason: str


class _Worker:
    """One process, and what it is doing."""

    def __init__(self, command: list[str], order: Order) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        self.output = self._process.stdout
        self._input = self._process.stdin
        self._seen = b""
        self.ready: Ready | None = None
        self.number: int | None = None  # of the call that it has
        self.deadline = time.monotonic() + _START_SECONDS
        with contextlib.suppress(BrokenPipeError):  # it tells why soon enough
            self._send(order_line(order))

    def give(self, number: int, line: str, seconds: float) -> bool:
        """False: it is dead, and never saw the call."""
        try:
            self._send(line)
        except BrokenPipeError:
            return False
        self.number, self.deadline = number, time.monotonic() + seconds
        return True

    def _send(self, line: str) -> None:
        waiting = memoryview(f"{line}\n".encode())
        while waiting:
            waiting = waiting[self._input.write(waiting) or 0 :]

    def lines(self) -> list[str] | None:
        """What it said since; None: it is dead."""
        some = os.read(self.output.fileno(), 1 << 20)
        if not some:
            return None
        *whole, self._seen = (self._seen + some).split(b"\n")
        return [line.decode() for line in whole]

    def kill(self) -> None:
        self._process.kill()

    def last_words(self) -> str:
        """How it ended."""
        code = self._process.wait()
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _MOST_SEEN))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"It ended with exit code {code}." if code >= 0 else f"It ended by signal {_signal(-code)}."
        if code == _KILLED:
            how += " Perhaps the system ended it for want of memory."
        return f"{how} {lines[-1]}" if lines else how

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()
        self._errors.close()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class Pool:
    """Gives calls to workers in order; answers come as they are ready."""

    def __init__(self, command: list[str], orders: list[Order], seconds: float) -> None:
        self._command = command
        self._orders = deque(orders)  # one for each worker; of a dead one it goes to the next
        self._seconds = seconds
        self._workers: dict[_Worker, Order] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._workers):
            worker.kill() if worker.number is not None or worker.ready is None else None
            self._end(worker)
        self._selector.close()

    def start(self) -> Ready:
        """Start one worker, and wait for what it says of itself."""
        worker = self._begin()
        while worker.ready is None:
            for number, _ in self._heard():
                assert number is None
        return worker.ready

    def answers(self, lines: Iterable[str]) -> Iterator[tuple[int, str | Lost]]:
        """Of each line, by its number: the answer of a worker."""
        waiting = enumerate(lines)
        again: deque[tuple[int, str]] = deque()
        given: dict[int, str] = {}
        more = True
        while more or again or given:
            for worker in [one for one in self._workers if one.ready is not None and one.number is None]:
                task = again.popleft() if again else next(waiting, None)
                more = more and task is not None
                if task is None:
                    break
                given[task[0]] = task[1]
                if not worker.give(*task, self._seconds):
                    again.append(task)
                    del given[task[0]]
                    self._end(worker)
            if (more or again) and self._orders:
                self._begin()
            for number, answer in self._heard() if given or again or more else ():
                if number is not None:
                    del given[number]
                    yield number, answer

    def _begin(self) -> _Worker:
        order = self._orders.popleft()
        worker = _Worker(self._command, order)
        self._workers[worker] = order
        self._selector.register(worker.output, selectors.EVENT_READ, worker)
        return worker

    def _end(self, worker: _Worker) -> None:
        with contextlib.suppress(KeyError):  # an interrupt came before it was registered
            self._selector.unregister(worker.output)
        self._orders.append(self._workers.pop(worker))
        worker.close()

    def _heard(self) -> Iterator[tuple[int | None, str | Lost]]:
        """Wait until a worker says something, dies, or is late."""
        nearest = min((one.deadline for one in self._busy()), default=time.monotonic() + 1)
        for key, _ in self._selector.select(max(0.0, nearest - time.monotonic())):
            yield from self._said(key.data)
        now = time.monotonic()
        for worker in [one for one in self._busy() if one.deadline <= now]:
            number = worker.number
            worker.kill()
            self._end(worker)
            if number is None:
                raise HardwareError(f"A worker process was not ready after {_START_SECONDS:.0f} s.")
            yield number, Lost(Skip.HUNG.of(f"The limit is {self._seconds:g} s."))

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.ready is None or worker.number is not None]

    def _said(self, worker: _Worker) -> Iterator[tuple[int | None, str | Lost]]:
        lines = worker.lines()
        if lines is None:
            number, words = worker.number, worker.last_words()
            self._end(worker)
            if worker.ready is None:
                raise HardwareError(f"A worker process could not start. {words}")
            if number is not None:
                yield number, Lost(Skip.CRASHED.of(words))
            return
        for line in lines:
            if worker.ready is None:
                worker.ready = read_ready(line)
                if worker.ready.refused:
                    raise HardwareError(worker.ready.refused)
            elif worker.number is not None:
                number, worker.number = worker.number, None
                yield number, line
