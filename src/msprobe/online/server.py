"""The checking side on the network: a websocket server that trusts nobody without a certificate."""

from __future__ import annotations

import asyncio
import http
import logging
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
from msprobe.online.transport import LATER, NOT_WANTED, PROTOCOL, SECONDS_TO_OPEN, SETTINGS, need_websockets

_LONGEST_REASON = 120  # bytes, which the protocol has room for
_MORE_CONNECTIONS = 8  # than there are ranks: those that are just made or just lost


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

    async def connected(socket: Any) -> None:
        open_now.add(socket)
        try:
            await _converse(desk, socket)
        finally:
            open_now.discard(socket)

    try:
        server = await serve(
            connected,
            host,
            port,
            ssl=tls,
            origins=[None],  # a page in a browser has an origin, and no business here
            subprotocols=[Subprotocol(PROTOCOL)],
            server_header=None,
            process_request=admitted,
            close_timeout=2,
            max_size=LARGEST,
            max_queue=2,
            logger=_quiet(),
            **SETTINGS,
        )
    except OSError as error:
        raise ConfigError(f"Nobody can listen at {host}:{port}: {error.strerror or error}.") from None
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


async def _converse(desk: Desk, socket: Any) -> None:
    from websockets.exceptions import ConnectionClosed

    run: Run | None = None
    acknowledging: asyncio.Task[None] | None = None
    leave = socket.transport.abort
    try:
        text = await asyncio.wait_for(socket.recv(), SECONDS_TO_OPEN)
        if not isinstance(text, str) or len(text) > LONGEST_LINE:
            raise Refused("it did not greet")
        run = desk.greet(read_greeting(text))
        if run.leave is not None:
            run.leave()  # the process has a new connection, whatever became of the older one
        run.leave = leave
        done = run.done
        await socket.send(welcome_line(Welcome(done)))
        acknowledging = asyncio.create_task(_acknowledge(socket, run, done))
        await _hear(desk, socket, run)
    except (Refused, Occupied, Malformed, TimeoutError, asyncio.TimeoutError) as error:
        reason = str(error) or "it did not greet in time"
        logger().warning("a connection of %s was refused: %s.", _whose(socket, run), reason)
        code = LATER if isinstance(error, Occupied) else NOT_WANTED
        await socket.close(code, reason.encode()[:_LONGEST_REASON].decode(errors="ignore"))
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


def _whose(socket: Any, run: Run | None) -> str:
    address = socket.remote_address
    peer = f"{address[0]}:{address[1]}" if address else "somebody"
    return peer if run is None else f"rank {run.greeting.rank} ({peer})"


async def _hear(desk: Desk, socket: Any, run: Run) -> None:
    async for message in socket:
        if isinstance(message, bytes):
            await desk.take(run, message)
            continue
        farewell: Farewell = read_farewell(message)
        run.leave = None
        desk.stop(run, farewell.dropped)
        await socket.send(farewell_line(farewell))
        return


async def _acknowledge(socket: Any, run: Run, told: int) -> None:
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            while run.done == told:
                run.changed.clear()
                await run.changed.wait()
            told = run.done
            await socket.send(done_line(told))
    except ConnectionClosed:
        return
