"""A function that runs other code stays the function it is."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import pytest

from msprobe.capture.patch import Shared, replace, together
from msprobe.pytorch.exchange import Exchange, Exchanges, Replacement, exchange


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


def test_a_traceback_shows_what_runs() -> None:
    """The code has the globals of the function, in whose file nothing of it is to be looked for."""
    function = make()
    one = Exchange(function, adding(100))
    one.on()
    with pytest.raises(TypeError) as caught:
        function(None)
    one.off()
    lines = [frame.line for frame in traceback.extract_tb(caught.tb)]
    assert lines == [
        "function(None)",
        "return _stand_in(*_args, **_kwargs)",
        "return lambda original: lambda *args, **kwargs: original(*args, **kwargs) + amount",
        "return x * by * factor + plus",
    ]


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


def test_a_pause_that_nobody_ends_ends_with_them() -> None:
    """Who wanted it is inside compiled code when they go off, and is told nothing any more."""
    function = make()
    exchanges = Exchanges([Exchange(function, adding(10))])
    undo = exchanges.on()
    exchanges.pause()
    undo()
    undo = exchanges.on()
    assert function(1) == 16
    exchanges.resume()
    assert function(1) == 16
    undo()
    assert function(1) == 6


@pytest.mark.parametrize("ends", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_what_several_want_is_there_once_until_the_last(ends: tuple[int, ...]) -> None:
    function = make()
    shared = Shared(Exchanges([Exchange(function, adding(10))]).on)
    undo = [shared.on() for _ in ends]
    for place in ends:
        assert function(1) == 16
        undo[place]()
    assert (function(1), function.__dict__) == (6, {})
    shared.on()()
    assert function(1) == 6


def test_what_fails_takes_back_what_came_before_it() -> None:
    done: list[str] = []

    def install(name: str) -> Any:
        done.append(name)
        return lambda: done.append(f"no {name}")

    def fail() -> Any:
        raise ValueError("cannot")

    with pytest.raises(ValueError, match="cannot"):
        together(lambda: install("one"), lambda: install("two"), fail, lambda: install("three"))
    assert done == ["one", "two", "no two", "no one"]


class Parent:
    def work(self) -> str:
        return "parent"

    @staticmethod
    def alone() -> str:
        return "alone"


class Child(Parent):
    pass


@pytest.mark.parametrize("holder", [Parent, Child, Child()], ids=["own", "inherited", "of an object"])
@pytest.mark.parametrize("name", ["work", "alone"])
def test_a_replaced_attribute_leaves_no_trace(holder: Any, name: str) -> None:
    before = dict(vars(holder))
    undo = replace(holder, name, lambda original: lambda *_args: "other")
    assert getattr(holder, name)() == "other"
    undo()
    assert dict(vars(holder)) == before


def test_a_replacement_is_made_once_for_an_original() -> None:
    made: list[Any] = []

    def make_other(original: Any) -> Any:
        made.append(original)
        return lambda *_args: f"not {original(None)}"

    one = Replacement(Child, "work", make_other)
    for _ in range(2):
        one.on()
        assert Child().work() == "not parent"
        one.off()
        assert Child().work() == "parent"
    assert made == [Parent.work]
