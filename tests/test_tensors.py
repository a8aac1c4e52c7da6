"""The writer behind training: real files, real threads, real kills and real trouble with the disk."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from msprobe.store.tensor_file import TensorData, read
from msprobe.store.tensors import Contents, Folder, Stats, TensorWriter, file_name

KIB = 1 << 10


def floats(*values: float) -> TensorData:
    return TensorData(np.array(values, "f4").data, "float32", (len(values),))


def filler(size: int, first: float = 0.0) -> TensorData:
    """A tensor of `size` bytes."""
    numbers = np.arange(size // 4, dtype="f4")
    numbers[:1] = first
    return TensorData(numbers.data, "float32", (size // 4,))


def values(path: Path) -> list[float]:
    content: list[float] = read(path).array.tolist()
    return content


class Troubles:
    """Collects what a writer tells."""

    def __init__(self) -> None:
        self.told: list[tuple[str, BaseException]] = []

    def __call__(self, doing: str, problem: BaseException) -> None:
        self.told.append((doing, problem))


@pytest.fixture
def troubles() -> Troubles:
    return Troubles()


def everything(folder: Path) -> dict[str, list[float]]:
    return {path.name: values(path) for path in sorted(folder.iterdir())}


# ---- what lands on disk ----


def test_each_tensor_has_a_file_of_its_name(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path / "data", on_error=troubles)
    writer.put("Torch.add.0.forward.input.0", floats(1, 2))
    writer.put("Torch.add.0.forward.output.0", floats(3))
    writer.close()
    assert everything(tmp_path / "data") == {
        "Torch.add.0.forward.input.0.pt": [1, 2],
        "Torch.add.0.forward.output.0.pt": [3],
    }
    sizes = [path.stat().st_size for path in (tmp_path / "data").iterdir()]
    assert writer.stats == Stats(files=2, links=0, bytes_written=sum(sizes), missing=0)
    assert troubles.told == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, troubles: Troubles, umask: int) -> None:
    before = os.umask(umask)
    try:
        writer = TensorWriter(tmp_path / "data", on_error=troubles)
        writer.put("x", floats(1))
        writer.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "data" / "x.pt").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o750


def test_nothing_is_made_before_the_first_tensor(tmp_path: Path, troubles: Troubles) -> None:
    threads = threading.active_count()
    writer = TensorWriter(tmp_path / "data", on_error=troubles)
    writer.drain()
    assert (threading.active_count(), list(tmp_path.iterdir())) == (threads, [])
    writer.close()
    assert writer.stats == Stats()


def test_what_recurs_in_the_next_recording_is_linked(tmp_path: Path, troubles: Troubles) -> None:
    contents = Contents()
    frozen = filler(8 * KIB, 1)
    stats = []
    for step in range(4):
        folder = tmp_path / f"step{step}"
        writer = TensorWriter(folder, on_error=troubles, contents=contents)
        writer.put("weight", frozen)
        writer.put("x", floats(step))
        if step == 2:
            os.unlink(tmp_path / "step1" / "weight.pt")
        writer.close()
        stats.append((writer.stats.files, writer.stats.links))
        assert values(folder / "x.pt") == [step]
        assert values(folder / "weight.pt") == np.frombuffer(frozen.data, "f4").tolist()
    assert stats == [(2, 0), (1, 1), (1, 1), (1, 1)]  # the first step's file still has the content
    assert troubles.told == []


def test_a_file_that_somebody_changed_is_not_linked(tmp_path: Path, troubles: Troubles) -> None:
    contents = Contents()
    for step in range(2):
        writer = TensorWriter(tmp_path / f"{step}", on_error=troubles, contents=contents)
        writer.put("x", floats(1, 2))
        writer.close()
        if step == 0:
            (tmp_path / "0" / "x.pt").write_bytes(b"changed")
    assert values(tmp_path / "1" / "x.pt") == [1, 2]


def test_only_the_contents_of_the_last_recording_are_remembered(tmp_path: Path, troubles: Troubles) -> None:
    contents = Contents()
    for step, numbers in enumerate([(1, 2), (2, 3), (3, 1)]):
        writer = TensorWriter(tmp_path / f"{step}", on_error=troubles, contents=contents)
        for number in numbers:
            writer.put(f"x{number}", floats(number))
        writer.close()
        assert writer.stats.links == (1 if step else 0)


def test_drain_returns_when_all_is_on_disk(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles)
    for round_number in range(20):
        for i in range(10):
            writer.put(f"x.{round_number}.{i}", floats(round_number, i))
        writer.drain()
        assert len(list(tmp_path.iterdir())) == 10 * (round_number + 1)
        assert writer.waiting == 0 or writer.stats.files == 10 * (round_number + 1)
    writer.close()


def test_close_ends_the_thread(tmp_path: Path, troubles: Troubles) -> None:
    threads = threading.active_count()
    writer = TensorWriter(tmp_path, on_error=troubles)
    writer.put("x", floats(1))
    writer.close()
    assert threading.active_count() == threads
    writer.close()
    writer.drain()


def test_npy_files_for_mindspore(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, suffix=".npy", on_error=troubles)
    writer.put("Mint.add.0.forward.input.0", TensorData(b"\x80\x3f\x40\xc0", "bfloat16", (1, 2)))
    writer.close()
    stored = np.load(tmp_path / "Mint.add.0.forward.input.0.npy")
    np.testing.assert_array_equal(stored, np.array([[1, -3]], "f4"), strict=True)


def test_many_threads_may_put(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles, budget=64 * KIB)

    def work(number: int) -> None:
        for i in range(50):
            writer.put(f"x.{number}.{i}", filler(4 * KIB, number * 100 + i))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert {path.name: values(path)[0] for path in tmp_path.iterdir()} == {
        f"x.{number}.{i}.pt": number * 100 + i for number in range(8) for i in range(50)
    }


# ---- each distinct tensor once ----


def blocks(folder: Path) -> int:
    """The blocks in use, each file counted once however many names it has."""
    return sum({status.st_ino: status.st_blocks for status in map(os.stat, folder.iterdir())}.values())


def test_a_repeated_tensor_takes_no_space(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles)
    writer.put("first", filler(100 * KIB, 1))
    writer.drain()
    alone = blocks(tmp_path)
    for i in range(100):
        writer.put(f"again.{i}", filler(100 * KIB, 1))
        writer.link(f"linked.{i}", "first")
    writer.close()
    assert (writer.stats.files, writer.stats.links) == (1, 200)
    assert len({path.stat().st_ino for path in tmp_path.iterdir()}) == 1
    assert blocks(tmp_path) == alone
    assert all(values(path)[0] == 1 for path in tmp_path.iterdir())


def test_the_same_bytes_of_another_kind_are_another_tensor(tmp_path: Path, troubles: Troubles) -> None:
    tensors = {
        "a": TensorData(bytes(8), "float32", (2,)),
        "b": TensorData(bytes(8), "int32", (2,)),
        "c": TensorData(bytes(8), "float32", (1, 2)),
        "d": TensorData(bytes(8), "float64", (1,)),
        "e": TensorData(b"", "float32", (0,)),
        "f": TensorData(b"", "float32", (0, 5)),
    }
    writer = TensorWriter(tmp_path, on_error=troubles)
    for name, tensor in tensors.items():
        writer.put(name, tensor)
    writer.close()
    found = {name: torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in tensors}
    assert {name: (str(x.dtype)[6:], tuple(x.shape)) for name, x in found.items()} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()
    }


def test_names_that_come_again_have_their_last_tensor(tmp_path: Path, troubles: Troubles) -> None:
    """Whatever was written, linked and replaced before: a name never shows another name's content."""
    (tmp_path / "old.pt").write_bytes(b"from an earlier run")
    (tmp_path / "old2.pt").write_bytes(b"from an earlier run")
    writer = TensorWriter(tmp_path, on_error=troubles)
    writer.put("a", floats(1))
    writer.put("b", floats(1))  # a link to a
    writer.put("a", floats(2))  # b keeps the old content
    writer.put("c", floats(1))  # its first holder holds something else by now
    writer.put("a", floats(2))
    writer.put("b", floats(2))  # a link in place of a file
    writer.put("old", floats(3))
    writer.put("old2", floats(3))
    writer.link("d", "a")
    writer.link("c", "d")
    writer.link("a", "old")
    writer.link("d", "d")
    writer.close()
    assert everything(tmp_path) == {
        "a.pt": [3],
        "b.pt": [2],
        "c.pt": [2],
        "d.pt": [2],
        "old.pt": [3],
        "old2.pt": [3],
    }
    assert (writer.stats.missing, troubles.told) == (0, [])


names = st.sampled_from("abcd")
steps = st.one_of(
    st.tuples(st.just("put"), names, st.integers(0, 2)), st.tuples(st.just("link"), names, names)
)


@given(script=st.lists(steps, max_size=30))
def test_any_order_of_puts_and_links(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    writer = TensorWriter(folder, on_error=Troubles())
    expected: dict[str, list[float]] = {}
    lost = 0
    for verb, name, what in script:
        if verb == "put":
            writer.put(name, floats(what))
            expected[f"{name}.pt"] = [what]
        else:
            writer.link(name, what)
            if name == what:
                continue
            content = expected.get(f"{what}.pt")
            expected.pop(f"{name}.pt", None)
            if content is None:
                lost += 1
            else:
                expected[f"{name}.pt"] = content
    writer.close()
    assert everything(folder) == dict(sorted(expected.items()))
    assert writer.stats.missing == lost


class WithoutLinks(Folder):
    """A file system that has no links."""

    def link(self, name: str, same_as: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))


class FewLinks(Folder):
    """A file system on which a file can have three names."""

    def link(self, name: str, same_as: str) -> None:
        if (self.path / same_as).stat().st_nlink >= 3:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        super().link(name, same_as)


@pytest.mark.parametrize(("place", "files"), [(Folder, 1), (WithoutLinks, 13), (FewLinks, 5)])
def test_copies_where_links_are_impossible(
    tmp_path: Path, troubles: Troubles, place: type[Folder], files: int
) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles, place=place)
    for i in range(7):
        writer.put(f"put.{i}", floats(5, 6))
    for i in range(6):
        writer.link(f"link.{i}", "put.0")
    writer.close()
    assert set(everything(tmp_path)) == {f"put.{i}.pt" for i in range(7)} | {f"link.{i}.pt" for i in range(6)}
    assert all(content == [5, 6] for content in everything(tmp_path).values())
    assert (writer.stats.files, writer.stats.links, writer.stats.missing) == (files, 13 - files, 0)


@pytest.mark.prove
def test_more_names_than_a_file_can_have(tmp_path: Path, troubles: Troubles) -> None:
    """ext4 stops at 65000 names of one file, btrfs at 65535; others never."""
    writer = TensorWriter(tmp_path, on_error=troubles)
    for i in range(70_000):
        writer.put(f"{i}", floats(1))
    writer.close()
    assert sum(1 for _ in tmp_path.iterdir()) == 70_000
    assert (writer.stats.missing, troubles.told) == (0, [])
    assert values(tmp_path / "69999.pt") == [1]


# ---- names ----


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Torch.cat.0.forward.input.0.1", "Torch.cat.0.forward.input.0.1.pt"),
        ("Functional.linear.0.forward.kwargs.weight", "Functional.linear.0.forward.kwargs.weight.pt"),
        ("myloss.0.tensor.", "myloss.0.tensor..pt"),
        ("模块.0", "模块.0.pt"),
        ("..", "...pt"),
        ("x" * 252, "x" * 252 + ".pt"),
        ("a/b", r"a_b\.[0-9a-f]{16}\.pt"),
        ("../../etc/passwd", r"\.\._\.\._etc_passwd\.[0-9a-f]{16}\.pt"),
        ("a\0b", r"a_b\.[0-9a-f]{16}\.pt"),
        ("a\nb", r"a_b\.[0-9a-f]{16}\.pt"),
        ("a\ud800b", r"a_b\.[0-9a-f]{16}\.pt"),
        ("x" * 253, r"x{235}\.[0-9a-f]{16}\.pt"),
        ("模" * 100, r"模{78}\.[0-9a-f]{16}\.pt"),
    ],
)
def test_file_names(name: str, expected: str) -> None:
    result = file_name(name, ".pt")
    assert result == expected or re.fullmatch(expected, result)


@given(first=st.text(max_size=300), second=st.text(max_size=300))
def test_file_names_can_be_used_and_told_apart(first: str, second: str) -> None:
    result = file_name(first, ".npy")
    assert len(os.fsencode(result)) <= 255
    assert result.endswith(".npy")
    assert not set(result) & {"/", "\0", "\n"}
    assert (result == file_name(second, ".npy")) == (first == second)


def test_strange_names_have_files(tmp_path: Path, troubles: Troubles) -> None:
    strange = ["a/b", "../up", "x" * 1000, "x" * 1000 + "y", "模" * 300, "a\0b", "a\ud800", "", ".", "-rf *"]
    writer = TensorWriter(tmp_path / "data", on_error=troubles)
    for i, name in enumerate(strange):
        writer.put(name, floats(i))
        writer.link(f"{name}.linked", name)
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    for i, name in enumerate(strange):
        assert values(tmp_path / "data" / file_name(name, ".pt")) == [i]
        assert values(tmp_path / "data" / file_name(f"{name}.linked", ".pt")) == [i]


# ---- links of others are not followed ----


def test_a_link_in_place_of_a_file_is_replaced(tmp_path: Path, troubles: Troubles) -> None:
    (tmp_path / "precious").write_text("mine")
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("x", "y", "z"):
        (folder / f"{name}.pt").symlink_to(tmp_path / "precious")
    writer = TensorWriter(folder, on_error=troubles)
    writer.put("x", floats(1))
    writer.put("y", floats(1))
    writer.link("z", "x")
    writer.close()
    assert (tmp_path / "precious").read_text() == "mine"
    assert everything(folder) == {"x.pt": [1], "y.pt": [1], "z.pt": [1]}


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path, troubles: Troubles) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "elsewhere")
    writer = TensorWriter(tmp_path / "data", on_error=troubles)
    writer.put("x", floats(1))
    writer.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (writer.stats, [type(problem) for _, problem in troubles.told]) == (
        Stats(missing=1),
        [NotADirectoryError],
    )


# ---- bounded memory ----


class Gate(Folder):
    """A disk that answers only while the gate is open."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.open = threading.Event()

    def write(self, name: str, chunks: Sequence[Any]) -> int:
        self.open.wait()
        return super().write(name, chunks)


class Gated:
    """A writer whose disk hangs until the gate is opened."""

    def __init__(self, path: Path, troubles: Troubles, **options: Any) -> None:
        self.gate = Gate(path)
        self.writer = TensorWriter(path, on_error=troubles, place=lambda _: self.gate, **options)


def test_put_waits_when_the_budget_is_used_up(tmp_path: Path, troubles: Troubles) -> None:
    gated = Gated(tmp_path, troubles, budget=100 * KIB)
    accepted: list[int] = []
    most: list[int] = []

    def train() -> None:
        for i in range(50):
            gated.writer.put(f"{i}", filler(20 * KIB, i))
            accepted.append(i)
            most.append(gated.writer.waiting)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(0.5)
    assert (thread.is_alive(), accepted) == (True, [0, 1, 2, 3])
    gated.gate.open.set()
    thread.join(60)
    gated.writer.close()
    assert (len(accepted), max(most) <= 100 * KIB) == (50, True)
    assert (gated.writer.stats.files, gated.writer.stats.missing, gated.writer.waiting) == (50, 0, 0)


def test_a_tensor_larger_than_the_budget_goes_alone(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles, budget=10 * KIB)
    for i in range(5):
        writer.put(f"small.{i}", filler(4 * KIB, i))
        writer.put(f"large.{i}", filler(100 * KIB, i))
    writer.close()
    assert (writer.stats.files, writer.stats.missing) == (10, 0)


def test_tensors_without_bytes_count_too(tmp_path: Path, troubles: Troubles) -> None:
    """Else a million of them could wait."""
    gated = Gated(tmp_path, troubles, budget=100 * KIB, patience=0.2)
    for i in range(200):
        gated.writer.put(f"{i}", TensorData(b"", "float32", (0, i)))
    assert gated.writer.waiting <= 100 * KIB
    assert gated.writer.stats.missing == 100
    gated.gate.open.set()
    gated.writer.close()


# ---- trouble with the disk ----


def test_a_disk_that_hangs_does_not_hold_up_training(tmp_path: Path, troubles: Troubles) -> None:
    gated = Gated(tmp_path, troubles, budget=50 * KIB, patience=0.5)

    def train() -> None:
        for i in range(1000):
            gated.writer.put(f"{i}", filler(20 * KIB, i))
            gated.writer.drain()

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    thread.join(60)  # it waits once, not a thousand times
    assert not thread.is_alive()
    assert gated.writer.stats == Stats(missing=998)
    assert [(doing, type(problem)) for doing, problem in troubles.told] == [
        ("write the tensor file '2.pt'", TimeoutError)
    ]
    gated.gate.open.set()  # it answers again: what waited is written, and so is what comes
    while gated.writer.waiting:
        time.sleep(0.01)
    gated.writer.put("later", filler(20 * KIB, 7))
    gated.writer.close()
    assert {path.name for path in tmp_path.iterdir()} == {"0.pt", "1.pt", "later.pt"}
    assert gated.writer.stats.missing == 998


def test_close_gives_up_on_a_disk_that_hangs(tmp_path: Path, troubles: Troubles) -> None:
    gated = Gated(tmp_path, troubles, patience=0.2)
    gated.writer.put("x", floats(1))
    gated.writer.close()
    assert list(tmp_path.iterdir()) == []
    gated.gate.open.set()


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path, troubles: Troubles) -> None:
    folder = tmp_path / "data"
    writer = TensorWriter(folder, on_error=troubles)
    writer.put("a", floats(1))
    writer.drain()
    (folder / "a.pt").unlink()
    folder.rmdir()
    writer.put("b", floats(1))
    writer.put("c", floats(1))
    writer.put("d", floats(2))
    writer.link("e", "a")
    writer.close()
    assert everything(folder) == {"c.pt": [1], "d.pt": [2], "e.pt": [1]}
    assert [(doing, type(problem)) for doing, problem in troubles.told] == [
        ("write the tensor file 'b.pt'", FileNotFoundError)
    ]
    assert writer.stats.missing == 1


@pytest.mark.parametrize("place", ["a file", "in a file", "nowhere"])
def test_a_folder_that_cannot_be(tmp_path: Path, troubles: Troubles, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    folder = {"a file": "file", "in a file": "file/data", "nowhere": "no/where"}[place]
    writer = TensorWriter(tmp_path / folder, on_error=troubles)
    for i in range(100):
        writer.put(f"{i}", floats(i))
        writer.link(f"{i}.linked", f"{i}")
    writer.close()
    assert (tmp_path / "file").read_text() == "mine"
    assert writer.stats == Stats(missing=200)
    assert len(troubles.told) <= 2
    assert {type(problem) for _, problem in troubles.told} <= {NotADirectoryError, FileNotFoundError}


def test_a_name_that_is_a_folder(tmp_path: Path, troubles: Troubles) -> None:
    (tmp_path / "x.pt").mkdir()
    writer = TensorWriter(tmp_path, on_error=troubles)
    writer.put("x", floats(1))
    writer.put("y", floats(1))
    writer.put("x", floats(1))
    writer.close()
    assert {path.name for path in tmp_path.iterdir()} == {"x.pt", "y.pt"}
    assert values(tmp_path / "y.pt") == [1]
    assert writer.stats.missing == 2
    assert [type(problem) for _, problem in troubles.told] == [IsADirectoryError]


def test_a_tensor_that_cannot_be_encoded_is_counted(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles)
    writer.put("bad", TensorData(b"123", "float32", (1,)))
    writer.put("worse", TensorData(b"1", "strange", (1,)))
    writer.put("good", floats(1))
    writer.close()
    assert everything(tmp_path) == {"good.pt": [1]}
    assert writer.stats.missing == 2
    assert len(troubles.told) == 1


def test_an_old_file_does_not_pass_for_a_lost_one(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles)
    writer.put("x", floats(1))
    writer.put("y", floats(1))
    writer.put("x", TensorData(b"123", "float32", (1,)))
    writer.link("y", "never put")
    writer.close()
    assert everything(tmp_path) == {}
    assert writer.stats.missing == 2


def test_what_comes_after_close_is_counted(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles)
    writer.put("x", floats(1))
    writer.close()
    writer.put("y", floats(1))
    writer.link("z", "x")
    assert everything(tmp_path) == {"x.pt": [1]}
    assert writer.stats.missing == 2
    assert [(doing, str(problem)) for doing, problem in troubles.told] == [
        ("write the tensor file 'y.pt'", "the recording was already finished")
    ]


def test_trouble_in_telling_does_not_matter(tmp_path: Path) -> None:
    def fail(doing: str, problem: BaseException) -> None:
        raise RuntimeError("no log")

    writer = TensorWriter(tmp_path, on_error=fail)
    writer.put("bad", TensorData(b"123", "float32", (1,)))
    writer.put("good", floats(1))
    writer.close()
    assert everything(tmp_path) == {"good.pt": [1]}
    writer.put("late", floats(1))


# ---- processes ----


def run(folder: Path, program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + textwrap.dedent(program), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


PRELUDE = textwrap.dedent(
    """
    import os, resource, sys, threading, time
    from pathlib import Path
    import numpy as np
    from msprobe.store.tensor_file import TensorData
    from msprobe.store.tensors import TensorWriter

    folder = Path(sys.argv[1])
    troubles = []
    def tensor(size, first):
        numbers = np.arange(size // 4, dtype="f4")
        numbers[:1] = first
        return TensorData(numbers, "float32", (size // 4,))
    def writer(**options):
        return TensorWriter(folder, on_error=lambda doing, problem: troubles.append(repr(problem)), **options)
    """
)


def test_a_full_disk_costs_only_what_does_not_fit(tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk: a write fails half-way; later there is room again."""
    ended = run(
        tmp_path / "data",
        """
        w = writer()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        for i in range(10):
            w.put(f"small.{i}", tensor(4096, i))
            w.put(f"large.{i}", tensor(1 << 20, i))
        w.drain()
        print(w.stats.files, w.stats.missing, troubles)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        w.put("large.0", tensor(1 << 20, 0))
        w.close()
        print(w.stats.files, w.stats.missing, len(troubles))
        """,
    )
    assert (ended.stdout.splitlines(), ended.returncode) == (
        ["10 10 [\"OSError(27, 'File too large')\"]", "11 10 1"],
        0,
    ), ended.stderr
    found = {path.name: read(path).array.size * 4 for path in (tmp_path / "data").iterdir()}
    assert found == {f"small.{i}.pt": 4096 for i in range(10)} | {"large.0.pt": 1 << 20}


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "raise KeyError"])
def test_a_program_that_ends_leaves_all_files(tmp_path: Path, ending: str) -> None:
    ended = run(
        tmp_path,
        f"""
        w = writer()
        for i in range(500):
            w.put(f"x.{{i}}", tensor(8192, i))
        {ending}
        """,
    )
    assert ended.returncode == {"": 0, "raise SystemExit(3)": 3, "raise KeyError": 1}[ending]
    assert {path.name: values(path)[0] for path in tmp_path.iterdir()} == {f"x.{i}.pt": i for i in range(500)}


@pytest.mark.parametrize("size", [64, 8192, 1 << 20])
@pytest.mark.parametrize("after", [0.0, 0.05, 0.2])
def test_a_killed_program_leaves_whole_files(tmp_path: Path, size: int, after: float) -> None:
    program = f"""
        w = writer(budget=8 << 20)
        w.put("first", tensor({size}, -1))
        w.drain()
        print("ready", flush=True)
        for i in range(10 ** 9):
            w.put(f"x.{{i}}", tensor({size}, i))
            w.link(f"x.{{i}}.linked", f"x.{{i}}")
        """
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    found = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert tmp_path / "first.pt" in found
    assert len(list(tmp_path.iterdir())) - len(found) <= 1  # the one that was being written
    for path in found:
        number = -1 if path.name == "first.pt" else int(path.name.split(".")[1])
        stored = read(path)
        assert (stored.array[0], stored.array.nbytes) == (number, size)


def test_a_killed_program_does_not_disturb_the_next(tmp_path: Path, troubles: Troubles) -> None:
    """What it left under its passing name is in nobody's way, even if the next writer has the same one."""
    folder = Folder(tmp_path)
    (tmp_path / folder._beside).write_bytes(b"left behind")
    writer = TensorWriter(tmp_path, on_error=troubles, place=lambda _: folder)
    writer.put("x", floats(1))
    writer.close()
    assert everything(tmp_path) == {"x.pt": [1]}


def test_a_forked_child_does_nothing_and_never_hangs(tmp_path: Path) -> None:
    """Children are made while the locks of the writer are in use, and the parent goes on."""
    ended = run(
        tmp_path,
        """
        w = writer(budget=1 << 16)
        def train():
            for i in range(3000):
                w.put(f"x.{i}", tensor(4096, i))
        thread = threading.Thread(target=train)
        thread.start()
        codes = []
        while thread.is_alive():
            child = os.fork()
            if child == 0:
                w.put("child", tensor(64, 1))
                w.link("child2", "child")
                w.drain()
                w.close()
                own = TensorWriter(folder / "own", on_error=print)
                own.put("of the child", tensor(64, os.getpid()))
                own.close()
                sys.exit(w.stats.missing)
            codes.append(os.waitpid(child, 0)[1])
        w.close()
        print(len(codes) > 0, set(codes), w.stats.files, w.stats.missing, troubles)
        """,
    )
    assert (ended.stdout, ended.stderr) == ("True {0} 3000 0 []\n", "")
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {f"x.{i}.pt" for i in range(3000)}
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["of the child.pt"]


def test_snapshots_are_let_go(tmp_path: Path, troubles: Troubles) -> None:
    class Tracked(np.ndarray[Any, Any]):
        pass

    writer = TensorWriter(tmp_path, on_error=troubles)
    alive = []
    for i in range(10):
        numbers = np.full(256, i, "f4").view(Tracked)
        alive.append(weakref.ref(numbers))
        writer.put(f"{i}", TensorData(numbers.data, "float32", (256,)))
        del numbers
    while writer.waiting:
        time.sleep(0.01)
    assert [reference() is None for reference in alive] == [True] * 10
    writer.close()


def test_a_tensor_that_waits_alone_is_written_soon(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles)
    for number in range(2):
        writer.put(f"x.{number}", floats(number))
        end = time.monotonic() + 60
        while not (tmp_path / f"x.{number}.pt").exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert values(tmp_path / f"x.{number}.pt") == [number]
    writer.close()


def test_one_large_tensor_after_small_ones_is_not_lost(tmp_path: Path, troubles: Troubles) -> None:
    writer = TensorWriter(tmp_path, on_error=troubles, budget=100 * KIB, patience=20)
    writer.put("a", filler(KIB, 1))
    writer.drain()
    writer.put("b", filler(KIB, 2))
    writer.put("large", filler(100 * KIB, 3))
    writer.close()
    assert (writer.stats.files, writer.stats.missing, troubles.told) == (3, 0, [])
