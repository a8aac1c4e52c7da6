"""The state of a module around its call: what it is before, and the buffers that the call changes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from msprobe.adapter import Adapter
from msprobe.record import Leaf

MODULE_STATE = ("parameters", "buffers", "buffers_after")  # fields of a module's record, behind its output

_MOST_ELEMENTS = 1 << 20  # of a buffer that is recorded unless it is written: masks and tables are larger


class Describe(Protocol):
    """How a recorder describes a tensor."""

    def __call__(self, tensor: Any, record: str, slot: str, since: int | None = None) -> Leaf: ...


class ModuleState:
    """The parameters and buffers of a module itself, around one call of it."""

    def __init__(self, adapter: Adapter, describe: Describe, module: Any, record: str) -> None:
        self._adapter = adapter
        self._describe = describe
        self._module = module
        self._record = record
        self._buffers: dict[str, tuple[Hashable | None, Leaf | None]] | None = None  # version and leaf

    @property
    def has_buffers(self) -> bool:
        """Whether there is something that the call may change."""
        return bool(self._buffers)

    def before(self, with_buffers: bool) -> dict[str, dict[str, Leaf]]:
        """The fields of the record that hold the state before the call."""
        parameters = self._adapter.parameters(self._module)
        fields = {"parameters": {name: self._leaf(value, "parameters", name) for name, value in parameters}}
        if with_buffers:
            self._buffers = {}
            for name, buffer, elements in self._adapter.buffers(self._module):
                leaf = self._leaf(buffer, "buffers", name) if elements <= _MOST_ELEMENTS else None
                self._buffers[name] = self._adapter.version_of(buffer), leaf
            known = {name: leaf for name, (_, leaf) in self._buffers.items() if leaf is not None}
            fields |= {"buffers": known} if known else {}
        return fields

    def after(self, since: int) -> dict[str, dict[str, Leaf]]:
        """The field that holds the buffers that the call has changed; `since`: when it began."""
        if self._buffers is None:
            return {}
        changed: dict[str, Leaf] = {}
        for name, buffer, _ in self._adapter.buffers(self._module):
            version, leaf = self._buffers.get(name, (None, None))
            if version is None or version != self._adapter.version_of(buffer):
                now = self._leaf(buffer, "buffers_after", name, since)
                if leaf is None or leaf[:-1] != now[:-1]:  # who made it comes last, and is no content
                    changed[name] = now
        return {"buffers_after": changed} if changed else {}

    def _leaf(self, tensor: Any, field: str, name: str, since: int | None = None) -> Leaf:
        return self._describe(tensor, self._record, f"{field}.{name}", since)
