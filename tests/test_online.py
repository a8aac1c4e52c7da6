"""Online check between real processes: both ways, deaths of both sides, strangers, a real training."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from msprobe.cli.main import main as msprobe
from msprobe.online.message import Greeting, call_message, greeting_line
from msprobe.online.transport import LATER, NOT_WANTED, PROTOCOL
from msprobe.report.precheck_csv import DETAIL_COLUMNS, RESULT_COLUMNS
from online_case import (
    PATIENCE,
    TESTS,
    Authority,
    Checker,
    Client,
    environment,
    first_to_die,
    free_port,
    memory_of,
    processes_of,
    results,
    sockets_of,
    wait_until,
)
from online_client import call, expected

pytest.importorskip("torch")
websockets = pytest.importorskip("websockets")
from websockets.sync.client import connect  # noqa: E402

RUN = "0123456789abcdef" * 2
LONG = 600.0


class Case:
    """Starts the sides of one test and ends them with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._ends: list[Callable[[], None]] = []
        self._clients = 0

    def shared(self) -> str:
        (self.folder / "shared").mkdir(exist_ok=True)
        return str(self.folder / "shared")

    def checker(self, **section: Any) -> Checker:
        made = Checker(self.folder, **section)
        self.at_end(made.close)
        return made

    def listening(self, quick: float = 0.0, **section: Any) -> Checker:
        return self.checker(host="127.0.0.1", port=self.port, **section).start(quick).ready()

    def client(self, rank: int, count: int, **how: Any) -> Client:
        self._clients += 1
        where = {} if "nfs_path" in how else {"port": self.port}
        made = Client(self.folder, self._clients, rank, count, **where, **how)
        self.at_end(made.close)
        return made

    def keys(self, authority: Authority, name: str = "keys") -> str:
        for side in ("server", "client"):
            authority.issue(self.folder / name, side)
        return str(self.folder / name)

    def at_end(self, end: Callable[[], None]) -> None:
        self._ends.append(end)

    def close(self) -> None:
        for end in self._ends:
            end()


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.close()


def one_result(checker: Checker, rank: int) -> list[tuple[str, str, str]]:
    (path,) = checker.tables(rank)
    return results(path)


def must_have_vanished(checker: Checker, port: int) -> None:
    assert processes_of(checker.sessions) == []
    assert sockets_of(port) == []
    assert checker.leftovers() == []


def header(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig").splitlines()[0]


# ---- the ways ----


@pytest.mark.spec("C099", "PT")
@pytest.mark.spec("C101", "PT")
@pytest.mark.spec("C102", "PT")
@pytest.mark.spec("C103", "PT")
def test_two_ranks_over_loopback(case: Case) -> None:
    checker = case.listening(rank_list=[0, 1])
    assert [line.partition(" ")[0] for line in sockets_of(case.port)] == [f"0100007F:{case.port:04X}"]
    assert first_to_die(checker.process.pid) == [False, True]  # the checker and its worker
    clients = [case.client(rank, 60 + rank, gradients=True) for rank in (0, 1)]
    for rank, client in enumerate(clients):
        assert client.ended() == {"settled": 120 + 2 * rank, "dropped": 0, "refused": "", "ended": True}
    assert checker.ended() == 1, checker.log  # there is an error
    for rank in (0, 1):
        assert one_result(checker, rank) == expected(60 + rank, gradients=True)
        places = [row[0] for row in checker.rows(rank, "details")]
        assert places[:2] == ["Torch.abs.0.forward.output.0", "Torch.abs.0.backward.output.0"]
        assert len(places) == 120 + 2 * rank
        assert header(checker.tables(rank)[0]) == ",".join(RESULT_COLUMNS)
        assert header(checker.tables(rank, "details")[0]) == ",".join(DETAIL_COLUMNS)
    assert "Online check on the CPU of this machine" in checker.log
    assert "rank 0, step 0: Torch.abs.49.forward.output.0: " in checker.log
    must_have_vanished(checker, case.port)


@pytest.mark.spec("C085", "PT")
@pytest.mark.spec("C100", "PT")
def test_through_a_folder_and_a_checker_that_comes_later(case: Case) -> None:
    """host and port are set too, and have no effect."""
    shared = case.shared()
    assert case.client(0, 60, nfs_path=shared, gradients=True).ended()["settled"] == 120
    (folder,) = (path for path in Path(shared).iterdir() if path.is_dir())
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    checker = case.checker(nfs_path=shared, host="127.0.0.1", port=case.port).start().ready()
    assert sockets_of(case.port) == []
    assert checker.ended() == 1, checker.log
    assert one_result(checker, 0) == expected(60, gradients=True)
    assert [path.name for path in Path(shared).iterdir()] == [".checker.lock"]
    must_have_vanished(checker, case.port)


REFUSALS = (
    "ca.crt in tls_path has not signed its server.crt (self-signed certificate in certificate chain); put "
    "the ca.crt of its authority there.",
    "it refuses client.crt, which its ca.crt has not signed; put one into tls_path that is signed by the "
    "same authority.",
    "it refuses client.crt, which was revoked by its crl.pem; put a new one into tls_path.",
    "it refuses client.crt, which has expired; put a new one into tls_path.",
    "it ended the connection at once, as a checker with a tls_path does, or one that has as many connections "
    "as it takes; set tls_path on both sides or on none.",
)


def test_only_who_shows_a_trusted_certificate_is_heard(case: Case) -> None:
    authority = Authority()
    keys = case.keys(authority)
    revoked = case.folder / "revoked"
    authority.revoke(Path(keys), authority.issue(revoked, "client"))
    checker = case.listening(LONG, tls_path=keys)
    (Path(keys) / "crl.pem").unlink()  # the checker has read it
    stranger = case.keys(Authority("stranger"), "stranger")
    (Path(stranger) / "ca.crt").write_bytes((Path(keys) / "ca.crt").read_bytes())
    wary = case.keys(Authority("elsewhere"), "wary")  # who does not know the checker's authority
    authority.issue(case.folder / "old", "client", days=-1)
    folders = (wary, stranger, str(revoked), str(case.folder / "old"), "")
    refused = [case.client(0, 5, tls_path=path, still=1.0) for path in folders]
    assert answer(case.port, None) == b""
    assert answer(case.port, keys).startswith(b"HTTP/1.1 ")  # the same, with a certificate
    for client in refused:
        assert client.ended() == {"settled": 0, "dropped": 5, "refused": "", "ended": True}
    for client, reason in zip(refused, REFUSALS, strict=True):
        where = f"the online check at 127.0.0.1:{case.port} cannot be reached and is tried again"
        assert f"{where}: {reason}\n" in client.log
        assert client.log.count(" cannot be reached ") == 1
    assert checker.tables(0) == []
    assert case.client(0, 60, tls_path=keys).ended()["settled"] == 60
    assert checker.ended() == 1, checker.log
    assert one_result(checker, 0) == expected(60)
    assert "Traceback" not in checker.log
    must_have_vanished(checker, case.port)


def answer(port: int, keys: str | None) -> bytes:
    """What somebody hears who believes any checker, and shows a certificate or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if keys is not None:
        context.load_cert_chain(f"{keys}/client.crt", f"{keys}/client.key")
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 30) as plain,
            context.wrap_socket(plain) as talk,
        ):
            talk.sendall(b"GET / HTTP/1.1\r\n\r\n")
            return talk.recv(1000)
    except (ssl.SSLError, ConnectionResetError):
        return b""


def test_plain_text_goes_to_no_other_machine(case: Case) -> None:
    checker = case.checker(host="192.0.2.7", port=case.port).start()
    assert checker.ended() == 2
    assert "over the network to 192.0.2.7 in plain text" in checker.log


@pytest.mark.parametrize(
    "words", [["-api_info", "dump.json"], ["-csv_path", "result.csv"], ["-save_error_data"], ["-f"]]
)
def test_what_needs_a_recording_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    section = {"is_online": True, "host": "127.0.0.1", "port": 9}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "run_ut", "dump_path": str(tmp_path), "run_ut": section}))
    assert msprobe(["-f", "pytorch", "run_ut", "-config", str(config), *words]) == 2
    said = capsys.readouterr().err
    assert f"{words[0]} cannot be used; set is_online to false to check a recording." in said


# ---- ranks ----


@pytest.mark.spec("C103", "PT")
@pytest.mark.spec("C104", "PT")
def test_ranks_that_are_not_listed_that_vanish_and_that_never_come(case: Case) -> None:
    checker = case.listening(1.0, rank_list=[1, 2, 7])
    assert case.client(0, 5).ended()["refused"] == "rank 0 is not in rank_list [1, 2, 7] of the checker"
    doomed = case.client(1, 100_000, pause=0.5)
    wait_until(lambda: doomed.settled() >= 1, "acknowledgements")
    assert case.client(2, 5).ended()["settled"] == 5
    doomed.kill()
    assert checker.ended() == 0, checker.log
    assert checker.tables(0) == []
    assert one_result(checker, 2) == expected(5)
    assert (one_result(checker, 7), checker.rows(7, "details")) == ([], [])
    assert "its process ended without saying so" in checker.log


# ---- kills ----


def test_each_side_is_killed_and_comes_back(case: Case) -> None:
    checker = case.listening(LONG)
    doomed = case.client(0, 100_000, pause=0.002)
    wait_until(lambda: doomed.settled() >= 50, "acknowledgements")
    doomed.kill()
    acknowledged = doomed.settled()
    client = case.client(0, 200, pause=0.01)
    wait_until(lambda: client.settled() >= 30, "acknowledgements")
    checker.kill()
    assert processes_of(checker.sessions) == []
    checker.start(LONG).ready()
    assert client.ended()["settled"] == 200
    assert checker.ended() == 1, checker.log
    first, second = (results(path) for path in checker.tables(0))
    assert second == expected(200)
    assert first == expected(len(first)) and len(first) >= acknowledged
    must_have_vanished(checker, case.port)


def test_without_a_checker_calls_are_dropped_and_told(case: Case) -> None:
    client = case.client(0, 50, patience=0.01, most=10, still=0.5)
    gone = case.client(0, 50, nfs_path=str(case.folder / "gone"), patience=0.01, most=10, still=0.5)
    for one in (client, gone):
        assert one.ended() == {"settled": 0, "dropped": 50, "refused": "", "ended": True}
        assert one.log.count("is the first call that is not checked") == 1
        assert "0 records taken, 50 dropped and not checked" in one.log
        assert "training waited for it 1 time." in one.log
    assert gone.log.count("which is tried again: No such file or directory") == 1
    assert not (case.folder / "gone").exists()


# ---- strangers and liars ----


def knock(port: int, more: str = "") -> socket.socket:
    """Ask for a websocket by hand."""
    made = socket.create_connection(("127.0.0.1", port), 30)
    made.sendall(
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: {PROTOCOL}\r\n{more}\r\n".encode()
    )
    return made


def handshake(port: int) -> socket.socket:
    """A websocket."""
    made = knock(port)
    heard = b""
    while not heard.endswith(b"\r\n\r\n"):
        heard += made.recv(1)
    assert heard.startswith(b"HTTP/1.1 101"), heard
    return made


def frame(opcode: int, content: bytes, announced: int | None = None) -> bytes:
    length = len(content) if announced is None else announced
    return struct.pack(">BBQ", 0x80 | opcode, 0xFF, length) + b"\0\0\0\0" + content


def rest(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    found = b""
    try:
        while some := connection.recv(1 << 16):
            found += some
    except ConnectionResetError:
        pass
    return found


def lying(port: int, rank: int, *messages: Any) -> tuple[int, str]:
    """How the connection of somebody who greets and then sends these is ended."""
    with connect(f"ws://127.0.0.1:{port}/", subprotocols=[PROTOCOL], compression=None) as talk:
        talk.send(greeting_line(Greeting(RUN, rank)))
        try:
            for message in messages:
                talk.send(message)
            while True:
                talk.recv(PATIENCE)
        except websockets.ConnectionClosed as error:
            assert error.rcvd is not None
            return error.rcvd.code, error.rcvd.reason


def message(number: int, **wrong: Any) -> bytes:
    """A call; `wrong`: what is not as it should be."""
    record, tensors = call(number)
    if "shape" in wrong:
        leaf = record.fields["output"][0]._replace(shape=wrong["shape"])
        record = record._replace(fields={**record.fields, "output": [leaf]})
    sequence = wrong.get("sequence", number + 1)
    return b"".join(bytes(chunk) for chunk in call_message(sequence, 0, record, tensors))


TEXT, BINARY = 1, 2


def test_strangers_and_liars_harm_nobody(case: Case) -> None:
    checker = case.listening(LONG, rank_list=[0, 1])
    before = memory_of(checker.process.pid)
    honest = case.client(0, 60, pause=0.1)  # is there all the time
    wait_until(lambda: honest.settled() >= 1, "acknowledgements")
    assert lying(case.port, 0) == (LATER, "another process of rank 0 is checked now")

    with socket.create_connection(("127.0.0.1", case.port), 30) as garbage:
        garbage.sendall(os.urandom(4096) + b"\r\n\r\n")
        assert b"101 Switching" not in rest(garbage)
    with knock(case.port, "Origin: http://example.com\r\n") as page:
        assert rest(page).startswith(b"HTTP/1.1 403")
    with knock(case.port) as hasty:
        hasty.sendall(frame(BINARY, b"x" * 1000, announced=10 << 30))  # without waiting for an answer
        assert b"welcome" not in rest(hasty)
    with handshake(case.port) as huge:
        huge.sendall(frame(BINARY, b"", announced=10 << 30))
        assert struct.pack(">H", 1009) in rest(huge)  # message too big
    with handshake(case.port) as broad:
        broad.sendall(frame(BINARY, b"", announced=2 << 20))
        assert struct.pack(">H", 1009) in rest(broad)  # frame too big
    with handshake(case.port) as talkative:  # a greeting that never ends
        talkative.sendall(frame(TEXT, b" " * (1 << 17))[:1].replace(b"\x81", b"\x01"))
        talkative.sendall(frame(TEXT, b" " * (1 << 17))[1:])
        assert b"it did not greet" in rest(talkative)
    with handshake(case.port) as mute:
        mute.sendall(frame(TEXT, b'{"greeting": 1}'))
        assert b"does not say who greets" in rest(mute)
    lies = {
        "a message announces a header": b"\x80\x04cos\nsystem\n(S'false'\ntR.",
        "a message has no number where one belongs": message(0, sequence=-1),
        "a message holds a tensor that cannot be": message(0, shape=(1 << 40,)),
        "does not say farewell": '{"welcome": 1}',
    }
    for reason, lie in lies.items():
        code, told = lying(case.port, 1, lie)
        assert (code, told[: len(reason)]) == (NOT_WANTED, reason)
    assert lying(case.port, 9) == (NOT_WANTED, "rank 9 is not in rank_list [0, 1] of the checker")
    vanishing = handshake(case.port)
    vanishing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    vanishing.sendall(frame(TEXT, greeting_line(Greeting(RUN, 1)).encode()))
    vanishing.sendall(frame(BINARY, b"x" * 1000, announced=1 << 20))
    vanishing.close()
    stalling = handshake(case.port)
    stalling.sendall(frame(TEXT, greeting_line(Greeting(RUN, 1)).encode()))
    stalling.sendall(frame(BINARY, b"x" * 1000, announced=1 << 20))

    assert honest.ended() == {"settled": 60, "dropped": 0, "refused": "", "ended": True}
    assert memory_of(checker.process.pid) - before < 64 << 20
    stalling.close()
    assert case.client(1, 60).ended()["settled"] == 60
    assert checker.ended() == 1, checker.log
    assert one_result(checker, 0) == expected(60)
    assert [results(path) for path in checker.tables(1)] == [[], expected(60)]
    assert "Traceback" not in checker.log
    must_have_vanished(checker, case.port)


# ---- a real training ----


def begin_training(case: Case, ranks: int, *words: str, **section: Any) -> Callable[[], list[str]]:
    """Waits for what each rank printed, and then what it logged."""
    config = {
        "task": "tensor",
        "level": "L1",
        "dump_path": str(case.folder / "dump"),
        "rm_dropout": False,
        "tensor": {"online_run_ut": True, **section},
    }
    place = Path(tempfile.mkdtemp(dir=case.folder))
    path, store = place / "training.json", place / "store"
    path.write_text(json.dumps(config))
    processes = [
        subprocess.Popen(
            [sys.executable, str(TESTS / "online_train.py"), *map(str, (path, rank, ranks, store)), *words],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        case.at_end(process.kill)

    def ended() -> list[str]:
        said = [process.communicate(timeout=PATIENCE) for process in processes]
        assert [process.returncode for process in processes] == [0] * ranks, said
        return [out for out, _ in said] + [log for _, log in said]

    return ended


@pytest.mark.spec("C084", "PT")
@pytest.mark.spec("C086", "PT")
@pytest.mark.spec("C087", "PT")
@pytest.mark.spec("C088", "PT")
@pytest.mark.spec("C103", "PT")
def test_a_wrong_linear_is_named_while_two_ranks_train(case: Case) -> None:
    keys = case.keys(Authority())
    checker = case.listening(rank_list=[0, 1], tls_path=keys, black_list=["gelu"])
    where = {"host": "127.0.0.1", "port": case.port, "tls_path": keys}
    logs = begin_training(case, 2, "fault", **where)()[2:]
    assert checker.ended() == 1, checker.log
    assert not (case.folder / "dump").exists()
    for rank, log in enumerate(logs):
        rows = checker.rows(rank)
        verdicts = [tuple(row[:3]) for row in rows]
        assert {verdict for verdict in verdicts if "pass" not in verdict} == {
            ("Functional.linear.2", "error", " "),
            ("Functional.gelu.0", "SKIP", " "),
            ("Functional.gelu.0", " ", "SKIP"),
        }
        assert {("Torch.matmul.0", "pass", " "), ("Torch.matmul.0", " ", "pass")} <= set(verdicts)
        assert {row[3][:7] for row in rows} == {"Step 0.", "Step 1."}
        reasons = {row[3].partition(". ")[2] for row in rows if row[0] == "Functional.gelu.0"}
        assert reasons == {"API gelu in black list or not in white list. SKIP."}
        assert f"{len(rows)} records taken, none dropped" in log
    must_have_vanished(checker, case.port)


@pytest.mark.spec("C085", "PT")
@pytest.mark.spec("C100", "PT")
def test_nothing_is_named_where_nothing_is_wrong(case: Case) -> None:
    """Through a folder; and with nobody at all at the other end."""
    shared = case.shared()
    trainings = [
        begin_training(case, 1, nfs_path=shared),
        begin_training(case, 1, host="127.0.0.1", port=case.port),
        begin_training(case, 1, "unwatched"),
    ]
    checker = case.checker(nfs_path=shared, white_list=["linear", "layer_norm"]).start()
    (watched, log), (alone, told), (unwatched, _) = (ended() for ended in trainings)
    assert checker.ended() == 0, checker.log
    rows = checker.rows(0)
    assert f"{len(rows)} records taken, none dropped" in log
    judged = {(row[0].split(".")[1], row[1], row[2]) for row in rows if "SKIP" not in row}
    assert judged == {
        (api, *sides) for api in ("linear", "layer_norm") for sides in (("pass", " "), (" ", "pass"))
    }
    assert "0 records taken" in told
    assert unwatched == watched == alone
