"""Which tensors hold infinities on purpose, known again by identity and version; keeps none of them alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from msprobe.capture.overflow_verdict import Kinds

_MANY = 10_000


class _Known(NamedTuple):
    reference: weakref.ref[Any]
    version: Hashable
    excused: Kinds


class Excuses:
    """What was found out about tensors that hold numbers that are not finite."""

    def __init__(self, version_of: Callable[[Any], Hashable | None]) -> None:
        self._version_of = version_of
        self._known: dict[int, _Known] = {}

    def of(self, tensor: Any) -> Kinds | None:
        """What of it is meant to be there; None for a tensor that no recorded call gave."""
        known = self._known.get(id(tensor))
        if known is None or known.reference() is not tensor or known.version != self._version_of(tensor):
            return None
        return known.excused

    def note(self, tensor: Any, excused: Kinds) -> None:
        if len(self._known) > _MANY:
            everything = list(self._known.items())  # in one go: other threads add to it meanwhile
            self._known = {key: known for key, known in everything if known.reference() is not None}
        try:
            reference = weakref.ref(tensor)
        except TypeError:  # a kind of tensor that cannot be known again
            return
        self._known[id(tensor)] = _Known(reference, self._version_of(tensor), excused)

    def forget(self) -> None:
        self._known.clear()
