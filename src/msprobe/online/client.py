"""The way over the network: a websocket to the checker, made again whenever it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from typing import Any

from msprobe.online.message import (
    Farewell,
    Greeting,
    Welcome,
    farewell_line,
    greeting_line,
    natural,
    read_line,
    read_welcome,
)
from msprobe.online.outbox import Outbox, Outgoing
from msprobe.online.transport import LARGEST_PART, NOT_WANTED, need_websockets
from msprobe.screen import harmless

_SECONDS_TO_ANSWER = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class Network:
    """Carries calls to the checker at an address."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        need_websockets()  # it is told before training begins
        self._host, self._port, self._tls = host, port, tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def carry(self, greeting: Greeting, outbox: Outbox) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._carry(greeting, outbox))

    def abort(self) -> None:
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)

    async def _carry(self, greeting: Greeting, outbox: Outbox) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        changed = asyncio.Event()
        outbox.on_change(lambda: _wake(self._loop, changed))
        pause = _FIRST_PAUSE
        try:
            while not outbox.refused:
                try:
                    if await self._connected(greeting, outbox, changed):
                        return
                    pause = _FIRST_PAUSE
                except Exception as error:  # noqa: BLE001 - whatever the network does, it is tried again
                    self._tell(error, outbox)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            outbox.on_change(lambda: None)

    async def _connected(self, greeting: Greeting, outbox: Outbox, changed: asyncio.Event) -> bool:
        """One connection; True if nothing is left to do, False if it was lost after it had worked."""
        from websockets.exceptions import ConnectionClosed

        from msprobe.online.opening import opening

        async with opening(self._host, self._port, self._tls) as socket:
            session = _Session(socket, outbox, changed)
            try:
                await session.greet(greeting)
                await session.run()
                return True
            except ConnectionClosed as error:
                if error.rcvd is not None and error.rcvd.code == NOT_WANTED:
                    outbox.refuse(harmless(error.rcvd.reason))
                    return True
                if not session.welcomed:
                    raise
                self._tell(error, outbox)
                return False
            finally:
                outbox.reached = False

    def _tell(self, error: Exception, outbox: Outbox) -> None:
        from msprobe.online.opening import reason

        why = reason(error, self._host, self._tls is not None)
        outbox.tell(
            f"the online check at {self._host}:{self._port} cannot be reached and is tried again: {why}."
        )


class _Session:
    """What is said over one connection."""

    def __init__(self, socket: Any, outbox: Outbox, changed: asyncio.Event) -> None:
        self._socket = socket
        self._outbox = outbox
        self._changed = changed
        self._agreed = Welcome(0)
        self.welcomed = False

    async def greet(self, greeting: Greeting) -> None:
        self._outbox.rewind()
        await self._socket.send(greeting_line(greeting))
        self._agreed = read_welcome(await asyncio.wait_for(self._socket.recv(), _SECONDS_TO_ANSWER))
        self.welcomed = self._outbox.reached = True
        self._outbox.settle(self._agreed.done)

    async def run(self) -> None:
        listening = asyncio.create_task(self._listen())
        sending = asyncio.create_task(self._send())
        try:
            await asyncio.wait({listening, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                await self._part(listening)
            else:
                listening.result()
        finally:
            for task in (listening, sending):
                task.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)

    async def _listen(self) -> None:
        """Until the checker closes the connection, which ends in an exception, or answers our farewell."""
        while True:
            text = await self._socket.recv()
            if '"farewell"' in text:
                return
            self._outbox.settle(natural(read_line(text, "done")))
            self._changed.set()

    async def _send(self) -> None:
        """Until all was sent and acknowledged."""
        outbox, agreed = self._outbox, self._agreed
        while True:
            self._changed.clear()
            call = outbox.next(agreed.most, agreed.most_bytes)
            if call is not None:
                await self._send_call(call)
            elif outbox.closing and not outbox.unsettled:
                return
            else:
                await self._changed.wait()

    async def _send_call(self, call: Outgoing) -> None:
        chunks = self._outbox.message_of(call, self._agreed.largest)
        if chunks is not None:
            await self._socket.send(_parts(chunks))

    async def _part(self, listening: asyncio.Task[None]) -> None:
        await self._socket.send(farewell_line(Farewell(self._outbox.dropped)))
        await asyncio.wait_for(listening, _SECONDS_TO_ANSWER)


def _parts(chunks: list[Any]) -> Iterator[bytearray | memoryview]:
    """In frames that are not too large, and not too many: small tensors share one."""
    small = bytearray()
    for chunk in chunks:
        if not memoryview(chunk).nbytes:
            continue
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), LARGEST_PART):
            part = view[start : start + LARGEST_PART]
            if len(small) + len(part) > LARGEST_PART:
                yield small
                small = bytearray()
            if len(part) == LARGEST_PART:
                yield part
            else:
                small += part
    yield small


def _wake(loop: asyncio.AbstractEventLoop | None, changed: asyncio.Event) -> None:
    if loop is not None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(changed.set)
