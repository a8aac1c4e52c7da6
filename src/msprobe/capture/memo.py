"""One description per tensor version: what was described once is not read again until it changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from msprobe.record import Leaf

UNKNOWN = -1  # the moment of a tensor without a maker

_MANY = 50_000


class Seen:
    """A described tensor: its leaf, and the file that holds its content once it was saved."""

    __slots__ = ("file", "leaf", "moment", "reference", "version")

    def __init__(
        self, version: Hashable | None, leaf: Leaf, reference: Callable[[], Any] = lambda: None
    ) -> None:
        self.reference = reference  # weak, to the tensor; without one it is not found by its identity
        self.version = version
        self.leaf = leaf  # as the next call shows it: with its maker, once one is known
        self.file: str | None = None
        self.moment = UNKNOWN  # when its maker was noted, as capture.makers counts


class Memo:
    """Finds what was seen of a tensor by its identity and version; holds no tensor alive."""

    def __init__(self) -> None:
        self._seen: dict[int, Seen] = {}

    def find(self, tensor: Any, version: Hashable) -> Seen | None:
        seen = self._seen.get(id(tensor))
        if seen is not None and seen.version == version and seen.reference() is tensor:
            return seen
        return None

    def keep(self, tensor: Any, version: Hashable, leaf: Leaf) -> Seen:
        if len(self._seen) > _MANY:
            everything = list(self._seen.items())  # in one go: other threads add to it meanwhile
            self._seen = {key: seen for key, seen in everything if seen.reference() is not None}
        kept = self._seen[id(tensor)] = Seen(version, leaf, weakref.ref(tensor))
        return kept

    def drop(self, tensor: Any) -> None:
        """It is not what it was, whatever its version says."""
        self._seen.pop(id(tensor), None)

    def forget(self) -> None:
        self._seen.clear()
