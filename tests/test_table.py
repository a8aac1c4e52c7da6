"""Tables as files: what a spreadsheet reads is what was written, and no text in it is ever computed."""

import csv
import io
import math
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import openpyxl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openpyxl.worksheet.worksheet import Worksheet

from msprobe.errors import UsageError
from msprobe.report.table import Cell, Table, write_csv
from msprobe.report.xlsx import write_xlsx

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
WRITERS = pytest.mark.parametrize("write", [write_xlsx, write_csv])
Writer = Callable[[Path, Table], None]

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
ANY_TEXT = st.text(st.characters(categories=None), max_size=20) | st.sampled_from(
    [
        "=1+1",
        "@SUM(A1)",
        "+1",
        "-1",
        "-inf",
        "'",
        '"',
        ",",
        "\r",
        "\r\n",
        "\n",
        "\t=1",
        " ",
        "",
        "_x000B_",
        "_x5_",
        "]]>",
    ]
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20) | st.booleans()


def sheet_of(path: Path) -> Worksheet:
    sheet = openpyxl.load_workbook(path).active
    assert isinstance(sheet, Worksheet)
    return sheet


def values(sheet: Worksheet) -> list[tuple[object, ...]]:
    return list(sheet.iter_rows(values_only=True))


def shared_texts(path: Path) -> list[str]:
    """The texts as Excel reads them; openpyxl knows the escapes of characters only by half."""
    root = ElementTree.fromstring(zipfile.ZipFile(path).read("xl/sharedStrings.xml"))
    texts = [element.text or "" for element in root.iter(f"{MAIN}t")]
    return [re.sub("_x([0-9A-Fa-f]{4})_", lambda found: chr(int(found[1], 16)), text) for text in texts]


def writable(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def test_optional_columns_without_content_are_left_out() -> None:
    table = Table(["a", "b", "c"], [[None, "-", None], [None, 1, None]])
    assert table.lean(("b", "c"), (None, "-")) == Table(["a", "b"], [[None, "-"], [None, 1]])
    assert Table(["a", "b"], []).lean(("b",), (None,)) == Table(["a"], [])


def test_each_kind_of_cell_is_read_back_as_it_was(tmp_path: Path) -> None:
    cells: list[Cell] = [
        "text",
        "",
        0.1 + 0.2,
        5e-324,
        -1.7976931348623157e308,
        1e16,
        7,
        -(2**63),
        True,
        False,
        None,
    ]
    write_xlsx(tmp_path / "a.xlsx", Table([f"c{n}" for n in range(len(cells))], [cells]))
    header, row = values(sheet_of(tmp_path / "a.xlsx"))
    assert header == tuple(f"c{n}" for n in range(len(cells)))
    assert [(type(cell), cell) for cell in row] == [(type(cell), cell) for cell in cells]


@SAME_FOLDER
@given(rows=st.lists(st.tuples(NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS), max_size=30))
def test_numbers_keep_all_their_digits(tmp_path: Path, rows: list[tuple[Cell, ...]]) -> None:
    write_xlsx(tmp_path / "a.xlsx", Table("abc", rows))
    read = values(sheet_of(tmp_path / "a.xlsx"))[1:]
    assert [list(map(repr, row)) for row in read] == [list(map(repr, row)) for row in rows]


@SAME_FOLDER
@given(texts=st.lists(ANY_TEXT, unique=True, min_size=1))
def test_any_text_is_read_back_as_text(tmp_path: Path, texts: list[str]) -> None:
    write_xlsx(tmp_path / "a.xlsx", Table(texts, [[*texts[1:], 1.5]]))
    assert shared_texts(tmp_path / "a.xlsx") == [writable(text) for text in texts]
    cells = list(sheet_of(tmp_path / "a.xlsx")[1])
    assert {cell.data_type for cell in cells if cell.value is not None} <= {"s"}


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\x0bb", b"a_x000B_b"),
        ("a\rb", b"a_x000D_b"),
        ("_x000B_", b"_x005F_x000B_"),
        ("_x000b_x0041_", b"_x005F_x000b_x005F_x0041_"),
        ("__xor__", b"__xor__"),
        ("\ud800", b"\xef\xbf\xbd"),
        ("\uffff", b"_xFFFF_"),
        ("<b>&]]>", b"&lt;b&gt;&amp;]]&gt;"),
        (" spaces ", b" spaces "),
    ],
)
def test_characters_that_xml_cannot_hold_are_escaped_as_excel_does(
    tmp_path: Path, text: str, stored: bytes
) -> None:
    write_xlsx(tmp_path / "a.xlsx", Table([text], []))
    content = zipfile.ZipFile(tmp_path / "a.xlsx").read("xl/sharedStrings.xml")
    assert content.partition(b"<si>")[2] == b'<t xml:space="preserve">' + stored + b"</t></si></sst>"


@pytest.mark.parametrize(
    "text", ["=1+1", "@SUM(1)", "+1", "-1", "http://localhost/", "mailto:a", "1e5", "TRUE"]
)
def test_no_text_becomes_a_formula_a_link_or_a_number(tmp_path: Path, text: str) -> None:
    write_xlsx(tmp_path / "a.xlsx", Table([text], [[text]]))
    for (cell,) in sheet_of(tmp_path / "a.xlsx").iter_rows():
        assert (cell.value, cell.data_type, cell.hyperlink) == (text, "s", None)


def test_numbers_that_are_none_are_texts(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [[math.nan, math.inf, -math.inf, 10**400]]
    write_xlsx(tmp_path / "a.xlsx", Table("abcd", rows, {0: "FFFF0000"}))
    assert values(sheet_of(tmp_path / "a.xlsx"))[1] == ("nan", "inf", "-inf", str(10**400))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a" * 32_767, "a" * 32_767),
        ("a" * 32_768, "a" * 32_761 + " [cut]"),
        ("\N{GRINNING FACE}" * 16_383, "\N{GRINNING FACE}" * 16_383),
        ("\N{GRINNING FACE}" * 16_384, "\N{GRINNING FACE}" * 16_380 + "\ufffd [cut]"),
    ],
    ids=["longest", "too long", "longest in pairs", "too long in pairs"],
)
def test_a_text_longer_than_excel_takes_is_cut_with_a_mark(tmp_path: Path, text: str, read: str) -> None:
    write_xlsx(tmp_path / "a.xlsx", Table(["text"], [[text]]))
    assert values(sheet_of(tmp_path / "a.xlsx"))[1] == (read,)


def test_classes_derived_from_plain_types_are_written_as_those(tmp_path: Path) -> None:
    class Name(str):
        def __str__(self) -> str:
            return "another"

    write_xlsx(tmp_path / "a.xlsx", Table("ab", [[Name("a"), np.float64(0.1)]]))
    assert values(sheet_of(tmp_path / "a.xlsx"))[1] == ("a", 0.1)


def test_a_coloured_row_is_filled_from_its_first_to_its_last_cell(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [[n, None, math.nan, f"t{n}"] for n in range(5)]
    write_xlsx(tmp_path / "a.xlsx", Table("abcd", rows, {1: "FFFF0000", 3: "FFFFFF00", 4: "FFFF0000"}))
    sheet = sheet_of(tmp_path / "a.xlsx")
    fills = [{cell.fill.fgColor.rgb if cell.fill.fill_type else None for cell in row} for row in sheet]
    assert fills == [{None}, {None}, {"FFFF0000"}, {None}, {"FFFFFF00"}, {"FFFF0000"}]
    assert values(sheet)[1:] == [(n, None, "nan", f"t{n}") for n in range(5)]
    styles = zipfile.ZipFile(tmp_path / "a.xlsx").read("xl/styles.xml")
    assert re.findall(b'rgb="(.*?)"', styles) == [b"FFFF0000", b"FFFFFF00"]


@pytest.mark.parametrize(
    ("rows", "area"), [([], "A1:AB1"), ([[1] * 28], "A1:AB2"), ([[None] * 28] * 2500, "A1:AB2501")]
)
def test_the_header_is_bold_and_frozen_and_filters_the_whole_table(
    tmp_path: Path, rows: Sequence[Sequence[Cell]], area: str
) -> None:
    write_xlsx(tmp_path / "a.xlsx", Table([f"column {n}" for n in range(28)], rows))
    sheet = sheet_of(tmp_path / "a.xlsx")
    assert (sheet.title, sheet.freeze_panes, sheet.auto_filter.ref) == ("compare", "A2", area)
    assert [cell.font.b for cell in sheet[1]] == [True] * 28
    markup = ElementTree.fromstring(zipfile.ZipFile(tmp_path / "a.xlsx").read("xl/worksheets/sheet1.xml"))
    dimension = markup.find(f"{MAIN}dimension")
    assert dimension is not None
    assert dimension.attrib == {"ref": area}
    assert [row.get("r") for row in markup.iter(f"{MAIN}row")] == [str(n) for n in range(1, len(rows) + 2)]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, [8, 21, 12, 60]),
        ([10, 20.5, 30, 40], [10, 20.5, 30, 40]),
    ],
)
def test_columns_are_as_wide_as_told_or_as_their_content(
    tmp_path: Path, given: list[float] | None, read: list[float]
) -> None:
    rows: list[list[Cell]] = [[None, "twenty characters xx\nx", 0.1 + 0.2, "w" * 100]] * 2000
    write_xlsx(tmp_path / "a.xlsx", Table("abcd", rows, widths=given))
    dimensions = sheet_of(tmp_path / "a.xlsx").column_dimensions
    assert [dimensions[letter].width for letter in "ABCD"] == read


def test_rows_that_do_not_fit_go_to_further_sheets(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [[n, f"text {n % 3}"] for n in range(7)]
    write_xlsx(tmp_path / "a.xlsx", Table(["n", "text"], rows, {5: "FFFF0000"}), rows_per_sheet=3)
    sheets = openpyxl.load_workbook(tmp_path / "a.xlsx").worksheets
    found = {sheet.title: (values(sheet), sheet.freeze_panes, sheet.auto_filter.ref) for sheet in sheets}
    assert found == {
        "compare": ([("n", "text"), (0, "text 0"), (1, "text 1"), (2, "text 2")], "A2", "A1:B4"),
        "compare 2": ([("n", "text"), (3, "text 0"), (4, "text 1"), (5, "text 2")], "A2", "A1:B4"),
        "compare 3": ([("n", "text"), (6, "text 0")], "A2", "A1:B2"),
    }
    assert [[bool(row[0].fill.fill_type) for row in sheet] for sheet in sheets] == [
        [False] * 4,
        [False, False, False, True],
        [False] * 2,
    ]


@pytest.mark.parametrize("columns", [2, 26, 27, 702, 703])
def test_every_cell_says_where_it_stands(tmp_path: Path, columns: int) -> None:
    cells: list[Cell] = list(range(columns))
    write_xlsx(tmp_path / "a.xlsx", Table(["c"] * columns, [[None, *cells[1:]]] * 2))
    sheet = sheet_of(tmp_path / "a.xlsx")
    assert values(sheet)[1:] == [(None, *cells[1:])] * 2
    markup = ElementTree.fromstring(zipfile.ZipFile(tmp_path / "a.xlsx").read("xl/worksheets/sheet1.xml"))
    places = [cell.get("r") for cell in markup.iter(f"{MAIN}c")]
    header, first, second = ([cell.coordinate for cell in row] for row in sheet)
    assert places == [*header, *first[1:], *second[1:]]


def test_each_file_in_the_archive_is_announced_and_dated_alike(tmp_path: Path) -> None:
    write_xlsx(tmp_path / "a.xlsx", Table(["a"], [["b"]] * 2), rows_per_sheet=1)
    with zipfile.ZipFile(tmp_path / "a.xlsx") as archive:
        assert archive.testzip() is None
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        types = ElementTree.fromstring(archive.read("[Content_Types].xml"))
        announced = {part.get("PartName") for part in types if "PartName" in part.attrib}
        assert announced == {f"/{name}" for name in archive.namelist() if re.fullmatch("xl/.*xml", name)}
        assert archive.namelist()[0] == "[Content_Types].xml"


def test_equal_tables_are_equal_files(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [[f"name {n}", n / 7] for n in range(3000)]
    colours = {1: "FFFF0000", 2: "FFFFFF00"}
    write_xlsx(tmp_path / "a.xlsx", Table("ab", rows, colours))
    write_xlsx(tmp_path / "b.xlsx", Table(["a", "b"], [*map(tuple, rows)], dict(reversed(colours.items()))))
    assert (tmp_path / "a.xlsx").read_bytes() == (tmp_path / "b.xlsx").read_bytes()


class Failing(Sequence[Sequence[Cell]]):
    """Rows of which the last cannot be made."""

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: object) -> Sequence[Cell]:  # type: ignore[override]
        return [1.5]

    def __iter__(self) -> Iterator[Sequence[Cell]]:
        yield from [[1.5]] * 4999
        raise OSError("the rest cannot be read")


@WRITERS
def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path, write: Writer) -> None:
    with pytest.raises(OSError, match="the rest cannot be read"):
        write(tmp_path / "a", Table(["a"], Failing()))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").write_text("earlier")
    with pytest.raises(OSError, match="the rest cannot be read"):
        write(tmp_path / "a", Table(["a"], Failing()))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "earlier")]


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (Table([], []), UsageError, "A table of 0 columns cannot become"),
        (Table(["a"] * 16_385, []), UsageError, "A table of 16385 columns cannot become .* Write it as csv."),
        (Table("ab", [["a"]]), ValueError, "a row has 1 cells, and the table 2 columns"),
        (Table("ab", [["a", "b", "c"]]), ValueError, "a row has 3 cells, and the table 2 columns"),
        (Table("a", [["a"]], {0: 'red"'}), ValueError, "a fill is eight hexadecimal digits"),
        (Table("a", [[b"a"]]), TypeError, "but this is <class 'bytes'>"),  # type: ignore[list-item]
    ],
    ids=["no column", "too many columns", "short row", "long row", "no colour", "no cell"],
)
def test_a_table_that_no_sheet_can_hold_leaves_no_file(
    tmp_path: Path, table: Table, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_xlsx(tmp_path / "a.xlsx", table)
    assert list(tmp_path.iterdir()) == []


@WRITERS
@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_a_table_is_for_its_owner_and_group_whatever_the_mask(
    tmp_path: Path, write: Writer, mask: int
) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / "a", Table(["a"], [["b"]]))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@WRITERS
def test_a_link_in_the_place_of_the_table_is_replaced(tmp_path: Path, write: Writer) -> None:
    (tmp_path / "elsewhere").write_text("untouched")
    (tmp_path / "a").symlink_to("elsewhere")
    write(tmp_path / "a", Table(["a"], [["b"]]))
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "elsewhere").read_text() == "untouched"


def test_csv_is_plain_utf8(tmp_path: Path) -> None:
    rows: list[list[Cell]] = [
        ["é,", 'say "a"', 0.1 + 0.2, -1e-07, 3, True, None],
        ["a\nb", "", math.nan, -math.inf, 1, False, "c\rd"],
    ]
    write_csv(tmp_path / "a.csv", Table("abcdefg", rows))
    assert (tmp_path / "a.csv").read_bytes().decode() == (
        "a,b,c,d,e,f,g\n"
        '"é,","say ""a""",0.30000000000000004,-1e-07,3,True,\n'
        '"a\nb",,nan,-inf,1,False,"c\rd"\n'
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+1+1", "'+1+1"),
        ("-1+1", "'-1+1"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("-", "'-"),
        ("--mode", "'--mode"),
        ("-1.5", "-1.5"),
        ("+.5e-07", "+.5e-07"),
        ("-0.25%", "-0.25%"),
        ("-inf", "-inf"),
        ("+nan", "+nan"),
        ("-1.5\n", "'-1.5\n"),
        ("-1e", "'-1e"),
        ("a=b", "a=b"),
        (" =1", " =1"),
    ],
)
def test_a_text_that_a_spreadsheet_would_compute_gets_an_apostrophe_in_csv(
    tmp_path: Path, text: str, written: str
) -> None:
    write_csv(tmp_path / "a.csv", Table([text], [[text]]))
    assert (
        list(csv.reader(io.StringIO((tmp_path / "a.csv").read_bytes().decode(), newline="")))
        == [[written]] * 2
    )


@SAME_FOLDER
@given(
    rows=st.lists(st.tuples(ANY_TEXT.filter(lambda text: "\0" not in text), st.none() | NUMBERS), max_size=30)
)
def test_csv_is_read_back_cell_by_cell(tmp_path: Path, rows: list[tuple[str, Cell]]) -> None:
    write_csv(tmp_path / "a.csv", Table(["text", "number"], rows))
    content = (tmp_path / "a.csv").read_bytes().decode()
    for read, (text, number) in zip(
        csv.reader(io.StringIO(content, newline="")), rows_of_csv(rows), strict=True
    ):
        allowed = {text, f"'{text}"} if text.startswith(("=", "+", "-", "@", "\t", "\r")) else {text}
        assert read[0] in allowed
        assert read[1:] == [number]


def rows_of_csv(rows: list[tuple[str, Cell]]) -> list[tuple[str, str]]:
    texts = [(writable(text), "" if number is None else repr(number)) for text, number in rows]
    return [("text", "number"), *texts]
