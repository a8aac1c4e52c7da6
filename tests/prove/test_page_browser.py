"""The page of 50 000 rows in a real Chromium: how long until it can be used, and until a filter answers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

import page_case
from chromium import PROGRAM, Chromium
from msprobe.report.page import write_page

pytestmark = pytest.mark.prove

LAYERS = 480
WRONG = "Functional.softmax.500.forward"
OPENED, FILTERED = 2000, 100  # milliseconds that the page may take, by the browser's own marks


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    comparison = page_case.comparison(LAYERS, wrong=WRONG)
    assert len(comparison.findings) >= 50_000
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page(path, comparison)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None, "this needs chromium; on Debian: apt-get install chromium"
    with Chromium(tmp_path_factory.mktemp("profile")) as found:
        found.screen(1440, 900)
        yield found


@pytest.mark.spec("P24", "CLI")
def test_it_can_be_used_within_two_seconds(browser: Chromium, page: Path) -> None:
    times = []
    for _ in range(5):
        browser.open(page)
        times.append(browser.run("performance.getEntriesByName('msprobe-interactive')[0].startTime"))
    assert statistics.median(times) <= OPENED, times
    assert browser.complaints() == []


@pytest.mark.spec("P24", "CLI")
def test_the_filter_answers_within_a_tenth_of_a_second(browser: Chromium, page: Path) -> None:
    browser.open(page)
    browser.run("document.getElementById('filter').focus()")
    for letter in ("s", "o", "f", "t", "max.500"):
        browser.type(letter)
    times = browser.run("performance.getEntriesByName('msprobe-filter').map(entry => entry.duration)")
    assert len(times) == 5
    assert statistics.median(times) <= FILTERED, times
    assert browser.run("document.getElementById('shown').textContent").startswith("7 of ")
