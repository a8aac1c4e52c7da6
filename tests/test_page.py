"""The page as a file: all of a comparison is in it, and nothing in it is taken for markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import page_case
from msprobe.analyse.measure import NOTHING, UNSUPPORTED, Checksums, StatisticsErrors, TensorErrors
from msprobe.record import Leaf
from msprobe.report.columns import columns
from msprobe.report.page import write_page
from msprobe.report.page_numbers import Numbers
from msprobe.verdict.comparison import Comparison
from page_case import call, tensor

WRONG = "Functional.softmax.1.forward"


@pytest.fixture(scope="module")
def faulty() -> Comparison:
    return page_case.comparison(2, wrong=WRONG)


class Tags(HTMLParser):
    """The elements of a page with their attributes, and the texts of style, script and data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.texts[self._inside] = self.texts.get(self._inside, "") + data

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.found if (value := attributes.get(name)) is not None]


def written(folder: Path, comparison: Comparison, **more: Any) -> str:
    path = folder / "page.html"
    write_page(path, comparison, **more)
    return path.read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    """What the script gets, with the numbers at their places."""
    texts = Tags(page).texts
    facts, numbers = (zlib.decompress(base64.b64decode(texts[part])) for part in ("facts", "numbers"))

    def put(value: Any) -> Any:
        if isinstance(value, list):
            return [put(item) for item in value]
        if not isinstance(value, dict):
            return value
        found = {key: put(item) for key, item in value.items()}
        if "at" in found:
            kind = f"<f{found['bytes']}"
            found["cells"] = np.frombuffer(numbers, kind, found["count"], found["at"]).tolist()
        return found

    data: dict[str, Any] = put(json.loads(facts))
    return data


def cells_of(column: dict[str, Any]) -> list[Any]:
    if "codes" in column:
        return [column["words"][code] for code in column["codes"]]
    unit = column.get("unit", "")
    return [column.get("texts", {}).get(str(row), (value, unit)) for row, value in enumerate(column["cells"])]


def in_short(cell: Any) -> Any:
    """A cell as the page holds it: numbers in single precision, and apart from their unit."""
    if isinstance(cell, str) and cell.endswith("%"):
        return (float(np.float32(cell[:-1])), "%")
    return (float(np.float32(cell)), "") if isinstance(cell, float) else cell


def names_of(data: dict[str, Any]) -> list[str]:
    calls = [
        name
        for name, rows in zip(data["calls"]["name"], data["calls"]["rows"], strict=True)
        for _ in range(rows)
    ]
    return [f"{name}.{slot}" for name, slot in zip(calls, cells_of(data["slot"]), strict=True)]


# --- what is in it ----------------------------------------------------------------------------------------


@pytest.mark.spec("P24", "CLI")
def test_every_row_is_in_it(tmp_path: Path, faulty: Comparison) -> None:
    data = data_of(written(tmp_path, faulty))
    assert names_of(data) == [finding.pair.place.name for finding in faulty.findings]
    assert [data["levels"][code] for code in data["level"]] == [verdict.level for verdict in faulty.verdicts]
    assert cells_of(data["reason"]) == [verdict.reason for verdict in faulty.verdicts]
    for key in ("error", "tolerance"):
        expected = [getattr(verdict, key) for verdict in faulty.verdicts]
        assert data[key]["cells"] == pytest.approx(
            [np.nan if v is None else v for v in expected], nan_ok=True, rel=1e-7
        )
    frames = [data["calls"]["stack"]["words"][code] for code in data["calls"]["stack"]["codes"]]
    assert frames == [list(page_case.FRAMES)] * len(page_case.calls(2))


@pytest.mark.spec("P24", "CLI")
@pytest.mark.parametrize("mode", ["tensor", "statistics", "md5"])
def test_every_column_of_the_specification_is_in_it(tmp_path: Path, faulty: Comparison, mode: str) -> None:
    comparison = in_mode(faulty, mode)
    data = data_of(written(tmp_path, comparison))
    found = {column["header"]: cells_of(column) for column in data["columns"]}
    names = names_of(data)
    for word, side in (("NPU", data["target"]), ("Bench", data["golden"])):
        described = zip(*(side["kind"]["words"][code] for code in side["kind"]["codes"]), strict=True)
        found |= {
            f"{word} {header}": list(cells)
            for header, cells in zip(side["kind"]["headers"], described, strict=True)
        }
        for number, header in enumerate(side["statistics"]["headers"]):
            found[f"{word} {header}"] = [(value, "") for value in side["statistics"]["cells"][number::4]]
        found[f"{word} Name"] = names
        found[f"{word} file"] = [
            name + rest if rest else "-1" for name, rest in zip(names, cells_of(side["file"]), strict=True)
        ]
    found["Data_name"] = [
        str(list(files)) for files in zip(found["NPU file"], found["Bench file"], strict=True)
    ]
    tensors = [row for row, finding in enumerate(comparison.findings) if finding.pair.place.leaf.is_tensor]  # type: ignore[union-attr]
    for some in columns(mode, with_stack=False):
        expected = zip(*(some.fill(comparison.findings[row]) for row in tensors), strict=True)
        for header, cells in zip(some.headers, expected, strict=True):
            assert [found[header][row] for row in tensors] == list(map(in_short, cells)), header


def in_mode(comparison: Comparison, mode: str) -> Comparison:
    """The same pairs as if something else had been measured of them."""
    made = {
        "tensor": lambda n: TensorErrors(0.5 + n, UNSUPPORTED, n / 3, 1e-9, 0.25, 1.0),
        "statistics": lambda n: StatisticsErrors(
            (0.1, n / 7, NOTHING, -3.0), ("12.5%", f"{n / 9}%", NOTHING, "Nan")
        ),
        "md5": lambda n: Checksums(f"{n:08x}", "00000000"),
    }[mode]
    findings = [finding._replace(measured=made(n)) for n, finding in enumerate(comparison.findings)]
    return comparison._replace(mode=mode, findings=findings)


def test_a_plain_value_is_shown_as_such(tmp_path: Path) -> None:
    comparison = page_case.of(
        [call("Torch.a.0.forward", Leaf("str", "<b>"), Leaf("float", 0.5))],
        [call("Torch.a.0.forward", Leaf("str", "<i>"), Leaf("float", 0.5))],
    )
    data = data_of(written(tmp_path, comparison))
    values = [
        [data[side]["kind"]["words"][code][-1] for code in data[side]["kind"]["codes"]]
        for side in ("target", "golden")
    ]
    assert values == [["'<b>'", "0.5"], ["'<i>'", "0.5"]]


def test_places_of_one_side(tmp_path: Path) -> None:
    comparison = page_case.of(
        [call("Torch.a.0.forward", tensor(1)), call("Torch.mine.0.forward", tensor(1))],
        [call("Torch.a.0.forward", tensor(1)), call("Torch.theirs.0.forward", tensor(1))],
    )
    page = written(tmp_path, comparison)
    data = data_of(page)
    ours, theirs = (
        names_of(data).index("Torch.mine.0.forward.output.0"),
        names_of(data).index("Torch.theirs.0.forward.output.0"),
    )
    assert (data["target"]["missing"], data["golden"]["missing"]) == ([theirs], [ours])
    assert "1 only in the target; 1 only in the golden run" in page


def tree_of(data: dict[str, Any]) -> list[tuple[str, ...]]:
    """The path of each node."""
    paths: list[tuple[str, ...]] = []
    for label, parent in zip(data["tree"]["labels"], data["tree"]["parents"], strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), label))
    return paths


def test_the_tree_of_parents(tmp_path: Path) -> None:
    data = data_of(written(tmp_path, page_case.comparison(1, wrong=None)))
    paths = tree_of(data)
    assert paths[:4] == [
        ("Net",),
        ("Net", "layers.0.Block"),
        ("Net", "layers.0.Block", "attention.Attention"),
        ("Net", "layers.0.Block", "attention.Attention", "Functional.linear.0"),
    ]
    nodes = dict(zip(data["calls"]["name"], data["calls"]["node"], strict=True))
    assert nodes["Functional.linear.0.backward"] == nodes["Functional.linear.0.forward"] == 3


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("Functional.linear.3.forward", ("Functional", "linear", "linear.3")),
        ("Functional.linear.3.backward", ("Functional", "linear", "linear.3")),
        ("Module.blocks.0.ln.LayerNorm.forward.0", ("Module", "blocks", "0", "ln LayerNorm")),
        ("Module.blocks.0.ln.LayerNorm.parameters_grad", ("Module", "blocks", "0", "ln LayerNorm")),
        ("loss.0.debug", ("loss",)),
    ],
)
def test_the_tree_of_names(tmp_path: Path, name: str, path: tuple[str, ...]) -> None:
    record = call(name, tensor(1))
    data = data_of(written(tmp_path, page_case.of([record], [record])))
    assert tree_of(data)[data["calls"]["node"][0]] == path


def test_parents_that_go_in_circles(tmp_path: Path) -> None:
    a, b = "Module.a.A.forward.0", "Module.b.B.forward.0"
    records = [call(name, tensor(1))._replace(parent=parent) for name, parent in ((a, b), (b, a))]
    data = data_of(written(tmp_path, page_case.of(records, records)))
    assert tree_of(data) == [("b.B",), ("b.B", "a.A")]


# --- the answer -------------------------------------------------------------------------------------------


def words_of(page: str) -> str:
    """The text of the answer, without markup."""
    section = re.search(r'<section class="answer".*?</section>', page, re.DOTALL)
    assert section is not None
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", section[0]))


def test_the_answer_names_the_call(tmp_path: Path, faulty: Comparison) -> None:
    culprit = faulty.located.culprit
    assert culprit is not None and str(culprit.place.record.name) == WRONG
    page = written(tmp_path, faulty)
    words = words_of(page)
    assert f'<a href="#row={culprit.row}"><bdi>{WRONG}</bdi></a>' in page
    for text in (
        "Not rounding",
        culprit.verdict.reason,
        "net.py, line 31",
        "Module.layers.0.Block.forward.0",
    ):
        assert text.replace(">", "&gt;") in words
    assert culprit.evidence.grade in words
    assert data_of(page)["culprit"] == culprit.row


def test_no_divergence(tmp_path: Path) -> None:
    same = [call("Torch.a.0.forward", tensor(1), inputs=(tensor(2),))]
    page = written(tmp_path, page_case.of(same, same))
    assert "Within rounding No divergence: 2 values were compared" in words_of(page)
    assert data_of(page)["culprit"] is None


def test_nothing_in_common(tmp_path: Path) -> None:
    page = written(
        tmp_path, page_case.of([call("Torch.a.0.forward", tensor(1))], [call("Torch.b.0.forward", tensor(1))])
    )
    assert "Nothing could be judged" in words_of(page)


def test_without_a_single_row(tmp_path: Path) -> None:
    data = data_of(written(tmp_path, page_case.of([], [])))
    assert (data["level"], data["calls"]["name"]) == ([], [])


def test_links_and_next_configuration(tmp_path: Path, faulty: Comparison) -> None:
    others = [("step 0, rank 1", "result rank1#.html"), ("<b>", "javascript:alert(1)")]
    page = written(tmp_path, faulty, others=others, next_config='{"task": "<tensor>"}')
    links = [a.get("href") for tag, a in Tags(page).found if tag == "a"]
    assert links[1:3] == ["result%20rank1%23.html", "javascript%3Aalert%281%29"]
    assert "&lt;b&gt;</a>" in page and "{&quot;task&quot;: &quot;&lt;tensor&gt;&quot;}" in page


# --- one file, alone --------------------------------------------------------------------------------------


def test_nothing_is_loaded(tmp_path: Path, faulty: Comparison) -> None:
    tags = Tags(written(tmp_path, faulty))
    assert tags.values("src") == []
    assert all(href.startswith(("#", "data:image/svg+xml,")) for href in tags.values("href"))
    assert not re.search(r"@import|url\(", tags.texts["style"])
    scripts = [attributes.get("type") for tag, attributes in tags.found if tag == "script"]
    assert scripts == ["application/octet-stream", "application/octet-stream", "module"]


def test_only_its_own_script_and_style_may_run(tmp_path: Path, faulty: Comparison) -> None:
    tags = Tags(written(tmp_path, faulty))

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    policy = next(a["content"] for tag, a in tags.found if "http-equiv" in a)
    assert policy == (
        f"default-src 'none'; script-src {source(tags.texts['script'])}; "
        f"style-src {source(tags.texts['style'])}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert [a for _, a in tags.found if "style" in a or any(name.startswith("on") for name in a)] == []


def test_the_same_comparison_gives_the_same_page(tmp_path: Path, faulty: Comparison) -> None:
    again = page_case.comparison(2, wrong=WRONG)
    assert written(tmp_path, faulty) == written(tmp_path, again)
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o640


def test_markup_in_names_stays_text(tmp_path: Path) -> None:
    harmless = [
        call("Torch.a.0.forward", tensor(value), inputs=(tensor(1), Leaf("str", "s"))) for value in (2, 1)
    ]
    ours = Tags(written(tmp_path, page_case.hostile()))
    assert [tag for tag, _ in ours.found] == [
        tag for tag, _ in Tags(written(tmp_path, page_case.of(harmless[:1], harmless[1:]))).found
    ]


def test_half_a_character(tmp_path: Path) -> None:
    record = call("Torch.\ud800.0.forward", tensor(1))
    data = data_of(written(tmp_path, page_case.of([record], [record])))
    assert data["calls"]["name"] == ["Torch.\ufffd.0.forward"]


def test_numbers_that_are_none(tmp_path: Path) -> None:
    ours, theirs = ([call("Torch.a.0.forward", tensor(value))] for value in (float("nan"), 1.0))
    data = data_of(written(tmp_path, page_case.of(ours, theirs)))
    assert data["error"]["cells"] == [np.inf]
    assert np.isnan(data["target"]["statistics"]["cells"]).tolist() == [True] * 4


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ([0.1, -(2.0**127), np.inf, np.nan, 16_777_216.0], 4),
        ([1e300], 8),  # too large
        ([1e-300], 8),  # too small
        ([16_777_217.0], 8),  # a whole number that would become another
    ],
)
def test_numbers_are_as_wide_as_they_must_be(values: list[float], size: int) -> None:
    numbers = Numbers()
    numbers.add([1.0])
    found = numbers.add(values)
    assert found == {"at": 8, "bytes": size, "count": len(values)}
    read = np.frombuffer(numbers.packed(), f"<f{size}", len(values), 8)
    assert np.array_equal(read, np.array(values, f"f{size}"), equal_nan=True)


def test_a_text_that_ends_like_a_percentage_is_a_text() -> None:
    """The checksum of another tool may be any text."""
    assert Numbers().column(["abc%", "abd%"]) is None
    found = Numbers().column(["0.5%", "abc%", "N/A"])
    assert found == {"texts": {1: "abc%", 2: "N/A"}, "unit": "%", "at": 0, "bytes": 4, "count": 3}
