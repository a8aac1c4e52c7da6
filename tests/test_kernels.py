"""Both implementations of the kernels against plain definitions, over every kind, size and special value."""

import math
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_case import (
    DTYPES,
    FLOATS,
    IMPLEMENTATIONS,
    INF_BITS,
    INTEGERS,
    NATIVE,
    compiled,
    from_bits,
    numbers,
    special_bits,
)
from msprobe import kernels, kernels_numpy
from msprobe.errors import UsageError
from msprobe.kernels import Statistics

SIZES = [0, 1, 2, 63, 64, 65, 1000, 100003]


def statistics_by(implementation: str) -> Callable[[int, int, str], Statistics]:
    if implementation == "numpy":
        return kernels_numpy.statistics_numpy
    return partial(NATIVE.statistics, Statistics)


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the public functions use this implementation."""
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "_native", None)
    return str(request.param)


# ---- test data: arrays in memory, and the numbers that they mean ----


def random_array(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, or all values that an integer can have."""
    random = np.random.default_rng(seed)
    if kind == "bf2":
        return (random.standard_normal(count).astype("f4").view("u4") >> 16).astype("u2")
    if kind in FLOATS:
        return random.standard_normal(count).astype(kind)
    if kind == "b1":
        return random.integers(0, 2, count).astype(bool)
    limits = np.iinfo(kind)
    return random.integers(limits.min, limits.max, count, dtype=kind, endpoint=True)


@st.composite
def float_arrays(draw: st.DrawFn, kind: str, finite: bool) -> np.ndarray:
    size = 8 * np.dtype(DTYPES[kind]).itemsize
    inf = INF_BITS[kind]
    any_bits = st.integers(0, 2**size - 1) | st.sampled_from(special_bits(kind))
    bits = draw(st.lists(any_bits, max_size=150))
    if finite:
        bits = [one for one in bits if one & inf != inf]
    return from_bits(bits, kind)


# ---- statistics ----


def expected_statistics(values: list[Any], kind: str) -> Statistics:
    """The definition, in exact arithmetic as far as the numbers are finite."""
    if not values:
        return Statistics(None, None, None, None)
    if kind == "b1":
        return Statistics(any(values), all(values), None, None)
    if kind not in FLOATS:
        norm = math.sqrt(sum(value * value for value in values))
        return Statistics(max(values), min(values), sum(values) / len(values), norm)
    nan = sum(map(math.isnan, values))
    inf = sum(map(math.isinf, values))
    if nan:
        return Statistics(math.nan, math.nan, math.nan, math.nan, nan, inf)
    if inf:
        mean = sum(value for value in values if math.isinf(value))
        return Statistics(max(values), min(values), mean, math.inf, 0, inf)
    mean = float(sum(map(Fraction, values)) / len(values))
    return Statistics(max(values), min(values), mean, math.hypot(*values))


def close(found: float | None, expected: float | None, tolerance: float) -> bool:
    if found is None or expected is None:
        return found is expected
    both_nan = math.isnan(found) and math.isnan(expected)
    return both_nan or math.isclose(found, expected, rel_tol=1e-12, abs_tol=tolerance + 1e-323)


def exact_part(values: Statistics) -> list[str]:
    """All but mean and norm, as text that tells 1 from 1.0 and True, and NaN from numbers; -0.0 is 0.0."""
    return [repr(value + 0.0 if type(value) is float else value) for value in (*values[:2], *values[4:])]


def assert_agrees(found: Statistics, expected: Statistics, largest: float = 0.0) -> None:
    """Exact but for mean and norm; a mean may lose the last digits of the largest element."""
    assert type(found) is Statistics
    assert exact_part(found) == exact_part(expected)
    assert close(found.mean, expected.mean, 1e-12 * largest), (found, expected)
    assert close(found.norm, expected.norm, 0.0), (found, expected)


def check_statistics(implementation: str, array: np.ndarray, kind: str) -> None:
    values = numbers(array, kind)
    found = statistics_by(implementation)(array.ctypes.data, array.size, kind)
    finite = [abs(value) for value in values if math.isfinite(value)]
    assert_agrees(found, expected_statistics(values, kind), float(max(finite, default=0)))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", sorted(kernels.KINDS))
def test_statistics_of_each_kind_and_size(implementation: str, kind: str, count: int) -> None:
    check_statistics(implementation, random_array(kind, count), kind)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", FLOATS)
@given(data=st.data(), finite=st.booleans())
@settings(max_examples=60, deadline=None)
def test_statistics_of_any_float_bits(
    implementation: str, kind: str, data: st.DataObject, finite: bool
) -> None:
    check_statistics(implementation, data.draw(float_arrays(kind, finite)), kind)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", INTEGERS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_statistics_of_any_integers(implementation: str, kind: str, data: st.DataObject) -> None:
    limits = np.iinfo(kind)
    one = st.integers(int(limits.min), int(limits.max))
    extremes = st.sampled_from([int(limits.min), int(limits.max), 0, 1])
    check_statistics(
        implementation, np.array(data.draw(st.lists(one | extremes, max_size=150)), dtype=kind), kind
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("place", [0, 15, 16, 2047, 2048, 5000])
@pytest.mark.parametrize("kind", FLOATS)
def test_each_special_value_is_seen_wherever_it_is(implementation: str, kind: str, place: int) -> None:
    for bits in special_bits(kind):
        array = random_array(kind, 5001)
        array[place : place + 1] = from_bits([bits], kind)
        check_statistics(implementation, array, kind)


NAN = math.nan
INF = math.inf


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("f4", [], (None, None, None, None, 0, 0)),
        ("?", [], (None, None, None, None, 0, 0)),
        ("?", [True, False], (True, False, None, None, 0, 0)),
        ("?", [True, True], (True, True, None, None, 0, 0)),
        ("?", [False], (False, False, None, None, 0, 0)),
        ("i8", [2**60, 2**60, 2**60 + 1], (2**60 + 1, 2**60, float(2**60), 2**60 * math.sqrt(3), 0, 0)),
        ("i8", [-(2**63), 2**63 - 1], (2**63 - 1, -(2**63), -0.5, 2**63 * math.sqrt(2), 0, 0)),
        ("u8", [2**64 - 1, 2**64 - 1], (2**64 - 1, 2**64 - 1, float(2**64), 2**64 * math.sqrt(2), 0, 0)),
        ("f4", [3, -4], (3.0, -4.0, -0.5, 5.0, 0, 0)),
        ("f4", [1, NAN, INF, -INF, NAN], (NAN, NAN, NAN, NAN, 2, 2)),
        ("f4", [1, INF], (INF, 1.0, INF, INF, 0, 1)),
        ("f4", [1, -INF, -INF], (1.0, -INF, -INF, INF, 0, 2)),
        ("f4", [INF, -INF], (INF, -INF, NAN, INF, 0, 2)),
        ("f2", [65504, -65504], (65504.0, -65504.0, 0.0, 65504 * math.sqrt(2), 0, 0)),
        ("f8", [3e300, 4e300], (4e300, 3e300, 3.5e300, 5e300, 0, 0)),
        ("f8", [3e-300, 4e-300], (4e-300, 3e-300, 3.5e-300, 5e-300, 0, 0)),
        ("f8", [1.5e308, 1.5e308], (1.5e308, 1.5e308, 1.5e308, INF, 0, 0)),
        ("f8", [5e-324] * 4, (5e-324, 5e-324, 5e-324, 1e-323, 0, 0)),
        ("f8", [-3e300, 1e-300, INF], (INF, -3e300, INF, INF, 0, 1)),
        ("c8", [3 + 4j, 0], (5.0, 0.0, 2.5, 5.0, 0, 0)),
        ("c16", [3e300 + 4e300j, 1j * INF], (INF, 5e300, INF, INF, 0, 1)),
    ],
)
def test_statistics_by_hand(
    implementation: str, dtype: str, values: list[Any], expected: tuple[Any, ...]
) -> None:
    found = kernels.statistics_of(np.array(values, dtype=dtype))
    assert_agrees(found, Statistics(*expected))


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.reshape(20, 50).T,
    "strided": lambda x: np.repeat(x, 3)[::3],
    "reversed": lambda x: x[::-1],
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "unaligned": lambda x: np.frombuffer(b"?" + x.tobytes(), dtype=x.dtype, offset=1),
    "broadcast": lambda x: np.broadcast_to(x, (2, 1000)),
    "one element": lambda x: x[7:8].reshape(()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "c8", "c16"])
def test_any_layout_gives_what_its_elements_give(implementation: str, dtype: str, layout: str) -> None:
    random = np.random.default_rng(1)
    array = LAYOUTS[layout]((random.standard_normal(1000) * 100).astype(dtype))
    flat = np.array(array.tolist(), dtype=dtype).reshape(-1)
    assert_agrees(kernels.statistics_of(array), kernels.statistics_of(flat), 100.0)
    assert kernels.sketch_of(array) == kernels.sketch_of(flat)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("bfloat16", "float32"),
        ("float8_e4m3fn", "float32"),
        ("float8_e5m2", "float32"),
        ("float8_e4m3fnuz", "float32"),
        ("float4_e2m1fn", "float32"),
        ("int4", "int8"),
        ("uint4", "uint8"),
    ],
)
def test_dtypes_that_numpy_does_not_know(implementation: str, name: str, same: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = (np.arange(130) % 7).reshape(2, 65).astype(getattr(ml_dtypes, name))
    plain = array.astype(same)
    assert_agrees(kernels.statistics_of(array), kernels.statistics_of(plain))
    assert kernels.sketch_of(array) == kernels.sketch_of(plain)


@pytest.mark.parametrize("dtype", [object, "U3", "S3", "M8[s]", "i4,i4"])
@pytest.mark.parametrize("function", [kernels.statistics_of, kernels.sketch_of])
def test_what_is_no_number_is_refused(function: Callable[[np.ndarray], object], dtype: Any) -> None:
    with pytest.raises(UsageError, match="convert it to numbers"):
        function(np.zeros(3, dtype=dtype))


@pytest.mark.parametrize(
    ("address", "count", "kind", "error"),
    [(64, 1, "f3", KeyError), (64, -1, "f4", ValueError), (0, 1, "f4", ValueError)],
)
@pytest.mark.parametrize("function", [kernels.statistics, kernels.sketch])
def test_memory_that_cannot_be(
    implementation: str,
    function: Callable[[int, int, str], object],
    address: int,
    count: int,
    kind: str,
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        function(address, count, kind)


@compiled
@pytest.mark.parametrize("kind", ["f2", "bf2", "f4", "f8"])
def test_subnormals_count_also_where_the_program_flushes_them(kind: str) -> None:
    torch = pytest.importorskip("torch")
    array = from_bits([1, 2, 3] * 40, kind)
    expected = kernels.statistics(array.ctypes.data, array.size, kind), kernels.sketch_of(array)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        found = kernels.statistics(array.ctypes.data, array.size, kind), kernels.sketch_of(array)
        still_flushing = float(np.float32(1e-39) * np.float32(1)) == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert (found, still_flushing) == (expected, True)


# ---- checksum ----


@given(st.binary(max_size=5000))
def test_checksum_is_the_crc32_in_hexadecimal(data: bytes) -> None:
    expected = f"{zlib.crc32(data):08x}"
    views: list[Any] = [data, bytearray(data), memoryview(data), np.frombuffer(data, dtype="u1")]
    assert [kernels.checksum(view) for view in views] == [expected] * 4


@pytest.mark.parametrize(("data", "expected"), [(b"", "00000000"), (b"123456789", "cbf43926")])
def test_checksum_by_hand(data: bytes, expected: str) -> None:
    assert kernels.checksum(data) == expected


# ---- glance ----


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 64, 1000, 1 << 20])
@pytest.mark.parametrize("place", ["start", "end"])
def test_a_glance_sees_the_ends_and_is_the_same_where_nothing_changed(size: int, place: str) -> None:
    data = np.arange(size, dtype="u1")
    before = kernels.glance(data.ctypes.data, size)
    assert kernels.glance(data.ctypes.data, size) == before
    data[0 if place == "start" else -1] ^= 1
    assert (kernels.glance(data.ctypes.data, size) == before) == (
        NATIVE is None and size > 64 and place == "end"  # without the compiled kernel only the start is read
    )


@compiled
def test_a_glance_sees_a_change_of_a_sixteenth() -> None:
    for size in (100, 4096, 100_001):
        data = np.zeros(size, dtype="u1")
        before = kernels.glance(data.ctypes.data, size)
        for first in range(0, size - size // 15 - 8, 97):
            data[first : first + size // 15 + 8] = 1
            assert kernels.glance(data.ctypes.data, size) != before
            data[:] = 0


# ---- sketch ----


def splitmix64(seed: int, count: int) -> list[int]:
    """The generator as it is published: a state that grows, and a mix of it."""
    outputs, state = [], seed
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        outputs.append(z ^ (z >> 31))
    return outputs


def expected_sketch(values: list[Any]) -> list[float]:
    """docs/format.md, word by word."""
    words = splitmix64(0x6D7370726F626531, 2 * (len(values) // 64 + 1))
    buckets: list[list[float]] = [[] for _ in range(64)]
    for i, x in enumerate(values):
        block, lane = divmod(i, 64)
        sign = -1.0 if words[2 * block] >> lane & 1 else 1.0
        if math.isfinite(x):
            buckets[lane ^ (words[2 * block + 1] >> 58)].append(sign * float(x))
    return [math.fsum(bucket) for bucket in buckets]


def floats(sketch: bytes) -> np.ndarray:
    return np.array(struct.unpack("<64f", sketch))


def norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values.astype("f8").reshape(-1)))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", sorted(kernels.KINDS))
def test_sketch_is_as_defined(kind: str, count: int) -> None:
    array = random_array(kind, count)
    exact = np.array(expected_sketch(numbers(array, kind)))
    by_numpy = kernels_numpy.sketch_numpy(array.ctypes.data, count, kind)
    np.testing.assert_allclose(floats(by_numpy), exact, rtol=2**-23, atol=1e-12 * max(1.0, norm(exact)))
    assert kernels.sketch(array.ctypes.data, count, kind) == by_numpy


@compiled
@pytest.mark.parametrize("kind", FLOATS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_both_sketches_are_equal_for_any_bits(kind: str, data: st.DataObject) -> None:
    array = data.draw(float_arrays(kind, finite=False))
    place = array.ctypes.data, array.size, kind
    assert NATIVE.sketch(*place) == kernels_numpy.sketch_numpy(*place)


@compiled
def test_all_halves_are_widened_right() -> None:
    halves = np.arange(2**16, dtype="u2").view("f2")
    singles = halves.astype("f4")
    assert kernels.sketch_of(halves) == kernels.sketch_of(singles)
    for start in range(0, halves.size, 61):  # 61: full and partial groups of the vector unit, in turn
        assert kernels.sketch_of(halves[start : start + 61]) == kernels.sketch_of(singles[start : start + 61])


@pytest.mark.parametrize("count", [1, 5, 63, 64])
def test_sketch_of_up_to_64_elements_is_a_permutation_with_signs(implementation: str, count: int) -> None:
    array = random_array("f4", count)
    found = np.abs(floats(kernels.sketch_of(array)))
    assert sorted(found) == sorted([*np.abs(array).tolist(), *[0.0] * (64 - count)])


@given(seed=st.integers(0, 2**32), count=st.integers(1, 3000))
@settings(max_examples=30, deadline=None)
def test_sketch_is_linear(seed: int, count: int) -> None:
    x, y = random_array("f8", count, seed), random_array("f8", count, seed + 1)
    together = floats(kernels.sketch_of(x)) + floats(kernels.sketch_of(y))
    np.testing.assert_allclose(together, floats(kernels.sketch_of(x + y)), atol=1e-6 * (norm(x) + norm(y)))


def test_sketch_keeps_the_norm_on_average() -> None:
    ratios = []
    for seed in range(2000):
        x = random_array("f4", 5000, seed)
        ratios.append((norm(floats(kernels.sketch_of(x))) / norm(x)) ** 2)
    assert np.mean(ratios) == pytest.approx(1, abs=4 * math.sqrt(2 / 64 / 2000))
    assert np.std(ratios) == pytest.approx(math.sqrt(2 / 64), rel=0.1)


def change_column(x: np.ndarray, random: np.random.Generator) -> None:
    x[:, random.integers(256)] += 0.1 * random.standard_normal(4096).astype("f4")


def change_rows(x: np.ndarray, random: np.random.Generator) -> None:
    x[random.integers(0, 4096, 3)] *= 1.5


def change_block(x: np.ndarray, random: np.random.Generator) -> None:
    x[1024:2048, 64:128] += 0.01


def change_all(x: np.ndarray, random: np.random.Generator) -> None:
    x += 1e-3 * random.standard_normal(x.shape).astype("f4")


@pytest.mark.parametrize("change", [change_column, change_rows, change_block, change_all])
def test_difference_of_sketches_estimates_the_relative_error(
    change: Callable[[np.ndarray, np.random.Generator], None],
) -> None:
    random = np.random.default_rng(7)
    ratios = []
    for _ in range(20):
        golden = random.standard_normal((4096, 256)).astype("f4")
        target = golden.copy()
        change(target, random)
        seen, golden_sketch = floats(kernels.sketch_of(target)), floats(kernels.sketch_of(golden))
        estimate = norm(seen - golden_sketch) / norm(golden_sketch)
        ratios.append(estimate / (norm(target - golden) / norm(golden)))
    # Each norm of 64 numbers has a relative standard deviation of 1 / sqrt(2 * 64), so a ratio has 1/8.
    assert max(abs(ratio - 1) for ratio in ratios) < 0.5
    assert np.mean(ratios) == pytest.approx(1, abs=4 * 0.125 / math.sqrt(20))


def test_sketch_sees_an_order_that_statistics_do_not() -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal((512, 256)).astype("f4")
    swapped = x[random.permutation(512)]
    before, after = kernels.statistics_of(x), kernels.statistics_of(swapped)
    assert after == pytest.approx(before, rel=1e-9)
    difference = norm(floats(kernels.sketch_of(x)) - floats(kernels.sketch_of(swapped)))
    assert difference / norm(x) == pytest.approx(math.sqrt(2), rel=0.4)


def test_elements_that_are_not_finite_count_as_zero(implementation: str) -> None:
    for kind in ("f2", "f4", "f8"):
        x = random_array(kind, 1000)
        x[[3, 500, 999]] = [NAN, INF, -INF]
        assert kernels.sketch_of(x) == kernels.sketch_of(np.nan_to_num(x, nan=0, posinf=0, neginf=0))


def test_sketch_of_the_documented_example(implementation: str) -> None:
    sketch = kernels.sketch_of(np.arange(1, 201, dtype="i4"))
    assert floats(sketch)[:8].tolist() == [188, -69, 254, 9, -14, 203, 12, 13]
    assert kernels.checksum(sketch) == "580c89e6"
