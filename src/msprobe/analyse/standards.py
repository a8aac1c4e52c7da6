"""How a result is judged: alone, against a more precise reference; and by its API's standard, beside another
device that was held against the same reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from msprobe.analyse.accuracy import Accuracy
from msprobe.analyse.standard_table import ABSOLUTE, BINARY, COARSE, THOUSANDTH, ULP, limits_of
from msprobe.plural import counted

PASS, WARNING, ERROR, SKIP = "pass", "warning", "error", "SKIP"
_WORST_FIRST = (ERROR, WARNING, PASS, SKIP)

_COSINE = 0.99
_SMALL_ERROR = 0.001
_HUNDREDTH, _THOUSANDTH, _TEN_THOUSANDTH = 0.99, 0.999, 0.9999
_ZERO_SHARE = 0.1  # by which the zeros of two dropouts may differ
_ENOUGH_FOR_SHARE = 100


class Verdict(NamedTuple):
    status: str
    message: str = ""


class Standard(Enum):
    """The value is its name in the table."""

    ABSOLUTE = "绝对阈值法"
    BINARY = "二进制一致法"
    ULP = "ULP误差比对法"
    THOUSANDTH = "双千指标法"
    BENCHMARK = "标杆比对法"


def standard_of(api: str, *, is_float: bool) -> Standard:
    if not is_float or api in BINARY:
        return Standard.BINARY
    if api in ABSOLUTE:
        return Standard.ABSOLUTE
    if api in ULP:
        return Standard.ULP
    return Standard.THOUSANDTH if api in THOUSANDTH else Standard.BENCHMARK


def worst(statuses: Iterable[str]) -> str:
    """Of a call the worst of its results; one that was skipped does not count beside one that was not."""
    found = set(statuses)
    return next((status for status in _WORST_FIRST if status in found), "")


# ---- a result alone ----


def judge(accuracy: Accuracy, dtype: str) -> Verdict:
    """The status of one result."""
    if accuracy.cosine is None and accuracy.max_abs is None:
        if accuracy.error_rate == 0:
            return Verdict(PASS)
        return Verdict(ERROR, f"{accuracy.error_rate:.2%} of the elements differ, and none may.")
    return _judge_floats(accuracy, dtype)


def _judge_floats(accuracy: Accuracy, dtype: str) -> Verdict:
    if accuracy.mismatched:
        found = counted(accuracy.mismatched, "element", "are")
        return Verdict(ERROR, f"{found} inf or nan on one side alone, or not the same.")
    if accuracy.cosine is not None and not accuracy.cosine > _COSINE:
        return Verdict(ERROR, f"The cosine similarity is not above {_COSINE}.")
    fails, passes = _shares(accuracy, coarse=dtype in COARSE)
    if accuracy.max_abs is not None and accuracy.max_abs < _SMALL_ERROR:
        small = f"The largest absolute error is below {_SMALL_ERROR}."
        return Verdict(PASS, small if fails[1] > fails[2] else f"{small} But: {_too_few(*fails)}")
    if not fails[1] > fails[2]:
        return Verdict(ERROR, _too_few(*fails))
    if not passes[1] > passes[2]:
        return Verdict(WARNING, _too_few(*passes))
    return Verdict(PASS)


def _shares(accuracy: Accuracy, *, coarse: bool) -> tuple[tuple[float, float, float], ...]:
    """The relative error, the share of elements below it, and the least share: for error and for warning."""
    hundredth = (0.01, accuracy.hundredth, _HUNDREDTH)
    thousandth = (0.001, accuracy.thousandth, _THOUSANDTH)
    ten_thousandth = (0.0001, accuracy.ten_thousandth, _TEN_THOUSANDTH)
    return (hundredth, thousandth) if coarse else (thousandth, ten_thousandth)


def _too_few(error: float, share: float, least: float) -> str:
    return (
        f"Only {share:.2%} of the elements have a relative error below {error:g}; more than {least:.2%} must."
    )


def judge_zeros(checked: float, reference: float, count: int) -> Verdict:
    """A dropout: which elements it drops is chance, but not how many."""
    apart = abs(checked - reference)
    if count < _ENOUGH_FOR_SHARE or apart < _ZERO_SHARE:
        return Verdict(PASS, "A dropout is judged by its share of zeros alone.")
    return Verdict(ERROR, f"The shares of zeros, {checked:.2%} and {reference:.2%}, are too far apart.")


# ---- beside another device ----


class Compared(NamedTuple):
    """One result of two devices: cells by the names of their columns in the table, and the verdict."""

    cells: dict[str, float | str]
    verdict: Verdict


_RATIOS = (
    # column, where it comes from, largest ratio; [8.3.3] error balance is shown, and decides nothing
    ("小值域错误比值", "小值域判定结果", "small_share", 2.0, True),
    ("均方根误差比值", "均方根误差判定结果", "rmse", 2.0, True),
    ("相对误差最大值比值", "相对误差最大值判定结果", "max_relative", 10.0, True),
    ("相对误差平均值比值", "相对误差平均值判定结果", "mean_relative", 2.0, True),
    ("误差均衡性比值", "误差均衡性判定结果", "balance", 2.0, False),
)
_RATES = (
    ("inf/nan错误率", "inf/nan判定结果", "not_finite_rate"),
    ("相对误差错误率", "相对误差判定结果", "relative_rate"),
    ("绝对误差错误率", "绝对误差判定结果", "absolute_rate"),
)
# [8.3.3], where a ratio of exactly 1 fails; but a device that does as well as the trusted one does well.
_MEAN_ULP, _ULP_SHARE, _COARSE_ULP_SHARE = 64.0, 0.05, 0.001


def compare(standard: Standard, dtype: str, target: Accuracy, golden: Accuracy) -> Compared:
    """By the standard: `golden` is how the trusted device did against its own reference."""
    if standard is Standard.BINARY:
        return _all_zero([("二进制一致错误率", "二进制一致错误率判定结果", "error_rate")], target)
    if standard is Standard.ABSOLUTE:
        return _all_zero(_RATES, target)
    if standard is Standard.ULP:
        return _compare_ulp(dtype, target, golden)
    if standard is Standard.THOUSANDTH:
        good = target.thousandth >= _THOUSANDTH
        cells: dict[str, float | str] = {"双千指标": target.thousandth, "双千指标判定结果": _word(good)}
        return Compared(cells, _verdict([] if good else ["双千指标"]))
    return _compare_ratios(dtype, target, golden)


def _all_zero(rates: Sequence[tuple[str, str, str]], target: Accuracy) -> Compared:
    cells: dict[str, float | str] = {}
    for column, result, field in rates:
        rate = getattr(target, field)
        cells |= {column: rate, result: _word(rate == 0)}
    return Compared(cells, _verdict([c for c, _, field in rates if getattr(target, field) != 0]))


def _compare_ratios(dtype: str, target: Accuracy, golden: Accuracy) -> Compared:
    cells: dict[str, float | str] = {}
    failed = []
    for column, result, field, most, decides in _RATIOS:
        ratio = _ratio(getattr(target, field), getattr(golden, field), dtype)
        good = ratio <= most
        cells |= {column: ratio, result: _word(good)}
        if decides and not good:
            failed.append(column)
    return Compared(cells, _verdict(failed))


def _compare_ulp(dtype: str, target: Accuracy, golden: Accuracy) -> Compared:
    ratio = _ratio(target.ulp_share, golden.ulp_share, dtype)
    if dtype in COARSE:
        good = target.ulp_share < _COARSE_ULP_SHARE or ratio <= 1
    else:
        good = target.mean_ulp < _MEAN_ULP or target.ulp_share < _ULP_SHARE or ratio <= 1
    cells: dict[str, float | str] = {
        "ULP误差平均值": target.mean_ulp,
        "ULP误差大于阈值占比": target.ulp_share,
        "ULP误差大于阈值占比比值": ratio,
        "ULP误差判定结果": _word(good),
    }
    return Compared(cells, _verdict([] if good else ["ULP误差"]))


def _ratio(target: float, golden: float, dtype: str) -> float:
    if math.isnan(target) or math.isnan(golden):
        return math.nan
    return abs(target) / max(abs(golden), limits_of(dtype).floor)


def _word(good: bool) -> str:
    return PASS if good else ERROR


def _verdict(failed: Sequence[str]) -> Verdict:
    return Verdict(ERROR, f"Beyond the standard: {', '.join(failed)}.") if failed else Verdict(PASS)
