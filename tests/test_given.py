"""Questions about what a caller gave, which any value may be asked."""

from pathlib import Path
from typing import Any

import pytest

from msprobe.given import are_names, is_count, is_file, is_folder, is_path, is_plain_name


@pytest.mark.parametrize(
    ("value", "least", "answer"),
    [
        (0, 0, True),
        (0, 1, False),
        (7, 1, True),
        (-1, 0, False),
        (True, 0, False),
        (1.0, 0, False),
        ("1", 0, False),
    ],
)
def test_counts(value: Any, least: int, answer: bool) -> None:
    assert is_count(value, least) == answer


@pytest.mark.parametrize(
    ("value", "answer"),
    [([], True), (["a"], True), (("a", "b"), True), ("a", False), ([""], False), ([1], False), (None, False)],
)
def test_names(value: Any, answer: bool) -> None:
    assert are_names(value) == answer


def test_paths(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("")
    asked = (file, str(tmp_path), tmp_path / "gone", tmp_path / ("a" * 300), None, 3, f"{tmp_path}\0")
    assert [is_path(value) for value in asked] == [True, True, True, True, False, False, False]
    assert [is_file(value) for value in asked] == [True, False, False, False, False, False, False]
    assert [is_folder(value) for value in asked] == [False, True, False, False, False, False, False]


@pytest.mark.parametrize("value", ["", ".", "..", "a/b", "a\\b", "a\0", None, 3])
def test_no_plain_names(value: Any) -> None:
    assert not is_plain_name(value) and is_plain_name("a.b")
