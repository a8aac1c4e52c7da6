"""What the two sides say to each other: greeting, welcome, calls, acknowledgements and the end.

A call is a safetensors blob whose text is the record as dump.json has it; everything else is a line of JSON.
No message is ever turned into an object of Python that it names itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msprobe.errors import RecordingError, UsageError
from msprobe.name import BACKWARD, FORWARD
from msprobe.online.blob import Malformed, decode, encode
from msprobe.record import Leaf, Record, Tree, leaves, number_type
from msprobe.store.dtypes import TensorData, checked_size
from msprobe.store.dump_json import decode_record, encode_fields

if TYPE_CHECKING:
    from typing_extensions import Buffer

LARGEST = 1 << 30  # bytes of one call
LONGEST_LINE = 1 << 16
MOST_UNANSWERED = 32  # calls that may be sent before the first of them is acknowledged
MOST_UNANSWERED_BYTES = 256 << 20

_MOST_PARTS = 400_000  # of a record; the header has room for 16 000 tensors of some 15 each
_PART_COST = 200  # bytes of memory that each may take
_RUN = re.compile(r"[0-9a-f]{32}")
_MOST = 1 << 48


class Greeting(NamedTuple):
    """Who sends: one process that trains."""

    run: str  # a number that no other process has
    rank: int

    @property
    def key(self) -> str:
        return f"rank{self.rank}_{self.run}"


class Welcome(NamedTuple):
    """What the checking side answers."""

    done: int  # the last call of this process whose result is written
    largest: int = LARGEST
    most: int = MOST_UNANSWERED
    most_bytes: int = MOST_UNANSWERED_BYTES


class Farewell(NamedTuple):
    """Nothing more comes."""

    dropped: int  # calls that were never sent


class Received(NamedTuple):
    """A call as it came; the names of its tensors are the data_names of its leaves."""

    sequence: int
    step: int
    record: Record
    tensors: dict[str, TensorData]
    is_whole: bool = True  # no tensor came without its content
    parts: int = 0  # of its record, rather too many than too few

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(memoryview(tensor.data).nbytes for tensor in self.tensors.values())

    @property
    def weight(self) -> int:
        """Bytes of memory that its record takes, at most."""
        return _PART_COST * self.parts


def greeting_line(greeting: Greeting) -> str:
    return json.dumps({"greeting": greeting._asdict()})


def welcome_line(welcome: Welcome) -> str:
    return json.dumps({"welcome": welcome._asdict()})


def done_line(sequence: int) -> str:
    return json.dumps({"done": sequence})


def farewell_line(farewell: Farewell) -> str:
    return json.dumps({"farewell": farewell._asdict()})


def read_line(text: str | bytes | bytearray, key: str) -> Any:
    """What a line says under the one key that it may have here."""
    if len(text) > LONGEST_LINE:
        raise Malformed(f"is a line of {len(text)} characters")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("is no line of JSON") from None
    if not isinstance(told, dict) or list(told) != [key]:
        raise Malformed(f"does not say {key}")
    return told[key]


def read_greeting(text: str | bytes | bytearray) -> Greeting:
    told = read_line(text, "greeting")
    if not isinstance(told, dict) or told.keys() != set(Greeting._fields):
        raise Malformed("does not say who greets")
    if not isinstance(told["run"], str) or not _RUN.fullmatch(told["run"]):
        raise Malformed("names no run")
    return Greeting(told["run"], natural(told["rank"]))


def read_welcome(text: str | bytes) -> Welcome:
    told = read_line(text, "welcome")
    if not isinstance(told, dict) or told.keys() != set(Welcome._fields):
        raise Malformed("does not say what is welcome")
    return Welcome(**{key: natural(number) for key, number in told.items()})


def read_farewell(text: str | bytes) -> Farewell:
    told = read_line(text, "farewell")
    return Farewell(natural(told.get("dropped") if isinstance(told, dict) else None))


def natural(number: Any) -> int:
    if type(number) is not int or not 0 <= number < _MOST:
        raise Malformed("has no number where one belongs")
    return number


# ---- calls ----


def call_message(sequence: int, step: int, record: Record, tensors: Mapping[str, TensorData]) -> list[Buffer]:
    text = (
        f'{{"sequence": {sequence}, "step": {step}, "name": {json.dumps(str(record.name))}, '
        f'"record": {encode_fields(record.fields).decode()}}}'
    )
    _parts(text)
    return encode(text, tensors)


def read_call(content: Buffer) -> Received:
    """Raises Malformed for whatever no honest sender sends."""
    blob = decode(content)
    parts = _parts(blob.text)
    try:
        told = json.loads(blob.text)
        name, fields = told["name"], told["record"]
        if not str(name).isprintable():
            raise ValueError("its name cannot be shown")
        sequence, step = natural(told["sequence"]), natural(told["step"])
        record = decode_record(str(name), fields, "the message")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Malformed(f"holds a record that cannot be understood: {error}") from None
    if record.name.direction not in (FORWARD, BACKWARD) or record.name.is_module:
        raise Malformed(f"holds {record.name}, which is no call of an API")
    found = [leaf for tree in record.fields.values() for leaf in leaves(tree)]
    named = [leaf for leaf in found if leaf.data_name is not None]
    tensors = {str(leaf.data_name): _content(leaf, blob.tensors) for leaf in named}
    if len(tensors) < len(named):
        raise Malformed("names a tensor twice")
    is_whole = all(leaf.data_name is not None for leaf in found if leaf.is_tensor)
    return Received(sequence, step, record, tensors, is_whole, parts)


def _parts(text: str) -> int:
    """How many things a record is made of, at most; counted before any of them takes memory."""
    parts = sum(map(text.count, ",[{"))
    if parts > _MOST_PARTS:
        raise Malformed(f"holds a record of {parts} parts, and {_MOST_PARTS} are allowed")
    return parts


def _content(leaf: Leaf, parts: Mapping[str, memoryview]) -> TensorData:
    part = parts.get(leaf.data_name or "")
    if not leaf.is_tensor or part is None:
        raise Malformed(f"lacks the tensor {leaf.data_name!r}")
    tensor = TensorData(part, number_type(leaf.dtype), leaf.shape or ())
    try:
        checked_size(tensor)
    except (UsageError, RecordingError) as error:
        raise Malformed(f"holds a tensor that cannot be: {error}") from None
    return tensor


def each_leaf(tree: Any, change: Callable[[Leaf], Leaf]) -> Tree:
    """The tree with another leaf in the place of each."""
    if isinstance(tree, Leaf):
        return change(tree)
    if isinstance(tree, list):
        return [each_leaf(item, change) for item in tree]
    if isinstance(tree, dict):
        return {key: each_leaf(item, change) for key, item in tree.items()}
    plain: Tree = tree
    return plain
