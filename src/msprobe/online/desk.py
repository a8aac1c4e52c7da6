"""Where calls arrive: each is judged once, its result written in order, and only then acknowledged.

All of it happens in one event loop; what waits for a disk or a worker does so in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.analyse.standards import ERROR
from msprobe.log import logger
from msprobe.name import BACKWARD
from msprobe.online.blob import Malformed
from msprobe.online.kept import Kept
from msprobe.online.ledger import Judged, Ledger, forget_all, left_behind
from msprobe.online.message import MOST_UNANSWERED, MOST_UNANSWERED_BYTES, Greeting, Received, read_call
from msprobe.online.spool import Spool, Spooled
from msprobe.online.workers import Task
from msprobe.precheck.calls import Call, Lists, Skip, reason_to_skip
from msprobe.precheck.check import status_of
from msprobe.precheck.judging import Answer
from msprobe.precheck.work import backward_side, skipped

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MOST_TOLD = 20  # errors of one process in the log
_MOST_PROCESSES = 100  # of one rank, each with files of its own


class Refused(Exception):
    """Somebody is not welcome; the message says why."""


class Occupied(Exception):
    """Somebody is not welcome now, and may come again."""


class _Entry:
    """A call that was taken, or the gradients of one."""

    def __init__(self, received: Received) -> None:
        self.size = received.size + received.weight
        self.sequence = received.sequence
        self.step = received.step
        self.is_backward = received.record.name.direction == BACKWARD
        self.answer: Answer | None = None
        self.held: list[Spooled] = []


class Run:
    """One process that trains, as the checker knows it."""

    def __init__(self, greeting: Greeting, ledger: Ledger, kept: Kept) -> None:
        self.greeting = greeting
        self.ledger = ledger
        self.kept = kept
        self.turn = asyncio.Lock()  # one message at a time, also of two connections
        self.accepted = self.done = ledger.done
        self.waiting: deque[_Entry] = deque()
        self.changed = asyncio.Event()  # more is done
        self.leave: Callable[[], None] | None = None  # ends the connection it has now
        self.seen = time.monotonic()
        self.stopped = False  # nothing more comes
        self.closed = False
        self.complete = True  # it ended by saying so
        self.dropped = 0
        self._told = 0

    @property
    def is_full(self) -> bool:
        """As much waits as was agreed on."""
        size = sum(entry.size for entry in self.waiting)
        return len(self.waiting) >= MOST_UNANSWERED or size >= MOST_UNANSWERED_BYTES

    async def room(self) -> None:
        """Wait until more can be taken."""
        while self.is_full:
            self.changed.clear()
            await self.changed.wait()

    def tell(self, entry: _Entry) -> None:
        """What is wrong stands in the log as soon as it is known; the tables have all of it."""
        if entry.answer is None or status_of(entry.answer.summed) != ERROR or self._told >= _MOST_TOLD:
            return
        self._told += 1
        summed = entry.answer.summed
        logger().warning(
            "rank %d, step %d: %s", self.greeting.rank, entry.step, summed.reason or summed.message
        )

    def ready(self) -> list[_Entry]:
        """The calls at the head of the line whose answers are known; they stay until these are written."""
        return list(takewhile(lambda entry: entry.answer is not None, self.waiting))


class Desk:
    """Takes calls of all ranks and sees to their results."""

    def __init__(
        self,
        out: Path,
        spool: Spool,
        give: Callable[[Task], None],
        ranks: tuple[int, ...],
        lists: Lists,
    ) -> None:
        """`give`: has a call judged."""
        self._out = out
        self._spool = spool
        self._give = give
        self._ranks = ranks
        self._lists = lists
        self._answers = asyncio.Event()
        self.news = asyncio.Event()  # somebody came, or left for good
        self.runs: dict[str, Run] = {}
        self.refusals = 0  # connections that were not welcome
        self._lost: BaseException | None = None  # why nothing can be done any more

    def go_on(self) -> None:
        """With what a checker that was killed left here, unless all of it has ended."""
        for greeting in left_behind(self._out):
            ledger = Ledger(self._out, greeting)
            run = self.runs[greeting.key] = Run(greeting, ledger, Kept(self._spool))
            if ledger.finished:
                run.stopped = run.closed = True
                ledger.close()
            else:
                logger().info("waiting for rank %d to go on with %s", greeting.rank, ledger.result_file)
        if all(map(self.of_rank, self._ranks)) and all(run.closed for run in self.runs.values()):
            self.runs.clear()
            forget_all(self._out)

    # --- who comes and goes ---

    def greet(self, greeting: Greeting, *, replaces: bool = True) -> Run:
        """`replaces`: an older process of the same rank is over, for its connection was lost."""
        if greeting.rank not in self._ranks:
            raise Refused(f"rank {greeting.rank} is not in rank_list {list(self._ranks)} of the checker")
        run = self.runs.get(greeting.key)
        if run is None:
            if len(self.of_rank(greeting.rank)) >= _MOST_PROCESSES:
                raise Refused(
                    f"rank {greeting.rank} has begun {_MOST_PROCESSES} times; start the checker anew"
                )
            for older in self.of_rank(greeting.rank) if replaces else ():
                self._replace(older)
            run = self.runs[greeting.key] = Run(greeting, Ledger(self._out, greeting), Kept(self._spool))
            how = "goes on" if run.ledger.resumed else "begins"
            logger().info("rank %d %s: %s", greeting.rank, how, run.ledger.result_file)
        run.seen = time.monotonic()
        self.news.set()
        return run

    def _replace(self, older: Run) -> None:
        """Another process of the same rank has come; one that is still here is not driven out."""
        if older.leave is not None:
            raise Occupied(f"another process of rank {older.greeting.rank} is checked now")
        if not older.stopped:
            logger().warning("rank %d began anew; its older process is over.", older.greeting.rank)
            older.complete = False
            self.stop(older)

    def of_rank(self, rank: int) -> list[Run]:
        return [run for run in self.runs.values() if run.greeting.rank == rank]

    def stop(self, run: Run, dropped: int = 0) -> None:
        """Nothing more comes from it; what was taken is still judged."""
        if run.leave is not None:
            run.leave()
        run.stopped = True
        run.seen = time.monotonic()
        run.dropped = dropped
        self._close(run)

    def _close(self, run: Run) -> None:
        if run.stopped and not run.waiting and not run.closed:
            run.closed = True
            run.kept.forget()
            run.ledger.close(finished=True)
            self.news.set()

    # --- calls ---

    async def take(self, run: Run, content: Buffer, expected: int | None = None) -> None:
        """One message of a process; a call that came before is not taken again."""
        async with run.turn:
            try:
                received = await asyncio.to_thread(read_call, content)
            except Malformed as error:
                raise Refused(f"a message {error}"[:120]) from None
            if expected is not None and received.sequence != expected:
                raise Refused(f"it is call {received.sequence}, not {expected}")
            run.seen = time.monotonic()
            if received.sequence <= run.accepted:
                return
            if run.stopped:
                raise Refused("it said that it had ended, its rank began anew, or it was gone for too long")
            if run.is_full:
                raise Refused("more calls came than were agreed on")
            run.accepted = received.sequence
            entry = _Entry(received)
            run.waiting.append(entry)
            await self._begin(run, entry, received)

    async def _begin(self, run: Run, entry: _Entry, received: Received) -> None:
        def answered(answer: Answer) -> None:
            entry.answer = backward_side(answer) if entry.is_backward else answer
            self._answers.set()

        prepare = self._gradients if entry.is_backward else self._call
        try:
            run.kept.enter(received.step)
            call = await asyncio.to_thread(prepare, run, entry, received)
        except OSError as error:  # a full disk is no reason to say that the call was checked
            self.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - one call must not hold up those behind it
            call = Skip.OURS.of(error)
        if isinstance(call, str):
            answered(skipped(Call(received.record.name, received.record), call))
        else:
            self._give(Task(call, answered))

    def _call(self, run: Run, entry: _Entry, received: Received) -> Call | str:
        """What a worker makes again, or why none does."""
        record = received.record
        reason = reason_to_skip(Call(record.name, record), self._lists)
        if reason is not None or not received.is_whole:
            return reason or Skip.NOT_SENT.of()
        spooled = self._spool.put(run.greeting.key, received)
        entry.held.append(spooled)
        run.kept.add(record.name.call, spooled)
        return Call(record.name, spooled.record)

    def _gradients(self, run: Run, entry: _Entry, received: Received) -> Call | str:
        """The same for gradients: their call is made again, with the inputs that it had."""
        name = received.record.name
        call = run.kept.take(name.call)
        if call is not None:
            entry.held.append(call)
        if self._lists.leave_out(name.api):
            return Skip.LISTED.of(name.api)
        if call is None or not received.is_whole:
            return Skip.NOT_KEPT.of() if call is None else Skip.NOT_SENT.of()
        gradients = self._spool.put(run.greeting.key, received)
        entry.held.append(gradients)
        return Call(call.record.name, call.record, gradients.record, has_backward=True)

    async def write(self) -> None:
        """Write results as they come, for ever."""
        while True:
            await self._answers.wait()
            self._answers.clear()
            for run in list(self.runs.values()):
                entries = run.ready()
                if entries:
                    await asyncio.to_thread(self._write, run, entries)
                    for entry in entries:
                        run.waiting.popleft()
                        run.tell(entry)
                    run.done = entries[-1].sequence
                    run.changed.set()
                    self._close(run)

    def _write(self, run: Run, entries: list[_Entry]) -> None:
        run.ledger.add(
            [
                Judged(entry.sequence, entry.step, entry.answer)
                for entry in entries
                if entry.answer is not None
            ]
        )
        for entry in entries:
            for spooled in entry.held:
                self._spool.release(spooled)

    def lost_task(self, task: asyncio.Task[None]) -> None:
        """A task that runs for ever has ended."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Nothing can be done any more; must_work() raises why."""
        self._lost = error
        self.news.set()

    def must_work(self) -> None:
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        """What was not finished can be gone on with."""
        for run in self.runs.values():
            if not run.closed:
                run.closed = True
                run.ledger.close()
