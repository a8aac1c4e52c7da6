"""Old dumps: `rank{N}/{name}.pkl`, which holds lines of JSON and is no pickle, `{name}/*.npy`, and names."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msprobe.analyse.measure import values_of
from msprobe.name import FORWARD, CallName
from msprobe.operators import operator_of
from msprobe.record import Frame, Leaf, Recording, Stack
from msprobe.store.dump_json import decode_leaf
from msprobe.store.line_file import Line, LineFile

SUFFIX, STACK = ".pkl", "stack_info"
CALL = re.compile(r"([A-Za-z]{1,40})_([\w.]{1,200})_(0|[1-9][0-9]{0,17})_(forward|backward)", re.ASCII)

_PLACE = r"_(?:(input|output)((?:\.(?:0|[1-9][0-9]{0,5})){0,100})|stack_info)"
_PLAIN = re.compile(r"<class '(\w{1,40})'>")
_LINE = (
    "a line of a ptdbg_ascend dump: such a line is a list of JSON, not too long, which begins with a name as "
    "Functional_linear_0_forward_input.0. Pickles are never loaded."
)


def parse(text: str) -> tuple[CallName, str]:
    """The call and the slot that the name of a line says; a ValueError if it is no such name."""
    found = re.fullmatch(CALL.pattern + _PLACE, text, re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is no name of a line.")
    *call, side, path = found.groups()
    # A single output has no number in the old names.
    return CallName.parse(".".join(call)), f"{side}{path or '.0'}" if side else STACK


def call_text(name: CallName) -> str:
    """`Tensor___add___0_forward` of Tensor.__add__.0.forward."""
    return f"{name.prefix}_{name.api}_{name.count}_{name.direction}"


def line_text(name: CallName, slot: str, outputs: int) -> str:
    """The name of a tensor's line and file; `outputs`: how many outputs the call has."""
    alone = slot == "output.0" and outputs == 1 and name.direction == FORWARD
    # The old names count what is in a tuple, and nothing else.
    single = alone and not operator_of(name).gives_tuple
    return f"{call_text(name)}_{'output' if single else slot}"


def ours(text: str) -> str:
    """What msprobe calls a call: Tensor.permute.1.forward of `Tensor_permute_1_forward`."""
    found = CALL.fullmatch(text)
    return ".".join(found.groups()) if found else text


def described(leaf: Leaf) -> tuple[str, str | list[int], list[Any]]:
    """What a line says: dtype, shape, and max, min and mean, which empty tensors and booleans do not have."""
    values = values_of(leaf)[:3]
    has_none = None in values or leaf.type == "slice"
    if leaf.is_tensor:
        return str(leaf.dtype), list(leaf.shape or ()), [[] if has_none else float(value) for value in values]
    return f"<class '{leaf.type}'>", "[]", [[] if has_none else value for value in values]


def lines(path: Path) -> Iterator[Line]:
    """The lines of a dump, each checked; an OSError where the file cannot be read."""
    return LineFile(path).lines(_line, _LINE)


def _line(value: Any, where: str) -> Line:
    text, *fields = value
    call, slot = parse(text)
    if slot == STACK:
        (frames,) = fields
        parts = (Frame(str(path), str(line), str(function), code) for path, line, function, code in frames)
        return Line(text, call, slot, Stack(0, tuple(map(str, parts))))
    leaf = decode_leaf(_told(*fields), where)
    return Line(text, call, slot, leaf._replace(data_name=f"{text}.npy"))


def _told(_step: Any, _none: Any, dtype: Any, shape: Any, summary: Any = ()) -> dict[str, Any]:
    """What a line says, in the words of dump.json."""
    numbers = [None if value == [] else value for value in summary]
    plain = _PLAIN.fullmatch(dtype)
    if plain is not None and isinstance(shape, str):
        return {"type": plain[1], "value": numbers[0] if numbers else None}
    statistics = zip(("Max", "Min", "Mean", "Norm"), numbers, strict=False)
    return {"type": "torch.Tensor", "dtype": dtype, "shape": shape, **dict(statistics)}


def read_one(path: Path, data: Path | None = None) -> Recording:
    """The dump of a .pkl; `data`: the folder of its tensors, where it is not called as the file.

    Arguments stand in the field `input` as gradients do, each under its number: the old format leaves out
    keywords and most values that are no tensor, so that nobody must take them for all that a call was given.
    """
    return LineFile(path, data).recording(lines(path), "pytorch")
