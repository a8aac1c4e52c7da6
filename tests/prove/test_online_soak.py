"""Online check, bounded by count: 2 ranks, 20 000 calls, three kills of the checker and two of a client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from online_case import (
    TESTS,
    Checker,
    Client,
    environment,
    free_port,
    memory_of_session,
    processes_of,
    results,
    sockets_of,
    wait_until,
)
from online_client import expected

pytest.importorskip("torch")
pytest.importorskip("websockets")

CALLS = 10_000  # of each rank, in the process that lives to the end
KILLED_AFTER = 500  # acknowledgements: where a client is killed
WARM = 1000  # results after which the memory of a life is measured first
GROWTH = 32 << 20


class Soak:
    """One check with all of its processes."""

    def __init__(self, folder: Path, way: str) -> None:
        self._folder = folder
        self.port = free_port()
        self.shared = folder / "shared"
        self.shared.mkdir()
        self._where = {"nfs_path": str(self.shared)} if way == "folder" else {"port": self.port}
        host = {} if way == "folder" else {"host": "127.0.0.1"}
        self.checker = Checker(folder, rank_list=[0, 1], **self._where, **host)
        self.clients: list[Client] = []

    def begin(self, rank: int) -> Client:
        self.clients.append(Client(self._folder, len(self.clients), rank, CALLS, **self._where))
        return self.clients[-1]

    def kill_client(self, rank: int) -> int:
        """How many of its calls were acknowledged before."""
        doomed = self.begin(rank)
        wait_until(lambda: doomed.settled() >= KILLED_AFTER, "acknowledgements")
        doomed.kill()
        return doomed.settled()

    def kill_checker(self, rows: int) -> int:
        """When so many results are written; by how many bytes it and its worker grew in this life."""
        self._wait_for(min(self.written() + WARM, rows))
        before = memory_of_session(self.checker.process.pid)
        self._wait_for(rows)
        grown = memory_of_session(self.checker.process.pid) - before
        self.checker.kill()
        assert processes_of(self.checker.sessions) == []
        self.checker.start().ready()
        return grown

    def _wait_for(self, rows: int) -> None:
        wait_until(lambda: self.written() >= rows or self.checker.process.poll() is not None, "rows")
        assert self.checker.process.poll() is None, self.checker.log

    def written(self) -> int:
        paths = [path for rank in (0, 1) for path in self.checker.tables(rank)]
        return sum(path.read_bytes().count(b"\n") - 1 for path in paths)

    def close(self) -> None:
        self.checker.close()
        for client in self.clients:
            client.close()


@pytest.mark.prove
@pytest.mark.spec("C103", "PT")
@pytest.mark.parametrize("way", ["network", "folder"])
def test_soak(tmp_path: Path, way: str) -> None:
    soak = Soak(tmp_path, way)
    try:
        soak.checker.start().ready()
        acknowledged = [soak.kill_client(rank) for rank in (0, 1)]
        living = [soak.begin(rank) for rank in (0, 1)]
        grown = [soak.kill_checker(part * CALLS // 2) for part in (1, 2, 3)]
        for client in living:
            assert client.ended() == {"settled": CALLS, "dropped": 0, "refused": "", "ended": True}
        assert soak.checker.ended() == 1, soak.checker.log
    finally:
        soak.close()
    doomed = []
    for rank in (0, 1):
        first, second = (results(path) for path in soak.checker.tables(rank))
        assert second == expected(CALLS)
        assert first == expected(len(first))
        assert len(first) >= acknowledged[rank]
        doomed.append(len(first))
    assert max(grown) < GROWTH
    print(f"acknowledged {acknowledged}, written {doomed}, grown {grown}")
    assert processes_of([*soak.checker.sessions, *(client.process.pid for client in soak.clients)]) == []
    assert sockets_of(soak.port) == []
    assert soak.checker.leftovers() == []
    assert [path.name for path in soak.shared.iterdir() if path.name != ".checker.lock"] == []


@pytest.mark.prove
@pytest.mark.parametrize(
    ("net", "named"), [("transformer", "Functional.linear.2"), ("conv", "Functional.linear.0")]
)
@pytest.mark.parametrize("fault", [True, False])
def test_the_example_names_the_wrong_linear(tmp_path: Path, net: str, named: str, fault: bool) -> None:
    script = TESTS.parent / "examples" / "online_check.py"
    words = [sys.executable, str(script), net, "--out", str(tmp_path), *["--fault"][: int(fault)]]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    assert done.returncode == int(fault), done.stderr
    (table,) = tmp_path.glob("accuracy_checking_result_*_rank0.csv")
    assert {row[0] for row in results(table) if "error" in row} == ({named} if fault else set())
