"""One description per tensor version: what was described once is not read again until it changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from msprobe.record import Leaf, made

UNKNOWN = -1  # the moment of a tensor without a maker

_MANY = 50_000


def _nobody() -> None:
    """A reference to nothing."""


class Seen:
    """A described tensor: its leaf, who made it, and the file that holds its content once it was saved."""

    __slots__ = (
        *("reference", "version", "leaf", "maker", "_with_maker", "file"),
        *("moment", "memory", "earlier"),  # of capture.makers
    )

    def __init__(
        self,
        version: Hashable | None,
        leaf: Leaf,
        maker: str | None,
        reference: Callable[[], Any] = _nobody,
    ) -> None:
        self.reference = reference  # weak, to the tensor; without one it is not found by its identity
        self.version = version
        self.leaf = leaf  # without its maker
        self.maker = maker
        self._with_maker: Leaf | None = None
        self.file: str | None = None
        self.moment = UNKNOWN  # when its maker was noted, as capture.makers counts
        self.memory: Callable[[], Any] = _nobody  # weak, to the memory where capture.makers noted it
        self.earlier: tuple[Seen, ...] = ()  # what was noted there before, the latest last

    def with_maker(self) -> Leaf:
        """The leaf as the next call shows it; made when that call comes, which is not so for every tensor."""
        if self.maker is None:
            return self.leaf
        if self._with_maker is None:
            self._with_maker = made(self.leaf, self.maker)
        return self._with_maker

    def comes_from(self, maker: str) -> None:
        """It has another maker from now on: a call gave back what it was given."""
        self.maker = maker
        self._with_maker = None


class Memo:
    """Finds what was seen of a tensor by its identity and version; holds no tensor alive."""

    def __init__(self) -> None:
        self._seen: dict[int, Seen] = {}

    def find(self, tensor: Any, version: Hashable) -> Seen | None:
        seen = self._seen.get(id(tensor))
        if seen is not None and seen.version == version and seen.reference() is tensor:
            return seen
        return None

    def keep(self, tensor: Any, version: Hashable, leaf: Leaf, maker: str | None) -> Seen:
        if len(self._seen) > _MANY:
            everything = list(self._seen.items())  # in one go: other threads add to it meanwhile
            self._seen = {key: seen for key, seen in everything if seen.reference() is not None}
        kept = self._seen[id(tensor)] = Seen(version, leaf, maker, weakref.ref(tensor))
        return kept

    def drop(self, tensor: Any) -> None:
        """It is not what it was, whatever its version says."""
        self._seen.pop(id(tensor), None)

    def forget(self) -> None:
        self._seen.clear()
