"""What training is told where it cannot reach the checker: each case between two real ends of a network."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.server
import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from msprobe.errors import ConfigError
from msprobe.online import tls
from msprobe.online.client import Network
from msprobe.online.message import Greeting
from msprobe.online.outbox import Outbox
from msprobe.online.transport import PROTOCOL
from online_case import Authority, free_port, wait_until

pytest.importorskip("websockets")
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

from msprobe.online.opening import reason

HOST = "127.0.0.1"
LATEST_2, LATEST_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
BOTH_OR_NONE = "set tls_path on both sides or on none."
OR_FULL = f"or one that has as many connections as it takes; {BOTH_OR_NONE}"
THE_CHECKER = "see that host and port are those of the checker"


class Ends:
    """Keys of both sides, and what listens at a port while a test runs."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.authority = Authority()
        for side in ("server", "client"):
            self.authority.issue(folder, side)

    def training(self) -> ssl.SSLContext:
        context = tls.training_side(str(self._folder), HOST)
        assert context is not None
        return context

    def checking(self) -> ssl.SSLContext:
        context = tls.checking_side(str(self._folder), HOST)
        assert context is not None
        return context

    def show(self, context: ssl.SSLContext, **how: Any) -> ssl.SSLContext:
        """Have a running checker show another certificate, which it would not begin with."""
        certificate = self.authority.issue(self._folder / "other", "server", **how)
        context.load_cert_chain(self._folder / "other" / "server.crt", self._folder / "other" / "server.key")
        self.shown = certificate
        return context

    def revoke(self, certificate: Any) -> None:
        self.authority.revoke(self._folder, certificate)

    def websocket(self, context: ssl.SSLContext | None, protocol: str = PROTOCOL) -> int:
        return self._stack.enter_context(_websocket(context, protocol))

    def pages(self, kind: type[http.server.BaseHTTPRequestHandler]) -> int:
        """A web server, as on a port that was mistaken."""
        server = http.server.HTTPServer((HOST, 0), kind)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)
        return int(server.server_address[1])

    def shell(self) -> int:
        """Somebody who speaks first, and something else."""
        server = self._stack.enter_context(socket.create_server((HOST, 0)))

        def serve_one() -> None:
            with contextlib.suppress(OSError):
                while True:
                    guest, _ = server.accept()
                    with guest:
                        guest.sendall(b"SSH-2.0-Somebody\r\n")
                        guest.recv(1 << 16)

        threading.Thread(target=serve_one, daemon=True).start()
        self._stack.callback(server.shutdown, socket.SHUT_RDWR)
        return int(server.getsockname()[1])


@contextlib.contextmanager
def _websocket(context: ssl.SSLContext | None, protocol: str) -> Iterator[int]:
    port, ready, loop = free_port(), threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def listen() -> None:
        async def wait(peer: Any) -> None:
            await peer.wait_closed()

        quiet = logging.Logger("quiet", logging.CRITICAL)
        async with serve(wait, HOST, port, ssl=context, subprotocols=[protocol], logger=quiet):  # type: ignore[list-item]
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(listen(),))
    thread.start()
    ready.wait(60)
    yield port
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with contextlib.ExitStack() as stack:
        yield Ends(tmp_path, stack)


def told(port: int, context: ssl.SSLContext | None, capsys: pytest.CaptureFixture[str]) -> str:
    """What the log says of the checker at a port."""
    network, heard = Network(HOST, port, context), ""
    carrying = threading.Thread(target=network.carry, args=(Greeting("0" * 32, 0), Outbox()))
    carrying.start()

    def sentence() -> re.Match[str] | None:
        """Other lines may stand around it: the web server of a test writes down what it is asked."""
        nonlocal heard
        heard += capsys.readouterr().err
        return re.search(
            rf"the online check at {HOST}:{port} cannot be reached and is tried again: (.*)\n", heard
        )

    wait_until(lambda: sentence() is not None, "a warning")
    network.abort()
    carrying.join()
    found = sentence()
    assert found
    return found[1]


def limited(context: ssl.SSLContext, **limits: Any) -> ssl.SSLContext:
    for name, value in limits.items():
        setattr(context, name, value)
    return context


def with_cipher(context: ssl.SSLContext, cipher: str) -> ssl.SSLContext:
    context.set_ciphers(cipher)
    return limited(context, maximum_version=LATEST_2)


def revoked(ends: Ends) -> tuple[int, ssl.SSLContext]:
    port = ends.websocket(ends.show(ends.checking()))
    ends.revoke(ends.shown)
    return port, ends.training()


Made = Callable[[Ends], "tuple[int, ssl.SSLContext | None]"]
CASES: dict[str, tuple[Made, str]] = {
    "nobody": (
        lambda ends: (free_port(), None),
        f"nobody listens there; start the checker, and {THE_CHECKER}.",
    ),
    "plain checker": (
        lambda ends: (ends.websocket(None), ends.training()),
        f"it ended the connection at once, as a checker without tls_path does, {OR_FULL}",
    ),
    "plain training": (
        lambda ends: (ends.websocket(ends.checking()), None),
        f"it ended the connection at once, as a checker with a tls_path does, {OR_FULL}",
    ),
    "no TLS": (
        lambda ends: (ends.shell(), ends.training()),
        f"it speaks no TLS; {BOTH_OR_NONE}",
    ),
    "expired": (
        lambda ends: (ends.websocket(ends.show(ends.checking(), days=-1)), ends.training()),
        "its server.crt has expired; make a new one, and start the checker again with it.",
    ),
    "another address": (
        lambda ends: (ends.websocket(ends.show(ends.checking(), address="192.0.2.7")), ends.training()),
        "its server.crt does not name 127.0.0.1; make one with subjectAltName=IP:127.0.0.1, or set host to "
        "the address that it names.",
    ),
    "revoked": (
        revoked,
        "crl.pem in tls_path says that its server.crt was revoked; make a new one, and start the checker "
        "again with it.",
    ),
    "versions": (
        lambda ends: (
            ends.websocket(limited(ends.checking(), minimum_version=LATEST_3)),
            limited(ends.training(), maximum_version=LATEST_2),
        ),
        "no version of TLS is allowed on both sides; TLS 1.2 is the least.",
    ),
    "ciphers": (
        lambda ends: (
            ends.websocket(with_cipher(ends.checking(), "ECDHE-ECDSA-AES128-GCM-SHA256")),
            with_cipher(ends.training(), "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ),
        "no cipher of TLS is allowed on both sides; set up OpenSSL alike on both.",
    ),
    "another release": (
        lambda ends: (ends.websocket(None, "msprobe.online.0"), None),
        f"what answers there is no checker of this release (HTTP status 400); {THE_CHECKER}, and use the "
        "same release of msprobe on both sides.",
    ),
    "web server": (
        lambda ends: (ends.pages(http.server.BaseHTTPRequestHandler), None),
        f"what answers there is no checker; {THE_CHECKER}.",
    ),
    "another protocol": (
        lambda ends: (ends.shell(), None),
        f"what answers there is no checker; {THE_CHECKER}.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_why_the_checker_cannot_be_reached(ends: Ends, capsys: pytest.CaptureFixture[str], name: str) -> None:
    made, sentence = CASES[name]
    assert told(*made(ends), capsys) == sentence


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_a_redirection_is_not_followed(ends: Ends, capsys: pytest.CaptureFixture[str], scheme: str) -> None:
    with socket.create_server((HOST, 0)) as elsewhere:
        elsewhere.setblocking(False)

        class Redirecting(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.protocol_version = "HTTP/1.1"
                self.send_response(302)
                self.send_header("Location", f"{scheme}://{HOST}:{elsewhere.getsockname()[1]}/login")
                self.end_headers()

        sentence = told(ends.pages(Redirecting), None, capsys)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert sentence.startswith("what answers there is no checker of this release (HTTP status 302); ")


def test_what_a_stranger_says_does_not_steer_the_terminal() -> None:
    said = ConnectionClosedError(Close(1008, "go\x1b[2J\naway"), None)
    assert reason(said, HOST, False) == "it ended the connection: go\\x1b[2J\\naway"


@pytest.mark.parametrize("version", [LATEST_2, LATEST_3])
def test_a_certificate_that_is_refused_is_told_in_each_version_of_tls(
    ends: Ends, tmp_path: Path, capsys: pytest.CaptureFixture[str], version: ssl.TLSVersion
) -> None:
    """asyncio by itself would end the connection before the alert that says so is sent."""
    port = ends.websocket(limited(ends.checking(), maximum_version=version))
    ends.authority.issue(tmp_path, "client", days=-1)
    assert told(port, ends.training(), capsys) == (
        "it refuses client.crt, which has expired; put a new one into tls_path."
    )


@pytest.mark.parametrize("missing", ["client.key", "client.crt", "ca.crt"])
def test_what_is_missing_is_told_before_training(ends: Ends, tmp_path: Path, missing: str) -> None:
    (tmp_path / missing).unlink()
    with pytest.raises(ConfigError) as raised:
        ends.training()
    assert str(raised.value) == f"tls_path {tmp_path} has no {missing}; put it there, or name another folder."


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.EHOSTUNREACH, "Connect call failed"), "no way leads to that machine"),
        (OSError(errno.ETIMEDOUT, "Connect call failed"), "it does not answer"),
        (asyncio.TimeoutError(), "it does not answer"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
    ],
)
def test_what_no_test_can_make_happen(error: Exception, sentence: str) -> None:
    assert reason(error, HOST, is_tls=False).partition(";")[0] == sentence
