"""Leaf, Record, Recording: what was seen; and walk(), which finds the leaves in nested arguments."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from msprobe.kernels import Statistics, described_of
from msprobe.name import PARAMETERS_GRAD, CallName

MAX_DEPTH = 400

_FRAMEWORK = re.compile("-packages/(?:torch|torch_npu|mindspore|mindtorch)/")
_LIBRARY = re.compile("-packages/|/lib/python3|File <frozen ")  # also Python's own
_MOST_FRAMES = 4
_INNERMOST = 2  # of them are shown in any case: a model may come from a library
_HEAD, _LINE, _IN, _CODE = "File ", ", line ", ", in ", ", \n "  # around the parts of a frame's text


class Deferred:
    """A description still on its way from a device; the adapter's settle() fills it in."""

    __slots__ = ("hash", "sketch", "statistics")

    def __init__(self) -> None:
        self.statistics: Statistics | None = None
        self.hash: str | None = None
        self.sketch: bytes | None = None


class Leaf(NamedTuple):
    """What was seen at one slot: a tensor's description, or a plain value."""

    type: str
    value: Any = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    stats: Statistics | Deferred | None = None
    requires_grad: bool | None = None
    checksum: str | None = None
    sketch: bytes | None = None  # of the whole content, or a brief one, which is shorter
    data_name: str | None = None
    extra: Mapping[str, Any] | None = None  # facts only some frameworks have, such as DTensor placements
    hash: str | None = None  # of the content: equal hashes of one dtype and shape mean equal bits
    made_by: str | None = None  # who made the value, as written in the file; msprobe.graph reads it

    @property
    def is_tensor(self) -> bool:
        return self.shape is not None and self.dtype is not None

    @property
    def elements(self) -> int:
        """How many a tensor has; 0 also where a size is still open, which is written as -1."""
        shape = self.shape or ()
        return math.prod(shape) if min(shape, default=0) >= 0 else 0

    @property
    def statistics(self) -> Statistics | None:
        """Those that are known by now."""
        return self.stats.statistics if isinstance(self.stats, Deferred) else self.stats

    @property
    def content_hash(self) -> str | None:
        """The hash that is known by now."""
        return self.stats.hash if isinstance(self.stats, Deferred) else self.hash

    @property
    def content_sketch(self) -> bytes | None:
        """The sketch that is known by now."""
        if self.sketch is None and isinstance(self.stats, Deferred):
            return self.stats.sketch
        return self.sketch


class Filled(Leaf):
    """A leaf that brings the content of its tensor along, which goes when its record goes."""

    content: Any


def filled(leaf: Leaf, content: Any) -> Leaf:
    """The leaf with a content; without one, which some tensors do not have, as it is."""
    if content is None:
        return leaf
    full = Filled._make(leaf)
    full.content = content
    return full


def made(leaf: Leaf, maker: str) -> Leaf:
    """The leaf with its maker; much sooner than _replace(), because this is done for every tensor."""
    return tuple.__new__(Leaf, (*leaf[:-1], maker))


def with_sketch(leaf: Leaf, sketch: bytes) -> Leaf:
    """The leaf with a sketch; as soon as made(), because this is done for every parameter."""
    return tuple.__new__(Leaf, (*leaf[:7], sketch, *leaf[8:]))


def content_key(leaf: Leaf, *, as_shown: bool = True) -> Hashable:
    """All that is known of the content of a tensor; None if there is nothing to tell it from others.

    `as_shown`: return None also where equal numbers may be written differently: 0 and 0.0, or 0.0 and -0.0.
    """
    stats = leaf.stats
    if leaf.shape is None or leaf.dtype is None or not isinstance(stats, Statistics):
        return None
    if as_shown and leaf.hash is None and (0 in stats[:4] or not _FLOATS.issuperset(map(type, stats[:4]))):
        return None
    return leaf.hash, leaf.dtype, leaf.shape, leaf.stats, leaf.checksum, leaf.sketch


_FLOATS = frozenset({float})


@functools.lru_cache(maxsize=256)
def number_type(dtype: str | None) -> str:
    """What a framework calls its dtype, as numpy would: `float32` of `torch.float32` and of `Float32`."""
    return (dtype or "").rpartition(".")[2].lower()


@functools.lru_cache(maxsize=256)
def is_float(dtype: str | None) -> bool:
    """Whether numbers of this dtype have a fraction, however wide they are."""
    return number_type(dtype).startswith(("float", "bfloat"))


Tree: TypeAlias = "Leaf | list[Tree] | dict[str, Tree] | None"


class Frame(NamedTuple):
    """One line of a call stack; `str(frame)` is its text in a recording."""

    path: str
    line: str
    function: str
    code: str | None

    def __str__(self) -> str:
        return f"{_HEAD}{self.path}{_LINE}{self.line}{_IN}{self.function}{_CODE}{self.code or ''}"

    def in_traceback(self) -> list[str]:
        """The lines that Python shows for it."""
        place = f'  File "{self.path}", line {self.line}, in {self.function}'
        return [place, f"    {self.code}"] if self.code else [place]

    @classmethod
    def parse(cls, text: str) -> Frame:
        """The frame of a text; of one that another tool wrote otherwise, the text is all that is known."""
        head, is_frame, code = text.partition(_CODE)
        place, _, function = head.rpartition(_IN)
        path, _, line = place.rpartition(_LINE)
        if not is_frame or not path.startswith(_HEAD) or not line.isdecimal():
            return cls("", "0", "", text)
        return cls(path.removeprefix(_HEAD), line, function, code or None)


def on_one_line(frame: str) -> str:
    """The text of a frame, without the line feed before its code."""
    return " ".join(frame.split())


def nearest_frames(frames: Sequence[str]) -> list[str]:
    """Of the texts of a stack: where the model makes the call, and how the user's own code comes there."""
    outside = [frame for frame in frames if not _FRAMEWORK.search(frame)] or list(frames)
    own = [frame for frame in outside[_INNERMOST:] if not _LIBRARY.search(frame)]
    return [*outside[:_INNERMOST], *own][:_MOST_FRAMES]


class Stack(NamedTuple):
    """Where a call was made: the frames as text, innermost first, and a number for them."""

    number: int
    frames: tuple[str, ...]


class Record(NamedTuple):
    """One call, one direction: its leaves under the field names of the file format."""

    name: CallName
    fields: dict[str, Any]
    stack: Stack | None = None
    parent: str | None = None
    has_parent: bool = False  # construct.json lists this record (levels L0 and mix)


class Header(NamedTuple):
    """What a recording says about itself as a whole."""

    task: str
    level: str
    framework: str


@dataclasses.dataclass(frozen=True)
class Recording:
    """One rank at one step, read back."""

    header: Header
    records: Mapping[str, Record]
    folder: str
    step: int | None = None
    rank: int | None = None  # None: not distributed
    missing_files: tuple[str, ...] = ()  # tensor files that records name and that were never written
    lost_records: int = 0  # that the disk did not take
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)  # calls not recorded, by reason
    recovered: bool = False  # its process died; all calls that were finished are here
    finished: bool = True  # False: read from the journal of a process that died or still runs
    tensor_folder: str | None = None  # where its tensor files lie, if not where ours do


Side = Literal["input", "parameters", "output", "buffers"]

# The fields of a record, in the order in which a table shows them; keywords stand among the inputs.
_FIELDS: tuple[tuple[str, Side, str], ...] = (
    ("input_args", "input", "input"),
    ("input_kwargs", "input", "input"),
    ("input", "input", "input"),
    ("parameters", "parameters", "parameters"),
    ("output", "output", "output"),
    ("value", "output", ""),
    ("buffers", "buffers", "buffers"),
    ("buffers_after", "output", "buffers_after"),  # those that the call changed
)


def slots(record: Record, only: Side | None = None) -> list[tuple[str, Side, Leaf | None]]:
    """Each slot of a record, or of one side of it: its name, its side and what was seen there."""
    found: list[tuple[str, Side, Leaf | None]] = []
    fields = record.fields
    if record.name.direction == PARAMETERS_GRAD:
        for key, tree in fields.items() if only in (None, "output") else ():
            tree = tree[0] if isinstance(tree, list) and len(tree) == 1 else tree
            _add_slots(tree, key, "output", found)
        return found
    for field, side, word in _FIELDS:
        if field in fields and (only is None or only == side):
            _add_slots(fields[field], word, side, found)
    return found


def _add_slots(tree: Tree, slot: str, side: Side, found: list[tuple[str, Side, Leaf | None]]) -> None:
    if not isinstance(tree, _CONTAINERS):
        found.append((slot, side, tree))
        return
    items: Iterable[tuple[str, Tree]]
    if isinstance(tree, list):
        names = _numbered(slot, len(tree)) if len(tree) <= _USUAL else _numbers(slot, len(tree))
        items = zip(names, tree, strict=True)
    else:
        items = ((f"{slot}.{key}" if slot else str(key), item) for key, item in tree.items())
    for inner, item in items:
        if isinstance(item, _CONTAINERS):
            _add_slots(item, inner, side, found)
        else:
            found.append((inner, side, item))


_CONTAINERS = (list, dict)


_USUAL = 64  # items of a list; the names of more would stay in memory for no other call


def _numbers(slot: str, count: int) -> tuple[str, ...]:
    """Return the slots of so many items: `input.0`, `input.1` ..."""
    return tuple(f"{slot}.{number}" if slot else str(number) for number in range(count))


_numbered = functools.lru_cache(maxsize=1024)(_numbers)  # the same few for nearly all calls


PLAIN = frozenset({bool, int, float, str})  # values that are leaves as they are


def plain_leaf(value: Any) -> Leaf | None:
    """The leaf of a value that needs no framework to be understood, else None."""
    kind = type(value)
    if kind in PLAIN:
        return Leaf(kind.__name__, value)
    if kind is complex:
        return Leaf("complex", str(value))  # JSON has no such number
    if kind is slice:
        return Leaf("slice", [_bound(value.start), _bound(value.stop), _bound(value.step)])
    if value is Ellipsis:
        return Leaf("ellipsis", "...")
    if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return _numpy_scalar(value)
    return None


def array_leaf(value: Any) -> Leaf | None:
    """The leaf of a numpy array; one that holds no numbers has no statistics."""
    if type(value).__module__ != "numpy" or not hasattr(value, "__array_interface__"):
        return None
    found = described_of(value) if value.dtype.kind in "biufc" else (None, None, None)
    return Leaf(
        "numpy.ndarray", None, value.dtype.name, tuple(value.shape), found[0], hash=found[1], sketch=found[2]
    )


def _bound(value: Any) -> Any:
    return value if value is None or type(value) in (int, bool, float) else str(value)


def _numpy_scalar(value: Any) -> Leaf:
    item = value.item()
    if not isinstance(item, (bool, int, float, str)):
        item = str(item)
    return Leaf(value.dtype.name, item)


def walk(value: Any, see: Callable[[Any, str], Tree], slot: str, above: tuple[int, ...] = ()) -> Tree:
    """The tree of leaves of a nested argument; `see(value, slot)` describes what is not a plain container.

    What contains itself is null where it comes again (`above` are the containers on the way), and so is
    whatever lies deeper than MAX_DEPTH.
    """
    kind = type(value)
    if value is None:
        return None
    if kind is not tuple and kind is not list and kind is not dict:
        leaf = see(value, slot)
        if leaf is not None:
            return leaf
    items = value if kind is tuple or kind is list else _fields(value, kind)
    if items is None or len(above) >= MAX_DEPTH or id(value) in above:
        return None
    above = (*above, id(value))
    if isinstance(items, dict):
        return {name: walk(item, see, f"{slot}.{name}", above) for name, item in items.items()}
    return [walk(item, see, f"{slot}.{i}", above) for i, item in enumerate(items)]


def _fields(value: Any, kind: type) -> dict[str, Any] | list[Any] | None:
    """What a container holds: by name for mappings, named tuples and dataclasses, else by place."""
    if isinstance(value, Mapping):
        named = {str(name): item for name, item in value.items()}
        return named if len(named) == len(value) else {repr(name): item for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        names = getattr(kind, "_fields", None)
        return list(value) if names is None else dict(zip(names, value, strict=False))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return None


def tensors_in(value: Any, is_tensor: Callable[[Any], bool]) -> list[Any]:
    """The tensors of a nested argument, in the order in which walk() meets them."""
    found: list[Any] = []

    def see(item: Any, _slot: str) -> Leaf | None:
        if is_tensor(item):
            found.append(item)
            return _SEEN
        return plain_leaf(item)

    walk(value, see, "")
    return found


_SEEN = Leaf("tensor")


def leaves(tree: Tree) -> Iterator[Leaf]:
    """Every leaf of a tree, in order."""
    if isinstance(tree, Leaf):
        yield tree
    elif isinstance(tree, _CONTAINERS):
        for item in tree.values() if isinstance(tree, dict) else tree:
            if isinstance(item, Leaf):
                yield item
            elif item is not None:
                yield from leaves(item)
