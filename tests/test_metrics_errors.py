"""What a result and its reference say about each other, against the formulas written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from msprobe.kernels_error import Terms, error_sums
from msprobe.metrics.errors import Bound, Spread, measure_error

NAN, INF = math.nan, math.inf
RANDOM = np.random.default_rng(7)


def made(shape: tuple[int, ...], noise: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    reference = RANDOM.normal(0.3, 1.0, shape)
    return reference * (1.0 + noise * RANDOM.normal(0.1, 1.0, shape)), reference


def block_sums(values: np.ndarray, axis: int) -> np.ndarray:
    return values.sum(axis=tuple(other for other in range(values.ndim) if other != axis))


def deviation_of_scale(result: np.ndarray, reference: np.ndarray) -> float:
    error = result - reference
    scale = (error * reference).sum() / (reference**2).sum()
    left = (error - scale * reference) * reference
    found = []
    for axis, size in enumerate(reference.shape):
        if size >= 8:
            sums, squares = block_sums(left, axis), block_sums(reference**2, axis)
            found.append((size - 1) / size * ((sums / (squares.sum() - squares)) ** 2).sum())
    return math.sqrt(max(found))


def deviation_of_shift(result: np.ndarray, reference: np.ndarray) -> float:
    error = result - reference
    left = error - error.mean()
    found = [
        size / (size - 1) * (block_sums(left, axis) ** 2).sum() / (error.size * (reference**2).sum())
        for axis, size in enumerate(reference.shape)
        if size >= 8
    ]
    return math.sqrt(max(found))


def spread(result: np.ndarray, reference: np.ndarray, axis: int) -> Spread:
    error = result - reference
    whole = (error * reference).sum() / (reference**2).sum()
    apart, left, squares = 0.0, 0.0, 0.0
    for index in range(reference.shape[axis]):
        e, g = np.take(error, index, axis).ravel(), np.take(reference, index, axis).ravel()
        own = (e @ g) / (g @ g)
        if (g @ g) ** 2 < 4 * (g**4).sum():
            continue
        apart += (g @ g) * (own - whole) ** 2
        left += (((e - own * g) * g) ** 2).sum() / (g @ g)
        squares += g @ g
    return Spread(math.sqrt(apart / squares), math.sqrt(left / squares))


@pytest.mark.parametrize("shape", [(40,), (9, 30), (12, 5, 33), (2, 3, 17, 20), (3, 1, 50), (300, 700)])
def test_formulas(shape: tuple[int, ...]) -> None:
    result, reference = made(shape)
    error = result - reference
    found = measure_error(result, reference)
    assert found.numbers == reference.size
    assert found.mismatched == 0
    assert found.error_norm == pytest.approx(np.linalg.norm(error))
    assert found.reference_norm == pytest.approx(np.linalg.norm(reference))
    assert found.relative == pytest.approx(np.linalg.norm(error) / np.linalg.norm(reference))
    assert found.scale == pytest.approx((error * reference).sum() / (reference**2).sum())
    assert found.shift == pytest.approx(error.mean() / math.sqrt((reference**2).mean()))
    assert found.scale_deviation == pytest.approx(deviation_of_scale(result, reference))
    assert found.shift_deviation == pytest.approx(deviation_of_shift(result, reference))
    assert found.peak == pytest.approx(np.abs(error).max() / math.sqrt((error**2).mean()))
    assert found.largest == pytest.approx(np.abs(error).max())
    assert found.peak_index == np.unravel_index(np.abs(error).argmax(), shape)


@pytest.mark.parametrize("shape", [(9, 30), (12, 5, 33), (20, 3, 17, 20), (12, 1, 33)])
def test_spread_of_the_scale_by_index(shape: tuple[int, ...]) -> None:
    result, reference = made(shape)
    found = measure_error(result, reference).spreads
    expected = [spread(result, reference, axis) for axis, size in enumerate(shape) if size > 1]
    assert np.array(found) == pytest.approx(np.array(expected))


@pytest.mark.parametrize("shape", [(400, 64), (20, 64, 20)])
def test_channels_scaled_in_turn_have_no_scale_error_but_spread(shape: tuple[int, ...]) -> None:
    """The channels of a picture are its second axis, those of a row of words its last."""
    _, reference = made(shape)
    noisy = reference * (1.0 + 0.003 * RANDOM.normal(0.0, 1.0, reference.shape))
    factors = np.where(np.arange(64) % 2, 1.03, 0.97).reshape(64, *[1] * (len(shape) - 2))
    sound, faulty = measure_error(noisy, reference), measure_error(noisy * factors, reference)
    assert abs(faulty.scale or 0.0) < 0.002
    assert all(spread.size < 2 * spread.noise for spread in sound.spreads)
    assert [spread.size > 20 * spread.noise for spread in faulty.spreads] == [size == 64 for size in shape]


def test_errors_that_are_alike_in_a_row_count_once() -> None:
    """10 000 numbers with one error for each of 100 rows tell the scale error as well as 100 numbers do."""
    reference = np.ones((100, 100))
    result = reference * (1.0 + 0.01 * RANDOM.normal(0.0, 1.0, (100, 1)))
    found = measure_error(result, reference)
    assert found.scale_deviation == pytest.approx(0.01 / 10, rel=0.3)


def test_one_number_that_carries_the_norm_tells_nothing_about_the_scale() -> None:
    """Its own rounding is the scale error of the whole, and the numbers beside it do not agree."""
    reference = np.ones((20, 20))
    reference[3, 4] = 1e4
    result = reference * (1.0 + 1e-3 * RANDOM.normal(0.0, 1.0, reference.shape))
    result[3, 4] = 1e4 * 1.003
    found = measure_error(result, reference)
    assert found.scale == pytest.approx(0.003, rel=0.01)
    assert found.scale_deviation is not None and found.scale_deviation > 0.002
    assert measure_error(np.array([3.0, *[0.0] * 9]), np.array([2.0, *[0.0] * 9])).scale_deviation is None


def test_scale_error_stands_out_of_rounding() -> None:
    """1.005 in bfloat16, whose rounding is 0.4 %: more than 12 standard errors."""
    _, reference = made((128, 256))
    for factor, stands_out in ((1.0, False), (1.005, True)):
        single = (reference * factor).astype(np.float32).view(np.uint32)
        rounded = ((single + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
        found = measure_error(rounded, reference)
        assert found.scale is not None and found.scale_deviation is not None
        assert (abs(found.scale) > max(2.0**-8, 12 * found.scale_deviation)) == stands_out


def test_few_numbers() -> None:
    """Fewer than 8 blocks: no standard error; without an axis of 8 indices the numbers are cut into 8."""
    few = measure_error(np.array([1.5, 2.0]), np.array([1.0, 2.0]))
    assert (few.scale, few.scale_deviation, few.spreads) == (0.1, None, ())
    assert measure_error(np.float32(1.25), np.array(1.0)).relative == 0.25
    result, reference = made((4, 5, 6))
    found = measure_error(result, reference)
    error = (result - reference).ravel()
    flat, scale = reference.ravel(), found.scale
    assert scale is not None
    parts = np.split(np.arange(120), np.arange(15, 120, 15))
    sums = [
        ((error - scale * flat) * flat)[part].sum() / ((flat @ flat) - (flat[part] @ flat[part]))
        for part in parts
    ]
    expected = math.sqrt(7 / 8 * sum(each**2 for each in sums))
    assert found.scale_deviation == pytest.approx(expected)


def test_numbers_that_are_not_finite() -> None:
    result = np.array([NAN, INF, INF, -INF, 1.0, 2.0, 7.0], np.float32)
    reference = np.array([NAN, INF, -INF, 5.0, NAN, 2.0, 8.0])
    found = measure_error(result, reference)
    assert (found.numbers, found.mismatched, found.error_norm, found.peak_index) == (2, 3, 1.0, (6,))
    assert found.relative == pytest.approx(1 / math.sqrt(68))


def test_reference_beyond_the_dtype_of_the_result_is_infinite() -> None:
    found = measure_error(np.array([INF, 1.0]), np.array([7e4, 1.0]), overflow=65504.0)
    assert (found.mismatched, found.numbers, found.relative) == (0, 1, 0.0)
    assert measure_error(np.array([INF, 1.0]), np.array([7e4, 1.0])).mismatched == 1


def test_zeros_and_nothing() -> None:
    zeros = np.zeros((10, 10))
    assert measure_error(zeros, zeros).relative == 0.0
    found = measure_error(zeros + 1e-30, zeros)
    assert (found.relative, found.scale, found.shift) == (INF, None, None)
    assert found.error_norm == pytest.approx(1e-29)
    empty = measure_error(np.zeros((0, 4)), np.zeros((0, 4)))
    assert (empty.numbers, empty.relative, empty.scale, empty.peak) == (0, 0.0, None, 0.0)


@pytest.mark.parametrize("size", [1e-300, 1e-80, 1e80, 1e300])
def test_very_large_and_very_small_numbers(size: float) -> None:
    result, reference = made((20, 40))
    plain, sized = measure_error(result, reference), measure_error(result * size, reference * size)
    for name in ("relative", "scale", "scale_deviation", "shift", "spreads", "peak"):
        ours, theirs = (np.array(getattr(each, name)) for each in (sized, plain))
        assert ours == pytest.approx(theirs, rel=1e-6), name


def test_elements_beyond_a_bound() -> None:
    reference = np.array([1.0, 10.0, 0.0, 100.0])
    result = np.array([1.02, 10.2, 0.05, 100.0])
    assert measure_error(result, reference).beyond == 0
    assert measure_error(result, reference, bound=Bound(0.03)).beyond == 1
    assert measure_error(result, reference, bound=Bound(0.01, 0.06)).beyond == 1
    assert measure_error(result, reference, bound=Bound(0.01)).beyond == 3


def test_one_wrong_element_is_a_peak() -> None:
    result, reference = made((50, 60), 1e-3)
    result[31, 7] += 0.5
    found = measure_error(result, reference)
    assert found.peak > 40
    assert found.peak_index == (31, 7)


def test_complex_numbers_are_pairs_of_real_ones() -> None:
    result, reference = made((30, 8, 2))
    pairs = measure_error(result, reference)
    whole = measure_error(result[..., 0] + 1j * result[..., 1], reference[..., 0] + 1j * reference[..., 1])
    assert whole == pairs


def test_integers_and_booleans() -> None:
    assert measure_error(np.array([2, 3]), np.array([2, 4])).error_norm == 1.0
    assert measure_error(np.array([True, False]), np.array([True, True])).error_norm == 1.0


def odd_numbers(shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of a dtype, with NaN and infinities on one side and on both."""
    pair = tuple(each.astype(dtype) for each in made(shape))
    for each, values in zip(pair, ((NAN, INF, INF, 1), (NAN, INF, -INF, NAN)), strict=True):
        each.reshape(-1)[[0, 3, 5, 8]] = values
    return pair[0], pair[1]


@pytest.mark.parametrize("terms", [Terms(), Terms(3, 2.0, 0.01, 0.001), Terms(-100)])
def test_numpy_adds_up_as_the_kernel_does(monkeypatch: pytest.MonkeyPatch, terms: Terms) -> None:
    """Bit by bit, also of arrays of several parts and of numbers that lie anywhere in memory."""
    pairs = [made((7, 40)), made((60, 9)), made((1, 3000)), made((3, 2050)), made((50, 1)), made((0, 3))]
    pairs += [odd_numbers((30, 5), dtype) for dtype in ("float16", "float32", "float64")]
    memory = np.frombuffer(b"-" + pairs[0][0].tobytes(), np.uint8)[1:].view(np.float64).reshape(7, 40)
    pairs += [(memory, pairs[0][1].astype(np.float32)), (np.arange(12).reshape(4, 3), np.ones((4, 3), bool))]
    found = [error_sums(*pair, terms) for pair in pairs]
    monkeypatch.setattr("msprobe.kernels._native", None)
    for at_once in (1 << 15, 16):
        monkeypatch.setattr("msprobe.kernels_error._AT_ONCE", at_once)
        for pair, expected in zip(pairs, found, strict=True):
            with np.errstate(all="ignore"):
                again = error_sums(*pair, terms)
            assert all(np.array_equal(*each) for each in zip(again, expected, strict=True)), pair[0].shape


@pytest.mark.parametrize("size", [1e-300, 1e-60, 1e60, 1e300])
def test_no_size_of_numbers_changes_the_measures(size: float) -> None:
    """Their fourth powers would leave the range of float64."""
    result, reference = made((12, 30))
    plain, found = measure_error(result, reference), measure_error(result * size, reference * size)
    assert found.scale_deviation == pytest.approx(plain.scale_deviation)
    assert found.error_norm == pytest.approx(plain.error_norm * size)
    for ours, theirs in zip(found.spreads, plain.spreads, strict=True):
        assert ours == pytest.approx(theirs)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\), but the reference \(3,\)"):
        measure_error(np.zeros(2), np.zeros(3))
