"""The page in a real browser: what it shows, by mouse and by keyboard, and what a screen reader hears."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import page_case
from across_case import Runs, packed
from across_record import Wanted
from chromium import PROGRAM, Chromium
from msprobe.compare import compare_recordings
from msprobe.report.page import write_page
from msprobe.verdict.comparison import Comparison

__all__ = ["packed"]

WRONG = "Functional.softmax.1.forward"


@pytest.fixture(scope="module")
def faulty() -> Comparison:
    return page_case.comparison(2, wrong=WRONG)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if PROGRAM is None:
        pytest.skip("chromium is not installed; on Debian: apt-get install chromium")
    with Chromium(tmp_path_factory.mktemp("profile")) as found:
        found.screen(1440, 900)
        yield found


@pytest.fixture(scope="module")
def page(faulty: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "result #1.html"
    write_page(path, faulty)
    return path


def text(browser: Chromium, selector: str) -> str:
    found: str = browser.run(f"document.querySelector({selector!r})?.textContent ?? ''")
    return found


def first_names(browser: Chromium, count: int) -> list[str]:
    found: list[str] = browser.run(
        f"[...document.querySelectorAll('#grid tr[data-row]')].slice(0, {count})"
        ".map(row => row.cells[1].textContent + '.' + row.cells[2].textContent)"
    )
    return found


def tab_to(browser: Chromium, selector: str) -> None:
    browser.run(f"document.querySelector({selector!r}).focus()")


@pytest.mark.spec("P24", "CLI")
def test_it_opens_at_the_answer(browser: Chromium, page: Path, faulty: Comparison) -> None:
    browser.open(page)
    culprit = faulty.located.culprit
    assert culprit is not None
    assert text(browser, "#shown") == f"{len(faulty.findings)} places"
    assert text(browser, "#detail .name code") == culprit.place.name
    assert text(browser, "#detail .verdict") == f"originated {culprit.verdict.reason}."
    assert text(browser, "#grid tr[aria-selected=true] td") == str(culprit.row)
    assert "net.py, line 31" in text(browser, "#detail .stack")
    assert browser.complaints() == []
    assert browser.requested() == [page.as_uri()]


def test_the_filter(browser: Chromium, page: Path, faulty: Comparison) -> None:
    browser.open(page)
    tab_to(browser, "#grid table")
    browser.press("/")
    browser.type("SOFTMAX.1 output")
    assert text(browser, "#shown") == f"2 of {len(faulty.findings)} places"
    assert first_names(browser, 9) == [f"{WRONG}.output.0", "Functional.softmax.1.backward.output.0"]
    browser.press("Escape")
    assert text(browser, "#shown") == f"{len(faulty.findings)} places"


def test_verdicts_and_results_filter(browser: Chromium, page: Path, faulty: Comparison) -> None:
    browser.open(page)
    browser.run("document.querySelector('#level-chips button').click()")
    count = faulty.outcome().levels["originated"]
    assert text(browser, "#shown") == f"{count} of {len(faulty.findings)} places"
    assert browser.run("document.querySelector('#level-chips button').ariaPressed") == "true"


def test_sorting(browser: Chromium, page: Path, faulty: Comparison) -> None:
    browser.open(page)
    errors = [verdict.error or 0.0 for verdict in faulty.verdicts]
    largest = max(range(len(errors)), key=errors.__getitem__)
    header = "document.querySelectorAll('#grid th')[4]"
    browser.run(f"{header}.firstChild.click()")
    assert browser.run(f"{header}.ariaSort") == "descending"
    assert first_names(browser, 1) == [faulty.findings[largest].pair.place.name]
    browser.run(f"{header}.firstChild.click()")
    assert browser.run(f"{header}.ariaSort") == "ascending"
    browser.run(f"{header}.firstChild.click()")
    assert browser.run(f"{header}.ariaSort") == "none"
    assert first_names(browser, 1) == [faulty.findings[0].pair.place.name]


def test_rows_by_keyboard(browser: Chromium, page: Path, faulty: Comparison) -> None:
    browser.open(page)
    tab_to(browser, "#grid table")
    browser.press("Home", "ArrowDown", "ArrowDown")
    assert text(browser, "#detail .name code") == faulty.findings[2].pair.place.name
    assert (
        browser.run("document.querySelector('#grid table').getAttribute('aria-activedescendant')") == "row-2"
    )
    assert browser.run("location.hash") == "#row=2"
    browser.press("End")
    assert text(browser, "#detail .name code") == faulty.findings[-1].pair.place.name
    browser.press("Enter")
    assert browser.run("document.activeElement.id") == "detail"


def test_an_address_names_a_row(browser: Chromium, page: Path, faulty: Comparison) -> None:
    browser.open(page, "#row=5")
    assert text(browser, "#detail .name code") == faulty.findings[5].pair.place.name
    browser.run("document.querySelector('h1 a').click()")
    assert browser.run("location.hash") == f"#row={faulty.located.culprit.row}"  # type: ignore[union-attr]
    browser.run("location.hash = '#row=999999'")
    assert browser.complaints() == []


def test_how_sure_a_pair_is_that_no_mapping_names(browser: Chromium, packed: Runs, tmp_path: Path) -> None:
    comparison = compare_recordings(*packed.pair(Wanted("resnet", "L1", variant="eps")))
    write_page(tmp_path / "aligned.html", comparison)
    row = next(n for n, f in enumerate(comparison.findings) if f.pair.certainty is not None)
    certainty = comparison.findings[row].pair.certainty
    assert certainty is not None
    browser.open(tmp_path / "aligned.html", f"#row={row}")
    sections = "[...document.querySelectorAll('#detail section')]"
    found = browser.run(f"{sections}.find(s => s.textContent.startsWith('Alignment'))?.textContent")
    sure = f"{100 * certainty.share:.0f} % sure: {certainty.why}."
    assert found == f"Alignment without a mapping{sure}"
    titles = browser.run("[...document.querySelectorAll('#grid th')].map(cell => cell.textContent.trim())")
    assert any(title.startswith("Alignment") for title in titles)
    assert "Aligned without a mapping" in text(browser, ".answer")
    lone = next(n for n, f in enumerate(comparison.findings) if f.pair.golden is None)
    browser.open(tmp_path / "aligned.html", f"#row={lone}")
    assert browser.run(f"{sections}.some(s => s.textContent.startsWith('Alignment'))") is False
    assert browser.complaints() == []


def test_the_tree_by_keyboard(browser: Chromium, page: Path, faulty: Comparison) -> None:
    browser.open(page)
    tab_to(browser, "#tree")
    browser.press("Home", "ArrowRight", "ArrowDown")
    at = "document.getElementById(document.querySelector('#tree').getAttribute('aria-activedescendant'))"
    assert browser.run(f"{at}.getAttribute('aria-level')") == "3"
    browser.press("ArrowUp", "Enter")
    label = browser.run(f"{at}.querySelector('.label').textContent")
    assert label == "layers.0.Block"
    inside = sum("layers.0" in name or _layer(name) == 0 for name in map(_call_name, faulty.findings))
    assert text(browser, "#shown") == f"{inside} of {len(faulty.findings)} places"
    browser.press("ArrowLeft")
    assert browser.run(f"{at}.getAttribute('aria-expanded')") == "false"


def _call_name(finding: Any) -> str:
    return str(finding.pair.place.record.name)


def _layer(name: str) -> int:
    """Each layer makes each API call twice."""
    number = re.search(r"\.(\d+)\.(?:forward|backward)$", name)
    return int(number[1]) // 2 if number else -1


def test_the_chart(browser: Chromium, page: Path, faulty: Comparison) -> None:
    browser.open(page)
    tab_to(browser, "#chart")
    browser.press("ArrowRight")
    row = faulty.located.culprit.row + 1  # type: ignore[union-attr]
    assert browser.run("location.hash") == f"#row={row}"
    assert f"{len(faulty.findings)} places in the order of execution" in text(browser, "#chart-text")
    box = browser.run("document.getElementById('chart').getBoundingClientRect().toJSON()")
    assert _marks(browser) > 100
    browser.mouse("mousePressed", box["x"] + 200, box["y"] + 80, button="left", clickCount=1)
    browser.mouse("mouseMoved", box["x"] + 260, box["y"] + 80, button="left")
    before = _marks(browser)
    browser.mouse("mouseReleased", box["x"] + 260, box["y"] + 80, button="left", clickCount=1)
    assert _marks(browser) != before


def _marks(browser: Chromium) -> int:
    """How many pixels of the chart are not empty, once it is drawn."""
    browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    found: int = browser.run(
        "(() => { const c = document.getElementById('chart');"
        " const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
        " return data.filter((value, i) => i % 4 === 3 && value).length; })()"
    )
    return found


def test_markup_in_names_is_inert(browser: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, page_case.hostile())
    browser.open(path)
    assert text(browser, "#detail .name code") == f"{page_case.HOSTILE}.output.0"
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert text(browser, "title") == "step 0 · msprobe"
    assert (browser.complaints(), browser.requested()) == ([], [path.as_uri()])


def test_what_a_screen_reader_hears(browser: Chromium, page: Path) -> None:
    browser.open(page)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    heard = {(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]}
    assert {
        ("grid", "Places"),
        ("tree", "Modules"),
        ("columnheader", "Error"),
        ("heading", "Details"),
    } <= heard
    nameless = [
        n
        for n in nodes
        if not n["ignored"] and n["role"]["value"] in ("button", "searchbox", "treeitem", "link")
    ]
    assert [n for n in nameless if not n["name"]["value"]] == []


@pytest.mark.parametrize("dark", [False, True])
def test_contrast(browser: Chromium, page: Path, dark: bool) -> None:
    """Texts are at least 4.5 times as light or dark as what is behind them."""
    browser.screen(1440, 900, dark=dark)
    browser.open(page)
    assert browser.run(CONTRAST) == []
    browser.screen(1440, 900)


CONTRAST = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = parts(colour).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || element.closest("script, style, noscript, .unseen, [hidden]")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.add(`${element.outerHTML.slice(0, 80)}`);
  }
  return [...faint];
})()"""
