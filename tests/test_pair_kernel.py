"""Both implementations of the sums over two tensors against a plain definition: kinds, sizes, specials."""

import math
import sys
import threading
from collections.abc import Callable
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
    INTEGERS,
    NATIVE,
    compiled,
    from_bits,
    numbers,
    special_bits,
)
from msprobe import kernels, kernels_numpy
from msprobe.kernels import PairSums

SIZES = [0, 1, 7, 16, 17, 1024, 1025, 2048, 2049, 5000]
PAIRS = [(kind, kind) for kind in [*INTEGERS, "b1"]]
PAIRS += [(target, golden) for target in FLOATS for golden in FLOATS]
PAIRS += [("i4", "i8"), ("i8", "i4"), ("b1", "f4"), ("u8", "f8"), ("f2", "i1"), ("u2", "bf2")]

NAN, INF, EPSILON = math.nan, math.inf, 2.220446049250313e-16


def pair_by(implementation: str) -> Callable[[int, str, int, str, int], PairSums]:
    if implementation == "numpy":
        return kernels_numpy.pair_numpy
    return partial(NATIVE.pair, PairSums)


# ---- the definition ----


def relative_error(t: float, g: float) -> float:
    if g == 0:
        t, g = t + EPSILON, g + EPSILON
    return abs((t - g) / g)


def total(products: list[float]) -> float:
    if not all(map(math.isfinite, products)):
        return sum(products)
    try:
        return math.fsum(products)
    except OverflowError:
        return INF


def differ(t: Any, g: Any) -> bool:
    return not (t == g or (t != t and g != g))


def without_odd(both: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(t, g) if math.isfinite(t) and math.isfinite(g) else (0.0, 0.0) for t, g in both]


def expected_pair(target: list[Any], golden: list[Any], exact: bool) -> PairSums:
    both = [(float(t), float(g)) for t, g in zip(target, golden, strict=True)]
    finite = without_odd(both)
    relative = [relative_error(t, g) for t, g in finite]
    return PairSums(
        dot=total([t * g for t, g in finite]),
        target_squares=total([t * t for t, _ in finite]),
        golden_squares=total([g * g for _, g in finite]),
        difference_squares=total([(t - g) * (t - g) for t, g in finite]),
        max_abs=max((abs(t - g) for t, g in finite), default=0.0),
        max_relative=max(relative, default=0.0),
        thousandth=sum(error < 0.001 for error in relative),
        five_thousandths=sum(error < 0.005 for error in relative),
        unequal=sum(differ(t, g) for t, g in (zip(target, golden, strict=True) if exact else both)),
        mismatched=sum(math.isnan(t) != math.isnan(g) or math.isinf(t) != math.isinf(g) for t, g in both),
        opposite=sum(math.isinf(t) and math.isinf(g) and t != g for t, g in both),
    )


def near(found: float, expected: float, largest: float) -> bool:
    """A sum may lose the last digits of what it adds up; out of range it is inf, or NaN if signs differ."""
    if not math.isfinite(found) or not math.isfinite(expected):
        return repr(found) == repr(expected) or not largest < 1e307
    return math.isclose(found, expected, rel_tol=1e-13, abs_tol=1e-13 * largest)


def check(
    implementation: str, target: np.ndarray, target_kind: str, golden: np.ndarray, golden_kind: str
) -> None:
    place = target.ctypes.data, target_kind, golden.ctypes.data, golden_kind, target.size
    found = pair_by(implementation)(*place)
    values = numbers(target, target_kind), numbers(golden, golden_kind)
    expected = expected_pair(*values, exact=target_kind == golden_kind)
    assert type(found) is PairSums
    assert [repr(value) for value in found[4:]] == [repr(value) for value in expected[4:]]
    largest = total([abs(t * g) for t, g in without_odd(list(zip(*values, strict=True)))])
    assert near(found.dot, expected.dot, largest), (found, expected)
    for one, other in zip(found[1:4], expected[1:4], strict=True):
        assert near(one, other, 0.0), (found, expected)


# ---- test data ----


def as_kind(values: np.ndarray, kind: str) -> np.ndarray:
    """Float64 as this kind of float; bfloat16 cut, not rounded."""
    if kind == "bf2":
        return (values.astype("f4").view("u4") >> 16).astype("u2")
    return values.astype(kind)


def random_values(kind: str, count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    if kind in FLOATS:
        return as_kind(
            np.random.default_rng(0).standard_normal(count) * (1 + 0.004 * random.random(count)), kind
        )
    if kind == "b1":
        return random.integers(0, 2, count).astype(bool)
    limits = np.iinfo(kind)
    return random.integers(limits.min, limits.max, count, dtype=kind, endpoint=True)


# ---- kinds and sizes ----


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("target_kind", "golden_kind"), PAIRS)
def test_each_pair_of_kinds_in_each_size(implementation: str, target_kind: str, golden_kind: str) -> None:
    for count in SIZES:
        target, golden = random_values(target_kind, count, 1), random_values(golden_kind, count, 2)
        check(implementation, target, target_kind, golden, golden_kind)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", sorted(kernels.KINDS))
def test_equal_tensors_and_those_with_one_difference(implementation: str, kind: str) -> None:
    for count in [size for size in SIZES if size]:
        golden = random_values(kind, count, 3)
        check(implementation, golden.copy(), kind, golden, kind)
        for place in (0, count // 2, count - 1):
            target = golden.copy()
            target.view("u1").reshape(count, -1)[place, 0] ^= 1
            check(implementation, target, kind, golden, kind)


@compiled
@pytest.mark.parametrize("kinds", PAIRS)
def test_both_implementations_give_the_same_bits(kinds: tuple[str, str]) -> None:
    for count in (1, 1023, 100_003):
        target, golden = random_values(kinds[0], count, 5), random_values(kinds[1], count, 6)
        place = target.ctypes.data, kinds[0], golden.ctypes.data, kinds[1], count
        assert repr(kernels.pair(*place)) == repr(kernels_numpy.pair_numpy(*place))


# ---- special values ----


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kinds", [(kind, kind) for kind in FLOATS] + [("bf2", "f4"), ("f8", "f2")])
def test_each_special_value_against_each(implementation: str, kinds: tuple[str, str]) -> None:
    lefts, rights = special_bits(kinds[0]), special_bits(kinds[1])
    for left in lefts:
        target = from_bits([left] * len(rights), kinds[0])
        check(implementation, target, kinds[0], from_bits(rights, kinds[1]), kinds[1])
        for right in rights:
            check(implementation, target[:1], kinds[0], from_bits([right], kinds[1]), kinds[1])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("place", [0, 3, 4, 1023, 1024, 2047, 2048, 4999])
def test_special_values_are_seen_wherever_they_are(implementation: str, place: int) -> None:
    for left, right in [
        (NAN, 1),
        (1, NAN),
        (INF, -INF),
        (-INF, -INF),
        (NAN, NAN),
        (INF, NAN),
        (3, 0),
        (-0.0, 0),
    ]:
        target, golden = random_values("f4", 5000, 7), random_values("f4", 5000, 7)
        target[place], golden[place] = left, right
        check(implementation, target, "f4", golden, "f4")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("dtype", "target", "golden", "expected"),
    [
        ("f4", [], [], (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        ("f4", [3, 4], [3, 4], (25, 25, 25, 0, 0, 0, 2, 2, 0, 0, 0)),
        ("f4", [3, 4], [3, 5], (29, 25, 34, 1, 1, 0.2, 1, 1, 1, 0, 0)),
        ("f8", [1.0005, 1.004, 1.01], [1, 1, 1], None),
        ("f8", [1001, 1005], [1000, 1000], (2006000, 2012026, 2000000, 26, 5, 0.005, 0, 1, 2, 0, 0)),
        ("f4", [0, -0.0], [-0.0, 0], (0, 0, 0, 0, 0, 0, 2, 2, 0, 0, 0)),
        ("f4", [0.5, 0], [0, 0], (0, 0.25, 0, 0.25, 0.5, 2251799813685248, 1, 1, 1, 0, 0)),
        ("f8", [2.0**-200], [0], (0, 2.0**-400, 0, 2.0**-400, 2.0**-200, 0, 1, 1, 1, 0, 0)),
        ("f4", [NAN, 2], [NAN, 2], (4, 4, 4, 0, 0, 0, 2, 2, 0, 0, 0)),
        ("f4", [NAN, 2], [1, 2], (4, 4, 4, 0, 0, 0, 2, 2, 1, 1, 0)),
        ("f4", [INF, -INF, 1], [INF, -INF, 2], (2, 1, 4, 1, 1, 0.5, 2, 2, 1, 0, 0)),
        ("f4", [INF, -INF, INF, NAN], [-INF, 7, NAN, INF], (0, 0, 0, 0, 0, 0, 4, 4, 4, 3, 1)),
        ("f8", [1e200, 1], [-1e200, 1], (-INF, INF, INF, INF, 2e200, 2, 1, 1, 1, 0, 0)),
        ("f8", [1.5e308], [-1.5e308], (-INF, INF, INF, INF, INF, INF, 0, 0, 1, 0, 0)),
        ("f8", [1.0], [5e-324], (5e-324, 1, 0, 1, 1, INF, 0, 0, 1, 0, 0)),
        ("i8", [2**60 + 1], [2**60], (2.0**120, 2.0**120, 2.0**120, 0, 0, 0, 1, 1, 1, 0, 0)),
        ("?", [True, False, True], [True, True, False], (1, 2, 2, 2, 1, 1 / EPSILON, 1, 1, 2, 0, 0)),
    ],
)
def test_by_hand(
    implementation: str, dtype: str, target: list[Any], golden: list[Any], expected: tuple[float, ...] | None
) -> None:
    t, g = np.array(target, dtype), np.array(golden, dtype)
    kind = "b1" if dtype == "?" else dtype
    check(implementation, t, kind, g, kind)
    if expected is not None:
        assert pair_by(implementation)(t.ctypes.data, kind, g.ctypes.data, kind, t.size) == expected


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_truth_is_any_byte_but_zero(implementation: str) -> None:
    target, golden = np.array([0, 1, 2, 255], "u1"), np.array([0, 1, 1, 1], "u1")
    found = pair_by(implementation)(target.ctypes.data, "b1", golden.ctypes.data, "b1", 4)
    assert found == (3, 3, 3, 0, 0, 0, 4, 4, 0, 0, 0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_overflow_in_one_part_leaves_the_counts_of_all(implementation: str) -> None:
    golden = random_values("f8", 5000, 8) * 1e200
    target = golden.copy()
    target[[1, 2000, 4999]] = [NAN, 0, 1]
    check(implementation, target, "f8", golden, "f8")


# ---- any bits, any address ----


@st.composite
def two_arrays(draw: st.DrawFn, target_kind: str, golden_kind: str) -> tuple[np.ndarray, np.ndarray]:
    def bits_of(kind: str) -> st.SearchStrategy[int]:
        size = 8 * np.dtype(DTYPES[kind]).itemsize
        special = [0, 1] if kind == "b1" else special_bits(kind) if kind in FLOATS else [0, 1, 2**size - 1]
        return (
            st.sampled_from(special)
            if kind == "b1"
            else st.integers(0, 2**size - 1) | st.sampled_from(special)
        )

    both = st.tuples(bits_of(target_kind), bits_of(golden_kind))
    if target_kind == golden_kind:
        both |= bits_of(target_kind).map(lambda bits: (bits, bits))
    drawn = draw(st.lists(both, max_size=60))
    return from_bits([t for t, _ in drawn], target_kind), from_bits([g for _, g in drawn], golden_kind)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kinds", PAIRS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_bits(implementation: str, kinds: tuple[str, str], data: st.DataObject) -> None:
    target, golden = data.draw(two_arrays(*kinds))
    check(implementation, target, kinds[0], golden, kinds[1])
    place = target.ctypes.data, kinds[0], golden.ctypes.data, kinds[1], target.size
    assert repr(kernels.pair(*place)) == repr(kernels_numpy.pair_numpy(*place))


def moved(array: np.ndarray, by: int) -> np.ndarray:
    """The same elements at an address that is not aligned."""
    memory = np.zeros(array.nbytes + by, "u1")
    memory[by:] = array.view("u1")
    return memory[by:].view(array.dtype)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", sorted(kernels.KINDS))
@pytest.mark.parametrize("by", [1, 2, 3, 4])
def test_memory_need_not_be_aligned(implementation: str, kind: str, by: int) -> None:
    pair = pair_by(implementation)
    for count in (7, 2048, 3001):
        t, g = random_values(kind, count, 9), random_values(kind, count, 10)
        expected = pair(t.ctypes.data, kind, g.ctypes.data, kind, count)
        for other_t, other_g in [(moved(t, by), g), (t, moved(g, by)), (moved(t, by), moved(g, 5))]:
            assert pair(other_t.ctypes.data, kind, other_g.ctypes.data, kind, count) == expected


# ---- at the door ----


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((64, "f3", 64, "f4", 1), KeyError),
        ((64, "f4", 64, "", 1), KeyError),
        ((64, "f4", 64, "f4", -1), ValueError),
        ((0, "f4", 64, "f4", 1), ValueError),
        ((64, "f4", 0, "f4", 1), ValueError),
    ],
)
def test_memory_that_cannot_be(implementation: str, arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        pair_by(implementation)(*arguments)


@compiled
@pytest.mark.parametrize(
    "arguments", [(), (list, 64, "f4", 64, "f4", 0), (1, 64, "f4", 64, "f4", 0), (PairSums,)]
)
def test_the_compiled_function_checks_what_it_makes(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="pair takes a type of tuple"):
        NATIVE.pair(*arguments)


@compiled
@pytest.mark.parametrize("kind", FLOATS)
def test_subnormals_count_also_where_the_program_flushes_them(kind: str) -> None:
    torch = pytest.importorskip("torch")
    target, golden = from_bits([1, 2, 3] * 40, kind), from_bits([1, 3, 2] * 40, kind)
    place = target.ctypes.data, kind, golden.ctypes.data, kind, target.size
    expected = kernels.pair(*place)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        found = kernels.pair(*place)
        still_flushing = float(np.float32(1e-39) * np.float32(1)) == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert (found, found.unequal, still_flushing) == (expected, 80, True)


@compiled
def test_other_threads_run_meanwhile() -> None:
    """With a switch interval that never comes, only a released lock lets another thread run."""
    golden = np.ones(1 << 22, "f4")
    place = golden.ctypes.data, "f4", golden.ctypes.data, "f4", golden.size
    turns: list[int] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            turns.append(1)
            stop.wait(0.0001)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    thread.start()
    try:
        sys.setswitchinterval(1000)
        seen = len(turns)
        for _ in range(200):
            kernels.pair(*place)
            if len(turns) > seen:
                break
    finally:
        sys.setswitchinterval(before)
        stop.set()
        thread.join()
    assert len(turns) > seen
