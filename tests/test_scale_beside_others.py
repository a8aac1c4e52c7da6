"""A scale error is held against those of other calls of the same operator on the same device."""

from __future__ import annotations

import pytest

from msprobe.verdict.directions import ScaleError, unlike_others

UNIT = 2.0**-8  # of bfloat16


def calls(*roundings: float, deviation: float = 0.05, passed: float = 0.0) -> list[ScaleError]:
    """Calls of one kernel; their scale errors are given in roundings."""
    return [
        ScaleError(
            ("linear", "forward", UNIT), ((4, 8),), number, own * UNIT, deviation * UNIT, passed * UNIT
        )
        for number, own in enumerate(roundings)
    ]


@pytest.mark.parametrize(
    ("own", "is_doubtful", "is_named"),
    [
        (-0.9, False, False),
        (-0.7, False, False),  # other leading digits
        (0.0, True, False),  # an exact product among rounded ones may be sound
        (-0.2, True, False),
        (0.4, True, True),  # rounding toward zero makes nothing larger
        (-1.9, True, True),
    ],
)
def test_a_call_beside_others_that_round_toward_zero(own: float, is_doubtful: bool, is_named: bool) -> None:
    found = unlike_others(calls(-0.9, -1.0, -0.95, own, -0.85))
    assert set(found) == ({3} if is_doubtful else set())
    assert [unlike.score > 1 for unlike in found.values()] == ([is_named] if is_doubtful else [])


def test_calls_that_differ_among_themselves_say_nothing_of_one() -> None:
    assert unlike_others(calls(-0.9, 0.5, -0.2, 0.9, -0.6)) == {}


def test_a_scale_error_that_is_not_known_well_is_not_judged() -> None:
    assert unlike_others(calls(-0.9, -1.0, -0.95, 0.4, deviation=0.3)) == {}


def test_what_the_arguments_bring_counts_as_noise() -> None:
    assert unlike_others(calls(-0.9, -1.0, -0.95, 0.4, passed=10.0)) == {}


def test_calls_of_other_shapes_make_it_doubtful_at_most() -> None:
    group = [
        call._replace(shapes=((number, 8),))
        for number, call in enumerate(calls(-0.9, -1.0, -0.95, 0.4, -0.85))
    ]
    assert {number: unlike.score for number, unlike in unlike_others(group).items()} == {3: 0.0}
