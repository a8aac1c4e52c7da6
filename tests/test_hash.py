"""The hash of a content: both implementations against the definition, and what makes hashes differ."""

import random
import struct
from collections.abc import Callable

import numpy as np
import pytest

from kernel_case import DTYPES, IMPLEMENTATIONS
from msprobe import kernels, kernels_hash, kernels_layout
from msprobe.kernels_hash import NOTHING, part, part_at

SIZES = [0, 1, 3, 4, 7, 8, 9, 63, 64, 65, 1000, 4088, 4095, 4096, 4097, 4104, 8192, 8200, 40_000]
_MASK = 2**64 - 1


# ---- the definition in docs/format.md, step by step ----


def by_definition(*tensors: bytes) -> str:
    """The hash of the bytes of one tensor or several, written from docs/format.md and from nothing else."""
    keys = []
    state = int.from_bytes(b"msprobe2", "big")
    for _ in range(514):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        keys.append(_mix(state))
    total = 0
    for block in (data[start : start + 4096] for data in tensors for start in range(0, len(data), 4096)):
        block += bytes(-len(block) % 8)
        first = second = 0
        for i, (low, high) in enumerate(struct.iter_unpack("<II", block)):
            first += _product(low, high, keys[i])
            second += _product(low, high, keys[i + 2])
        value = _mix((_mix(first & _MASK) + second) & _MASK)
        total = (total * 0xD1342543DE82EF95 + value) & _MASK
    size = sum(map(len, tensors))
    return f"{_mix((total + (size + 1) * 0x9E3779B97F4A7C15) & _MASK):016x}"


def _product(low: int, high: int, key: int) -> int:
    return ((low + key % 2**32) % 2**32) * ((high + key // 2**32) % 2**32)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


# ---- equal to the definition ----


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the public functions use this implementation."""
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "_native", None)
        monkeypatch.setattr(kernels_hash, "_native_part", None)
    return str(request.param)


def hash_of(data: bytes) -> str:
    memory = np.frombuffer(data or b"\0", np.uint8)
    return kernels.described(kernels.address_of(memory), len(data), "u1")[1]


def some_bytes(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(count)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("implementation")
def test_hash_is_the_defined_one(size: int) -> None:
    data = some_bytes(size)
    assert hash_of(data) == by_definition(data)
    assert hash_of(bytes(size)) == by_definition(bytes(size))
    assert hash_of(b"\xff" * size) == by_definition(b"\xff" * size)


@pytest.mark.parametrize("offset", [1, 2, 7])
@pytest.mark.usefixtures("implementation")
def test_alignment_does_not_matter(offset: int) -> None:
    data = np.frombuffer(some_bytes(10_000), np.uint8)
    address = kernels.address_of(data) + offset
    assert kernels.described(address, 9000, "u1")[1] == by_definition(data[offset : offset + 9000].tobytes())


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 5, 4095, 4096, 4097, 20_001])
@pytest.mark.usefixtures("implementation")
def test_every_kind_is_hashed_as_bytes_beside_its_statistics(kind: str, count: int) -> None:
    dtype = np.dtype(DTYPES[kind])
    array = np.frombuffer(some_bytes(count * dtype.itemsize), np.uint8).view(dtype)
    array = (array.view(np.uint8) & 1).view(dtype) if kind == "b1" else array
    address = kernels.address_of(array) if count else 0
    stats, content, _ = kernels.described(address, count, kind)
    assert content == by_definition(array.tobytes())
    assert repr(stats) == repr(kernels.statistics(address, count, kind))


def test_known_values() -> None:
    """Recordings last: what these mean must never change."""
    assert by_definition(b"") == hash_of(b"")
    assert [hash_of(data) for data in (b"", bytes(4), b"msprobe", bytes(range(256)) * 20)] == KNOWN


KNOWN = ["e220a8397b1dcdaf", "d5d784d037d23a36", "e9b25ee5783d021e", "59592c46efdf4e14"]


# ---- parts ----


@pytest.mark.parametrize("cut", [4096, 8192])
@pytest.mark.usefixtures("implementation")
def test_parts_join(cut: int) -> None:
    data = np.frombuffer(some_bytes(20_000), np.uint8)
    start = kernels.address_of(data)
    joined = part_at(start, cut).then(part_at(start + cut, data.size - cut))
    assert joined == part_at(start, data.size)
    assert NOTHING.then(joined) == joined == joined.then(NOTHING)


@pytest.mark.parametrize("times", [0, 1, 2, 3, 7, 64, 1000])
def test_a_repeated_part_is_that_part_again_and_again(times: int) -> None:
    unit, plain = part(12345, 3 * 4096), NOTHING
    for _ in range(times):
        plain = plain.then(unit)
    assert unit.repeated(times) == plain


# ---- different contents ----


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def flip_two_signs(data: bytearray, rng: random.Random) -> None:
    for place in rng.sample(range(3, len(data), 4), 2):
        data[place] ^= 0x80


def flip_two_double_signs(data: bytearray, rng: random.Random) -> None:
    for place in rng.sample(range(7, len(data), 8), 2):
        data[place] ^= 0x80


def swap(data: bytearray, rng: random.Random) -> None:
    i, j = (4 * place for place in rng.sample(range(len(data) // 4), 2))
    data[i : i + 4], data[j : j + 4] = data[j : j + 4], data[i : i + 4]


def swap_blocks(data: bytearray, rng: random.Random) -> None:
    i, j = (4096 * place for place in rng.sample(range(len(data) // 4096), 2))
    data[i : i + 4096], data[j : j + 4096] = data[j : j + 4096], data[i : i + 4096]


def roll(data: bytearray, rng: random.Random) -> None:
    by = 4 * rng.randrange(1, len(data) // 4)
    data[:] = data[by:] + data[:by]


def swap_rows(data: bytearray, rng: random.Random) -> None:
    data[:] = np.frombuffer(bytes(data), "u4").reshape(-1, 64).T.tobytes()


def move_a_bit(data: bytearray, rng: random.Random) -> None:
    """One element up by one unit in the last place, another one down by it."""
    i, j = (4 * place for place in rng.sample(range(len(data) // 4), 2))
    for place, step in ((i, 1), (j, -1)):
        (word,) = struct.unpack_from("<I", data, place)
        struct.pack_into("<I", data, place, (word + step) % 2**32)


@pytest.mark.parametrize(
    "change",
    [flip, flip_two_signs, flip_two_double_signs, swap, swap_blocks, roll, swap_rows, move_a_bit],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("content", ["normal", "zeros", "whole numbers"])
def test_a_change_changes_the_hash(change: Callable[[bytearray, random.Random], None], content: str) -> None:
    rng = random.Random(0)
    for seed in range(300):
        numbers = np.random.default_rng(seed).standard_normal(4096).astype("f4")
        if content == "zeros":
            numbers[:] = 0
        elif content == "whole numbers":
            numbers = np.rint(numbers)
        data = bytearray(numbers.tobytes())
        change(data, rng)
        assert (hash_of(bytes(data)) == hash_of(numbers.tobytes())) == (bytes(data) == numbers.tobytes())


def test_many_contents_have_many_hashes() -> None:
    """Every bit of a block, one-hot vectors of every length, and every constant of 16 bits."""
    contents = [bytes(size) for size in range(2000)]
    contents += [bytes(place) + b"\x01" + bytes(5000 - place) for place in range(5000)]
    contents += [
        bytes(place // 8) + bytes([1 << place % 8]) + bytes(600 - place // 8) for place in range(4800)
    ]
    contents += [struct.pack("<H", number) * 3000 for number in range(2**16)]
    distinct = set(contents)
    assert len({hash_of(content) for content in distinct}) == len(distinct)


def test_bits_of_the_hash_are_all_used() -> None:
    """One changed bit of the content changes half of the bits of the hash, whichever it is."""
    data = bytearray(some_bytes(9000))
    before, changed = int(hash_of(bytes(data)), 16), []
    for place in range(0, 9000, 9):
        data[place] ^= 1
        changed.append(before ^ int(hash_of(bytes(data)), 16))
        data[place] ^= 1
    shares = [sum(number >> bit & 1 for number in changed) / len(changed) for bit in range(64)]
    assert min(shares) > 0.4 and max(shares) < 0.6


# ---- numpy arrays ----

ARRAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T,
    "strided": lambda x: x[::2, 1::3],
    "reversed": lambda x: x[::-1],
    "one column": lambda x: x[:, 0],
    "broadcast": lambda x: np.broadcast_to(x, (7, *x.shape)),
    "broadcast behind": lambda x: np.broadcast_to(x[..., None], (*x.shape, 5)),
    "0-d": lambda x: x[1, 2, ...],
    "empty": lambda x: x[:0],
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder(">")),
}


@pytest.mark.parametrize("layout", ARRAYS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "i2", "?"])
@pytest.mark.parametrize("piece", [1 << 21, 4096])
@pytest.mark.usefixtures("implementation")
def test_arrays_of_any_layout(dtype: str, layout: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PIECE", piece)
    monkeypatch.setattr(kernels_layout, "PIECE", piece)
    array = ARRAYS[layout](np.random.default_rng(0).integers(0, 100, (60, 70)).astype(dtype))
    plain = np.ascontiguousarray(array, np.dtype(dtype))
    stats, content, brief = kernels.described_of(array)
    assert content == by_definition(plain.tobytes())
    expected = kernels.statistics_of(plain)
    assert stats == expected or list(stats) == pytest.approx(list(expected), rel=1e-12)
    assert kernels.sketch_of(array) == kernels.sketch_of(plain)
    assert brief == kernels.described_of(plain)[2]
