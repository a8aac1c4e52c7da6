"""The modes of set_dump_switch as a Scope: which calls an old script means, by their old names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msprobe.capture.scope import Scope
from msprobe.name import CallName
from msprobe.record import Leaf, number_type
from ptdbg_ascend.failure import demand
from ptdbg_ascend.names import NUMBERS, PREFIXES, is_call, ours

MODES = ["all", "list", "range", "stack", "acl", "api_list", "api_stack"]
SWITCHES = ("ON", "OFF")
OVERFLOW = "overflow_check"  # no mode of a switch; there a single number counts, which has no dimension
DIRECTIONS = ("all", "forward", "backward")

_NO_APIS = "Current dump mode is 'api_list', but the content of api_list parameter is empty or valid."


class OldScope(Scope):
    """Sees every call from register_hook on, so that they are counted; while it is OFF none is dumped."""

    def __init__(self, *words: Sequence[str], is_on: bool = True) -> None:
        super().__init__(*words)
        self.is_on = is_on

    def _obstacle(self, name: CallName) -> str:
        if not self.is_on:
            return "made while dumping was OFF"
        return "" if name.prefix in PREFIXES else "of a kind that the old format has no name for"

    def enter(self, name: CallName) -> bool:
        reason = self._obstacle(name)
        return self._refuse(reason) if reason else super().enter(name)

    def expects_backward(self, name: CallName) -> bool:
        return not self._obstacle(name) and super().expects_backward(name)


class Order(NamedTuple):
    """What set_dump_switch("ON", ...) asks for."""

    mode: str = "all"
    scope: tuple[str, ...] = ()
    api_list: tuple[str, ...] = ()
    everything: bool = False  # filter_switch OFF: also integers, booleans, empty tensors and plain values
    direction: str = "all"

    def as_scope(self) -> OldScope:
        """The same in msprobe's words: an interval of two calls, or parts of names."""
        called = [ours(text) for text in self.scope]
        if self.mode == "api_list":
            called = [f".{case}." for api in self.api_list for case in dict.fromkeys((api, api.lower()))]
        if self.mode == "range" or (self.mode == "stack" and len(called) == 2):
            return OldScope(called, (), [self.direction])
        return OldScope((), called if self.mode in ("list", "stack", "api_list") else (), [self.direction])

    def wants(self, leaf: Leaf) -> bool:
        """What filter_switch lets pass: tensors of floating point that have a dimension and an element."""
        if not leaf.is_tensor or leaf.type == "numpy.ndarray":  # which the old tool did not look at
            return self.everything and leaf.type in (*NUMBERS, "slice")
        is_float = number_type(leaf.dtype).startswith(("float", "bfloat"))
        has_element = 0 not in (leaf.shape or ()) and (bool(leaf.shape) or self.mode == OVERFLOW)
        return self.everything or (is_float and has_element)


def order(mode: Any, scope: Any, api_list: Any, filter_switch: Any, dump_mode: Any) -> Order:
    """The order that the arguments give; every mistake in them is told."""
    demand(mode in MODES, f"Current mode '{mode}' is not supported. Please use the field in {MODES}")
    demand(filter_switch in SWITCHES, "Please set filter_switch with 'ON' or 'OFF'.")
    demand(dump_mode in DIRECTIONS, "Please set dump_mode with 'all' or 'forward' or 'backward'.")
    for word, given in (("scope", scope), ("api_list", api_list)):
        is_list = isinstance(given, (list, tuple)) and all(isinstance(text, str) and text for text in given)
        demand(is_list, f"set_dump_switch, {word} is {given!r}; it must be a list of names.")
    problem = _problem(mode, scope)
    demand(not problem, f"set_dump_switch, scope param set invalid, {problem}")
    demand(mode != "api_list" or api_list, _NO_APIS)
    return Order(mode, tuple(scope), tuple(api_list), filter_switch == "OFF", dump_mode)


def _problem(mode: str, scope: Sequence[str]) -> str:
    count = len(scope)
    odd = [text for text in scope if not is_call(text)]
    needs_calls = mode in ("range", "acl") or (mode == "stack" and count == 2)
    problems = (
        (mode == "list" and not count, "it's should not be an empty list."),
        (mode == "range" and count != 2, "it's must be [start, end]."),
        (mode == "stack" and count > 2, "it's must be [start, end] or []."),
        (mode == "acl" and count != 1, "only one api name is supported in acl mode."),
        (needs_calls and odd, f"'{''.join(odd[:1])}' is no name of a call, such as Tensor_abs_1_forward."),
    )
    return next((sentence for is_wrong, sentence in problems if is_wrong), "")
