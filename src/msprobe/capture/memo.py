"""One description per tensor version: what was described once is not read again until it changes."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

from msprobe.record import Leaf

_MANY = 50_000


class Seen:
    """A described tensor: its leaf, and the file that holds its content once it was saved."""

    __slots__ = ("file", "leaf", "_reference", "_version")

    def __init__(self, tensor: Any, version: Hashable, leaf: Leaf) -> None:
        self._reference = weakref.ref(tensor)
        self._version = version
        self.leaf = leaf
        self.file: str | None = None

    def is_still(self, tensor: Any, version: Hashable) -> bool:
        return self._version == version and self._reference() is tensor

    def is_gone(self) -> bool:
        return self._reference() is None


class Memo:
    """Finds what was seen of a tensor by its identity and version; holds no tensor alive."""

    def __init__(self) -> None:
        self._seen: dict[int, Seen] = {}

    def find(self, tensor: Any, version: Hashable) -> Seen | None:
        seen = self._seen.get(id(tensor))
        return seen if seen is not None and seen.is_still(tensor, version) else None

    def keep(self, tensor: Any, version: Hashable, leaf: Leaf) -> Seen:
        seen = Seen(tensor, version, leaf)
        if len(self._seen) > _MANY:
            self._seen = {key: seen for key, seen in self._seen.items() if not seen.is_gone()}
        self._seen[id(tensor)] = seen
        return seen

    def forget(self) -> None:
        self._seen.clear()
