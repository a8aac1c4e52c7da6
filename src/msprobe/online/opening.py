"""Opens a connection to the checker; where that fails, what is wrong and what to do about it, in words."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from types import MappingProxyType

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.typing import Subprotocol

from msprobe.online.blob import Malformed
from msprobe.online.message import LONGEST_LINE
from msprobe.online.transport import PROTOCOL, SETTINGS
from msprobe.screen import harmless

_IS_IT_THE_CHECKER = "see that host and port are those of the checker"
_BOTH_OR_NONE = "set tls_path on both sides or on none"
_OR_FULL = f"or one that has as many connections as it takes; {_BOTH_OR_NONE}"
_NO_TLS = f"it speaks no TLS; {_BOTH_OR_NONE}"
_NO_VERSION = "no version of TLS is allowed on both sides; TLS 1.2 is the least"
_SILENCE = MappingProxyType(  # whether this side speaks TLS: what an end without an answer is like
    {
        False: f"it ended the connection at once, as a checker with a tls_path does, {_OR_FULL}",
        True: f"it ended the connection at once, as a checker without tls_path does, {_OR_FULL}",
    }
)
_BUSY = 503  # the status of a checker that has as many connections as it takes

# What is wrong with the certificate of the checker, by the number that OpenSSL gives it.
_CERTIFICATES = MappingProxyType(
    {
        3: "crl.pem in tls_path is of another authority than the checker's server.crt; take the list of that "
        "authority, or remove it",
        9: "its server.crt is not valid yet; set the clocks of both machines right",
        10: "its server.crt has expired; make a new one, and start the checker again with it",
        12: "crl.pem in tls_path has expired; take a new list of its authority, or remove it",
        23: "crl.pem in tls_path says that its server.crt was revoked; make a new one, and start the checker "
        "again with it",
    }
)
_OTHER_ADDRESS = (62, 64)
# What the checker says before it ends a handshake.
_ALERTS = MappingProxyType(
    {
        "UNKNOWN_CA": "it refuses client.crt, which its ca.crt has not signed; put one into tls_path that is "
        "signed by the same authority",
        "CERTIFICATE_EXPIRED": "it refuses client.crt, which has expired; put a new one into tls_path",
        "CERTIFICATE_REVOKED": "it refuses client.crt, which was revoked by its crl.pem; put a new one into "
        "tls_path",
        "CERTIFICATE_REQUIRED": "it demands a certificate; put client.key and client.crt into tls_path",
        "PROTOCOL_VERSION": _NO_VERSION,
        "HANDSHAKE_FAILURE": "no cipher of TLS is allowed on both sides; set up OpenSSL alike on both",
    }
)
_ERRORS = MappingProxyType(
    {
        "WRONG_VERSION_NUMBER": _NO_TLS,
        "RECORD_LAYER_FAILURE": _NO_TLS,
        "PACKET_LENGTH_TOO_LONG": _NO_TLS,
        "UNEXPECTED_EOF_WHILE_READING": _SILENCE[True],
        "UNSUPPORTED_PROTOCOL": _NO_VERSION,
    }
)


class _Connection(ClientConnection):
    """Fails with the alert that ended it; the library knows only that no answer came."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if isinstance(exc, ssl.SSLError) and self.protocol.handshake_exc is not None:
            self.protocol.handshake_exc = exc


class _Connect(connect):
    """Goes nowhere else: who redirects is no checker."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


def opening(host: str, port: int, tls: ssl.SSLContext | None) -> connect:
    return _Connect(
        f"{'wss' if tls else 'ws'}://{host}:{port}/",
        ssl=tls,
        proxy=None,
        subprotocols=[Subprotocol(PROTOCOL)],
        user_agent_header=None,
        close_timeout=1,
        max_size=LONGEST_LINE,
        create_connection=_Connection,
        **SETTINGS,
    )


def reason(error: Exception, host: str, is_tls: bool) -> str:
    """Why a checker cannot be reached, or was lost."""
    if isinstance(error, Malformed):
        return f"what it answers {error}; use the same release of msprobe on both sides"
    if isinstance(error, ConnectionClosed):
        told = error.rcvd and (error.rcvd.reason or str(error.rcvd.code))
        return f"it ended the connection: {harmless(told)}" if told else "the connection was lost"
    if isinstance(error, InvalidHandshake):
        return _of_handshake(error, is_tls)
    if isinstance(error, ssl.SSLError):
        return _of_tls(error, host)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return f"it does not answer; {_IS_IT_THE_CHECKER}, and that no firewall is between"
    if isinstance(error, OSError):
        return _of_system(error, is_tls)
    return str(error) or type(error).__name__


def _of_handshake(error: InvalidHandshake, is_tls: bool) -> str:
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        if status == _BUSY:
            return "it has as many connections as it takes"
        return (
            f"what answers there is no checker of this release (HTTP status {status}); {_IS_IT_THE_CHECKER}, "
            "and use the same release of msprobe on both sides"
        )
    if isinstance(error, InvalidMessage) and isinstance(error.__cause__, EOFError):
        return _SILENCE[is_tls]
    return f"what answers there is no checker; {_IS_IT_THE_CHECKER}"


def _of_tls(error: ssl.SSLError, host: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_ADDRESS:
            return (
                f"its server.crt does not name {host}; make one with subjectAltName=IP:{host}, or set host "
                "to the address that it names"
            )
        return _CERTIFICATES.get(
            error.verify_code,
            "ca.crt in tls_path has not signed its server.crt "
            f"({error.verify_message}); put the ca.crt of its authority there",
        )
    name = error.reason or ""
    alert = name.partition("ALERT_")[2]
    if alert:
        return _ALERTS.get(alert, f"it refuses the TLS handshake: {alert.replace('_', ' ').lower()}")
    return _ERRORS.get(name, f"the TLS handshake failed: {name.replace('_', ' ').lower() or error}")


def _of_system(error: OSError, is_tls: bool) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens there; start the checker, and {_IS_IT_THE_CHECKER}"
    if isinstance(error, ConnectionResetError):
        return _SILENCE[is_tls]
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return f"no way leads to that machine; {_IS_IT_THE_CHECKER}, and that the network is up"
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
