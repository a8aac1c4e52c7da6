"""Where in the user's program a call was made: frames as text, each distinct stack described once."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

from msprobe.record import Stack

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
        self._known: dict[tuple[Any, ...], Place] = {}
        self._texts: dict[tuple[CodeType, int], str | None] = {}

    def here(self, function: Callable[..., Any] | None = None) -> Place:
        """The stack of the caller's caller; frames of `function` itself and of msprobe are left out."""
        frame: FrameType | None = sys._getframe(2)
        key: list[Any] = [function]
        while frame is not None:
            key.append(frame.f_code)
            key.append(frame.f_lasti)
            frame = frame.f_back
        place = self._known.get(tuple(key))
        if place is None:
            if len(self._known) > _MANY:
                self._known.clear()
                self._texts.clear()
            place = self._known[tuple(key)] = self._describe(sys._getframe(2), function)
        return place

    def _describe(self, frame: FrameType | None, function: Callable[..., Any] | None) -> Place:
        own_code = getattr(function, "__code__", None)
        texts = []
        group = None
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(self._hidden) and not (code is own_code and not texts):
                texts.append(self._text(frame))
                group = group or self._groups.get(code.co_filename)
            frame = frame.f_back
        return Place(Stack(len(self._known), tuple(texts)), group)

    def _text(self, frame: FrameType) -> str:
        key = (frame.f_code, frame.f_lasti)
        text = self._texts.get(key)
        if text is None:
            path, line = frame.f_code.co_filename, frame.f_lineno
            source = linecache.getline(path, line, frame.f_globals).strip()
            text = self._texts[key] = f"File {path}, line {line}, in {frame.f_code.co_name}, \n {source}"
        return text
