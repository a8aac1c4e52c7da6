"""Both sides of an online check as real processes, their certificates, and what they leave behind."""

from __future__ import annotations

import csv
import datetime
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msprobe

TESTS = Path(__file__).resolve().parent
SOURCE = Path(msprobe.__file__).resolve().parent.parent
_COMMAND = (sys.executable, "-m", "msprobe", "-f", "pytorch", "run_ut")
_QUICK = (sys.executable, str(TESTS / "online_checker.py"))
PATIENCE = 300.0  # seconds after which a test has hung


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(SOURCE), str(TESTS)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def wait_until(what: Any, why: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, f"it never came: {why}"
        time.sleep(0.02)


# ---- the checking side ----


class Checker:
    """`msprobe -f pytorch run_ut -config ...` in a session of its own."""

    def __init__(self, folder: Path, **section: Any) -> None:
        self.folder = folder
        self.out = folder / "out"
        self._config = folder / "checker.json"
        self._config.write_text(
            json.dumps({"task": "run_ut", "dump_path": str(folder), "run_ut": {"is_online": True, **section}})
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.sessions: list[int] = []

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return (self.folder / f"checker{self._starts}.log").read_text(errors="replace")

    def start(self, quick: float = 0.0) -> Checker:
        """`quick`: without a framework, and ranks that are not there are waited for for so many seconds."""
        self._starts += 1
        command = [*_COMMAND, "-config", str(self._config), "-o", str(self.out)]
        if quick:
            command = [*_QUICK, str(self._config), str(self.out), str(quick)]
        with (self.folder / f"checker{self._starts}.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment(),
                start_new_session=True,
            )
        self.sessions.append(self.process.pid)
        return self

    def ready(self) -> Checker:
        wait_until(lambda: "Waiting for calls" in self.log or self.process.poll() is not None, "readiness")
        assert self.process.poll() is None, self.log
        return self

    def ended(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def tables(self, rank: int, kind: str = "result") -> list[Path]:
        return sorted(self.out.glob(f"accuracy_checking_{kind}_*_rank{rank}.csv"))

    def rows(self, rank: int, kind: str = "result") -> list[list[str]]:
        """Of the one table of a rank, without its header."""
        (path,) = self.tables(rank, kind)
        return read_rows(path)

    def leftovers(self) -> list[str]:
        """Files that only a running check has."""
        return sorted(path.name for path in self.out.glob(".online*") if path.name != ".online.lock")


def results(path: Path) -> list[tuple[str, str, str]]:
    """Name and verdicts of each row, without its message."""
    return [(row[0], row[1], row[2]) for row in read_rows(path)]


def read_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.reader(stream))[1:]


def processes_of(sessions: list[int]) -> list[str]:
    """What still runs of these sessions; a dead process gets a moment to vanish."""
    deadline = time.monotonic() + 10
    while True:
        found = [line for session in sessions for line in _members(session)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _members(session: int) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue
        state, _parent, _group, own = text.rpartition(")")[2].split()[:4]
        if int(own) == session and state != "Z":
            found.append(text)
    return found


def first_to_die(session: int) -> list[bool]:
    """Of each process of a session whether the system ends it before others if memory runs out."""
    found = [Path(f"/proc/{line.split()[0]}/oom_score_adj").read_text() for line in _members(session)]
    return sorted(score.strip() == "1000" for score in found)


def sockets_of(port: int) -> list[str]:
    """Listening and open connections of a port, on either side."""
    states = {"01": "open", "0A": "listening", "08": "half closed"}
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if f"{port:04X}" in (words[1].rpartition(":")[2], words[2].rpartition(":")[2]) and words[3] in states:
            found.append(f"{words[1]} {words[2]} {states[words[3]]}")
    return found


def memory_of_session(session: int) -> int:
    """The same of a process that leads a session, and of all that it started."""
    return sum(memory_of(int(line.split()[0])) for line in _members(session))


def memory_of(process: int) -> int:
    """Bytes of its own that a process has in memory."""
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"RssAnon:\s*(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


# ---- the training side without a framework ----


class Client:
    """`online_client.py`: sends calls of abs, and notes how many were acknowledged."""

    def __init__(self, folder: Path, number: int, rank: int, count: int, **how: Any) -> None:
        self.notes = folder / f"client{number}.json"
        self._log = folder / f"client{number}.log"
        told = {"rank": rank, "count": count, "notes": str(self.notes), **how}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(TESTS / "online_client.py"), json.dumps(told)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment(),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def noted(self) -> dict[str, Any]:
        if not self.notes.exists():
            return {"settled": 0, "dropped": 0, "ended": False}
        noted: dict[str, Any] = json.loads(self.notes.read_text())
        return noted

    def settled(self) -> int:
        return int(self.noted["settled"])

    def ended(self) -> dict[str, Any]:
        try:
            assert self.process.wait(PATIENCE) == 0, self.log
        finally:
            self.close()
        return self.noted

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


# ---- certificates ----


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "authority") -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        self._x509, self._hashes, self._ec, self._oid = x509, hashes, ec, NameOID
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = self._named(name)
        self.certificate = self._signed(self._name, self._key, authority=True)

    def issue(
        self,
        folder: Path,
        side: str,
        *,
        days: int = 1,
        password: bytes | None = None,
        address: str = "127.0.0.1",
    ) -> Any:
        """{side}.key, {side}.crt and ca.crt in a folder; the certificate."""
        key = self._ec.generate_private_key(self._ec.SECP256R1())
        certificate = self._signed(self._named(side), key, days=days, address=address)
        folder.mkdir(exist_ok=True)
        write_key(folder / f"{side}.key", key, password)
        (folder / f"{side}.crt").write_bytes(_pem(certificate))
        (folder / "ca.crt").write_bytes(_pem(self.certificate))
        return certificate

    def revoke(self, folder: Path, certificate: Any) -> None:
        """crl.pem in a folder, which names a certificate."""
        now = datetime.datetime.now(datetime.timezone.utc)
        revoked = (
            self._x509.RevokedCertificateBuilder()
            .serial_number(certificate.serial_number)
            .revocation_date(now - datetime.timedelta(hours=1))
            .build()
        )
        builder = self._x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(now - datetime.timedelta(hours=1))
        builder = builder.next_update(now + datetime.timedelta(days=1)).add_revoked_certificate(revoked)
        (folder / "crl.pem").write_bytes(_pem(builder.sign(self._key, self._hashes.SHA256())))

    def _named(self, name: str) -> Any:
        return self._x509.Name([self._x509.NameAttribute(self._oid.COMMON_NAME, name)])

    def _signed(
        self, subject: Any, key: Any, *, authority: bool = False, days: int = 1, address: str = "127.0.0.1"
    ) -> Any:
        x509 = self._x509
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=2))
        builder = builder.not_valid_after(now + datetime.timedelta(days=days))
        named = x509.IPAddress(ipaddress.ip_address(address))
        builder = builder.add_extension(x509.BasicConstraints(authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([named]), critical=False)
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        if not authority:
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(issuer, critical=False)
        else:
            usage = {name: name in ("key_cert_sign", "crl_sign") for name in _USAGES}
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        return builder.sign(self._key, self._hashes.SHA256())


_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def write_key(path: Path, key: Any, password: bytes | None) -> None:
    from cryptography.hazmat.primitives import serialization

    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    path.chmod(0o600)


def _pem(thing: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = thing.public_bytes(serialization.Encoding.PEM)
    return pem
