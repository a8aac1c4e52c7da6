"""The names in the old files, `Functional_linear_0_forward_input.0`, and what msprobe calls the same."""

from __future__ import annotations

import re
from typing import NamedTuple

from msprobe.name import BACKWARD, FORWARD, CallName, call_owner

PREFIXES = frozenset({"Functional", "Tensor", "Torch", "VF", "NPU"})  # of all calls the old format can name
STACK = "stack_info"
NUMBERS = ("bool", "int", "float")  # the plain values that have a file

_LINE = re.compile(
    r"(?P<prefix>[A-Za-z]{1,40})_(?P<api>[\w.]{1,200})_(?P<count>0|[1-9][0-9]{0,17})"
    r"_(?P<direction>forward|backward)_"
    r"(?P<side>input|output|stack_info)(?P<path>(?:\.(?:0|[1-9][0-9]{0,5})){0,100})",
    re.ASCII,
)
_BEGINNING = re.compile(r"([A-Za-z]+)(?:_(.+?))?(?:_([0-9]+))?(?:_(forward|backward))?", re.ASCII)
_FRAME = re.compile(r"File (.*), line ([0-9]+), in (.*?), \n (.*)", re.DOTALL)
# They give a tuple also where it holds one tensor; the old names count what is in a tuple, and nothing else.
_GIVE_TUPLES = frozenset(
    {"split", "split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit", "chunk", "unsafe_chunk"}
    | {"unsafe_split", "unsafe_split_with_sizes", "unbind", "broadcast_tensors", "meshgrid"}
)

Frame = tuple[str, str, str, "str | None"]  # file, line, function, code


class LineName(NamedTuple):
    """What the name of a line says."""

    call: CallName
    side: str  # input, output, or STACK
    path: tuple[str, ...]  # where in nested arguments: ("1", "0")


def parse(text: str) -> LineName | None:
    """The parts of the name of a line; None if it is none."""
    found = _LINE.fullmatch(text)
    if found is None or (found["side"] == STACK and found["path"]):
        return None
    owner = call_owner(found["prefix"], found["api"])
    direction = BACKWARD if found["direction"] == BACKWARD else FORWARD
    call = CallName(owner, direction, int(found["count"]))
    return LineName(call, found["side"], tuple(found["path"].split(".")[1:]))


def call_text(name: CallName) -> str:
    """`Tensor___add___0_forward` of Tensor.__add__.0.forward."""
    return f"{name.prefix}_{name.api}_{name.count}_{name.direction}"


def line_text(name: CallName, slot: str, outputs: int) -> str:
    """The name of a tensor's line and file; `outputs`: how many outputs the call has."""
    alone = slot == "output.0" and outputs == 1 and name.direction == FORWARD
    single = alone and name.api.strip("_") not in _GIVE_TUPLES
    return f"{call_text(name)}_{'output' if single else slot}"


def old_frame(text: str) -> Frame:
    """The frame of a stack in the four parts that the old files have."""
    found = _FRAME.fullmatch(text)
    return (found[1], found[2], found[3], found[4] or None) if found else ("", "0", "", text)


def frame_text(frame: Frame) -> str:
    path, line, function, code = frame
    return f"File {path}, line {line}, in {function}, \n {code or ''}"


def ours(text: str) -> str:
    """What msprobe calls a call, or the first part of its name: Tensor.permute.1 of `Tensor_permute_1`."""
    found = _BEGINNING.fullmatch(text)
    return ".".join(filter(None, found.groups())) if found else text


def is_call(text: str) -> bool:
    """Whether it names one call and one direction of it."""
    return parse(f"{text}_{STACK}") is not None
