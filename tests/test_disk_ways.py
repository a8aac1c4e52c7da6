"""Files are the same whichever way their bytes go, and most bytes go the way that is faster."""

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from msprobe.store.disk import Disk, Pace

KIB, MIB = 1 << 10, 1 << 20
SIZES = [0, 1, 4095, 4096, 4097, 128 * KIB - 1, 128 * KIB, 2 * MIB, 2 * MIB + 1, 5 * MIB + 123]


def cut(content: bytes, seed: int) -> list[bytes]:
    """The content in pieces: a small head, the numbers, a small tail, and nothing now and then."""
    draw = random.Random(seed)
    first, last = sorted((min(len(content), draw.randrange(600)), max(0, len(content) - draw.randrange(600))))
    return [content[:first], b"", content[first:last], content[last:]]


def written(path: Path, disk: Disk, chunks: Sequence[bytes]) -> bytes:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        signs = sum(1 for _ in disk.write(descriptor, chunks))
    finally:
        os.close(descriptor)
    assert signs or not sum(map(len, chunks))
    return path.read_bytes()


class Steered(Disk):
    """Goes one way, whatever is faster."""

    def __init__(self, way: int) -> None:
        super().__init__()
        self._pace = Pace()
        self._pace.way = way
        self._pace.note = lambda size, seconds: None  # type: ignore[method-assign]


class Crooked(Steered):
    """Hands over memory that does not lie where the way past needs it."""

    def _staged(self, views: Sequence[memoryview], size: int) -> Iterator[memoryview]:
        for piece in super()._staged(views, size):
            shifted = bytearray(1 + len(piece))
            shifted[1:] = piece
            yield memoryview(shifted)[1:]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("disk", [Steered(0), Steered(1), Crooked(1)], ids=["through", "past", "refused"])
def test_the_file_is_what_was_written(tmp_path: Path, disk: Disk, size: int) -> None:
    content = random.Random(size).randbytes(size)
    for seed in range(3):
        assert written(tmp_path / f"{seed}", disk, cut(content, seed)) == content


def test_a_file_system_that_refuses_is_not_asked_again(tmp_path: Path) -> None:
    asked = []

    class Asked(Crooked):
        def _staged(self, views: Sequence[memoryview], size: int) -> Iterator[memoryview]:
            asked.append(size)
            return super()._staged(views, size)

    disk = Asked(1)
    content = random.Random(0).randbytes(MIB)
    for number in range(3):
        assert written(tmp_path / f"{number}", disk, [content]) == content
    assert len(asked) == (3 if disk._goes_past else 1)  # 3: this file system takes any memory


def test_small_files_are_not_timed(tmp_path: Path) -> None:
    ticks = itertools.count()
    disk = Disk(clock=lambda: float(next(ticks)))
    for number in range(10):
        written(tmp_path / f"{number}", disk, [b"x" * 1000])
    assert next(ticks) == 0


def shares(paces: Iterator[tuple[float, float]], size: int = MIB) -> list[int]:
    """Which way each of many files goes, when the ways take so many seconds per byte."""
    pace, ways = Pace(), []
    for seconds in paces:
        ways.append(pace.way)
        pace.note(size, size * seconds[pace.way])
    return ways


@pytest.mark.parametrize("faster", [0, 1])
def test_nearly_all_goes_the_faster_way(faster: int) -> None:
    seconds = (1.0, 4.0) if faster == 0 else (4.0, 1.0)
    ways = Counter(shares(itertools.repeat(seconds, 8000)))
    assert ways[faster] > 0.97 * 8000
    assert ways[1 - faster] >= 8  # it was tried


def test_it_is_noticed_when_the_other_way_becomes_faster() -> None:
    """As when the memory of the system is full."""
    ways = shares(itertools.chain(itertools.repeat((1.0, 2.0), 3000), itertools.repeat((6.0, 2.0), 6000)))
    assert Counter(ways[:3000])[0] > 0.95 * 3000
    assert Counter(ways[-4000:])[1] > 0.95 * 4000


def test_one_unlucky_file_decides_nothing() -> None:
    draw = random.Random(1)
    unlucky = ((1.0, 1.0 + 4.0 * (draw.random() < 0.02) - 0.5) for _ in range(4000))
    assert Counter(shares(unlucky))[1] > 0.8 * 4000
