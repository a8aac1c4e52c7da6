"""How a result is measured against its reference, and judged: by itself, and by the standard of its API."""

from __future__ import annotations

import math

import numpy as np
import pytest

from msprobe.analyse.accuracy import Accuracy, Values, measure, rounded, undetermined, zero_share
from msprobe.analyse.standard_table import ABSOLUTE, BINARY, LIMITS, THOUSANDTH, ULP
from msprobe.analyse.standards import Standard, compare, judge, judge_zeros, standard_of, worst

NAN, INF = math.nan, math.inf


def single(*numbers: float) -> Values:
    return Values(np.array(numbers, np.float32), "float32")


def double(*numbers: float) -> Values:
    return Values(np.array(numbers, np.float64), "float64")


def bfloat(*numbers: float) -> Values:
    bits = np.array(numbers, np.float32).view(np.uint32) >> 16
    return Values(bits.astype(np.uint16), "bfloat16")


def test_what_is_exact() -> None:
    assert measure(single(3, -4, 0, INF, NAN), double(3, -4, 0, INF, NAN)) == Accuracy(
        error_rate=0.0, cosine=1.0, max_abs=0.0
    )


def test_each_metric_by_hand() -> None:
    """One value too large by a quarter, one small value off by 2**-10, two exact."""
    found = measure(single(1.25, -2, 2.0**-10, 4), double(1, -2, 0, 4))
    eps = np.finfo(np.float64).eps
    ulp_of_one, ulp_of_zero = 2.0**23 / 4, 2.0**13
    cosine = (1.25 + 4 + 16) / math.sqrt((1.25**2 + 4 + 2.0**-20 + 16) * 21)
    assert found._replace(cosine=None) == Accuracy(
        error_rate=0.5,
        cosine=None,
        max_abs=0.25,
        hundredth=0.5,
        thousandth=0.5,
        ten_thousandth=0.5,
        balance=0.5,
        rmse=math.sqrt(0.25**2 / 3),
        small_share=1.0,
        max_relative=0.25 / (1 + eps),
        mean_relative=0.25 / (1 + eps) / 3,
        relative_rate=1 / 3,
        absolute_rate=1.0,
        max_ulp=ulp_of_one,
        mean_ulp=(ulp_of_one + ulp_of_zero) / 4,
        ulp_share=0.5,
    )
    assert found.cosine == pytest.approx(cosine, rel=1e-12)


@pytest.mark.parametrize(
    ("checked", "reference", "mismatched", "rate"),
    [
        (single(INF, 1), double(-INF, 1), 1, 1.0),
        (single(NAN, 1), double(3, 1), 1, 1.0),
        (single(3, 1), double(NAN, 1), 1, 1.0),
        (single(NAN, INF), double(NAN, 2), 1, 0.5),
        (single(INF, 1), double(1e39, 1), 0, 0.0),  # no float32 is as large
        (bfloat(INF, 1), single(3.4e38, 1), 0, 0.0),
    ],
)
def test_infinities(checked: Values, reference: Values, mismatched: int, rate: float) -> None:
    found = measure(checked, reference)
    assert (found.mismatched, found.not_finite_rate) == (mismatched, rate)
    assert judge(found, checked.dtype).status == ("error" if mismatched else "pass")


def test_many_elements_are_taken_in_parts() -> None:
    reference = np.random.default_rng(1).normal(size=600_001)
    checked = reference.astype(np.float32)
    whole = measure(Values(checked, "float32"), Values(reference, "float64"))
    assert whole.max_abs == np.abs(checked - reference).max()
    assert whole.mean_ulp < 0.5 and whole.error_rate == 0.0 and whole.thousandth == 1.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_to_a_dtype(dtype: str) -> None:
    import ml_dtypes

    numbers = np.random.default_rng(2).normal(size=4000) * 10.0 ** np.arange(-40, 40, 0.02)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    with np.errstate(over="ignore"):
        given = numbers.astype(np.float32) if dtype == "bfloat16" else numbers
        np.testing.assert_array_equal(rounded(numbers, dtype), given.astype(kind).astype(np.float64))


def accuracy(**fields: float) -> Accuracy:
    return Accuracy(0.1, **{"cosine": 1.0, "max_abs": 1.0, **fields})  # type: ignore[arg-type]


@pytest.mark.spec("P23", "CLI")
@pytest.mark.parametrize(
    ("found", "dtype", "status"),
    [
        (Accuracy(0.0), "int64", "pass"),
        (Accuracy(0.01), "bool", "error"),
        (accuracy(cosine=0.99), "float32", "error"),
        (accuracy(cosine=NAN), "float32", "error"),
        (accuracy(max_abs=0.0009, thousandth=0.0), "float32", "pass"),
        (accuracy(max_abs=0.001, thousandth=0.999), "float32", "error"),
        (accuracy(max_abs=NAN, thousandth=0.0), "float32", "error"),
        (accuracy(thousandth=0.9991, ten_thousandth=0.9999), "float32", "warning"),
        (accuracy(thousandth=0.9991, ten_thousandth=0.99991), "float64", "pass"),
        (accuracy(hundredth=0.99), "float16", "error"),
        (accuracy(hundredth=0.991, thousandth=0.999), "bfloat16", "warning"),
        (accuracy(hundredth=0.991, thousandth=0.9991), "float16", "pass"),
        (accuracy(hundredth=NAN), "float16", "error"),
    ],
)
def test_status(found: Accuracy, dtype: str, status: str) -> None:
    assert judge(found, dtype).status == status


def test_a_small_error_that_is_large_for_its_value_is_told() -> None:
    found = measure(single(1.01e-3, -2.02e-3), double(1e-3, -2e-3))
    verdict = judge(found, "float32")
    assert verdict.status == "pass"
    assert "But: Only 0.00% of the elements have a relative error below 0.001" in verdict.message


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["pass", "SKIP", "warning"], "warning"),
        (["SKIP", "pass"], "pass"),
        (["error", "pass"], "error"),
        (["SKIP"], "SKIP"),
        ([], ""),
    ],
)
def test_the_worst_counts(statuses: list[str], expected: str) -> None:
    assert worst(statuses) == expected


@pytest.mark.parametrize(
    ("checked", "count", "status"), [(0.15, 100, "error"), (0.15, 99, "pass"), (0.24, 100, "pass")]
)
def test_dropout_is_judged_by_its_zeros(checked: float, count: int, status: str) -> None:
    assert judge_zeros(checked, 0.25, count).status == status


def test_zeros_are_counted() -> None:
    assert zero_share(bfloat(0.0, -0.0, 1.0, 2.0)) == 0.5


def test_what_cancels_out_is_undetermined() -> None:
    """A result of cancellation changes with the last bits of its inputs; a plain one does not."""
    assert undetermined(single(3e-9), double(1e-9), double(-2e-9), 16)
    assert not undetermined(single(3e-9), double(1e-9), double(1.00001e-9), 16)
    assert not undetermined(single(1.0), double(1e-9), double(-2e-9), 16)
    assert not undetermined(single(NAN), double(1e-9), double(-2e-9), 16)


@pytest.mark.spec("P23", "CLI")
@pytest.mark.parametrize(
    ("api", "is_float", "standard"),
    [
        ("mul", True, Standard.ABSOLUTE),
        ("__add__", True, Standard.ABSOLUTE),
        ("mul", False, Standard.BINARY),
        ("topk", True, Standard.BINARY),
        ("linear", True, Standard.ULP),
        ("conv2d", True, Standard.THOUSANDTH),
        ("softmax", True, Standard.BENCHMARK),
    ],
)
def test_standard_of_an_api(api: str, is_float: bool, standard: Standard) -> None:
    assert standard_of(api, is_float=is_float) is standard


def test_no_api_has_two_standards() -> None:
    names = [*ABSOLUTE, *BINARY, *ULP, *THOUSANDTH]
    assert (len(ABSOLUTE), len(BINARY), len(ULP), len(THOUSANDTH)) == (30, 62, 17, 2)
    assert len(names) == len(set(names))


@pytest.mark.spec("P23", "CLI")
@pytest.mark.parametrize(
    ("standard", "dtype", "target", "golden", "status"),
    [
        (Standard.BINARY, "float32", {}, {}, "pass"),
        (Standard.BINARY, "float32", {"error_rate": 1e-9}, {"error_rate": 1.0}, "error"),
        (Standard.ABSOLUTE, "float32", {}, {"relative_rate": 1.0}, "pass"),
        (Standard.ABSOLUTE, "float32", {"not_finite_rate": 0.1}, {}, "error"),
        (Standard.ABSOLUTE, "float32", {"relative_rate": NAN}, {}, "error"),
        (Standard.THOUSANDTH, "float16", {"thousandth": 0.999}, {}, "pass"),
        (Standard.THOUSANDTH, "float16", {"thousandth": 0.998}, {}, "error"),
        (Standard.ULP, "float32", {"mean_ulp": 63.0, "ulp_share": 1.0}, {}, "pass"),
        (Standard.ULP, "float32", {"mean_ulp": 64.0, "ulp_share": 0.049}, {}, "pass"),
        (Standard.ULP, "float32", {"mean_ulp": 64.0, "ulp_share": 0.05}, {"ulp_share": 0.06}, "pass"),
        (Standard.ULP, "float32", {"mean_ulp": 64.0, "ulp_share": 0.05}, {"ulp_share": 0.05}, "pass"),
        (Standard.ULP, "float32", {"mean_ulp": 64.0, "ulp_share": 0.05}, {"ulp_share": 0.04}, "error"),
        (Standard.ULP, "bfloat16", {"mean_ulp": 1.0, "ulp_share": 0.001}, {}, "pass"),  # floor 2**-8
        (Standard.ULP, "bfloat16", {"ulp_share": 0.004}, {}, "error"),
        (Standard.BENCHMARK, "float32", {"rmse": 2 * 2.0**-14}, {}, "pass"),
        (Standard.BENCHMARK, "float32", {"rmse": 2.1 * 2.0**-14}, {}, "error"),
        (Standard.BENCHMARK, "float16", {"max_relative": 10.0}, {"max_relative": 1.0}, "pass"),
        (Standard.BENCHMARK, "float16", {"max_relative": 10.1}, {"max_relative": 1.0}, "error"),
        (Standard.BENCHMARK, "float16", {"balance": 1.0}, {}, "pass"),  # shown, and decides nothing
        (Standard.BENCHMARK, "float16", {"mean_relative": NAN}, {}, "error"),
    ],
)
def test_standards(
    standard: Standard, dtype: str, target: dict[str, float], golden: dict[str, float], status: str
) -> None:
    sides = [Accuracy(0.0, 1.0, 0.0)._replace(**side) for side in (target, golden)]  # type: ignore[arg-type]
    assert compare(standard, dtype, *sides).verdict.status == status


@pytest.mark.parametrize("dtype", LIMITS)
def test_correct_rounding_is_within_the_limits(dtype: str) -> None:
    limits = LIMITS[dtype]
    rounding = 2.0 ** -(limits.mantissa + 1)
    assert limits.relative >= rounding
    assert limits.small > limits.small_error >= limits.small * rounding
