"""Which keys and certificates each side shows, whom it trusts, and where plain text is allowed."""

from __future__ import annotations

import contextlib
import getpass
import ipaddress
import os
import ssl
import stat
import sys
from pathlib import Path
from typing import Any

from msprobe.errors import ConfigError
from msprobe.log import logger

PLAIN_ALLOWED = "MSPROBE_ONLINE_PLAIN"

_TRUSTED = "ca.crt"
_REVOKED = "crl.pem"


class _Handshake(ssl.SSLObject):
    """One that fails tells the other side why before it ends."""

    outgoing: ssl.MemoryBIO
    _failed: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failed is not None:
            raise self._failed
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if not self.outgoing.pending:
                raise
            # asyncio would end the connection before the alert is sent; whoever seems to wait sends it
            self._failed = error
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the alert is sent first") from error


class _Outspoken(ssl.SSLContext):
    """Makes such handshakes."""

    sslobject_class = _Handshake

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **keys: Any) -> Any:
        made = super().wrap_bio(incoming, outgoing, *more, **keys)
        assert isinstance(made, _Handshake)
        made.outgoing = outgoing
        return made


def checking_side(tls_path: str, host: str) -> ssl.SSLContext | None:
    """What the server listens with; None: plain text."""
    if not tls_path:
        _must_be_allowed(host)
        return None
    context = _filled(_Outspoken(ssl.PROTOCOL_TLS_SERVER), Path(tls_path), "server")
    _must_convince(context, Path(tls_path))
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def training_side(tls_path: str, host: str) -> ssl.SSLContext | None:
    """What a client connects with; None: plain text. The server's certificate must name its address."""
    if not tls_path:
        _must_be_allowed(host)
        return None
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), Path(tls_path), "client")


def _filled(context: ssl.SSLContext, folder: Path, side: str) -> ssl.SSLContext:
    key, certificate = folder / f"{side}.key", folder / f"{side}.crt"
    for path in (key, certificate, folder / _TRUSTED):
        if not path.is_file():
            raise ConfigError(f"tls_path {folder} has no {path.name}; put it there, or name another folder.")
    if key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        logger().warning("%s can be read by others than its owner; chmod 600 would keep it secret.", key)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: _password(key))
        context.load_verify_locations(folder / _TRUSTED)
        if (folder / _REVOKED).is_file():
            context.load_verify_locations(folder / _REVOKED)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"The keys and certificates in tls_path {folder} cannot be used: {_reason(error, side)}."
        ) from None
    return context


def _must_convince(context: ssl.SSLContext, folder: Path) -> None:
    """What every client would refuse, as one that has expired, is told before anybody comes.

    Not the address that it names: clients may know this machine by another one.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(folder / _TRUSTED)
    client.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True))
    try:
        for end in 2 * ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{folder / 'server.crt'} would be refused by everybody: {error.verify_message.rstrip('.')}."
        ) from None


def _password(key: Path) -> str:
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{key} is encrypted, and there is no terminal to ask for its password; start it from one, or "
            "use a key without a password that only its owner can read."
        )
    return getpass.getpass(f"Password of {key}: ")


def _reason(error: OSError, side: str) -> str:
    if isinstance(error, ssl.SSLError) and not error.reason:  # all that the library says is "PEM lib"
        return f"{side}.key or {side}.crt is not in PEM format"
    return str(getattr(error, "reason", None) or error.strerror or error).replace("_", " ").lower()


def _must_be_allowed(host: str) -> None:
    if ipaddress.ip_address(host).is_loopback:
        return
    if os.environ.get(PLAIN_ALLOWED) != "1":
        raise ConfigError(
            f"tls_path is not set, so calls would go over the network to {host} in plain text; set it, or "
            f"set {PLAIN_ALLOWED}=1 in the environment of both sides if everybody on that network may read "
            "them and send their own."
        )
    logger().warning("No tls_path: calls to %s are neither encrypted nor is their sender known.", host)
