"""The checking side on the network: a websocket server that trusts nobody without a certificate."""

from __future__ import annotations

import asyncio
import http
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msprobe.errors import ConfigError
from msprobe.log import logger
from msprobe.online.blob import Malformed
from msprobe.online.desk import Desk, Occupied, Refused, Run
from msprobe.online.message import (
    LARGEST,
    LONGEST_LINE,
    Farewell,
    Welcome,
    done_line,
    farewell_line,
    read_farewell,
    read_greeting,
    welcome_line,
)
from msprobe.online.transport import (
    LARGEST_PART,
    LATER,
    NOT_WANTED,
    PROTOCOL,
    SECONDS_TO_OPEN,
    SETTINGS,
    need_websockets,
)

_LONGEST_REASON = 120  # bytes, which the protocol has room for
_MORE_CONNECTIONS = 8  # than there are ranks: those that are just made or just lost
_MORE_STRANGERS = 32  # than these: who has not even said what he wants
_MOST_TURNED_AWAY = 100  # at a time
_MOST_REFUSALS_TOLD = 100
_MOST_PARTS = 4 * LARGEST // LARGEST_PART


class _Gate(socket.socket):
    """Listens, and lets so many in at a time: each takes a descriptor, which files need too."""

    def __init__(self, host: str, port: int, most: int) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._most = most
        self._inside: list[socket.socket] = []
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind((host, port))
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        for _ in range(_MOST_TURNED_AWAY):
            found, address = super().accept()
            self._inside = [one for one in self._inside if one.fileno() >= 0]
            if len(self._inside) < self._most:
                self._inside.append(found)
                return found, address
            found.close()
        raise BlockingIOError  # the others must have their turn too


@asynccontextmanager
async def listening(
    desk: Desk, host: str, port: int, tls: ssl.SSLContext | None, ranks: int
) -> AsyncIterator[None]:
    """Serve while the block runs."""
    need_websockets()
    from websockets.asyncio.server import serve
    from websockets.typing import Subprotocol

    most = ranks + _MORE_CONNECTIONS
    open_now: set[Any] = set()

    def admitted(connection: Any, _request: Any) -> Any:
        if len(open_now) >= most:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        return None

    async def connected(peer: Any) -> None:
        open_now.add(peer)
        try:
            await _converse(desk, peer)
        finally:
            open_now.discard(peer)

    try:
        server = await serve(
            connected,
            sock=_Gate(host, port, most + _MORE_STRANGERS),
            ssl=tls,
            ssl_handshake_timeout=SECONDS_TO_OPEN if tls else None,
            origins=[None],  # a page in a browser has an origin, and no business here
            subprotocols=[Subprotocol(PROTOCOL)],
            server_header=None,
            process_request=admitted,
            close_timeout=2,
            max_size=(LARGEST, LARGEST_PART),
            max_queue=2,
            logger=_quiet(),
            **SETTINGS,
        )
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(
            f"The online check cannot listen at {host}:{port}: {reason}; host must be an address of this "
            "machine, and the port free."
        ) from None
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


def _quiet() -> logging.Logger:
    """The library tells each handshake that fails with its traceback; strangers must not fill our log."""
    log = logging.Logger("msprobe.online.websockets", logging.CRITICAL)
    log.addHandler(logging.NullHandler())
    return log


async def _converse(desk: Desk, peer: Any) -> None:
    from websockets.exceptions import ConnectionClosed

    run: Run | None = None
    acknowledging: asyncio.Task[None] | None = None
    leave = peer.transport.abort
    try:
        greeting = await asyncio.wait_for(_message(peer, 0), SECONDS_TO_OPEN)
        run = desk.greet(read_greeting(greeting))
        if run.leave is not None:
            run.leave()  # the process has a new connection, whatever became of the older one
        run.leave = leave
        done = run.done
        await peer.send(welcome_line(Welcome(done)))
        acknowledging = asyncio.create_task(_acknowledge(peer, run, done))
        await _hear(desk, peer, run)
    except (Refused, Occupied, Malformed, TimeoutError, asyncio.TimeoutError) as error:
        reason = str(error) or "it did not greet in time"
        desk.refusals += 1
        if desk.refusals <= _MOST_REFUSALS_TOLD:  # who comes again and again must not fill the log
            logger().warning("a connection of %s was refused: %s.", _whose(peer, run), reason)
        code = LATER if isinstance(error, Occupied) else NOT_WANTED
        await peer.close(code, reason.encode(errors="replace")[:_LONGEST_REASON].decode(errors="ignore"))
    except ConnectionClosed:
        if run is not None and not run.stopped and run.leave == leave:
            logger().warning("rank %d is gone; it is waited for.", run.greeting.rank)
    except Exception as error:  # noqa: BLE001 - such as a full disk: whoever runs the check must know
        desk.fail(error)
    finally:
        if acknowledging is not None:
            acknowledging.cancel()
        if run is not None and run.leave == leave:
            run.leave = None
            run.seen = time.monotonic()


def _whose(peer: Any, run: Run | None) -> str:
    address = peer.remote_address
    peer = f"{address[0]}:{address[1]}" if address else "somebody"
    return peer if run is None else f"rank {run.greeting.rank} ({peer})"


async def _message(peer: Any, most: int) -> str | bytearray:
    """One message; who may send none with so many bytes, or none in so many parts, cannot fill our memory."""
    text, content, parts = "", bytearray(), 0
    async for part in peer.recv_streaming():
        parts += 1
        if isinstance(part, str):
            text += part
        else:
            content += part
        if len(text) > LONGEST_LINE or len(content) > most or parts > _MOST_PARTS:
            raise Refused("it did not greet" if not most else "a message is too long, or in too many parts")
    return content or text


async def _room(peer: Any, run: Run) -> bool:
    """Wait until a further call can be taken; False: the connection ended before."""
    waiting = [asyncio.create_task(run.room()), asyncio.create_task(peer.wait_closed())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    return not run.is_full


async def _hear(desk: Desk, peer: Any, run: Run) -> None:
    while True:
        message = await _message(peer, LARGEST)
        if not isinstance(message, str):
            if run.is_full and not await _room(peer, run):
                return
            await desk.take(run, message)
            continue
        farewell: Farewell = read_farewell(message)
        run.leave = None
        desk.stop(run, farewell.dropped)
        await peer.send(farewell_line(farewell))
        return


async def _acknowledge(peer: Any, run: Run, told: int) -> None:
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            while run.done == told:
                run.changed.clear()
                await run.changed.wait()
            told = run.done
            await peer.send(done_line(told))
    except ConnectionClosed:
        return
