"""A function that runs other code stays the function it is."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from msprobe.pytorch.exchange import Exchange, Exchanges, exchange


def make() -> Any:
    factor = 2

    def scale(x: int, by: int = 3, *, plus: int = 0) -> int:
        """Scale a number."""
        return x * by * factor + plus

    return scale


def adding(amount: int) -> Any:
    return lambda original: lambda *args, **kwargs: original(*args, **kwargs) + amount


def test_it_is_the_same_object_with_the_same_looks() -> None:
    function = make()
    before = (
        function.__code__,
        dict(function.__dict__),
        inspect.signature(function),
        inspect.getsource(function),
    )
    one = Exchange(function, adding(100))
    one.on()
    assert (function(1), function(1, 5, plus=1), one.original(1)) == (106, 111, 6)
    assert (inspect.signature(function), inspect.getsource(function)) == before[2:]
    assert (function.__name__, function.__doc__) == ("scale", "Scale a number.")
    one.off()
    assert (function.__code__, dict(function.__dict__)) == before[:2]
    assert function(1) == 6


@pytest.mark.parametrize("first_off", [0, 1, 2])
@pytest.mark.parametrize("then_off", [0, 1])
def test_exchanges_may_end_in_any_order(first_off: int, then_off: int) -> None:
    function = make()
    code = function.__code__
    amounts = [10, 100, 1000]
    active = [(amount, Exchange(function, adding(amount))) for amount in amounts]
    for _, one in active:
        one.on()
    for place in (first_off, then_off, 0):
        assert function(1) == 6 + sum(amount for amount, _ in active)
        assert inspect.signature(function).parameters.keys() == {"x", "by", "plus"}
        active.pop(place)[1].off()
    assert (function(1), function.__code__, function.__dict__) == (6, code, {})


def test_an_exchange_can_be_used_again_over_another_one() -> None:
    function = make()
    ours = Exchange(function, adding(10))
    ours.on()
    ours.off()
    other = exchange(function, lambda *_args, **_kwargs: 1)
    ours.on()
    assert function(1) == 11
    ours.off()
    assert function(1) == 1
    other.undo()
    assert function(1) == 6


def test_they_pause_while_anyone_wants_them_to() -> None:
    function = make()
    exchanges = Exchanges([Exchange(function, adding(10))])
    exchanges.pause()
    undo = exchanges.on()
    assert function(1) == 6
    exchanges.pause()
    exchanges.resume()
    assert function(1) == 6
    exchanges.resume()
    assert function(1) == 16
    exchanges.pause()
    undo()
    exchanges.resume()
    assert function(1) == 6
