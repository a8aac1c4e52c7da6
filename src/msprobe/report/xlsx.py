"""A table as an xlsx file: the markup of its sheets, made many rows at a time, and the zip around it."""

from __future__ import annotations

import functools
import html
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice, product
from pathlib import Path

from pydantic_core import to_json

from msprobe.errors import UsageError
from msprobe.kernels_deflate import crc32, packer
from msprobe.report.table import REPLACEMENT, SURROGATE, Cell, Table
from msprobe.store.layout import write_whole

MOST_ROWS = 1_048_575  # of a sheet in Excel, below the header
_MOST_COLUMNS = 16_384
_LONGEST = 32_767  # text, in units of UTF-16
_CUT = " [cut]"
_SHEET = "compare"
_LARGEST_INT = int(1.7e308)

_ROWS_AT_ONCE = 1000
_TEXTS_AT_ONCE = 10_000
_SAMPLE = 500  # rows that are looked at for the widths
_NARROWEST, _WIDEST = 8, 60
_NUMBER_WIDTH = 11  # Excel rounds what it shows to this; the cell holds all digits
_ARROW_WIDTH = 3  # of the filter's button

_HEADER, _FIRST_FILL = 1, 2  # styles; 0 is the plain one
_ARGB = re.compile(r"[0-9A-Fa-f]{8}")

_ZIP_VERSION, _SIZES_FOLLOW, _DEFLATED = 20, 8, 8
_FIRST_OF_1980 = 0x21  # any date would do; a fixed one makes equal tables equal files
_LARGEST_MEMBER = 0xF000_0000

_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATED = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml."

# By the Python type of a cell, how its element `c` says what it holds.
_CELL_TYPES = {str: ' t="s"', bool: ' t="b"', int: "", float: ""}
_PLAIN = frozenset((str, float, bool, type(None)))  # an int may be too large, and any other type is odd
_TEXT = {str}
_NOT_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_EASY = re.compile(r"[\n -%'-;=?-~]{0,16000}")  # needs no escape
# Among them the carriage return, which XML would turn into a line feed.
_NOT_IN_XML = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]")
_LIKE_ESCAPED = re.compile("_(?=x[0-9A-Fa-f]{4}_)")

# The index of each text among the shared ones; a new text gets the next number.
_Texts = defaultdict[str, int]


def write_xlsx(path: Path, table: Table, rows_per_sheet: int = MOST_ROWS) -> None:
    """Write the whole table, or nothing if anything goes wrong; rows that do not fit go to further sheets."""
    if not 0 < len(table.columns) <= _MOST_COLUMNS:
        raise UsageError(
            f"A table of {len(table.columns)} columns cannot become {path}: a sheet has from 1 to "
            f"{_MOST_COLUMNS}. Write it as csv."
        )
    write_whole(path, _zip(_members(table, rows_per_sheet)))


def _members(table: Table, rows_per_sheet: int) -> Iterator[tuple[str, Iterable[str]]]:
    """Each file in the archive, and the pieces of its text."""
    last = _letters(len(table.columns))[-1]
    starts = range(0, max(len(table.rows), 1), rows_per_sheet)
    sizes = [min(rows_per_sheet, len(table.rows) - start) for start in starts]
    areas = [f"A1:{last}{size + 1}" for size in sizes]
    sheets = [f"worksheets/sheet{n}.xml" for n in range(1, len(sizes) + 1)]
    colours = sorted(set(table.fills.values()))
    relations = [*(("worksheet", sheet) for sheet in sheets), ("styles", "styles.xml")]
    yield "[Content_Types].xml", [_content_types(sheets)]
    yield "_rels/.rels", [_relations([("officeDocument", "xl/workbook.xml")])]
    yield "xl/workbook.xml", [_workbook(areas)]
    yield "xl/_rels/workbook.xml.rels", [_relations([*relations, ("sharedStrings", "sharedStrings.xml")])]
    yield "xl/styles.xml", [_style_sheet(colours)]
    texts: _Texts = defaultdict(count().__next__)
    rows = zip(table.rows, _styles(table, colours), strict=True)
    widths = _widths(table) if table.widths is None else table.widths
    for sheet, size, area in zip(sheets, sizes, areas, strict=True):
        body = _rows(table.columns, islice(rows, size), texts)
        yield f"xl/{sheet}", _sheet(area, widths, body, first=sheet == sheets[0])
    yield "xl/sharedStrings.xml", _shared_strings(texts)


def _styles(table: Table, colours: Sequence[str]) -> Iterator[int]:
    """The style of each row."""
    numbers = {colour: number for number, colour in enumerate(colours, _FIRST_FILL)}
    return (numbers.get(table.fills.get(row, ""), 0) for row in range(len(table.rows)))


def _sheet(area: str, widths: Sequence[float], rows: Iterable[str], *, first: bool) -> Iterator[str]:
    yield f'{_XML}<worksheet xmlns="{_MAIN}"><dimension ref="{area}"/>'
    selected = ' tabSelected="1"' if first else ""
    yield f'<sheetViews><sheetView{selected} workbookViewId="0">'
    yield '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
    yield '<selection pane="bottomLeft"/></sheetView></sheetViews>'
    yield '<sheetFormatPr defaultRowHeight="15"/><cols>'
    for n, width in enumerate(widths, 1):
        yield f'<col min="{n}" max="{n}" width="{width:.10g}" customWidth="1"/>'
    yield "</cols><sheetData>"
    yield from rows
    yield f'</sheetData><autoFilter ref="{area}"/>'
    # "0.1%" is meant to be text; without this Excel marks each such cell as a mistake.
    yield f'<ignoredErrors><ignoredError sqref="{area}" numberStoredAsText="1"/></ignoredErrors></worksheet>'


def _rows(columns: Sequence[str], rows: Iterable[tuple[Sequence[Cell], int]], texts: _Texts) -> Iterator[str]:
    """The markup of the header and of the rows, each given with its style; texts are indexes into `texts`."""
    markup = functools.lru_cache(maxsize=1024)(functools.partial(_row_markup, _letters(len(columns))))
    numbered = enumerate(chain([(columns, _HEADER)], rows), 1)
    while some := list(islice(numbered, _ROWS_AT_ONCE)):
        cells = _columns([row for _, (row, _) in some], len(columns))
        types = zip(*(map(type, column) for column in cells), strict=True)
        lines = [
            markup(kinds, style).replace("#", str(number))
            for (number, (_, style)), kinds in zip(some, types, strict=True)
        ]
        fields = zip(*(_fields(column, texts) for column in cells), strict=True)
        filled = "".join(lines) % tuple(chain.from_iterable(fields))
        for name, text in _NOT_FINITE.items():
            if name in filled:
                filled = filled.replace(f"><v>{name}</v>", f' t="s"><v>{texts[text]}</v>')
        yield filled


def _columns(rows: Sequence[Sequence[Cell]], count: int) -> list[Sequence[Cell]]:
    """The columns of some rows, as plain values."""
    if wrong := set(map(len, rows)) - {count}:
        raise ValueError(f"a row has {wrong.pop()} cells, and the table {count} columns")
    columns = zip(*rows, strict=True)
    return [
        column if _PLAIN.issuperset(map(type, column)) else list(map(_plain, column)) for column in columns
    ]


def _fields(column: Sequence[Cell], texts: _Texts) -> Sequence[object]:
    """What goes into the markup for each cell of a column.

    JSON has the same numbers as XML, and pydantic writes it several times as fast as Python's `repr` does,
    with as many digits. There is no text among the cells, so what is not a number can be replaced in bulk.
    """
    if set(map(type, column)) == _TEXT:
        return [texts[cell] for cell in column]  # type: ignore[index]  # all are texts
    numbers = to_json(
        [texts[cell] if type(cell) is str else cell for cell in column], inf_nan_mode="constants"
    )
    return numbers[1:-1].replace(b"true", b"1").replace(b"false", b"0").decode().split(",")


def _row_markup(letters: Sequence[str], types: tuple[type, ...], style: int) -> str:
    """The markup of any row with cells of these types: `#` for its number, a `%` field for each cell."""
    styled = f' s="{style}"' if style else ""
    cells = []
    for letter, kind in zip(letters, types, strict=True):
        if kind is not type(None):
            cells.append(f'<c r="{letter}#"{styled}{_CELL_TYPES[kind]}><v>%s</v></c>')
        elif style:
            cells.append(f'<c r="{letter}#"{styled}/>%.0s')
        else:
            cells.append("%.0s")
    return f'<row r="#">{"".join(cells)}</row>'


def _plain(cell: Cell) -> Cell:
    """The cell without any class of its own, whose `repr` or equality might be another."""
    if cell is None or isinstance(cell, bool):
        return cell
    if isinstance(cell, str):
        return str.__str__(cell)
    if isinstance(cell, int):
        return int(cell) if abs(cell) < _LARGEST_INT else str(int(cell))
    if isinstance(cell, float):
        return float(cell)
    raise TypeError(f"a cell of a table is a text, a number, a truth value or None, but this is {type(cell)}")


def _letters(columns: int) -> list[str]:
    """A, B, ... Z, AA, AB, ..."""
    letters = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
    names = chain.from_iterable(map("".join, product(letters, repeat=length)) for length in count(1))
    return list(islice(names, columns))


def _widths(table: Table) -> list[float]:
    widths = [len(column) + _ARROW_WIDTH for column in table.columns]
    for number in range(0, len(table.rows), max(1, len(table.rows) // _SAMPLE)):
        for column, cell in zip(range(len(widths)), table.rows[number], strict=False):
            if isinstance(cell, str):
                width = max(map(len, cell[:_LONGEST].split("\n")))
            else:
                width = 0 if cell is None else _NUMBER_WIDTH
            widths[column] = max(widths[column], width + 1)
    return [min(max(width, _NARROWEST), _WIDEST) for width in widths]


def _shared_strings(texts: _Texts) -> Iterator[str]:
    yield f'{_XML}<sst xmlns="{_MAIN}" uniqueCount="{len(texts)}">'
    start, end = '<si><t xml:space="preserve">', "</t></si>"
    remaining = iter(texts)
    while some := list(islice(remaining, _TEXTS_AT_ONCE)):
        escaped = [text if "_x" not in text and _EASY.fullmatch(text) else _escaped(text) for text in some]
        yield start + f"{end}{start}".join(escaped) + end
    yield "</sst>"


def _escaped(text: str) -> str:
    if len(text) > _LONGEST // 2:
        text = _cut(text)
    text = SURROGATE.sub(REPLACEMENT, text)
    text = _LIKE_ESCAPED.sub("_x005F_", text)
    return html.escape(_NOT_IN_XML.sub(lambda found: f"_x{ord(found[0]):04X}_", text), quote=False)


def _cut(text: str) -> str:
    units = text.encode("utf-16-le", "surrogatepass")
    if len(units) <= 2 * _LONGEST:
        return text
    return units[: 2 * (_LONGEST - len(_CUT))].decode("utf-16-le", "replace") + _CUT


def _content_types(sheets: Sequence[str]) -> str:
    parts = [("workbook.xml", "sheet.main"), ("styles.xml", "styles"), ("sharedStrings.xml", "sharedStrings")]
    parts += [(sheet, "worksheet") for sheet in sheets]
    overrides = "".join(
        f'<Override PartName="/xl/{part}" ContentType="{_TYPE}{kind}+xml"/>' for part, kind in parts
    )
    return (
        f'{_XML}<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Default Extension="xml" ContentType="application/xml"/>{overrides}</Types>'
    )


def _relations(parts: Sequence[tuple[str, str]]) -> str:
    relations = "".join(
        f'<Relationship Id="rId{n}" Type="{_RELATED}/{kind}" Target="{target}"/>'
        for n, (kind, target) in enumerate(parts, 1)
    )
    return f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">{relations}</Relationships>'


def _workbook(areas: Sequence[str]) -> str:
    sheets, filters = [], []
    for n, area in enumerate(areas, 1):
        name = _SHEET if n == 1 else f"{_SHEET} {n}"
        sheets.append(f'<sheet name="{name}" sheetId="{n}" r:id="rId{n}"/>')
        # LibreOffice finds a filter by this name, which Excel writes as well.
        place = f"'{name}'!" + re.sub("([A-Z]+)([0-9]+)", r"$\1$\2", area)
        filters.append(
            f'<definedName name="_xlnm._FilterDatabase" localSheetId="{n - 1}" hidden="1">'
            f"{place}</definedName>"
        )
    return (
        f'{_XML}<workbook xmlns="{_MAIN}" xmlns:r="{_RELATED}"><bookViews><workbookView/></bookViews>'
        f"<sheets>{''.join(sheets)}</sheets><definedNames>{''.join(filters)}</definedNames></workbook>"
    )


def _style_sheet(colours: Sequence[str]) -> str:
    """The styles: plain, header, one for each colour."""
    fills = ['<patternFill patternType="none"/>', '<patternFill patternType="gray125"/>']  # Excel wants both
    styles = ['<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>']
    styles += ['<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>']
    for colour in colours:
        if not _ARGB.fullmatch(colour):
            raise ValueError(f"a fill is eight hexadecimal digits, such as FFFF0000, but this is {colour!r}")
        style = f'<xf numFmtId="0" fontId="0" fillId="{len(fills)}" borderId="0" xfId="0" applyFill="1"/>'
        styles.append(style)
        fills.append(f'<patternFill patternType="solid"><fgColor rgb="{colour}"/></patternFill>')
    font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
    return (
        f'{_XML}<styleSheet xmlns="{_MAIN}">'
        f'<fonts count="2"><font>{font}</font><font><b/>{font}</font></fonts>'
        f'<fills count="{len(fills)}">{"".join(f"<fill>{fill}</fill>" for fill in fills)}</fills>'
        '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
        '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
        f'<cellXfs count="{len(styles)}">{"".join(styles)}</cellXfs>'
        '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
    )


def _zip(members: Iterable[tuple[str, Iterable[str]]]) -> Iterator[bytes]:
    """The archive, piece by piece: sizes and checksum follow each member, so none is held in memory."""
    directory: list[bytes] = []
    offset = 0
    for name, texts in members:
        start = struct.pack("<HHHHH", _ZIP_VERSION, _SIZES_FOLLOW, _DEFLATED, 0, _FIRST_OF_1980)
        length = struct.pack("<HH", len(name), 0)
        yield (head := b"PK\3\4" + start + bytes(12) + length + name.encode())
        pack = packer()
        crc = size = packed_size = 0
        for text in texts:
            content = text.encode()
            crc = crc32(content, crc)
            size += len(content)
            packed = pack.compress(content)
            packed_size += len(packed)
            yield packed
        yield (packed := pack.flush())
        packed_size += len(packed)
        if max(size, offset + packed_size) > _LARGEST_MEMBER:
            raise UsageError("The table is too large for an xlsx file, which ends at 4 GB; write it as csv.")
        sizes = struct.pack("<LLL", crc, packed_size, size)
        yield b"PK\7\b" + sizes
        place = struct.pack("<HHHLL", 0, 0, 0, 0, offset)
        directory.append(
            b"PK\1\2" + struct.pack("<H", _ZIP_VERSION) + start + sizes + length + place + name.encode()
        )
        offset += len(head) + packed_size + 16
    entries = b"".join(directory)
    numbers = struct.pack("<HHHHLLH", 0, 0, len(directory), len(directory), len(entries), offset, 0)
    yield entries + b"PK\5\6" + numbers
