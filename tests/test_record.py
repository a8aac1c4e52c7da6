"""walk() finds the leaves of nested arguments, whatever they are made of, and comes to an end."""

import dataclasses
import math
from collections import OrderedDict
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.kernels import Statistics
from msprobe.record import MAX_DEPTH, Deferred, Frame, Leaf, leaves, plain_leaf, tensors_in, walk


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Settings:
    scale: Any
    inner: Any = None


class Ours(list[Any]):
    """A list by another name."""


class Tensor:
    """Stands for a tensor of some framework."""


def see(value: Any, slot: str) -> Leaf | None:
    return Leaf("Tensor", slot) if isinstance(value, Tensor) else plain_leaf(value)


PLAIN = [
    (True, Leaf("bool", True)),
    (3, Leaf("int", 3)),
    (-2.5, Leaf("float", -2.5)),
    (math.inf, Leaf("float", math.inf)),
    (2 - 3j, Leaf("complex", "(2-3j)")),
    ("bc,bc->b", Leaf("str", "bc,bc->b")),
    (slice(None, 0), Leaf("slice", [None, 0, None])),
    (slice("a", 2.5, 1), Leaf("slice", ["a", 2.5, 1])),
    (..., Leaf("ellipsis", "...")),
    (np.float32(1.5), Leaf("float32", 1.5)),
    (np.int64(7), Leaf("int64", 7)),
    (np.bool_(True), Leaf("bool", True)),
    (np.array(2.0), Leaf("float64", 2.0)),
    (np.datetime64("2026-01-01"), Leaf("datetime64[D]", "2026-01-01")),
]


@pytest.mark.parametrize(("value", "leaf"), PLAIN, ids=[repr(value) for value, _ in PLAIN])
def test_a_plain_value_is_a_leaf(value: Any, leaf: Leaf) -> None:
    assert plain_leaf(value) == leaf


@pytest.mark.parametrize("value", [None, object(), [1], {}, np.zeros(2), len, int])
def test_what_is_not_plain_is_none(value: Any) -> None:
    assert plain_leaf(value) is None


TREES = [
    (None, None),
    ([1, None, "x"], [Leaf("int", 1), None, Leaf("str", "x")]),
    ((), []),
    (((Tensor(),), [Tensor()]), [[Leaf("Tensor", "s.0.0")], [Leaf("Tensor", "s.1.0")]]),
    ({"a": Tensor(), 1: 2}, {"a": Leaf("Tensor", "s.a"), "1": Leaf("int", 2)}),
    ({1: Tensor(), "1": 2}, {"1": Leaf("Tensor", "s.1"), "'1'": Leaf("int", 2)}),
    (OrderedDict(b=Tensor()), {"b": Leaf("Tensor", "s.b")}),
    (MappingProxyType({"b": 1}), {"b": Leaf("int", 1)}),
    (Pair(Tensor(), (2,)), {"left": Leaf("Tensor", "s.left"), "right": [Leaf("int", 2)]}),
    (Settings(0.5, [Tensor()]), {"scale": Leaf("float", 0.5), "inner": [Leaf("Tensor", "s.inner.0")]}),
    (Ours([1]), [Leaf("int", 1)]),
    ([object(), Settings], [None, None]),
]


@pytest.mark.parametrize(("value", "tree"), TREES, ids=range(len(TREES)))
def test_walk(value: Any, tree: Any) -> None:
    assert walk(value, see, "s") == tree


def test_what_contains_itself_ends() -> None:
    """Two references to itself at each level would be more leaves than atoms."""
    settings = Settings(1)
    knot: list[Any] = [settings, 2]
    settings.inner = knot
    knot += [knot, knot]
    assert walk(knot, see, "s") == [
        {"scale": Leaf("int", 1), "inner": None},
        Leaf("int", 2),
        None,
        None,
    ]


def test_the_same_thing_twice_is_no_circle() -> None:
    shared = [1]
    assert walk([shared, shared], see, "s") == [[Leaf("int", 1)], [Leaf("int", 1)]]


def test_depth_is_bounded() -> None:
    deep: Any = Tensor()
    for _ in range(MAX_DEPTH + 50):
        deep = [deep]
    tree, depth = walk(deep, see, "s"), 0
    while tree is not None:
        (tree,), depth = tree, depth + 1  # type: ignore[misc]
    assert depth == MAX_DEPTH


NESTED = st.recursive(
    st.none() | st.builds(Tensor) | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.builds(Pair, inner, inner),
)


@given(NESTED)
def test_tensors_come_in_the_order_of_the_walk(value: Any) -> None:
    seen: list[Any] = []

    def keep(item: Any, slot: str) -> Leaf | None:
        if isinstance(item, Tensor):
            seen.append(item)
        return see(item, slot)

    tree = walk(value, keep, "s")
    assert tensors_in(value, lambda item: isinstance(item, Tensor)) == seen
    assert [leaf.type for leaf in leaves(tree)].count("Tensor") == len(seen)


@pytest.mark.parametrize(
    "frame", [("/a/b.py", "12", "forward", "y = f(x), 3"), ("<string>", "1", "<module>", None)]
)
def test_frames_go_there_and_back(frame: tuple[str, str, str, str | None]) -> None:
    assert Frame.parse(str(Frame(*frame))) == frame


def test_a_frame_of_another_tool_is_its_text() -> None:
    assert Frame.parse("somewhere") == Frame("", "0", "", "somewhere")
    hostile = "File " + ", line 1, in " * 200_000  # takes for ever if each is tried as the one
    assert Frame.parse(hostile) == Frame("", "0", "", hostile)
    assert Frame.parse(f"{hostile}, \n x").code == "x"


@pytest.mark.parametrize("is_known", [False, True])
def test_statistics_are_those_that_have_arrived(is_known: bool) -> None:
    deferred, known = Deferred(), Statistics(1.0, 0.0, 0.5, 1.0)
    deferred.statistics = known if is_known else None
    assert Leaf("t", stats=deferred).statistics == (known if is_known else None)
    assert Leaf("t", stats=known).statistics == known
