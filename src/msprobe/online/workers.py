"""Worker processes of the pre-check, fed one call at a time by a thread each."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msprobe.log import logger
from msprobe.precheck.calls import Call
from msprobe.precheck.judging import Answer
from msprobe.precheck.pool import Lost, Pool
from msprobe.precheck.protocol import Order, Ready, call_line, read_answer
from msprobe.precheck.work import skipped


class Task(NamedTuple):
    """A call to judge, and who is told."""

    call: Call
    answered: Callable[[Answer], None]


class Workers:
    """Runs in threads, tells in the event loop.

    A thread has a pool of one worker: several in one pool would keep an answer until the next call comes.
    """

    def __init__(self, command: list[str], orders: list[Order], seconds: float) -> None:
        self._command = command
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.lost = 0  # calls that ended or held up their process
        self._ready: list[asyncio.Future[Ready]] = [self._loop.create_future() for _ in orders]
        self._threads = [
            threading.Thread(target=self._run, args=(order, ready), name="msprobe-worker", daemon=True)
            for order, ready in zip(orders, self._ready, strict=True)
        ]

    async def start(self) -> Ready:
        """What the first of them says of itself."""
        for thread in self._threads:
            thread.start()
        first: set[asyncio.Future[Any]] = {self.failed, *self._ready}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            self.failed.result()
        return next(ready.result() for ready in self._ready if ready.done())

    def give(self, task: Task) -> None:
        self._waiting.put(task)

    def end(self, patience: float) -> None:
        """The processes end after their answers; one that has none by then ends with this process."""
        for _ in self._threads:
            self._waiting.put(None)
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, order: Order, ready: asyncio.Future[Ready]) -> None:
        try:
            with Pool(self._command, [order], self._seconds) as pool:
                self._tell(_set, ready, pool.start())
                given: dict[int, Task] = {}
                for number, line in pool.answers(self._lines(given)):
                    task = given.pop(number)
                    if isinstance(line, Lost):
                        self._tell(self._lose, task, line.reason)
                    else:
                        self._tell(task.answered, read_answer(line))
        except Exception as error:  # noqa: BLE001 - it is raised where the workers were started
            self._tell(_fail, self.failed, error)

    def _lose(self, task: Task, reason: str) -> None:
        self.lost += 1
        logger().warning("%s: %s", task.call.text, reason)
        task.answered(skipped(task.call, reason))

    def _lines(self, given: dict[int, Task]) -> Iterator[str]:
        number = 0
        while True:
            task = self._waiting.get()
            if task is None:
                return
            given[number] = task
            yield call_line(task.call)
            number += 1

    def _tell(self, what: Callable[..., Any], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits for it
            self._loop.call_soon_threadsafe(what, *args)


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
