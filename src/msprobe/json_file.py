"""Reading a JSON file that a person wrote: where each key stands, and what is wrong where it is not JSON."""

import errno
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn, TypeAlias

from msprobe.errors import ConfigError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
KeyPath: TypeAlias = tuple[str | int, ...]

_MOST_BYTES = 10_000_000
_MOST_DEPTH = 100

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\r\n]|\\[^\r\n])*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,999})(\.[0-9]+)?([eE][+-]?[0-9]+)?(?![\w.+-])")
_WORD = re.compile(r"[^\s,:{}\[\]\"']+")

_WORDS: Mapping[str, Json] = MappingProxyType({"true": True, "false": False, "null": None})
_OTHER_LANGUAGES = MappingProxyType({"True": "true", "False": "false", "None": "null"})
_NOT_FINITE = ("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf")
# Word processors and Chinese input methods put these where JSON wants the plain character.
_LOOKALIKES = MappingProxyType(
    {
        "“": '"',
        "”": '"',
        "‘": '"',
        "’": '"',
        "，": ",",
        "：": ":",
        "；": ",",
        "、": ",",
        "｛": "{",
        "｝": "}",
        "［": "[",
        "］": "]",
        "【": "[",
        "】": "]",
        "\u00a0": " ",
    }
)


@dataclass(frozen=True)
class Remark:
    """The rest of a sentence that begins with the first of the keys; it rests on the other keys too."""

    text: str
    keys: tuple[KeyPath, ...]

    @property
    def sentence(self) -> str:
        end = "" if self.text.endswith("?") else "."
        return f'"{key_text(self.keys[0])}" {self.text}{end}'


@dataclass(frozen=True)
class JsonObject:
    """The object of one file, and the line on which each of its keys and elements stands."""

    path: str
    value: dict[str, Json]
    lines: Mapping[KeyPath, int]

    def sentence(self, remark: Remark) -> str:
        """The whole sentence, with file and line."""
        key = remark.keys[0]
        line = f", line {self.lines[key]}" if key in self.lines else ""
        return f"{self.path}{line}: {remark.sentence}"


def key_text(key: KeyPath) -> str:
    """statistics.list[0]; a key that is no plain word stands in brackets and quotes."""
    text = ""
    for part in key:
        plain = isinstance(part, str) and re.fullmatch(r"[$\w-]+", part)
        text += f".{part}" if plain else f"[{json.dumps(part, ensure_ascii=False)}]"
    return text.removeprefix(".")


def read_object(path: str | os.PathLike[str]) -> JsonObject:
    """The JSON object in the file; a ConfigError names line, column and mistake where there is none."""
    shown = os.fspath(path)
    reader = _Reader(shown, _read_text(shown))
    value = reader.whole()
    if not isinstance(value, dict):
        raise ConfigError(f"{shown} holds {_kind(value)}, but it must hold one object: {{ ... }}.")
    return JsonObject(shown, value, MappingProxyType(reader.lines))


def _read_text(path: str) -> str:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"The file {path!r} does not exist; check the path.") from None
    except OSError as error:
        raise ConfigError(f"The file {path!r} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ConfigError(f"{path!r} is no path of a file: {error}.") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path} is larger than {_MOST_BYTES} bytes, too large for a configuration.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}, line {line}: the byte 0x{error.object[error.start]:02x} is not UTF-8 text; "
            "save the file in UTF-8."
        ) from None


def _open_at_once(path: str, flags: int) -> int:
    """Without this a pipe that nobody writes to would let us wait for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _kind(value: Json) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


class _Reader:
    """A recursive descent over one text; it ends at the first mistake, for what follows would be a guess."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._counted = 0, 1  # up to where lines were counted, and the number of the line there

    def whole(self) -> Json:
        if not self.next():
            self.fail(self.at, "the file is empty, but it must hold one object: { ... }")
        value = self.value(())
        if self.next():
            self.fail_at_mark("text follows after the end of the object")
        return value

    def next(self) -> str:
        """The next character that is not white space, or "" at the end; it is not consumed."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.text[self.at : self.at + 1]

    def line(self, at: int) -> int:
        """The number of a line; asked for ever later places, it counts no part of the text twice."""
        before, line = self._counted if at >= self._counted[0] else (0, 1)
        self._counted = at, line + self.text.count("\n", before, at)
        return self._counted[1]

    def fail(self, at: int, mistake: str) -> NoReturn:
        column = at - self.text.rfind("\n", 0, at)
        raise ConfigError(f"{self.path}, line {self.line(at)}, column {column}: {mistake}.")

    def fail_at_mark(self, otherwise: str) -> NoReturn:
        """For a character that fits nowhere: first the mistakes that can be told from it alone."""
        mark = self.text[self.at : self.at + 1]
        if mark == "'":
            self.fail(self.at, "single quotes are not JSON; use double quotes")
        if mark == "#" or self.text.startswith(("//", "/*"), self.at):
            self.fail(self.at, "JSON has no comments; remove this one")
        if mark in _LOOKALIKES:
            self.fail(
                self.at,
                f"the character {mark!r} looks like {_LOOKALIKES[mark]!r} but is another one; "
                f"type a plain {_LOOKALIKES[mark]!r}",
            )
        self.fail(self.at, otherwise)

    def value(self, where: KeyPath) -> Json:
        mark = self.next()
        if len(where) > _MOST_DEPTH:
            self.fail(self.at, f"objects and lists are nested deeper than {_MOST_DEPTH} levels")
        if mark == "{":
            return self.members(where)
        if mark == "[":
            return self.elements(where)
        if mark == '"':
            return self.string()
        return self.bare()

    def members(self, where: KeyPath) -> Json:
        start = self.at
        found: dict[str, Json] = {}
        self.at += 1
        comma: int | None = None
        while (mark := self.next()) != "}" or comma is not None:
            self.expect_key(mark, comma, start)
            key_at = self.at
            key = self.string()
            here = (*where, key)
            if key in found:
                self.fail(
                    key_at,
                    f"the key {_quoted(key)} stands here a second time (first in line "
                    f"{self.lines[here]}); remove one of the two",
                )
            self.lines[here] = self.line(key_at)
            self.colon(key)
            found[key] = self.value(here)
            comma = self.separator("}", start)
            if comma is None:
                break
        self.at += 1
        return found

    def expect_key(self, mark: str, comma: int | None, start: int) -> None:
        if mark == '"':
            return
        if mark == "}" and comma is not None:
            self.fail(comma, "trailing comma before }; remove the comma")
        if mark == "":
            self.fail_open("{", start)
        if mark == ",":
            self.fail(self.at, "a comma stands where a key is expected; remove it")
        word = _WORD.match(self.text, self.at)
        if word:
            self.fail_at_mark(f"the key {word.group()} needs double quotes")
        self.fail_at_mark(f"{mark} stands where a key is expected")

    def colon(self, key: str) -> None:
        end = self.at
        mark = self.next()
        if mark == "=":
            self.fail(self.at, "JSON writes a colon, not =, between key and value")
        if mark != ":":
            if mark in (",", "}", ""):
                self.fail(end, f"the key {_quoted(key)} has no value; a colon and a value are expected")
            self.fail_at_mark(f"a colon is expected after the key {_quoted(key)}; it or a quote is missing")
        self.at += 1

    def elements(self, where: KeyPath) -> Json:
        start = self.at
        found: list[Json] = []
        self.at += 1
        comma: int | None = None
        while (mark := self.next()) != "]" or comma is not None:
            if mark == "]" and comma is not None:
                self.fail(comma, "trailing comma before ]; remove the comma")
            if mark == "":
                self.fail_open("[", start)
            here = (*where, len(found))
            self.lines[here] = self.line(self.at)
            found.append(self.value(here))
            comma = self.separator("]", start)
            if comma is None:
                break
        self.at += 1
        return found

    def separator(self, closing: str, start: int) -> int | None:
        """Consumes a comma and gives its place; None where the closing bracket follows."""
        end = self.at
        mark = self.next()
        if mark == closing:
            return None
        if mark == ",":
            self.at += 1
            return self.at - 1
        if mark == "":
            self.fail_open("{" if closing == "}" else "[", start)
        if mark in "}]":
            opened = f"{self.text[start]} of line {self.line(start)}"
            self.fail(self.at, f"{mark} stands here, but {opened} needs {closing}")
        if mark == '"' or mark in "{[-0123456789" or mark.isalpha():
            self.fail(end, f"a comma or {closing} is missing here")
        return self.fail_at_mark(f"{mark} stands where a comma or {closing} is expected")

    def fail_open(self, bracket: str, start: int) -> NoReturn:
        self.fail(self.at, f"the file ends, but {bracket} of line {self.line(start)} is not closed")

    def string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if not found:
            self.fail(self.at, "this text has no closing double quote on its line")
        try:
            text = str(json.loads(found.group()))
        except json.JSONDecodeError as error:
            bad = self.at + error.pos
            if self.text[bad : bad + 1] == "\\" or "escape" in error.msg:
                self.fail(bad, "this backslash begins no JSON escape; write it twice, or use / in a path")
            self.fail(bad, "a control character stands inside this text; write a tab as \\t")
        self.at = found.end()
        return text

    def bare(self) -> Json:
        number = _NUMBER.match(self.text, self.at)
        if number:
            self.at = number.end()
            return float(number.group()) if number.group(1) or number.group(2) else int(number.group())
        found = _WORD.match(self.text, self.at)
        word = found.group() if found else ""
        if word in _WORDS:
            self.at += len(word)
            return _WORDS[word]
        if word in _OTHER_LANGUAGES:
            self.fail(self.at, f"{word} is not JSON; write {_OTHER_LANGUAGES[word]}")
        if word in _NOT_FINITE:
            self.fail(self.at, f"{word} is not a JSON number")
        if word and (word[0].isdigit() or word[0] in "-+."):
            self.fail(self.at, f"{word} is not a JSON number")
        return self.fail_at_mark(f"{word} needs double quotes" if word else "a value is missing here")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
