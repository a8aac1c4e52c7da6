"""What a caller gave, before it is used: questions that any value at all may be asked."""

from __future__ import annotations

import os


def is_count(value: object, least: int = 0) -> bool:
    """A whole number from `least` on; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def are_names(value: object) -> bool:
    """A list of texts, none of which is empty."""
    return isinstance(value, (list, tuple)) and all(isinstance(one, str) and one for one in value)


def is_path(value: object) -> bool:
    """A path, whether anything is there or not; no file at all has a name with a NUL."""
    return isinstance(value, (str, os.PathLike)) and "\0" not in os.fsdecode(value)


def is_file(value: object) -> bool:
    """The path of a file that is there; one that is too long for any file is none."""
    return isinstance(value, (str, os.PathLike)) and os.path.isfile(value)


def is_folder(value: object) -> bool:
    """The path of a folder that is there."""
    return isinstance(value, (str, os.PathLike)) and os.path.isdir(value)


def is_plain_name(name: object) -> bool:
    """Whether it names a file of the folder it is looked for in, and none elsewhere."""
    if not isinstance(name, str):
        return False
    return name not in ("", ".", "..") and "/" not in name and "\\" not in name and "\0" not in name
