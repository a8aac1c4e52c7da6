"""The checking side as a whole: it judges what comes until every rank has ended, and says what it found."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

from msprobe.analyse.standards import ERROR, PASS, SKIP
from msprobe.config import RunUt
from msprobe.log import logger
from msprobe.metrics.rounding import CANNOT_TELL
from msprobe.online import tls
from msprobe.online.desk import Desk
from msprobe.online.folder_source import FolderSource
from msprobe.online.ledger import forget_all, write_empty
from msprobe.online.server import listening
from msprobe.online.spool import Spool
from msprobe.online.workers import Workers
from msprobe.precheck.check import Options, orders, output_folder
from msprobe.precheck.protocol import Ready
from msprobe.precheck.run import HOST
from msprobe.precheck.work import SENT

_SECONDS_TO_END, _SECONDS_TO_ABORT = 20.0, 1.0
_STATUSES = (PASS, CANNOT_TELL, ERROR, SKIP)


class Patience(NamedTuple):
    """How many seconds a rank is waited for."""

    absent: float = 600.0  # one that is gone
    missing: float = 60.0  # one that has never come, once all others have ended


USUAL = Patience()


class Ended(NamedTuple):
    """What one process that trained came to."""

    rank: int
    result_file: Path
    details_file: Path
    counts: dict[str, int]
    dropped: int  # by the training side
    complete: bool = True  # it said that it ended


class Outcome(NamedTuple):
    """What the check came to."""

    ended: tuple[Ended, ...]
    lost: int = 0  # calls that ended or held up their process

    @property
    def failed(self) -> bool:
        return self.lost > 0 or any(one.counts.get(ERROR) for one in self.ended)

    @property
    def nothing_judged(self) -> str:
        """Return, in a sentence, that this check says nothing; empty if it judged a call or failed."""
        if self.failed or any(one.counts.get(PASS) for one in self.ended):
            return ""
        return "No call was judged: look at the tables and the log of training for what was sent and skipped."

    def told(self) -> Iterator[str]:
        for one in self.ended:
            counts = ", ".join(f"{one.counts.get(status, 0)} {status}" for status in _STATUSES)
            rest = f", {one.dropped} dropped by the training side" if one.dropped else ""
            rest += "" if one.complete else "; its process ended without saying so"
            yield f"rank {one.rank}: {counts}{rest}"
            yield f"wrote {one.result_file}"
            yield f"wrote {one.details_file}"


def check_online(section: RunUt, out_path: str, options: Options, patience: Patience = USUAL) -> Outcome:
    """Check what training sends, until all of it has ended."""
    out = output_folder(Path(out_path))
    context = None if section.nfs_path else tls.checking_side(section.tls_path, section.host)
    spool = Spool(out, len(section.rank_list))
    try:
        return asyncio.run(_check(section, out, spool, options, patience, context))
    finally:
        spool.close()


async def _check(
    section: RunUt,
    out: Path,
    spool: Spool,
    options: Options,
    patience: Patience,
    context: ssl.SSLContext | None,
) -> Outcome:
    told = orders(str(spool.folder), options._replace(outputs=SENT))
    workers = Workers(options.worker, told, options.seconds)
    desk = Desk(out, spool, workers.give, section.rank_list, options.lists)
    seconds = _SECONDS_TO_ABORT
    try:
        ready = await workers.start()
        options.lists.must_be_known(ready.apis)
        _tell(ready)
        desk.go_on()
        async with _source(section, desk, context):
            await _until_over(desk, section.rank_list, patience, workers.failed)
        seconds = _SECONDS_TO_END
    finally:
        desk.close()
        workers.end(seconds)
    forget_all(out)
    return Outcome(_ended(desk, out, section.rank_list), workers.lost)


def _tell(ready: Ready) -> None:
    idle = "" if ready.device == HOST else f"; {ready.device} has nothing to do"
    logger().info("Online check on the CPU of this machine, in higher precision than training%s.", idle)


@contextlib.asynccontextmanager
async def _source(section: RunUt, desk: Desk, context: ssl.SSLContext | None) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        tasks = [asyncio.create_task(desk.write())]
        stack.push_async_callback(_cancelled, tasks)
        if section.nfs_path:
            source = FolderSource(section.nfs_path, desk)
            stack.callback(source.close)
            stack.push_async_callback(source.end)
            tasks.append(asyncio.create_task(source.read()))
            logger().info("Waiting for calls in %s.", section.nfs_path)
        else:
            assert section.port is not None
            await stack.enter_async_context(
                listening(desk, section.host, section.port, context, len(section.rank_list))
            )
            logger().info("Waiting for calls at %s:%d.", section.host, section.port)
        for task in tasks:
            task.add_done_callback(desk.lost_task)
        yield


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until_over(
    desk: Desk, ranks: tuple[int, ...], patience: Patience, failed: asyncio.Future[None]
) -> None:
    """Until each rank has come and ended, or is not waited for any more."""
    told = False
    while True:
        if failed.done():
            failed.result()
        desk.must_work()
        _give_up_absent(desk, patience.absent)
        runs = list(desk.runs.values())
        if runs and all(run.closed for run in runs):
            missing = [rank for rank in ranks if not desk.of_rank(rank)]
            if not missing or time.monotonic() - max(run.seen for run in runs) > patience.missing:
                return
            if not told:
                told = True
                logger().info("Waiting %.0f s for each rank that never came: %s.", patience.missing, missing)
        desk.news.clear()
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(desk.news.wait(), 1.0)


def _give_up_absent(desk: Desk, seconds: float) -> None:
    for run in desk.runs.values():
        if (
            not run.stopped
            and run.leave is None
            and not run.waiting
            and time.monotonic() - run.seen > seconds
        ):
            logger().warning(
                "rank %d has been gone for %.0f s and is not waited for any more.", run.greeting.rank, seconds
            )
            run.complete = False
            desk.stop(run)


def _ended(desk: Desk, out: Path, ranks: tuple[int, ...]) -> tuple[Ended, ...]:
    ended = [
        Ended(
            run.greeting.rank,
            run.ledger.result_file,
            run.ledger.details_file,
            dict(run.ledger.counts),
            run.dropped,
            run.complete,
        )
        for run in desk.runs.values()
    ]
    ended += [Ended(rank, *write_empty(out, rank), Counter(), 0) for rank in ranks if not desk.of_rank(rank)]
    return tuple(sorted(ended, key=lambda one: one.rank))
