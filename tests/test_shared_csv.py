"""A csv file that several processes append to."""

import csv
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from msprobe.store.run import Run
from msprobe.store.shared_csv import SharedCsv


def rows(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_a_header_and_rows(tmp_path: Path) -> None:
    table = SharedCsv(tmp_path / "new" / "t.csv", ("a", "b"))
    table.append()
    table.append([(1, "(2, 3)"), (4, None)])
    SharedCsv(table.path, ("a", "b")).append([(5, 6)])
    assert rows(table.path) == [["a", "b"], ["1", "(2, 3)"], ["4", ""], ["5", "6"]]
    assert stat.S_IMODE(table.path.stat().st_mode) == 0o640


def test_half_a_line_of_a_process_that_died_is_cut_off(tmp_path: Path) -> None:
    table = SharedCsv(tmp_path / "t.csv", ("a", "b"))
    table.append([(1, 2)])
    with open(table.path, "ab") as file:
        file.write(b"3,")
    table.append([(4, 5)])
    assert rows(table.path) == [["a", "b"], ["1", "2"], ["4", "5"]]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        SharedCsv(tmp_path / "t.csv", ("a",)).append([(1,)])
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full disk")
def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        SharedCsv(Path("/dev/full"), ("a",)).append([(1,)])


def write(path: Path, number: int) -> None:
    table = SharedCsv(path, ("process", "line", "text"))
    for line in range(200):
        table.append([(number, line, "x" * (line % 97))])


def test_processes_do_not_break_each_others_lines(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("fork")
    processes = [context.Process(target=write, args=(tmp_path / "t.csv", number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seen = rows(tmp_path / "t.csv")
    assert seen[0] == ["process", "line", "text"]
    expected = [[str(p), str(line), "x" * (line % 97)] for p in range(4) for line in range(200)]
    assert sorted(seen[1:]) == sorted(expected)


def test_the_table_of_an_older_run_is_moved_aside_and_that_of_another_rank_is_not(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("old\n")
    first, second = Run(tmp_path), Run(tmp_path)
    path = first.share("t.csv", 0)
    assert not path.exists()
    SharedCsv(path, ("a",)).append([(1,)])
    assert second.share("t.csv", 1) == path
    assert rows(path) == [["a"], ["1"]]
    assert [old.read_text() for old in (tmp_path / "previous").rglob("t.csv")] == ["old\n"]
    first.close()
    second.close()
