"""Reading JSON that a person wrote: the same values as the json module, and a sentence for each mistake."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.errors import ConfigError
from msprobe.json_file import JsonObject, Remark, read_object

MISTAKES = {
    "trailing comma in an object": ('{"a": 1,\n}', 1, 8, "trailing comma before }; remove the comma"),
    "trailing comma in a list": ('{"a": [1,\n  2,\n]}', 2, 4, "trailing comma before ]; remove the comma"),
    "two commas": ('{"a": 1,, "b": 2}', 1, 9, "a comma stands where a key is expected; remove it"),
    "comma first": ("{,}", 1, 2, "a comma stands where a key is expected; remove it"),
    "missing comma": ('{"a": 1\n "b": 2}', 1, 8, "a comma or } is missing here"),
    "missing comma in a list": ('{"a": [1 2]}', 1, 9, "a comma or ] is missing here"),
    "missing closing quote": (
        '{"a": "x,\n"b": 1}',
        1,
        7,
        "this text has no closing double quote on its line",
    ),
    "missing closing quote of a key": (
        '{"a: "x"}',
        1,
        7,
        'a colon is expected after the key "a: "; it or a quote is missing',
    ),
    "missing opening quote of a key": ('{a": 1}', 1, 2, "the key a needs double quotes"),
    "missing opening quote": ('{"a": x"}', 1, 7, "x needs double quotes"),
    "key without quotes": ("{task: 1}", 1, 2, "the key task needs double quotes"),
    "value without quotes": ('{"a": L1}', 1, 7, "L1 needs double quotes"),
    "missing colon": (
        '{"a" 1}',
        1,
        6,
        'a colon is expected after the key "a"; it or a quote is missing',
    ),
    "equals sign": ('{"a" = 1}', 1, 6, "JSON writes a colon, not =, between key and value"),
    "key without a value": (
        '{"a", "b": 1}',
        1,
        5,
        'the key "a" has no value; a colon and a value are expected',
    ),
    "value missing": ('{"a": , "b": 1}', 1, 7, "a value is missing here"),
    "value missing at the end": ('{"a": }', 1, 7, "a value is missing here"),
    "line comment": ('{"a": 1, // why\n"b": 2}', 1, 10, "JSON has no comments; remove this one"),
    "block comment": ('{/* why */"a": 1}', 1, 2, "JSON has no comments; remove this one"),
    "hash comment": ('{"a": 1 # why\n}', 1, 9, "JSON has no comments; remove this one"),
    "comment as a value": ('{"a": # why\n1}', 1, 7, "JSON has no comments; remove this one"),
    "comment after the end": ('{"a": 1}\n// end', 2, 1, "JSON has no comments; remove this one"),
    "single quotes around a key": ("{'a': 1}", 1, 2, "single quotes are not JSON; use double quotes"),
    "single quotes around a value": ("{\"a\": 'x'}", 1, 7, "single quotes are not JSON; use double quotes"),
    "Chinese quotes": (
        '{"a": “x”}',
        1,
        7,
        "the character '“' looks like '\"' but is another one; type a plain '\"'",
    ),
    "Chinese comma": (
        '{"a": 1，"b": 2}',
        1,
        8,
        "the character '，' looks like ',' but is another one; type a plain ','",
    ),
    "Chinese colon": (
        '{"a"：1}',
        1,
        5,
        "the character '：' looks like ':' but is another one; type a plain ':'",
    ),
    "NaN": ('{"a": NaN}', 1, 7, "NaN is not a JSON number"),
    "Infinity": ('{"a": -Infinity}', 1, 7, "-Infinity is not a JSON number"),
    "leading zero": ('{"a": 01}', 1, 7, "01 is not a JSON number"),
    "plus sign": ('{"a": +1}', 1, 7, "+1 is not a JSON number"),
    "no digit after the point": ('{"a": 1.}', 1, 7, "1. is not a JSON number"),
    "range without quotes": ('{"a": [3-5]}', 1, 8, "3-5 is not a JSON number"),
    "hexadecimal": ('{"a": 0x10}', 1, 7, "0x10 is not a JSON number"),
    "Python's True": ('{"a": True}', 1, 7, "True is not JSON; write true"),
    "Python's None": ('{"a": None}', 1, 7, "None is not JSON; write null"),
    "duplicate key": (
        '{"a": 1,\n "b": {"a": 2},\n "a": 3}',
        3,
        2,
        'the key "a" stands here a second time (first in line 1); remove one of the two',
    ),
    "duplicate key, once escaped": (
        '{"a": 1, "\\u0061": 3}',
        1,
        10,
        'the key "a" stands here a second time (first in line 1); remove one of the two',
    ),
    "not closed": ('{"a": [1,\n2', 2, 2, "the file ends, but [ of line 1 is not closed"),
    "not closed after a comma": ('{"a": 1,', 1, 9, "the file ends, but { of line 1 is not closed"),
    "wrong bracket": ('{"a": [1}', 1, 9, "} stands here, but [ of line 1 needs ]"),
    "colon in a list": ('{"a": ["b": 1]}', 1, 11, ": stands where a comma or ] is expected"),
    "text after the end": ('{"a": 1}\n}', 2, 1, "text follows after the end of the object"),
    "empty": ("", 1, 1, "the file is empty, but it must hold one object: { ... }"),
    "only white space": (" \n\n", 3, 1, "the file is empty, but it must hold one object: { ... }"),
    "Windows path": (
        '{"a": "C:\\dump"}',
        1,
        10,
        "this backslash begins no JSON escape; write it twice, or use / in a path",
    ),
    "tab inside a text": (
        '{"a": "x\ty"}',
        1,
        9,
        "a control character stands inside this text; write a tab as \\t",
    ),
    "nested too deep": ('{"a": ' + "[" * 200, 1, 107, "objects and lists are nested deeper than 100 levels"),
}


@pytest.mark.parametrize(("text", "line", "column", "mistake"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_named_with_its_place(
    tmp_path: Path, text: str, line: int, column: int, mistake: str
) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_object(path)
    assert str(caught.value) == f"{path}, line {line}, column {column}: {mistake}."


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("[1]", "a list"),
        ('"x"', "a text"),
        ("3", "a number"),
        ("1.5", "a number"),
        ("true", "true or false"),
        ("null", "null"),
    ],
)
def test_only_an_object_is_accepted(tmp_path: Path, text: str, holds: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_object(path)
    assert str(caught.value) == f"{path} holds {holds}, but it must hold one object: {{ ... }}."


def test_keys_and_elements_know_their_lines(tmp_path: Path) -> None:
    path = _write(tmp_path, '{\n"a": 1,\r\n"b": {"c":\n [2,\n 3]}}\n')
    assert read_object(path) == JsonObject(
        str(path),
        {"a": 1, "b": {"c": [2, 3]}},
        {("a",): 2, ("b",): 3, ("b", "c"): 3, ("b", "c", 0): 4, ("b", "c", 1): 5},
    )


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        (("b", "c", 1), "is 3", 'f, line 5: "b.c[1]" is 3.'),
        (("gone",), "is missing", 'f: "gone" is missing.'),
        (("b", "c.d"), "is new; remove it?", 'f: "b["c.d"]" is new; remove it?'),
    ],
)
def test_sentence_names_file_line_and_key(key: tuple[str | int, ...], text: str, sentence: str) -> None:
    file = JsonObject("f", {}, {("b", "c", 1): 5})
    assert file.sentence(Remark(text, (key,))) == sentence


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_utf8_is_read_with_and_without_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"路径": "数据"}', encoding=encoding)
    assert read_object(path).value == {"路径": "数据"}


@pytest.mark.parametrize(
    ("content", "line", "byte"),
    [('{"a":\n"é"}'.encode("latin-1"), 2, "e9"), ('{"a": 1}'.encode("utf-16"), 1, "ff")],
)
def test_other_encodings_are_refused(tmp_path: Path, content: bytes, line: int, byte: str) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_object(path)
    assert str(caught.value) == (
        f"{path}, line {line}: the byte 0x{byte} is not UTF-8 text; save the file in UTF-8."
    )


def test_unreadable_paths_give_a_sentence(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.json")
    for path, sentence in {
        gone: f"The file '{gone}' does not exist; check the path.",
        str(tmp_path): f"The file '{tmp_path}' cannot be read: Is a directory.",
        "a\0b": "'a\\x00b' is no path of a file: embedded null byte.",
    }.items():
        with pytest.raises(ConfigError) as caught:
            read_object(path)
        assert str(caught.value) == sentence


def test_link_and_open_permissions_are_accepted(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"a": 1}')
    path.chmod(0o666)
    link = tmp_path / "no suffix"
    os.symlink(path, link)
    assert read_object(link).value == {"a": 1}


def test_enormous_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with path.open("wb") as file:
        file.truncate(10_000_001)
    with pytest.raises(ConfigError, match="larger than 10000000 bytes"):
        read_object(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=5)


@settings(deadline=None)
@given(objects, st.booleans(), st.sampled_from([None, 0, 2, "\t"]))
def test_valid_json_reads_as_the_json_module_reads_it(
    tmp_path_factory: pytest.TempPathFactory,
    value: dict[str, object],
    ascii_only: bool,
    indent: int | str | None,
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    if not ascii_only and _has_surrogate(text):
        return
    path = _write(tmp_path_factory.mktemp("json"), text)
    assert read_object(path).value == json.loads(text)


@st.composite
def broken_texts(draw: st.DrawFn) -> str:
    """A valid text with a few characters taken out, put in or doubled."""
    text = json.dumps(draw(objects))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from([*"{}[]\",:'#/ \n\\e0.-+", "true", ""])) + text[at + 1 :]
    return text


@settings(deadline=None)
@given(broken_texts())
def test_broken_json_is_refused_exactly_where_strict_json_refuses_it(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = _write(tmp_path_factory.mktemp("json"), text)
    try:
        expected = json.loads(text, object_pairs_hook=_no_twins, parse_constant=_refuse)
    except ValueError:
        expected = None
    if isinstance(expected, dict):
        assert read_object(path).value == expected
    else:
        with pytest.raises(ConfigError):
            read_object(path)


def _no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(word: str) -> None:
    raise ValueError(word)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _write(folder: Path, text: str) -> Path:
    path = folder / "c.json"
    path.write_bytes(text.encode("utf-8"))
    return path
