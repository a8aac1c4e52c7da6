"""Files of lines of JSON with tensors beside them, as other tools lay recordings out: written and read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msprobe.errors import RecordingError
from msprobe.log import logger
from msprobe.name import CallName
from msprobe.record import Filled, Header, Leaf, Record, Recording, Stack
from msprobe.store.dtypes import number_data
from msprobe.store.layout import append_to, clear, make_below, open_regular, step_and_rank, write_whole
from msprobe.store.tensor_file import encode_npy

_LONGEST_LINE = 1 << 24


class Line(NamedTuple):
    """Its name, its call, the slot in it (`input.1.0`), and what was seen there, which may be its stack."""

    text: str
    call: CallName
    slot: str
    seen: Leaf | Stack


class LineFile:
    """A file of lines, and the folder of its tensors, which is called as the file is without its suffix."""

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        """`folder`: where it is called otherwise."""
        self.path = path
        self.folder = folder or path.with_suffix("")

    # --- writing ---

    def begin(self, root: Path) -> None:
        """Empty it of what an earlier run left; a link on the way to it from `root` is refused."""
        make_below(root, self.path.parent)
        clear(self.folder, ".npy")
        write_whole(self.path, [])

    def add(self, lines: Iterable[Any]) -> None:
        """Write further lines, all of them or none."""
        append_to(self.path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def save(self, name: str, leaf: Leaf) -> None:
        """Write the content of a leaf, if it has one, for the line of this name."""
        content = leaf.content if isinstance(leaf, Filled) else number_data(leaf.value)
        if content is not None:
            write_whole(make_below(self.path.parent, self.folder) / f"{name}.npy", encode_npy(content))

    # --- reading ---

    def lines(self, decode: Callable[[Any, str], Line], what: str) -> Iterator[Line]:
        """What `decode` makes of each line's value and of where it stands; what it cannot take is not `what`.

        The rest of a last line that a killed process left is left out.
        """
        with os.fdopen(open_regular(self.path), "rb") as stream:
            for number, raw in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), b""), 1):
                where = f"{self.path}, line {number}"
                if len(raw) > _LONGEST_LINE:
                    raise RecordingError(f"{where} is not {what}")
                try:
                    if raw.strip():
                        yield decode(json.loads(raw), where)
                except (ValueError, TypeError, RecursionError) as error:  # also: thousands of digits
                    if number > 1 and not raw.endswith(b"\n"):
                        logger().warning("%s is torn, as by a run that was killed: it is left out.", where)
                    elif isinstance(error, RecordingError):
                        raise
                    else:
                        raise RecordingError(f"{where} is not {what}") from None

    def recording(self, lines: Iterable[Line], framework: str) -> Recording:
        """The recording of calls that these lines tell of, of a rank and a step if its folders name them."""
        if self.folder.is_symlink():
            raise RecordingError(f"{self.folder} is a link, and links are not followed.")
        header = Header("tensor" if self.folder.is_dir() else "statistics", "L1", framework)
        records = _gathered(lines, str(self.path))
        step, rank = step_and_rank(self.path.absolute().parent)
        return Recording(header, records, str(self.path.parent), step, rank, tensor_folder=str(self.folder))


class LineFiles:
    """The files that one run writes: each is begun when it is first opened, and then added to."""

    def __init__(self, levels: int) -> None:
        """`levels`: of folders that are the run's; a link among them is refused."""
        self._levels = levels
        self._begun: set[Path] = set()

    def open(self, path: Path) -> LineFile:
        """The file at this path, for adding to it."""
        file = LineFile(path)
        if path not in self._begun:
            file.begin(path.parents[self._levels])
            self._begun.add(path)
        return file

    def forget(self) -> None:
        """Whatever is opened from here on is begun anew."""
        self._begun.clear()


def _gathered(lines: Iterable[Line], where: str) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for _, call, slot, seen in lines:
        record = records.setdefault(str(call), Record(call, {}))
        if isinstance(seen, Stack):
            records[str(call)] = record._replace(stack=seen)
            continue
        tree: Any = record.fields
        *above, last = slot.split(".")
        for part in above:
            tree = tree.setdefault(part, {})
            if isinstance(tree, Leaf):
                raise RecordingError(f"{where}: {slot} of {call} lies within a value; the file is damaged.")
        tree[last] = seen
    return records
