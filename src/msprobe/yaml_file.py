"""Reading a YAML file that a person wrote: texts, lists and objects, each with its line, and no more.

The file is taken event by event and never becomes Python objects: nothing in it can run, an alias cannot
multiply what it stands for, and a name such as `on`, `no` or `1e3` stays the text that it is.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

import yaml

from msprobe.errors import ConfigError

_MOST_BYTES = 20_000_000
_MOST_DEPTH = 8
_UNPRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NO_SPACE = re.compile(r"[^\s:]:[^\s:]")
_WIDE_COLON = "："  # Chinese input methods put it where YAML wants the plain one


class Text(NamedTuple):
    """A value as it is written, without its quotes."""

    text: str
    line: int


class Items(NamedTuple):
    """A list."""

    items: tuple[Node, ...]
    line: int


class Member(NamedTuple):
    """What stands under a key, and the line of the key."""

    value: Node
    line: int


class Object(NamedTuple):
    """Keys and values, in the order of the file."""

    members: Mapping[str, Member]
    line: int


Node: TypeAlias = Text | Items | Object


class YamlFile(NamedTuple):
    """What one file holds."""

    path: str
    root: Node

    def fail(self, line: int, mistake: str) -> NoReturn:
        raise ConfigError(f"{self.path}, line {line}: {mistake}.")


def read(path: str) -> YamlFile:
    """The one document in the file; a ConfigError names line and mistake where it cannot be used."""
    text = _read_text(path)
    return YamlFile(path, _Reader(path, text).whole())


def _read_text(path: str) -> str:
    try:
        # Without O_NONBLOCK a pipe of this name would keep us waiting for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = file.read(_MOST_BYTES + 1) if is_file else None
    except FileNotFoundError:
        raise ConfigError(f"The file {path!r} does not exist; check the path.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path!r} is a folder; give the path of a YAML file.") from None
    except OSError as error:
        raise ConfigError(f"The file {path!r} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise ConfigError(f"{path!r} is no path of a file: {error}.") from None
    if content is None:
        raise ConfigError(f"{path!r} is not a file; give the path of a YAML file.")
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES} bytes; remove what is not needed.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: this is not UTF-8 text; save the file in UTF-8.") from None
    strange = _UNPRINTABLE.search(text)
    if strange:
        line = text.count("\n", 0, strange.start()) + 1
        raise ConfigError(f"{path}, line {line}: the character {strange.group()!r} cannot stand in YAML.")
    return text


class _Reader:
    """A recursive descent over the events of one text; it ends at the first mistake."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._events = self._parsed()

    def whole(self) -> Node:
        event = self._next(yaml.StreamStartEvent)
        if isinstance(event, yaml.StreamEndEvent):
            self._fail(1, "the file is empty")
        root = self._node(next(self._events), 0)
        event = self._next(yaml.DocumentEndEvent)
        if not isinstance(event, yaml.StreamEndEvent):
            self._fail(_line(event), "a second document begins here; only one can stand in a file")
        return root

    def _next(self, skipped: type[yaml.Event]) -> Any:
        """The event behind the next one, which is of the given kind."""
        event = next(self._events)
        assert isinstance(event, skipped)
        return next(self._events)

    def _parsed(self) -> Iterator[Any]:
        # The one that is written in C, where it was built, is ten times as fast.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            yield from yaml.parse(self._text, Loader=loader)
        except yaml.MarkedYAMLError as error:
            self._fail(*self._mistake(error))
        except yaml.YAMLError as error:
            raise ConfigError(f"{self._path} is not YAML: {' '.join(str(error).split())}.") from None

    def _mistake(self, error: yaml.MarkedYAMLError) -> tuple[int, str]:
        """The line that is wrong, and how; first the mistakes that can be told from the line alone."""
        marks = [mark.line for mark in (error.context_mark, error.problem_mark) if mark is not None]
        lines = self._text.splitlines()
        for number in marks:
            line = lines[number] if number < len(lines) else ""
            if _WIDE_COLON in line:
                return number + 1, _NO_COLON
            if line.lstrip(" ").startswith("\t"):
                return number + 1, "a tab stands at the beginning of the line; YAML indents by spaces"
            if _NO_SPACE.search(line) and ": " not in line:
                return number + 1, "a space is missing behind the colon"
        return marks[-1] + 1 if marks else 1, f"this is not YAML: {error.problem or error.context}"

    def _fail(self, line: int, mistake: str) -> NoReturn:
        raise ConfigError(f"{self._path}, line {line}: {mistake}.")

    def _node(self, event: Any, depth: int) -> Node:
        line = _line(event)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            self._fail(line, "anchors and aliases (& and *) are not read; write the text out, or in quotes")
        if event.tag is not None:
            self._fail(line, "tags (!) are not read; write the text alone, or in quotes")
        if depth > _MOST_DEPTH:
            self._fail(line, f"lists and objects are nested deeper than {_MOST_DEPTH} levels")
        if isinstance(event, yaml.ScalarEvent):
            return Text(event.value, line)
        if isinstance(event, yaml.SequenceStartEvent):
            return Items(tuple(self._items(depth + 1)), line)
        return Object(dict(self._members(depth + 1)), line)

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, depth)

    def _members(self, depth: int) -> Iterator[tuple[str, Member]]:
        seen: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, depth)
            if not isinstance(key, Text):
                self._fail(key.line, "the key before a colon must be one text")
            if key.text in seen:
                self._fail(
                    key.line, f"'{cut(key.text)}' stands here a second time (first in line {seen[key.text]})"
                )
            seen[key.text] = key.line
            value = self._node(next(self._events), depth)
            if isinstance(value, Text) and not value.text.strip():
                self._fail(key.line, f"nothing stands behind '{cut(key.text)}:'")
            yield key.text, Member(value, key.line)


_NO_COLON = f"the character {_WIDE_COLON!r} is not the colon of YAML; type ':' and a space"


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def why_no_object(node: Text | Items) -> str:
    """What is wrong where keys and values are expected."""
    if isinstance(node, Items):
        return "a list stands where `key: value` is expected"
    if _WIDE_COLON in node.text:
        return _NO_COLON
    if _NO_SPACE.search(node.text):
        return "a space is missing behind the colon"
    return f"'{cut(node.text)}' stands where `key: value` is expected"


def cut(text: str, most: int = 100) -> str:
    """A text of somebody else, made fit for a sentence: short, and on one line."""
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text[:most])
    return shown if len(text) <= most else f"{shown}..."
