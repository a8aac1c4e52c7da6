"""The requirement rows: read from the matrix, kept in tests/spec_rows.tsv, named by marks and by --rows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS_FILE = ROOT / "tests" / "spec_rows.tsv"

LETTERS = "CLAMKRP"
ENVIRONMENTS = ("PT", "MSd", "MSs", "MSA", "LEG", "CLI")
# A ruling (R row) has no environment column: a test in any one of them shows it.
ANY = "any"
_ALL = {"K": ("CLI",)}
_ALL_OTHERS = ("PT", "MSd", "MSs")

_DOCUMENT = {"R": "rulings", "P": "PyTorch"}
_HEADER = ("id", "document", "environments", "cpu", "requirement")
_ROW_ID = re.compile(rf"[{LETTERS}]\d+")
_ROW_RANGE = re.compile(rf"([{LETTERS}])(\d+)(?:-([{LETTERS}]?)(\d+))?")


class SpecError(Exception):
    """The matrix, the result of a run, or a command line argument cannot be used."""


@dataclass(frozen=True)
class Row:
    """One acceptance row of the matrix; cpu is Y, Y*, N (refusal only) or D (may be bare)."""

    id: str
    document: str
    environments: tuple[str, ...]
    cpu: str
    requirement: str

    @property
    def any_environment(self) -> bool:
        return self.environments == (ANY,)

    def accepts(self, environment: str) -> bool:
        return self.any_environment or environment in self.environments


def import_matrix(text: str) -> list[Row]:
    """The acceptance rows of MATRIX.md, in its order."""
    rows = [row for line in text.splitlines() if (row := _matrix_row(line)) is not None]
    ids = [row.id for row in rows]
    if not rows or len(set(ids)) != len(ids):
        raise SpecError("The matrix has no rows, or one row id twice; is this really MATRIX.md?")
    return rows


def _matrix_row(line: str) -> Row | None:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if not _ROW_ID.fullmatch(cells[0]):
        return None
    letter = cells[0][0]
    if letter == "R":
        row_id, _about, requirement = cells
        return Row(row_id, _DOCUMENT["R"], (ANY,), "Y", requirement)
    if letter == "P":
        row_id, environments, requirement, cpu = cells
        return Row(row_id, _DOCUMENT["P"], _environments(letter, environments), cpu, requirement)
    row_id, document, environments, requirement, _rule, cpu, _note = cells
    return Row(row_id, document, _environments(letter, environments), cpu, requirement)


def _environments(letter: str, cell: str) -> tuple[str, ...]:
    if cell == "ALL":
        return _ALL.get(letter, _ALL_OTHERS)
    return tuple(environment.strip() for environment in cell.split(","))


def write_rows(rows: Iterable[Row]) -> str:
    lines = [_HEADER, *((r.id, r.document, ",".join(r.environments), r.cpu, r.requirement) for r in rows)]
    return "".join("\t".join(line) + "\n" for line in lines)


def read_rows(path: Path = ROWS_FILE) -> dict[str, Row]:
    """The rows by id."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or tuple(lines[0].split("\t")) != _HEADER:
        raise SpecError(f"{path} does not begin with the header {' '.join(_HEADER)}; make it with --import.")
    rows = (line.split("\t") for line in lines[1:])
    return {i: Row(i, document, tuple(e.split(",")), cpu, text) for i, document, e, cpu, text in rows}


def check_mark(rows: Mapping[str, Row], arguments: Sequence[object]) -> tuple[str, tuple[str, ...]]:
    """Row and environments of one `spec` mark; ALL stands for every environment of the row."""
    if len(arguments) < 2 or not all(isinstance(argument, str) for argument in arguments):
        raise SpecError(
            f"spec{tuple(arguments)} needs a row and at least one environment, as in spec('C069', 'PT')."
        )
    row_id, *environments = (str(argument) for argument in arguments)
    row = rows.get(row_id)
    if row is None:
        raise SpecError(f"spec: {row_id} is no row of the matrix.")
    if environments == ["ALL"] and not row.any_environment:
        return row_id, row.environments
    for environment in environments:
        if environment not in ENVIRONMENTS:
            raise SpecError(f"spec: {environment} is no environment; there are {', '.join(ENVIRONMENTS)}.")
        if not row.accepts(environment):
            raise SpecError(
                f"spec: {row_id} is a row of {', '.join(row.environments)}, not of {environment}."
            )
    return row_id, tuple(environments)


def select_rows(rows: Mapping[str, Row], text: str) -> list[Row]:
    """The rows named by a list such as `C001-C027, R05`; without text all of them."""
    if not text.strip():
        return list(rows.values())
    wanted = {row_id for part in text.split(",") for row_id in _expand(rows, part.strip())}
    return [row for row in rows.values() if row.id in wanted]


def _expand(rows: Mapping[str, Row], part: str) -> Iterator[str]:
    found = _ROW_RANGE.fullmatch(part)
    if not found or found[3] not in (None, "", found[1]):
        raise SpecError(f"--rows: '{part}' is neither a row nor a range such as C001-C027.")
    letter, first, last = found[1], found[2], found[4] or found[2]
    ids = [row_id for row_id in rows if row_id[0] == letter and int(first) <= int(row_id[1:]) <= int(last)]
    for end in (f"{letter}{first}", f"{letter}{last}"):
        if end not in ids:
            raise SpecError(f"--rows: there is no row {end} in '{part}'.")
    yield from ids


def select_environments(text: str) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(",") if part.strip())
    for environment in chosen:
        if environment not in ENVIRONMENTS:
            raise SpecError(f"--env: {environment} is none of {', '.join(ENVIRONMENTS)}.")
    return chosen
