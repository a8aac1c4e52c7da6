"""The numbers of free_benchmark: how values are perturbed, when two answers agree, what preheating learns."""

import math
from typing import Any

import numpy as np
import pytest

from msprobe.analyse import stability
from msprobe.analyse.preheat import Preheat, Sample
from msprobe.perturb import EMPTY, NO_DTYPE, ONE_VALUE, TOO_SMALL, add_noise, bit_noise, change_value
from msprobe.store.dtypes import TensorData

INF, NAN = math.inf, math.nan


def tensor(values: Any, dtype: str = "float32") -> TensorData:
    if dtype == "bfloat16":
        bits = (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return TensorData(bits.tobytes(), dtype, bits.shape)
    array = np.asarray(values, dtype)
    return TensorData(array.tobytes(), dtype, array.shape)


def values(data: TensorData | str) -> list[float]:
    assert not isinstance(data, str), data
    return [float(value) for value in stability.values_of(data)]


# --- perturbing ---


@pytest.mark.spec("C038", "PT", "MSd")
@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        # Where a value is larger than the root of the noise; at 1.0 float32 has no place for it.
        ("float32", [2**-10, 0.00005, 1.0, -(2**-10)], [2**-10 + 1e-8, 0.00005, 1.0, -(2**-10) + 1e-8]),
        ("float64", [1e-7, 1e-9], [1e-7 + 1e-16, 1e-9]),
        ("float16", [0.0009765625, 0.0018], [0.0009765625, 0.0018 + 2**-20]),  # below 1e-3: as it was
        ("bfloat16", [0.015625, 0.0078125], [0.015625 + 2**-13, 0.0078125]),  # to the nearest bfloat16
    ],
)
def test_noise_is_added(dtype: str, given: list[float], expected: list[float]) -> None:
    seen = values(add_noise(tensor(given, dtype)))
    wanted = values(tensor(expected, dtype))
    assert seen == wanted


def test_noise_leaves_what_is_not_finite() -> None:
    seen = values(add_noise(tensor([INF, -INF, NAN, 0.5])))
    assert seen[:2] == [INF, -INF]
    assert math.isnan(seen[2])


@pytest.mark.spec("C040", "PT", "MSd")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_last_bit_is_flipped(dtype: str) -> None:
    given = tensor([1.0, -2.0, 3.5, 0.0], dtype)
    size = len(bytes(given.data)) // 4
    before = np.frombuffer(given.data, f"u{size}")
    seen = bit_noise(given)
    assert isinstance(seen, TensorData)
    assert (np.frombuffer(seen.data, f"u{size}") ^ before).tolist() == [1, 1, 1, 0]


def test_bits_of_what_is_not_finite_or_next_to_nothing_stay() -> None:
    given = tensor([INF, -INF, NAN, 1e-40, 1.0])
    seen = bit_noise(given)
    assert isinstance(seen, TensorData)
    assert bytes(seen.data)[:16] == bytes(given.data)[:16]
    assert values(seen)[4] == 1.0 + 2**-23


@pytest.mark.spec("C041", "PT")
@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4,), [3, 1, 2, 0]),
        ((2, 2), [3, 1, 2, 0]),
        ((1, 3), [2, 1, 0]),
        ((2, 2, 2), [6, 7, 2, 3, 4, 5, 0, 1]),
    ],
)
def test_first_and_last_change_places(shape: tuple[int, ...], expected: list[float]) -> None:
    given = tensor(np.arange(math.prod(shape)).reshape(shape))
    assert values(change_value(given)) == expected


@pytest.mark.parametrize(
    ("perturb", "given", "reason"),
    [
        (add_noise, tensor([]), EMPTY),
        (bit_noise, tensor([]), EMPTY),
        (add_noise, tensor([1e-9, 0.0, NAN]), TOO_SMALL),
        (bit_noise, tensor([1e-9, -1e-10]), TOO_SMALL),
        (add_noise, TensorData(b"\1", "float8_e5m2", (1,)), NO_DTYPE),
        (change_value, tensor(1.0), ONE_VALUE),
        (change_value, tensor([1.0]), ONE_VALUE),
        (change_value, tensor([[1.0], [2.0]])._replace(data=b"", shape=(0, 2)), ONE_VALUE),
    ],
)
def test_what_is_left_as_it_is_has_a_reason(perturb: Any, given: TensorData, reason: str) -> None:
    assert perturb(given) == reason


def test_the_original_is_not_changed() -> None:
    given = tensor([1.0, 2.0])
    before = bytes(given.data)
    for perturb in (add_noise, bit_noise, change_value):
        perturb(given)
    assert bytes(given.data) == before


# --- two answers of one device ---


def ratio(one: Any, other: Any, limit: float = 1.0002, floor: float = 1e-4) -> stability.Difference:
    return stability.by_ratio(np.asarray(one, float), np.asarray(other, float), floor, limit)


@pytest.mark.spec("C029", "PT", "MSd")
@pytest.mark.spec("C056", "PT", "MSd")
@pytest.mark.parametrize(
    ("one", "other", "max_rel", "consistent", "beyond"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, True, 0),
        ([1.0, 2.0], [1.0001, 2.0], 1e-4, True, 0),
        ([1.0, 2.0, 4.0], [1.0, 2.002, 4.004], 1e-3, False, 2),
        ([2.002], [2.0], 1e-3, False, 1),  # whichever is larger
        ([1e-6, 0.0], [5e-5, -9e-5], 0.0, True, 0),  # all below the floor
        ([2e-4], [1e-6], 1.0, False, 1),  # against the floor
        ([INF, NAN, -INF], [INF, NAN, -INF], 0.0, True, 0),  # alike where they stand
        ([], [], 0.0, True, 0),
    ],
)
def test_the_largest_factor_decides(
    one: Any, other: Any, max_rel: float, consistent: bool, beyond: int
) -> None:
    seen = ratio(one, other)
    assert (seen.max_rel, seen.consistent, seen.beyond) == (pytest.approx(max_rel), consistent, beyond)


@pytest.mark.parametrize(
    ("one", "other", "max_rel", "remark"),
    [
        ([1.0, 0.5], [1.0, -0.5], None, stability.SIGN),
        ([1.0], [NAN], INF, stability.NOT_FINITE),
        ([NAN], [1.0], INF, stability.NOT_FINITE),
        ([INF], [1.0], INF, stability.NOT_FINITE),
        ([INF], [-INF], INF, stability.NOT_FINITE),
        ([1.0, 2.0], [1.0], None, stability.SHAPE),
    ],
)
def test_what_no_factor_says(one: Any, other: Any, max_rel: float | None, remark: str) -> None:
    seen = ratio(one, other)
    assert (seen.max_rel, seen.remark, seen.consistent) == (max_rel, remark, False)
    assert seen.ratio == INF


@pytest.mark.spec("C039", "PT", "MSd")
def test_nothing_may_move_without_a_perturbation() -> None:
    assert ratio([1.0], [1.0], stability.EXACT).consistent
    assert not ratio([1.0], [1.0 + 2**-52], stability.EXACT).consistent


def test_the_rule_holds_beyond_one_block_of_elements() -> None:
    one = np.ones(300_000)
    other = one.copy()
    other[-1] = 1.5
    seen = stability.by_ratio(one, other, 1e-4, 1.0002)
    assert (seen.max_rel, seen.beyond, seen.size) == (0.5, 1, 300_000)


@pytest.mark.parametrize(
    ("dtype", "limit", "floor"),
    [
        ("float16", 1.002, 1e-3),
        ("bfloat16", 1.004, 1e-2),
        ("float32", 1.0002, 1e-4),
        ("float64", 1.0002, 1e-8),
        ("int64", 1.0002, 1e-4),
    ],
)
def test_limits_and_floors_of_dtypes(dtype: str, limit: float, floor: float) -> None:
    assert stability.limit_of(dtype) == limit
    assert stability.floor_of(dtype, of_gradients=False) == pytest.approx(floor)
    assert stability.floor_of(dtype, of_gradients=True) == 1e-3


def test_complex_numbers_are_two_of_them() -> None:
    data = tensor([1 + 2j, 3j], "complex64")
    assert values(data) == [1, 2, 0, 3]


# --- an answer of the host ---


@pytest.mark.spec("C042", "PT")
@pytest.mark.parametrize(
    ("one", "other", "dtype", "consistent"),
    [
        ([0.5], [0.5 + 2**-14], "float32", True),  # absolute, below one
        ([0.5], [0.5 + 2**-13], "float32", False),
        ([1000.0], [1000.05], "float32", True),  # relative, from one on
        ([1000.0], [1000.1], "float32", False),
        ([0.5], [0.5 + 2**-11 - 1e-4], "float16", False),  # the mean error is beyond 1e-4
        ([0.5, 0.5], [0.5 + 2**-11, 0.5 - 2**-11], "float16", True),
        ([0.5, 0.5], [0.5 + 2**-10, 0.5 - 2**-10], "float16", False),
        ([0.5, 0.5], [0.5 + 2**-8, 0.5 - 2**-8], "bfloat16", True),
        ([INF, NAN], [INF, NAN], "float32", True),
        ([INF], [1.0], "float32", False),
        ([1.0], [NAN], "float32", False),
        ([], [], "float32", True),
    ],
)
def test_errors_against_the_host(one: Any, other: Any, dtype: str, consistent: bool) -> None:
    seen = stability.by_error(np.asarray(one, float), np.asarray(other, float), dtype)
    assert seen.consistent is consistent


# --- preheating ---


def steps(preheat: Preheat, calls: int, count: int) -> list[list[int]]:
    """Which calls of each step are sampled, where every step makes so many."""
    seen = []
    for _ in range(count):
        preheat.begin_step()
        sampled = [number for number in range(1, calls + 1) if preheat.is_sample("A")]
        for _ in sampled:
            preheat.note("A", [])
        seen.append(sampled)
        preheat.end_step()
    return seen


@pytest.mark.spec("C048", "PT")
@pytest.mark.spec("C049", "PT")
@pytest.mark.parametrize(
    ("preheat_step", "max_sample", "calls", "expected"),
    [
        (3, 20, 7, [[], [1, 4, 7], [1, 2, 5], []]),  # 1, 1+3, 1+6; 2, 2+3, 2+6 = 1 of the next round
        (3, 2, 7, [[], [1, 4], [2, 5], []]),
        (15, 20, 1, [[], [1], [1], [1]]),
        (2, 20, 4, [[], [1, 3], [], []]),
    ],
)
def test_all_calls_have_their_turn(
    preheat_step: int, max_sample: int, calls: int, expected: list[list[int]]
) -> None:
    assert steps(Preheat(preheat_step, max_sample), calls, 4) == expected


def learn(*samples: tuple[float, bool], least: float = 1.0002) -> tuple[float, bool]:
    """The limit after a step with these samples (ratio, the host agrees), and whether it is settled."""
    preheat = Preheat(10, 20)
    for step in range(2):
        preheat.begin_step()
        for _ in range(len(samples) * 10 if step == 0 else 1):
            preheat.is_sample("A")
        if step:
            for one in samples:
                preheat.note("A", [Sample("float32", *one, least)])
        preheat.end_step()
    preheat.begin_step()
    return preheat.limit("A", "float32", least), not any(preheat.is_sample("A") for _ in range(100))


@pytest.mark.spec("C047", "PT")
@pytest.mark.parametrize(
    ("samples", "limit", "settled"),
    [
        (((1.1, True),), 1.525, False),  # good and below the limit: half as wide
        (((3.0, True),), 3.1, False),  # good and beyond it: twice as wide
        (((1.5, False),), 1.5, True),
        (((9.0, False),), 2.05, True),
        (((1.1, True), (1.5, False)), 1.5, True),
        (((1.5, True), (1.1, False)), 2.05, False),  # they say nothing
        (((1.00001, False),), 1.0002, True),  # never below that of the dtype
    ],
)
def test_limits_are_learnt(samples: Any, limit: float, settled: bool) -> None:
    assert learn(*samples) == (pytest.approx(limit), settled)


def test_the_first_limit_is_wide_and_other_dtypes_keep_it() -> None:
    preheat = Preheat(10, 20)
    assert preheat.limit("A", "float32", 1.0002) == 2.05


@pytest.mark.spec("C047", "PT")
def test_the_first_step_only_counts() -> None:
    preheat = Preheat(10, 20)
    preheat.begin_step()
    assert not preheat.compares
    preheat.end_step()
    preheat.begin_step()
    assert preheat.compares
