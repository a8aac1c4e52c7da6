"""Where in the user's program a call was made: frames as text, each distinct stack described once."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import NamedTuple

from msprobe.record import Frame, Stack

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MANY = 20_000


class Place(NamedTuple):
    """A call stack and what part of a training step it lies in: an optimizer, gradient clipping, or none."""

    stack: Stack
    group: str | None


class Stacks:
    """Turns the current frames into a Place; looking at a known stack costs one walk over its frames."""

    def __init__(self, hidden: tuple[str, ...] = (), groups: Mapping[str, str] | None = None) -> None:
        self._hidden = (_OURS, *hidden)
        self._groups = dict(groups or {})
        self._known: dict[tuple[int, ...], tuple[Place, list[CodeType]]] = {}
        self._texts: dict[tuple[CodeType, int], str | None] = {}

    def here(self) -> Place:
        """The stack of the caller's caller; frames of msprobe are left out."""
        frame: FrameType | None = sys._getframe(2)
        key: list[int] = []
        add = key.append
        while frame is not None:
            add(id(frame.f_code))  # hashing a code object would read all of it
            add(frame.f_lasti)
            frame = frame.f_back
        known = self._known.get(tuple(key))
        return known[0] if known is not None else self._learn(tuple(key), sys._getframe(2))

    def _learn(self, key: tuple[int, ...], innermost: FrameType) -> Place:
        if len(self._known) > _MANY:
            self._known.clear()
            self._texts.clear()
        texts, codes = [], []
        group = None
        frame: FrameType | None = innermost
        while frame is not None:
            path = frame.f_code.co_filename
            codes.append(frame.f_code)
            if not path.startswith(self._hidden):
                texts.append(self._text(frame))
                group = group or self._groups.get(path)
            frame = frame.f_back
        place = Place(Stack(len(self._known), tuple(texts)), group)
        self._known[key] = (place, codes)  # a code object that is held keeps its id
        return place

    def _text(self, frame: FrameType) -> str:
        key = (frame.f_code, frame.f_lasti)
        text = self._texts.get(key)
        if text is None:
            path, line = frame.f_code.co_filename, frame.f_lineno
            source = linecache.getline(path, line, frame.f_globals).strip()
            text = self._texts[key] = str(Frame(path, str(line), frame.f_code.co_name, source))
        return text
