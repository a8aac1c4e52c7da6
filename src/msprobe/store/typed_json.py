"""The records of a dump.json as typed values, which are read in a third of the time that dicts take.

Records with unknown keys or unusual values are left to dump_json, which knows every form and says what is
wrong with a damaged file. A key that says null is taken for one that is missing.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from msprobe.errors import RecordingError
from msprobe.given import is_plain_name
from msprobe.kernels import Statistics
from msprobe.record import Leaf, Tree
from msprobe.store.dump_json import LONGEST_KEYS, are_numbers, is_shape, plain_value, sketch_of

_Number = float | int | bool | None


class _Leaf(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The keys of one leaf."""

    type: str
    value: Any = None
    dtype: str | None = None
    shape: list[int] | None = None
    Max: _Number = None
    Min: _Number = None
    Mean: _Number = None
    Norm: _Number = None
    Nan_count: int = 0
    Inf_count: int = 0
    requires_grad: bool | None = None
    md5: str | None = None
    hash: str | None = None
    sketch: str | None = None
    data_name: str | None = None
    maker: str | None = msgspec.field(default=None, name="from")


_Inner = list[_Leaf | None]
_List = list[_Leaf | _Inner | None]
_Values = list[_Leaf | _List | None] | UnsetType
_Named = dict[str, _Leaf | _List | None] | UnsetType


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of a record of a call."""

    input_args: _Values = UNSET
    input_kwargs: _Named = UNSET
    input: _Values = UNSET
    parameters: _Named = UNSET
    output: _Values = UNSET
    buffers: _Named = UNSET
    buffers_after: _Named = UNSET
    is_recompute: bool | UnsetType = UNSET


_FIELDS = tuple(name for name in _Call.__struct_fields__ if name != "is_recompute")
_parts = msgspec.json.Decoder(dict[str, Raw]).decode
_call = msgspec.json.Decoder(_Call).decode


class _Unusual(ValueError):
    """A record that dump_json must read."""


class Parts(NamedTuple):
    """What a file says of itself, and the JSON of each record."""

    head: dict[str, Any]
    data: dict[str, Raw]


def parts_of(text: bytes) -> Parts | None:
    """Return the parts of a file; None if it is unusual, such as one with NaN, or damaged."""
    try:
        parts = _parts(text)
        data = _parts(parts.pop("data"))
        return Parts({key: msgspec.json.decode(part) for key, part in parts.items()}, data)
    except (ValueError, KeyError, RecursionError):  # those of msgspec are ValueErrors
        return None


def fields_of(text: Raw) -> dict[str, Any] | None:
    """Return what a record holds; None if it is unusual or damaged."""
    try:
        call = _call(text)
        fields: dict[str, Any] = {
            name: _tree(tree) for name in _FIELDS if (tree := getattr(call, name)) is not UNSET
        }
    except (ValueError, RecordingError, RecursionError):
        return None
    if call.is_recompute is not UNSET:
        fields["is_recompute"] = call.is_recompute
    return fields


def _tree(tree: Any) -> Tree:
    if tree is None:
        return None
    if type(tree) is list:
        return [_leaf(item) if type(item) is _Leaf else _tree(item) for item in tree]
    if type(tree) is dict:
        if max(map(len, tree), default=0) > LONGEST_KEYS:
            raise _Unusual
        return {key: _leaf(item) if type(item) is _Leaf else _tree(item) for key, item in tree.items()}
    return _leaf(tree)


def _leaf(keys: _Leaf) -> Leaf:
    if keys.shape is None:
        if keys != _Leaf(keys.type, keys.value):  # keys of a tensor without a shape
            raise _Unusual
        return Leaf(keys.type, plain_value(keys.value, ""))
    shape = tuple(keys.shape)
    stats = Statistics(keys.Max, keys.Min, keys.Mean, keys.Norm, keys.Nan_count, keys.Inf_count)
    sketch = None if keys.sketch is None else sketch_of(keys.sketch)
    if keys.value is not None or not is_shape(shape) or not are_numbers(stats):
        raise _Unusual
    if sketch is None and keys.sketch is not None:
        raise _Unusual
    if keys.data_name is not None and not is_plain_name(keys.data_name):
        raise _Unusual
    return Leaf(
        sys.intern(keys.type),
        None,
        sys.intern(str(keys.dtype)),
        shape,
        stats,
        keys.requires_grad,
        keys.md5,
        sketch,
        keys.data_name,
        None,
        keys.hash,
        keys.maker,
    )
